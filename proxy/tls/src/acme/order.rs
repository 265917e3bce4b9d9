//! One order, and the account that it is made by.

use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeHandle, ChallengeType, ExternalAccountKey, HttpClient,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;

use super::config::{AcmeConfig, Proof};
use super::http::Shared;
use super::keep::{Keep, KeepError};
use super::plan::Life;
use super::tokens::{Token, Tokens};
use crate::certificate::LoadError;
use crate::names::CertificateName;
use crate::store::{ManageError, Store};

/// How long a CA may take to look at a challenge, and again to sign.
const CA_WORKS: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(90));
/// How long a whole order may take, and the making of an account.
const ORDER: Duration = Duration::from_secs(300);

/// The CA took none of our nonces. Each request is tried three times with new ones, and the whole
/// once more: a CA may refuse any of them (RFC 8555, section 6.5), and pebble does so at random.
const NONCE: &str = "badNonce";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The CA refused, or can't be reached.
    #[error("the CA: {0}")]
    Ca(#[from] instant_acme::Error),
    /// Nobody is trusted to be the CA's server.
    #[error("whom the system trusts can't be read: {0}; install CA certificates, or set `ca_file`")]
    NoTrust(#[source] std::io::Error),
    /// The account that is kept is no account.
    #[error("the account that is kept can't be read: {0}; remove it, and a new one is made")]
    Account(#[source] serde_json::Error),
    /// The CA has no challenge of the kind that we answer.
    #[error("the CA does not offer {0:?} for `{1}`")]
    NoChallenge(Proof, CertificateName),
    /// The CA was not convinced; what it says.
    #[error("the CA does not believe that `{0}` is served here: {1}")]
    NotProven(CertificateName, String),
    /// It took too long.
    #[error("it took longer than {} s", ORDER.as_secs())]
    Timeout,
    /// A key or a certificate can't be made.
    #[error("a key or request can't be made: {0}")]
    Make(String),
    /// A file of ours can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It can't be kept.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// It can't be served.
    #[error(transparent)]
    Serve(#[from] ManageError),
}

impl AcmeError {
    /// Whether the CA's problem is of this kind (RFC 8555, section 6.7).
    pub(crate) fn is(&self, kind: &str) -> bool {
        let Self::Ca(instant_acme::Error::Api(problem)) = self else { return false };
        let kind_of = |text: &str| text.strip_prefix("urn:ietf:params:acme:error:") == Some(kind);
        problem.r#type.as_deref().is_some_and(kind_of)
    }
}

/// What an order is made with.
pub(crate) struct Orders {
    pub(crate) config: AcmeConfig,
    pub(crate) keep: Arc<Keep>,
    pub(crate) store: Arc<Store>,
    pub(crate) tokens: Tokens,
    pub(crate) http: Arc<dyn HttpClient>,
    pub(crate) external: Option<ExternalAccountKey>,
}

impl Orders {
    /// The account that is kept; else a new one.
    pub(crate) async fn account(&self) -> Result<Account, AcmeError> {
        in_time(async {
            match self.account_of().await {
                Err(error) if error.is(NONCE) => self.account_of().await,
                done => done,
            }
        })
        .await
    }

    async fn account_of(&self) -> Result<Account, AcmeError> {
        let builder = Account::builder_with_http(Box::new(Shared(self.http.clone())));
        let keep = self.keep.clone();
        if let Some(kept) = blocking(move || keep.account()).await? {
            let credentials = serde_json::from_slice(&kept).map_err(AcmeError::Account)?;
            return Ok(builder.from_credentials(credentials).await?);
        }
        let contact: Vec<_> = self.config.contact.as_deref().into_iter().collect();
        let new = NewAccount {
            contact: &contact,
            // The configuration is refused otherwise.
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let directory = self.config.directory.clone();
        let (account, credentials) =
            builder.create(&new, directory, self.external.as_ref()).await?;
        let credentials = serde_json::to_vec(&credentials).map_err(AcmeError::Account)?;
        let keep = self.keep.clone();
        blocking(move || keep.write_account(&credentials)).await?;
        Ok(account)
    }

    /// Orders a certificate for `name`, keeps it and serves it.
    pub(crate) async fn order(
        &self,
        account: &Account,
        name: &CertificateName,
    ) -> Result<Life, AcmeError> {
        in_time(async {
            match self.order_of(account, name).await {
                Err(error) if error.is(NONCE) => self.order_of(account, name).await,
                done => done,
            }
        })
        .await
    }

    async fn order_of(&self, account: &Account, name: &CertificateName) -> Result<Life, AcmeError> {
        let host = name.host().ok_or_else(|| KeepError::Wildcard(name.clone()))?;
        let identifiers = [Identifier::Dns(host.to_owned())];
        let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
        self.prove(&mut order, name, host).await?;
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::new([host.to_owned()]).map_err(make)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(make)?;
        order.finalize_csr(request.der()).await?;
        let chain = order.poll_certificate(&CA_WORKS).await?;
        let (keep, kept) = (self.keep.clone(), name.clone());
        let key = key.serialize_pem();
        let kept = blocking(move || keep.write_certificate(&kept, &key, &chain)).await?;
        self.store.set_managed(name, kept.key)?;
        Ok(kept.life)
    }

    /// Answers the CA until it has seen that `name` is served here.
    async fn prove(
        &self,
        order: &mut Order,
        name: &CertificateName,
        host: &str,
    ) -> Result<(), AcmeError> {
        // Answered until this is over, however it ends.
        let mut answers = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            // One that was given for an earlier order may still hold.
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let kind = match self.config.proof {
                Proof::Http01 => ChallengeType::Http01,
                Proof::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let mut challenge = authorization
                .challenge(kind)
                .ok_or_else(|| AcmeError::NoChallenge(self.config.proof, name.clone()))?;
            answers.push(self.answer(name, host, &challenge)?);
            challenge.set_ready().await?;
        }
        let error = match order.poll_ready(&CA_WORKS).await {
            Ok(OrderStatus::Ready) => return Ok(()),
            Ok(_) => None,
            // What it says of the authorization says more.
            Err(instant_acme::Error::Api(problem)) => Some(problem),
            Err(error) => return Err(error.into()),
        };
        match (refused(order).await, error) {
            (Some(reason), _) => Err(AcmeError::NotProven(name.clone(), reason)),
            (None, Some(problem)) => Err(instant_acme::Error::Api(problem).into()),
            (None, None) => Err(AcmeError::NotProven(name.clone(), "it does not say why".into())),
        }
    }

    fn answer(
        &self,
        name: &CertificateName,
        host: &str,
        challenge: &ChallengeHandle<'_>,
    ) -> Result<Answer, AcmeError> {
        let authorization = challenge.key_authorization();
        if self.config.proof == Proof::Http01 {
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
}

/// What a CA says against a challenge, if it says anything.
async fn refused(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.ok()?;
        let state = authorization.refresh().await.ok()?;
        let mut errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        if let Some(error) = errors.next() {
            return Some(error.to_string());
        }
    }
    None
}

async fn in_time<T>(work: impl Future<Output = Result<T, AcmeError>>) -> Result<T, AcmeError> {
    tokio::time::timeout(ORDER, work).await.unwrap_or(Err(AcmeError::Timeout))
}

/// Where files are read and written: away from other tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeepError> + Send + 'static,
) -> Result<T, AcmeError> {
    Ok(tokio::task::spawn_blocking(work).await.map_err(make)??)
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
