//! Rouse as a Pingora plugin: holding for somebody else's `ProxyHttp`.
//!
//! A server keeps one [`Rouse`], has a [`Visit`] in its `CTX`, and calls the method of the same name
//! in each hook that [`Rouse`] names. `proxy/examples/embed.rs` shows all of it; the `rouse-proxy`
//! binary is just another such server.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod connected;
mod door;
mod edge;
mod headers;
mod health;
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod peer;
mod plugin;
mod prober;
mod seen;
mod trace;
mod visit;

pub use access::{AccessOptions, Record, Target};
pub use answer::Answer;
pub use connected::{Connected, Fresh, FreshCount, PeerCertificate};
pub use edge::Edge;
pub use health::HealthOptions;
pub use metrics::Metrics;
#[cfg(feature = "otel")]
pub use otel::OtelOptions;
pub use peer::Connecting;
pub use plugin::{Options, Origin, Rouse, StartError};
pub use rouse_gate::Limits;
pub use seen::SeenOptions;
pub use trace::Tracing;
pub use visit::Visit;
