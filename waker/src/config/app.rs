//! One app's file in `apps.d`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rouse_conf::check::{base, between, seconds, word};
use rouse_conf::{Mistake, Refused, Table};
use rouse_protocol::MAX_LINE;
use rouse_protocol::app::AppId;
use rouse_protocol::route::{self, Rule};
use rouse_protocol::signature::DEFAULT_GATE_PATH;
use rouse_protocol::watch::Policy;

use crate::hook::Hook;

/// An app as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppConfig {
    /// Its id.
    pub id: AppId,
    /// Which requests are its own; at least one rule.
    pub rules: Vec<Rule>,
    /// How its visitors are treated.
    pub policy: Policy,
    /// Its virtual machine.
    pub machine: Arc<MachineConfig>,
    /// How long it stays paused, its RAM kept, before it becomes an image; zero: not at all.
    pub paused: Duration,
    /// How it comes back when its VM has ended without a sleep.
    pub after_crash: AfterCrash,
    /// What its guest is told after each wake.
    pub env: BTreeMap<String, String>,
    /// What is checked after each wake.
    pub patch: PatchConfig,
    /// The operator's program that is run when the app is parked.
    pub on_park: Option<Hook>,
}

/// How an app comes back when its VM has ended without a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCrash {
    /// It boots from its disk as that is. Nothing that was flushed is lost, its memory is.
    Boot,
    /// Memory *and* disk of its last sleep, where the file system can keep both, else a boot. What was
    /// written to the disk since is set aside.
    Rollback,
}

/// `[patch]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchConfig {
    /// An SSH server has to greet on this port of the guest's loopback.
    pub ssh_port: Option<u16>,
    /// A program that has to end well in the guest.
    pub command: Option<Vec<String>>,
    /// How long each patch may take.
    pub timeout: Duration,
}

/// `[disk]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its size when it is made, in MiB; a larger template stays as large as it is.
    pub size_mib: u32,
    /// What it is a copy of when it is made; none: an empty ext4.
    pub template: Option<PathBuf>,
    /// What makes an empty ext4.
    pub mkfs: PathBuf,
}

impl DiskConfig {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.size_mib) << 20
    }
}

/// An app's virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineConfig {
    /// RAM in MiB.
    pub memory_mib: u32,
    /// vCPUs.
    pub vcpus: u8,
    /// The kernel.
    pub kernel: PathBuf,
    /// Its initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Appended to the kernel's command line.
    pub cmdline: String,
    /// The guest port that visitors reach.
    pub port: u16,
    /// The guest runs our agent, which fronts that port.
    pub agent: bool,
    /// The guest may open connections: to the world, and also to this host's loopback.
    pub outbound: bool,
    /// What the gate asks the agent for.
    pub gate_path: String,
    /// Its disk; none: it has none.
    pub disk: Option<DiskConfig>,
}

impl MachineConfig {
    /// RAM in bytes.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }

    /// Changes whenever a guest restored from an image would not be the one that is configured:
    /// another kernel or initrd (by path, size and time of change), command line, port, agent or
    /// gate path. Hexadecimal.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for file in std::iter::once(&self.kernel).chain(&self.initrd) {
            part(file.as_os_str().as_encoded_bytes());
            // A file that is not there fails a cold boot, not a restore.
            let changed = std::fs::metadata(file).map(|m| (m.len(), m.mtime(), m.mtime_nsec()));
            part(format!("{:?}", changed.ok()).as_bytes());
        }
        part(self.cmdline.as_bytes());
        part(self.gate_path.as_bytes());
        part(format!("{} {}", self.port, self.agent).as_bytes());
        // What the guest sees of a disk is that it has one; which, the image says itself.
        part(&[u8::from(self.disk.is_some())]);
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// The files that it needs and that can't be opened, with why. A file may come later than its
    /// app's configuration, so this is not asked when that is read.
    pub fn unreadable(&self) -> Vec<(PathBuf, io::Error)> {
        let template = self.disk.as_ref().and_then(|disk| disk.template.as_ref());
        let files = std::iter::once(&self.kernel).chain(&self.initrd).chain(template);
        files.filter_map(|f| std::fs::File::open(f).err().map(|e| (f.clone(), e))).collect()
    }
}

/// What a directory of apps holds: the good ones, whatever the bad ones say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppFiles {
    /// The apps, by id.
    pub apps: HashMap<AppId, AppConfig>,
    /// The files that were refused.
    pub refused: Vec<Refused>,
}

