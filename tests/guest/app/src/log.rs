//! `/log`: what outlives the app. An entry is acknowledged when it is on the disk, and not before.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use http::header::CACHE_CONTROL;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;

use crate::answer::{self, Body};
use crate::chain::{self, Head, MAX_ENTRY};
use crate::error::Refusal;
use crate::query;

/// The most that a log grows to, in bytes: all of it is read at a start and in one answer.
const MAX_LOG: u64 = 16 << 20;

/// The log on the app's disk. Entries that come at once are written one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    Open(Open),
    /// There is no directory for it.
    Missing(String),
    /// What is on the disk is not to be built on.
    Broken(String),
}

#[derive(Debug)]
struct Open {
    file: File,
    head: Head,
    bytes: u64,
}

impl Log {
    /// Reads and verifies the log in `directory`; a torn last line is cut off. What is wrong is said
    /// to whoever asks for the log: the app's other paths need none.
    pub(crate) fn open(directory: &Path) -> Self {
        Self(Arc::new(Mutex::new(State::read(directory))))
    }

    /// Appends the query's `entry`, or the body.
    pub(crate) async fn post(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let (parts, body) = request.into_parts();
        let text = match query::text(&parts.uri, "entry")? {
            Some(text) => text,
            None => {
                let body = Limited::new(body, MAX_ENTRY).collect().await;
                let body = body.map_err(|e| Refusal::parameter("the body", e.to_string()))?;
                String::from_utf8(body.to_bytes().into())
                    .map_err(|_| Refusal::parameter("the body", "an entry is UTF-8"))?
            }
        };
        chain::entry(&text).map_err(|e| Refusal::parameter("entry", e.to_string()))?;
        // A visitor who leaves meanwhile stops nothing half-way.
        let head = self.blocking(move |state| state.append(&text)).await?;
        Ok(head_answer(&head))
    }

    /// Where the log ends.
    pub(crate) async fn head(&self) -> Result<Response<Body>, Refusal> {
        let head = self.blocking(|state| Ok(state.open()?.head.clone())).await?;
        Ok(head_answer(&head))
    }

    /// All of it.
    pub(crate) async fn whole(&self) -> Result<Response<Body>, Refusal> {
        let bytes = self
            .blocking(|state| {
                let Open { file, bytes, .. } = state.open()?;
                // At most MAX_LOG.
                let mut all = vec![0; *bytes as usize];
                file.read_exact_at(&mut all, 0).map_err(|e| failed("read", &e))?;
                Ok(all)
            })
            .await?;
        let mut response = answer::of("text/plain; charset=utf-8", bytes);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let state = self.0.clone();
        tokio::task::spawn_blocking(move || {
            work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .await
        .map_err(|e| Refusal::Machine(e.to_string()))?
    }
}

fn head_answer(head: &Head) -> Response<Body> {
    answer::json(StatusCode::OK, &json!({ "n": head.n, "hash": head.hash }))
}

fn failed(what: &str, why: &io::Error) -> Refusal {
    Refusal::Machine(format!("the log can't be {what}: {why}"))
}

impl State {
    fn read(directory: &Path) -> Self {
        if !directory.is_dir() {
            return Self::Missing(format!(
                "no disk: there is no directory {}",
                directory.display()
            ));
        }
        let path = directory.join("log");
        Open::read(directory, &path)
            .unwrap_or_else(|e| Self::Broken(format!("{}: {e}", path.display())))
    }

    fn open(&mut self) -> Result<&mut Open, Refusal> {
        match self {
            Self::Open(open) => Ok(open),
            Self::Missing(why) => Err(Refusal::Missing(why.clone())),
            Self::Broken(why) => Err(Refusal::Machine(why.clone())),
        }
    }

    fn append(&mut self, entry: &str) -> Result<Head, Refusal> {
        let open = self.open()?;
        let next = open.head.next(entry);
        let line = open.head.line(&next, entry);
        let end = open.bytes + line.len() as u64;
        if end > MAX_LOG {
            return Err(Refusal::Machine(format!("the log is full: it has {} bytes", open.bytes)));
        }
        if let Err(why) = open.file.write_all_at(line.as_bytes(), open.bytes) {
            // A full disk, say. Nothing of the line is to stay.
            if let Err(why) = open.file.set_len(open.bytes) {
                *self = Self::Broken(format!("half a line can't be cut off the log: {why}"));
            }
            return Err(failed("written", &why));
        }
        if let Err(why) = open.file.sync_all() {
            // Nobody knows what is on the disk now, and a second sync would say that all is well.
            *self = Self::Broken(format!("the log's last line may not be on the disk: {why}"));
            return Err(failed("synced", &why));
        }
        open.bytes = end;
        open.head = next.clone();
        Ok(next)
    }
}

impl Open {
    fn read(directory: &Path, path: &Path) -> io::Result<State> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path)?;
        let mut bytes = Vec::new();
        (&file).take(MAX_LOG + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_LOG {
            return Err(io::Error::other(format!("it has more than {MAX_LOG} bytes")));
        }
        let (head, whole) = chain::verify(&bytes).map_err(io::Error::other)?;
        if whole < bytes.len() {
            file.set_len(whole as u64)?;
        }
        // A process that was killed may have left lines that are in no disk yet.
        file.sync_all()?;
        File::open(directory)?.sync_all()?;
        Ok(State::Open(Self { file, head, bytes: whole as u64 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(state: &mut State) -> (u64, String) {
        let head = state.open().unwrap().head.clone();
        (head.n, head.hash)
    }

    #[test]
    fn entries_are_there_after_a_start() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = State::read(directory.path());
        assert_eq!(head(&mut state).0, 0);
        state.append("a").unwrap();
        let last = state.append("b").unwrap();
        let mut again = State::read(directory.path());
        assert_eq!(head(&mut again), (2, last.hash));
        assert_eq!(again.append("c").unwrap().n, 3);
    }

    #[test]
    fn a_torn_last_line_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut state = State::read(directory.path());
        state.append("a").unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"2 half a li"].concat()).unwrap();
        let mut state = State::read(directory.path());
        assert_eq!(head(&mut state).0, 1);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        assert_eq!(state.append("b").unwrap().n, 2);
    }

    #[test]
    fn a_broken_chain_takes_nothing_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "1 x y z\n").unwrap();
        let mut state = State::read(directory.path());
        let Refusal::Machine(why) = state.append("a").unwrap_err() else { panic!("no 500") };
        assert!(why.contains("line 1"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1 x y z\n");
    }

    #[test]
    fn no_directory_is_no_disk() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = State::read(&directory.path().join("app"));
        assert!(matches!(state.append("a"), Err(Refusal::Missing(_))));
    }

    #[test]
    fn a_full_log_takes_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = State::read(directory.path());
        state.open().unwrap().bytes = MAX_LOG - 10;
        assert!(matches!(state.append("a"), Err(Refusal::Machine(_))));
        assert_eq!(head(&mut state).0, 0);
    }
}
