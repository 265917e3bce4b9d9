//! QEMU as the VMM: `-M microvm`, QMP, the memory file mapped shared.
//!
//! The image *is* the RAM: a consumed `memory.img` is mapped with `share=on`, so guest memory is
//! never copied, neither at a wake nor at a sleep, and a save (`x-ignore-shared`) writes the
//! device state alone. The state goes over `fd:`, which every QEMU since 2.x understands.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

mod args;
mod backlog;
mod machine;
mod pool;
mod probe;
mod qmp;

pub use args::{Accelerator, Shape};
pub use qmp::{Qmp, QmpError};

use self::machine::QemuMachine;
use self::pool::Pool;
use super::control::Control;
use super::process::{Process, start_ticks};
use super::{
    AdoptError, BootError, Life, Machine, PhaseSink, RestoreError, RunRecord, StartError,
    Stopwatch, Vmm, VmmIdentity,
};
use crate::config::{AcceleratorChoice, MachineConfig, QemuConfig};
use rouse_protocol::wake::{Outcome, Phase};

/// How long a fresh QEMU may take until it answers on its socket: some 100 ms is usual. One that takes longer than
/// the first of these is most likely stuck, and another is started; that one has the time of a slow machine.
const START: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];
/// How long a connection may take until QEMU greets on it, at first and at most. Usually it greets at once. One that
/// did not answer for 20 s has been seen, and not why: another connection costs nothing.
const GREETING: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(8)];

/// QEMU processes: those that serve apps, and those started before they are needed.
#[derive(Debug)]
pub struct Qemu {
    starter: Arc<Starter>,
    restore_timeout: Duration,
    version: OnceCell<String>,
    accelerator: OnceCell<Accelerator>,
    pool: Pool,
    /// The machines that the pool is for.
    wanted: Mutex<Vec<Arc<MachineConfig>>>,
}

/// Starts QEMU processes, each in a directory of its own.
#[derive(Debug)]
pub(crate) struct Starter {
    binary: PathBuf,
    /// Where the directories are made.
    root: PathBuf,
    next: AtomicU64,
    tsc_khz: Option<u64>,
    /// No guest is tried out any more.
    stop: CancellationToken,
}

/// A QEMU that answers.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) process: Process,
    pub(crate) qmp: Qmp,
    pub(crate) control: Arc<Control>,
    pub(crate) runtime: PathBuf,
}

impl Qemu {
    /// QEMU with its processes' directories under `root`, which exists. Nothing is started yet.
    pub fn new(config: &QemuConfig, root: PathBuf, restore_timeout: Duration) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let starter = Arc::new(Starter {
            binary: config.binary.clone(),
            root,
            next: AtomicU64::new(0),
            tsc_khz: args::host_tsc_khz(&cpuinfo),
            stop: CancellationToken::new(),
        });
        Self {
            pool: Pool::new(Arc::clone(&starter), config.pool),
            starter,
            wanted: Mutex::default(),
            restore_timeout,
            version: OnceCell::new(),
            accelerator: OnceCell::new_with(match config.accelerator {
                AcceleratorChoice::Auto => None,
                AcceleratorChoice::Kvm => Some(Accelerator::Kvm),
                AcceleratorChoice::Tcg => Some(Accelerator::Tcg),
            }),
        }
    }

    async fn version(&self) -> Result<&str, StartError> {
        self.version
            .get_or_try_init(|| async {
                let program = &self.starter.binary;
                let output = Command::new(program)
                    .arg("--version")
                    .stdin(Stdio::null())
                    .output()
                    .await
                    .map_err(|source| StartError::Spawn { program: program.clone(), source })?;
                let text = String::from_utf8_lossy(&output.stdout);
                let line = text.lines().next().unwrap_or_default().trim().to_owned();
                if output.status.success() && !line.is_empty() {
                    Ok(line)
                } else {
                    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    Err(StartError::Exited(format!("--version: {}: {said}", output.status)))
                }
            })
            .await
            .map(String::as_str)
    }

    /// What runs guests here; where it is not configured, the first call finds out.
    async fn accelerator(&self, machine: &MachineConfig) -> Result<Accelerator, StartError> {
        if let Some(accelerator) = self.accelerator.get() {
            return Ok(*accelerator);
        }
        let find = || probe::accelerator(&self.starter, machine);
        let found = *self.accelerator.get_or_try_init(find).await?;
        self.fill();
        Ok(found)
    }

    /// Has the pool keep what the newest [`Vmm::prepare`] asked for, once it is known what runs it.
    fn fill(&self) {
        if let Some(&accelerator) = self.accelerator.get() {
            let wanted = self.wanted.lock().expect("no holder panics");
            self.pool.want(wanted.iter().map(|m| Shape::of(m, accelerator)).collect());
        }
    }
}

#[async_trait]
impl Vmm for Qemu {
    async fn identity(&self, machine: &MachineConfig) -> Result<VmmIdentity, BootError> {
        let accelerator = self.accelerator(machine).await?;
        Ok(VmmIdentity {
            kind: "qemu".to_owned(),
            version: self.version().await?.to_owned(),
            accelerator: accelerator.as_str().to_owned(),
            cpu: accelerator.guest_cpu(),
            kernel: accelerator.kernel(),
        })
    }

