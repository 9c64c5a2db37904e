//! The period in which a certificate is valid.
//!
//! It is found by asking the verifier that this server and its callers use, so no second certificate parser is needed.
//! The verifier checks the dates before anything else, and reports the date that a given time violates (RFC 5280,
//! section 4.1.2.5).

use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

/// The period in which a certificate is valid, in seconds of Unix time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) begins: u64,
    pub(super) ends: u64,
}

impl Validity {
    /// Returns the period of one certificate; `None` if its dates cannot be read.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
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
