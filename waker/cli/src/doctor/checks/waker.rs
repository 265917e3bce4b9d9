//! The waker's socket, and the waker behind it.

use std::io;
use std::path::Path;

use crate::doctor::Check;
use crate::doctor::probe::socket::{Health, Seen};

/// What the waker makes it: for its user and its group.
const MODE: u32 = 0o660;

pub(in crate::doctor) fn socket(path: &Path, seen: &Seen) -> Check {
    let path = path.display();
    let start = "start the waker: systemctl start rouse-waker";
    let file = match &seen.file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Check::warn("socket", format!("{path} is not there"), start);
        }
        Err(error) => {
            let todo = "let this user into its directory (RuntimeDirectoryMode), or use the group";
            return Check::fail("socket", format!("{path}: {error}"), todo);
        }
    };
    if !file.socket {
        let todo = "set socket.path to another place, or take away what is there";
        return Check::fail("socket", format!("{path} is no socket"), todo);
    }
    let found = format!("{path}: mode {:04o}, owner {}, group {}", file.mode, file.uid, file.gid);
    match &seen.connected {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let todo = format!("join group {} and see socket.allow_gids, or use sudo", file.gid);
            Check::fail("socket", format!("{found}: {error}"), todo)
        }
        Err(error) => Check::warn("socket", format!("{found}: {error}"), start),
        Ok(_) if file.mode != MODE => {
            let todo = "the waker makes it 0660: who changed it? Restart the waker";
            Check::warn("socket", found, todo)
        }
        Ok(_) => Check::ok("socket", found),
    }
}

pub(in crate::doctor) fn health(health: &Health) -> Check {
    match health {
        Health::Unreached => {
            let todo = "start it: until then awake apps are served, and sleeping ones not woken";
            Check::warn("waker", "it is not running, or can't be reached", todo)
        }
        Health::Answered(200) => Check::ok("waker", "it runs and answers"),
        Health::Answered(403) => {
            let todo = "add this user to socket.allow_uids or its group to socket.allow_gids";
            Check::fail("waker", "it runs, and refuses this user", todo)
        }
        Health::Answered(status) => {
            let todo = "look at its log";
            Check::fail("waker", format!("it answers /healthz with {status}"), todo)
        }
        Health::Broke(error) => {
            let todo = "does the waker listen there, and nobody else? Look at its log";
            Check::fail("waker", format!("its answer can't be read: {error}"), todo)
        }
        Health::Silent(seconds) => {
            let found = format!("it runs, and has not answered for {seconds} s");
            Check::fail("waker", found, "it hangs or is stopped: look at its log, restart it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_check;
    use super::*;
    use crate::doctor::Verdict::{Fail, Ok as Well, Warn};
    use crate::doctor::probe::socket::{File, Peer};

    #[test]
    fn sockets() {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
        let file = |socket, mode| Ok(File { socket, mode, uid: 0, gid: 5 });
        let peer = || Ok(Some(Peer { pid: 1, uid: 0 }));
        for (file, connected, verdict, words) in [
            (file(true, 0o660), peer(), Well, "mode 0660, owner 0, group 5"),
            (file(true, 0o666), peer(), Warn, "0660"),
            (file(true, 0o660), Err(ConnectionRefused.into()), Warn, "systemctl start"),
            (file(true, 0o660), Err(PermissionDenied.into()), Fail, "join group 5"),
            (file(false, 0o660), Err(ConnectionRefused.into()), Fail, "no socket"),
            (Err(NotFound.into()), Err(NotFound.into()), Warn, "systemctl start"),
            (Err(PermissionDenied.into()), Err(PermissionDenied.into()), Fail, "directory"),
        ] {
            let seen = Seen { file, connected, health: Health::Unreached };
            assert_check(&socket(Path::new("/s"), &seen), verdict, words);
        }
    }

    #[test]
    fn answers() {
        for (said, verdict, words) in [
            (Health::Answered(200), Well, "answers"),
            (Health::Answered(403), Fail, "allow_uids"),
            (Health::Answered(500), Fail, "500"),
            (Health::Broke("no HTTP".into()), Fail, "no HTTP"),
            (Health::Silent(2), Fail, "2 s"),
            (Health::Unreached, Warn, "not running"),
        ] {
            assert_check(&health(&said), verdict, words);
        }
    }
}