    fn ram_is_file(&self) -> bool {
        true
    }

    async fn boot(&self, life: &Life, sink: PhaseSink<'_>) -> Result<Box<dyn Machine>, BootError> {
        let identity = self.identity(&life.machine).await?;
        let mut watch = Stopwatch::start();
        let shape = Shape::of(&life.machine, self.accelerator(&life.machine).await?);
        let args = |runtime: &Path| {
            let mut args = args::common(&shape, runtime);
            let tsc_khz = self.starter.tsc_khz;
            args.extend(args::boot(&shape, life.into(), tsc_khz));
            args
        };
        let started = self.starter.start(args).await?;
        sink(watch.lap(Phase::Vmm));
        let machine = match QemuMachine::new(started, life, identity, Outcome::Cold).await {
            Ok(machine) => machine,
            Err((started, error)) => return Err(started.discard(error).await.into()),
        };
        sink(watch.lap(Phase::Load));
        Ok(Box::new(machine))
    }

    async fn restore(
        &self,
        life: &Life,
        state: &Path,
        sink: PhaseSink<'_>,
    ) -> Result<Box<dyn Machine>, RestoreError> {
        let identity = self.identity(&life.machine).await.map_err(|error| match error {
            BootError::Start(error) => RestoreError::Start(error),
            BootError::Command(error) => RestoreError::Command(error),
        })?;
        let mut watch = Stopwatch::start();
        let shape = Shape::of(&life.machine, self.accelerator(&life.machine).await?);
        let started = self.pool.take(shape).await?;
        if let Err(error) = machine::give_memory(&started, &shape, life).await {
            return Err(started.discard(error).await.into());
        }
        sink(watch.lap(Phase::Vmm));
        if let Err(error) = machine::load(&started, state, self.restore_timeout).await {
            return Err(started.discard(error).await);
        }
        let machine = match QemuMachine::new(started, life, identity, Outcome::Resumed).await {
            Ok(machine) => machine,
            Err((started, error)) => return Err(started.discard(error).await.into()),
        };
        sink(watch.lap(Phase::Load));
        Ok(Box::new(machine))
    }

    async fn adopt(&self, life: &Life, record: &RunRecord) -> Result<Box<dyn Machine>, AdoptError> {
        let process = Process::adopt(record.pid, record.start_ticks)
            .map_err(|_| AdoptError::Gone(record.pid))?;
        let qmp = Qmp::connect(&args::qmp_socket(&record.runtime), qmp::COMMAND).await?;
        let agent = args::agent_socket(&record.runtime);
        let control = Control::connect(&agent)
            .await
            .map(Arc::new)
            .map_err(|source| QmpError::Socket { path: agent.clone(), source })?;
        let started = Started { process, qmp, control, runtime: record.runtime.clone() };
        let machine = QemuMachine::adopted(started, life, record).await?;
        Ok(Box::new(machine))
    }

    fn prepare(&self, machines: Vec<Arc<MachineConfig>>) {
        *self.wanted.lock().expect("no holder panics") = machines;
        self.fill();
    }

    async fn close(&self) {
        self.starter.stop.cancel();
        self.pool.close().await;
    }
}

impl Started {
    /// Ends a QEMU that did not do what it should, and passes on why.
    async fn discard<E>(self, why: E) -> E {
        self.end().await;
        why
    }

    /// Ends the process and waits until it is gone.
    pub(crate) async fn end(self) {
        self.process.kill().await;
        remove(&self.runtime);
    }
}

impl Starter {
    /// Starts a QEMU with `args` for its directory, and returns when it answers. One that is stuck is replaced
    /// once: nobody has given it anything yet.
    pub(crate) async fn start(
        &self,
        args: impl Fn(&Path) -> Vec<String>,
    ) -> Result<Started, StartError> {
        let [first, second] = START;
        match self.start_once(&args, first).await {
            Err(error @ StartError::Timeout(_)) => {
                tracing::warn!(%error, "another is started");
                self.start_once(&args, second).await
            }
            other => other,
        }
    }

    async fn start_once(
        &self,
        args: impl Fn(&Path) -> Vec<String>,
        patience: Duration,
    ) -> Result<Started, StartError> {
        let runtime = self.directory()?;
        let started = self.start_in(&runtime, args(&runtime), patience).await;
        if started.is_err() {
            remove(&runtime);
        }
        started
    }

