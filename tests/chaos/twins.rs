//! Never two VMs of one app: two processes with the same app's memory or disk open.

use std::path::{Path, PathBuf};

use rouse_tests::{Vm, vmms_of};

/// The files of an app of which a VMM may have either only alone.
const ALONE: [&str; 2] = ["memory.img", "disk.img"];

/// Two VMMs of one app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Twins {
    /// The app.
    pub(crate) app: String,
    /// Their pids.
    pub(crate) pids: [i32; 2],
}

/// The first two VMMs in `root` that run one of the apps below `apps`. One process is seen after
/// another, so one that ended before its successor began could be taken for its twin: what is
/// found is looked at again, in the order that proves it.
pub(crate) fn find(root: &Path, apps: &Path) -> Option<Twins> {
    let held: Vec<_> = vmms_of(root).into_iter().map(|vm| (vm, apps_of(&vm, apps))).collect();
    let twins = pair(&held)?;
    let [first, second] = twins.pids.map(|pid| held.iter().find(|(vm, _)| vm.pid == pid));
    let (first, second) = (first?.0, second?.0);
    // The one had it, then the other had it, then the one still has it.
    let still = [first, second, first].iter().all(|vm| apps_of(vm, apps).contains(&twins.app));
    still.then_some(twins)
}

fn pair(held: &[(Vm, Vec<String>)]) -> Option<Twins> {
    held.iter().enumerate().find_map(|(at, (vm, apps))| {
        held[at + 1..].iter().find_map(|(other, others)| {
            let app = apps.iter().find(|app| others.contains(app))?;
            Some(Twins { app: app.clone(), pids: [vm.pid, other.pid] })
        })
    })
}

/// The apps whose memory or disk a VMM has.
fn apps_of(vm: &Vm, apps: &Path) -> Vec<String> {
    named(&vm.open_below(apps), apps)
}

fn named(files: &[PathBuf], apps: &Path) -> Vec<String> {
    let app = |file: &PathBuf| {
        // A file that was removed meanwhile is shown as `NAME (deleted)`.
        let name = file.file_name()?.to_str()?;
        ALONE.contains(&name.strip_suffix(" (deleted)").unwrap_or(name)).then_some(())?;
        let below = file.strip_prefix(apps).ok()?;
        Some(below.components().next()?.as_os_str().to_str()?.to_owned())
    };
    let mut names: Vec<String> = files.iter().filter_map(app).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_is_known_by_its_memory_and_disk() {
        let files = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(PathBuf::from).collect() };
        for (open, apps) in [
            (&["/s/apps/a/live/memory.img", "/s/apps/a/live/disk.img"][..], &["a"][..]),
            (&["/s/apps/a/gen-3/disk.img (deleted)"], &["a"]),
            (&["/s/apps/a/app.lock", "/s/vmm/1/qmp.sock", "/s/vmm/1/memory.img"], &[]),
            (&["/s/apps/b/live/disk.img", "/s/apps/a/live/memory.img"], &["a", "b"]),
            (&[], &[]),
        ] {
            assert_eq!(named(&files(open), Path::new("/s/apps")), apps, "{open:?}");
        }
    }

    #[test]
    fn twins_are_two_with_one_app() {
        let vm = |pid: i32, apps: &[&str]| {
            (Vm { pid, start_ticks: 1 }, apps.iter().map(|app| (*app).to_owned()).collect())
        };
        let alone = [vm(1, &["a"]), vm(2, &["b"]), vm(3, &[])];
        assert_eq!(pair(&alone), None);
        let twins = [vm(1, &["a"]), vm(2, &[]), vm(3, &["b", "a"])];
        assert_eq!(pair(&twins), Some(Twins { app: "a".into(), pids: [1, 3] }));
    }
}