/// Reads every `*.toml` in `directory`, in the order of their names. Of two files that claim one id
/// or the very same requests the second is refused.
pub fn read_apps(directory: &Path) -> io::Result<AppFiles> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|e| e == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut files = AppFiles::default();
    let mut owners: HashMap<Rule, PathBuf> = HashMap::new();
    for path in paths {
        let base = base(&path);
        let read = rouse_conf::read(&path, |t| app(t, &base)).and_then(|app| {
            let mut mistakes = Vec::new();
            if files.apps.contains_key(&app.id) {
                mistakes.push(format!("another file has an app `{}` already", app.id));
            }
            for rule in &app.rules {
                if let Some(owner) = owners.get(rule) {
                    mistakes.push(format!("host `{rule}` is taken by {}", owner.display()));
                }
            }
            if mistakes.is_empty() {
                return Ok(app);
            }
            let mistake = |message| Mistake { line: None, message };
            Err(Refused {
                path: path.clone(),
                mistakes: mistakes.into_iter().map(mistake).collect(),
            })
        });
        match read {
            Ok(app) => {
                owners.extend(app.rules.iter().map(|rule| (rule.clone(), path.clone())));
                files.apps.insert(app.id.clone(), app);
            }
            Err(refused) => files.refused.push(refused),
        }
    }
    Ok(files)
}

fn app(file: &mut Table<'_>, base: &Path) -> Option<AppConfig> {
    let id = file.required::<AppId>("id");
    let rules = route::read(file);
    let (gate_path, hold_deadline, concurrent_requests) = file.table("gate", |t| {
        let path = t.optional_as("path", DEFAULT_GATE_PATH.to_owned(), gate_path);
        let deadline = Duration::from_secs(25);
        let deadline = t.optional_as("hold_deadline_seconds", deadline, seconds(1, 3600));
        (path, deadline, t.optional_as("concurrent_requests", 0, between(0, 1_000_000)))
    });
    let disk = file.table("disk", |t| disk(t, base));
    let machine = file.table("vm", |t| {
        let memory_mib = t.optional_as("memory_mib", 256, between(32, 1 << 20));
        let vcpus = t.optional_as("vcpus", 1, between(1, 64));
        let kernel = t.required_as("kernel", |path: PathBuf| Ok::<_, String>(base.join(path)));
        let initrd = t.optional::<Option<PathBuf>>("initrd", None).map(|path| base.join(path));
        let cmdline = t.optional_as("cmdline", String::new(), kernel_words);
        let port = t.optional_as("port", 8080, between(1, u16::MAX));
        let agent = t.optional("agent", true);
        let outbound = t.optional("outbound", false);
        let gate_path = gate_path.clone();
        kernel.map(|kernel| MachineConfig {
            memory_mib,
            vcpus,
            kernel,
            initrd,
            cmdline,
            port,
            agent,
            outbound,
            gate_path,
            disk,
        })
    });
    let (idle, paused, after_crash) = file.table("sleep", |t| {
        let long = 30 * 24 * 3600;
        let crash = [("boot", AfterCrash::Boot), ("rollback", AfterCrash::Rollback)];
        (
            t.optional_as("idle_seconds", Duration::from_secs(300), seconds(0, long)),
            t.optional_as("paused_seconds", Duration::from_secs(60), seconds(0, long)),
            t.optional_as("after_crash", AfterCrash::Boot, word(&crash)),
        )
    });
    let env = file.optional_as("env", BTreeMap::new(), env);
    let patch = file.table("patch", |t| PatchConfig {
        ssh_port: t.optional_as("ssh_port", None, |port: u16| match port {
            0 => Err("is between 1 and 65535"),
            port => Ok(Some(port)),
        }),
        command: t.optional_as("command", None, |argv: Vec<String>| argv_of(argv).map(Some)),
        timeout: t.optional_as("timeout_seconds", Duration::from_secs(10), seconds(1, 600)),
    });
    let on_park = file.table("park", |t| {
        let timeout =
            t.optional_as("hook_timeout_seconds", Duration::from_secs(60), seconds(1, 3600));
        let hook = |argv| Hook::new(argv, timeout).map(Some);
        t.optional_as("hook", None, hook)
    });
    let policies = rouse_policy::config::read(file, base);
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    Some(AppConfig {
        id: id?,
        rules: rules?,
        policy: Policy {
            idle_ms: ms(idle),
            hold_deadline_ms: ms(hold_deadline),
            gate_path,
            concurrent_requests,
            policies,
        },
        machine: Arc::new(machine?),
        paused,
        after_crash,
        env,
        patch,
        on_park,
    })
}

