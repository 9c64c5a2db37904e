//! The certificates in force, and their renewal.
//!
//! Their dates come from the verifier of rustls, so no second parser is needed: it checks them before anything else,
//! and reports the date that a given time violates (RFC 5280, section 4.1.2.5).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore, ServerConfig};
use tidegate::Tick;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::config::{TlsSettings, read_file};
use tokio::sync::Mutex as Turn;

use super::TlsError;
use crate::files::{self, BlockingJobs};
use crate::metrics::Transport;
use crate::metrics::tls::{self, Failures};

/// The longest wait for reading the files, as for the configuration.
const PATIENCE: Duration = Duration::from_secs(10);

/// The certificates that handshakes use at present.
#[derive(Debug)]
struct InForce {
    /// Indexed by the position of the transport in [`Transport::ALL`].
    configs: [Arc<ServerConfig>; Transport::ALL.len()],
    chain: Vec<CertificateDer<'static>>,
    client_ca: Vec<CertificateDer<'static>>,
    validity: Option<Validity>,
}

/// The certificates of a server. The paths of the files do not change while it runs; their content may.
#[derive(Debug)]
pub(crate) struct Certificates {
    settings: TlsSettings,
    in_force: ArcSwap<InForce>,
    /// Why the last renewal was refused, unless a successful one followed.
    refused: Mutex<Option<Arc<TlsError>>>,
    jobs: BlockingJobs,
    /// Locked while the files are read and stored, so that renewals do not overlap and the latest wins.
    turn: Turn<()>,
    /// Counts failed handshakes.
    pub(crate) failures: Failures,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], also if they cannot be read within 10 s.
    pub(crate) async fn open(settings: TlsSettings) -> Result<Self, TlsError> {
        let jobs = BlockingJobs::new(PATIENCE);
        let read = read(&jobs, &settings).await?;
        warn(&read);
        Ok(Self {
            settings,
            in_force: ArcSwap::from_pointee(InForce::of(read)),
            refused: Mutex::default(),
            jobs,
            turn: Turn::new(()),
            failures: Failures::default(),
        })
    }

    /// Reads the files again. Unusable ones change nothing and are logged.
    pub(crate) async fn renew(&self) {
        let _turn = self.turn.lock().await;
        let read = match read(&self.jobs, &self.settings).await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!("{error}");
                tracing::error!("the certificate was refused; the old one stays in use");
                *self.refused.lock() = Some(Arc::new(error));
                return;
            }
        };
        *self.refused.lock() = None;
        let before = self.in_force.load();
        // The key cannot change without the certificate. If nothing has changed, the old value is kept, with its
        // resumable sessions.
        if before.chain == read.chain && before.client_ca == read.client_ca {
            return;
        }
        warn(&read);
        self.in_force.store(Arc::new(InForce::of(read)));
        tracing::info!(cert = %self.settings.cert.display(), until = self.until(), "the certificate was read again");
    }

    /// Returns the paths of the files, to be watched.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.settings.cert, &self.settings.key]
            .into_iter()
            .chain(&self.settings.client_ca)
            .map(PathBuf::as_path)
    }

    /// Returns the TLS configuration for handshakes of this protocol.
    pub(crate) fn config(&self, transport: Transport) -> Arc<ServerConfig> {
        Arc::clone(&self.in_force.load().configs[transport as usize])
    }

    /// Describes the certificate for `readyz`: until when it is valid, and why the last renewal was refused, if it
    /// was.
    pub(crate) fn describe(&self) -> String {
        let until = self.until();
        match &*self.refused.lock() {
            None => format!("[+] tls: the certificate is valid until {until}"),
            Some(error) => {
                format!(
                    "[!] tls: the certificate is valid until {until}; the last renewal was refused: {error}"
                )
            }
        }
    }

    /// Registers the metrics of certificates and handshakes.
    pub(crate) fn show(&self, registry: &mut Registry) {
        let ends = self.in_force.load().validity.map(|validity| validity.ends);
        tls::show(registry, ends, self.refused.lock().is_none(), &self.failures);
    }

    fn until(&self) -> String {
        let validity = self.in_force.load().validity;
        validity.map_or_else(|| "an unknown time".to_owned(), |validity| timestamp(validity.ends))
    }
}

impl InForce {
    fn of(read: Read) -> Self {
        let Read { config, chain, client_ca, validity, .. } = read;
        let speaking = |transport: Transport| {
            let mut config = config.clone();
            config.alpn_protocols = match transport {
                Transport::http => vec![b"http/1.1".to_vec()],
                Transport::grpc => vec![b"h2".to_vec()],
                Transport::resp => Vec::new(),
            };
            Arc::new(config)
        };
        Self { configs: Transport::ALL.map(speaking), chain, client_ca, validity }
    }
}

/// The period in which a certificate is valid, in seconds of Unix time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) begins: u64,
    pub(super) ends: u64,
}

impl Validity {
    /// Returns the period of one certificate; `None` if its dates cannot be read.
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let begins = match refusal(certificate, 0)? {
            CertificateError::NotValidYetContext { not_before, .. } => not_before.as_secs(),
            // Expired before 1970. All other answers mean that it was valid in 1970, so its beginning is taken as
            // 0.
            CertificateError::ExpiredContext { .. } => return None,
            _ => 0,
        };
        match refusal(certificate, u64::MAX)? {
            CertificateError::ExpiredContext { not_after, .. } => {
                Some(Self { begins, ends: not_after.as_secs() })
            }
            _ => None,
        }
    }

    /// Returns the period in which all of these are valid.
    pub(super) fn of_all(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let spans = chain.iter().filter_map(Self::of);
        spans.reduce(|one, other| Self {
            begins: one.begins.max(other.begins),
            ends: one.ends.min(other.ends),
        })
    }
}

/// Returns why a certificate would be rejected at a time: its dates, or else the missing authority.
fn refusal(certificate: &CertificateDer<'_>, seconds: u64) -> Option<CertificateError> {
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], time, &[]) {
        Err(Error::InvalidCertificate(refusal)) => Some(refusal),
        _ => None,
    }
}

async fn read(jobs: &BlockingJobs, settings: &TlsSettings) -> Result<Read, TlsError> {
    let these = settings.clone();
    let read = jobs.run(move || read_files(&these)).await;
    read.unwrap_or_else(|none| Err(TlsError::Slow { path: settings.cert.clone(), why: none.to_string() }))
}

fn warn(read: &Read) {
    for warning in &read.warnings {
        tracing::warn!("{warning}");
    }
}

// Reads the TLS files: certificates, their key, and the authorities of client certificates.

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

/// Reads the files. May block as long as a file system does.
///
/// # Errors
/// [`TlsError`] if a file cannot be read, or certificate and key do not go together.
pub(super) fn read_files(settings: &TlsSettings) -> Result<Read, TlsError> {
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
        // No session resumption: a resumed session is not verified again, so an expired client certificate would be
        // accepted for a day.
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
