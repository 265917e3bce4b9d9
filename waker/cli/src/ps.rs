//! `rouse ps`: all apps at a glance.

mod table;

use std::time::Duration;

use rouse_protocol::client::{ClientError, Lines};
use rouse_protocol::watch::{HEARTBEAT, WatchEvent};

use crate::failure::Failure;
use crate::session::Session;
use crate::text::now_unix_ms;

/// Changes that come together are shown together.
const TOGETHER: Duration = Duration::from_millis(100);

/// Home, and everything from there on erased (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

pub(crate) async fn once(session: &Session<'_>) -> Result<(), Failure> {
    let text = look(session).await?;
    session.output.bytes(text.as_bytes())
}

/// Shows all apps now and after each change, until it is ended or the waker is.
pub(crate) async fn watch(session: &Session<'_>) -> Result<(), Failure> {
    let output = session.output;
    let mut events = session.client.watch(None).await?;
    // The first look comes after all apps are told, so that no change falls between the two.
    while !matches!(next(&mut events).await?, WatchEvent::Synced) {}
    let mut told = String::new();
    loop {
        let text = look(session).await?;
        // On a terminal the times go on. Elsewhere a look is worth its lines only if it is another.
        if output.terminal() && !output.json() {
            output.bytes(format!("{CLEAR}{text}").as_bytes())?;
        } else if text != told {
            let gap = if told.is_empty() || output.json() { "" } else { "\n" };
            output.bytes(format!("{gap}{text}").as_bytes())?;
            told = text;
        }
        loop {
            match next(&mut events).await? {
                WatchEvent::Alive if output.terminal() && !output.json() => break,
                WatchEvent::Alive | WatchEvent::Synced => {}
                WatchEvent::App(_) | WatchEvent::Removed { .. } => {
                    drain(&mut events).await?;
                    break;
                }
            }
        }
    }
}

/// What is to be printed, whole.
async fn look(session: &Session<'_>) -> Result<String, Failure> {
    let apps = session.client.status().await?;
    let output = session.output;
    if output.json() {
        let text = serde_json::to_string(&apps).map_err(|e| Failure::Output(e.into()))?;
        return Ok(format!("{text}\n"));
    }
    Ok(table::draw(&apps, now_unix_ms(), output.columns(), |text, style| output.paint(text, style)))
}

async fn next(events: &mut Lines<WatchEvent>) -> Result<WatchEvent, Failure> {
    let silence = HEARTBEAT * 3;
    match tokio::time::timeout(silence, events.next()).await {
        Ok(event) => event.and_then(|event| event.ok_or(ClientError::Ended)).map_err(Failure::from),
        Err(_) => Err(Failure::Silent(silence.as_secs())),
    }
}

/// Takes what else comes within [`TOGETHER`].
async fn drain(events: &mut Lines<WatchEvent>) -> Result<(), Failure> {
    let end = tokio::time::Instant::now() + TOGETHER;
    while let Ok(event) = tokio::time::timeout_at(end, next(events)).await {
        event?;
    }
    Ok(())
}
