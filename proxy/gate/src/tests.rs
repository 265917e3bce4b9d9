//! The gate between a scripted waker, a scripted app and visitors, in paused time.

mod early;
mod holds;
mod outside;
mod paused;
mod places;
mod policy;
mod properties;
mod routes;
mod served;
mod sleeping;
mod waking;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use rouse_protocol::app::AppId;
use rouse_route::{HostPattern, Rule};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Asker, Gate, Limits, Refusal, Settings, Visitor, Woken};
use outside::{Sim, SimDialer, SimProber, SimWaker};

const HOST: &str = "hello.test";

struct World {
    gate: Arc<Gate>,
    sim: Arc<Sim>,
    prober: Arc<SimProber>,
    dialer: Arc<SimDialer>,
}

impl World {
    async fn new() -> Self {
        Self::with(Limits::default(), |_| {}).await
    }

    async fn with(limits: Limits, change: impl FnOnce(&Sim)) -> Self {
        let sim = Sim::new();
        change(&sim);
        Self::at(sim, limits, Vec::new()).await
    }

    async fn at(
        sim: Arc<Sim>,
        limits: Limits,
        origins: Vec<(AppId, Vec<Rule>, SocketAddr)>,
    ) -> Self {
        let prober = SimProber::new(&sim);
        let dialer = Arc::new(SimDialer::default());
        let settings = Settings {
            name: "proxy-1".to_owned(),
            limits,
            waker: Some(Arc::new(SimWaker(sim.clone()))),
            prober: prober.clone(),
            dialer: dialer.clone(),
            observer: sim.clone(),
            runtime: Handle::current(),
        };
        let gate = Gate::start(settings, origins);
        let world = Self { gate, sim, prober, dialer };
        eventually(|| world.gate.synced()).await;
        world
    }

    fn enter(&self) -> Visitor {
        self.find(HOST).expect("the app is routed to")
    }

    /// A visitor of `/` at `host`, if it is anybody's.
    fn find(&self, host: &str) -> Option<Visitor> {
        self.gate.enter(host, "/", &HeaderMap::new(), Instant::now())
    }

    /// One visit up to being let through.
    async fn visit(&self) -> Result<Visitor, Refusal> {
        let mut visitor = self.enter();
        if visitor.enter_open().is_none() {
            self.gate.hold(&mut visitor, Asker::default(), std::future::pending()).await?;
        }
        Ok(visitor)
    }

    /// The response header of `visitor` is here.
    fn answered(&self, visitor: &mut Visitor) -> Option<Woken> {
        self.gate.answered(visitor)
    }

    /// `n` visitors at once, in this order.
    fn visits(&self, n: usize) -> JoinSet<(usize, Result<Visitor, Refusal>)> {
        let mut visits = JoinSet::new();
        for i in 0..n {
            let (gate, mut visitor) = (self.gate.clone(), self.enter());
            visits.spawn(async move {
                let held = gate.hold(&mut visitor, Asker::default(), std::future::pending()).await;
                (i, held.map(|()| visitor))
            });
        }
        visits
    }

    fn holds(&self) -> usize {
        let status = &self.gate.status()[0];
        assert_eq!(status.holds, self.gate.held());
        status.holds
    }
}

/// Lets time pass until `check` holds.
async fn eventually(mut check: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never came");
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn rule(host: &str) -> Rule {
    host.parse::<HostPattern>().unwrap().into()
}
