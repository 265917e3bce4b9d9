//! Networks out of files, and the set that can be read again.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rouse_conf::{Mistake, Refused};

use super::{Cidr, Trusted};

/// The largest file that is read, in bytes. The lists that CDNs publish have a few KiB.
const MAX_FILE: u64 = 1024 * 1024;

/// The mistakes told of one file. A file of something else altogether has one a line.
const MAX_MISTAKES: usize = 20;

/// Where the networks come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Those of the configuration itself.
    pub networks: Vec<Cidr>,
    /// Files with one network a line. `#` starts a comment.
    pub files: Vec<PathBuf>,
}

impl Source {
    /// Reads the files, which blocks. One that can't be read, holds a mistake or holds no network is
    /// refused, and with it the whole: half a list would be no better than none.
    pub fn read(&self) -> Result<Trusted, Refused> {
        let mut networks = self.networks.clone();
        for file in &self.files {
            networks.extend(read_file(file)?);
        }
        Ok(networks.into_iter().collect())
    }
}

/// A set that is read again while it is used.
#[derive(Debug)]
pub struct Live {
    source: Source,
    current: ArcSwap<Trusted>,
}

impl Live {
    /// The set of `source`, read now, which blocks.
    pub fn new(source: Source) -> Result<Self, Refused> {
        let current = ArcSwap::from_pointee(source.read()?);
        Ok(Self { source, current })
    }

    /// The set as it is now. Costs a connection no lock.
    pub fn current(&self) -> Arc<Trusted> {
        self.current.load_full()
    }

    /// The files to watch.
    pub fn files(&self) -> &[PathBuf] {
        &self.source.files
    }

    /// Reads the files again, which blocks, and tells whether the set is another now. An error
    /// leaves the set as it was.
    pub fn reload(&self) -> Result<bool, Refused> {
        let read = self.source.read()?;
        if read == **self.current.load() {
            return Ok(false);
        }
        self.current.store(Arc::new(read));
        Ok(true)
    }
}

fn read_file(path: &Path) -> Result<Vec<Cidr>, Refused> {
    let whole = |message: String| Refused {
        path: path.to_owned(),
        mistakes: vec![Mistake { line: None, message }],
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| whole(format!("can't be read: {e}")))?;
    // Not by its size, which a pipe or a growing file does not tell.
    let read = file.take(MAX_FILE + 1).read_to_string(&mut text);
    let size = read.map_err(|e| whole(format!("can't be read: {e}")))?;
    if size as u64 > MAX_FILE {
        return Err(whole(format!("has more than {MAX_FILE} bytes")));
    }
    parse(&text).map_err(|mistakes| Refused { path: path.to_owned(), mistakes })
}

fn parse(text: &str) -> Result<Vec<Cidr>, Vec<Mistake>> {
    let (mut networks, mut mistakes) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(before, _)| before).trim();
        if line.is_empty() {
            continue;
        }
        match line.parse() {
            Ok(network) => networks.push(network),
            Err(error) => {
                let error: super::CidrError = error;
                mistakes.push(Mistake { line: Some(at + 1), message: error.to_string() });
                if mistakes.len() == MAX_MISTAKES {
                    break;
                }
            }
        }
    }
    if mistakes.is_empty() && networks.is_empty() {
        // A list that is being written, or whose download failed, trusts nobody for a moment.
        let message = "holds no network; take it out of `trusted_proxies_files` if none is meant";
        mistakes.push(Mistake { line: None, message: message.to_owned() });
    }
    if mistakes.is_empty() { Ok(networks) } else { Err(mistakes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_comments_and_mistakes() {
        let good = parse("# a list\n\n 192.0.2.0/24 # one\r\n2001:db8::/32\n10.0.0.1").unwrap();
        assert_eq!(good.len(), 3);
        let bad = parse("192.0.2.0/24\n10.0.0.1/8\n<html>\n").unwrap_err();
        assert_eq!(bad.iter().map(|m| m.line).collect::<Vec<_>>(), [Some(2), Some(3)]);
        assert_eq!(parse("# nothing\n").unwrap_err()[0].line, None);
        assert_eq!(parse(&"x\n".repeat(1000)).unwrap_err().len(), MAX_MISTAKES);
    }

    #[test]
    fn a_bad_file_leaves_the_old_set() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cdn.txt");
        std::fs::write(&file, "192.0.2.0/24\n").unwrap();
        let networks = vec!["10.0.0.0/8".parse().unwrap()];
        let live = Live::new(Source { networks, files: vec![file.clone()] }).unwrap();
        let trusted = |address: &str| live.current().contains(address.parse().unwrap());
        assert!(trusted("192.0.2.1") && trusted("10.0.0.1") && !trusted("198.51.100.1"));
        assert_eq!(live.files(), std::slice::from_ref(&file));
        assert_eq!(live.reload(), Ok(false));

        for bad in ["192.0.2.0/24\n198.51.100.0/99\n", "", "\u{fffd}"] {
            std::fs::write(&file, bad).unwrap();
            let refused = live.reload().unwrap_err();
            assert_eq!(refused.path, file);
            assert!(trusted("192.0.2.1") && !trusted("198.51.100.1"), "{bad}");
        }
        std::fs::write(&file, [0xff]).unwrap();
        live.reload().unwrap_err();
        std::fs::write(&file, "10.0.0.0/8\n".repeat(200_000)).unwrap();
        assert!(live.reload().unwrap_err().to_string().contains("more than"));
        std::fs::remove_file(&file).unwrap();
        live.reload().unwrap_err();
        assert!(trusted("192.0.2.1"));

        std::fs::write(&file, "198.51.100.0/24\n").unwrap();
        assert_eq!(live.reload(), Ok(true));
        assert!(!trusted("192.0.2.1") && trusted("10.0.0.1") && trusted("198.51.100.1"));
    }

    #[test]
    fn without_a_file_that_is_there_nothing_starts() {
        let source = Source { networks: vec![], files: vec!["/nowhere/cdn.txt".into()] };
        let refused = Live::new(source).unwrap_err().to_string();
        assert!(refused.starts_with("/nowhere/cdn.txt: can't be read: "), "{refused}");
    }
}
