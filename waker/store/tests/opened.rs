//! What an S3 store can't be opened without.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use common::{options, server};
use rouse_store::{OpenS3Error, S3, S3Options};

#[tokio::test]
async fn what_is_missing_is_named() {
    let server = server().await;
    let gone = Some("/nowhere/keys".into());
    let e = S3::open(S3Options { credentials_file: gone, ..options(&server) }).await.unwrap_err();
    assert!(e.to_string().contains("/nowhere/keys"), "{e}");

    let other = Some("other".to_owned());
    let e = S3::open(S3Options { profile: other, ..options(&server) }).await.unwrap_err();
    let OpenS3Error::Credentials { detail } = &e else { panic!("{e}") };
    assert!(detail.contains("other"), "{detail}");
}
