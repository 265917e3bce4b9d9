//! `[wake]` and `[waiting]` of an app's file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use rouse_conf::Table;
use rouse_conf::check::{between, word};

use crate::page::{MAX_PAGE, Template};
use crate::preflight::{Cors, Origin};
use crate::reply::{Favicon, Reply, Static};
use crate::schedule::Schedule;
use crate::who::{Credential, Who};
use crate::{Policies, Rate, Waiting, WakePolicy};

/// The most entries of any list.
const MAX_LIST: usize = 64;

/// The longest body of a reply, in bytes.
const MAX_BODY: usize = 4 * 1024;

/// The longest `robots.txt` or icon, in bytes.
const MAX_STATIC: usize = 16 * 1024;

/// The longest policy as JSON, in bytes. It travels in one line of the waker's socket, which has
/// at most 64 KiB, some 20 of which its hosts may take.
pub const MAX_POLICIES: usize = 40 * 1024;

/// Reads `[wake]` and `[waiting]` of an app's `file`. Paths of files are relative to `base`. After
/// a mistake what is returned is of no use.
pub fn read(file: &mut Table<'_>, base: &Path) -> Policies {
    let wake = file.table("wake", |t| read_wake(t, base));
    let waiting = file.table("waiting", |t| read_waiting(t, base));
    let policies = Policies::new(wake, waiting);
    match serde_json::to_string(&policies) {
        Ok(json) if json.len() > MAX_POLICIES => file.mistake(&format!(
            "`wake` and `waiting` come to {} bytes with all that they name, and {MAX_POLICIES} are \
             allowed; give a smaller page or icon",
            json.len()
        )),
        Ok(_) => {}
        Err(error) => file.mistake(&format!("`wake` can't be passed on: {error}")),
    }
    policies
}

/// Reads `[wake]`.
pub fn read_wake(t: &mut Table<'_>, base: &Path) -> WakePolicy {
    let who = who(t);
    let budget = t.table("budget", rate);
    let per_address = t.table("per_address", rate);
    let mut replies = t.tables("reply", reply);
    if replies.len() > MAX_LIST {
        t.mistake(&format!("there are more than {MAX_LIST} `reply`"));
        replies.truncate(MAX_LIST);
    }
    WakePolicy {
        who,
        budget,
        per_address,
        replies,
        robots: robots(t, base),
        favicon: favicon(t, base),
        cors: cors(t),
        schedule: Schedule {
            awake: t.optional_as("awake", Vec::new(), list),
            prewarm: t.optional_as("prewarm", Vec::new(), list),
            min_awake_seconds: t.optional_as("min_awake_seconds", 0, between(0, 86_400)),
        },
    }
}

/// Reads `[waiting]`.
pub fn read_waiting(t: &mut Table<'_>, base: &Path) -> Waiting {
    let defaults = Waiting::default();
    let after = |seconds| between(0, 3600)(seconds).map(Some);
    let page = |path: PathBuf| {
        let bytes = file(base, &path, MAX_PAGE)?;
        let text = String::from_utf8(bytes).map_err(|_| "is no UTF-8".to_owned())?;
        let template = Template::try_from(text);
        template.map(Some).map_err(|error| format!("{}: {error}", path.display()))
    };
    Waiting {
        page_after_seconds: t.optional_as("page_after_seconds", None, after),
        retry_seconds: t.optional_as("retry_seconds", defaults.retry_seconds, between(1, 300)),
        page: t.optional_as("page_file", None, page),
    }
}

fn list<T>(list: Vec<T>) -> Result<Vec<T>, String> {
    if list.len() <= MAX_LIST { Ok(list) } else { Err(format!("has more than {MAX_LIST} entries")) }
}

fn methods(names: Vec<String>) -> Result<Vec<Method>, String> {
    let method = |name: String| match Method::from_bytes(name.as_bytes()) {
        // Methods are case-sensitive (RFC 9110, 9.1), and `get` is a slip.
        Ok(method) if !name.bytes().any(|b| b.is_ascii_lowercase()) => Ok(method),
        _ => Err(format!("`{name}` is no method; write it in capitals, as `GET`")),
    };
    list(names)?.into_iter().map(method).collect()
}

fn who(t: &mut Table<'_>) -> Who {
    let methods = t.optional_as("methods", Vec::new(), methods);
    let (paths_allow, paths_deny) = t.table("paths", |t| {
        (t.optional_as("allow", Vec::new(), list), t.optional_as("deny", Vec::new(), list))
    });
    let user_agents_deny = t.optional_as("user_agents_deny", Vec::new(), list);
    let words = [("any", false), ("required", true)];
    let required = t.optional_as("authenticated", false, word(&words));
    let mut credentials: Vec<Credential> = t.optional_as("credentials", Vec::new(), list);
    if required && credentials.is_empty() {
        credentials.push(Credential::Header(http::header::AUTHORIZATION));
    } else if !required && !credentials.is_empty() {
        t.mistake("`wake.credentials` mean nothing without `authenticated = \"required\"`");
    }
    Who { methods, paths_allow, paths_deny, user_agents_deny, credentials }
}

