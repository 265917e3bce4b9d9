//! Reloads, and files that are no good.

use proptest::prelude::*;
use rouse_tls::{Config, LoadFault, Store, load};

use crate::support::{Client, World, file_of, meet, tls};

/// What is done to the two files of `one`, and the file and fault that are told.
type Break = (&'static str, fn(&World), &'static str, fn(&LoadFault) -> bool);

const BREAKS: &[Break] = &[
    (
        "no certificate",
        |w| drop(w.write("one.pem", "")),
        "one.pem",
        |f| matches!(f, LoadFault::NoCertificate),
    ),
    ("no key", |w| drop(w.write("one.key", "")), "one.key", |f| matches!(f, LoadFault::NoKey)),
    (
        "the key of another",
        |w| drop(w.write("one.key", &w.pair(&["a.example"]).key)),
        "one.key",
        |f| matches!(f, LoadFault::OtherKey(_)),
    ),
    (
        "a certificate without its key yet",
        |w| drop(w.write("one.pem", &w.pair(&["a.example"]).cert)),
        "one.key",
        |f| matches!(f, LoadFault::OtherKey(_)),
    ),
    ("cut off", |w| cut(w, "one.pem"), "one.pem", |f| matches!(f, LoadFault::Pem(_))),
    ("a key cut off", |w| cut(w, "one.key"), "one.key", |f| matches!(f, LoadFault::Pem(_))),
    (
        "gone",
        |w| std::fs::remove_file(w.path("one.pem")).unwrap(),
        "one.pem",
        |f| matches!(f, LoadFault::Unreadable(_)),
    ),
    (
        "a key gone",
        |w| std::fs::remove_file(w.path("one.key")).unwrap(),
        "one.key",
        |f| matches!(f, LoadFault::Unreadable(_)),
    ),
    (
        "a directory",
        |w| {
            std::fs::remove_file(w.path("one.pem")).unwrap();
            std::fs::create_dir(w.path("one.pem")).unwrap();
        },
        "one.pem",
        |f| matches!(f, LoadFault::NotAFile),
    ),
    (
        "far too long",
        |w| drop(w.write("one.pem", &"x".repeat(2 << 20))),
        "one.pem",
        |f| matches!(f, LoadFault::TooLong),
    ),
    (
        "a chain without end",
        |w| drop(w.write("one.pem", &w.pair(&["a.example"]).cert.repeat(17))),
        "one.pem",
        |f| matches!(f, LoadFault::LongChain),
    ),
    (
        "for nobody",
        |w| drop(w.put("one", &w.pair(&[]))),
        "one.pem",
        |f| matches!(f, LoadFault::NoNames),
    ),
    (
        "no DER within",
        |w| {
            let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
            drop(w.write("one.pem", pem));
        },
        "one.pem",
        |f| matches!(f, LoadFault::BadCertificate(_)),
    ),
    (
        "no key within",
        |w| {
            let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
            drop(w.write("one.key", pem));
        },
        "one.key",
        |f| matches!(f, LoadFault::BadKey(_)),
    ),
];

fn cut(world: &World, name: &str) {
    let text = std::fs::read_to_string(world.path(name)).unwrap();
    world.write(name, &text[..text.len() / 2]);
}

#[tokio::test]
async fn a_bad_file_leaves_the_old_certificate_and_is_named() {
    let client = Client::default().make();
    for (what, broken, file, is) in BREAKS {
        let world = World::new();
        let (old, other) = (world.pair(&["a.example"]), world.pair(&["b.example"]));
        let certificates = vec![world.put("one", &old), world.put("two", &other)];
        let config = Config { certificates, ..Config::default() };
        let tls = tls(&config);
        broken(&world);
        let newer = world.pair(&["b.example"]);
        world.put("two", &newer);
        let reload = tls.store().reload();
        assert_eq!((reload.certificates, reload.changed, reload.errors.len()), (2, 1, 1), "{what}");
        let error = &reload.errors[0];
        assert_eq!(file_of(error, &world), *file, "{what}");
        assert!(is(&error.fault), "{what}: {error}");
        assert_eq!(meet(&tls, &client, "a.example").await.client.unwrap(), old.der(), "{what}");
        // Its neighbour is not held up.
        assert_eq!(meet(&tls, &client, "b.example").await.client.unwrap(), newer.der(), "{what}");
        // At the start the same is told, and no less of the rest is there.
        assert_eq!(load(&config).unwrap_err().len(), 1, "{what}");
        assert_eq!(Store::open(&config).0.certificates().len(), 1, "{what}");
    }
}

#[tokio::test]
async fn all_errors_are_told_at_once_and_a_good_file_heals() {
    let world = World::new();
    let mut config = world.config(&["a.example"]);
    world.drop_in("b", &world.pair(&["b.example"]));
    config.directory = Some(world.path("certs.d"));
    config.client_ca = Some(world.write("ca.pem", &world.ca_pem));
    let tls = tls(&config);
    for file in ["one.pem", "certs.d/b/privkey.pem", "ca.pem"] {
        world.write(file, "");
    }
    let files = |errors: &[_]| errors.iter().map(|e| file_of(e, &world)).collect::<Vec<_>>();
    let expected = ["one.pem", "certs.d/b/privkey.pem", "ca.pem"];
    assert_eq!(files(&tls.store().reload().errors), expected);
    assert_eq!(files(&load(&config).unwrap_err()), expected);
    let new = world.pair(&["a.example"]);
    world.put("one", &new);
    world.drop_in("b", &world.pair(&["b.example"]));
    world.write("ca.pem", &world.ca_pem);
    let reload = tls.store().reload();
    assert_eq!((reload.errors.len(), reload.changed), (0, 2), "the CA is what it was");
    let client = Client::default().make();
    assert_eq!(meet(&tls, &client, "a.example").await.client.unwrap(), new.der());
    assert_eq!(tls.store().reload().changed, 0);
}

#[tokio::test]
async fn a_directory_gives_and_takes() {
    let world = World::new();
    world.drop_in("a", &world.pair(&["a.example"]));
    let config = Config { directory: Some(world.path("certs.d")), ..Config::default() };
    let (tls, client) = (tls(&config), Client::default().make());
    let served = async |name| meet(&tls, &client, name).await.server.is_ok();
    assert!(served("a.example").await && !served("b.example").await);
    world.drop_in("b", &world.pair(&["b.example"]));
    std::fs::remove_dir_all(world.path("certs.d/a")).unwrap();
    let reload = tls.store().reload();
    assert_eq!((reload.certificates, reload.changed, reload.removed), (1, 1, 1));
    assert!(!served("a.example").await && served("b.example").await);
    // A directory that is gone as a whole was not emptied.
    std::fs::rename(world.path("certs.d"), world.path("elsewhere")).unwrap();
    let reload = tls.store().reload();
    assert_eq!((reload.errors.len(), reload.removed), (1, 0));
    assert!(served("b.example").await);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_file_does_any_harm(at in 0usize..400, with in "[ -~\n]{0,40}", der in proptest::collection::vec(any::<u8>(), 0..8)) {
        let world = World::new();
        let mut pair = world.pair(&["a.example"]);
        let range = at.min(pair.cert.len())..(at + with.len()).min(pair.cert.len());
        pair.cert.replace_range(range, &with);
        pair.key.insert_str(at.min(pair.key.len()), &String::from_utf8_lossy(&der));
        let config = Config { certificates: vec![world.put("x", &pair)], ..Config::default() };
        // Whatever it is, it is told, or served.
        let (store, errors) = Store::open(&config);
        prop_assert_eq!(store.certificates().len() + errors.len(), 1);
    }
}
