//! One QEMU from the moment it serves an app.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryFutureExt;
use qapi::qmp::{
    self, MemoryBackendFileProperties, MigrationCapability, MigrationCapabilityStatus,
    MigrationStatus,
};
use rouse_protocol::wake::Outcome;
use tokio::sync::watch;

use super::args::{MEMORY_ID, Shape};
use super::{Qmp, QmpError, Started};
use crate::image::SavedMemory;
use crate::vmm::control::{Control, Identity};
use crate::vmm::touched::{self, Mark, Touched, touched};
use crate::vmm::{Life, Machine, RestoreError, RunRecord, SaveError, SaveTo, VmmIdentity};

/// How long the device state (some 60 KB) may take to be written.
const SAVE: Duration = Duration::from_secs(20);

/// Between two looks whether QEMU has finalized a save, which takes about as long.
const FINALIZE: Duration = Duration::from_millis(1);

/// Gives a pre-started QEMU the life's memory and has it build the machine.
pub(super) async fn give_memory(
    started: &Started,
    shape: &Shape,
    life: &Life,
) -> Result<(), QmpError> {
    let qmp = &started.qmp;
    let memory = qmp::ObjectOptions::memory_backend_file {
        id: MEMORY_ID.to_owned(),
        memory_backend_file: memory_file(shape, &life.memory),
    };
    if let Some(disk) = &life.disk {
        qmp.execute(disk_node(disk)).await?;
    }
    // One burst: QEMU does them in order, and an error of one is an error of the next. Biased, so
    // that they are sent in order.
    tokio::try_join!(
        biased;
        qmp.execute(qmp::object_add(memory)).map_ok(drop),
        qmp.execute(qmp::qom_set {
            path: "/machine".to_owned(),
            property: "memory-backend".to_owned(),
            value: MEMORY_ID.into(),
        })
        .map_ok(drop),
        qmp.execute(qmp::x_exit_preconfig {}).map_ok(drop),
    )?;
    Ok(())
}

/// Loads the device state; the guest then stands still where it was saved.
pub(super) async fn load(
    started: &Started,
    state: &Path,
    timeout: Duration,
) -> Result<(), RestoreError> {
    let file = File::open(state)
        .map_err(|source| RestoreError::State { path: state.to_owned(), source })?;
    let qmp = &started.qmp;
    let mut migration = qmp.migration();
    qmp.execute(capabilities()).await?;
    qmp.give_fd("state", file.as_fd()).await?;
    drop(file);
    qmp.execute(qmp::migrate_incoming {
        channels: None,
        exit_on_error: None,
        uri: Some("fd:state".to_owned()),
    })
    .await?;
    let mut exited = started.process.exited();
    tokio::select! {
        end = tokio::time::timeout(timeout, settled(&mut migration)) => match end {
            Ok(Some(MigrationStatus::completed)) => Ok(()),
            Ok(status) => Err(RestoreError::Refused(refusal(started, status))),
            Err(_) => Err(RestoreError::Timeout(timeout)),
        },
        _ = exited.wait_for(Option::is_some) => {
            Err(RestoreError::Refused(refusal(started, None)))
        }
    }
}

/// QEMU's words about a state that it did not take.
fn refusal(started: &Started, status: Option<MigrationStatus>) -> String {
    let said = std::fs::read_to_string(started.runtime.join("vmm.log")).unwrap_or_default();
    format!("{status:?}: {}", said.trim())
}

/// A QEMU that serves an app.
#[derive(Debug)]
pub(super) struct QemuMachine {
    started: Started,
    record: RunRecord,
    /// Where the guest has no agent, nothing is asked of it.
    agent: bool,
    standing: bool,
    /// The agent knows this life.
    told: bool,
    /// The life's memory file.
    memory: PathBuf,
}

impl QemuMachine {
    /// A QEMU whose guest stands still, from now on this life's.
    pub(super) async fn new(
        started: Started,
        life: &Life,
        identity: VmmIdentity,
        outcome: Outcome,
    ) -> Result<Self, (Started, QmpError)> {
        match serve(&started, life, identity, outcome).await {
            Ok(record) => {
                // A guest that boots asks for its life by itself.
                let told = record.outcome == Outcome::Cold;
                let agent = life.key.is_some();
                let machine = Self {
                    started,
                    record,
                    agent,
                    standing: true,
                    told,
                    memory: life.memory.clone(),
                };
                machine.introduce(life);
                Ok(machine)
            }
            Err(error) => Err((started, error)),
        }
    }

