//! Placeholders for a build without TLS. There are no certificates, so no method here is ever called.

use std::path::Path;

use prometheus_client::registry::Registry;
use tidegate::config::TlsSettings;

use super::error::TlsError;

/// Returns the error that this build lacks the feature `tls`.
///
/// # Errors
/// [`TlsError::NotBuilt`], always.
pub fn check_tls(_: &TlsSettings) -> Result<Vec<String>, TlsError> {
    Err(TlsError::NotBuilt)
}

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
