//! QEMU's command line. Machine, CPU and devices must be the same at every start of a guest, or its
//! device state is not accepted.

use std::path::{Path, PathBuf};

use rouse_protocol::app::AppId;
use rouse_protocol::control::PORT_NAME;

use crate::config::MachineConfig;
use crate::vmm::Life;

/// What a boot is of.
pub(super) struct Guest<'a> {
    pub(super) machine: &'a MachineConfig,
    pub(super) app: &'a AppId,
    pub(super) memory: &'a Path,
    pub(super) disk: Option<&'a Path>,
}

impl<'a> From<&'a Life> for Guest<'a> {
    fn from(life: &'a Life) -> Self {
        let Life { machine, app, memory, disk, .. } = life;
        Self { machine, app, memory, disk: disk.as_deref() }
    }
}

/// The id of the memory object. It is also the name of the RAM in the device state.
pub(super) const MEMORY_ID: &str = "ram0";

/// The name of the disk's block node.
pub(super) const DISK_ID: &str = "disk0";

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// The CPU, through `/dev/kvm`.
    Kvm,
    /// QEMU's translator. Runs anywhere, some ten times slower.
    Tcg,
}

impl Accelerator {
    /// The CPU that the guest sees, in words that tell this host's from another's.
    pub(super) fn guest_cpu(self) -> String {
        match self {
            Self::Tcg => self.cpu().to_owned(),
            Self::Kvm => {
                let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
                host_cpu(&cpuinfo)
            }
        }
    }

    /// The host's kernel, where the device state has parts of it.
    pub(super) fn kernel(self) -> String {
        match self {
            Self::Tcg => "any".to_owned(),
            Self::Kvm => rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }

    /// The word on the command line and in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// The CPU model. Under TCG a fixed one, so that an image depends on no host.
    pub fn cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            // `arat`: the timer of the local APIC goes on in deep idle; with a reliable TSC that is
            // what the kernel needs to stop its tick when nothing runs. `rdrand`: without it nothing
            // feeds the kernel's pool at boot, and whoever asks for randomness waits for ever.
            Self::Tcg => "qemu64,+arat,+rdrand",
        }
    }
}

/// What a pre-started VMM is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// RAM in MiB.
    pub memory_mib: u32,
    /// vCPUs.
    pub vcpus: u8,
    /// The guest port that visitors reach.
    pub port: u16,
    /// The guest may open connections.
    pub outbound: bool,
    /// The guest has a disk.
    pub disk: bool,
    /// What runs it.
    pub accelerator: Accelerator,
}

impl Shape {
    pub(super) fn of(machine: &MachineConfig, accelerator: Accelerator) -> Self {
        Self {
            memory_mib: machine.memory_mib,
            vcpus: machine.vcpus,
            port: machine.port,
            outbound: machine.outbound,
            disk: machine.disk.is_some(),
            accelerator,
        }
    }

    /// RAM in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }
}

/// The socket for QMP in a VMM's directory.
pub(super) fn qmp_socket(runtime: &Path) -> PathBuf {
    runtime.join("qmp.sock")
}

/// The socket for the agent's control channel in a VMM's directory.
pub(super) fn agent_socket(runtime: &Path) -> PathBuf {
    runtime.join("agent.sock")
}

/// The part of the command line that a boot and a restore share.
pub(super) fn common(shape: &Shape, runtime: &Path) -> Vec<String> {
    let accelerator = shape.accelerator.as_str();
    let mut args = Vec::new();
    let mut push = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    push("-cpu", shape.accelerator.cpu().to_owned());
    push("-m", format!("{}M", shape.memory_mib));
    push("-smp", shape.vcpus.to_string());
    // The console is kept in a ring: a guest that prints without end costs no disk.
    push("-chardev", "ringbuf,id=console,size=65536".to_owned());
    push("-serial", "chardev:console".to_owned());
    // Port 0: the system picks one; `info usernet` says which. Unrestricted, the guest would reach
    // whatever listens on this host's loopback, at 10.0.2.2.
    let restrict = if shape.outbound { "off" } else { "on" };
    let port = shape.port;
    push(
        "-netdev",
        format!("user,id=net0,restrict={restrict},hostfwd=tcp:127.0.0.1:0-10.0.2.15:{port}"),
    );
    push("-device", "virtio-net-device,netdev=net0".to_owned());
    push(
        "-chardev",
        format!("socket,id=agent,server=on,wait=off,path={}", escape(&agent_socket(runtime))),
    );
    push("-device", "virtio-serial-device".to_owned());
    push("-device", format!("virtserialport,chardev=agent,name={PORT_NAME}"));
    if shape.disk {
        // The drive comes with the life: see `disk`. When it is full, the guest stops and asks again;
        // every other error is the guest's to see.
        push("-device", format!("virtio-blk-device,drive={DISK_ID},rerror=report,werror=enospc"));
    }
    push("-qmp", format!("unix:{},server=on,wait=off", escape(&qmp_socket(runtime))));
    push("-accel", accelerator.to_owned());
    args.extend(["-nodefaults", "-no-user-config", "-nographic", "-no-reboot"].map(str::to_owned));
    args
}

/// The machine. The interrupt and timer chips are named since their defaults differ by accelerator.
pub(super) fn machine(memory: Option<&str>) -> [String; 2] {
    let memory = memory.map(|id| format!(",memory-backend={id}")).unwrap_or_default();
    ["-M".to_owned(), format!("microvm,acpi=on,rtc=on,pit=on,pic=on{memory}")]
}

