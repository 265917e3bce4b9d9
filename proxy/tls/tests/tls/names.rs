//! Who is served which certificate, and what is agreed on.

use rcgen::PKCS_ED25519;
use rouse_tls::{Alpn, Config, HandshakeError, LoadFault, Version, load};
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, Error, SignatureScheme};

use crate::support::{Client, Met, World, meet, tls};

fn alert(met: &Met) -> AlertDescription {
    let error = met.client.as_ref().unwrap_err().get_ref().unwrap();
    match error.downcast_ref::<Error>() {
        Some(Error::AlertReceived(alert)) => *alert,
        other => panic!("no alert but {other:?}"),
    }
}

#[tokio::test]
async fn a_name_finds_its_certificate_and_nothing_else_does() {
    let world = World::new();
    let (exact, wild) = (world.pair(&["a.example", "x.b.example"]), world.pair(&["*.b.example"]));
    world.drop_in("wild", &wild);
    world.write("certs.d/README", "no certificate");
    world.write("certs.d/..data/x", "no certificate");
    let config = Config {
        certificates: vec![world.put("exact", &exact)],
        directory: Some(world.path("certs.d")),
        ..Config::default()
    };
    let (tls, client) = (tls(&config), Client::default().make());
    for (name, pair) in [
        ("a.example", &exact),
        ("x.b.example", &exact),
        ("y.b.example", &wild),
        ("Y.B.example", &wild),
        ("a.example.", &exact),
    ] {
        let met = meet(&tls, &client, name).await;
        assert_eq!(met.client.unwrap(), pair.der(), "{name}");
        let expected = name.trim_end_matches('.').to_lowercase();
        assert_eq!(met.server.unwrap().server_name.as_deref(), Some(&*expected));
    }
    for name in ["b.example", "z.y.b.example", "z.a.example", "c.example"] {
        let met = meet(&tls, &client, name).await;
        assert_eq!(alert(&met), AlertDescription::UnrecognisedName, "{name}");
        let error = met.server.unwrap_err();
        assert_eq!(error.kind(), "no_certificate");
        assert_eq!(error.to_string(), format!("no certificate is for {name}"));
    }
    let met = meet(&tls, &client, "127.0.0.1").await;
    assert_eq!(alert(&met), AlertDescription::MissingExtension);
    assert!(matches!(met.server, Err(HandshakeError::NoCertificate(None))), "{:?}", met.server);
}

#[tokio::test]
async fn the_default_is_for_everyone_else() {
    let world = World::new();
    let (a, wild) = (world.pair(&["a.example"]), world.pair(&["*.b.example"]));
    let certificates = vec![world.put("a", &a), world.put("wild", &wild)];
    for (default, pair) in [("a.example", &a), ("*.b.example", &wild), ("c.b.example", &wild)] {
        let default = Some(default.parse().unwrap());
        let config = Config { certificates: certificates.clone(), default, ..Config::default() };
        let (tls, client) = (tls(&config), Client::default().make());
        for name in ["c.example", "127.0.0.1"] {
            assert_eq!(meet(&tls, &client, name).await.client.unwrap(), pair.der());
        }
        assert_eq!(meet(&tls, &client, "a.example").await.client.unwrap(), a.der());
    }
    let default = Some("d.example".parse().unwrap());
    let errors = load(&Config { certificates, default, ..Config::default() }).unwrap_err();
    assert!(matches!(&errors[..], [e] if matches!(e.fault, LoadFault::NoDefault(_))), "{errors:?}");
}

#[tokio::test]
async fn of_two_for_a_name_the_one_that_the_client_can_check_is_served() {
    let world = World::new();
    let (ed, ec) = (world.pair_of(&["a.example"], &PKCS_ED25519), world.pair(&["a.example"]));
    let certificates = vec![world.put("ed", &ed), world.put("ec", &ec)];
    let tls = tls(&Config { certificates, ..Config::default() });
    let only = |scheme| Client { schemes: vec![scheme], ..Client::default() }.make();
    let old = only(SignatureScheme::ECDSA_NISTP256_SHA256);
    assert_eq!(meet(&tls, &old, "a.example").await.client.unwrap(), ec.der());
    let new = only(SignatureScheme::ED25519);
    assert_eq!(meet(&tls, &new, "a.example").await.client.unwrap(), ed.der());
}

