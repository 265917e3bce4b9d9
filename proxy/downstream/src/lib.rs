//! Who is in front of us, and whether what they send is sane.
//!
//! No Pingora: a listener and a request filter call in, and apply what is decided here.
//!
//! | module | decides |
//! | --- | --- |
//! | [`connections`] | whether there is room for one more connection, in all and of one client |
//! | [`proxy_protocol`] | which addresses a front says that a connection has (PROXY protocol v1, v2) |
//! | [`trusted`] | whose word is taken |
//! | [`client`] | who the client is, and by what scheme and host it came |
//! | [`rewrite`] | what an app is told of that, and what is taken off because nobody vouches for it |
//! | [`sanity`] | whether two parsers could see two different requests in this one |
//! | [`config`] | the `[downstream]` table |
//!
//! On a connection: [`Connections::enter`], then [`proxy_protocol::accept`] where the listener has
//! it on and [`Peer::proxied`], then [`Connection::count_for`] for a peer that is not trusted. On a request:
//! [`sanity::check`], then [`client::client`] and [`rewrite::rewrite`].
#![forbid(unsafe_code)]

mod authority;
pub mod client;
pub mod config;
pub mod connections;
mod forwarded;
pub mod proxy_protocol;
pub mod rewrite;
pub mod sanity;
mod text;
pub mod trusted;

pub use authority::Authority;
pub use client::{Client, Peer, Proto, Rules};
pub use config::Downstream;
pub use connections::{Connection, Connections, Full};
pub use rewrite::{Change, Rewrite};
pub use sanity::{Insane, Request};
pub use trusted::Trusted;
