//! A server that a benchmark starts, watches and stops.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use rouse_tests::Visit;

/// How long a server may take until it answers, and a polite one until it has stopped.
const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(5);
/// Between two looks.
const TICK: Duration = Duration::from_millis(10);

/// A server. Dropped, it and its children are gone.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a program on one core, or anywhere. What it says goes to a file in `dir`.
    pub(crate) fn start(
        name: &'static str,
        program: &Path,
        args: &[String],
        core: Option<usize>,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let child = pinned(program, core)
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| program.display().to_string())?;
        Ok(Self { name, child, log })
    }

    /// Waits until a `GET /` is answered with 200.
    pub(crate) async fn ready(&mut self, at: SocketAddr, host: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut last = String::new();
        while start.elapsed() < START {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} has ended ({status}):\n{}", self.name, self.log());
            }
            match Visit::get("/").host(host).send(at).await {
                Ok(reply) if reply.status == 200 => return Ok(()),
                Ok(reply) => last = format!("it answers {}", reply.status),
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(TICK).await;
        }
        bail!("{} does not serve: {last}\n{}", self.name, self.log())
    }

    /// The processor time that it and its children have used so far.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the clock's ticks per second")?;
        let stats = process_stats();
        let ticks: u64 = tree(&stats, self.child.id()).iter().map(|stat| stat.cpu_ticks).sum();
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// What of its memory is resident, in KiB (proc(5), `VmRSS`).
    pub(crate) fn resident_kib(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()).context(path)?;
        Ok(number.parse()?)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A parent that is killed leaves its children behind: it is asked first (nginx takes its
        // workers along), and then whoever is left of the family is killed.
        let family = tree(&process_stats(), self.child.id());
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), Signal::SIGINT);
            let start = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < STOP {
                std::thread::sleep(TICK);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let left = process_stats();
        for member in family.iter().filter(|member| left.iter().any(|stat| stat.same(member))) {
            signal(member.pid, Signal::SIGKILL);
        }
    }
}

/// A command that runs on `core` only, if one is named.
pub(crate) fn pinned(program: &Path, core: Option<usize>) -> Command {
    match core {
        Some(core) => {
            // It becomes the program: same process, same pid.
            let mut command = Command::new("taskset");
            command.arg("-c").arg(core.to_string()).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// An address on loopback that nobody listens on.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // It may be gone by now, which is what is wanted.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// What `/proc/PID/stat` tells of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    /// Time in user and kernel mode, of all its threads, in clock ticks.
    cpu_ticks: u64,
    /// When it began, in clock ticks: with the pid it names one process for ever.
    start: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        let pid = text.split(' ').next()?.parse().ok()?;
        // The second field is the name in brackets, and may hold anything.
        let fields: Vec<_> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        // Field n of proc(5) is at n - 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        if matches!(*fields.first()?, "Z" | "X") {
            // It has ended, and its parent has not taken notice yet.
            return None;
        }
        Some(Self {
            pid,
            parent: u32::try_from(number(4)?).ok()?,
            cpu_ticks: number(14)? + number(15)?,
            start: number(22)?,
        })
    }

    fn same(&self, other: &Self) -> bool {
        self.pid == other.pid && self.start == other.start
    }
}

fn process_stats() -> Vec<Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| Stat::parse(&std::fs::read_to_string(entry.path().join("stat")).ok()?))
        .collect()
}

/// A process and all its descendants.
fn tree(stats: &[Stat], root: u32) -> Vec<Stat> {
    let mut family: Vec<_> = stats.iter().filter(|stat| stat.pid == root).cloned().collect();
    let mut at = 0;
    while let Some(parent) = family.get(at).map(|stat| stat.pid) {
        family.extend(stats.iter().filter(|stat| stat.parent == parent).cloned());
        at += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: u32, parent: u32) -> Stat {
        Stat { pid, parent, cpu_ticks: 1, start: 5 }
    }

    #[test]
    fn a_stat_line_with_an_evil_name() {
        let line =
            "4242 (a) b (c) S 17 4242 4242 0 -1 4194304 100 0 0 0 31 11 7 8 20 0 3 0 9001 12 3";
        let parsed = Stat::parse(line).unwrap();
        assert_eq!(parsed, Stat { pid: 4242, parent: 17, cpu_ticks: 42, start: 9001 });
        assert_eq!(Stat::parse(&line.replace(" S ", " Z ")), None);
        assert_eq!(Stat::parse("4242 (a) S 17"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_family_is_found_whole() {
        let stats =
            [stat(1, 0), stat(30, 20), stat(20, 10), stat(10, 1), stat(21, 10), stat(99, 1)];
        let mut family: Vec<_> = tree(&stats, 10).iter().map(|stat| stat.pid).collect();
        family.sort_unstable();
        assert_eq!(family, [10, 20, 21, 30]);
        assert!(tree(&stats, 7).is_empty());
    }

    #[test]
    fn a_dropped_server_takes_its_children_along() {
        let dir = tempfile::tempdir().unwrap();
        let script = "sleep 600 & echo $! > pids; exec sleep 601"
            .replace("pids", dir.path().join("pids").to_str().unwrap());
        let args = ["-c".to_owned(), script];
        let server = Server::start("sh", Path::new("/bin/sh"), &args, None, dir.path()).unwrap();
        let pid = server.child.id();
        let start = Instant::now();
        while tree(&process_stats(), pid).len() < 2 {
            assert!(start.elapsed() < START, "the child starts");
            std::thread::sleep(TICK);
        }
        assert!(server.cpu_time().is_ok());
        let family = tree(&process_stats(), pid);
        drop(server);
        let start = Instant::now();
        let left = || process_stats().iter().any(|s| family.iter().any(|member| member.same(s)));
        while left() {
            assert!(start.elapsed() < START, "the family is gone");
            std::thread::sleep(TICK);
        }
    }
}
