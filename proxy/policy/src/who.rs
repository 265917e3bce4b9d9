//! Who may wake an app.

use std::fmt::{self, Display};

use http::{HeaderName, Method, header};
use serde::{Deserialize, Serialize};

use crate::path::{PathPattern, plain};
use crate::{Denied, Request, UserAgentPattern, preflight};

/// Which requests may wake an app. The default is any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    /// By these methods only; empty: by any.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "methods")]
    pub methods: Vec<Method>,
    /// For these paths only; empty: for any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths_allow: Vec<PathPattern>,
    /// Not for these paths and what is beneath them, even where they are allowed above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths_deny: Vec<PathPattern>,
    /// Not these User-Agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_agents_deny: Vec<UserAgentPattern>,
    /// Only with one of these; empty: with or without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
}

impl Who {
    /// Whether `request` may wake. A CORS preflight is taken for the request that it announces,
    /// which its sender could as well make, but for the credentials, which a preflight never has
    /// (Fetch, "CORS-preflight fetch"): where these are asked for, answer preflights without
    /// waking.
    pub fn may_wake(&self, request: &Request<'_>) -> Result<(), Denied> {
        if !self.methods.is_empty() {
            let announced = preflight::announced(request);
            let method = announced.map_or(request.method.as_str(), |(_, method)| method);
            if !self.methods.iter().any(|allowed| allowed.as_str() == method) {
                return Err(Denied::Method);
            }
        }
        if !(self.paths_allow.is_empty() && self.paths_deny.is_empty()) {
            // A path that can be read in two ways could be a denied one.
            let path = plain(request.path).ok_or(Denied::Path)?;
            let allowed = self.paths_allow.is_empty()
                || self.paths_allow.iter().any(|pattern| pattern.matches(&path));
            if !allowed || self.paths_deny.iter().any(|pattern| pattern.covers(&path)) {
                return Err(Denied::Path);
            }
        }
        if !self.user_agents_deny.is_empty() {
            let denied = |agent: &[u8]| self.user_agents_deny.iter().any(|p| p.matches(agent));
            let mut agents = request.headers.get_all(header::USER_AGENT).iter().peekable();
            let none = agents.peek().is_none();
            if none && denied(b"") || agents.any(|agent| denied(agent.as_bytes())) {
                return Err(Denied::UserAgent);
            }
        }
        let credentials = &self.credentials;
        if !credentials.is_empty() && !credentials.iter().any(|c| c.is_in(request)) {
            return Err(Denied::Unauthenticated);
        }
        Ok(())
    }
}

/// Where a request carries what it may be known by: `authorization`, another header's name, or
/// `cookie:NAME`. Only its presence is looked at, since only the app can tell whether it is any
/// good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Credential {
    /// A header that is not empty.
    Header(HeaderName),
    /// A cookie that is not empty.
    Cookie(String),
}

/// Why a text is no [`Credential`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a credential is the name of a header, or `cookie:` and the name of a cookie; `{0}` is neither"
)]
pub struct CredentialError(String);

impl TryFrom<String> for Credential {
    type Error = CredentialError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parsed = match text.strip_prefix("cookie:") {
            // A cookie's name is a token, as a header's is (RFC 6265, 4.1.1), but its case counts.
            Some(name) => HeaderName::try_from(name).ok().map(|_| Self::Cookie(name.to_owned())),
            None => HeaderName::try_from(&text).ok().map(Self::Header),
        };
        parsed.ok_or(CredentialError(text))
    }
}

impl From<Credential> for String {
    fn from(credential: Credential) -> Self {
        credential.to_string()
    }
}

impl Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => f.write_str(name.as_str()),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

impl Credential {
    fn is_in(&self, request: &Request<'_>) -> bool {
        match self {
            Self::Header(name) => {
                let mut values = request.headers.get_all(name).iter();
                values.any(|value| !value.as_bytes().trim_ascii().is_empty())
            }
            Self::Cookie(name) => {
                let lines = request.headers.get_all(header::COOKIE).iter();
                let mut pairs = lines.flat_map(|line| line.as_bytes().split(|b| *b == b';'));
                pairs.any(|pair| {
                    let pair = pair.trim_ascii();
                    let value = pair.strip_prefix(name.as_bytes());
                    value.and_then(|v| v.strip_prefix(b"=")).is_some_and(|v| !v.is_empty())
                })
            }
        }
    }
}

/// Methods as their names.
pub(crate) mod methods {
    use http::Method;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(methods: &[Method], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(methods.iter().map(Method::as_str))
    }

    pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Method>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        let parse = |name: String| {
            let invalid = || D::Error::custom(format!("`{name}` is no method"));
            Method::from_bytes(name.as_bytes()).map_err(|_| invalid())
        };
        names.into_iter().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::head;

    fn agent(text: &str) -> UserAgentPattern {
        text.to_owned().try_into().unwrap()
    }

    fn credential(text: &str) -> Credential {
        text.to_owned().try_into().unwrap()
    }

