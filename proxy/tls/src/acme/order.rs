//! Ordering certificates, and keeping them fresh.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, ChallengeHandle, ChallengeType, Identifier,
    NewAccount, NewOrder, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::keep::{Keep, KeepError};
use super::plan::{Failures, Life, Step, next};
use super::tokens::{Token, Tokens};
use crate::names::CertificateName;
use crate::store::{ManageError, Store};

/// How long a CA may take to look at a challenge, and again to sign.
const CA_WORKS: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(90));
/// How long a whole order may take.
const ORDER: Duration = Duration::from_secs(300);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The CA refused, or can't be reached.
    #[error("the CA: {0}")]
    Ca(#[from] instant_acme::Error),
    /// The account that is kept is no account.
    #[error("the account that is kept can't be read: {0}; remove it, and a new one is made")]
    Account(#[source] serde_json::Error),
    /// The CA has no challenge of the kind that we answer.
    #[error("the CA does not offer {0:?} for `{1}`")]
    NoChallenge(Proof, CertificateName),
    /// The CA was not convinced.
    #[error("the CA does not believe that `{0}` is served here; is it reached from outside?")]
    NotProven(CertificateName),
    /// It took too long.
    #[error("the order took longer than {} s", ORDER.as_secs())]
    Timeout,
    /// A key or a certificate can't be made.
    #[error("a key or request can't be made: {0}")]
    Make(String),
    /// It can't be kept.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// It can't be served.
    #[error(transparent)]
    Serve(#[from] ManageError),
}

/// How a CA is shown that a host is served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By an answer on port 80 (RFC 8555, section 8.3): see [`Tokens`].
    Http01,
    /// By a certificate on port 443 (RFC 8737).
    TlsAlpn01,
}

/// What orders certificates, and gives them to a store.
pub struct Orders {
    account: Account,
    keep: Arc<Keep>,
    store: Arc<Store>,
    tokens: Tokens,
    proof: Proof,
}

impl Orders {
    /// Takes the account that is kept, or makes one with the CA whose directory is at `ca`, for
    /// `contact` (such as `mailto:ops@example.com`), and keeps it. Making one agrees to the CA's
    /// terms. An account is of one CA, so each CA needs a [`Keep`] of its own.
    pub async fn new(
        builder: AccountBuilder,
        ca: &str,
        contact: &[&str],
        keep: Keep,
        store: Arc<Store>,
        tokens: Tokens,
        proof: Proof,
    ) -> Result<Self, AcmeError> {
        let account = match keep.account()? {
            Some(kept) => {
                let credentials = serde_json::from_slice(&kept).map_err(AcmeError::Account)?;
                builder.from_credentials(credentials).await?
            }
            None => {
                let new = NewAccount {
                    contact,
                    terms_of_service_agreed: true,
                    only_return_existing: false,
                };
                let (account, credentials) = builder.create(&new, ca.to_owned(), None).await?;
                let credentials = serde_json::to_vec(&credentials).map_err(AcmeError::Account)?;
                keep.write_account(&credentials)?;
                account
            }
        };
        Ok(Self { account, keep: Arc::new(keep), store, tokens, proof })
    }

    /// The account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Serves what is kept for `name`, if there is anything.
    pub fn serve_kept(&self, name: &CertificateName) -> Result<Option<Life>, AcmeError> {
        let Some((key, life)) = self.keep.certificate(name)? else { return Ok(None) };
        self.store.set_managed(name, key)?;
        Ok(Some(life))
    }

    /// Orders a certificate for `name`, keeps it and serves it.
    pub async fn order(&self, name: &CertificateName) -> Result<Life, AcmeError> {
        tokio::time::timeout(ORDER, self.order_once(name)).await.unwrap_or(Err(AcmeError::Timeout))
    }

    async fn order_once(&self, name: &CertificateName) -> Result<Life, AcmeError> {
        let host = name.host().ok_or_else(|| KeepError::Wildcard(name.clone()))?;
        let identifiers = [Identifier::Dns(host.to_owned())];
        let mut order = self.account.new_order(&NewOrder::new(&identifiers)).await?;
        // Answered until the order is over, however it ends.
        let mut answers = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err(AcmeError::NotProven(name.clone())),
            }
            let kind = match self.proof {
                Proof::Http01 => ChallengeType::Http01,
                Proof::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let mut challenge = authorization
                .challenge(kind)
                .ok_or_else(|| AcmeError::NoChallenge(self.proof, name.clone()))?;
            answers.push(self.answer(name, host, &challenge)?);
            challenge.set_ready().await?;
        }
        if order.poll_ready(&CA_WORKS).await? != OrderStatus::Ready {
            return Err(AcmeError::NotProven(name.clone()));
        }
        drop(answers);
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::new([host.to_owned()]).map_err(make)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(make)?;
        order.finalize_csr(request.der()).await?;
        let chain = order.poll_certificate(&CA_WORKS).await?;
        let (keep, kept) = (self.keep.clone(), name.clone());
        let write = move || keep.write_certificate(&kept, &key.serialize_pem(), &chain);
        let (key, life) = tokio::task::spawn_blocking(write).await.map_err(make)??;
        self.store.set_managed(name, key)?;
        Ok(life)
    }

    fn answer(
        &self,
        name: &CertificateName,
        host: &str,
        challenge: &ChallengeHandle<'_>,
    ) -> Result<Answer, AcmeError> {
        let authorization = challenge.key_authorization();
        if self.proof == Proof::Http01 {
            let token = self.tokens.answer(&challenge.token, authorization.as_str());
            return Ok(Answer::Http(token));
        }
        // RFC 8737, section 3: a certificate for the host that has the digest in an extension.
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::new([host.to_owned()]).map_err(make)?;
        let digest = authorization.digest();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
        let certificate = params.self_signed(&key).map_err(make)?;
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(make)?;
        // Not `CertifiedKey::from_der`, which refuses the extension.
        let private = ring::sign::any_supported_type(&private).map_err(make)?;
        let certified = CertifiedKey::new(vec![certificate.der().clone()], private);
        self.store.set_challenge(name, certified)?;
        Ok(Answer::Tls(ChallengeGuard { store: self.store.clone(), name: name.clone() }))
    }

    /// Keeps certificates for `names` until `cancel`: serves those that are kept, orders those that
    /// are missing, and renews each in time, one after the other. Tells `report` how each went.
    pub async fn run(
        &self,
        names: Vec<CertificateName>,
        cancel: CancellationToken,
        mut report: impl FnMut(&CertificateName, Result<Life, AcmeError>),
    ) {
        let mut known = BTreeMap::new();
        for name in names {
            // What is kept and no good is replaced, like what is missing.
            let life = self.serve_kept(&name).unwrap_or_else(|error| {
                report(&name, Err(error));
                None
            });
            known.insert(name, (life, Failures::default()));
        }
        let work = async {
            loop {
                let mut wait = Duration::from_secs(3600);
                for (name, (life, failures)) in &mut known {
                    if let Step::Wait(step) = next(name, *life, *failures, SystemTime::now()) {
                        wait = wait.min(step);
                        continue;
                    }
                    let result = self.order(name).await;
                    match &result {
                        Ok(new) => (*life, *failures) = (Some(*new), Failures::default()),
                        Err(_) => *failures = failures.and(SystemTime::now()),
                    }
                    report(name, result);
                    wait = Duration::ZERO;
                }
                // Never in a circle, even if a CA signs what has expired already.
                tokio::time::sleep(wait.max(Duration::from_secs(1))).await;
            }
        };
        cancel.run_until_cancelled(work).await;
    }
}

fn make(error: impl std::fmt::Display) -> AcmeError {
    AcmeError::Make(error.to_string())
}

/// An answer that is given as long as this lives.
#[expect(dead_code, reason = "it is held, not read")]
enum Answer {
    Http(Token),
    Tls(ChallengeGuard),
}

struct ChallengeGuard {
    store: Arc<Store>,
    name: CertificateName,
}

impl Drop for ChallengeGuard {
    fn drop(&mut self) {
        self.store.clear_challenge(&self.name);
    }
}
