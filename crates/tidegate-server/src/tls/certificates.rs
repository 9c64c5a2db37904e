//! The certificates in force, and their renewal.
//!
//! The period in which a certificate is valid is found by asking the verifier that this server and its callers use, so
//! no second certificate parser is needed. The verifier checks the dates before anything else, and reports the date that
//! a given time violates (RFC 5280, section 4.1.2.5).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use tidegate::config::TlsSettings;
use tokio::sync::Mutex as Turn;

use super::TlsError;
use super::files::{self, Read};
use crate::blocking_jobs::BlockingJobs;
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

    /// Reads the files again. Unusable files change nothing and are logged.
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

    /// Describes the certificate for `readyz`: until when it is valid, and why the last renewal was refused, if it was.
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
        validity.map_or_else(|| "an unknown time".to_owned(), |validity| files::timestamp(validity.ends))
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
            // Expired before 1970. All other answers mean that it was valid in 1970, so its beginning is taken as 0.
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

/// Returns why the certificate would be rejected at a time: its dates, or otherwise the missing signature of an
/// authority.
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
    let read = jobs.run(move || files::read(&these)).await;
    read.unwrap_or_else(|none| Err(TlsError::Slow { path: settings.cert.clone(), why: none.to_string() }))
}

fn warn(read: &Read) {
    for warning in &read.warnings {
        tracing::warn!("{warning}");
    }
}
