//! The TLS end: certificates by server name, their reload, and the handshake with an early look at
//! the name that is asked for, so that an app can be woken while its visitor's handshake still runs.
//!
//! A [`Config`] names files, a [`Store`] holds what is in them, a [`Tls`] serves one listener by a
//! store:
//!
//! ```no_run
//! # async fn serve(config: rouse_tls::Config, socket: tokio::net::TcpStream)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! let store = rouse_tls::load(&config).map_err(|errors| format!("{errors:?}"))?;
//! let tls = rouse_tls::Tls::new(Arc::new(store), &config)?;
//! match tls.accept(socket, |hello| println!("{:?} is asked for", hello.server_name())).await? {
//!     rouse_tls::Accepted::Visitor(stream, facts) => drop((stream, facts.alpn)),
//!     rouse_tls::Accepted::Challenge { .. } => {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The crypto provider is ring, whatever the process has installed as its default.
#![forbid(unsafe_code)]

#[cfg(feature = "acme")]
pub mod acme;

mod accept;
mod certificate;
mod config;
mod error;
mod files;
mod hello;
mod look;
mod names;
mod server;
mod store;
mod trust;
mod watch;

pub use accept::{Accepted, ClientCertificate, Facts};
pub use certificate::{LoadError, LoadFault};
pub use config::{Alpn, CertificateFiles, ClientAuth, Config, Version, read};
pub use error::HandshakeError;
pub use hello::Hello;
pub use names::{CertificateName, NameError};
pub use server::{Tls, TlsError};
pub use store::{CertificateInfo, ManageError, Reload, Store, load};
pub use watch::{WatchError, watch};

pub use rustls;
pub use tokio_rustls::server::TlsStream;
