//! The edge towards visitors: who asks, by what front, and whether what they send has one meaning.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use pingora_core::Result;
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use rouse_downstream::client::client;
use rouse_downstream::rewrite::{Change, rewrite};
use rouse_downstream::sanity::{self, Insane};
use rouse_downstream::trusted::Live;
use rouse_downstream::{Client, Peer, Proto, Request, Rules};

use crate::answer::Answer;
use crate::connected::Connected;
use crate::plugin::Rouse;
use crate::visit::Visit;

/// What is believed of what visitors say of themselves.
#[derive(Clone, Debug)]
pub struct Edge {
    /// Which headers tell of a client.
    pub rules: Rules,
    /// Whose word on the client is taken.
    pub trusted: Arc<Live>,
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    peer: Peer,
    pub(crate) client: Client,
}

impl Rouse {
    /// Refuses what two servers could read in two ways, and finds out who asks. True: it is answered.
    pub(crate) async fn examine(&self, session: &mut Session, visit: &mut Visit) -> Result<bool> {
        let connected = Connected::of(session);
        let Some(edge) = self.edge() else { return Ok(false) };
        let request = session.req_header();
        if let Err(insane) = check(session, request) {
            self.insane(insane);
            let answer = visit.answer.insert(Answer::insane(insane));
            let http: &mut ServerSession = session.as_mut();
            answer.send(http).await?;
            return Ok(true);
        }
        let trusted = edge.trusted.current();
        let peer = match connected {
            Some(connected) => connected.peer,
            None => match session.client_addr().and_then(|address| address.as_inet()) {
                Some(address) => {
                    let tls = session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
                    Peer::new(*address, tls, &trusted)
                }
                None => return Ok(false),
            },
        };
        let client = client(&peer, &edge.rules, &trusted, &request.headers);
        visit.sender = Some(Sender { peer, client });
        Ok(false)
    }

    /// Whether the client came by HTTPS, as far as who is believed tells: a front may end TLS.
    pub fn came_by_https(&self, session: &Session) -> bool {
        let (Some(edge), Some(connected)) = (self.edge(), Connected::of(session)) else {
            return false;
        };
        if !connected.redirect {
            return false;
        }
        let trusted = edge.trusted.current();
        let headers = &session.req_header().headers;
        client(&connected.peer, &edge.rules, &trusted, headers).proto == Proto::Https
    }

    /// Tells the app which certificate its client has shown. A front that is believed tells it itself: what it has
    /// shown is its own.
    pub(crate) fn certify(&self, session: &Session, request: &mut RequestHeader) -> Result<()> {
        let Some(connected) = Connected::of(session) else { return Ok(()) };
        match &connected.certificate {
            Some(certificate) if !connected.peer.trusted => {
                request.insert_header("Client-Cert", certificate.field.clone())
            }
            _ => Ok(()),
        }
    }

    /// Tells the app who asks.
    pub(crate) fn introduce(&self, sender: &Sender, request: &mut RequestHeader) -> Result<()> {
        let Sender { peer, client } = sender;
        let Some(edge) = self.edge() else { return Ok(()) };
        for change in rewrite(peer, client, &edge.rules, request.as_ref()).changes() {
            match change {
                Change::Remove(name) => drop(request.remove_header(&name)),
                // As a text, since Pingora copies other names.
                Change::Set(field, value) => request.insert_header(field.title(), value)?,
            }
        }
        Ok(())
    }
}

fn check(session: &Session, request: &RequestHeader) -> Result<(), Insane> {
    let target = request.raw_path();
    sanity::check(&Request::of(request.as_ref(), target))?;
    // Pingora lets Transfer-Encoding win and drops Content-Length: what came tells.
    let both = request.headers.contains_key(TRANSFER_ENCODING)
        && session
            .as_downstream()
            .as_http1()
            .is_some_and(|http| has_length(&http.get_headers_raw_bytes()));
    if both { Err(Insane::LengthAndEncoding) } else { Ok(()) }
}

/// Whether a header as it came has a Content-Length.
fn has_length(header: &[u8]) -> bool {
    let name = CONTENT_LENGTH.as_str().as_bytes();
    header.split(|byte| *byte == b'\n').any(|line| {
        line.split(|byte| *byte == b':')
            .next()
            .is_some_and(|field| field.trim_ascii().eq_ignore_ascii_case(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_found_however_it_is_spelt() {
        for (header, found) in [
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nA: b\r\ncontent-LENGTH:3\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nX-Content-Length: 3\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nA: Content-Length\r\n\r\n", false),
            ("", false),
        ] {
            assert_eq!(has_length(header.as_bytes()), found, "{header:?}");
        }
    }
}
