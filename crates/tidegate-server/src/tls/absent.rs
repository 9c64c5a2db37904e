//! A build without TLS: there are no certificates, so nothing below is ever called on some.

use std::path::Path;

use prometheus_client::registry::Registry;
use tidegate::config::TlsSettings;

use super::error::TlsError;

/// Says that this build has no TLS: it has not the feature `tls`.
///
/// # Errors
/// [`TlsError::NotBuilt`], always.
pub fn check_tls(_: &TlsSettings) -> Result<Vec<String>, TlsError> {
    Err(TlsError::NotBuilt)
}

/// The certificates of a server: none.
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

    pub(crate) fn stand(&self) -> String {
        match *self {}
    }

    pub(crate) fn show(&self, _: &mut Registry) {
        match *self {}
    }
}
