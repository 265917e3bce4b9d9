//! The sleep that runs: when it came how far, and who waits for its end.

use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::wake::{SleepReason, SleepRefusal, SleepReport, SleepRequest, Tier};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::SleepAnswer;
use super::actor::Actor;
use super::ops::{self, Done, SettleJob};
use crate::image::{Published, SettleError, Settled};
use crate::lifecycle::{Event, State};
use crate::vmm::SaveTo;

/// The sleep that runs, or the last one. Times are from when it was asked for.
#[derive(Default)]
pub(super) struct Sleep {
    pub(super) waiting: Vec<oneshot::Sender<SleepAnswer>>,
    asked: Option<Instant>,
    agreed_us: u64,
    flushed_us: u64,
    stopped_us: u64,
    saved_us: u64,
    durable_us: u64,
    settled: Settled,
    pub(super) published: Option<Published>,
}

/// A step of a sleep that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Agreed,
    Flushed,
    Stopped,
    Saved,
    Durable(Settled),
}

impl Sleep {
    /// One begins: from an awake app, or a paused one goes on to be an image.
    pub(super) fn begin(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        *self = Self { waiting, asked: Some(Instant::now()), ..Self::default() };
    }

    pub(super) fn step(&mut self, step: Step) {
        let elapsed = self.elapsed_us();
        match step {
            Step::Agreed => self.agreed_us = elapsed,
            Step::Flushed => self.flushed_us = elapsed,
            Step::Stopped => self.stopped_us = elapsed,
            Step::Saved => self.saved_us = elapsed,
            Step::Durable(settled) => {
                self.durable_us = elapsed;
                self.settled = settled;
            }
        }
    }

    fn elapsed_us(&self) -> u64 {
        let elapsed = self.asked.map(|asked| asked.elapsed()).unwrap_or_default();
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }

    /// What whoever asked is told of a sleep that came to its end.
    pub(super) fn report(&mut self, tier: Tier, generation: Generation) -> SleepAnswer {
        let published = self.published.take();
        let image_bytes = match (tier, &published) {
            (Tier::Paused, _) => 0,
            (Tier::Image, Some(published)) => published.image_bytes,
            (Tier::Image, None) => {
                return Err((SleepRefusal::Failed, "nothing was published".to_owned()));
            }
        };
        Ok(SleepReport {
            generation: published.map_or(generation, |published| published.generation),
            tier,
            agreed_us: self.agreed_us,
            flushed_us: self.flushed_us,
            stopped_us: self.stopped_us,
            saved_us: self.saved_us,
            durable_us: self.durable_us,
            published_us: if tier == Tier::Image { self.elapsed_us() } else { 0 },
            written_bytes: self.settled.written_bytes,
            image_bytes,
        })
    }

    pub(super) fn answer(&mut self, answer: &SleepAnswer) {
        for waiting in self.waiting.drain(..) {
            // Whoever has hung up needs no answer.
            let _ = waiting.send(answer.clone());
        }
    }
}

impl Actor {
    pub(super) async fn sleep(
        &mut self,
        request: SleepRequest,
        reply: oneshot::Sender<SleepAnswer>,
    ) {
        let SleepRequest { generation, reason, tier } = request;
        let begins = matches!(self.lifecycle.state(), State::Awake | State::Paused { .. });
        if reason == SleepReason::Idle
            && *self.lifecycle.state() == State::Awake
            && let Some(why) = self.kept_awake()
        {
            self.node.metrics.slept(SleepRefusal::KeptAwake.as_str());
            // Whoever has hung up needs no answer.
            let _ = reply.send(Err((SleepRefusal::KeptAwake, why)));
            return;
        }
        self.keep.overridden = reason == SleepReason::Operator || (!begins && self.keep.overridden);
        if begins {
            self.sleep.begin();
            self.drained_for = reason;
        }
        self.sleep.waiting.push(reply);
        let pauses = reason == SleepReason::Idle && self.config.paused > Duration::ZERO;
        let tier = tier.unwrap_or(if pauses { Tier::Paused } else { Tier::Image });
        let proxies = self.node.proxies.names();
        self.event(Event::Sleep { reason, generation, tier, proxies }).await;
    }

