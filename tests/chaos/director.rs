//! The director: carries out what the dice say, and does what an operator does about it.

use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::watch::{AppState, AppView};
use rouse_tests::{Node, Visit, Vm, Volume, patience, vmms_of};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::dice::{Deed, Dice};
use crate::operators;
use crate::points;
use crate::trouble::{At, Trouble};
use crate::world::World;

/// Between two looks at the processes.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Between two looks at the apps.
const LOOK: Duration = Duration::from_millis(250);
/// How long one look may take.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// Between two tries of what an operator must get done.
const AGAIN: Duration = Duration::from_millis(500);

/// What is to be done later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Later {
    /// The waker is started.
    StartWaker,
    /// The proxy is started.
    StartProxy,
    /// An app is cleared.
    Clear(usize),
    /// The ballast is taken off.
    EmptyDisk,
    /// What was asked of the guest of this app has been done, or never will be.
    GuestDone(usize),
}

/// How a program is, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// It is down, and will be started.
    Down,
    /// It was started at this time and has not answered yet.
    Starting(At),
    /// It has answered.
    Up,
}

/// The node, and what goes on there.
#[derive(Debug)]
pub(crate) struct Director {
    pub(crate) world: Arc<World>,
    dice: Dice,
    points: Vec<String>,
    /// With which fail points the waker runs.
    armed: Vec<String>,
    pub(crate) waker: Program,
    pub(crate) proxy: Program,
    later: Vec<(At, Later)>,
    pub(crate) calls: JoinSet<()>,
    looked: At,
    // Dropped in this order: the node's processes end before its file system goes.
    pub(crate) node: Node,
    pub(crate) volume: Option<Volume>,
}

impl Director {
    /// Of a node that has just been started.
    pub(crate) fn new(
        world: Arc<World>,
        dice: Dice,
        points: Vec<String>,
        node: Node,
        volume: Option<Volume>,
    ) -> Self {
        Self {
            world,
            dice,
            points,
            armed: Vec::new(),
            waker: Program::Up,
            proxy: Program::Up,
            later: Vec::new(),
            calls: JoinSet::new(),
            looked: At::ZERO,
            node,
            volume,
        }
    }

    /// One deed after another, until it is `until`.
    pub(crate) async fn direct(&mut self, until: At) {
        let mut next = self.world.now() + self.dice.pause();
        while self.world.now() < until {
            self.tend().await;
            if self.world.now() >= next {
                let deed = self.dice.deed(self.world.can);
                let rest = if let Deed::Rest { lasts } = &deed { *lasts } else { Duration::ZERO };
                self.carry_out(deed).await;
                next = self.world.now() + self.dice.pause() + rest;
            }
            sleep(TICK).await;
        }
    }

    /// Nothing is left for later; whatever was to end ends now.
    pub(crate) fn forget_later(&mut self) {
        self.later.clear();
        self.points.clear();
    }

    /// Whether the waker runs, or last ran, with fail points.
    pub(crate) fn is_armed(&self) -> bool {
        !self.armed.is_empty()
    }

    /// Ends the node's processes.
    pub(crate) async fn end(&mut self) {
        self.calls.shutdown().await;
        self.node.proxy.kill();
        self.node.waker.kill();
        let root = &self.world.root;
        vmms_of(root).iter().for_each(Vm::kill);
        let left = vmms_of(root);
        if !left.is_empty() {
            self.world.violated(format!("VMMs are left: {left:?}"));
        }
    }

    /// Sees what has changed, and does what is due.
    pub(crate) async fn tend(&mut self) {
        while self.calls.try_join_next().is_some() {}
        self.see_processes().await;
        let now = self.world.now();
        while let Some(at) = self.later.iter().position(|(due, _)| *due <= now) {
            let (_, later) = self.later.swap_remove(at);
            self.do_now(later).await;
        }
        if now.saturating_sub(self.looked) >= LOOK {
            self.looked = now;
            self.see_apps().await;
        }
    }

    async fn do_now(&mut self, later: Later) {
        match later {
            Later::StartWaker => self.start_waker(),
            Later::StartProxy => self.start_proxy(),
            Later::Clear(app) => {
                if operators::clear(&self.world, app).await {
                    self.world.end(&Trouble::Parked(self.world.apps[app].name().to_owned()));
                } else {
                    self.after(AGAIN, Later::Clear(app));
                }
            }
            Later::EmptyDisk => self.empty_disk(),
            Later::GuestDone(app) => {
                self.world.end(&Trouble::Vm(self.world.apps[app].name().to_owned()));
            }
        }
    }

    /// Notes what is to be done after a while; what was noted already is done then.
    pub(crate) fn after(&mut self, wait: Duration, later: Later) {
        self.later.retain(|(_, other)| *other != later);
        self.later.push((self.world.now() + wait, later));
    }