fn disk(t: &mut Table<'_>, base: &Path) -> Option<DiskConfig> {
    // 4 MiB is about the least that an ext4 with a journal is made in.
    let size = t.optional_as("size_mib", None, |mib: u32| match mib {
        4..=16_777_216 => Ok(Some(mib)),
        _ => Err("is between 4 and 16777216 (16 TiB)"),
    });
    let template = t.optional::<Option<PathBuf>>("template", None).map(|path| base.join(path));
    let mkfs = t.optional("mkfs", PathBuf::from("mkfs.ext4"));
    let size_mib = size.or_else(|| template.is_some().then_some(0))?;
    Some(DiskConfig { size_mib, template, mkfs })
}

/// Names as a shell takes them, and values that fit a message to the agent.
fn env(vars: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    for (name, value) in &vars {
        let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !first || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(format!("`{name}` is no name of a variable: letters, digits and `_`"));
        }
        if value.contains(['\0', '\n']) {
            return Err(format!("`{name}` has a value of more than one line"));
        }
    }
    let all: usize = vars.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    if all > MAX_LINE / 4 {
        Err(format!("is longer than {} bytes", MAX_LINE / 4))
    } else {
        Ok(vars)
    }
}

fn argv_of(argv: Vec<String>) -> Result<Vec<String>, &'static str> {
    let length: usize = argv.iter().map(String::len).sum();
    match argv.first() {
        Some(program) if !program.is_empty() && length <= MAX_LINE / 4 => Ok(argv),
        Some(program) if !program.is_empty() => Err("is too long"),
        _ => Err("is a program and its arguments"),
    }
}

fn gate_path(path: String) -> Result<String, &'static str> {
    let visible = path.bytes().all(|b| b.is_ascii_graphic());
    if path.starts_with('/') && visible && path.len() <= 256 {
        Ok(path)
    } else {
        Err("is a path: `/` and up to 255 visible ASCII characters")
    }
}

