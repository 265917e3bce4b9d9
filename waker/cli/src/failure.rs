//! What goes wrong: as a sentence, as what to do about it, and as an exit code. Only here.

use std::io;
use std::process::ExitCode;

use rouse_conf::Refused;
use rouse_protocol::app::AppId;
use rouse_protocol::client::ClientError;
use rouse_protocol::problem::Problem;
use rouse_protocol::wake::{SleepRefusal, WakeFailure};

mod advice;

use advice::{of_client, of_problem, of_sleep, of_wake};

/// How the program ends. The numbers are those of `sysexits.h` where that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All was done.
    Done,
    /// It failed.
    Failed,
    /// Command line or configuration make no sense (`EX_USAGE`).
    Usage,
    /// The waker can't be reached (`EX_UNAVAILABLE`).
    Unavailable,
    /// Later it may go (`EX_TEMPFAIL`).
    Later,
    /// This user may not (`EX_NOPERM`).
    Permission,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Later => 75,
            Exit::Permission => 77,
        })
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The socket is not known, since the configuration can't be read.
    #[error("{0}")]
    Config(Refused),
    /// The waker gave nothing. A refusal is [`Self::Refused`].
    #[error("{0}")]
    Client(ClientError),
    /// The waker refused what is about no app, or about whoever asks.
    #[error("the waker refused: {}{}", .0.title, after_colon(&.0.detail))]
    Refused(Problem),
    /// No such app.
    #[error("there is no app `{app}`")]
    UnknownApp {
        /// What was asked for.
        app: AppId,
        /// What may have been meant.
        nearest: Option<AppId>,
    },
    /// An app was not woken.
    #[error("{app} was not woken: {failure}")]
    Wake {
        /// Which.
        app: AppId,
        /// Why.
        failure: WakeFailure,
    },
    /// An app was not put to sleep.
    #[error("{app} was not put to sleep: {}{}", why.as_str(), after_colon(detail))]
    Sleep {
        /// Which.
        app: AppId,
        /// Why.
        why: SleepRefusal,
        /// What the waker says of it.
        detail: String,
    },
    /// Something else was not done for an app.
    #[error("{app}: {}{}", problem.title, after_colon(&problem.detail))]
    App {
        /// Which.
        app: AppId,
        /// Why.
        problem: Problem,
    },
    /// A watch brought nothing, not even a heartbeat.
    #[error("the waker has said nothing for {0} s")]
    Silent(u64),
    /// No runtime.
    #[error("the program can't start: {0}")]
    Runtime(io::Error),
    /// What was printed could not be.
    #[error("standard output can't be written: {0}")]
    Output(io::Error),
    /// Whoever read the output has closed it.
    #[error("standard output is closed")]
    Closed,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(problem) => Self::Refused(problem),
            error => Self::Client(error),
        }
    }
}

fn after_colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

/// What a failure means to whoever runs the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) exit: Exit,
    /// The kind, one word for programs.
    pub(crate) code: String,
    /// What to do; empty where there is nothing to say.
    pub(crate) todo: String,
}

fn advice(exit: Exit, code: &str, todo: impl Into<String>) -> Advice {
    Advice { exit, code: code.to_owned(), todo: todo.into() }
}

impl Failure {
    /// What a call about `app` means that the waker refused, or that did not reach it. That there is
    /// no such app is for [`Session::failed`](crate::session::Session::failed).
    pub(crate) fn about(app: &AppId, error: ClientError) -> Self {
        let problem = match Self::from(error) {
            Self::Refused(problem) => problem,
            failure => return failure,
        };
        let app = app.clone();
        match sleep_refusal(&problem) {
            Some(why) => Self::Sleep { app, why, detail: problem.detail },
            None if problem.status == 403 => Self::Refused(problem),
            None => Self::App { app, problem },
        }
    }

    /// When another try makes sense, in milliseconds, where the waker said so.
    pub(crate) fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Wake { failure, .. } => failure.retry_after_ms,
            _ => None,
        }
    }

    /// Exit code, code word and what to do.
    pub(crate) fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => {
                let todo = "mend it, or name the socket by --socket PATH or ROUSE_SOCKET, or \
                            another configuration by --config FILE";
                advice(Exit::Usage, "config", todo)
            }
            Self::Client(error) => of_client(error),
            Self::Refused(problem) => of_problem(None, problem),
            Self::UnknownApp { nearest, .. } => {
                let meant = nearest.as_ref().map(|id| format!("did you mean `{id}`? "));
                let todo = format!("{}`rouse ps` lists all apps", meant.unwrap_or_default());
                advice(Exit::Failed, "unknown-app", todo)
            }
            Self::Wake { app, failure } => of_wake(app, failure),
            Self::Sleep { app, why, .. } => of_sleep(app, *why),
            Self::App { app, problem } => of_problem(Some(app), problem),
            Self::Silent(_) => {
                advice(Exit::Unavailable, "silent", "it hangs or is stopped: look at its log")
            }
            Self::Runtime(_) => advice(Exit::Failed, "runtime", ""),
            Self::Output(_) => advice(Exit::Failed, "output", ""),
            Self::Closed => advice(Exit::Done, "closed", ""),
        }
    }
}

fn sleep_refusal(problem: &Problem) -> Option<SleepRefusal> {
    use SleepRefusal::{Busy, Cancelled, Failed, KeptAwake, NoAgreement, NotAwake};
    let all = [NotAwake, KeptAwake, Busy, Cancelled, NoAgreement, Failed];
    let named = |why: &SleepRefusal| why.as_str() == problem.code();
    (problem.status == 409).then(|| all.into_iter().find(named)).flatten()
}
