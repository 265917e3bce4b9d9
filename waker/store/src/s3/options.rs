//! What an S3 store is opened with, and the client made of it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    ProvideCredentials, RequestChecksumCalculation, ResponseChecksumValidation, SharedHttpClient,
    StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::bound::Bound;
use super::fault::chain;
use crate::Key;

/// How a store keeps an object encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// As the bucket says.
    #[default]
    Bucket,
    /// With a key of the store's own (`AES256`).
    Aes256,
    /// With a key of its key service (`aws:kms`).
    Kms {
        /// Which one; none: the service's own for S3.
        key_id: Option<String>,
    },
}

/// What an [`S3`](super::S3) store is opened with.
#[derive(Clone, Debug)]
pub struct S3Options {
    /// The bucket, which must exist.
    pub bucket: String,
    /// Where in the bucket the store's keys begin; none: at its top.
    pub prefix: Option<Key>,
    /// The URL of an S3-compatible store; none: Amazon's of the region.
    pub endpoint: Option<String>,
    /// The bucket's region; none: as the SDK finds it, or `us-east-1` where there is an endpoint.
    pub region: Option<String>,
    /// Whether the bucket's name stands in the path rather than in the host.
    pub path_style: bool,
    /// A PEM file of authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// A file of credentials as the AWS tools write it. None: the SDK's usual chain, that is
    /// environment, `~/.aws`, web identity, container, instance.
    pub credentials_file: Option<PathBuf>,
    /// Which profile of the credentials or of the chain's files; none: `default`.
    pub profile: Option<String>,
    /// How objects are encrypted.
    pub encryption: Encryption,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a small call may take, and a read to its first byte. A write has a second more for
    /// each 128 KiB.
    pub call_timeout: Duration,
}

impl S3Options {
    /// A store in `bucket`, with everything else as it is by default.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            prefix: None,
            endpoint: None,
            region: None,
            path_style: false,
            ca_file: None,
            credentials_file: None,
            profile: None,
            encryption: Encryption::default(),
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(30),
        }
    }
}

/// Why an S3 store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenS3Error {
    /// A file that it needs can't be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// The file of authorities has none that can be used.
    #[error("{}: {detail}; it must hold certificates in PEM", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// TLS can't be had.
    #[error("no TLS: {detail}")]
    Tls {
        /// What rustls says.
        detail: String,
    },
    /// Nothing says where the bucket is.
    #[error("the bucket's region is not known; set `region`, or `endpoint`")]
    Region,
    /// There are no credentials.
    #[error(
        "no credentials: {detail}; set `credentials_file` and `profile`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials {
        /// What the SDK says.
        detail: String,
    },
}

/// The authorities in `path`, each looked at: the SDK would panic at one that is none.
fn authorities(path: &Path) -> Result<Vec<u8>, OpenS3Error> {
    let pem = std::fs::read(path)
        .map_err(|source| OpenS3Error::File { path: path.to_owned(), source })?;
    let wrong = |detail: String| OpenS3Error::Authorities { path: path.to_owned(), detail };
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(&pem) {
        let cert = cert.map_err(|e| wrong(e.to_string()))?;
        roots.add(cert).map_err(|e| wrong(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("no certificate in it".to_owned()));
    }
    Ok(pem)
}

fn http(options: &S3Options) -> Result<SharedHttpClient, OpenS3Error> {
    // Where the system trusts nobody, being told to use that panics in a debug build.
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut trust = TrustStore::empty().with_native_roots(!roots.is_empty());
    if let Some(path) = &options.ca_file {
        trust.add_pem_certificate(authorities(path)?);
    }
    let context = TlsContext::builder().with_trust_store(trust).build();
    let context = context.map_err(|e| OpenS3Error::Tls { detail: chain(&e) })?;
    let provider = Provider::Rustls(CryptoMode::Ring);
    let builder = aws_smithy_http_client::Builder::new().tls_provider(provider);
    Ok(builder.tls_context(context).build_https())
}

async fn shared(options: &S3Options) -> Result<SdkConfig, OpenS3Error> {
    let http = http(options)?;
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.connect_timeout)
        .operation_attempt_timeout(options.call_timeout)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http.clone())
        .timeout_config(timeouts)
        .retry_config(RetryConfig::disabled())
        // Its clock runs while the reader is busy with what it has.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Writes have their Content-MD5, and not every store knows the newer sums.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    match (&options.region, &options.endpoint) {
        (Some(region), _) => loader = loader.region(Region::new(region.clone())),
        // A compatible store seldom cares, and the instance's own service need not be asked.
        (None, Some(_)) => {
            let environment = EnvironmentVariableRegionProvider::new();
            let chain = RegionProviderChain::first_try(environment).or_else("us-east-1");
            loader = loader.region(chain);
        }
        (None, None) => {}
    }
    if let Some(endpoint) = &options.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(profile) = &options.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(path) = &options.credentials_file {
        File::open(path).map_err(|source| OpenS3Error::File { path: path.clone(), source })?;
        let files =
            EnvConfigFiles::builder().with_file(EnvConfigFileKind::Credentials, path).build();
        let mut provider = ProfileFileCredentialsProvider::builder()
            .configure(&ProviderConfig::without_region().with_http_client(http))
            .profile_files(files);
        if let Some(profile) = &options.profile {
            provider = provider.profile_name(profile);
        }
        loader = loader.credentials_provider(provider.build());
    }
    let config = loader.load().await;
    if config.region().is_none() { Err(OpenS3Error::Region) } else { Ok(config) }
}

/// The clients of a store: for calls, and for reads of objects, whose answers are as long as those.
pub(super) async fn clients(options: &S3Options) -> Result<(Client, Client), OpenS3Error> {
    let config = shared(options).await?;
    let none = "the SDK has no source of them";
    let provider = config
        .credentials_provider()
        .ok_or_else(|| OpenS3Error::Credentials { detail: none.to_owned() })?;
    if let Err(e) = provider.provide_credentials().await {
        use aws_credential_types::provider::error::CredentialsError as E;
        let detail = chain(&e);
        match e {
            E::CredentialsNotLoaded(_) | E::InvalidConfiguration(_) => {
                return Err(OpenS3Error::Credentials { detail });
            }
            // A service that gives them may be back by the first call.
            _ => tracing::warn!(%detail, "no credentials for the store yet"),
        }
    }
    let client = |streams| {
        let config = aws_sdk_s3::config::Builder::from(&config)
            .force_path_style(options.path_style)
            .interceptor(Bound { streams })
            .build();
        Client::from_conf(config)
    };
    Ok((client(false), client(true)))
}
