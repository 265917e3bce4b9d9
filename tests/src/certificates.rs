//! Certificates as files, made by openssl.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Certificate {
    /// One that signs itself, good for `hosts`, of which the first is its name, as `NAME.pem` and
    /// `NAME.key` in `directory`. What was there before is replaced.
    pub fn of(directory: &Path, name: &str, hosts: &[&str]) -> Self {
        let names: Vec<_> = hosts.iter().map(|host| format!("DNS:{host}")).collect();
        // Not an authority's: clients refuse those at a server.
        let more = format!("basicConstraints = CA:FALSE\nsubjectAltName = {}\n", names.join(", "));
        Self::signing_itself(directory, name, hosts[0], &more)
    }

    /// An authority's.
    pub fn authority(directory: &Path, name: &str) -> Self {
        Self::signing_itself(directory, name, name, "basicConstraints = critical, CA:TRUE\n")
    }

    /// A client's, signed by `self`, an authority's.
    pub fn sign(&self, directory: &Path, name: &str) -> Self {
        let made = Self::named(directory, name);
        let [request, about] = ["csr", "cnf"].map(|end| directory.join(format!("{name}.{end}")));
        write(&about, "basicConstraints = CA:FALSE\nextendedKeyUsage = clientAuth\n");
        let key =
            ["-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout"];
        run(Command::new("openssl")
            .arg("req")
            .args(key)
            .arg(&made.key)
            .args(["-subj", &format!("/CN={name}"), "-out"])
            .arg(&request));
        run(Command::new("openssl")
            .args(["x509", "-req", "-days", "30", "-in"])
            .arg(&request)
            .arg("-CA")
            .arg(&self.cert)
            .arg("-CAkey")
            .arg(&self.key)
            .args(["-CAcreateserial", "-extfile"])
            .arg(&about)
            .arg("-out")
            .arg(&made.cert));
        made
    }

    fn named(directory: &Path, name: &str) -> Self {
        let [cert, key] = ["pem", "key"].map(|end| directory.join(format!("{name}.{end}")));
        Self { cert, key }
    }

    fn signing_itself(directory: &Path, name: &str, subject: &str, more: &str) -> Self {
        let made = Self::named(directory, name);
        let about = directory.join(format!("{name}.cnf"));
        let text = format!(
            "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n\
             [dn]\nCN = {subject}\n[ext]\n{more}"
        );
        write(&about, &text);
        run(Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "30", "-config"])
            .arg(&about)
            .arg("-keyout")
            .arg(&made.key)
            .arg("-out")
            .arg(&made.cert));
        made
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file of ours can be written");
}

fn run(command: &mut Command) {
    let status = command.stderr(Stdio::null()).stdout(Stdio::null()).status();
    assert!(
        status.expect("openssl is installed: ./dev setup").success(),
        "openssl makes a certificate: {command:?}"
    );
}
