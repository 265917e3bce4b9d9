//! The app's side: probes and connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentState;
use tokio::time::Instant;

use super::{Sim, id};
use crate::verdict::Heard;
use crate::{Dialer, Probe, Prober, Upstream};

/// What the app does with a probe.
#[derive(Clone, Debug)]
pub(in crate::tests) enum App {
    /// The agent signs this.
    Says(AgentState),
    /// This is heard, after a while.
    Heard(Heard, Duration),
}

pub(in crate::tests) struct SimProber {
    sim: Arc<Sim>,
    script: Mutex<VecDeque<App>>,
    /// When each probe went out.
    pub(in crate::tests) sent: Mutex<Vec<Instant>>,
    /// After the script.
    pub(in crate::tests) then: Mutex<App>,
}

impl SimProber {
    pub(in crate::tests) fn new(sim: &Arc<Sim>) -> Arc<Self> {
        Arc::new(Self {
            sim: sim.clone(),
            script: Mutex::default(),
            sent: Mutex::default(),
            then: Mutex::new(App::Says(AgentState::Serving)),
        })
    }

    pub(in crate::tests) fn script(&self, apps: impl IntoIterator<Item = App>) {
        self.script.lock().unwrap().extend(apps);
    }
}

#[async_trait]
impl Prober for SimProber {
    async fn probe(&self, probe: &Probe) -> (Heard, Option<Instant>) {
        assert_eq!((&*probe.path, &*probe.host), ("/gate", "hello.test"));
        self.sent.lock().unwrap().push(Instant::now());
        let app = self.script.lock().unwrap().pop_front();
        let app = app.unwrap_or_else(|| self.then.lock().unwrap().clone());
        let heard = match app {
            App::Says(state) => {
                let word = self.sim.key.sign(&id(), Generation(0), state, &probe.nonce);
                Heard::Answer { agent: vec![word] }
            }
            App::Heard(heard, after) if after < probe.patience => {
                tokio::time::sleep(after).await;
                heard
            }
            App::Heard(..) => {
                tokio::time::sleep(probe.patience).await;
                Heard::TimedOut
            }
        };
        let at = matches!(heard, Heard::Answer { .. }).then(Instant::now);
        (heard, at)
    }
}

#[derive(Default)]
pub(in crate::tests) struct SimDialer {
    shut: Arc<AtomicUsize>,
    made: AtomicUsize,
}

struct SimUpstream {
    shut: Arc<AtomicUsize>,
}

impl SimDialer {
    /// How many lives' connections were made, and how many were shut.
    pub(in crate::tests) fn counts(&self) -> (usize, usize) {
        (self.made.load(Ordering::SeqCst), self.shut.load(Ordering::SeqCst))
    }
}

impl Upstream for SimUpstream {
    fn shut(&self) {
        self.shut.fetch_add(1, Ordering::SeqCst);
    }
}

impl Dialer for SimDialer {
    fn upstream(&self, _: &AppId, _: SocketAddr, _: Generation) -> Arc<dyn Upstream> {
        self.made.fetch_add(1, Ordering::SeqCst);
        Arc::new(SimUpstream { shut: self.shut.clone() })
    }
}
