//! The end of a run: everything is mended, and then everything must be right, without excuses.

use std::time::Duration;

use rouse_protocol::wake::Tier;
use rouse_protocol::watch::AppState;
use rouse_tests::{Counter, patience};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::answer::{Answer, Ask};
use crate::director::{Director, Program, TICK};
use crate::operators;
use crate::trouble::{At, Trouble};
use crate::visitors::ask;

/// Between two visits to an app that does not serve yet.
const AGAIN: Duration = Duration::from_millis(300);

impl Director {
    /// Mends everything, and looks whether all is there. `visitors` have been told to stay away.
    pub(crate) async fn mend(&mut self, visitors: &mut JoinSet<()>) {
        self.world.say("mending: no deeds, no fail points and no visitors from now on");
        self.forget_later();
        self.empty_disk();
        self.restart_well().await;
        let limit = self.world.limit + patience();
        let gone = |_: &Self| visitors.try_join_next().is_some() || visitors.is_empty();
        if !self.tend_until(limit, gone).await {
            self.world.violated("visitors are still there".into());
        }
        if !self.tend_until(limit, |it| it.calls.is_empty()).await {
            self.world.violated("calls of operators are still there".into());
        }
        self.clear_all().await;
        self.check_all().await;
        self.quiet_sleeps().await;

        self.world.say("> kill -9 of everything, once more");
        self.reboot(Duration::ZERO, Duration::ZERO);
        self.restart_well().await;
        self.check_all().await;
    }

    /// Goes on tending until `is`, at most for `limit`.
    async fn tend_until(&mut self, limit: Duration, mut is: impl FnMut(&Self) -> bool) -> bool {
        let end = self.world.now() + limit;
        while self.world.now() < end {
            self.tend().await;
            if is(self) {
                return true;
            }
            sleep(TICK).await;
        }
        false
    }

    /// Waker and proxy run, the waker without fail points.
    async fn restart_well(&mut self) {
        if self.is_armed() {
            self.kill_waker(Duration::ZERO);
        }
        self.forget_later();
        if self.waker == Program::Down {
            self.start_waker();
        }
        if self.proxy == Program::Down {
            self.start_proxy();
        }
        let both = |it: &Self| it.waker == Program::Up && it.proxy == Program::Up;
        if !self.tend_until(2 * patience(), both).await {
            self.world.violated("waker and proxy do not come up".into());
        }
    }

    /// Clears what is parked, and what backs off.
    async fn clear_all(&mut self) {
        let end = self.world.now() + patience();
        while self.world.now() < end {
            let Some(views) = self.apps().await else { continue };
            let ill = |state: &AppState| {
                matches!(state, AppState::Parked { .. } | AppState::Failed { .. })
            };
            let ids: Vec<_> = views.iter().filter(|v| ill(&v.state)).map(|v| &v.id).collect();
            if ids.is_empty() {
                break;
            }
            for app in 0..self.world.apps.len() {
                if ids.contains(&&self.world.apps[app].id) {
                    operators::clear(&self.world, app).await;
                }
            }
            sleep(AGAIN).await;
        }
        for app in &self.world.apps {
            self.world.end(&Trouble::Parked(app.name().to_owned()));
        }
    }

    /// Every app serves, and its log is whole.
    async fn check_all(&mut self) {
        for app in 0..self.world.apps.len() {
            let served = self.serve(app).await;
            self.world.say(format_args!(
                "{} {}",
                self.world.apps[app].name(),
                if served { "serves" } else { "does not serve" }
            ));
            if served && self.world.can.log {
                self.read_log(app).await;
            }
        }
    }

    async fn serve(&self, app: usize) -> bool {
        let end: At = self.world.now() + 2 * patience();
        let mut last = None;
        while self.world.now() < end {
            let answer = ask(&self.world, &self.world.apps[app], &Ask::Page).await;
            if answer == Answer::Right {
                return true;
            }
            last = Some(answer.word());
            sleep(AGAIN).await;
        }
        let name = self.world.apps[app].name();
        self.world.violated(format!("{name} does not serve after everything is mended: {last:?}"));
        false
    }

    async fn read_log(&self, app: usize) {
        let name = self.world.apps[app].name();
        let answer = ask(&self.world, &self.world.apps[app], &Ask::Log).await;
        let acknowledged = self.world.ledger(|ledger, _| ledger.acknowledged(name));
        match &answer {
            // That all is in it is the ledger's to say, and it has.
            Answer::Log(lines) => self.world.say(format_args!(
                "{name}: {} entries in its log, {acknowledged} of them acknowledged",
                lines.len()
            )),
            other => self.world.violated(format!("{name}: its log can't be read: {other:?}")),
        }
    }

    /// Without trouble an app that sleeps keeps its memory.
    async fn quiet_sleeps(&mut self) {
        for app in 0..self.world.apps.len() {
            let name = self.world.apps[app].name().to_owned();
            let before = self.count(app).await;
            operators::sleep(self.world.clone(), app, Tier::Image).await;
            let after = self.count(app).await;
            let same = match (&before, &after) {
                (Some(before), Some(after)) => before.boot == after.boot,
                _ => false,
            };
            if !same {
                let what =
                    format!("{name} lost its memory in a quiet sleep: {before:?}, {after:?}");
                self.world.violated(what);
            }
        }
    }

    async fn count(&self, app: usize) -> Option<Counter> {
        match ask(&self.world, &self.world.apps[app], &Ask::Counter).await {
            Answer::Counter(counter) => Some(counter),
            _ => None,
        }
    }
}
