//! Asking over TLS: by what the server is known, and what is shown to it.

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

    /// The most bytes of a file: the public certificates of a system have a quarter of a megabyte.
    const MOST: u64 = 4 << 20;

    /// What a connection is encrypted with.
    #[derive(Clone, Debug)]
    pub(crate) struct Encrypted(Arc<ClientConfig>);

    impl Encrypted {
        /// Reads the files for a server at this URL, which is asked by a protocol that ALPN knows by this name; `None`: by one that it does
        /// not know.
        ///
        /// # Errors
        /// Files that are not named, cannot be read, or do not hold what they should.
        pub(crate) fn read(url: &str, trust: &Trust, protocol: Option<&str>) -> Result<Self> {
            let Some(ca) = &trust.ca else {
                let wrong = format!(
                    "the server `{url}` is asked over TLS, and its certificate cannot be checked without --ca FILE (TIDEGATE_CA); name \
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

        /// Shakes hands with a server of this name.
        ///
        /// # Errors
        /// What the library says of the server's certificate, or the server of ours.
        pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
            let name = ServerName::try_from(host.to_owned()).context("no name that a certificate has")?;
            Ok(TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await?)
        }
    }

    /// Reads all sections of one kind out of a file, at least one. No word of the file is repeated.
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

    /// What a connection is encrypted with: nothing, in this build.
    #[derive(Clone, Debug)]
    pub(crate) enum Encrypted {}

    impl Encrypted {
        pub(crate) fn read(url: &str, _: &Trust, _: Option<&str>) -> Result<Self> {
            let wrong = format!(
                "the server `{url}` is asked over TLS, which this build does not speak; build it with the feature `tls`, or ask it \
                 without from its own machine"
            );
            Err(Mistake(wrong).into())
        }

        pub(crate) async fn connect(&self, _: &str, _: TcpStream) -> Result<TcpStream> {
            match *self {}
        }
    }
}
