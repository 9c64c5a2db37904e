//! TLS for clients: how the server's certificate is checked, and which certificate is sent to it.

#[cfg(not(feature = "tls"))]
pub(crate) use absent::Encrypted;
#[cfg(feature = "tls")]
pub(crate) use with_rustls::Encrypted;

#[cfg(feature = "tls")]
mod with_rustls {
    use std::path::Path;
    use std::sync::Arc;

    use anyhow::{Context as _, Result};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tidegate::config::read_file;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use crate::args::Trust;
    use crate::exit::Mistake;
    use crate::policies;

    /// The most bytes of a file: a system's public certificates take a quarter of a megabyte.
    const MOST: u64 = 4 << 20;

    /// The TLS settings of a connection.
    #[derive(Clone, Debug)]
    pub(crate) struct Encrypted(Arc<ClientConfig>);

    impl Encrypted {
        /// Reads the files for the server at this URL. `protocol` is the ALPN name of the protocol spoken with it;
        /// `None` if it has none.
        ///
        /// # Errors
        /// Files that are not named, cannot be read, or lack the expected contents.
        pub(crate) fn read(url: &str, trust: &Trust, protocol: Option<&str>) -> Result<Self> {
            let Some(ca) = &trust.ca else {
                let wrong = format!(
                    "the server `{url}` uses TLS, and its certificate cannot be checked without --ca FILE (TIDEGATE_CA); name \
                     a file with that certificate, or with its authority's"
                );
                return Err(Mistake(wrong).into());
            };
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(all::<CertificateDer<'_>>(ca, "--ca", "certificate")?);
            if roots.is_empty() {
                let wrong = format!("--ca: {} holds no certificate that can be used", ca.display());
                return Err(Mistake(wrong).into());
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots);
            let mut config = match (&trust.client_cert, &trust.client_key) {
                (None, None) => builder.with_no_client_auth(),
                (Some(cert), Some(key)) => {
                    let chain = all::<CertificateDer<'_>>(cert, "--client-cert", "certificate")?;
                    let key = all::<PrivateKeyDer<'_>>(key, "--client-key", "private key")?.remove(0);
                    builder.with_client_auth_cert(chain, key).map_err(|error| {
                        Mistake(format!("--client-cert {} and --client-key: {error}", cert.display()))
                    })?
                }
                _ => {
                    let wrong = "--client-cert and --client-key go together; name both";
                    return Err(Mistake(wrong.to_owned()).into());
                }
            };
            config.alpn_protocols = protocol.into_iter().map(|name| name.as_bytes().to_vec()).collect();
            Ok(Self(Arc::new(config)))
        }

        /// Performs the handshake with a server of this name.
        ///
        /// # Errors
        /// The reason why the server's certificate, or this client's own, was rejected.
        pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
            let name = ServerName::try_from(host.to_owned()).context("no name that a certificate has")?;
            Ok(TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await?)
        }
    }

    /// Reads all PEM sections of one kind from a file, at least one. Errors never quote the file.
    fn all<T: PemObject>(path: &Path, flag: &str, what: &str) -> Result<Vec<T>> {
        let read = policies::patiently(path, |path| read_file(path, MOST))?;
        let text = read.map_err(|why| anyhow::anyhow!("{flag}: {} {why}", path.display()))?;
        let found: Vec<T> = T::pem_slice_iter(&text).filter_map(Result::ok).collect();
        if found.is_empty() {
            return Err(Mistake(format!("{flag}: {} holds no {what} in PEM", path.display())).into());
        }
        Ok(found)
    }
}

#[cfg(not(feature = "tls"))]
mod absent {
    use anyhow::Result;
    use tokio::net::TcpStream;

    use crate::args::Trust;
    use crate::exit::Mistake;

    /// The TLS settings of a connection; none exist in a build without TLS.
    #[derive(Clone, Debug)]
    pub(crate) enum Encrypted {}

    impl Encrypted {
        pub(crate) fn read(url: &str, _: &Trust, _: Option<&str>) -> Result<Self> {
            let wrong = format!(
                "the server `{url}` uses TLS, which this build does not support; build with the feature `tls`, or use an http:// \
                 address on the server's own machine"
            );
            Err(Mistake(wrong).into())
        }

        pub(crate) async fn connect(&self, _: &str, _: TcpStream) -> Result<TcpStream> {
            match *self {}
        }
    }
}
