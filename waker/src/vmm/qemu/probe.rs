//! Which accelerator really runs a guest here.
//!
//! `/dev/kvm` may exist and open while stock guests do not get through boot on it (nested in
//! software), so the probe is a short real boot of an app's own kernel. Its answer is kept for as
//! long as the host is not rebooted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::args::{self, Accelerator, Shape};
use super::{Starter, qmp};
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

/// KVM where it runs `machine`'s kernel until its agent says hello, else TCG.
pub(super) async fn accelerator(starter: &Starter, machine: &MachineConfig) -> Accelerator {
    if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        tracing::info!("/dev/kvm can't be opened; guests run under TCG");
        return Accelerator::Tcg;
    }
    let store = starter.root.with_extension("accelerator.json");
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let known = std::fs::read(&store).ok().and_then(|b| serde_json::from_slice::<Answer>(&b).ok());
    let kvm = match known {
        Some(answer) if answer.boot_id == boot_id && answer.kernel == machine.kernel => answer.kvm,
        _ => {
            let kvm = boots(starter, machine).await;
            let answer = Answer { boot_id, kernel: machine.kernel.clone(), kvm };
            // It is only a saving: without it the next start probes again.
            let _ = serde_json::to_vec(&answer).map(|b| std::fs::write(&store, b));
            kvm
        }
    };
    if kvm { Accelerator::Kvm } else { Accelerator::Tcg }
}

async fn boots(starter: &Starter, machine: &MachineConfig) -> bool {
    let shape = Shape::of(machine, Accelerator::Kvm);
    let memory = starter.root.with_extension("probe.img");
    let sized = std::fs::File::create(&memory).and_then(|f| f.set_len(shape.memory_bytes()));
    let booted = match sized {
        Ok(()) => boot(starter, machine, &shape, &memory).await,
        Err(error) => Err(error.to_string()),
    };
    let _ = std::fs::remove_file(&memory);
    match booted {
        Ok(()) => {
            tracing::info!("KVM runs a guest here");
            true
        }
        Err(why) => {
            tracing::warn!(why, "KVM is there but runs no guest; guests run under TCG");
            false
        }
    }
}

async fn boot(
    starter: &Starter,
    machine: &MachineConfig,
    shape: &Shape,
    memory: &Path,
) -> Result<(), String> {
    let app = "probe".parse().expect("a valid id");
    let args = |runtime: &Path| {
        let mut args = args::common(shape, runtime);
        args.extend(args::boot(shape, machine, &app, memory, None));
        args
    };
    let started = starter.start(args).await.map_err(|e| e.to_string())?;
    let said = if machine.agent {
        let mut heard = started.control.heard();
        match started.qmp.execute(qapi::qmp::cont {}).await {
            Ok(_) => {
                let hello = |heard: &Heard| heard.hello;
                match tokio::time::timeout(BOOT, heard.wait_for(hello)).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(_)) => Err("the VMM ended".to_owned()),
                    Err(_) => Err(format!("no word from the agent within {BOOT:?}")),
                }
            }
            Err(error) => Err(error.to_string()),
        }
    } else {
        runs_on(&started.qmp).await
    };
    started.end().await;
    said
}

/// Without an agent the best proof is a guest that neither stops nor resets for a while.
async fn runs_on(qmp: &qmp::Qmp) -> Result<(), String> {
    qmp.execute(qapi::qmp::cont {}).await.map_err(|e| e.to_string())?;
    tokio::time::sleep(BOOT / 4).await;
    let status = qmp.execute(qapi::qmp::query_status {}).await.map_err(|e| e.to_string())?;
    if status.running { Ok(()) } else { Err(format!("the guest stopped: {:?}", status.status)) }
}
