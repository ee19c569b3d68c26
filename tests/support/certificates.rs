//! Certificates, made with openssl.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::TempDir;

/// All in PEM.
#[derive(Clone)]
pub struct Certificate {
    pub certificate: String,
    pub key: String,
    /// Of those that sign clients' certificates.
    authority: String,
}

impl Certificate {
    /// One that is trusted by nothing, for 127.0.0.1 and localhost. It is made once in a process.
    pub fn any() -> &'static Certificate {
        static ANY: OnceLock<Certificate> = OnceLock::new();
        ANY.get_or_init(|| Authority::new().signs(&[HERE]))
    }

    /// What a server with this certificate is started with.
    pub fn args(&self, dir: &Path) -> [String; 14] {
        let file = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        [
            "--tls-cert-file".into(),
            file("certificate", &self.certificate),
            "--tls-key-file".into(),
            file("key", &self.key),
            "--tls-ca-cert-file".into(),
            file("authority", &self.authority),
            "--tls-auth-clients".into(),
            "no".into(),
            "--tls-cluster".into(),
            "yes".into(),
            "--tls-replication".into(),
            "yes".into(),
            "--port".into(),
            "0".into(),
        ]
    }
}

/// The names of the servers of these tests.
pub const HERE: &str = "subjectAltName=DNS:localhost,IP:127.0.0.1";

/// One that signs certificates.
pub struct Authority {
    dir: TempDir,
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let dir = TempDir::new();
        // No two have the same name.
        let name = format!("/CN=CA in {}", dir.path().file_name().unwrap().display());
        request(&dir, "ca", &["-x509", "-days", "2", "-subj", &name]);
        let file = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
        Authority {
            certificate: file("ca.crt"),
            key: file("ca.key"),
            dir,
        }
    }

    /// Itself, as if it were a server's.
    pub fn own(&self) -> Certificate {
        Certificate {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            authority: self.certificate.clone(),
        }
    }

    /// With these extensions.
    pub fn signs(&self, extensions: &[&str]) -> Certificate {
        let mut args = vec!["-x509", "-days", "2", "-subj", "/CN=signed"];
        args.extend(["-CA", "ca.crt", "-CAkey", "ca.key"]);
        args.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
        for extension in extensions {
            args.extend(["-addext", *extension]);
        }
        request(&self.dir, "signed", &args);
        self.read("signed")
    }

    /// For [`HERE`], valid from one date to another: 20200101000000Z.
    pub fn signs_for(&self, from: &str, to: &str) -> Certificate {
        let file = |name: &str, text: &str| {
            std::fs::write(self.dir.path().join(name), text).unwrap();
        };
        request(&self.dir, "dated", &["-subj", "/CN=signed"]);
        file("index", "");
        file("serial", "10");
        file(
            "conf",
            "[ca]\ndefault_ca=a\n[a]\nnew_certs_dir=.\ndatabase=index\nserial=serial\ndefault_md=sha256\n\
             policy=p\n[p]\ncommonName=supplied\n",
        );
        file("extensions", HERE);
        let mut args = vec!["ca", "-batch", "-notext", "-config", "conf"];
        args.extend(["-cert", "ca.crt", "-keyfile", "ca.key"]);
        args.extend(["-in", "dated.csr", "-out", "dated.crt"]);
        args.extend(["-extfile", "extensions", "-startdate", from, "-enddate", to]);
        openssl(&self.dir, &args);
        self.read("dated")
    }

    fn read(&self, name: &str) -> Certificate {
        let file = |kind| {
            let path = self.dir.path().join(format!("{name}.{kind}"));
            std::fs::read_to_string(path).unwrap()
        };
        Certificate {
            certificate: file("crt"),
            key: file("key"),
            authority: self.certificate.clone(),
        }
    }
}

/// A new key, and a certificate for it or a request for one.
fn request(dir: &TempDir, name: &str, more: &[&str]) {
    let key = format!("{name}.key");
    let kind = if more.contains(&"-x509") {
        "crt"
    } else {
        "csr"
    };
    let out = format!("{name}.{kind}");
    let mut args = vec![
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ];
    args.extend(["-nodes", "-keyout", &key, "-out", &out]);
    args.extend(more);
    openssl(dir, &args);
}

fn openssl(dir: &TempDir, args: &[&str]) {
    let made = Command::new("openssl")
        .args(args)
        .current_dir(dir.path())
        .output()
        .expect("openssl makes certificates (apt-get install openssl)");
    assert!(made.status.success(), "{args:?}: {made:?}");
}