    /// Takes the ballast off.
    pub(crate) fn empty_disk(&mut self) {
        let Some(volume) = &self.volume else { return };
        match volume.empty() {
            Ok(()) => self.world.say("disk no longer full"),
            Err(error) => self.world.violated(format!("the ballast can't be removed: {error}")),
        }
        self.world.end(&Trouble::FullDisk);
    }

    /// Starts the waker, with what the dice say of fail points.
    pub(crate) fn start_waker(&mut self) {
        let known: Vec<&str> = self.points.iter().map(String::as_str).collect();
        self.armed = self.dice.fail_points(&known);
        if self.armed.is_empty() {
            self.world.say("waker starts");
            self.world.end(&Trouble::FailPoints);
            self.node.waker.unset_env(points::VARIABLE);
        } else {
            let armed = self.armed.join(";");
            self.world.say(format_args!("waker starts with {armed}"));
            self.world.begin(Trouble::FailPoints);
            self.node.waker.set_env(points::VARIABLE, armed);
        }
        self.node.waker.start();
        self.waker = Program::Starting(self.world.now());
    }

    /// Starts the proxy.
    pub(crate) fn start_proxy(&mut self) {
        self.world.say("proxy starts");
        self.node.proxy.start();
        self.proxy = Program::Starting(self.world.now());
    }

    async fn see_processes(&mut self) {
        if self.waker != Program::Down && !self.node.waker.runs() {
            let how = self.node.waker.ended().map_or_else(|| "gone".into(), |s| s.to_string());
            self.world.say(format_args!("the waker has ended: {how}"));
            if self.armed.is_empty() {
                self.world.violated(format!("the waker ended by itself: {how}"));
            } else {
                self.world.count("faults", "waker (fail point)");
            }
            self.waker_goes();
            let away = self.dice.ms(0, 2000);
            self.after(away, Later::StartWaker);
        }
        if self.proxy != Program::Down && !self.node.proxy.runs() {
            let how = self.node.proxy.ended().map_or_else(|| "gone".into(), |s| s.to_string());
            self.world.violated(format!("the proxy ended by itself: {how}"));
            self.world.begin(Trouble::Proxy);
            self.proxy = Program::Down;
            self.after(Duration::ZERO, Later::StartProxy);
        }
        if let Program::Starting(since) = self.waker
            && operators::answers(&self.world.client, SHORT).await
        {
            let took = self.world.now().saturating_sub(since);
            self.world.say(format_args!("waker answers after {took:.1?}"));
            self.waker = Program::Up;
            self.world.end(&Trouble::Waker);
        }
        if let Program::Starting(since) = self.proxy
            && self.proxy_answers().await
        {
            let took = self.world.now().saturating_sub(since);
            self.world.say(format_args!("proxy answers after {took:.1?}"));
            self.proxy = Program::Up;
            self.world.end(&Trouble::Proxy);
        }
        for (name, program) in [("waker", self.waker), ("proxy", self.proxy)] {
            if let Program::Starting(since) = program
                && self.world.now().saturating_sub(since) > patience()
            {
                self.world.violated(format!("the {name} does not come up"));
            }
        }
    }

    async fn proxy_answers(&self) -> bool {
        let nobody = Visit::get("/").host("nobody.invalid");
        let health = Visit::get("/healthz");
        let both = async {
            // The listener that visitors come to may open before or after the other.
            let (health, visitor) =
                tokio::join!(health.send(self.node.admin()), nobody.send(self.node.http()));
            health.is_ok_and(|reply| reply.status == 200) && visitor.is_ok()
        };
        timeout(SHORT, both).await.unwrap_or(false)
    }

    /// The apps as the waker knows them, when it answers.
    pub(crate) async fn apps(&self) -> Option<Vec<AppView>> {
        timeout(SHORT, self.world.client.apps()).await.ok()?.ok()
    }

    /// Does what an operator does about an app that its waker has parked.
    async fn see_apps(&mut self) {
        if self.waker != Program::Up {
            return;
        }
        let world = self.world.clone();
        for view in self.apps().await.into_iter().flatten() {
            world.count("states seen", view.state.as_str());
            let AppState::Parked { detail } = &view.state else { continue };
            let Some(app) = world.apps.iter().position(|app| app.id == view.id) else { continue };
            if self.later.iter().any(|(_, later)| *later == Later::Clear(app)) {
                continue;
            }
            world.say(format_args!("{} was parked by its waker: {detail}", view.id));
            world.count("parks", "by the waker");
            world.begin(Trouble::Parked(view.id.to_string()));
            let lasts = self.dice.ms(200, 4000);
            self.after(lasts, Later::Clear(app));
        }
    }
}
