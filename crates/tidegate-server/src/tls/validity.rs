//! From when until when a certificate holds.
//!
//! Asked of the verifier that callers' libraries and this server use, so that no second reader of certificates is needed: it looks at the
//! dates before anything else, and says which date a time lies outside of (RFC 5280, section 4.1.2.5).

use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

/// The span in which a certificate holds, in seconds of Unix time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) begins: u64,
    pub(super) ends: u64,
}

impl Validity {
    /// Returns the span of one certificate; `None` of one whose dates cannot be read.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let begins = match refusal(certificate, 0)? {
            CertificateError::NotValidYetContext { not_before, .. } => not_before.as_secs(),
            // It holds since 1970 or before.
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

    /// Returns the span in which all of these hold.
    pub(super) fn of_all(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let spans = chain.iter().filter_map(Self::of);
        spans.reduce(|one, other| Self {
            begins: one.begins.max(other.begins),
            ends: one.ends.min(other.ends),
        })
    }
}

/// Returns why nobody would take the certificate at a time: its dates, or else that nobody has signed it.
fn refusal(certificate: &CertificateDer<'_>, seconds: u64) -> Option<CertificateError> {
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], time, &[]) {
        Err(Error::InvalidCertificate(refusal)) => Some(refusal),
        _ => None,
    }
}
