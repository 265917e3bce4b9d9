//! Stores as they are configured.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use bytes::Bytes;
use common::{key, read, server};
use rouse_s3::Server;
use rouse_store::{Condition, OpenS3Error, OpenStoreError, Span, StoreConfig, open};

fn config(server: &Server) -> StoreConfig {
    StoreConfig {
        endpoint: Some(server.endpoint().to_owned()),
        ca_file: server.ca_file().map(Into::into),
        credentials_file: Some(server.credentials_file().to_owned()),
        ..StoreConfig::new(format!("s3://{}/{}/fleet", server.bucket(), server.prefix()))
    }
}

#[tokio::test]
async fn a_store_is_opened_by_its_configuration() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    let directory = StoreConfig::new(format!("file://{}/new/store", dir.path().display()));
    for config in [config(&server), directory] {
        let store = open(&config).await.unwrap();
        store.put(&key("a"), Bytes::from_static(b"x"), Condition::Absent).await.unwrap();
        assert_eq!(read(&*store, &key("a"), Span::All).await, b"x");
    }
    if let Some(keys) = server.keys() {
        assert_eq!(keys, [format!("{}/fleet/a", server.prefix())]);
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let server = server().await;
    let gone = StoreConfig { credentials_file: Some("/nowhere/keys".into()), ..config(&server) };
    let e = open(&gone).await.unwrap_err();
    assert!(e.to_string().contains("/nowhere/keys"), "{e}");
    assert!(e.to_string().starts_with("the store s3://"), "{e}");

    let other = StoreConfig { profile: Some("other".to_owned()), ..config(&server) };
    let e = open(&other).await.unwrap_err();
    let OpenStoreError::S3 { source: OpenS3Error::Credentials { detail }, .. } = &e else {
        panic!("{e}")
    };
    assert!(detail.contains("other"), "{detail}");

    let wrong = StoreConfig { sse_kms_key_id: Some("k".to_owned()), ..config(&server) };
    assert!(matches!(open(&wrong).await, Err(OpenStoreError::Config(_))));
}