/// What a boot adds: the memory file, the kernel and its words.
pub(super) fn boot(shape: &Shape, life: Guest<'_>, tsc_khz: Option<u64>) -> Vec<String> {
    let Guest { machine: machine_config, app, memory, disk } = life;
    let mut args = machine(Some(MEMORY_ID)).to_vec();
    let mut push = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    push(
        "-object",
        format!(
            "memory-backend-file,id={MEMORY_ID},size={},share=on,mem-path={}",
            shape.memory_bytes(),
            escape(memory)
        ),
    );
    if let Some(disk) = disk {
        push("-blockdev", disk_node(disk));
    }
    push("-kernel", machine_config.kernel.display().to_string());
    if let Some(initrd) = &machine_config.initrd {
        push("-initrd", initrd.display().to_string());
    }
    push("-append", kernel_command_line(shape, machine_config, app, tsc_khz));
    args.push("-S".to_owned());
    args
}

/// The disk's block node, as JSON. Its file is locked by QEMU: no second one opens it. What the guest
/// discards is given back.
pub(super) fn disk_node(disk: &Path) -> String {
    serde_json::json!({
        "driver": "raw",
        "node-name": DISK_ID,
        "discard": "unmap",
        "file": {
            "driver": "file",
            "filename": disk.display().to_string(),
            "locking": "on",
            "discard": "unmap",
        },
    })
    .to_string()
}

/// `tsc_early_khz` and the two after it keep a boot from hanging on a busy host, where the kernel
/// can't calibrate its clock against the emulated timer; `quiet` because each byte of the
/// console is an exit; without the crypto self-tests a boot is 0.3 s shorter under TCG.
fn kernel_command_line(
    shape: &Shape,
    machine: &MachineConfig,
    app: &AppId,
    tsc_khz: Option<u64>,
) -> String {
    let mut words = vec!["console=ttyS0".to_owned(), "quiet".to_owned(), "panic=-1".to_owned()];
    if let (Accelerator::Tcg, Some(khz)) = (shape.accelerator, tsc_khz) {
        words.push(format!("tsc_early_khz={khz}"));
        // Without the watchdog over it, and so without a tick of 250 Hz in an idle guest.
        words.push("tsc=reliable".to_owned());
    }
    words.extend(["no_timer_check", "lpj=2000000", "cryptomgr.notests"].map(str::to_owned));
    words.push(format!("rouse.app={app}"));
    words.push(format!("rouse.port={}", machine.port));
    words.push(format!("rouse.gate={}", machine.gate_path));
    if shape.disk {
        words.push("rouse.disk=/dev/vda".to_owned());
    }
    if !machine.cmdline.is_empty() {
        words.push(machine.cmdline.clone());
    }
    words.join(" ")
}

/// The QMP socket that a word of [`common`] names.
pub(super) fn qmp_socket_of(word: &str) -> Option<PathBuf> {
    let path = word.strip_prefix("unix:")?.strip_suffix(",server=on,wait=off")?;
    Some(path.replace(",,", ",").into())
}

/// A comma ends a value in QEMU's options; doubled it is a comma.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Vendor, family, model and stepping of the host's CPU, and a hash of its features.
fn host_cpu(cpuinfo: &str) -> String {
    let value = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.split(':').next().is_some_and(|n| n.trim() == name));
        line.and_then(|l| l.split_once(':')).map_or("?", |(_, value)| value.trim())
    };
    let features = blake3::hash(value("flags").as_bytes()).to_hex();
    format!(
        "host {} {}/{}/{} {}",
        value("vendor_id"),
        value("cpu family"),
        value("model"),
        value("stepping"),
        &features[..16]
    )
}

/// The host's TSC frequency in kHz, as `/proc/cpuinfo` gives the clock rate.
pub(super) fn host_tsc_khz(cpuinfo: &str) -> Option<u64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
    let mhz: f64 = line.split_once(':')?.1.trim().parse().ok()?;
    // 100 MHz to 100 GHz: anything else is no clock rate.
    ((100.0..100_000.0).contains(&mhz)).then_some((mhz * 1000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tsc_rate_is_read() {
        assert_eq!(host_tsc_khz("processor\t: 0\ncpu MHz\t\t: 2299.998\n"), Some(2_299_998));
        for bad in ["", "cpu MHz\t: x", "cpu MHz\t: 0.000", "cpu MHz : NaN", "cpu MHz : inf"] {
            assert_eq!(host_tsc_khz(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_guest_is_cut_off_unless_it_is_let_out() {
        let netdev = |outbound| {
            let accelerator = Accelerator::Tcg;
            let disk = false;
            let shape = Shape { memory_mib: 256, vcpus: 1, port: 80, outbound, disk, accelerator };
            let args = common(&shape, Path::new("/run/vmm/0"));
            args.into_iter().find(|a| a.starts_with("user,")).unwrap()
        };
        assert!(netdev(false).contains("restrict=on,"));
        assert!(netdev(true).contains("restrict=off,"));
    }

    #[test]
    fn a_host_cpu_is_told_from_another() {
        let intel = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: X\n\
                     stepping\t: 7\nflags\t\t: fpu vme\n";
        let this = host_cpu(intel);
        assert!(this.starts_with("host GenuineIntel 6/85/7 "), "{this}");
        assert_ne!(this, host_cpu(&intel.replace("vme", "vme avx")));
        assert_ne!(this, host_cpu(&intel.replace(": 85", ": 86")));
        assert!(host_cpu("").starts_with("host ? ?/?/? "));
    }

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        assert_eq!(escape(Path::new("/a,b/c")), "/a,,b/c");
        let word = "unix:/a,,b/c/qmp.sock,server=on,wait=off";
        assert_eq!(qmp_socket_of(word), Some("/a,b/c/qmp.sock".into()));
        assert_eq!(qmp_socket_of("tcp:x"), None);
    }
}