fn rate(t: &mut Table<'_>) -> Option<Rate> {
    let some = |n| between(1, 1_000_000)(n).map(Some);
    let wakes: Option<u32> = t.optional_as("wakes", None, some);
    let month = 31 * 24 * 3600;
    let per_seconds: Option<u32> =
        t.optional_as("per_seconds", None, |n| between(1, month)(n).map(Some));
    let burst: Option<u32> = t.optional_as("burst", None, some);
    match (wakes, per_seconds, burst) {
        (Some(wakes), Some(per_seconds), burst) => {
            Some(Rate { wakes, per_seconds, burst: burst.unwrap_or(wakes) })
        }
        (None, None, None) => None,
        _ => {
            t.mistake("a budget needs `wakes` and `per_seconds`");
            None
        }
    }
}

fn reply(t: &mut Table<'_>) -> Option<Reply> {
    let path = t.required("path");
    let status = t.optional_as("status", StatusCode::OK, |n: u16| {
        StatusCode::from_u16(between(200, 599)(n)?).map_err(|error| error.to_string())
    });
    let body = t.optional_as("body", Bytes::new(), |text: String| match text.len() {
        0..=MAX_BODY => Ok(Bytes::from(text)),
        n => Err(format!("has {n} bytes; {MAX_BODY} are allowed")),
    });
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    let content_type = t.optional_as("content_type", kind, content_type);
    let words = [("asleep", false), ("always", true)];
    let always = t.optional_as("while", false, word(&words));
    let count = t.optional("count", false);
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) && !body.is_empty() {
        t.mistake(&format!("a response with status {} has no body", status.as_u16()));
    }
    Some(Reply { path: path?, status, content_type, body, always, count })
}

fn content_type(text: String) -> Result<HeaderValue, String> {
    let good = text.bytes().all(|b| matches!(b, b' '..=b'~'))
        && text.split_once('/').is_some_and(|(kind, sub)| !kind.is_empty() && !sub.is_empty());
    match HeaderValue::try_from(&text) {
        Ok(value) if good => Ok(value),
        _ => Err(format!("`{text}` is no media type, such as `text/plain`")),
    }
}

fn robots(t: &mut Table<'_>, base: &Path) -> Option<Static> {
    let disallow = t.optional_as("robots", false, word(&[("disallow", true)]));
    let given = t.optional_as("robots_file", None, |path: PathBuf| {
        let body = Bytes::from(file(base, &path, MAX_STATIC)?);
        Ok::<_, String>(Some(Static { body, ..Static::disallow() }))
    });
    if disallow && given.is_some() {
        t.mistake("`wake.robots` and `wake.robots_file` are both given; keep one");
    }
    given.or_else(|| disallow.then(Static::disallow))
}

fn favicon(t: &mut Table<'_>, base: &Path) -> Option<Favicon> {
    let nothing = t.optional("favicon", false);
    let given = t.optional_as("favicon_file", None, |path: PathBuf| {
        let kind = match path.extension().and_then(|e| e.to_str()) {
            Some("ico") => "image/x-icon",
            Some("png") => "image/png",
            Some("svg") => "image/svg+xml",
            _ => return Err("is an `.ico`, a `.png` or an `.svg`".to_owned()),
        };
        let body = Bytes::from(file(base, &path, MAX_STATIC)?);
        let content_type = HeaderValue::from_static(kind);
        Ok(Some(Favicon::File(Static { content_type, body })))
    });
    if nothing && given.is_some() {
        t.mistake("`wake.favicon` and `wake.favicon_file` are both given; keep one");
    }
    given.or_else(|| nothing.then_some(Favicon::Nothing))
}

fn cors(t: &mut Table<'_>) -> Option<Cors> {
    let words = [("hold", false), ("allow", true)];
    let allow = t.optional_as("preflight", false, word(&words));
    let cors = t.table("cors", |t| {
        let cors = Cors {
            origins: t.optional_as("origins", Vec::new(), list),
            methods: t.optional_as("methods", Vec::new(), methods),
            credentials: t.optional("credentials", false),
            max_age_seconds: t.optional_as("max_age_seconds", 60, between(0, 86_400)),
        };
        if cors.credentials && cors.origins.iter().any(Origin::is_any) {
            t.mistake("`credentials` can't be allowed to the origin `*`; name the origins");
        }
        cors
    });
    match (allow, cors.origins.is_empty()) {
        (true, true) => {
            t.mistake("`preflight = \"allow\"` needs `[wake.cors] origins`");
            None
        }
        (false, false) => {
            t.mistake("`[wake.cors]` means nothing without `preflight = \"allow\"`");
            None
        }
        (allow, _) => allow.then_some(cors),
    }
}

/// The bytes of the file at `path`, at most `most`.
fn file(base: &Path, path: &Path, most: usize) -> Result<Vec<u8>, String> {
    let path = base.join(path);
    let unreadable = |error| format!("{} can't be read: {error}", path.display());
    // Of a pipe or a device there may be no end.
    if !std::fs::metadata(&path).map_err(unreadable)?.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    let mut bytes = Vec::new();
    let read = File::open(&path).map_err(unreadable)?.take(most as u64 + 1);
    { read }.read_to_end(&mut bytes).map_err(unreadable)?;
    match bytes.len() {
        n if n > most => Err(format!("{} has more than {most} bytes", path.display())),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
