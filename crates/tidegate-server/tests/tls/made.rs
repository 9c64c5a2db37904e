//! Certificates made for one test.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority that signs certificates.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Pair {
    pub(crate) fn cert(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Not the library's default name, which all would share: OpenSSL takes a certificate whose issuer has the same
        // name for self-signed.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns the authority's certificate, in PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    pub(crate) fn root(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()
    }

    /// Signs a certificate for this machine that ends with this year.
    pub(crate) fn sign(&self, last_year: i32) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost", "127.0.0.1", "tidegate.example"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "tidegate.example");
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        Pair { cert: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// A folder with the files of a server, and of one client.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
    pub(crate) ca: Authority,
    pub(crate) server: Pair,
    pub(crate) caller: Pair,
}

impl Folder {
    /// Makes `ca.pem`, `server.pem`, `server.key`, `caller.pem` and `caller.key`.
    pub(crate) fn new() -> Self {
        let ca = Authority::new();
        let (server, caller) = (ca.sign(2999), ca.sign(2999));
        let folder = Self { dir: tempfile::tempdir().unwrap(), ca, server, caller };
        folder.write("ca.pem", folder.ca.pem());
        folder.put("caller", &folder.caller);
        folder.put("server", &folder.server);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        write(&self.path(name), text);
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub(crate) fn put(&self, name: &str, pair: &Pair) {
        self.write(&format!("{name}.pem"), &pair.cert);
        self.write(&format!("{name}.key"), &pair.key);
    }
}

/// Writes a file that only its owner can read, replacing it as a whole.
fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::rename(beside, path).unwrap();
}
