//! The sleep that runs: when it came how far, and who waits for its end.

use rouse_protocol::app::Generation;
use rouse_protocol::wake::{SleepRefusal, SleepReport, Tier};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::SleepAnswer;
use crate::image::{Published, Settled};

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
