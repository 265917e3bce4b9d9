//! An origin that keeps every byte it gets, and reads them as strictly as can be.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A request as it came, read so that there is one way only to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The target.
    pub target: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, without its chunks' heads.
    pub body: Vec<u8>,
    /// What came after the last chunk.
    pub trailers: Vec<(String, String)>,
    /// On which connection, counted from 0.
    pub connection: usize,
}

impl Request {
    /// A header's values.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect()
    }

    /// A header's value, or nothing. Panics when there are two.
    pub fn header(&self, name: &str) -> &str {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} is there more than once: {self:?}");
        all.first().copied().unwrap_or_default()
    }
}

/// What an origin does with a request, told when its header is there.
#[derive(Clone, Debug)]
pub enum Act {
    /// These bytes, once the body is there.
    Answer(Vec<u8>),
    /// `100 Continue` at once, and these bytes once the body is there.
    Continue(Vec<u8>),
    /// These bytes at once; the body is not read, and the connection closed.
    Early(Vec<u8>),
}

impl Act {
    /// 200, and this.
    pub fn page(body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        Self::Answer([head.as_bytes(), body].concat())
    }
}

/// A server of HTTP/1.1 on raw sockets. Ends when it is dropped.
#[derive(Debug)]
pub struct RawOrigin {
    address: SocketAddr,
    /// Of each connection, all that came.
    bytes: Arc<Mutex<Vec<Vec<u8>>>>,
    _server: JoinSet<()>,
}

type Bytes = Arc<Mutex<Vec<Vec<u8>>>>;

impl RawOrigin {
    /// One that answers every request with `page`.
    pub async fn start() -> Self {
        Self::with(|_| Act::page("page")).await
    }

    /// One that does what `act` says.
    pub async fn with(act: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let bytes = Bytes::default();
        let (kept, act) = (Arc::clone(&bytes), Arc::new(act));
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let id = {
                    let mut kept = lock(&kept);
                    kept.push(Vec::new());
                    kept.len() - 1
                };
                let (kept, act) = (Arc::clone(&kept), Arc::clone(&act));
                connections.spawn(async move { serve(stream, id, &kept, &*act).await });
            }
        });
        Self { address, bytes, _server: server }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Of each connection, all that came.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        lock(&self.bytes).clone()
    }

    /// The whole requests, and of each connection what came after its last whole one. Panics, with
    /// why, when something is open to another reading.
    pub fn read(&self) -> (Vec<Request>, Vec<Vec<u8>>) {
        let (mut requests, mut rests) = (Vec::new(), Vec::new());
        for (id, bytes) in self.bytes().iter().enumerate() {
            let mut rest = &bytes[..];
            loop {
                match request(rest, id) {
                    Ok(Some((request, length))) => {
                        requests.push(request);
                        rest = &rest[length..];
                    }
                    Ok(None) => break,
                    Err(why) => panic!("{why}: {:?}", String::from_utf8_lossy(bytes)),
                }
            }
            rests.push(rest.to_vec());
        }
        (requests, rests)
    }

    /// The requests. Panics when there is anything else.
    pub fn requests(&self) -> Vec<Request> {
        let (requests, rests) = self.read();
        assert!(rests.iter().all(Vec::is_empty), "there is more than requests: {rests:?}");
        requests
    }
}

impl Drop for RawOrigin {
    #[allow(clippy::print_stderr, reason = "the test runner shows it with the failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (id, bytes) in self.bytes().iter().enumerate() {
                let shown = &bytes[bytes.len().saturating_sub(2000)..];
                eprintln!(
                    "connection {id} to the origin ended in {:?}",
                    String::from_utf8_lossy(shown)
                );
            }
        }
    }
}

fn lock(bytes: &Mutex<Vec<Vec<u8>>>) -> MutexGuard<'_, Vec<Vec<u8>>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    mut stream: TcpStream,
    id: usize,
    kept: &Mutex<Vec<Vec<u8>>>,
    act: &(dyn Fn(&Request) -> Act + Send + Sync),
) {
    let mut buffer = Vec::new();
    let mut told: Option<Act> = None;
    loop {
        if told.is_none()
            && let Ok(Some((request, _))) = head(&buffer, id)
        {
            let act = act(&request);
            let at_once = match &act {
                Act::Early(answer) => Some(&answer[..]),
                Act::Continue(_) => Some(&b"HTTP/1.1 100 Continue\r\n\r\n"[..]),
                Act::Answer(_) => None,
            };
            if let Some(bytes) = at_once
                && stream.write_all(bytes).await.is_err()
            {
                return;
            }
            told = Some(act);
        }
        if let Ok(Some((_, length))) = request(&buffer, id) {
            buffer.drain(..length);
            match told.take() {
                Some(Act::Answer(answer) | Act::Continue(answer)) => {
                    if stream.write_all(&answer).await.is_err() {
                        return;
                    }
                    continue;
                }
                Some(Act::Early(_)) | None => return,
            }
        }
        if matches!(told, Some(Act::Early(_))) {
            // What is under way is taken from the kernel, so that it does not reset the connection.
            let _ = stream.shutdown().await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            return;
        }
        let before = buffer.len();
        match stream.read_buf(&mut buffer).await {
            Ok(n) if n > 0 => lock(kept)[id].extend_from_slice(&buffer[before..]),
            _ => return,
        }
    }
}

