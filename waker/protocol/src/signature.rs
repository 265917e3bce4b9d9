//! The agent's signed word about its app.
//!
//! A response header `Rouse-Agent: v=1; app=…; gen=…; state=down|starting|serving; mac=…`, where
//! `mac` is HMAC-SHA256 (RFC 2104, FIPS 180-4) under the app's own key over those fields and the
//! nonce of the request that it answers. An app can neither invent nor replay it: the key is in
//! the agent's memory only, and each request has a fresh nonce.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::app::{AppId, Generation};

/// Response header: the agent's signed word.
pub const AGENT_HEADER: &str = "rouse-agent";
/// Request header: the nonce that the agent's signature must cover.
pub const NONCE_HEADER: &str = "rouse-nonce";
/// Response header on the first answers after a wake: `resumed`, `cold`, `joined`, or `awake`
/// when the VM turned out to run already.
pub const WAKE_HEADER: &str = "rouse-wake";
/// Response header on every error of ours: its code.
pub const ERROR_HEADER: &str = "rouse-error";
/// All header names that start so are ours, and are stripped from what clients send up, from what
/// goes down and from what the app answers.
pub const HEADER_PREFIX: &str = "rouse-";
/// The path that the gate probes unless an app's configuration names another.
pub const DEFAULT_GATE_PATH: &str = "/.well-known/rouse-gate";

/// What the agent says about the app it fronts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// The app listened once and does not any more.
    Down,
    /// The app has not listened yet.
    Starting,
    /// The app listens.
    Serving,
}

impl AgentState {
    /// The word in the header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Starting => "starting",
            Self::Serving => "serving",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Down, Self::Starting, Self::Serving].into_iter().find(|s| s.as_str() == text)
    }
}

/// An app's secret, shared by waker, proxy and agent. 32 bytes; hexadecimal in messages. Its
/// `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentKey([u8; 32]);

/// Why a text is no [`AgentKey`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an agent key is 64 hexadecimal digits")]
pub struct AgentKeyError;

impl AgentKey {
    /// A fresh key from the operating system's generator.
    pub fn generate() -> Self {
        Self(rand::random())
    }

    fn mac(
        &self,
        app: &AppId,
        generation: Generation,
        state: AgentState,
        nonce: &str,
    ) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        // The nonce comes last and everything before it is of a closed alphabet without newlines,
        // so that two different inputs never give the same bytes.
        for part in ["rouse-agent-v1", app.as_str(), &generation.to_string(), state.as_str(), nonce]
        {
            mac.update(part.as_bytes());
            mac.update(b"\n");
        }
        mac
    }

    /// The value of [`AGENT_HEADER`] that answers a request whose [`NONCE_HEADER`] was `nonce`.
    pub fn sign(
        &self,
        app: &AppId,
        generation: Generation,
        state: AgentState,
        nonce: &str,
    ) -> String {
        let mac = self.mac(app, generation, state, nonce).finalize().into_bytes();
        format!(
            "v=1; app={app}; gen={generation}; state={}; mac={}",
            state.as_str(),
            hex::encode(mac)
        )
    }

    /// What the agent of `app` really said in `header`, in answer to the request with `nonce`.
    ///
    /// The generation is the agent's own belief. A guest learns its new one only after it runs
    /// again, so it may be one behind and is not compared here; a fresh nonce already proves
    /// that the word is from now.
    pub fn verify(&self, app: &AppId, nonce: &str, header: &str) -> Result<Signed, SignatureError> {
        let claim = Claim::parse(header)?;
        if claim.app != app.as_str() {
            return Err(SignatureError::OtherApp);
        }
        self.mac(app, claim.generation, claim.state, nonce)
            .verify_slice(&claim.mac)
            .map_err(|_| SignatureError::Mac)?;
        Ok(Signed { state: claim.state, generation: claim.generation })
    }
}

impl FromStr for AgentKey {
    type Err = AgentKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).map_err(|_| AgentKeyError)?;
        Ok(Self(key))
    }
}

impl TryFrom<String> for AgentKey {
    type Error = AgentKeyError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentKey> for String {
    fn from(key: AgentKey) -> Self {
        hex::encode(key.0)
    }
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentKey(…)")
    }
}

