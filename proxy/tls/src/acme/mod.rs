//! Certificates by ACME (RFC 8555): when one is ordered, how, what the CA is answered meanwhile, and
//! where it is kept.
//!
//! ```no_run
//! # async fn serve(config: rouse_tls::Config, cancel: tokio_util::sync::CancellationToken)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::Arc;
//! let store = Arc::new(rouse_tls::load(&config).map_err(|errors| format!("{errors:?}"))?);
//! if let Some(acme) = &config.acme {
//!     // What is kept is served from here on.
//!     let acme = rouse_tls::acme::Acme::open(acme, store.clone())?;
//!     // For the listener on port 80, before all else.
//!     let tokens = acme.tokens();
//!     assert_eq!(tokens.get("/index.html"), None);
//!     acme.run(cancel, |told| println!("{told}")).await;
//! }
//! # Ok(())
//! # }
//! ```

mod config;
mod http;
mod keep;
mod order;
mod plan;
mod run;
mod tokens;

pub(crate) use config::read;
pub use config::{AcmeConfig, Binding, Proof};
pub use instant_acme;
pub use keep::KeepError;
pub use order::AcmeError;
pub use plan::Life;
pub use run::{Acme, Clock, Told};
pub use tokens::{Token, Tokens};
