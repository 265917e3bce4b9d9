//! What to do about what the waker says, or about its silence.

use std::io;

use rouse_protocol::app::AppId;
use rouse_protocol::client::ClientError;
use rouse_protocol::problem::Problem;
use rouse_protocol::wake::{FailureCode, SleepRefusal, WakeFailure};

use super::{Advice, Exit, advice};
use crate::text::in_time;

const START: &str = "start it with `systemctl start rouse-waker` or `rouse-waker --config FILE`; \
                     `rouse doctor` checks this node. Another socket is named by --socket PATH or \
                     ROUSE_SOCKET";
const ALLOW: &str = "add this user to socket.allow_uids or its group to socket.allow_gids in \
                     waker.toml, and restart the waker";

pub(super) fn of_client(error: &ClientError) -> Advice {
    match error {
        ClientError::Unreachable { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => {
                let todo = format!("the waker is not running, or has another socket: {START}");
                advice(Exit::Unavailable, "not-running", todo)
            }
            io::ErrorKind::ConnectionRefused => {
                let todo = format!("nobody listens there, the waker has ended: {START}");
                advice(Exit::Unavailable, "not-running", todo)
            }
            io::ErrorKind::PermissionDenied => {
                let todo = format!("the socket is open to its owner and its group: {ALLOW}");
                advice(Exit::Permission, "permission", todo)
            }
            _ => advice(Exit::Unavailable, "unreachable", START),
        },
        ClientError::Transport(_) | ClientError::Ended => {
            let todo = "the waker has ended or was restarted; what it was asked for may have been \
                        done: `rouse ps` tells";
            advice(Exit::Unavailable, "broken-off", todo)
        }
        ClientError::Refused(problem) => of_problem(None, problem),
        ClientError::Answer(_) | ClientError::TooLong(_) => {
            let todo = "are both of one version? See `rouse --version`, `rouse-waker --version`";
            advice(Exit::Failed, "answer", todo)
        }
    }
}

pub(super) fn of_problem(app: Option<&AppId>, problem: &Problem) -> Advice {
    let (code, status) = (problem.code(), problem.status);
    match (app, status) {
        (_, 403) => advice(Exit::Permission, code, ALLOW),
        (_, 404 | 405) => {
            let todo = "the waker does not know this call: is it older than this program? See \
                        `rouse --version`, `rouse-waker --version`";
            advice(Exit::Failed, code, todo)
        }
        (Some(app), 409) => {
            let todo = format!("`rouse ps` shows its state; with a VM, `rouse sleep {app}` first");
            advice(Exit::Failed, code, todo)
        }
        (_, 429 | 503) => advice(Exit::Later, code, "try again later"),
        _ => advice(Exit::Failed, code, "the waker's log has more"),
    }
}

pub(super) fn of_wake(app: &AppId, failure: &WakeFailure) -> Advice {
    let when = failure.retry_after_ms.map_or_else(|| "later".to_owned(), in_time);
    let (exit, todo) = match failure.code {
        FailureCode::Backoff => (
            Exit::Later,
            format!(
                "the next try is due {when}; `rouse trace {app}` shows what failed, `rouse clear \
                 {app}` forgets it"
            ),
        ),
        FailureCode::Full => (
            Exit::Later,
            format!("try again {when}, or make room: `rouse ps`, then `rouse sleep` another app"),
        ),
        FailureCode::Parked => (
            Exit::Failed,
            format!(
                "mend what is wrong, then `rouse clear {app}`; `rouse trace {app}` shows wakes"
            ),
        ),
        FailureCode::Stopping => {
            (Exit::Later, "try again when the waker runs again, or the app is back".to_owned())
        }
        FailureCode::Vmm => (
            Exit::Failed,
            format!(
                "look at kernel, initrd and cmdline in its file; `rouse doctor` checks QEMU and \
                 KVM, `rouse trace {app}` shows its last wakes"
            ),
        ),
        FailureCode::Storage => (
            Exit::Failed,
            "look at space, owner and health of the state directory: `rouse doctor`".to_owned(),
        ),
        FailureCode::Store => (
            Exit::Failed,
            "look at the store: its address, credentials and health, `[store]` in waker.toml"
                .to_owned(),
        ),
        FailureCode::Elsewhere => (
            Exit::Later,
            "ask the node that has it: it is free once it sleeps there and is in the store"
                .to_owned(),
        ),
        FailureCode::Locked => (
            Exit::Failed,
            format!("end the process that holds it: `fuser -v STATE_DIR/apps/{app}/app.lock`"),
        ),
        FailureCode::NotAsleep => (
            Exit::Failed,
            format!("`rouse ps` shows its state: `rouse sleep {app}` or `rouse clear {app}` first"),
        ),
        FailureCode::Removed => {
            (Exit::Failed, "put its file back into apps.d, and wake it again".to_owned())
        }
    };
    Advice { exit, code: failure.code.as_str().to_owned(), todo }
}

