//! An image is used once, whole or not at all, and only by what it was made with.

use std::os::unix::fs::FileExt;

use rouse_protocol::wake::Outcome;

use super::*;

const MIB: u32 = 32;

fn machine() -> MachineConfig {
    MachineConfig {
        memory_mib: MIB,
        vcpus: 1,
        kernel: "vmlinuz".into(),
        initrd: None,
        cmdline: String::new(),
        port: 8080,
        agent: true,
        outbound: false,
        gate_path: "/".into(),
    }
}

fn identity() -> VmmIdentity {
    VmmIdentity {
        kind: "qemu".into(),
        version: "7.2".into(),
        accelerator: "tcg".into(),
        cpu: "qemu64".into(),
    }
}

struct Place {
    _root: tempfile::TempDir,
    dir: AppDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = AppDir::open(root.path(), &"hello".parse().unwrap()).unwrap();
        Self { _root: root, dir }
    }

    fn record(&self, generation: Generation) -> RunRecord {
        RunRecord {
            pid: 1,
            start_ticks: 1,
            generation,
            outcome: Outcome::Cold,
            endpoint: "127.0.0.1:1".parse().unwrap(),
            runtime: "/nowhere".into(),
            identity: identity(),
            machine: machine().fingerprint(),
            memory_mib: MIB,
            vcpus: 1,
        }
    }

    /// One life with some memory, put to sleep.
    fn sleep_once(&self) -> Published {
        let live = self.dir.fresh(&machine()).unwrap();
        self.end(live)
    }

    fn end(&self, live: Live) -> Published {
        let record = self.record(self.dir.next_generation());
        self.dir.write_run_record(&record).unwrap();
        let memory = OpenOptions::new().write(true).open(live.memory()).unwrap();
        memory.write_all_at(b"memory", 5 * 4096 + 1).unwrap();
        memory.write_all_at(&[0; 8192], 1 << 20).unwrap();
        live.clear_state().unwrap();
        fs::write(live.state(), b"device state").unwrap();
        live.sync_later()().unwrap();
        self.dir.publish(live, &record).unwrap()
    }

    fn consume(&self) -> Result<Live, ImageRefusal> {
        self.dir.consume(&machine(), &identity())
    }
}

#[test]
fn a_generation_is_consumed_once_and_comes_back_as_the_next() {
    let place = Place::new();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
    for n in 1..=3 {
        let published =
            if n == 1 { place.sleep_once() } else { place.end(place.consume().unwrap()) };
        assert_eq!(published.generation, Generation(n));
        assert!(published.image_bytes < 64 * 1024, "{published:?} is not sparse");
    }
    let live = place.consume().unwrap();
    assert_eq!(fs::read(live.state()).unwrap(), b"device state");
    let mut bytes = [0; 6];
    File::open(live.memory()).unwrap().read_exact_at(&mut bytes, 5 * 4096 + 1).unwrap();
    assert_eq!(&bytes, b"memory");
    assert!(matches!(place.consume(), Err(ImageRefusal::None)), "used twice");
    assert!(!place.dir.path().join("gen-3").exists());
}

#[test]
fn the_map_tells_the_pages_of_the_image() {
    let place = Place::new();
    place.sleep_once();
    let map = Map::open(place.dir.path().join("gen-1").join(MAP)).unwrap();
    let data: Vec<_> = (0..u64::from(MIB) * 256)
        .filter(|page| map.state(*page).unwrap() == rouse_snapshot_format::PageState::Data)
        .collect();
    assert_eq!(data, [5]);
}

