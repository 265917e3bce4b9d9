//! Keeping certificates fresh.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use instant_acme::{Account, HttpClient};
use tokio_util::sync::CancellationToken;

use super::config::AcmeConfig;
use super::http::Http;
use super::keep::Keep;
use super::order::{AcmeError, Orders};
use super::plan::{Agenda, Failures, Life};
use super::tokens::Tokens;
use crate::names::CertificateName;
use crate::store::Store;

/// The shortest wait, whatever the clock does meanwhile.
const SHORTEST: Duration = Duration::from_secs(1);

/// What time it is.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What orders certificates, keeps them, and gives them to a store.
pub struct Acme {
    clock: Clock,
    orders: Orders,
    agenda: Agenda,
    /// What was kept and could not be served.
    unfit: Vec<(CertificateName, AcmeError)>,
}

/// What is told while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Told<'a> {
    /// A certificate came, and is served and kept.
    Ordered {
        /// The host that it is for.
        name: &'a CertificateName,
        /// From when to when it is good.
        life: Life,
    },
    /// None came. It is tried again later, and what there was is served on.
    Failed {
        /// The host that it would have been for.
        name: &'a CertificateName,
        /// Why.
        error: AcmeError,
    },
    /// What was kept is no good, and is ordered anew.
    Unfit {
        /// The host that it is for.
        name: &'a CertificateName,
        /// Why.
        error: AcmeError,
    },
    /// There is no account with the CA, so that nothing can be ordered. It is tried again later.
    NoAccount {
        /// Why.
        error: AcmeError,
    },
}

impl Acme {
    /// Serves what is kept, by `store`, and asks the CA nothing yet. It reads files, so it is not to
    /// be called where other tasks wait.
    pub fn open(config: &AcmeConfig, store: Arc<Store>) -> Result<Self, AcmeError> {
        let http = Http::new(config.roots()?).map_err(AcmeError::NoTrust)?;
        Self::open_with(config, store, Arc::new(http), Arc::new(SystemTime::now))
    }

    /// The same, with another client to speak to the CA by, and another clock.
    pub fn open_with(
        config: &AcmeConfig,
        store: Arc<Store>,
        http: Arc<dyn HttpClient>,
        clock: Clock,
    ) -> Result<Self, AcmeError> {
        let keep = Keep::new(&config.kept, &config.directory)?;
        let (mut agenda, mut unfit) = (Agenda::default(), Vec::new());
        for name in &config.names {
            let life = serve_kept(&keep, &store, name).unwrap_or_else(|error| {
                unfit.push((name.clone(), error));
                None
            });
            agenda.add(name.clone(), life);
        }
        let orders = Orders {
            external: config.external()?,
            config: config.clone(),
            keep: Arc::new(keep),
            store,
            tokens: Tokens::default(),
            http,
        };
        Ok(Self { clock, orders, agenda, unfit })
    }

    /// What a CA is answered that asks over HTTP. It has nothing while certificates are proven
    /// otherwise.
    pub fn tokens(&self) -> Tokens {
        self.orders.tokens.clone()
    }

    /// Orders what is missing, and renews each certificate in time, until `cancel`; a few at once.
    pub async fn run(self, cancel: CancellationToken, mut tell: impl FnMut(Told<'_>)) {
        let Self { clock, orders, mut agenda, unfit } = self;
        for (name, error) in unfit {
            tell(Told::Unfit { name: &name, error });
        }
        cancel.run_until_cancelled(work(&orders, &mut agenda, &clock, &mut tell)).await;
    }
}

async fn work(
    orders: &Orders,
    agenda: &mut Agenda,
    clock: &Clock,
    tell: &mut impl FnMut(Told<'_>),
) {
    let mut running = FuturesUnordered::new();
    let mut account: Option<Account> = None;
    // Of the CA, for all names.
    let mut failures = Failures::default();
    loop {
        let now = clock();
        let mut wait = agenda.wait(now);
        if wait.is_zero() {
            match (failures.wait(0.0, now), &account) {
                // Once for all names: a CA that is down or has enough is not asked by each of them.
                (Some(later), _) => wait = later,
                (None, Some(account)) => {
                    for name in agenda.begin(now) {
                        running.push(one(orders, account.clone(), name));
                    }
                    wait = agenda.wait(now);
                }
                (None, None) => match orders.account().await {
                    Ok(new) => {
                        account = Some(new);
                        continue;
                    }
                    Err(error) => {
                        failures = failures.and(clock());
                        tell(Told::NoAccount { error });
                    }
                },
            }
        }
        let (used, name, result) = tokio::select! {
            Some(ended) = running.next() => ended,
            () = tokio::time::sleep(wait.max(SHORTEST)) => continue,
        };
        let now = clock();
        agenda.end(&name, result.as_ref().ok().copied(), now);
        // Orders that were begun before the last failure of them all say nothing about it.
        let pauses = failures.wait(0.0, now).is_some();
        match result {
            Ok(life) => {
                if !pauses {
                    failures = Failures::default();
                }
                tell(Told::Ordered { name: &name, life });
            }
            Err(error) => {
                // Another order may have brought a new account meanwhile.
                let same = account.as_ref().is_some_and(|account| account.id() == used.id());
                let lost = error.is("accountDoesNotExist") && same;
                if (lost || error.is("rateLimited")) && !pauses {
                    failures = failures.and(now);
                }
                if lost {
                    account = None;
                    if let Err(error) = orders.keep.remove_account() {
                        tell(Told::NoAccount { error: error.into() });
                    }
                }
                tell(Told::Failed { name: &name, error });
            }
        }
    }
}

async fn one(
    orders: &Orders,
    account: Account,
    name: CertificateName,
) -> (Account, CertificateName, Result<Life, AcmeError>) {
    let result = orders.order(&account, &name).await;
    (account, name, result)
}

/// Serves what is kept for `name`. Gives back its life, unless it is to be replaced at once.
fn serve_kept(
    keep: &Keep,
    store: &Store,
    name: &CertificateName,
) -> Result<Option<Life>, AcmeError> {
    let Some(kept) = keep.certificate(name)? else { return Ok(None) };
    store.set_managed(name, kept.key)?;
    // From another CA, it will do until that of this one comes.
    Ok((!kept.elsewhere).then_some(kept.life))
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordered { name, .. } => write!(f, "a certificate for `{name}` has come"),
            Self::Failed { name, error } => write!(f, "no certificate for `{name}`: {error}"),
            Self::Unfit { name, error } => {
                write!(f, "the certificate that is kept for `{name}` is ordered anew: {error}")
            }
            Self::NoAccount { error } => write!(f, "no account with the CA: {error}"),
        }
    }
}
