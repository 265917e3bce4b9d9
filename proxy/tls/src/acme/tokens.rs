//! What a CA is answered that asks over HTTP (RFC 8555, section 8.3).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Where a CA asks, before the token.
const PATH: &str = "/.well-known/acme-challenge/";

/// The tokens of the orders that run.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    by_token: Arc<RwLock<HashMap<Box<str>, Box<str>>>>,
}

/// A token that is answered as long as this lives.
#[derive(Debug)]
#[must_use = "it is answered as long as this lives"]
pub struct Token {
    tokens: Tokens,
    token: Box<str>,
}

impl Tokens {
    /// Answers whoever asks for `token` with `authorization`.
    pub fn answer(&self, token: &str, authorization: &str) -> Token {
        let mut tokens = self.by_token.write().unwrap_or_else(PoisonError::into_inner);
        tokens.insert(token.into(), authorization.into());
        Token { tokens: self.clone(), token: token.into() }
    }

    /// What a request for `path` is answered, as `application/octet-stream`. None if it is no
    /// question of a CA, or not one that we have caused: then it is the app's.
    pub fn get(&self, path: &str) -> Option<Box<str>> {
        let token = path.strip_prefix(PATH)?;
        let tokens = self.by_token.read().unwrap_or_else(PoisonError::into_inner);
        tokens.get(token).cloned()
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut tokens = self.tokens.by_token.write().unwrap_or_else(PoisonError::into_inner);
        tokens.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_answered_while_its_order_runs() {
        let tokens = Tokens::default();
        let token = tokens.answer("abc", "abc.def");
        assert_eq!(tokens.get("/.well-known/acme-challenge/abc").as_deref(), Some("abc.def"));
        for path in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/abcd", "abc", "/"]
        {
            assert_eq!(tokens.get(path), None, "{path}");
        }
        drop(token);
        assert_eq!(tokens.get("/.well-known/acme-challenge/abc"), None);
    }
}
