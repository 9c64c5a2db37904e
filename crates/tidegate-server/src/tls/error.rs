//! Why certificates cannot be used.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::config::{DoorName, ReadError};

/// Why the doors cannot be encrypted as configured. No message repeats the content of a file, which may be a key.
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
