//! What is answered while an app sleeps, without waking it: health checks, `robots.txt`, the icon.
//!
//! By path and method, never by User-Agent: whoever can imitate a health check must not get an
//! answer of ours in place of the app's.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde::{Deserialize, Serialize};

use crate::Request;
use crate::path::PathPattern;

/// One answer that is given for a sleeping app, to GET and HEAD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// For which paths.
    pub path: PathPattern,
    /// The status.
    #[serde(with = "status")]
    pub status: StatusCode,
    /// What it is.
    #[serde(with = "value")]
    pub content_type: HeaderValue,
    /// The body.
    #[serde(with = "text")]
    pub body: Bytes,
    /// Given for an app that serves too. Else that answers for itself.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub always: bool,
    /// While the app serves, such a request counts as activity and keeps it awake.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub count: bool,
}

/// A file that is given for a sleeping app, to GET and HEAD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Static {
    /// What it is.
    #[serde(with = "value")]
    pub content_type: HeaderValue,
    /// The body.
    #[serde(with = "base64_bytes")]
    pub body: Bytes,
}

impl Static {
    /// A `robots.txt` that asks crawlers to stay away (RFC 9309, 2.2.2).
    pub fn disallow() -> Self {
        Self {
            content_type: HeaderValue::from_static("text/plain; charset=utf-8"),
            body: Bytes::from_static(b"User-agent: *\nDisallow: /\n"),
        }
    }
}

/// What is given as `/favicon.ico`, which browsers ask for on their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Favicon {
    /// Nothing: 204.
    Nothing,
    /// This.
    File(Static),
}

/// Whether a request with this method can be answered without its app.
pub(crate) fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

impl Reply {
    /// It as the response to `request`.
    pub(crate) fn answer(&self, request: &Request<'_>) -> Response<Bytes> {
        // A health check that a cache answers checks nothing.
        answer(request, self.status, &self.content_type, &self.body, "no-store")
    }
}

/// Short, since the app's own may differ.
const CACHE_STATIC: &str = "public, max-age=300";

impl Static {
    pub(crate) fn answer(&self, request: &Request<'_>) -> Response<Bytes> {
        answer(request, StatusCode::OK, &self.content_type, &self.body, CACHE_STATIC)
    }
}

impl Favicon {
    pub(crate) fn answer(&self, request: &Request<'_>) -> Response<Bytes> {
        match self {
            Self::File(file) => file.answer(request),
            Self::Nothing => {
                let none = HeaderValue::from_static("image/x-icon");
                answer(request, StatusCode::NO_CONTENT, &none, &Bytes::new(), CACHE_STATIC)
            }
        }
    }
}

fn answer(
    request: &Request<'_>,
    status: StatusCode,
    content_type: &HeaderValue,
    body: &Bytes,
    cache: &'static str,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    // These two have neither a body nor a length (RFC 9110, 8.6).
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        headers.insert(header::CONTENT_TYPE, content_type.clone());
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if *request.method != Method::HEAD {
            *response.body_mut() = body.clone();
        }
    }
    response
}

mod status {
    use http::StatusCode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u16(status.as_u16())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<StatusCode, D::Error> {
        match u16::deserialize(from)? {
            // An interim response is no answer (RFC 9110, 15.2).
            n @ 200..=599 => StatusCode::from_u16(n).map_err(D::Error::custom),
            n => Err(D::Error::custom(format!("a status is between 200 and 599; {n} is not"))),
        }
    }
}

mod value {
    use http::HeaderValue;
    use serde::{Deserialize, Deserializer, Serializer, de::Error, ser};

    pub(super) fn serialize<S: Serializer>(value: &HeaderValue, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.to_str().map_err(ser::Error::custom)?)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<HeaderValue, D::Error> {
        HeaderValue::try_from(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

mod text {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, ser::Error};

    pub(super) fn serialize<S: Serializer>(body: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(std::str::from_utf8(body).map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Bytes, D::Error> {
        String::deserialize(from).map(Bytes::from)
    }
}

mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(body: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(body))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}
