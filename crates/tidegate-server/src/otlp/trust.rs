//! TLS between this program and a collector at an `https://` address, with the files that the environment names.

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tidegate::config::read_file;

use super::error::OtlpError;

/// The variables with files of root certificates for the collector. The most specific one comes first, here and below.
const ROOTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
/// The variables with files of the client certificate.
const CERTIFICATES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"];
/// The variables with files of the client's private key.
const KEYS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY"];
/// The most bytes of such a file: more than all authorities of a system take.
const MOST: u64 = 1 << 20;

/// The content of a file that a variable names.
struct Named {
    variable: &'static str,
    path: String,
    pem: Vec<u8>,
}

/// The roots that the collector's certificate must come from, and the client certificate.
pub(super) struct Trust {
    /// `None`: the system's roots.
    roots: Option<Named>,
    own: Option<(Named, Named)>,
}

impl Trust {
    /// Reads the files that the environment names.
    ///
    /// # Errors
    /// [`OtlpError::Certificate`] for a file that cannot be read, [`OtlpError::Pair`] for a certificate without its
    /// key.
    pub(super) fn read() -> Result<Self, OtlpError> {
        let own = match (named(CERTIFICATES)?, named(KEYS)?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(one), None) => return Err(OtlpError::Pair { named: one.variable, missing: KEYS[1] }),
            (None, Some(one)) => {
                return Err(OtlpError::Pair { named: one.variable, missing: CERTIFICATES[1] });
            }
            (None, None) => None,
        };
        Ok(Self { roots: named(ROOTS)?, own })
    }

    /// Returns the settings for the gRPC client.
    pub(super) fn for_grpc(&self) -> ClientTlsConfig {
        let tls = ClientTlsConfig::new();
        let tls = match &self.roots {
            None => tls.with_native_roots(),
            Some(roots) => tls.ca_certificate(Certificate::from_pem(&roots.pem)),
        };
        match &self.own {
            None => tls,
            Some((certificate, key)) => tls.identity(Identity::from_pem(&certificate.pem, &key.pem)),
        }
    }

    /// Returns the settings for the HTTP client.
    ///
    /// # Errors
    /// [`OtlpError::Certificate`] for a file whose content is not valid.
    pub(super) fn for_http(&self) -> Result<ClientConfig, OtlpError> {
        use hyper_rustls::ConfigBuilderExt as _;

        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|why| OtlpError::Roots { why: why.to_string() })?;
        let builder = match &self.roots {
            None => builder.with_native_roots().map_err(|why| OtlpError::Roots { why: why.to_string() })?,
            Some(file) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(all::<CertificateDer<'_>>(file, "certificate")?);
                builder.with_root_certificates(roots)
            }
        };
        let Some((certificate, key)) = &self.own else { return Ok(builder.with_no_client_auth()) };
        let chain = all::<CertificateDer<'_>>(certificate, "certificate")?;
        let its_key = all::<PrivateKeyDer<'_>>(key, "private key")?.remove(0);
        builder.with_client_auth_cert(chain, its_key).map_err(|why| key.wrong(why.to_string()))
    }
}

impl Named {
    fn wrong(&self, why: String) -> OtlpError {
        OtlpError::Certificate { variable: self.variable, path: self.path.clone(), why }
    }
}

/// Reads the file named by the first of these variables that is set.
fn named(variables: [&'static str; 2]) -> Result<Option<Named>, OtlpError> {
    let set = |name: &'static str| Some((name, std::env::var(name).ok().filter(|path| !path.is_empty())?));
    let Some((variable, path)) = variables.into_iter().find_map(set) else { return Ok(None) };
    match read_file(path.as_ref(), MOST) {
        Ok(pem) => Ok(Some(Named { variable, path, pem })),
        Err(error) => Err(OtlpError::Certificate { variable, path, why: error.to_string() }),
    }
}

/// Reads all PEM sections of one kind from a file; there must be at least one. Errors do not repeat the content.
fn all<T: PemObject>(file: &Named, what: &str) -> Result<Vec<T>, OtlpError> {
    let found: Vec<T> = T::pem_slice_iter(&file.pem).filter_map(Result::ok).collect();
    if found.is_empty() { Err(file.wrong(format!("holds no {what} in PEM"))) } else { Ok(found) }
}
