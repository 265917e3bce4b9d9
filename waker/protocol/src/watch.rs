//! `GET /v1/watch` and `GET /v1/apps`: what apps there are and how they are.
//!
//! A watch first tells every app, then `synced`, then each change. Named (`?as=NAME`) it is a
//! proxy's, and as long as it stands no app sleeps without that proxy's agreement.

use rouse_policy::Policies;
use serde::{Deserialize, Serialize};

use crate::app::{AppId, Generation};
use crate::route::Rule;
use crate::wake::{Ready, SleepReason};

/// Where an app is in its lifecycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum AppState {
    /// No VM.
    Asleep,
    /// A wake runs.
    Waking,
    /// The VM runs.
    Awake(Ready),
    /// The VM runs and the proxies are asked whether it may sleep.
    Draining {
        /// The running VM.
        #[serde(flatten)]
        ready: Ready,
        /// Who wants it to sleep.
        reason: SleepReason,
        /// The number of this question, for the answer: an answer that comes late must not be
        /// taken for one to the next question.
        question: u64,
    },
    /// The VM stands still and keeps its RAM; a wake takes milliseconds.
    Paused,
    /// The VM stands still and is being saved.
    Snapshotting,
    /// Wakes failed; the next may start after a while.
    Failed {
        /// What the last one said.
        detail: String,
        /// When the next may start, in milliseconds from this message.
        retry_after_ms: u64,
    },
    /// No wakes until an operator clears it.
    Parked {
        /// Why.
        detail: String,
    },
}

impl AppState {
    /// The word in messages and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::Waking => "waking",
            Self::Awake(_) => "awake",
            Self::Draining { .. } => "draining",
            Self::Paused => "paused",
            Self::Snapshotting => "snapshotting",
            Self::Failed { .. } => "failed",
            Self::Parked { .. } => "parked",
        }
    }

    /// The VM that serves now, if any.
    pub fn ready(&self) -> Option<&Ready> {
        match self {
            Self::Awake(ready) | Self::Draining { ready, .. } => Some(ready),
            _ => None,
        }
    }
}

/// What a proxy needs to know of how to treat an app's visitors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// How long nobody may come before the app sleeps, in milliseconds; 0: never.
    pub idle_ms: u64,
    /// How long a visitor may be held, in milliseconds.
    pub hold_deadline_ms: u64,
    /// What the gate asks for.
    pub gate_path: String,
    /// How many requests the app takes at once; 0: as many as come.
    #[serde(default, skip_serializing_if = "is_none")]
    pub concurrent_requests: u32,
    /// Who may wake it, what is answered meanwhile, how they wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policies: Policies,
}

fn is_none(limit: &u32) -> bool {
    *limit == 0
}

fn is_default(policies: &Policies) -> bool {
    *policies == Policies::default()
}

/// One app as the waker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppView {
    /// Its id.
    pub id: AppId,
    /// Which requests are its own. Under `hosts`, since most are only that.
    #[serde(rename = "hosts")]
    pub rules: Vec<Rule>,
    /// How its visitors are treated.
    pub policy: Policy,
    /// The newest life there has been; 0 before the first. Not just `generation` on the line, where
    /// an awake state's own stands beside it.
    #[serde(rename = "newest_generation")]
    pub generation: Generation,
    /// Since when it is in its state, in milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// Where it is in its lifecycle.
    #[serde(flatten)]
    pub state: AppState,
}

/// One line of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum WatchEvent {
    /// An app, new or changed.
    App(AppView),
    /// An app is no longer configured.
    Removed {
        /// Which.
        id: AppId,
    },
    /// All apps have been told; from now on changes.
    Synced,
    /// Nothing has changed. Sent when nothing else was for [`HEARTBEAT`].
    Alive,
}

/// How often a quiet watch says that it is alive. A reader that hears nothing for three of these
/// takes the waker for gone.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Host;
    use crate::route::HostPattern;
    use crate::wake::Outcome;

    #[test]
    fn policies_that_are_not_told_are_the_default() {
        let json = r#"{"idle_ms":1,"hold_deadline_ms":2,"gate_path":"/"}"#;
        let policy: Policy = serde_json::from_str(json).unwrap();
        assert_eq!(policy.policies, Policies::default());
        assert_eq!(serde_json::to_string(&policy).unwrap(), json);
    }

    #[test]
    fn every_state_survives_the_line() {
        let ready = Ready {
            endpoint: "127.0.0.1:4000".parse().unwrap(),
            generation: Generation(7),
            outcome: Outcome::Cold,
            key: None,
        };
        for state in [
            AppState::Asleep,
            AppState::Waking,
            AppState::Awake(ready.clone()),
            AppState::Draining { ready, reason: SleepReason::Idle, question: 3 },
            AppState::Paused,
            AppState::Snapshotting,
            AppState::Failed { detail: "x".into(), retry_after_ms: 1 },
            AppState::Parked { detail: "x".into() },
        ] {
            let event = WatchEvent::App(AppView {
                id: "a".parse().unwrap(),
                rules: vec![HostPattern::from(Host::parse("a.example").unwrap()).into()],
                policy: Policy {
                    idle_ms: 1,
                    hold_deadline_ms: 2,
                    gate_path: "/".into(),
                    ..Policy::default()
                },
                generation: Generation(8),
                since_unix_ms: 3,
                state,
            });
            let line = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<WatchEvent>(&line).unwrap(), event, "{line}");
        }
    }

    #[test]
    fn a_line_can_be_read_by_hand() {
        let line = r#"{"event":"app","id":"a","hosts":["a.example","*.b",{"host":"*","path":"/api","headers":{"x-beta":"1"}}],"policy":{"idle_ms":1,"hold_deadline_ms":2,"gate_path":"/"},"newest_generation":8,"since_unix_ms":3,"state":"asleep"}"#;
        let event: WatchEvent = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), line);
        let WatchEvent::App(view) = event else { panic!("{event:?}") };
        let shown: Vec<_> = view.rules.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a.example", "*.b", "*/api with x-beta: 1"]);
    }
}
