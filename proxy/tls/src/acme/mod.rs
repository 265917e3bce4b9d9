//! Certificates by ACME (RFC 8555): when to order one, what the CA is answered meanwhile, and where
//! it is kept. The talk with the CA itself is not here.

mod keep;
mod plan;
mod tokens;

pub use keep::{Keep, KeepError};
pub use plan::{Failures, Life, Step, next};
pub use tokens::{Token, Tokens};