    /// A running QEMU of an earlier waker. It holds its locks already.
    pub(super) async fn adopted(
        started: Started,
        life: &Life,
        record: &RunRecord,
    ) -> Result<Self, QmpError> {
        // The earlier waker may have died in a save.
        let over = tokio::time::timeout(SAVE, finalized(&started.qmp)).await;
        let status = over.map_err(|_| QmpError::Timeout { command: "query-status" })??;
        // Whoever has stopped it for an error of its disk wants it to run: it is not paused, and goes on
        // when there is room again.
        let stalled = status == qmp::RunState::io_error;
        if stalled {
            started.qmp.found_stalled();
        }
        let standing = status != qmp::RunState::running && !stalled;
        let agent = life.key.is_some();
        let record = record.clone();
        let machine =
            Self { started, record, agent, standing, told: false, memory: life.memory.clone() };
        machine.introduce(life);
        // The earlier waker may have died before it told.
        if !standing {
            machine.started.control.tell();
        }
        Ok(machine)
    }

    fn introduce(&self, life: &Life) {
        if let Some(key) = life.key.clone() {
            let identity = Identity { app: life.app.clone(), generation: life.generation, key };
            self.started.control.set(identity);
        }
    }
}

impl QemuMachine {
    /// `exact`: unless DAMON may have taken pages away, which it does without counting.
    fn touched_since(
        &self,
        mark: Option<Mark>,
        exact: bool,
    ) -> Box<dyn FnOnce() -> Touched + Send> {
        let (pid, memory) = (self.record.pid, self.memory.clone());
        Box::new(move || match File::open(&memory) {
            Ok(_) if exact && touched::damon_pages_out() => {
                Touched::Unknown(touched::Reason::Damon)
            }
            Ok(file) => touched(pid, &file, mark),
            Err(source) => {
                let what = memory.display().to_string();
                Touched::Unknown(touched::Reason::Read { what, source })
            }
        })
    }
}

#[async_trait]
impl Machine for QemuMachine {
    fn record(&self) -> RunRecord {
        self.record.clone()
    }

    fn exited(&self) -> watch::Receiver<Option<String>> {
        self.started.process.exited()
    }

    fn agent(&self) -> Option<Arc<Control>> {
        self.agent.then(|| Arc::clone(&self.started.control))
    }

    fn stands(&self) -> bool {
        self.standing
    }

    fn stalled(&self) -> watch::Receiver<bool> {
        self.started.qmp.stalled()
    }

    async fn resume(&mut self) -> Result<(), QmpError> {
        // A save that failed or was given up may not have come to its end yet.
        let over = tokio::time::timeout(SAVE, finalized(&self.started.qmp)).await;
        over.map_err(|_| QmpError::Timeout { command: "query-status" })??;
        self.started.qmp.execute(qmp::cont {}).await?;
        self.standing = false;
        // Its clock stood still; a boot's did not begin yet.
        if !std::mem::take(&mut self.told) {
            self.started.control.tell();
        }
        Ok(())
    }

    async fn pause(&mut self) -> Result<(), QmpError> {
        self.started.qmp.execute(qmp::stop {}).await?;
        self.standing = true;
        Ok(())
    }

    fn mapped(&self) -> Box<dyn FnOnce() -> Touched + Send> {
        // What was unmapped meanwhile is missed, and no harm done.
        self.touched_since(Mark::now().ok(), false)
    }

    fn touched(&self) -> Box<dyn FnOnce() -> Touched + Send> {
        self.touched_since(self.record.mark, true)
    }

    async fn save(&mut self, to: &SaveTo) -> Result<SavedMemory, SaveError> {
        let state = &*to.state;
        let qmp = &self.started.qmp;
        let write = |source| SaveError::Write { path: state.to_owned(), source };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(state)
            .map_err(write)?;
        let mut migration = qmp.migration();
        qmp.give_fd("state", file.as_fd()).await?;
        drop(file);
        qmp.execute(qmp::migrate {
            channels: None,
            detach: None,
            resume: None,
            uri: Some("fd:state".to_owned()),
        })
        .await?;
        let saved = async {
            match settled(&mut migration).await {
                Some(MigrationStatus::completed) => Ok(finalized(qmp).await.map(drop)?),
                status => {
                    let detail = qmp.execute(qmp::query_migrate {}).await.ok();
                    let detail = detail.and_then(|info| info.error_desc).unwrap_or_default();
                    Err(SaveError::Refused(format!("{status:?} {detail}")))
                }
            }
        };
        match tokio::time::timeout(SAVE, saved).await {
            Ok(result) => result.map(|()| SavedMemory::InPlace),
            Err(_) => {
                // So that a resume finds no save going on.
                let _ = qmp.execute(qmp::migrate_cancel {}).await;
                Err(SaveError::Timeout(SAVE))
            }
        }
    }

