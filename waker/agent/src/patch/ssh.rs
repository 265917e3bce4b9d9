//! Does an SSH server greet?

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a server may take until its whole greeting is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest identification line with its end, in bytes (RFC 4253, section 4.2).
const MAX_LINE: usize = 255;

/// The most bytes of a server that are looked at: other lines may come before that line.
const MAX_GREETING: usize = 8 * 1024;

/// Why no SSH server was heard.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// Nobody listens there.
    #[error("nothing listens on {address}: {source}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// As the kernel says.
        source: io::Error,
    },
    /// It was accepted, and then the connection broke.
    #[error("the connection to {address} broke before a greeting: {source}")]
    Broken {
        /// Where.
        address: SocketAddr,
        /// As the kernel says.
        source: io::Error,
    },
    /// It hung up.
    #[error("{0} hung up without a greeting of SSH")]
    Closed(SocketAddr),
    /// It was silent.
    #[error("{address} did not greet within {} ms", patience.as_millis())]
    Silence {
        /// Where.
        address: SocketAddr,
        /// How long it had.
        patience: Duration,
    },
    /// It says something, but does not greet.
    #[error("what listens on {0} is no SSH server: no line begins with SSH-2.0-")]
    Other(SocketAddr),
}

/// Waits for the greeting of an SSH server on `port` of the loopback, and hangs up.
pub fn greets(port: u16) -> Result<(), SshError> {
    greets_within((Ipv4Addr::LOCALHOST, port).into(), PATIENCE)
}

fn greets_within(address: SocketAddr, patience: Duration) -> Result<(), SshError> {
    let started = Instant::now();
    let silence = || SshError::Silence { address, patience };
    let mut stream =
        TcpStream::connect_timeout(&address, patience).map_err(|source| match source.kind() {
            io::ErrorKind::TimedOut => silence(),
            _ => SshError::Connect { address, source },
        })?;
    let mut greeting = Vec::new();
    let mut chunk = [0; 512];
    loop {
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(silence());
        }
        let read = stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut chunk));
        let read = match read {
            Ok(0) => return Err(SshError::Closed(address)),
            Ok(read) => read,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(silence()),
                _ => return Err(SshError::Broken { address, source: error }),
            },
        };
        greeting.extend_from_slice(&chunk[..read]);
        if is_greeting(&greeting) {
            return Ok(());
        }
        if greeting.len() > MAX_GREETING {
            return Err(SshError::Other(address));
        }
    }
}

/// Whether a whole identification line is among the lines of `bytes`. A server that knows the older
/// protocol too calls itself 1.99 (section 5.1).
fn is_greeting(bytes: &[u8]) -> bool {
    bytes.split_inclusive(|b| *b == b'\n').any(|line| {
        line.ends_with(b"\n")
            && line.len() <= MAX_LINE
            && (line.starts_with(b"SSH-2.0-") || line.starts_with(b"SSH-1.99-"))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_greeting_is_a_whole_line() {
        for greeting in
            ["SSH-2.0-x\r\n", "SSH-2.0-OpenSSH_9.2 y\n", "hi\r\nSSH-2.0-x\r\nrest", "SSH-1.99-x\n"]
        {
            assert!(is_greeting(greeting.as_bytes()), "{greeting}");
        }
        let long = format!("SSH-2.0-{}\n", "x".repeat(MAX_LINE));
        for other in ["", "SSH-2.0-x", "SSH-1.5-x\n", " SSH-2.0-x\n", "hi SSH-2.0-x\n", &long] {
            assert!(!is_greeting(other.as_bytes()), "{other}");
        }
    }

    /// What is heard of a server that says `parts` and hangs up when nobody listens any more.
    fn heard(parts: &'static [&'static [u8]], hangs_up: bool) -> Result<(), SshError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                for part in parts {
                    stream.write_all(part).unwrap();
                }
                if !hangs_up {
                    // Until the other end hangs up.
                    let _ = stream.read(&mut [0]);
                }
            });
            let patience = if parts.is_empty() && !hangs_up {
                Duration::from_millis(20)
            } else {
                Duration::from_secs(60)
            };
            greets_within(address, patience)
        })
    }

    #[test]
    fn servers_are_told_from_others() {
        heard(&[b"SSH-2.0-x\r\n"], false).unwrap();
        heard(&[b"Welcome\r\nSS", b"H-2.0-x", b"\r\n"], false).unwrap();
        assert!(matches!(heard(&[b"SSH-2.0-x"], true), Err(SshError::Closed(_))));
        assert!(matches!(heard(&[], true), Err(SshError::Closed(_))));
        assert!(matches!(heard(&[], false), Err(SshError::Silence { .. })));
        assert!(matches!(heard(&[&[b'x'; MAX_GREETING + 1]], false), Err(SshError::Other(_))));
        // Nobody has this port; one that was free a moment ago may be held again.
        assert!(matches!(greets(1), Err(SshError::Connect { .. })));
    }
}
