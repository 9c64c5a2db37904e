//! TLS 1.2 and 1.3 for the doors, by rustls with the cryptography of ring, and its defaults for everything else.
//!
//! The files are read at the start, when they change, on `SIGHUP` and on a reload ([`Certificates::renew`]).
//! Unusable ones change nothing; the log, a metric and `readyz?verbose` report them. An open connection keeps the
//! certificate that it began with.

#[cfg(feature = "tls")]
mod certificates;

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::config::{DoorName, ReadError, TlsSettings};

#[cfg(not(feature = "tls"))]
pub(crate) use self::absent::Certificates;
#[cfg(feature = "tls")]
pub(crate) use self::certificates::Certificates;

/// Reads the files that encrypt a server's doors, to check them before it starts. Returns warnings: dates,
/// permissions. May block as long as a file system does.
///
/// # Errors
/// [`TlsError`] if they cannot be used, or the program was built without the feature `tls`.
#[cfg_attr(not(feature = "tls"), allow(unused_variables, reason = "no file is read"))]
pub fn check_tls(settings: &TlsSettings) -> Result<Vec<String>, TlsError> {
    #[cfg(feature = "tls")]
    return certificates::read_files(settings).map(|read| read.warnings);
    #[cfg(not(feature = "tls"))]
    Err(TlsError::NotBuilt)
}

// Why certificates cannot be used.

/// Why the doors cannot be encrypted. No message repeats the content of a file, which may be a key.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("the {what} file {} {why}", path.display())]
    File {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<ReadError>,
    },
    /// A file does not have the expected content.
    #[error("the {what} file {} {why}", path.display())]
    Content {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would work.
        why: String,
    },
    /// The key does not belong to the certificate.
    #[error(
        "the key in {} is not that of the first certificate in {}; the server's own certificate goes first, and its key is the one that it was \
         requested with",
        key.display(),
        cert.display()
    )]
    OtherKey {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The files could not be read in time.
    #[error("the certificate's file {}: reading it {why}", path.display())]
    Slow {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A door that is to stay plain has no address of its own.
    #[error(
        "server.tls.plain (--tls-plain) names {door}, which has no address of its own; give it one (--{door}, server.{door}), or leave it out"
    )]
    NoDoor {
        /// The door.
        door: DoorName,
    },
    /// The program was built without TLS.
    #[error(
        "this build does not support TLS; build it with the feature `tls`, or leave out --tls-cert and server.tls"
    )]
    NotBuilt,
}

impl TlsError {
    /// Returns whether the settings or the files must change, and not the machine.
    #[must_use]
    pub const fn is_a_mistake(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Slow { .. })
    }
}

#[cfg(not(feature = "tls"))]
mod absent {
    //! A build without TLS has no certificates, so no method here is ever called.

    use std::path::Path;

    use prometheus_client::registry::Registry;
    use tidegate::config::TlsSettings;

    use super::TlsError;

    /// Never made: a server has no certificates.
    #[derive(Debug)]
    pub(crate) enum Certificates {}

    impl Certificates {
        pub(crate) async fn open(_: TlsSettings) -> Result<Self, TlsError> {
            Err(TlsError::NotBuilt)
        }

        pub(crate) async fn renew(&self) {
            match *self {}
        }

        pub(crate) fn files(&self) -> std::iter::Empty<&Path> {
            match *self {}
        }

        pub(crate) fn describe(&self) -> String {
            match *self {}
        }

        pub(crate) fn show(&self, _: &mut Registry) {
            match *self {}
        }
    }
}
