//! Certificates by ACME (RFC 8555): when one is ordered, how, what the CA is answered meanwhile, and
//! where it is kept.

mod keep;
mod order;
mod plan;
mod tokens;

pub use instant_acme;
pub use keep::{Keep, KeepError};
pub use order::{AcmeError, Orders, Proof};
pub use plan::{Failures, Life, Step, next};
pub use tokens::{Token, Tokens};