pub(super) fn of_sleep(app: &AppId, why: SleepRefusal) -> Advice {
    let (exit, todo) = match why {
        SleepRefusal::NotAwake => {
            (Exit::Failed, "there is no VM to put to sleep; `rouse ps` shows its state".to_owned())
        }
        SleepRefusal::KeptAwake => (
            Exit::Later,
            format!("its schedule or its own work keeps {app} awake; `rouse ps` tells until when"),
        ),
        SleepRefusal::Busy => {
            (Exit::Later, "a visitor is being served; try again when it is done".to_owned())
        }
        SleepRefusal::Cancelled => {
            (Exit::Later, "a visitor came, and the app serves; try again later".to_owned())
        }
        SleepRefusal::NoAgreement => (
            Exit::Later,
            "a proxy did not answer, or went a moment ago; see that every rouse-proxy runs, and \
             try again in 15 s"
                .to_owned(),
        ),
        SleepRefusal::Failed => (
            Exit::Failed,
            format!("`rouse doctor` checks the state directory; `rouse ps` tells how {app} is"),
        ),
    };
    Advice { exit, code: why.as_str().to_owned(), todo }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    fn app() -> AppId {
        "hello".parse().unwrap()
    }

    #[test]
    fn who_can_be_helped_by_waiting_is_told_so() {
        for (code, exit, words) in [
            (FailureCode::Backoff, Exit::Later, "due in 1.5 s"),
            (FailureCode::Full, Exit::Later, "in 1.5 s"),
            (FailureCode::Parked, Exit::Failed, "rouse clear hello"),
            (FailureCode::Stopping, Exit::Later, "again"),
            (FailureCode::Vmm, Exit::Failed, "rouse doctor"),
            (FailureCode::Storage, Exit::Failed, "state directory"),
            (FailureCode::Store, Exit::Failed, "credentials"),
            (FailureCode::Elsewhere, Exit::Later, "sleeps there"),
            (FailureCode::Locked, Exit::Failed, "apps/hello/app.lock"),
            (FailureCode::Removed, Exit::Failed, "apps.d"),
        ] {
            let failure = WakeFailure { code, detail: "x".into(), retry_after_ms: Some(1500) };
            let said = Failure::Wake { app: app(), failure }.advice();
            assert_eq!((said.exit, &*said.code), (exit, code.as_str()));
            assert!(said.todo.contains(words), "{}", said.todo);
        }
    }

    #[test]
    fn sockets_that_do_not_open() {
        for (kind, exit, code, words) in [
            (io::ErrorKind::NotFound, Exit::Unavailable, "not-running", "systemctl start"),
            (io::ErrorKind::ConnectionRefused, Exit::Unavailable, "not-running", "nobody listens"),
            (io::ErrorKind::PermissionDenied, Exit::Permission, "permission", "allow_gids"),
            (io::ErrorKind::TimedOut, Exit::Unavailable, "unreachable", "doctor"),
        ] {
            let error = ClientError::Unreachable { path: "/s".into(), source: kind.into() };
            let said = Failure::about(&app(), error).advice();
            assert_eq!((said.exit, &*said.code), (exit, code));
            assert!(said.todo.contains(words), "{}", said.todo);
        }
    }

    #[test]
    fn refusals_of_the_waker() {
        for (status, code, exit, words) in [
            (409, "busy", Exit::Later, "visitor"),
            (409, "cancelled", Exit::Later, "visitor came"),
            (409, "no-agreement", Exit::Later, "rouse-proxy"),
            (409, "not-awake", Exit::Failed, "no VM"),
            (409, "failed", Exit::Failed, "rouse doctor"),
            (409, "awake", Exit::Failed, "rouse sleep hello"),
            (403, "peer", Exit::Permission, "allow_uids"),
            (404, "unknown-path", Exit::Failed, "version"),
            (503, "stopping", Exit::Later, "later"),
            (500, "x", Exit::Failed, "log"),
        ] {
            let problem = Problem::new(status, code, "title", "");
            let said = Failure::about(&app(), ClientError::Refused(problem)).advice();
            assert_eq!((said.exit, &*said.code), (exit, code));
            assert!(said.todo.contains(words), "{code}: {}", said.todo);
        }
    }
}
