//! Reads the TLS files: certificates, their key, and the authorities of client certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};
use tidegate::config::{TlsSettings, read_file};
use tidegate::{Clock as _, SystemClock, Tick};

use super::TlsError;
use super::certificates::Validity;
use crate::files;

/// The most bytes of a file: a hundred times the size of a certificate chain. A larger file is probably a different
/// one.
const MOST: u64 = 1 << 20;

const CERT: &str = "certificate's";

const KEY: &str = "certificate key's";

const CLIENT_CA: &str = "client CA's";

/// The content of the files, checked.
#[derive(Debug)]
pub(super) struct Read {
    /// The TLS configuration, before a protocol is chosen.
    pub(super) config: ServerConfig,
    /// The server's certificate and its intermediate certificates.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The authorities of client certificates.
    pub(super) client_ca: Vec<CertificateDer<'static>>,
    /// When the chain is valid, if its dates can be read.
    pub(super) validity: Option<Validity>,
    /// Warnings about settings that work but are probably not intended.
    pub(super) warnings: Vec<String>,
}

/// Reads the files that encrypt a server's doors, to check them before a server is started. Returns warnings about
/// them: dates, permissions. May block as long as a file system does.
///
/// # Errors
/// [`TlsError`] if they cannot be used.
pub fn check_tls(settings: &TlsSettings) -> Result<Vec<String>, TlsError> {
    read(settings).map(|read| read.warnings)
}

/// Reads the files. May block as long as a file system does.
///
/// # Errors
/// [`TlsError`] if a file cannot be read, or certificate and key cannot be used together.
pub(super) fn read(settings: &TlsSettings) -> Result<Read, TlsError> {
    let chain = certificates(CERT, &settings.cert)?;
    let key = key(&settings.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit = |error: &Error| content(CERT, &settings.cert, format!("cannot be used: {error}"));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(&error))?;
    let client_ca = match &settings.client_ca {
        None => Vec::new(),
        Some(file) => certificates(CLIENT_CA, file)?,
    };
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => builder.with_client_cert_verifier(verifier(file, &client_ca, provider)?),
    };
    let mut config = builder.with_single_cert(chain.clone(), key).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::OtherKey { cert: settings.cert.clone(), key: settings.key.clone() }
        }
        Error::General(_) => content(
            KEY,
            &settings.key,
            "holds a key of a kind that is not supported; use RSA of 2,048 to 8,192 bits, ECDSA (P-256, P-384), or Ed25519".to_owned(),
        ),
        error => unfit(&error),
    })?;
    if settings.client_ca.is_some() {
        // No session resumption: a resumed session is not verified again, so for a day a client certificate would be
        // accepted that has expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    let validity = Validity::of_all(&chain);
    let mut warnings = Vec::new();
    warnings.extend(validity.and_then(|validity| outside(&settings.cert, validity)));
    if let Some(mode) = files::readable_by_everybody(&settings.key) {
        warnings.push(format!(
            "the {KEY} file {} can be read by every user of this machine (mode {mode:o}), who can then impersonate this server; remove that \
             right: chmod o-r",
            settings.key.display()
        ));
    }
    Ok(Read { config, chain, client_ca, validity, warnings })
}

/// Warns of a certificate that is not valid at present.
fn outside(cert: &Path, validity: Validity) -> Option<String> {
    let now = SystemClock::new().now().since(Tick::EPOCH).as_secs();
    let date = |seconds| timestamp(seconds);
    let wrong = if now > validity.ends {
        format!("ended at {}: callers refuse it; renew it", date(validity.ends))
    } else if now < validity.begins {
        format!(
            "holds from {} on: callers refuse it until then, unless this machine's clock is wrong",
            date(validity.begins)
        )
    } else {
        return None;
    };
    Some(format!("the {CERT} file {}: the certificate, or one behind it, {wrong}", cert.display()))
}

/// Formats a time for people.
pub(super) fn timestamp(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| format!("second {seconds}"), |time| time.to_string())
}

fn content(what: &'static str, path: &Path, why: String) -> TlsError {
    TlsError::Content { what, path: path.to_owned(), why }
}

fn bytes(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    read_file(path, MOST).map_err(|why| TlsError::File { what, path: path.to_owned(), why: Arc::new(why) })
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = bytes(what, path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(content(
            what,
            path,
            "holds no certificate in PEM; one begins with the line -----BEGIN CERTIFICATE-----".to_owned(),
        )),
        // The library's message may repeat a line of the file.
        Err(_) => {
            Err(content(what, path, "is damaged: a section of it is not PEM; write it anew".to_owned()))
        }
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = bytes(KEY, path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let encrypted = text.windows(9).any(|word| word == b"ENCRYPTED");
        let why = match error {
            pem::Error::NoItemsFound if encrypted => {
                "holds an encrypted key, and a server has nobody to type its passphrase; write it without one: openssl pkey -in FILE -out NEW"
            }
            pem::Error::NoItemsFound => {
                "holds no private key in PEM; one begins with the line -----BEGIN PRIVATE KEY-----"
            }
            _ => "is damaged: a section of it is not PEM; write it anew",
        };
        content(KEY, path, why.to_owned())
    })
}

fn verifier(
    file: &Path,
    certificates: &[CertificateDer<'static>],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for (number, certificate) in (1..).zip(certificates) {
        roots.add(certificate.clone()).map_err(|error| {
            content(CLIENT_CA, file, format!("cannot be used: certificate {number} of it: {error}"))
        })?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier.map_err(|error| content(CLIENT_CA, file, format!("cannot be used: {error}")))
}
