//! The machine: kernel, programs, permissions.

use std::io;
use std::path::Path;

use rouse_waker::config::AcceleratorChoice;

use crate::doctor::Check;

/// A busy waker holds a handful of files for each VM, and one for each proxy and operator.
const OPEN_FILES: u64 = 4096;

/// `owner`: of the state directory.
pub(in crate::doctor) fn user(own: u32, waker: Option<u32>, owner: Option<u32>) -> Check {
    match waker.or(owner) {
        Some(uid) if own != uid && own != 0 => {
            let found = format!("this is user {own}, the waker's is {uid}: permissions may differ");
            Check::warn("user", found, format!("run `sudo -u '#{uid}' rouse doctor`"))
        }
        Some(uid) => Check::ok("user", format!("this is user {own}, the waker's is {uid}")),
        None => Check::ok("user", format!("this is user {own}; the waker's is not known yet")),
    }
}

/// pidfd_open(2) is of Linux 5.3, pidfd_getfd(2) of 5.6.
pub(in crate::doctor) fn kernel(release: &io::Result<String>) -> Check {
    let release = match release {
        Ok(release) => release.trim(),
        Err(error) => {
            let found = format!("its version can't be read: {error}");
            return Check::warn("kernel", found, "mount /proc");
        }
    };
    let found = format!("Linux {release}");
    match version(release) {
        Some(version) if version < (5, 3) => {
            Check::fail("kernel", found, "take 5.3 or newer: running VMs are adopted by pidfd")
        }
        Some(version) if version < (5, 6) => {
            let todo =
                "take 5.6 or newer: without pidfd_getfd a crowd may overflow a guest's queue";
            Check::warn("kernel", found, todo)
        }
        Some(_) => Check::ok("kernel", found),
        None => Check::warn("kernel", found, "this version can't be read; 5.6 or newer is needed"),
    }
}

/// `MAJOR.MINOR` at the start of the first word that begins with a digit.
fn version(text: &str) -> Option<(u32, u32)> {
    let word =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// `opened` is what opening `/dev/kvm` said.
pub(in crate::doctor) fn kvm(opened: &io::Result<()>, accelerator: AcceleratorChoice) -> Check {
    let error = match (opened, accelerator) {
        (Ok(()), AcceleratorChoice::Tcg) => {
            let found = "/dev/kvm opens, and qemu.accelerator is \"tcg\"";
            return Check::warn("kvm", found, "set it to \"auto\": TCG is many times slower");
        }
        (Ok(()), AcceleratorChoice::Kvm) => return Check::ok("kvm", "/dev/kvm opens"),
        (Ok(()), AcceleratorChoice::Auto) => {
            let found =
                "/dev/kvm opens; whether guests run on it the waker tries, and its log tells";
            return Check::ok("kvm", found);
        }
        (Err(_), AcceleratorChoice::Tcg) => {
            return Check::ok("kvm", "not needed: qemu.accelerator is \"tcg\"");
        }
        (Err(error), _) => error,
    };
    let found = format!("/dev/kvm: {error}");
    let mend = match error.kind() {
        io::ErrorKind::PermissionDenied => "put the waker's user into the group kvm",
        _ => "turn virtualization on in the firmware or for this VM, and load kvm_intel or kvm_amd",
    };
    if accelerator == AcceleratorChoice::Kvm {
        return Check::fail("kvm", found, format!("{mend}; or set qemu.accelerator to \"auto\""));
    }
    Check::warn("kvm", found, format!("guests run under TCG, many times slower; {mend}"))
}

/// Snapshots over `x-ignore-shared` and `fd:` work from 7.2 on.
pub(in crate::doctor) fn qemu(binary: &Path, said: &Result<String, String>) -> Check {
    let (binary, line) = match said {
        Ok(line) => (binary.display(), line),
        Err(error) => {
            let found = format!("{}: {error}", binary.display());
            let todo = "install it (Debian: apt install qemu-system-x86), or set qemu.binary";
            return Check::fail("qemu", found, todo);
        }
    };
    let found = format!("{binary}: {line}");
    match version(line) {
        Some(version) if version < (7, 2) => Check::fail("qemu", found, "take 7.2 or newer"),
        Some(_) => Check::ok("qemu", found),
        None => Check::warn("qemu", found, "this version can't be read; 7.2 or newer is needed"),
    }
}

pub(in crate::doctor) fn mkfs(program: Option<&Path>) -> Check {
    match program {
        Some(path) => Check::ok("mkfs", path.display().to_string()),
        None => {
            let todo = "apps with a disk need it: apt install e2fsprogs";
            Check::warn("mkfs", "there is no mkfs.ext4", todo)
        }
    }
}

/// `limits` is a `/proc/PID/limits`: the waker's if it runs, else our own.
pub(in crate::doctor) fn open_files(limits: &io::Result<String>, of_waker: bool) -> Check {
    let whose = if of_waker { "the waker may" } else { "a process started here may" };
    let text = match limits {
        Ok(text) => text,
        Err(error) => {
            let todo = "run it as the waker's user or as root";
            return Check::warn("open-files", format!("limits can't be read: {error}"), todo);
        }
    };
    let soft = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next());
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some(("unlimited", _)) => Check::ok("open-files", format!("{whose} open any number")),
        Some((_, Ok(soft))) if soft >= OPEN_FILES => {
            Check::ok("open-files", format!("{whose} open {soft} files"))
        }
        Some((soft, _)) => {
            let todo =
                format!("LimitNOFILE=65536 in its unit, or ulimit -n: {OPEN_FILES} at least");
            Check::warn("open-files", format!("{whose} open {soft} files"), todo)
        }
        None => Check::warn("open-files", "no limit is told", "see `ulimit -n`"),
    }
}