fn kernel_words(words: String) -> Result<String, &'static str> {
    // 2048 is COMMAND_LINE_SIZE on x86 (arch/x86/include/asm/setup.h); ours take the rest.
    if words.len() > 1536 {
        Err("is longer than 1536 characters")
    } else if words.bytes().any(|b| !(b' '..=b'~').contains(&b)) {
        Err("has characters other than visible ASCII and spaces")
    } else {
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) {
        std::fs::write(directory.join(name), text).unwrap();
    }

    #[test]
    fn a_bad_file_never_takes_the_good_ones_down() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "vmlinuz", "");
        let good = "id = 'good'\nhosts = ['A.example.', 'b.example']\n[vm]\nkernel = 'vmlinuz'\n";
        write(dir.path(), "a.toml", good);
        write(
            dir.path(),
            "b.toml",
            "id = 'BAD'\nhosts = []\n[vm]\nkernl = 'x'\nport = 0\n[gate]\npath = 'x'\n",
        );
        write(dir.path(), "c.toml", &good.replace("'good'", "'other'"));
        write(dir.path(), "d.toml", "[[[");
        write(dir.path(), ".hidden.toml", "[[[");
        write(dir.path(), "e.toml~", "[[[");

        let files = read_apps(dir.path()).unwrap();
        assert_eq!(files.apps.len(), 1);
        let app = &files.apps[&"good".parse().unwrap()];
        assert_eq!(app.rules[0].to_string(), "a.example");
        assert_eq!(app.policy.idle_ms, 300_000);
        assert_eq!(app.machine.kernel, dir.path().join("vmlinuz"));

        let said: Vec<_> = files.refused.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        for expected in [
            "b.toml:1: `id`: ",
            "b.toml:2: `hosts`: needs at least one host",
            "b.toml:3: `vm.kernel` is missing",
            "b.toml:4: unknown key `vm.kernl`; did you mean `kernel`?",
            "b.toml:5: `vm.port`: is between 1 and 65535",
            "b.toml:7: `gate.path`: is a path",
        ] {
            assert!(said[0].contains(expected), "{expected} is not in\n{}", said[0]);
        }
        assert!(said[1].contains("host `a.example` is taken by "), "{}", said[1]);
        assert!(said[2].contains("d.toml:1: "), "{}", said[2]);
    }

    const EXAMPLE: &str = include_str!("../../../conf/apps.d/hello.toml");

    #[test]
    fn the_example_shows_the_defaults_of_policies() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "hello.toml", EXAMPLE);
        let files = read_apps(dir.path()).unwrap();
        assert!(files.refused.is_empty(), "{:?}", files.refused);
        let app = &files.apps[&"hello".parse().unwrap()];
        assert_eq!(app.policy.policies, rouse_policy::Policies::default());
    }

    #[test]
    fn what_the_example_leaves_out_of_policies_is_known() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("icon.png", "x"), ("waiting.html", "<p>wait</p>")] {
            write(dir.path(), name, text);
        }
        let at = EXAMPLE.find("[wake]").unwrap();
        let policies = EXAMPLE[at..]
            .replace("\"any\"", "\"required\"")
            .replace("\"hold\"", "\"allow\"")
            .replace("favicon = false", "")
            .replace("# robots_file", "## robots_file")
            .replace("\n# ", "\n");
        write(dir.path(), "hello.toml", &format!("{}{policies}", &EXAMPLE[..at]));
        let files = read_apps(dir.path()).unwrap();
        assert!(files.refused.is_empty(), "{:?}", files.refused);
        let policies = &files.apps[&"hello".parse().unwrap()].policy.policies;
        let wake = policies.wake.as_ref().unwrap();
        assert_eq!((wake.replies.len(), wake.who.credentials.len()), (1, 2));
        assert_eq!((wake.schedule.awake.len(), wake.schedule.prewarm.len()), (1, 1));
        assert!(wake.cors.is_some() && wake.budget.is_some() && wake.per_address.is_some());
        assert!(policies.waiting.as_ref().unwrap().page.is_some());
    }

    #[test]
    fn mistakes_in_policies_come_with_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let text = "id = 'a'\nhosts = []\n[vm]\nkernel = 'k'\n[wake]\nmethods = ['get']\n\
                    [waiting]\nretry_seconds = 0\n";
        write(dir.path(), "a.toml", text);
        let said = read_apps(dir.path()).unwrap().refused[0].to_string();
        for expected in ["a.toml:2: ", "a.toml:6: `wake.methods`: ", "a.toml:8: `waiting.retry_"] {
            assert!(said.contains(expected), "{expected} is not in\n{said}");
        }
    }

    #[test]
    fn hosts_and_routes() {
        let dir = tempfile::tempdir().unwrap();
        let vm = "[vm]\nkernel = 'k'\n";
        let rules =
            "hosts = ['a.example', '*.a.example']\nroutes = [{ host = '*', path = '/a' }]\n";
        write(dir.path(), "a.toml", &format!("id = 'a'\n{rules}{vm}"));
        // Beside an app at the same host, and another that claims just what a third has.
        let beside = "[[routes]]\nhost = 'a.example'\npath = '/b'\nheaders = { x-beta = '1' }\n";
        write(dir.path(), "b.toml", &format!("id = 'b'\n{beside}{vm}"));
        write(dir.path(), "c.toml", &format!("id = 'c'\n{beside}{vm}"));
        let bad = "hosts = ['*.*.example', 'a:80']\n[[routes]]\nhost = 'a'\npath = 'b'\n";
        write(dir.path(), "d.toml", &format!("id = 'd'\n{bad}{vm}"));
        write(dir.path(), "e.toml", &format!("id = 'e'\n{vm}"));

        let files = read_apps(dir.path()).unwrap();
        let shown = |id: &str| -> Vec<_> {
            files.apps[&id.parse().unwrap()].rules.iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown("a"), ["a.example", "*.a.example", "*/a"]);
        assert_eq!(shown("b"), ["a.example/b with x-beta: 1"]);
        assert_eq!(files.apps.len(), 2);
        let said: Vec<_> = files.refused.iter().map(ToString::to_string).collect();
        assert!(said[0].contains("host `a.example/b with x-beta: 1` is taken by "), "{said:?}");
        for expected in [
            "d.toml:2: `hosts`: rule 1: a `*` is a whole host, or all of its first label",
            "; rule 2: a host is configured without a port",
            "d.toml:3: `routes`: rule 1: a path starts with `/`",
        ] {
            assert!(said[1].contains(expected), "{expected} is not in {}", said[1]);
        }
        assert!(said[2].contains("e.toml: `hosts` is missing"), "{}", said[2]);
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert!(read_apps(Path::new("/nowhere")).is_err());
    }
}
