//! What is refused, by which name, and what is left after it?

use super::*;

/// An image was refused: a cold boot has the same disk, and the operator what was refused.
fn boots_with_the_same_disk(place: &Place, directory: &Path, context: &str) {
    let mut kept = vec![MANIFEST, MEMORY, MAP, STATE];
    kept.retain(|name| directory.join(name).exists());
    let disk = directory.join(DISK);
    let (was, bytes) = (inode(&disk), fs::read(&disk).unwrap());

    let live = place.boot();
    let disk = live.disk().unwrap();
    assert_eq!(inode(&disk), was, "{context}: another disk");
    assert!(fs::read(&disk).unwrap() == bytes, "{context}: the disk has changed");
    assert_eq!(names(&place.path(REFUSED)), kept, "{context}");
    assert_eq!(names(live.path()), [DISK, DISK_ID, MEMORY], "{context}");
    let memory = fs::read(live.memory()).unwrap();
    assert_eq!(memory.len() as u64, place.machine.memory_bytes(), "{context}");
    assert!(memory.iter().all(|&byte| byte == 0), "{context}: old memory beside a cold boot");
    assert!(matches!(place.consume(), Err(ImageRefusal::None)), "{context}");
}

#[test]
fn what_does_not_fit_here_is_refused_by_name_and_not_spent() {
    type Spoil = (&'static str, fn(&mut MachineConfig, &mut VmmIdentity));
    let spoils: [Spoil; 11] = [
        ("VMM", |_, v| v.kind = "firecracker".into()),
        ("VMM version", |_, v| v.version = "10.0".into()),
        ("accelerator", |_, v| v.accelerator = "kvm".into()),
        ("CPU", |_, v| v.cpu = "host".into()),
        ("kernel", |_, v| v.kernel = "6.1".into()),
        ("memory size", |m, _| m.memory_mib = 8),
        ("vCPU count", |m, _| m.vcpus = 2),
        ("machine", |m, _| m.port = 80),
        ("machine", |m, _| m.kernel = "/dev/null".into()),
        ("machine", |m, _| m.gate_path = "/gate".into()),
        ("machine", |m, _| m.disk = None),
    ];
    for (reason, spoil) in spoils {
        let place = Place::new();
        place.sleep_once();
        let (mut machine, mut vmm) = (place.machine.clone(), identity());
        spoil(&mut machine, &mut vmm);
        let refusal = place.dir.consume(&machine, &vmm).unwrap_err();
        assert!(matches!(refusal, ImageRefusal::Mismatch { .. }), "{refusal}");
        assert_eq!(refusal.reason(), reason, "{refusal}");
        let live = place.consume().unwrap();
        place.dir.put_back(live).unwrap();
        boots_with_the_same_disk(&place, &place.path("gen-1"), reason);
    }
}

#[test]
fn what_is_not_this_generations_is_refused_by_name() {
    type Spoil = (&'static str, fn(&Path));
    let spoils: [Spoil; 9] = [
        ("format", |p| edit_manifest(p, |m| m["format"] = 1.into())),
        ("app", |p| edit_manifest(p, |m| m["app"] = "other".into())),
        ("generation", |p| edit_manifest(p, |m| m["generation"] = 7.into())),
        ("disk id", |p| {
            let id = DiskId { id: "00".repeat(16) };
            fs::write(p.join(DISK_ID), serde_json::to_vec(&id).unwrap()).unwrap();
        }),
        ("disk size", |p| {
            let disk = OpenOptions::new().write(true).open(p.join(DISK)).unwrap();
            disk.set_len(DISK_BYTES as u64 + 512).unwrap();
        }),
        ("disk's last write", |p| write(&p.join(DISK), 200_000, b"elsewhere")),
        ("disk's last write", |p| set_written(&p.join(DISK), 999_999_999)),
        ("disk's begin", |p| {
            let when = fs::metadata(p.join(DISK)).unwrap().modified().unwrap();
            write(&p.join(DISK), 1080, b"superblock");
            let disk = OpenOptions::new().write(true).open(p.join(DISK)).unwrap();
            disk.set_modified(when).unwrap();
        }),
        ("disk", |p| edit_manifest(p, |m| drop(m.as_object_mut().unwrap().remove("disk")))),
    ];
    for (reason, spoil) in spoils {
        let place = Place::new();
        place.sleep_once();
        spoil(&place.path("gen-1"));
        let refusal = place.consume().unwrap_err();
        assert!(matches!(refusal, ImageRefusal::Mismatch { .. }), "{refusal}");
        assert_eq!(refusal.reason(), reason, "{refusal}");
        boots_with_the_same_disk(&place, &place.path("gen-1"), reason);
    }
}

#[test]
fn a_generation_by_another_name_is_refused() {
    let place = Place::new();
    place.sleep_once();
    fs::rename(place.path("gen-1"), place.path("gen-5")).unwrap();
    assert_eq!(place.consume().unwrap_err().reason(), "generation");
    boots_with_the_same_disk(&place, &place.path("gen-5"), "gen-5");
}

#[test]
fn what_is_damaged_is_refused_by_name() {
    type Spoil = (&'static str, &'static str, fn(&Path));
    let spoils: [Spoil; 13] = [
        ("read", STATE, |p| fs::remove_file(p.join(STATE)).unwrap()),
        ("damaged", STATE, |p| fs::write(p.join(STATE), b"device stale").unwrap()),
        ("damaged", STATE, |p| fs::write(p.join(STATE), b"device").unwrap()),
        ("read", MAP, |p| fs::remove_file(p.join(MAP)).unwrap()),
        ("damaged", MAP, |p| fs::write(p.join(MAP), b"map").unwrap()),
        ("damaged", MAP, |p| {
            // A map that is none, and vouched for.
            fs::write(p.join(MAP), b"map").unwrap();
            let hash = blake3::hash(b"map").to_hex().to_string();
            edit_manifest(p, |m| m["map_blake3"] = hash.into());
        }),
        ("damaged", MAP, |p| edit_manifest(p, |m| m["image_id"] = "00".repeat(16).into())),
        ("read", MEMORY, |p| fs::remove_file(p.join(MEMORY)).unwrap()),
        ("damaged", MEMORY, |p| File::create(p.join(MEMORY)).unwrap().set_len(PAGE).unwrap()),
        ("manifest", MANIFEST, |p| fs::write(p.join(MANIFEST), b"{}").unwrap()),
        ("manifest", MANIFEST, |p| {
            let text = fs::read(p.join(MANIFEST)).unwrap();
            fs::write(p.join(MANIFEST), &text[..text.len() / 2]).unwrap();
        }),
        ("manifest", MANIFEST, |p| edit_manifest(p, |m| m["added"] = 1.into())),
        ("read", MANIFEST, |p| fs::write(p.join(MANIFEST), vec![b' '; 100_000]).unwrap()),
    ];
    for (i, (reason, part, spoil)) in spoils.into_iter().enumerate() {
        let place = Place::new();
        place.sleep_once();
        spoil(&place.path("gen-1"));
        let refusal = place.consume().unwrap_err();
        assert_eq!(refusal.reason(), reason, "spoil {i}: {refusal}");
        assert!(refusal.to_string().contains(part), "spoil {i}: {refusal}");
        boots_with_the_same_disk(&place, &place.path("gen-1"), &format!("spoil {i}"));
    }
}

#[test]
fn a_generation_without_a_manifest_is_no_image_and_has_the_disk() {
    let place = Place::new();
    place.sleep_once();
    fs::remove_file(place.path("gen-1").join(MANIFEST)).unwrap();
    let refusal = place.consume().unwrap_err();
    assert_eq!(refusal.reason(), "read", "{refusal}");
    let disk = inode(&place.path("gen-1").join(DISK));
    let live = place.boot();
    assert_eq!(inode(&live.disk().unwrap()), disk);
    assert_eq!(read(&live.disk().unwrap(), 100_000, 4), b"disk");
}

#[test]
fn without_the_disk_that_its_memory_knows_an_image_is_refused() {
    for gone in [&[DISK][..], &[DISK_ID], &[DISK, DISK_ID]] {
        let place = Place::new();
        place.sleep_once();
        for name in gone {
            fs::remove_file(place.path("gen-1").join(name)).unwrap();
        }
        assert_eq!(place.consume().unwrap_err().reason(), "read", "without {gone:?}");
        let booted = place.dir.fresh(&place.machine);
        match gone {
            [DISK] => assert!(matches!(booted, Err(FreshError::Disk(DiskError::Missing(_))))),
            [DISK_ID] => assert!(matches!(booted, Err(FreshError::Disk(DiskError::Nameless(_))))),
            _ => assert!(booted.unwrap().disk().is_some(), "removed both, so as to begin anew"),
        }
    }
}

#[test]
fn a_disk_that_came_to_an_image_without_one_is_not_used() {
    let place = Place::without_disk();
    place.sleep_once();
    fs::write(place.path("gen-1").join(DISK), b"a disk").unwrap();
    assert_eq!(place.consume().unwrap_err().reason(), "disk");
}

#[test]
fn what_was_refused_before_makes_way() {
    let place = Place::new();
    for n in 1..=2 {
        let live = place.boot();
        write(&live.memory(), 0, format!("life {n}").as_bytes());
        let generation = place.sleep(live).generation;
        let state = place.path(&generation_name(generation)).join(STATE);
        fs::write(state, b"damaged").unwrap();
        assert_eq!(place.consume().unwrap_err().reason(), "damaged");
        drop(place.boot());
        assert_eq!(read(&place.path(REFUSED).join(MEMORY), 0, 6), format!("life {n}").as_bytes());
    }
}