#[test]
fn what_does_not_fit_is_refused_with_its_reason() {
    type Spoil = (&'static str, fn(&mut MachineConfig, &mut VmmIdentity));
    let spoils: [Spoil; 9] = [
        ("VMM", |_, v| v.kind = "firecracker".into()),
        ("VMM version", |_, v| v.version = "10.0".into()),
        ("accelerator", |_, v| v.accelerator = "kvm".into()),
        ("CPU", |_, v| v.cpu = "host".into()),
        ("memory size", |m, _| m.memory_mib = 64),
        ("vCPU count", |m, _| m.vcpus = 2),
        ("machine", |m, _| m.port = 80),
        ("machine", |m, _| m.kernel = "/dev/null".into()),
        ("machine", |m, _| m.gate_path = "/gate".into()),
    ];
    for (reason, spoil) in spoils {
        let place = Place::new();
        place.sleep_once();
        let (mut machine, mut vmm) = (machine(), identity());
        spoil(&mut machine, &mut vmm);
        let refusal = place.dir.consume(&machine, &vmm).unwrap_err();
        assert_eq!(refusal.reason(), reason, "{refusal}");
        // It was not spent by that.
        place.consume().unwrap();
    }
}

#[test]
fn what_is_damaged_is_refused() {
    type Spoil = (&'static str, fn(&Path));
    let spoils: [Spoil; 8] = [
        ("read", |p| fs::remove_file(p.join(STATE)).unwrap()),
        ("damaged", |p| fs::write(p.join(STATE), b"device stale").unwrap()),
        ("damaged", |p| fs::write(p.join(STATE), b"device").unwrap()),
        ("damaged", |p| fs::write(p.join(MAP), b"map").unwrap()),
        ("damaged", |p| File::create(p.join(MEMORY)).unwrap().set_len(1).unwrap()),
        ("manifest", |p| fs::write(p.join(MANIFEST), b"{}").unwrap()),
        ("read", |p| fs::remove_file(p.join(MANIFEST)).unwrap()),
        ("read", |p| fs::write(p.join(MANIFEST), vec![b' '; 100_000]).unwrap()),
    ];
    for (i, (reason, spoil)) in spoils.into_iter().enumerate() {
        let place = Place::new();
        place.sleep_once();
        spoil(&place.dir.path().join("gen-1"));
        assert_eq!(place.consume().unwrap_err().reason(), reason, "spoil {i}");
        // What is left leads to a cold boot, and is kept for a look.
        let live = place.dir.fresh(&machine()).unwrap();
        assert!(place.dir.path().join("refused").exists());
        assert_eq!(fs::metadata(live.memory()).unwrap().len(), machine().memory_bytes());
    }
}

#[test]
fn an_image_of_another_app_is_refused() {
    let place = Place::new();
    place.sleep_once();
    let manifest = place.dir.path().join("gen-1").join(MANIFEST);
    let text = fs::read_to_string(&manifest).unwrap().replace("\"hello\"", "\"other\"");
    fs::write(&manifest, text).unwrap();
    assert_eq!(place.consume().unwrap_err().reason(), "app");
}

#[test]
fn the_lock_lives_as_long_as_any_duplicate_of_it() {
    let place = Place::new();
    place.sleep_once();
    let (found, lock) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Asleep(Some(Generation(1)))), "{found:?}");
    let vmm = lock.as_ref().unwrap().try_clone().unwrap();
    drop(lock);
    let (found, none) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Running(Some(_))) && none.is_none(), "{found:?}");
    drop(vmm);
    assert!(matches!(place.dir.look().unwrap().0, Found::Asleep(_)));
}

#[test]
fn what_a_crash_leaves_is_cleaned_up_and_numbers_go_on() {
    let place = Place::new();
    place.sleep_once();
    drop(place.consume().unwrap());
    place.dir.write_run_record(&place.record(Generation(2))).unwrap();
    // The waker and the VM die here.
    let (found, _lock) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Asleep(None)), "{found:?}");
    assert!(!place.dir.path().join(LIVE).exists());
    assert_eq!(place.dir.next_generation(), Generation(3));
}

#[test]
fn what_no_vmm_has_mapped_is_put_back() {
    let place = Place::new();
    place.sleep_once();
    let live = place.consume().unwrap();
    place.dir.put_back(live).unwrap();
    place.consume().unwrap();
}

#[test]
fn an_image_that_somebody_works_on_waits() {
    let place = Place::new();
    place.sleep_once();
    let memory = place.dir.path().join("gen-1").join(MEMORY);
    let other = lock_exclusively(&memory).unwrap().unwrap();
    assert_eq!(place.consume().unwrap_err().reason(), "busy");
    drop(other);
    place.consume().unwrap();
}

#[test]
fn a_crash_after_the_rename_loses_no_generation() {
    let place = Place::new();
    place.sleep_once();
    fs::remove_file(place.dir.path().join(CURRENT)).unwrap();
    fs::create_dir(place.dir.path().join("gen-0")).unwrap();
    let (found, _lock) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Asleep(Some(Generation(1)))), "{found:?}");
    assert_eq!(fs::read_link(place.dir.path().join(CURRENT)).unwrap(), Path::new("gen-1"));
    assert!(!place.dir.path().join("gen-0").exists());
    place.consume().unwrap();
}

#[test]
fn nobody_changes_memory_that_is_in_use() {
    let place = Place::new();
    let live = place.dir.fresh(&machine()).unwrap();
    let vmm = live.memory_lock().unwrap();
    fs::write(live.state(), b"device state").unwrap();
    let refused = place.dir.publish(live, &place.record(Generation(1))).unwrap_err();
    assert!(matches!(refused, PublishError::Sparsify(_)), "{refused}");
    drop(vmm);
}

#[test]
fn the_key_is_made_once() {
    let place = Place::new();
    let key = place.dir.key().unwrap();
    assert_eq!(place.dir.key().unwrap(), key);
    let mode = fs::metadata(place.dir.path().join("key")).unwrap().mode();
    assert_eq!(mode & 0o077, 0);
    fs::write(place.dir.path().join("key"), "no key").unwrap();
    assert!(place.dir.key().is_err());
    // Two places, two keys.
    assert_ne!(Place::new().dir.key().unwrap(), key);
}
