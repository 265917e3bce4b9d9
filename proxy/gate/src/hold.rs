//! Holding one visitor. Every hold ends: let through, deadline, gone, full, parked, failed, stopping.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rouse_protocol::watch::{AppState, Policy};
use tokio::time::Instant;

use crate::app::App;
use crate::asker::Asker;
use crate::gate::Gate;
use crate::observer::HoldEnd;
use crate::refusal::Refusal;
use crate::visitor::Visitor;
use crate::waiting::Place;
use crate::wake;

impl Gate {
    /// Holds a visitor until its app serves. `gone` resolves when the visitor has left.
    ///
    /// Who may not wake the app is not held either while another's wake runs, so that what becomes
    /// of a request never depends on who came just before. An app whose VM is awake, where only this
    /// proxy's gate is not open, is for everybody. The wake that it starts is charged to it.
    ///
    /// The wake that it starts or joins is not its own: it goes on if this future is dropped.
    pub async fn hold(
        self: &Arc<Self>,
        visitor: &mut Visitor,
        asker: Asker,
        gone: impl Future<Output = ()> + Send,
    ) -> Result<(), Refusal> {
        let app = visitor.app().clone();
        let mut slot = Slot { gate: self, app: &app, end: HoldEnd::Gone, counted: None };
        let result = match slot.admit(&asker, visitor.arrived()) {
            Ok(()) => {
                let began = Instant::now();
                let (until, end) = patience(&app.policy(), &asker);
                let until = began + until.saturating_sub(visitor.held);
                let result = tokio::select! {
                    biased;
                    result = self.queue_twice(visitor, asker.address) => result,
                    () = gone => Err(Refusal::Gone),
                    () = tokio::time::sleep_until(until) => Err(end),
                    () = self.stopping.cancelled() => Err(Refusal::Stopping),
                };
                visitor.held += began.elapsed();
                result
            }
            Err(refusal) => Err(refusal),
        };
        slot.end = result.as_ref().map_or_else(HoldEnd::from, |()| HoldEnd::Forwarded);
        result
    }

    /// For the app to serve, and then for a place at it.
    async fn queue_twice(
        self: &Arc<Self>,
        visitor: &mut Visitor,
        address: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        self.queue(visitor, address).await?;
        visitor.place().await;
        Ok(())
    }

    async fn queue(
        self: &Arc<Self>,
        visitor: &mut Visitor,
        address: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        let app = visitor.app().clone();
        loop {
            let ticket = app.join(address, Instant::now()).map_err(Refusal::Denied)?;
            if ticket.start {
                visitor.start();
                self.spawn(wake::run(self.clone(), app.clone(), ticket.attempt));
            }
            let place = pin!(ticket.era.clone().acquire_owned());
            match place.await {
                Ok(permit) => {
                    if let Some(open) = app.open_of(&ticket.era) {
                        visitor.pass(open, permit);
                        return Ok(());
                    }
                }
                Err(_era_over) => {
                    if let Some(refusal) = app.failure(ticket.attempt) {
                        return Err(refusal);
                    }
                }
            }
        }
    }
}

/// How long a visitor is held over all its holds, and what ends it then.
fn patience(policy: &Policy, asker: &Asker) -> (Duration, Refusal) {
    let deadline = Duration::from_millis(policy.hold_deadline_ms);
    match asker.page_after {
        Some(page) if page < deadline => (page, Refusal::Waiting),
        _ => (deadline, Refusal::Deadline),
    }
}

/// A hold's place in the counts, whatever becomes of its future.
struct Slot<'a> {
    gate: &'a Gate,
    app: &'a App,
    end: HoldEnd,
    counted: Option<Place>,
}

impl Slot<'_> {
    fn admit(&mut self, asker: &Asker, arrived: Instant) -> Result<(), Refusal> {
        if self.gate.stopping.is_cancelled() {
            return Err(Refusal::Stopping);
        }
        // Only while the waker can tell us otherwise: after a clear it does.
        if let AppState::Parked { detail } = self.app.known().state
            && self.gate.connected()
        {
            return Err(Refusal::Parked(detail));
        }
        if let Some(denied) = asker.denied
            && self.app.open().is_none()
            && self.app.known().state.ready().is_none()
        {
            return Err(Refusal::Denied(denied));
        }
        let (gate, limits) = (self.gate, self.gate.limits);
        if !take(&self.app.holds, limits.holds_per_app) {
            return Err(Refusal::Full);
        }
        if !take(&gate.held, limits.holds_total) {
            self.app.holds.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Full);
        }
        self.counted = Some(self.app.waiting.enter(arrived));
        Ok(())
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.counted {
            self.app.waiting.leave(place);
            self.app.holds.fetch_sub(1, Ordering::Relaxed);
            self.gate.held.fetch_sub(1, Ordering::Relaxed);
        }
        self.gate.observer.hold_ended(self.end);
    }
}

/// Takes one of at most `limit` places.
fn take(count: &AtomicUsize, limit: usize) -> bool {
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then_some(n + 1))
        .is_ok()
}
