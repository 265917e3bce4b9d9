//! `rouse wake`, `boot`, `sleep`, `park`, `clear`: what is done to one app.

use rouse_protocol::app::AppId;
use rouse_protocol::client::{ClientError, Lines};
use rouse_protocol::wake::{
    BootRequest, ParkRequest, PhaseTime, PrewarmReport, Ready, SleepReport, SleepRequest, Tier,
    WakeEvent,
};
use serde::Serialize;

use crate::failure::Failure;
use crate::session::Session;
use crate::text::{size, took};

/// A wake that came to its end, for `--json`.
#[derive(Serialize)]
struct Woken {
    phases: Vec<PhaseTime>,
    ready: Ready,
}

pub(crate) async fn wake(session: &Session<'_>, app: &AppId) -> Result<(), Failure> {
    let events = session.client.wake(app).await;
    follow(session, app, events).await
}

pub(crate) async fn boot(
    session: &Session<'_>,
    app: &AppId,
    rollback: bool,
) -> Result<(), Failure> {
    let events = session.client.boot(app, &BootRequest { rollback }).await;
    follow(session, app, events).await
}

/// Tells the phases of a wake as they end, and its end.
async fn follow(
    session: &Session<'_>,
    app: &AppId,
    events: Result<Lines<WakeEvent>, ClientError>,
) -> Result<(), Failure> {
    let mut events = match events {
        Ok(events) => events,
        Err(error) => return Err(session.failed(app, error).await),
    };
    let output = session.output;
    let mut phases = Vec::new();
    loop {
        let event = events.next().await?;
        match event.ok_or(ClientError::Ended)? {
            WakeEvent::Phase(time) => {
                if !output.json() {
                    output.say(&format!("  {:<8} {:>11}", time.phase.as_str(), took(time.us)))?;
                }
                phases.push(time);
            }
            WakeEvent::Ready(mut ready) => {
                // It is the proxies' alone.
                ready.key = None;
                if output.json() {
                    return output.document(&Woken { phases, ready });
                }
                return output.say(&ran(app, &phases, &ready));
            }
            WakeEvent::Failed(failure) => {
                return Err(Failure::Wake { app: app.clone(), failure });
            }
        }
    }
}

fn ran(app: &AppId, phases: &[PhaseTime], ready: &Ready) -> String {
    let Ready { endpoint, generation, outcome, .. } = ready;
    let us = phases.iter().fold(0_u64, |sum, time| sum.saturating_add(time.us));
    let time = if phases.is_empty() { String::new() } else { format!(" after {}", took(us)) };
    format!("{app} runs{time}: {}, generation {generation}, at {endpoint}", outcome.as_str())
}

pub(crate) async fn sleep(session: &Session<'_>, app: &AppId, pause: bool) -> Result<(), Failure> {
    let request = SleepRequest { tier: pause.then_some(Tier::Paused), ..SleepRequest::default() };
    let report = match session.client.sleep(app, &request).await {
        Ok(report) => report,
        Err(error) => return Err(session.failed(app, error).await),
    };
    if session.output.json() {
        return session.output.document(&report);
    }
    session.output.say(&slept(app, &report))
}

fn slept(app: &AppId, report: &SleepReport) -> String {
    let generation = report.generation;
    let mut lines = Vec::new();
    let mut step = |name: &str, us: u64, meaning: &str| {
        lines.push(format!("  {name:<10} {:>11}  {meaning}", took(us)));
    };
    step("agreed", report.agreed_us, "every proxy let go of it");
    if report.flushed_us > 0 {
        step("flushed", report.flushed_us, "the guest's disk was written out");
    }
    step("stopped", report.stopped_us, "the VM stood still");
    if report.tier == Tier::Paused {
        lines.push(format!("{app} is paused: generation {generation}, its RAM kept"));
        return lines.join("\n");
    }
    step("saved", report.saved_us, "its device state was written");
    step("durable", report.durable_us, "all of it would survive a power cut");
    step("published", report.published_us, "the RAM was given back");
    lines.push(format!(
        "{app} sleeps: generation {generation}, {} written, an image of {}",
        size(report.written_bytes),
        size(report.image_bytes)
    ));
    lines.join("\n")
}

pub(crate) async fn prewarm(session: &Session<'_>, app: &AppId) -> Result<(), Failure> {
    let report = match session.client.prewarm(app).await {
        Ok(report) => report,
        Err(error) => return Err(session.failed(app, error).await),
    };
    if session.output.json() {
        return session.output.document(&report);
    }
    let PrewarmReport { generation, was_there, bytes } = report;
    session.output.say(&match was_there {
        true => format!("{app}: generation {generation} was in the cache"),
        false => format!("{app}: generation {generation} is in the cache, {} came", size(bytes)),
    })
}

pub(crate) async fn release(session: &Session<'_>, app: &AppId) -> Result<(), Failure> {
    let report = match session.client.release(app).await {
        Ok(report) => report,
        Err(error) => return Err(session.failed(app, error).await),
    };
    if session.output.json() {
        return session.output.document(&report);
    }
    let owner = report.owner;
    session.output.say(&format!("{app}: node {owner} holds it no more, and any may wake it"))
}

pub(crate) async fn park(session: &Session<'_>, app: &AppId, reason: &str) -> Result<(), Failure> {
    let done = session.client.park(app, &ParkRequest { reason: reason.to_owned() }).await;
    told(session, app, done, "is parked; `rouse clear` frees it").await
}

pub(crate) async fn clear(session: &Session<'_>, app: &AppId) -> Result<(), Failure> {
    let done = session.client.clear(app).await;
    told(session, app, done, "may be woken").await
}

async fn told(
    session: &Session<'_>,
    app: &AppId,
    done: Result<(), ClientError>,
    what: &str,
) -> Result<(), Failure> {
    if let Err(error) = done {
        return Err(session.failed(app, error).await);
    }
    if session.output.json() {
        return session.output.document(&serde_json::json!({ "id": app }));
    }
    session.output.say(&format!("{app} {what}"))
}