    fn ask(who: &Who, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<(), Denied> {
        who.may_wake(&Request::from(&head(method, path, headers)))
    }

    #[test]
    fn by_default_anybody_may() {
        assert_eq!(ask(&Who::default(), "BREW", "/%2f..%00", &[]), Ok(()));
    }

    #[test]
    fn by_method() {
        let who = Who { methods: vec![Method::GET, Method::POST], ..Who::default() };
        let preflight = |m| [("origin", "https://a.example"), ("access-control-request-method", m)];
        assert_eq!(ask(&who, "GET", "/", &[]), Ok(()));
        assert_eq!(ask(&who, "HEAD", "/", &[]), Err(Denied::Method));
        assert_eq!(ask(&who, "OPTIONS", "/", &[]), Err(Denied::Method));
        assert_eq!(ask(&who, "OPTIONS", "/", &preflight("POST")), Ok(()));
        assert_eq!(ask(&who, "OPTIONS", "/", &preflight("DELETE")), Err(Denied::Method));
        assert_eq!(ask(&who, "DELETE", "/", &preflight("GET")), Err(Denied::Method));
    }

    #[test]
    fn by_path() {
        let who = Who {
            paths_allow: vec!["/app/*".parse().unwrap()],
            paths_deny: vec!["/app/internal/*".parse().unwrap()],
            ..Who::default()
        };
        let table = [
            ("/app", Ok(())),
            ("/app/x?y=/app/internal", Ok(())),
            ("/App/x", Err(Denied::Path)),
            ("/wp-login.php", Err(Denied::Path)),
            ("/app/internal", Err(Denied::Path)),
            ("/app/INTERNAL/x", Err(Denied::Path)),
            ("/app//internal/x", Err(Denied::Path)),
            ("/app/x/../internal", Err(Denied::Path)),
            ("/app/%69nternal", Err(Denied::Path)),
            ("/app/%2569nternal", Err(Denied::Path)),
            ("/app/internal;x/y", Err(Denied::Path)),
            ("/app/x/..%2finternal", Err(Denied::Path)),
            ("/app/../wp-login.php", Err(Denied::Path)),
        ];
        for (path, expected) in table {
            assert_eq!(ask(&who, "GET", path, &[]), expected, "{path}");
        }
    }

    #[test]
    fn a_user_agent_only_denies() {
        let who = Who { user_agents_deny: vec![agent("bot")], ..Who::default() };
        let ua = |text| [("user-agent", text)];
        assert_eq!(ask(&who, "GET", "/", &ua("Firefox")), Ok(()));
        assert_eq!(ask(&who, "GET", "/", &[]), Ok(()));
        assert_eq!(ask(&who, "GET", "/", &ua("AhrefsBot/7")), Err(Denied::UserAgent));
        let two = [("user-agent", "Firefox"), ("user-agent", "bot")];
        assert_eq!(ask(&who, "GET", "/", &two), Err(Denied::UserAgent));
        let all = Who { user_agents_deny: vec![agent("*")], ..Who::default() };
        assert_eq!(ask(&all, "GET", "/", &[]), Err(Denied::UserAgent));
    }

    #[test]
    fn by_credentials() {
        let credentials = vec![credential("authorization"), credential("cookie:session")];
        let who = Who { credentials, ..Who::default() };
        let table: [(&[(&str, &str)], bool); 9] = [
            (&[], false),
            (&[("authorization", "Bearer x")], true),
            (&[("authorization", " ")], false),
            (&[("cookie", "a=b; session=1")], true),
            (&[("cookie", "a=b"), ("cookie", "session=1")], true),
            (&[("cookie", "session=")], false),
            (&[("cookie", "xsession=1; Session=1; session")], false),
            (&[("cookie", "a=session=1")], false),
            (&[("x-session", "session=1")], false),
        ];
        for (headers, may) in table {
            let expected = if may { Ok(()) } else { Err(Denied::Unauthenticated) };
            assert_eq!(ask(&who, "GET", "/", headers), expected, "{headers:?}");
        }
        for text in ["", "a b", "cookie:", "cookie:a=b", "ä"] {
            assert!(Credential::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn it_survives_the_line() {
        let who = Who {
            methods: vec![Method::GET, Method::from_bytes(b"BREW").unwrap()],
            paths_deny: vec!["/a/**".parse().unwrap()],
            user_agents_deny: vec![agent("x*")],
            credentials: vec![credential("X-Key"), credential("cookie:Sid")],
            ..Who::default()
        };
        let json = serde_json::to_string(&who).unwrap();
        assert_eq!(serde_json::from_str::<Who>(&json).unwrap(), who);
        assert_eq!(serde_json::to_string(&Who::default()).unwrap(), "{}");
        for bad in [r#"{"methods":["a b"]}"#, r#"{"paths_deny":["x"]}"#, r#"{"credentials":[""]}"#]
        {
            assert!(serde_json::from_str::<Who>(bad).is_err(), "{bad}");
        }
    }
}