#[tokio::test]
async fn managed_certificates_stand_behind_files_of_the_same_name() {
    let world = World::new();
    let tls = tls(&world.config(&["a.example", "*.b.example"]));
    let (file, managed) = (world.path("one.pem"), world.pair(&["a.example"]));
    let file_der = {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        CertificateDer::from_pem_file(&file).unwrap()
    };
    let client = Client::default().make();
    for name in ["a.example", "x.b.example", "*.c.example"] {
        tls.store().set_managed(&name.parse().unwrap(), managed.certified()).unwrap();
    }
    for (name, der) in [
        ("a.example", &file_der),
        ("y.b.example", &file_der),
        ("x.b.example", &managed.der()),
        ("x.c.example", &managed.der()),
    ] {
        assert_eq!(meet(&tls, &client, name).await.client.unwrap(), *der, "{name}");
    }
    let infos = tls.store().certificates();
    assert_eq!(infos.len(), 4);
    assert_eq!(infos[0].names, ["a.example", "*.b.example"]);
    assert_eq!(infos[0].file.as_ref(), Some(&file));
    let expiry = infos[3].not_after.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(expiry.as_secs(), 2_208_988_800, "2040-01-01T00:00:00Z");
    assert!(tls.store().clear_managed(&"x.b.example".parse().unwrap()));
    // A session that is resumed shows the certificate that it began with.
    let client = Client::default().make();
    assert_eq!(meet(&tls, &client, "x.b.example").await.client.unwrap(), file_der);
}

#[tokio::test]
async fn a_key_of_another_is_not_taken_over() {
    let world = World::new();
    let tls = tls(&world.config(&["a.example"]));
    let (a, b) = (world.pair(&["b.example"]), world.pair(&["b.example"]));
    let mut mixed = a.certified();
    mixed.cert = vec![b.der()];
    let name = "b.example".parse().unwrap();
    assert!(tls.store().set_managed(&name, mixed.clone()).is_err());
    assert!(tls.store().set_challenge(&name, mixed).is_err());
    assert!(tls.store().set_challenge(&"*.b.example".parse().unwrap(), a.certified()).is_err());
    assert_eq!(tls.store().certificates().len(), 1);
}

#[tokio::test]
async fn the_protocol_within_is_agreed_on() {
    let world = World::new();
    let mut config = world.config(&["a.example"]);
    let table: [(&[Alpn], &'static [&'static str], Option<Alpn>); 5] = [
        (&[Alpn::H2, Alpn::Http11], &["http/1.1", "h2"], Some(Alpn::H2)),
        (&[Alpn::Http11, Alpn::H2], &["h2", "http/1.1"], Some(Alpn::Http11)),
        (&[Alpn::H2, Alpn::Http11], &["x", "http/1.1"], Some(Alpn::Http11)),
        (&[Alpn::Http11], &["h2", "http/1.1"], Some(Alpn::Http11)),
        (&[Alpn::H2, Alpn::Http11], &[], None),
    ];
    for (ours, theirs, agreed) in table {
        config.alpn = ours.to_vec();
        let client = Client { alpn: theirs, ..Client::default() }.make();
        let facts = meet(&tls(&config), &client, "a.example").await.server.unwrap();
        assert_eq!(facts.alpn, agreed, "{ours:?} {theirs:?}");
    }
    let client = Client { alpn: &["x", "acme-tls/1"], ..Client::default() }.make();
    let met = meet(&tls(&config), &client, "a.example").await;
    assert_eq!(alert(&met), AlertDescription::NoApplicationProtocol);
    assert_eq!(met.server.unwrap_err().kind(), "protocol");
}

#[tokio::test]
async fn the_version_is_the_newest_that_both_speak_and_no_older_than_allowed() {
    let world = World::new();
    let mut config = world.config(&["a.example"]);
    let (old, new) = (
        Client { versions: vec![&TLS12], ..Client::default() }.make(),
        Client { versions: vec![&TLS12, &TLS13], ..Client::default() }.make(),
    );
    let both = tls(&config);
    let version = |met: Met| met.server.unwrap().version;
    assert_eq!(version(meet(&both, &old, "a.example").await), Version::Tls12);
    assert_eq!(version(meet(&both, &new, "a.example").await), Version::Tls13);
    config.min_version = Version::Tls13;
    let strict = tls(&config);
    assert_eq!(version(meet(&strict, &new, "a.example").await), Version::Tls13);
    let met = meet(&strict, &old, "a.example").await;
    assert_eq!(met.server.as_ref().unwrap_err().kind(), "protocol");
    assert_eq!(alert(&met), AlertDescription::ProtocolVersion);
}