    async fn finish(self: Box<Self>) -> Result<(), SaveError> {
        self.started.end().await;
        Ok(())
    }

    async fn kill(self: Box<Self>) {
        self.started.end().await;
    }
}

/// Hands over the locks and finds out where the guest is reached.
async fn serve(
    started: &Started,
    life: &Life,
    identity: VmmIdentity,
    outcome: Outcome,
) -> Result<RunRecord, QmpError> {
    for (n, lock) in life.locks.iter().enumerate() {
        started.qmp.give_fd(&format!("lock{n}"), lock.as_fd()).await?;
    }
    if outcome == Outcome::Cold {
        started.qmp.execute(capabilities()).await?;
    }
    Ok(RunRecord {
        pid: started.process.pid(),
        start_ticks: started.process.start_ticks(),
        generation: life.generation,
        outcome,
        endpoint: endpoint(started).await?,
        runtime: started.runtime.clone(),
        identity,
        machine: life.machine.fingerprint(),
        memory_mib: life.machine.memory_mib,
        vcpus: life.machine.vcpus,
        mark: life.mark,
        keep_pair: life.keep_pair,
    })
}

/// The life's disk. Its lock is QEMU's own.
fn disk_node(disk: &Path) -> qmp::blockdev_add {
    qmp::blockdev_add(
        serde_json::from_str(&super::args::disk_node(disk)).expect("it is what QEMU's schema says"),
    )
}

/// Waits until a save or a load has come to its end; none when QEMU hung up before.
async fn settled(
    migration: &mut watch::Receiver<Option<MigrationStatus>>,
) -> Option<MigrationStatus> {
    use MigrationStatus::{cancelled, completed, failed};
    loop {
        migration.changed().await.ok()?;
        let status = migration.borrow_and_update().as_ref().copied();
        if let Some(completed | failed | cancelled) = status {
            return status;
        }
    }
}

/// The guest's run state, once a save that is complete is finalized too: QEMU says `completed` a
/// moment before its migration thread is done, and until then refuses to let the guest go on.
async fn finalized(qmp: &Qmp) -> Result<qmp::RunState, QmpError> {
    loop {
        let status = qmp.execute(qmp::query_status {}).await?.status;
        if status != qmp::RunState::finish_migrate {
            return Ok(status);
        }
        tokio::time::sleep(FINALIZE).await;
    }
}

fn capabilities() -> qmp::migrate_set_capabilities {
    let on = |capability| MigrationCapabilityStatus { capability, state: true };
    qmp::migrate_set_capabilities {
        capabilities: vec![
            on(MigrationCapability::x_ignore_shared),
            on(MigrationCapability::events),
        ],
    }
}

/// The host's end of the port forward. User-mode networking listens from QEMU's start, long before
/// the guest does: that it accepts proves nothing.
async fn endpoint(started: &Started) -> Result<SocketAddr, QmpError> {
    const COMMAND: &str = "info usernet";
    let text = started
        .qmp
        .execute(qmp::human_monitor_command { cpu_index: None, command_line: COMMAND.to_owned() })
        .await?;
    forward(&text).ok_or(QmpError::Answer { command: COMMAND, detail: text })
}

fn forward(usernet: &str) -> Option<SocketAddr> {
    let line = usernet.lines().find(|line| line.contains("TCP[HOST_FORWARD]"))?;
    let mut fields = line.split_whitespace().skip(2);
    let (address, port) = (fields.next()?, fields.next()?);
    Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
}

/// The life's memory file, mapped shared: what the guest writes goes into it.
fn memory_file(shape: &Shape, path: &Path) -> MemoryBackendFileProperties {
    MemoryBackendFileProperties {
        base: qmp::MemoryBackendProperties {
            dump: None,
            host_nodes: None,
            merge: None,
            policy: None,
            // Never populated: a page that the guest does not touch is not read.
            prealloc: None,
            prealloc_context: None,
            prealloc_threads: None,
            reserve: None,
            share: Some(true),
            x_use_canonical_path_for_ramblock_id: None,
            size: shape.memory_bytes(),
        },
        align: None,
        discard_data: None,
        offset: None,
        pmem: None,
        readonly: None,
        rom: None,
        mem_path: path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forward_is_read() {
        let text = "Hub -1 (net0):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n  \
                    TCP[HOST_FORWARD]   9       127.0.0.1 45199       10.0.2.15  8080     0     0\r\n";
        assert_eq!(forward(text), Some("127.0.0.1:45199".parse().unwrap()));
        for bad in ["", "TCP[HOST_FORWARD]", "TCP[HOST_FORWARD] 9 127.0.0.1 99999 x"] {
            assert_eq!(forward(bad), None);
        }
    }
}
