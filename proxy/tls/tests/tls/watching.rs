//! Files that change under a running proxy.

use std::time::Duration;

use rouse_tls::{Config, watch};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{Client, World, meet, tls};

#[tokio::test]
async fn what_changes_is_served_and_what_breaks_is_told() {
    let world = World::new();
    let mut config = world.config(&["a.example"]);
    std::fs::create_dir(world.path("certs.d")).unwrap();
    config.directory = Some(world.path("certs.d"));
    let tls = tls(&config);
    let (tell, mut told) = mpsc::unbounded_channel();
    let cancel = CancellationToken::new();
    let watching = watch(tls.store().clone(), cancel.clone(), move |reload| {
        let _ = tell.send(reload);
    });
    let acts = async {
        let mut next = async || {
            tokio::time::timeout(Duration::from_secs(20), told.recv()).await.unwrap().unwrap()
        };
        let first = next().await;
        assert_eq!((first.changed, first.errors.len()), (0, 0));
        let new = world.pair(&["a.example"]);
        // As a careful program replaces a file.
        for (file, text) in [("one.pem", &new.cert), ("one.key", &new.key)] {
            let temporary = world.write("temporary", text);
            std::fs::rename(temporary, world.path(file)).unwrap();
        }
        while next().await.changed == 0 {}
        let client = Client::default().make();
        assert_eq!(meet(&tls, &client, "a.example").await.client.unwrap(), new.der());
        let dropped = world.pair(&["b.example"]);
        world.drop_in("b", &dropped);
        while next().await.changed == 0 {}
        assert_eq!(meet(&tls, &client, "b.example").await.client.unwrap(), dropped.der());
        world.write("one.key", "");
        while next().await.errors.is_empty() {}
        cancel.cancel();
    };
    let (watched, ()) = tokio::join!(watching, acts);
    watched.unwrap();
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_watched_on() {
    let world = World::new();
    let (a, b) = (world.pair(&["a.example"]), world.pair(&["b.example"]));
    world.drop_in("a", &a);
    let config = Config { directory: Some(world.path("certs.d")), ..Config::default() };
    let (tls, client) = (tls(&config), Client::default().make());
    let (tell, mut told) = mpsc::unbounded_channel();
    let cancel = CancellationToken::new();
    let watching = watch(tls.store().clone(), cancel.clone(), move |reload| {
        let _ = tell.send(reload);
    });
    let acts = async {
        let mut until = async |what: fn(&rouse_tls::Reload) -> bool| {
            let mut next = async || told.recv().await.unwrap();
            let found = async { while !what(&next().await) {} };
            tokio::time::timeout(Duration::from_secs(20), found).await.unwrap();
        };
        let served = async |name| meet(&tls, &client, name).await.client.ok();
        until(|_| true).await;
        for round in 0..3 {
            // Another takes its place, by a rename.
            std::fs::rename(world.path("certs.d"), world.path(&format!("old{round}"))).unwrap();
            std::fs::create_dir_all(world.path("certs.d")).unwrap();
            until(|reload| reload.removed == 1 && reload.errors.is_empty()).await;
            assert_eq!(served("a.example").await, None);
            // What is put into that one is seen too, though long after.
            world.drop_in("a", &a);
            until(|reload| reload.changed == 1 && reload.errors.is_empty()).await;
            assert_eq!(served("a.example").await, Some(a.der()));
        }
        // It is gone for a while: that is told once a look, and what was is served.
        std::fs::remove_dir_all(world.path("certs.d")).unwrap();
        until(|reload| reload.errors.len() == 1).await;
        assert_eq!(served("a.example").await, Some(a.der()));
        world.drop_in("b", &b);
        until(|reload| reload.errors.is_empty() && reload.removed == 1).await;
        assert_eq!((served("a.example").await, served("b.example").await), (None, Some(b.der())));
        cancel.cancel();
    };
    let (watched, ()) = tokio::join!(watching, acts);
    watched.unwrap();
}

#[tokio::test]
async fn what_is_not_there_can_not_be_watched() {
    let world = World::new();
    let config = Config { directory: Some(world.path("none")), ..world.config(&["a.example"]) };
    let (store, _) = rouse_tls::Store::open(&config);
    let error = watch(store.into(), CancellationToken::new(), |_| {}).await.unwrap_err();
    assert_eq!(error.path, world.path("none"));
}
