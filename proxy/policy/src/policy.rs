//! An app's policy as a whole: what travels from where it is configured to where it is acted on.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::Response;
use serde::{Deserialize, Serialize};

use crate::path::plain;
use crate::preflight::Cors;
use crate::reply::{Favicon, Reply, Static, is_read};
use crate::schedule::Schedule;
use crate::who::Who;
use crate::{Budgets, Denied, Rate, Request, Waiting, is_default};

/// How an app's visitors are treated. What is not configured takes no room, here or on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policies {
    /// Who may wake it and when; none: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Arc<WakePolicy>>,
    /// How they wait; none: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Arc<Waiting>>,
}

impl Policies {
    /// These two, without what is the default.
    pub fn new(wake: WakePolicy, waiting: Waiting) -> Self {
        let wake = (!is_default(&wake)).then(|| Arc::new(wake));
        Self { wake, waiting: (!is_default(&waiting)).then(|| Arc::new(waiting)) }
    }
}

/// Who may wake an app, what is answered while it sleeps, and when it is kept awake. The default
/// holds and wakes for everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WakePolicy {
    /// Who may wake it at all.
    #[serde(skip_serializing_if = "is_default")]
    pub who: Who,
    /// How often it may be woken by visitors; none: without a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Rate>,
    /// How often by one client address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_address: Option<Rate>,
    /// What is answered while it sleeps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<Reply>,
    /// Its `/robots.txt` while it sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub robots: Option<Static>,
    /// Its `/favicon.ico` while it sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub favicon: Option<Favicon>,
    /// How CORS preflights are answered while it sleeps; none: they are held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<Cors>,
    /// When it is kept awake.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule: Schedule,
}

impl WakePolicy {
    /// Whether every request may wake the app, whatever it asks for: then it may as well begin to before
    /// the request is known.
    pub fn wakes_for_anything(&self) -> bool {
        is_default(&self.who)
            && self.replies.is_empty()
            && self.robots.is_none()
            && self.favicon.is_none()
            && self.cors.is_none()
    }

    /// The response to a request that is answered without its app; it neither wakes the app nor
    /// counts as activity. `serving` says whether the app is there to answer for itself. To a HEAD
    /// it has no body but the length that a GET's would have.
    pub fn reply(&self, request: &Request<'_>, serving: bool) -> Option<Response<Bytes>> {
        if !serving && let Some(cors) = &self.cors {
            let answer = cors.answer(request);
            if answer.is_some() {
                return answer;
            }
        }
        let wanted = |reply: &&Reply| !serving || reply.always;
        let files = !serving && (self.robots.is_some() || self.favicon.is_some());
        if !is_read(request.method) || !(files || self.replies.iter().any(|r| wanted(&r))) {
            return None;
        }
        let path = plain(request.path)?;
        let mut replies = self.replies.iter().filter(wanted);
        if let Some(reply) = replies.find(|reply| reply.path.matches(&path)) {
            return Some(reply.answer(request));
        }
        match &*path {
            "/robots.txt" if !serving => self.robots.as_ref().map(|r| r.answer(request)),
            "/favicon.ico" if !serving => self.favicon.as_ref().map(|f| f.answer(request)),
            _ => None,
        }
    }

    /// Whether a request that goes to the serving app counts as activity: all but those that would
    /// be answered if it slept, unless these are said to.
    pub fn counts(&self, request: &Request<'_>) -> bool {
        if !is_read(request.method) || self.replies.is_empty() {
            return true;
        }
        let Some(path) = plain(request.path) else { return true };
        self.replies.iter().find(|r| r.path.matches(&path)).is_none_or(|reply| reply.count)
    }

    /// Whether `request` may wake the app, but for the budgets.
    pub fn may_wake(&self, request: &Request<'_>) -> Result<(), Denied> {
        self.who.may_wake(request)
    }

    /// Full budgets for this policy.
    pub fn budgets(&self, now: Instant) -> Budgets {
        Budgets::new(self.budget, self.per_address, now)
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method, StatusCode};

    use super::*;
    use crate::request::tests::head;

    fn reply(path: &str, always: bool, count: bool) -> Reply {
        Reply {
            path: path.parse().unwrap(),
            status: StatusCode::OK,
            content_type: HeaderValue::from_static("text/plain"),
            body: Bytes::from_static(b"asleep\n"),
            always,
            count,
        }
    }

    fn policy() -> WakePolicy {
        WakePolicy {
            replies: vec![
                reply("/healthz", false, false),
                reply("/live", true, false),
                reply("/ready", false, true),
            ],
            robots: Some(Static::disallow()),
            favicon: Some(Favicon::Nothing),
            ..WakePolicy::default()
        }
    }

    fn ask(method: &str, path: &str, serving: bool) -> Option<Response<Bytes>> {
        policy().reply(&Request::from(&head(method, path, &[])), serving)
    }

