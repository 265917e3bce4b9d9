//! Both stores, as tests open them.
#![allow(dead_code, reason = "not every target uses all of it")]
#![allow(clippy::print_stdout, reason = "a test tells what it ran over, and what it left out")]

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use rouse_s3::{Faults, Server};
use rouse_store::{Directory, Key, S3, S3Options, Span, Store, StoreError};
use tempfile::TempDir;

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Where a store is, to be opened as often as there are processes.
pub(crate) enum Place {
    Directory(TempDir),
    S3(Server),
}

impl Place {
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Directory(dir) => Arc::new(Directory::open(dir.path()).unwrap()),
            Self::S3(server) => Arc::new(S3::open(options(server)).await.unwrap()),
        }
    }
}

/// What is true of every store.
pub(crate) async fn each(test: impl AsyncFn(&Place)) {
    for place in [Place::Directory(tempfile::tempdir().unwrap()), Place::S3(server().await)] {
        println!("{:?}", place.open().await);
        test(&place).await;
    }
}

pub(crate) async fn server() -> Server {
    Server::wanted().await.unwrap()
}

/// A server and its faults; none where it can't have any, which is said.
pub(crate) async fn faulty() -> Option<(Server, S3)> {
    let server = server().await;
    if server.faults().is_none() {
        println!("skipped: no faults can be put before {}", server.endpoint());
        return None;
    }
    let store = S3::open(options(&server)).await.unwrap();
    Some((server, store))
}

pub(crate) fn faults(server: &Server) -> &Faults {
    server.faults().unwrap()
}

pub(crate) fn options(server: &Server) -> S3Options {
    S3Options {
        prefix: Some(key(server.prefix())),
        endpoint: Some(server.endpoint().to_owned()),
        path_style: true,
        ca_file: server.ca_file().map(Into::into),
        credentials_file: Some(server.credentials_file().to_owned()),
        ..S3Options::new(server.bucket())
    }
}

pub(crate) async fn try_read(
    store: &dyn Store,
    at: &Key,
    span: Span,
) -> Result<Vec<u8>, StoreError> {
    let chunks: Vec<Bytes> = store.get(at, span, None).await?.body.try_collect().await?;
    Ok(chunks.concat())
}

pub(crate) async fn read(store: &dyn Store, at: &Key, span: Span) -> Vec<u8> {
    try_read(store, at, span).await.unwrap()
}
