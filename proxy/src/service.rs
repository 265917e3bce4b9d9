//! The one `ProxyHttp` of this binary: every hook is the plugin's.

use async_trait::async_trait;
use pingora_core::modules::http::HttpModules;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use rouse_proxy::{Rouse, Visit};

pub(crate) struct Proxy {
    pub(crate) rouse: Rouse,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Visit;

    fn new_ctx(&self) -> Visit {
        Visit::new()
    }

    // Pingora's default adds a compression module that is switched off.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn upstream_peer(
        &self,
        session: &mut Session,
        visit: &mut Visit,
    ) -> Result<Box<HttpPeer>> {
        self.rouse.upstream_peer(session, visit).await
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        visit: &mut Visit,
    ) -> Result<()> {
        self.rouse.upstream_request_filter(session, request, visit)
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        visit: &mut Visit,
    ) -> Result<()> {
        self.rouse.upstream_response_filter(response, visit)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        visit: &mut Visit,
        error: Box<Error>,
    ) -> Box<Error> {
        self.rouse.fail_to_connect(visit, error)
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        visit: &mut Visit,
        client_reused: bool,
    ) -> Box<Error> {
        self.rouse.error_while_proxy(peer, session, error, visit, client_reused)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        visit: &mut Visit,
    ) -> FailToProxy {
        self.rouse.fail_to_proxy(session, error, visit).await
    }

    fn suppress_error_log(&self, _session: &Session, visit: &Visit, error: &Error) -> bool {
        self.rouse.suppress_error_log(visit, error)
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _visit: &Visit,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        // Going back to the hold is what this server is for.
        true
    }

    async fn logging(&self, session: &mut Session, _error: Option<&Error>, visit: &mut Visit) {
        self.rouse.logging(session, visit);
    }
}
