//! Listening sockets: bound, or taken over from whoever started this process.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

use super::Listener;

/// How many connections may wait to be accepted. The kernel bounds it by `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// Why there is no listening socket.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}")]
pub(crate) struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Sockets that were handed to this process: by systemd (sd_listen_fds(3)), or by the proxy whose place
/// it takes.
#[derive(Debug, Default)]
pub(crate) struct Inherited(HashMap<SocketAddr, std::net::TcpListener>);

impl Inherited {
    /// What the environment tells of. Once a process.
    pub(crate) fn take() -> Self {
        let mut handed = ListenFd::from_env();
        let mut sockets = HashMap::new();
        for index in 0..handed.len() {
            match handed.take_tcp_listener(index) {
                Ok(Some(socket)) => {
                    if let Ok(address) = socket.local_addr() {
                        sockets.insert(address, socket);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a socket that was handed over is none that can be used")
                }
            }
        }
        Self(sockets)
    }

    /// The socket for `address`: handed over, else bound. An IPv6 one takes IPv4 too where the system has it
    /// so, but for `v6_only`: where another has the same port.
    pub(crate) fn listen(
        &mut self,
        address: SocketAddr,
        v6_only: bool,
    ) -> Result<TcpListener, BindError> {
        let failed = |source| BindError { address, source };
        match self.0.remove(&address) {
            Some(socket) => {
                socket.set_nonblocking(true).map_err(failed)?;
                TcpListener::from_std(socket).map_err(failed)
            }
            None => bind(address, v6_only).map_err(failed),
        }
    }

    /// What is left: no port of the configuration.
    pub(crate) fn unused(&self) -> impl Iterator<Item = &SocketAddr> {
        self.0.keys()
    }
}

fn bind(address: SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // So that connections of the process before that wind down do not keep us out.
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && v6_only {
        SockRef::from(&socket).set_only_v6(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listening socket.
pub(crate) struct Bound {
    pub(crate) listener: Listener,
    pub(crate) socket: TcpListener,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_port_for_each_family() {
        let mut none = Inherited::default();
        let v4 = none.listen("0.0.0.0:0".parse().unwrap(), false).unwrap();
        let port = v4.local_addr().unwrap().port();
        let any = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
        assert!(none.listen(any, false).is_err(), "else the kernel would split visitors by chance");
        let v6 = none.listen(any, true).unwrap();
        assert_eq!(v6.local_addr().unwrap().port(), port);
    }

    #[tokio::test]
    async fn a_cause_is_told_once() {
        let mut none = Inherited::default();
        let taken = none.listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = taken.local_addr().unwrap();
        let error = anyhow::Error::from(none.listen(address, false).unwrap_err());
        let told = format!("{error:#}");
        assert_eq!(told.matches("Address already in use").count(), 1, "{told}");
    }
}
