//! How long certificates take to be read, and how much memory each of them takes: `cargo run
//! --release --example reload -p rouse-tls [COUNT…]`, by default 3 and 1,000, with P-256 keys.
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
};
use rouse_tls::{Config, load};

/// The median of so many is told.
const TIMES: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut counts = Vec::new();
    for text in std::env::args().skip(1) {
        counts.push(text.parse()?);
    }
    if counts.is_empty() {
        counts = vec![3, 1000];
    }
    let ca = ca()?;
    for count in counts {
        measure(count, &ca)?;
    }
    Ok(())
}

/// A root and an intermediate, as public CAs sign: a chain has two certificates.
fn ca() -> Result<(Issuer<'static, KeyPair>, String), rcgen::Error> {
    let make = |name: &str| {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Ok::<_, rcgen::Error>((params, KeyPair::generate()?))
    };
    let (params, key) = make("root")?;
    let root = Issuer::new(params, key);
    let (params, key) = make("intermediate")?;
    let chain = params.signed_by(&key, &root)?.pem();
    Ok((Issuer::new(params, key), chain))
}

fn measure(
    count: usize,
    (ca, chain): &(Issuer<'static, KeyPair>, String),
) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    write(dir.path(), count, ca, chain)?;
    let config = Config { directory: Some(dir.path().to_owned()), ..Config::default() };
    let began = Instant::now();
    let store = load(&config).map_err(|errors| format!("{errors:?}"))?;
    let first = began.elapsed();
    // The first has filled what was free on the heap, so that a second one has to grow it.
    let before = resident()?;
    let second = load(&config).map_err(|errors| format!("{errors:?}"))?;
    let memory = resident()?.saturating_sub(before) / count.max(1);
    drop(second);
    let (mut same, mut all) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        same.push(reload(&store, 0)?);
        write(dir.path(), count, ca, chain)?;
        all.push(reload(&store, count)?);
    }
    println!(
        "{count:>6} certificates: {first:.1?} at first, {:.1?} when all have changed, {:.1?} when \
         none has; {memory} bytes of memory each",
        median(all),
        median(same),
    );
    Ok(())
}

fn reload(store: &rouse_tls::Store, expected: usize) -> Result<Duration, Box<dyn Error>> {
    let began = Instant::now();
    let done = store.reload();
    let took = began.elapsed();
    if done.changed == expected && done.errors.is_empty() {
        Ok(took)
    } else {
        Err(format!("{done:?}").into())
    }
}

fn write(
    dir: &Path,
    count: usize,
    ca: &Issuer<'static, KeyPair>,
    chain: &str,
) -> Result<(), Box<dyn Error>> {
    for i in 0..count {
        let name = format!("site-{i}.example");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = CertificateParams::new([name.clone(), format!("www.{name}")])?;
        let certificate = params.signed_by(&key, ca)?.pem();
        let place = dir.join(name);
        std::fs::create_dir_all(&place)?;
        std::fs::write(place.join("fullchain.pem"), format!("{certificate}{chain}"))?;
        std::fs::write(place.join("privkey.pem"), key.serialize_pem())?;
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The memory that this process has, in bytes (proc(5): `smaps_rollup`).
fn resident() -> Result<usize, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("Anonymous:")).ok_or("no Anonymous")?;
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}
