//! Who is in front of us, and whether what they send is sane.
//!
//! No Pingora: a listener and a request filter call in, and apply what is decided here.
//!
//! | module | decides |
//! | --- | --- |
//! | [`proxy_protocol`] | which addresses a front says that a connection has (PROXY protocol v1, v2) |
//! | [`trusted`] | whose word is taken |
#![forbid(unsafe_code)]

pub mod proxy_protocol;
pub mod trusted;

pub use trusted::Trusted;
