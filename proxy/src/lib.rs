//! Rouse as a Pingora plugin: holding for somebody else's `ProxyHttp`.
//!
//! A server keeps one [`Rouse`], has a [`Visit`] in its `CTX`, and calls the method of the same name
//! in each hook that [`Rouse`] names. `proxy/examples/embed.rs` shows all of it; the `rouse-proxy`
//! binary is just another such server.
#![forbid(unsafe_code)]

mod answer;
mod connected;
mod door;
mod edge;
mod headers;
mod metrics;
mod peer;
mod plugin;
mod prober;
mod visit;

pub use answer::Answer;
pub use connected::Connected;
pub use edge::Edge;
pub use metrics::Metrics;
pub use peer::Connecting;
pub use plugin::{Options, Origin, Rouse, StartError};
pub use rouse_gate::Limits;
pub use visit::Visit;
