//! What all parts of a run share: the clock, the ledger, the tally, and where things are.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rouse_protocol::app::AppId;
use rouse_protocol::client::Client;

use crate::dice::Can;
use crate::ledger::Ledger;
use crate::trouble::{At, Trouble};

/// One app of the run.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// Its id.
    pub(crate) id: AppId,
    /// The host it is reached by.
    pub(crate) host: String,
}

impl App {
    /// The id as the ledger has it.
    pub(crate) fn name(&self) -> &str {
        self.id.as_str()
    }
}

/// What all parts of a run share.
#[derive(Debug)]
pub(crate) struct World {
    start: Instant,
    ledger: Mutex<Ledger>,
    tally: Mutex<Tally>,
    /// The apps.
    pub(crate) apps: Vec<App>,
    /// What can be done in this run.
    pub(crate) can: Can,
    /// The waker.
    pub(crate) client: Client,
    /// Where visitors come.
    pub(crate) http: SocketAddr,
    /// The node's directory.
    pub(crate) root: PathBuf,
    /// The directory of the apps' directories.
    pub(crate) apps_dir: PathBuf,
    /// How long a visitor waits before he says that no answer comes.
    pub(crate) limit: Duration,
}

/// How often what happened.
pub(crate) type Tally = BTreeMap<(&'static str, String), u64>;

impl World {
    /// Begins now.
    pub(crate) fn new(node: &rouse_tests::Node, apps: Vec<App>, can: Can, limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            ledger: Mutex::default(),
            tally: Mutex::default(),
            apps,
            can,
            client: node.client().clone(),
            http: node.http(),
            root: node.root().to_owned(),
            apps_dir: node.state_dir().join("apps"),
            limit,
        }
    }

    /// How long the run has gone on.
    pub(crate) fn now(&self) -> At {
        self.start.elapsed()
    }

    /// Writes into the ledger. The time is taken when nobody else does, so that it never goes back.
    pub(crate) fn ledger<T>(&self, write: impl FnOnce(&mut Ledger, At) -> T) -> T {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.start.elapsed();
        write(&mut ledger, now)
    }

    /// Trouble begins.
    pub(crate) fn begin(&self, trouble: Trouble) {
        self.ledger(|ledger, now| ledger.begin(trouble, now));
    }

    /// Trouble ends.
    pub(crate) fn end(&self, trouble: &Trouble) {
        self.ledger(|ledger, now| ledger.end(trouble, now));
    }

    /// Something that must never be was seen.
    pub(crate) fn violated(&self, what: String) {
        if self.ledger(|ledger, now| ledger.violated(now, what.clone())) {
            self.say(format_args!("VIOLATION: {what}"));
        }
    }

    /// Counts one more.
    pub(crate) fn count(&self, group: &'static str, what: impl Into<String>) {
        *self.tally().entry((group, what.into())).or_default() += 1;
    }

    /// All that was counted.
    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints what was decided or seen, with its time.
    pub(crate) fn say(&self, what: impl Display) {
        print(format_args!("{:9.3}  {what}", self.now().as_secs_f64()));
    }
}

/// Prints one line. Whoever reads may have gone; the run goes on.
pub(crate) fn print(line: fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
