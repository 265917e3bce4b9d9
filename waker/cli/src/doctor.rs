//! `rouse doctor`: is this node fit to run apps, and what is to be done if not?
//!
//! Each check is a pure function of facts (`checks`); the facts are found by thin probes (`probe`).

mod checks;
mod probe;

use anstyle::{AnsiColor, Style};
use rouse_protocol::app::AppId;
use rouse_waker::config::{AcceleratorChoice, WakerConfig, read_apps, read_waker};
use serde::Serialize;

use crate::args::Args;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::text::line;
use checks::{config, host, memory, storage, waker};
use probe::{host as host_facts, socket, storage as storage_facts};

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// All is well.
    Ok,
    /// It works, but not as well as it could.
    Warn,
    /// Apps can't be run, or not safely.
    Fail,
}

/// One check.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    check: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    todo: String,
}

impl Check {
    fn new(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { check, verdict, found: found.into(), todo: todo.into() }
    }

    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, found, "")
    }

    fn warn(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::new(check, Verdict::Warn, found, todo)
    }

    fn fail(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::new(check, Verdict::Fail, found, todo)
    }
}

/// What the apps need in all, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Needs {
    /// All guests' memory.
    memory: u64,
    /// The largest guest, and its memory.
    largest: Option<(AppId, u64)>,
}

pub(crate) async fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let checks = examine(args).await;
    let fails = checks.iter().any(|check| check.verdict == Verdict::Fail);
    if output.json() {
        output.document(&serde_json::json!({ "ok": !fails, "checks": checks }))?;
    } else {
        for check in &checks {
            output.bytes(draw(check, |text, style| output.paint(text, style)).as_bytes())?;
        }
    }
    Ok(if fails { Exit::Failed } else { Exit::Done })
}

fn draw(check: &Check, paint: impl Fn(&str, Style) -> String) -> String {
    let (word, colour) = match check.verdict {
        Verdict::Ok => ("ok  ", AnsiColor::Green),
        Verdict::Warn => ("warn", AnsiColor::Yellow),
        Verdict::Fail => ("fail", AnsiColor::Red),
    };
    let word = paint(word, colour.on_default());
    let mut found = check.found.lines();
    let first = line(found.next().unwrap_or_default());
    let mut text = format!("{word}  {:<11}  {first}\n", check.check);
    for more in found {
        text.push_str(&format!("{:19}{}\n", "", line(more)));
    }
    if !check.todo.is_empty() {
        text.push_str(&format!("{:17}> {}\n", "", line(&check.todo)));
    }
    text
}

/// Looks at everything. What can't be looked at without a configuration is left out when there is
/// none: that itself is a failed check.
async fn examine(args: &Args) -> Vec<Check> {
    let read = read_waker(&args.config);
    let mut checks = vec![config::configuration(&args.config, &read)];
    let config = read.ok();
    let needs = match &config {
        Some(config) => apps(config, &mut checks),
        None => Needs::default(),
    };
    let path = args.socket.clone().or_else(|| config.as_ref().map(|c| c.socket.path.clone()));
    let seen = match &path {
        Some(path) => Some(socket::look(path).await),
        None => None,
    };
    let peer = seen.as_ref().and_then(|seen| seen.peer());

    if let Some(config) = &config {
        let facts = storage_facts::look(&config.state_dir);
        checks.push(host::user(host_facts::own_uid(), peer.map(|p| p.uid), facts.owner()));
        checks.extend(storage::all(&facts, &needs, peer.map(|p| p.uid)));
    }
    checks.push(host::kernel(&host_facts::kernel()));
    let accelerator = config.as_ref().map_or(AcceleratorChoice::Auto, |c| c.qemu.accelerator);
    checks.push(host::kvm(&host_facts::kvm(), accelerator));
    let binary = config.as_ref().map_or("qemu-system-x86_64".into(), |c| c.qemu.binary.clone());
    checks.push(host::qemu(&binary, &host_facts::qemu(&binary).await));
    checks.push(host::mkfs(host_facts::mkfs().as_deref()));
    checks.push(host::open_files(&host_facts::limits(peer.map(|p| p.pid)), peer.is_some()));
    checks.push(host::pagemap(&host_facts::pagemap().await));
    let meminfo = host_facts::meminfo();
    checks.push(memory::memory(&meminfo, &needs));
    checks.push(memory::swap(&meminfo));
    checks.push(memory::pressure(&host_facts::pressure()));
    checks.push(host::clock(&host_facts::clock().await));
    if let (Some(path), Some(seen)) = (&path, &seen) {
        checks.push(waker::socket(path, seen));
        checks.push(waker::health(&seen.health));
    }
    checks
}

fn apps(config: &WakerConfig, checks: &mut Vec<Check>) -> Needs {
    let files = read_apps(&config.apps_dir);
    let mut needs = Needs::default();
    let mut unreadable = Vec::new();
    for app in files.iter().flat_map(|files| files.apps.values()) {
        let memory = app.machine.memory_bytes();
        needs.memory = needs.memory.saturating_add(memory);
        if needs.largest.as_ref().is_none_or(|(_, most)| *most < memory) {
            needs.largest = Some((app.id.clone(), memory));
        }
        for (path, error) in app.machine.unreadable() {
            unreadable.push(format!("app {}: {}: {error}", app.id, path.display()));
        }
    }
    unreadable.sort();
    checks.push(config::apps(&config.apps_dir, &files, &unreadable));
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_drawn_with_what_to_do() {
        let check = Check::fail("apps", "a.toml:1: x\nb.toml:2: \x1b[2J", "mend it");
        assert_eq!(
            draw(&check, |text, _| format!("[{text}]")),
            "[fail]  apps         a.toml:1: x\n                   b.toml:2: \u{fffd}[2J\n                 \
             > mend it\n"
        );
        assert_eq!(
            serde_json::to_value(Check::ok("kvm", "x")).unwrap(),
            serde_json::json!({ "check": "kvm", "verdict": "ok", "found": "x" })
        );
    }
}
