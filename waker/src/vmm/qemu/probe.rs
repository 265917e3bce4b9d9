//! Which accelerator really runs a guest here.
//!
//! `/dev/kvm` may exist and open while stock guests do not get through boot on it (nested in
//! software), so the probe is a short real boot of an app's own kernel. Its answer is kept for as
//! long as the host is not rebooted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::args::{self, Accelerator, Shape};
use super::{StartError, Starter, qmp};
use crate::config::MachineConfig;
use crate::vmm::control::Heard;

/// How long a guest may take from its kernel's start until its agent says hello. With KVM that works
/// it takes some 0.5 s.
const BOOT: Duration = Duration::from_secs(8);

#[derive(Serialize, Deserialize, PartialEq)]
struct Answer {
    boot_id: String,
    kernel: PathBuf,
    kvm: bool,
}

/// What was seen of a guest under KVM.
enum Seen {
    /// Its agent said hello.
    Runs,
    /// It was set going and did not get through its boot.
    Stuck(String),
}

/// KVM where it runs `machine`'s kernel until its agent says hello, else TCG. An error when the guest
/// could not even be started: that says nothing about KVM, and the next call tries again.
pub(super) async fn accelerator(
    starter: &Starter,
    machine: &MachineConfig,
) -> Result<Accelerator, StartError> {
    if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        tracing::info!("/dev/kvm can't be opened; guests run under TCG");
        return Ok(Accelerator::Tcg);
    }
    let store = starter.root.with_extension("accelerator.json");
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let known = std::fs::read(&store).ok().and_then(|b| serde_json::from_slice::<Answer>(&b).ok());
    let kvm = match known {
        Some(answer) if answer.boot_id == boot_id && answer.kernel == machine.kernel => answer.kvm,
        _ => {
            let kvm = match try_kvm(starter, machine).await? {
                Seen::Runs => {
                    tracing::info!("KVM runs a guest here");
                    true
                }
                Seen::Stuck(why) => {
                    tracing::warn!(why, "KVM is there but runs no guest; guests run under TCG");
                    false
                }
            };
            let answer = Answer { boot_id, kernel: machine.kernel.clone(), kvm };
            // It is only a saving: without it the next start probes again.
            let _ = serde_json::to_vec(&answer).map(|b| std::fs::write(&store, b));
            kvm
        }
    };
    Ok(if kvm { Accelerator::Kvm } else { Accelerator::Tcg })
}

async fn try_kvm(starter: &Starter, machine: &MachineConfig) -> Result<Seen, StartError> {
    if let Some((path, source)) = machine.unreadable().into_iter().next() {
        return Err(StartError::Directory { path, source });
    }
    // Whether guests run has nothing to do with disks.
    let shape = Shape { disk: false, ..Shape::of(machine, Accelerator::Kvm) };
    let memory = starter.root.with_extension("probe.img");
    std::fs::File::create(&memory)
        .and_then(|f| f.set_len(shape.memory_bytes()))
        .map_err(|source| StartError::Directory { path: memory.clone(), source })?;
    let seen = boot(starter, machine, &shape, &memory).await;
    let _ = std::fs::remove_file(&memory);
    seen
}

async fn boot(
    starter: &Starter,
    machine: &MachineConfig,
    shape: &Shape,
    memory: &Path,
) -> Result<Seen, StartError> {
    let app = "probe".parse().expect("a valid id");
    let args = |runtime: &Path| {
        let mut args = args::common(shape, runtime);
        let guest = args::Guest { machine, app: &app, memory, disk: None };
        args.extend(args::boot(shape, guest, None));
        args
    };
    // A KVM that QEMU itself can't set up ends it at once.
    let started = match starter.start(args).await {
        Err(StartError::Exited(why)) => return Ok(Seen::Stuck(why)),
        started => started?,
    };
    let watched = async {
        if let Err(error) = started.qmp.execute(qapi::qmp::cont {}).await {
            return Err(error.to_string());
        }
        if !machine.agent {
            return runs_on(&started.qmp).await;
        }
        let mut heard = started.control.heard();
        match tokio::time::timeout(BOOT, heard.wait_for(|heard: &Heard| heard.hellos > 0)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err("the VMM ended".to_owned()),
            Err(_) => Err(format!("no word from the agent within {BOOT:?}")),
        }
    };
    let ended = starter.stop.run_until_cancelled(watched).await;
    started.end().await;
    match ended {
        Some(Ok(())) => Ok(Seen::Runs),
        Some(Err(why)) => Ok(Seen::Stuck(why)),
        None => Err(StartError::Exited("the waker is going down".to_owned())),
    }
}

/// Without an agent the best proof is a guest that neither stops nor resets for a while.
async fn runs_on(qmp: &qmp::Qmp) -> Result<(), String> {
    tokio::time::sleep(BOOT / 4).await;
    let status = qmp.execute(qapi::qmp::query_status {}).await.map_err(|e| e.to_string())?;
    if status.running { Ok(()) } else { Err(format!("the guest stopped: {:?}", status.status)) }
}
