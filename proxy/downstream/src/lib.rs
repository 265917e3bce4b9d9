//! Who is in front of us, and whether what they send is sane.
//!
//! No Pingora: a listener and a request filter call in, and apply what is decided here.
//!
//! | module | decides |
//! | --- | --- |
//! | [`connections`] | whether there is room for one more connection, in all and of one client |
//! | [`proxy_protocol`] | which addresses a front says that a connection has (PROXY protocol v1, v2) |
//! | [`trusted`] | whose word is taken |
#![forbid(unsafe_code)]

pub mod connections;
pub mod proxy_protocol;
pub mod trusted;

pub use connections::{Connection, Connections, Full};
pub use trusted::Trusted;