/// `read` is what reading a child's `/proc/PID/pagemap` said.
pub(in crate::doctor) fn pagemap(read: &io::Result<()>) -> Check {
    match read {
        Ok(()) => Check::ok("pagemap", "a child's can be read"),
        Err(error) => {
            let todo = "changed windows are looked for in the whole image then: don't hide /proc \
                        (hidepid, ProtectProc) from the waker";
            Check::warn("pagemap", format!("a child's can't be read: {error}"), todo)
        }
    }
}

/// `synchronized` is systemd's `NTPSynchronized`.
pub(in crate::doctor) fn clock(synchronized: &Result<String, String>) -> Check {
    let todo = "guests get this clock at every wake: run chrony or systemd-timesyncd";
    match synchronized.as_deref().map(str::trim) {
        Ok("yes") => Check::ok("clock", "synchronized"),
        Ok("no") => Check::warn("clock", "not synchronized", todo),
        Ok(other) => {
            Check::warn("clock", format!("whether it is right is not known: {other}"), todo)
        }
        Err(error) => {
            Check::warn("clock", format!("whether it is right is not known: {error}"), todo)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_check;
    use super::*;
    use crate::doctor::Verdict::{Fail, Ok as Well, Warn};

    fn no<T>(kind: io::ErrorKind) -> io::Result<T> {
        Err(kind.into())
    }

    #[test]
    fn kernels() {
        for (release, verdict, words) in [
            ("6.1.0-13-cloud-amd64\n", Well, "Linux 6.1.0-13-cloud-amd64"),
            ("5.6.0", Well, "5.6"),
            ("5.5.19", Warn, "pidfd_getfd"),
            ("5.10", Well, ""),
            ("5.2.1", Fail, "5.3"),
            ("4.19", Fail, "5.3"),
            ("new", Warn, "5.6"),
        ] {
            assert_check(&kernel(&Ok(release.to_owned())), verdict, words);
        }
        assert_check(&kernel(&no(io::ErrorKind::NotFound)), Warn, "/proc");
    }

    #[test]
    fn kvm_is_needed_only_where_it_is_configured() {
        use AcceleratorChoice::{Auto, Kvm, Tcg};
        let (denied, missing) = (io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound);
        for (opened, accelerator, verdict, words) in [
            (Ok(()), Auto, Well, "opens"),
            (Ok(()), Kvm, Well, "opens"),
            (Ok(()), Tcg, Warn, "auto"),
            (no(denied), Auto, Warn, "group kvm"),
            (no(missing), Auto, Warn, "TCG"),
            (no(missing), Kvm, Fail, "kvm_intel"),
            (no(denied), Kvm, Fail, "group kvm"),
            (no(missing), Tcg, Well, "not needed"),
        ] {
            assert_check(&kvm(&opened, accelerator), verdict, words);
        }
    }

    #[test]
    fn programs() {
        let binary = Path::new("qemu");
        for (said, verdict, words) in [
            (Ok("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"), Well, "qemu: QEMU"),
            (Ok("QEMU emulator version 10.0.2"), Well, "10.0.2"),
            (Ok("QEMU emulator version 7.1.0"), Fail, "7.2 or newer"),
            (Ok("QEMU"), Warn, "7.2"),
            (Err("No such file"), Fail, "apt install"),
        ] {
            let said = said.map(str::to_owned).map_err(str::to_owned);
            assert_check(&qemu(binary, &said), verdict, words);
        }
        assert_check(&mkfs(Some(Path::new("/sbin/mkfs.ext4"))), Well, "/sbin/mkfs.ext4");
        assert_check(&mkfs(None), Warn, "e2fsprogs");
    }

    #[test]
    fn users_and_limits() {
        for (own, waker, owner, verdict) in [
            (0, Some(7), None, Well),
            (7, Some(7), Some(0), Well),
            (7, None, Some(7), Well),
            (7, None, None, Well),
            (8, Some(7), Some(8), Warn),
            (8, None, Some(7), Warn),
        ] {
            assert_check(&user(own, waker, owner), verdict, &format!("user {own}"));
        }
        let limits = |soft: &str| {
            Ok(format!(
                "Limit  Soft  Hard  Units\nMax open files            {soft}  524288  files \n"
            ))
        };
        for (text, of_waker, verdict, words) in [
            (limits("65536"), true, Well, "the waker may open 65536"),
            (limits("4096"), false, Well, "a process started here"),
            (limits("1024"), true, Warn, "LimitNOFILE"),
            (limits("unlimited"), true, Well, "any number"),
            (Ok(String::new()), true, Warn, "ulimit"),
            (no(io::ErrorKind::PermissionDenied), true, Warn, "root"),
        ] {
            assert_check(&open_files(&text, of_waker), verdict, words);
        }
        assert_check(&pagemap(&Ok(())), Well, "can be read");
        assert_check(&pagemap(&no(io::ErrorKind::PermissionDenied)), Warn, "hidepid");
    }

    #[test]
    fn clocks() {
        for (said, verdict, words) in [
            (Ok("yes\n"), Well, "synchronized"),
            (Ok("no"), Warn, "not synchronized"),
            (Ok(""), Warn, "not known"),
            (Err("no timedatectl"), Warn, "no timedatectl"),
        ] {
            let said = said.map(str::to_owned).map_err(str::to_owned);
            assert_check(&clock(&said), verdict, words);
        }
    }
}
