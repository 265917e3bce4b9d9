//! A sleeping app's generation goes to the store, in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use crate::lifecycle::State;
use crate::store::{Freed, Up, UploadError};

/// The wait before the second try; it doubles with each further one.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait between two tries.
const MOST: Duration = Duration::from_secs(300);

/// What is being sent, and when it is tried again.
#[derive(Debug, Default)]
pub(super) struct Sending {
    pub(super) tasks: JoinSet<Result<Option<Freed>, UploadError>>,
    /// There is, or may be, something to send.
    pub(super) due: bool,
    failures: u32,
    again: Option<Instant>,
    going_on: Option<CalledOff>,
}

/// What is being sent, or was until it was called off.
#[derive(Debug)]
pub(super) struct CalledOff {
    cancel: CancellationToken,
    /// Fails when nothing is done any more.
    ended: oneshot::Receiver<()>,
}

impl CalledOff {
    /// Returns when nothing is read or written any more.
    pub(super) async fn ended(self) {
        self.cancel.cancel();
        let _ = self.ended.await;
    }
}

impl Sending {
    /// Has what is being sent end soon; who wakes the app waits for that.
    pub(super) fn call_off(&mut self) -> Option<CalledOff> {
        (self.due, self.again, self.failures) = (false, None, 0);
        self.going_on.take().inspect(|sending| sending.cancel.cancel())
    }

    /// [`Self::call_off`], and its end.
    pub(super) async fn stop(&mut self) {
        if let Some(sending) = self.call_off() {
            sending.ended().await;
        }
        self.tasks.shutdown().await;
    }

    fn wait(&mut self, dice: f64) -> Duration {
        let longest = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(MOST);
        self.failures += 1;
        longest.mul_f64(0.5 + dice.clamp(0.0, 1.0) / 2.0)
    }
}

impl Actor {
    /// When the next try is due, where one is waited for.
    pub(super) fn sends_at(&self) -> Option<Instant> {
        self.sending.again.filter(|_| self.sending.due && self.sending.tasks.is_empty())
    }

    /// Begins to send what sleeps here, if nothing speaks against it.
    pub(super) fn send_if_due(&mut self) {
        let Some(store) = self.node.store.clone() else { return };
        let asleep = matches!(self.lifecycle.state(), State::Asleep | State::Parked { .. });
        let waits = self.sending.again.is_some_and(|again| again > Instant::now());
        let sending = &mut self.sending;
        if !sending.due || !asleep || waits || !sending.tasks.is_empty() || self.stopping.is_some()
        {
            return;
        }
        let cancel = CancellationToken::new();
        let (ending, ended) = oneshot::channel();
        let up = Up {
            dir: Arc::clone(&self.dir),
            app: self.config.id.clone(),
            key: self.key.clone(),
            cancel: cancel.clone(),
        };
        sending.going_on = Some(CalledOff { cancel, ended });
        sending.tasks.spawn(async move {
            let _ending: oneshot::Sender<()> = ending;
            let freed = Box::pin(store.free(&up)).await;
            if let Ok(Some(Freed { was_there: false, .. })) = &freed {
                match up.cancel.run_until_cancelled(store.collect(&up.app)).await {
                    Some(Ok(collected)) => {
                        tracing::debug!(app = %up.app, ?collected, "the store is cleaned up");
                    }
                    Some(Err(error)) => {
                        tracing::warn!(app = %up.app, %error, "what is not needed stays in the store for now");
                    }
                    None => {}
                }
            }
            freed
        });
    }

    pub(super) async fn sent(&mut self, sent: Result<Option<Freed>, UploadError>) {
        let app = &self.config.id;
        self.node.metrics.sent(sent.as_ref().map(Option::as_ref));
        match sent {
            Ok(freed) => {
                (self.sending.failures, self.sending.again) = (0, None);
                self.sending.due = false;
                if let Some(freed) = freed.filter(|freed| !freed.was_there) {
                    tracing::info!(%app, ?freed, "its generation is in the store");
                }
            }
            Err(UploadError::Cancelled) => {}
            Err(error @ UploadError::Taken { .. }) => {
                self.sending.due = false;
                // A wake finds out whose it is now.
                tracing::error!(%app, %error, "its generation is not sent: it is not this node's any more");
            }
            Err(error) => {
                let wait = self.sending.wait(rand::random());
                self.sending.again = Some(Instant::now() + wait);
                tracing::warn!(%app, %error, ?wait, "its generation could not be sent, and is once more after a while");
            }
        }
    }
}