/// The first request in `bytes` and its length; none when it is not whole.
fn request(bytes: &[u8], connection: usize) -> Result<Option<(Request, usize)>, String> {
    let Some((mut request, mut at)) = head(bytes, connection)? else { return Ok(None) };
    if request.header("transfer-encoding") == "chunked" {
        loop {
            let Some((size, next)) = line(bytes, at)? else { return Ok(None) };
            let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
            let size = usize::from_str_radix(&size, 16).ok().filter(|_| digits);
            let size = size.ok_or("a chunk's size is no plain number")?;
            at = next;
            if size == 0 {
                break;
            }
            let Some(chunk) = bytes.get(at..at + size + 2) else { return Ok(None) };
            let data = chunk.strip_suffix(b"\r\n").ok_or("a chunk does not end where it should")?;
            request.body.extend_from_slice(data);
            at += size + 2;
        }
        loop {
            let Some((text, next)) = line(bytes, at)? else { return Ok(None) };
            at = next;
            if text.is_empty() {
                return Ok(Some((request, at)));
            }
            request.trailers.push(field(&text)?);
        }
    }
    let length = match request.header("content-length") {
        "" => 0,
        digits => digits.parse().map_err(|e| format!("{digits:?} is no length: {e}"))?,
    };
    let Some(body) = bytes.get(at..at + length) else { return Ok(None) };
    request.body = body.to_vec();
    Ok(Some((request, at + length)))
}

/// The first request in `bytes` up to its body, and where that begins.
fn head(bytes: &[u8], connection: usize) -> Result<Option<(Request, usize)>, String> {
    let Some((first, mut at)) = line(bytes, 0)? else { return Ok(None) };
    let words: Vec<_> = first.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        return Err(format!("{first:?} is no request line"));
    };
    // Bytes above ASCII are in no URI either, but end nothing.
    if !is_token(method) || !target.chars().all(|c| c.is_ascii_graphic() || !c.is_ascii()) {
        return Err(format!("{first:?} is no request line"));
    }
    let mut headers = Vec::new();
    loop {
        let Some((text, next)) = line(bytes, at)? else { return Ok(None) };
        at = next;
        if text.is_empty() {
            break;
        }
        headers.push(field(&text)?);
    }
    let count = |name| headers.iter().filter(|(n, _)| n == name).count();
    let (hosts, lengths, codings) =
        (count("host"), count("content-length"), count("transfer-encoding"));
    if hosts != 1 || lengths + codings > 1 {
        return Err(format!("{hosts} hosts, {lengths} lengths, {codings} codings"));
    }
    for (name, value) in &headers {
        let good = match name.as_str() {
            "content-length" => value.bytes().all(|b| b.is_ascii_digit()) && !value.is_empty(),
            "transfer-encoding" => value == "chunked",
            _ => true,
        };
        if !good {
            return Err(format!("{name}: {value:?}"));
        }
    }
    let (method, target) = (method.to_owned(), target.to_owned());
    let (body, trailers) = (Vec::new(), Vec::new());
    Ok(Some((Request { method, target, headers, body, trailers, connection }, at)))
}

/// The line at `at`, which ends with CRLF and has no other CR, LF or NUL, and where the next is.
fn line(bytes: &[u8], at: usize) -> Result<Option<(String, usize)>, String> {
    let rest = &bytes[at..];
    let Some(end) = rest.windows(2).position(|w| w == b"\r\n") else { return Ok(None) };
    let text = &rest[..end];
    if text.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
        return Err("there is a CR, LF or NUL within a line".into());
    }
    Ok(Some((String::from_utf8_lossy(text).into_owned(), at + end + 2)))
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or(format!("{text:?} is no field"))?;
    if !is_token(name) {
        return Err(format!("{text:?} is no field"));
    }
    let value = value.trim_matches([' ', '\t']);
    if value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
        return Err(format!("{text:?} has a control character"));
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

fn is_token(text: &str) -> bool {
    let special = |b: u8| b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || special(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_two_meanings_is_not_read() {
        for bad in [
            "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\nB: c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x\r\na\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc0\r\n\r\n",
        ] {
            request(bad.as_bytes(), 0).expect_err(bad);
        }
    }

    #[test]
    fn bodies_end_where_they_say() {
        let two = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n0\r\nEnd: x\r\n\r\n\
                   POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nde";
        let (first, at) = request(two.as_bytes(), 0).unwrap().unwrap();
        assert_eq!((&*first.target, &*first.body), ("/a", &b"abc"[..]));
        assert_eq!(first.trailers, [("end".to_owned(), "x".to_owned())]);
        let (second, length) = request(&two.as_bytes()[at..], 0).unwrap().unwrap();
        assert_eq!((&*second.target, &*second.body, at + length), ("/b", &b"de"[..], two.len()));
        for cut in 0..at {
            assert_eq!(request(&two.as_bytes()[..cut], 0), Ok(None), "the first {cut} bytes");
        }
    }
}