    #[test]
    fn a_sleeping_app_is_answered_for() {
        let response = ask("GET", "/healthz", false).unwrap();
        assert_eq!((response.status().as_u16(), &**response.body()), (200, &b"asleep\n"[..]));
        assert_eq!(response.headers()["content-length"], "7");
        assert_eq!(response.headers()["content-type"], "text/plain");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let response = ask("HEAD", "/healthz/?x", false).unwrap();
        assert_eq!(
            (response.body().len(), &response.headers()["content-length"]),
            (0, &"7".parse().unwrap())
        );
        let response = ask("GET", "/robots.txt", false).unwrap();
        assert_eq!(&**response.body(), b"User-agent: *\nDisallow: /\n");
        assert_eq!(response.headers()["cache-control"], "public, max-age=300");
        let response = ask("GET", "/favicon.ico", false).unwrap();
        assert_eq!(response.status(), 204);
        assert!(!response.headers().contains_key("content-length"));
        for (method, path) in
            [("POST", "/healthz"), ("GET", "/healthz/x"), ("GET", "/"), ("OPTIONS", "/robots.txt")]
        {
            assert!(ask(method, path, false).is_none(), "{method} {path}");
        }
    }

    #[test]
    fn a_user_agent_makes_no_health_check() {
        let parts = head("GET", "/", &[("user-agent", "kube-probe/1.30")]);
        assert!(policy().reply(&Request::from(&parts), false).is_none());
        assert!(policy().counts(&Request::from(&parts)));
    }

    #[test]
    fn a_serving_app_answers_for_itself() {
        for path in ["/healthz", "/ready", "/robots.txt", "/favicon.ico", "/"] {
            assert!(ask("GET", path, true).is_none(), "{path}");
        }
        assert!(ask("GET", "/live", true).is_some());
    }

    #[test]
    fn health_checks_keep_nobody_awake() {
        let counts = |method, path| policy().counts(&Request::from(&head(method, path, &[])));
        assert!(!counts("GET", "/healthz"));
        assert!(!counts("HEAD", "/%68ealthz"));
        assert!(counts("GET", "/ready"));
        assert!(counts("POST", "/healthz"));
        assert!(counts("GET", "/robots.txt"));
        assert!(counts("GET", "/"));
    }

    #[test]
    fn preflights_are_answered_while_it_sleeps() {
        let origins = vec!["https://a.example".to_owned().try_into().unwrap()];
        let cors = Cors { origins, methods: Vec::new(), credentials: false, max_age_seconds: 5 };
        let policy = WakePolicy { cors: Some(cors), ..WakePolicy::default() };
        let headers = [("origin", "https://a.example"), ("access-control-request-method", "PUT")];
        let parts = head("OPTIONS", "/", &headers);
        assert_eq!(policy.reply(&Request::from(&parts), false).unwrap().status(), 204);
        assert!(policy.reply(&Request::from(&parts), true).is_none());
    }

    #[test]
    fn the_default_takes_no_room() {
        assert!(size_of::<Policies>() <= 64);
        let none = Policies::new(WakePolicy::default(), Waiting::default());
        assert_eq!(none, Policies::default());
        assert_eq!(serde_json::to_string(&none).unwrap(), "{}");
        assert_eq!(serde_json::from_str::<Policies>("{}").unwrap(), none);
    }

    #[test]
    fn it_survives_the_line() {
        let icon = Static {
            content_type: HeaderValue::from_static("image/png"),
            body: Bytes::from_static(&[0, 255, 7]),
        };
        let wake = WakePolicy {
            who: Who { methods: vec![Method::GET], ..Who::default() },
            budget: Some(Rate { wakes: 60, per_seconds: 3600, burst: 60 }),
            favicon: Some(Favicon::File(icon)),
            schedule: Schedule {
                awake: vec!["Mon-Fri 08:00-18:00 Europe/Berlin".to_owned().try_into().unwrap()],
                ..Schedule::default()
            },
            ..policy()
        };
        let policies = Policies::new(wake, Waiting { retry_seconds: 9, ..Waiting::default() });
        let json = serde_json::to_string(&policies).unwrap();
        assert_eq!(serde_json::from_str::<Policies>(&json).unwrap(), policies, "{json}");
        assert_eq!(
            serde_json::to_string(&serde_json::from_str::<Policies>(&json).unwrap()).unwrap(),
            json
        );
        for bad in [
            r#"{"wake":{"replies":[{"path":"/","status":101,"content_type":"a","body":""}]}}"#,
            r#"{"wake":{"replies":[{"path":"/","status":200,"content_type":"a\nb","body":""}]}}"#,
            r#"{"wake":{"robots":{"content_type":"a","body":"*"}}}"#,
        ] {
            assert!(serde_json::from_str::<Policies>(bad).is_err(), "{bad}");
        }
    }
}
