//! The certificates in force, and their renewal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tidegate::config::TlsSettings;
use tokio::sync::Mutex as Turn;

use super::error::TlsError;
use super::files::{self, Read};
use super::validity::Validity;
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
