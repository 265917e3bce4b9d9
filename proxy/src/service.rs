//! The one `ProxyHttp` of this binary: every hook is the plugin's.

use std::os::fd::RawFd;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION};
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use rouse_protocol::app::Host;
use rouse_proxy::{Connected, Rouse, Visit};
use rouse_tls::acme::Tokens;

pub(crate) struct Proxy {
    pub(crate) rouse: Rouse,
    /// What a certificate authority is answered.
    pub(crate) challenges: Option<Tokens>,
}

#[async_trait]
impl ProxyHttp for Proxy {
    // Boxed, since Pingora moves it about, and has room for it in each place.
    type CTX = Box<Visit>;

    fn new_ctx(&self) -> Box<Visit> {
        Box::new(Visit::new())
    }

    // Pingora's default adds a compression module that is switched off.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, visit: &mut Box<Visit>) -> Result<bool> {
        if self.challenged(session).await?
            || self.rouse.tell_health(session, visit).await?
            || (!self.rouse.came_by_https(session) && redirect(session).await?)
        {
            return Ok(true);
        }
        self.rouse.request_filter(session, visit).await
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        visit: &mut Box<Visit>,
    ) -> Result<Box<HttpPeer>> {
        self.rouse.upstream_peer(session, visit).await
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        _fd: RawFd,
        _digest: Option<&Digest>,
        visit: &mut Box<Visit>,
    ) -> Result<()> {
        self.rouse.connected_to_upstream(reused, visit);
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        visit: &mut Box<Visit>,
    ) -> Result<()> {
        self.rouse.upstream_request_filter(session, request, visit)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        _visit: &mut Box<Visit>,
    ) -> Result<()> {
        self.rouse.request_body_filter(body, end_of_stream);
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        visit: &mut Box<Visit>,
    ) -> Result<()> {
        self.rouse.upstream_response_filter(response, visit)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        _visit: &mut Box<Visit>,
    ) -> Result<()> {
        self.rouse.response_filter(session, response);
        Ok(())
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        visit: &mut Box<Visit>,
        error: Box<Error>,
    ) -> Box<Error> {
        self.rouse.fail_to_connect(visit, error)
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        visit: &mut Box<Visit>,
        client_reused: bool,
    ) -> Box<Error> {
        self.rouse.error_while_proxy(peer, session, error, visit, client_reused)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        visit: &mut Box<Visit>,
    ) -> FailToProxy {
        self.rouse.fail_to_proxy(session, error, visit).await
    }

    fn suppress_error_log(&self, _session: &Session, visit: &Box<Visit>, error: &Error) -> bool {
        self.rouse.suppress_error_log(visit, error)
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _visit: &Box<Visit>,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        // Going back to the hold is what this server is for.
        true
    }

    async fn logging(&self, session: &mut Session, _error: Option<&Error>, visit: &mut Box<Visit>) {
        self.rouse.logging(session, visit);
    }
}

impl Proxy {
    /// Answers a certificate authority (RFC 8555, section 8.3), whatever app the host has: it never wakes
    /// one. True: it did.
    async fn challenged(&self, session: &mut Session) -> Result<bool> {
        let path = session.req_header().uri.path();
        let Some(token) = self.challenges.as_ref().and_then(|tokens| tokens.get(path)) else {
            return Ok(false);
        };
        let mut response = ResponseHeader::build(200, Some(3))?;
        response.insert_header(CONTENT_TYPE, "application/octet-stream")?;
        response.insert_header(CONTENT_LENGTH, token.len())?;
        response.insert_header(CACHE_CONTROL, "no-store")?;
        session.write_response_header(Box::new(response), false).await?;
        let body = Bytes::from(token.into_string());
        session.write_response_body(Some(body), true).await?;
        Ok(true)
    }
}

/// Sends a plain request to HTTPS, where the port is for that; true: it did.
async fn redirect(session: &mut Session) -> Result<bool> {
    if !Connected::of(session).is_some_and(|connected| connected.redirect) {
        return Ok(false);
    }
    let request = session.req_header();
    let named = match request.uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    let Some(host) = named.and_then(|named| Host::parse(named).ok()) else { return Ok(false) };
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    let location = format!("https://{host}{path}");
    // 308 and not 301: a POST stays one (RFC 9110, section 15.4.9).
    let mut response = ResponseHeader::build(308, Some(3))?;
    response.insert_header(LOCATION, location)?;
    response.insert_header(CONTENT_LENGTH, 0)?;
    response.insert_header(CACHE_CONTROL, "no-store")?;
    session.write_response_header(Box::new(response), true).await?;
    Ok(true)
}