/// A verified word of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signed {
    /// What it says of the app.
    pub state: AgentState,
    /// The generation that the agent believes it is.
    pub generation: Generation,
}

/// Why a header is not the agent's word. Whoever sees one treats the answer as the app's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not of the form that this version knows.
    #[error("not of the form `v=1; app=…; gen=…; state=…; mac=…`")]
    Form,
    /// Another app's name.
    #[error("names another app")]
    OtherApp,
    /// The code does not match: another key, another nonce, or altered fields.
    #[error("its mac does not match")]
    Mac,
}

struct Claim<'a> {
    app: &'a str,
    generation: Generation,
    state: AgentState,
    mac: [u8; 32],
}

impl<'a> Claim<'a> {
    /// Strict: exactly these fields in this order, as [`AgentKey::sign`] writes them.
    fn parse(header: &'a str) -> Result<Self, SignatureError> {
        let mut fields = header.split("; ");
        let mut field = |name: &str| {
            fields
                .next()
                .and_then(|f| f.strip_prefix(name))
                .and_then(|f| f.strip_prefix('='))
                .ok_or(SignatureError::Form)
        };
        if field("v")? != "1" {
            return Err(SignatureError::Form);
        }
        let app = field("app")?;
        let generation = field("gen")?.parse().map(Generation).map_err(|_| SignatureError::Form)?;
        let state = AgentState::parse(field("state")?).ok_or(SignatureError::Form)?;
        let mut mac = [0; 32];
        hex::decode_to_slice(field("mac")?, &mut mac).map_err(|_| SignatureError::Form)?;
        match fields.next() {
            None => Ok(Self { app, generation, state, mac }),
            Some(_) => Err(SignatureError::Form),
        }
    }
}

/// A fresh nonce: 128 random bits, as 32 hexadecimal digits.
pub fn nonce() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn app() -> AppId {
        "hello".parse().unwrap()
    }

    #[test]
    fn a_signature_holds_for_its_own_fields_only() {
        let (key, other) = (AgentKey::generate(), AgentKey::generate());
        let header = key.sign(&app(), Generation(7), AgentState::Down, "n1");
        let signed = Signed { state: AgentState::Down, generation: Generation(7) };
        assert_eq!(key.verify(&app(), "n1", &header), Ok(signed));

        let bad = |app: &AppId, key: &AgentKey, nonce: &str, header: &str| {
            key.verify(app, nonce, header).unwrap_err()
        };
        assert_eq!(bad(&app(), &other, "n1", &header), SignatureError::Mac);
        assert_eq!(bad(&app(), &key, "n2", &header), SignatureError::Mac);
        assert_eq!(bad(&"b".parse().unwrap(), &key, "n1", &header), SignatureError::OtherApp);
        for (from, to) in [("gen=7", "gen=8"), ("state=down", "state=serving")] {
            assert_eq!(bad(&app(), &key, "n1", &header.replace(from, to)), SignatureError::Mac);
        }
        for form in [
            "",
            "v=1",
            &header.replace("v=1", "v=2"),
            &header.replace("; ", ";"),
            &header.replace("state=down", "state=DOWN"),
            &format!("{header}; x=1"),
            &header[..header.len() - 2],
        ] {
            assert_eq!(bad(&app(), &key, "n1", form), SignatureError::Form, "{form}");
        }
    }

    #[test]
    fn mac_is_the_documented_one() {
        // Computed independently: printf 'rouse-agent-v1\nhello\n7\ndown\nn1\n' | openssl dgst
        //   -sha256 -mac HMAC -macopt hexkey:0101…01
        let key: AgentKey = "01".repeat(32).parse().unwrap();
        let header = key.sign(&app(), Generation(7), AgentState::Down, "n1");
        assert_eq!(header, format!("v=1; app=hello; gen=7; state=down; mac={MAC}"));
    }
    const MAC: &str = "1cfd56927cded032207db04b8e88c9c671db67e6d5ee80c39fae6b686959b38b";

    proptest! {
        #[test]
        fn any_header_is_refused_without_a_panic(header in ".{0,200}") {
            prop_assert!(AgentKey([1; 32]).verify(&app(), "n", &header).is_err());
        }
    }
}
