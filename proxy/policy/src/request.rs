//! What is looked at of a request.

use http::{HeaderMap, Method, Version, request::Parts};

/// A request's head, borrowed. What it says of itself is never trusted to grant anything.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path as it came, without the query.
    pub path: &'a str,
    /// Its protocol.
    pub version: Version,
    /// Its headers.
    pub headers: &'a HeaderMap,
}

impl<'a> From<&'a Parts> for Request<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            path: parts.uri.path(),
            version: parts.version,
            headers: &parts.headers,
        }
    }
}

impl<'a> Request<'a> {
    /// A header as text; none where it is absent or no visible ASCII.
    pub(crate) fn text(&self, name: impl http::header::AsHeaderName) -> Option<&'a str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The members of a header that is a list, over all its lines, trimmed.
    pub(crate) fn list(&self, name: http::HeaderName) -> impl Iterator<Item = &'a str> {
        let values = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(str::trim).filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    /// A request's head for a test.
    pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> http::request::Parts {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }
}