    async fn start_in(
        &self,
        runtime: &Path,
        args: Vec<String>,
        patience: Duration,
    ) -> Result<Started, StartError> {
        let directory = |source| StartError::Directory { path: runtime.to_owned(), source };
        let spawn = |source| StartError::Spawn { program: self.binary.clone(), source };
        let log = runtime.join("vmm.log");
        let stderr = std::fs::File::create(&log).map_err(directory)?;
        let child = Command::new(&self.binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            // Its own group: a Ctrl-C meant for the waker must not end the guests.
            .process_group(0)
            .spawn()
            .map_err(spawn)?;
        let process = Process::of_child(child).map_err(spawn)?;
        let record = serde_json::json!({
            "pid": process.pid(),
            "start_ticks": process.start_ticks(),
        });
        if let Err(source) = std::fs::write(runtime.join(RECORD), record.to_string()) {
            process.kill().await;
            return Err(directory(source));
        }

        let mut exited = process.exited();
        let answered = tokio::select! {
            answered = tokio::time::timeout(patience, connect(runtime)) => answered,
            how = exited.wait_for(Option::is_some) => {
                let how = how.ok().and_then(|how| how.clone()).unwrap_or_default();
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(StartError::Exited(format!("{how}: {}", said.trim())));
            }
        };
        match answered {
            Ok((qmp, control)) => {
                if let Err(error) = backlog::lengthen(process.pid(), process.pidfd()) {
                    tracing::warn!(%error, "QEMU's short queue stays: a crowd may wait long for it");
                }
                Ok(Started { process, qmp, control, runtime: runtime.to_owned() })
            }
            Err(_) => {
                process.kill().await;
                Err(StartError::Timeout(patience))
            }
        }
    }

    /// A fresh directory; the sockets in it are for this waker's user only.
    fn directory(&self) -> Result<PathBuf, StartError> {
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.root.join(n.to_string());
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(StartError::Directory { path, source }),
            }
        }
    }
}

/// The file in a VMM's directory that says which process it is.
pub(crate) const RECORD: &str = "vmm.json";

async fn connect(runtime: &Path) -> (Qmp, Arc<Control>) {
    // QEMU makes its sockets within some 50 ms of its start; nothing tells when.
    let mut pause = tokio::time::interval(Duration::from_millis(2));
    let [mut greeting, most] = GREETING;
    loop {
        pause.tick().await;
        let qmp = Qmp::connect(&args::qmp_socket(runtime), greeting).await;
        if let Err(QmpError::Timeout { .. }) = qmp {
            greeting = (greeting * 2).min(most);
        }
        // The agent's socket is made first, so it is there when QMP answers.
        if let Ok(qmp) = qmp
            && let Ok(control) = Control::connect(&args::agent_socket(runtime)).await
        {
            return (qmp, Arc::new(control));
        }
    }
}

/// Removes a VMM's directory. What can't be removed is swept up at the next start.
pub(crate) fn remove(runtime: &Path) {
    if let Err(error) = std::fs::remove_dir_all(runtime) {
        tracing::debug!(path = %runtime.display(), %error, "a VMM's directory stays");
    }
}

/// Ends what earlier wakers left under `root` and no app uses: `keep` are the directories of adopted
/// VMs. To be called once, before anything is started.
pub async fn sweep(root: &Path, keep: &[PathBuf]) -> io::Result<()> {
    // By their command lines: a waker that was killed just then has left no record of a VMM.
    for (pid, runtime) in started_under(root)? {
        if !keep.contains(&runtime)
            && let Ok(process) = start_ticks(pid).and_then(|ticks| Process::adopt(pid, ticks))
        {
            tracing::info!(pid, "ending a VMM that serves no app");
            process.kill().await;
        }
    }
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        if !keep.contains(&path) {
            remove(&path);
        }
    }
    Ok(())
}

/// The processes that were started with a QMP socket under `root`, and their directories.
fn started_under(root: &Path) -> io::Result<Vec<(i32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Gone meanwhile, or somebody else's.
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        found.extend(line.split(|b| *b == 0).find_map(|word| {
            let path = args::qmp_socket_of(std::str::from_utf8(word).ok()?)?;
            let runtime = path.parent()?;
            (runtime.parent()? == root).then(|| (pid, runtime.to_owned()))
        }));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sweep_ends_what_no_app_uses_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("vmm"), dir.path().join("other"));
        let start = |root: &Path, n: &str| {
            let runtime = root.join(n);
            std::fs::create_dir_all(&runtime).unwrap();
            // Stands for a QEMU: the same words on its command line. Waits for a line that never
            // comes.
            let shape = Shape {
                memory_mib: 256,
                vcpus: 1,
                port: 80,
                outbound: false,
                disk: false,
                accelerator: Accelerator::Tcg,
            };
            let mut child = Command::new("sh")
                .args(["-c", "read line", "sh"])
                .args(args::common(&shape, &runtime))
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let line = child.stdin.take();
            (runtime, Process::of_child(child).unwrap(), line)
        };
        let (unused, stray, _line) = start(&root, "0");
        let (used, adopted, _other_line) = start(&root, "1");
        let (_, others, _third_line) = start(&other, "0");
        sweep(&root, std::slice::from_ref(&used)).await.unwrap();
        stray.exited().wait_for(Option::is_some).await.unwrap();
        assert!(!unused.exists() && used.exists());
        for process in [&adopted, &others] {
            assert!(process.exited().borrow().is_none());
            process.kill().await;
        }
    }
}