    pub(super) fn flush(&mut self, sleep: u64) {
        let agent = self.machine.as_ref().and_then(|machine| machine.agent());
        let (app, within) = (self.config.id.clone(), self.node.flush);
        let metrics = Arc::clone(&self.node.metrics);
        self.flushes.spawn(async move {
            if let Some(agent) = agent {
                let flushed = agent.flush(within).await;
                metrics.flushed(flushed.is_ok());
                if let Err(error) = flushed {
                    // What it holds back is in its memory, which is frozen with the disk.
                    tracing::warn!(%app, %error, "sleeps without having written out its disk");
                }
            }
            sleep
        });
    }

    pub(super) fn save(&mut self) {
        // A paused app goes on by itself, when its time has come.
        if self.sleep.waiting.is_empty() {
            self.sleep.begin();
        }
        let machine = self.take_machine();
        let Some(live) = &self.live else {
            unreachable!("a running app has its directory");
        };
        let to = SaveTo { state: live.state(), layer: live.layer() };
        match live.clear_state() {
            Ok(()) => drop(self.doing.spawn(ops::save(machine, to))),
            Err(error) => {
                let detail = format!("{}: {error}", to.state.display());
                self.doing.spawn(async { Done::Saved(machine, Err(detail)) });
            }
        }
    }

    pub(super) fn settle(&mut self, sleep: u64) {
        let (Some(machine), Some(live), Some(memory)) = (&self.machine, &self.live, self.memory)
        else {
            unreachable!("what was saved is there");
        };
        let job = SettleJob {
            dir: Arc::clone(&self.dir),
            live: live.path().to_owned(),
            record: machine.record(),
            memory,
            touched: machine.touched(),
            woken_by: self.woken_by.clone(),
        };
        let (work, settling) = job.start();
        self.settling = Some(settling);
        self.settles.spawn_blocking(move || (sleep, work()));
    }

    /// Gives back what the image of a sleeping app does not need.
    pub(super) fn trim(&mut self) {
        let (app, dir) = (self.config.id.clone(), Arc::clone(&self.dir));
        let turns = Arc::clone(&self.node.trims);
        self.trims.spawn(async move {
            let Ok(_turn) = turns.acquire_owned().await else { return };
            match ops::blocking(move || dir.trim()).await {
                Ok(trimmed) => tracing::debug!(%app, ?trimmed, "its image is trimmed"),
                // The next sleep tries again.
                Err(error) => {
                    tracing::warn!(%app, %error, "its image occupies more than it has to");
                }
            }
        });
    }

    pub(super) async fn settled(&mut self, sleep: u64, result: Result<Settled, SettleError>) {
        if let Ok(settled) = &result {
            self.sleep.step(Step::Durable(*settled));
        }
        let result = result.map(drop).map_err(|e| e.to_string());
        self.event(Event::Settled { sleep, result }).await;
    }

    pub(super) fn answer_sleeps(&mut self, answer: Result<Tier, (SleepRefusal, String)>) {
        let end = answer.as_ref().map_or_else(|(why, _)| why.as_str(), |tier| tier.as_str());
        self.node.metrics.slept(end);
        let generation = self.lifecycle.generation();
        let answer = answer.and_then(|tier| self.sleep.report(tier, generation));
        match &answer {
            Ok(report) => tracing::info!(app = %self.config.id, ?report, "asleep"),
            Err((SleepRefusal::Failed, detail)) => {
                tracing::error!(app = %self.config.id, detail, "could not be put to sleep");
            }
            Err((why, detail)) => {
                tracing::info!(app = %self.config.id, ?why, detail, "stays awake")
            }
        }
        self.sleep.answer(&answer);
    }
}
