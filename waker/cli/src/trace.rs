//! `rouse trace`: the last wakes of an app.

use rouse_protocol::app::AppId;
use rouse_protocol::status::{StoreTrace, WakeTrace};

use crate::failure::Failure;
use crate::session::Session;
use crate::text::{ago, line, moment, now_unix_ms, size};
use crate::waterfall;

pub(crate) async fn run(session: &Session<'_>, app: &AppId, last: usize) -> Result<(), Failure> {
    let wakes = match session.client.trace(app).await {
        Ok(wakes) => wakes,
        Err(error) => return Err(session.failed(app, error).await),
    };
    let wakes = &wakes[wakes.len().saturating_sub(last)..];
    if session.output.json() {
        return session.output.document(wakes);
    }
    if wakes.is_empty() {
        return session.output.say(&format!("{app}: no wake since the waker's start"));
    }
    let now = now_unix_ms();
    let drawn: Vec<_> = wakes.iter().map(|wake| draw(wake, now)).collect();
    session.output.say(&drawn.join("\n\n"))
}

/// One wake: when and how, its phases, its patches.
fn draw(wake: &WakeTrace, now: u64) -> String {
    let outcome = wake.outcome.map_or("failed", |outcome| outcome.as_str());
    let (at, before) = (moment(wake.at_unix_ms), ago(wake.at_unix_ms, now));
    let mut lines = vec![format!("{at} ({before})  generation {}  {outcome}", wake.generation)];
    if let Some(why) = &wake.error {
        lines.push(format!("  error: {}", line(why)));
    }
    if let Some(why) = &wake.refused {
        lines.push(format!("  its image was not used: {}", line(why)));
    }
    if let Some(StoreTrace { requests, retries, hedges, bytes }) = wake.store {
        lines.push(format!(
            "  from the store: {} by {requests} requests, {retries} of them again, {hedges} beside another",
            size(bytes)
        ));
    }
    lines.extend(waterfall::draw(&wake.phases));
    if !wake.patches.is_empty() {
        lines.push("  patches, after the first byte:".to_owned());
    }
    for patch in &wake.patches {
        let end = patch.error.as_deref().map_or("ok".to_owned(), |e| format!("error: {}", line(e)));
        lines.push(waterfall::row(&line(&patch.patch), patch.us, &end));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::Generation;
    use rouse_protocol::status::PatchTrace;
    use rouse_protocol::wake::{Outcome, Phase, PhaseTime};

    use super::*;

    #[test]
    fn a_wake_with_its_patches() {
        let patch = |patch: &str, error: Option<&str>| PatchTrace {
            patch: patch.into(),
            us: 1500,
            error: error.map(Into::into),
        };
        let mut wake = WakeTrace {
            at_unix_ms: 1_796_085_123_456,
            generation: Generation(8),
            outcome: Some(Outcome::Cold),
            refused: Some("vmm-version".into()),
            error: None,
            store: Some(StoreTrace { requests: 9, retries: 1, hedges: 0, bytes: 3 << 20 }),
            phases: vec![PhaseTime { phase: Phase::Vmm, us: 12_000 }],
            patches: vec![patch("clock", None), patch("disk", Some("another\nmarker"))],
        };
        let now = wake.at_unix_ms + 180_000;
        let bar = "█".repeat(48);
        assert_eq!(
            draw(&wake, now),
            format!(
                "2026-12-01T00:32:03.456Z (3m ago)  generation 8  cold\n  \
                   its image was not used: vmm-version\n  \
                   from the store: 3.0 MiB by 9 requests, 1 of them again, 0 beside another\n  \
                   vmm            12.00 ms  {bar}\n  \
                   total          12.00 ms\n  \
                   patches, after the first byte:\n  \
                   clock           1.50 ms  ok\n  \
                   disk            1.50 ms  error: another marker"
            )
        );
        wake.outcome = None;
        wake.error = Some("vmm: QEMU ended".into());
        let drawn = draw(&wake, now);
        assert!(drawn.contains("generation 8  failed\n  error: vmm: QEMU ended\n"), "{drawn}");
    }
}
