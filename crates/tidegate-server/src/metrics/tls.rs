//! Metrics of certificates and handshakes. Written only where a door is encrypted.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Transport;

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum Reason {
    /// The caller does not speak TLS.
    plain_text,
    /// The caller showed no certificate, or one that is not accepted.
    certificate,
    /// The caller refused, mostly because it does not trust the server's certificate.
    refused,
    /// There is no common version, cipher or protocol, or the caller violated the protocol.
    protocol,
    /// The caller went away.
    broken_off,
}

impl Reason {
    const ALL: [Self; 5] =
        [Self::plain_text, Self::certificate, Self::refused, Self::protocol, Self::broken_off];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    transport: Transport,
    reason: Reason,
}

/// The number of failed handshakes, by protocol and reason. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Failures(Family<FailureLabels, Counter>);

impl Default for Failures {
    fn default() -> Self {
        let family = Family::default();
        for transport in Transport::ALL {
            for reason in Reason::ALL {
                // The series exists from the start, so that its first increase is visible.
                drop(family.get_or_create(&FailureLabels { transport, reason }));
            }
        }
        Self(family)
    }
}

impl Failures {
    /// Counts a failed handshake.
    pub(crate) fn count(&self, transport: Transport, reason: Reason) {
        self.0.get_or_create(&FailureLabels { transport, reason }).inc();
    }
}

/// Registers when the certificate ends (Unix time in seconds), whether its last renewal succeeded, and the failed
/// handshakes.
pub(crate) fn show(registry: &mut Registry, ends: Option<u64>, renewed: bool, failures: &Failures) {
    if let Some(ends) = ends {
        registry.register(
            "tls_certificate_expiry_timestamp_seconds",
            "When the server's certificate expires, or an intermediate that expires sooner, in Unix time",
            ConstGauge::new(i64::try_from(ends).unwrap_or(i64::MAX)),
        );
    }
    registry.register(
        "tls_last_renewal_successful",
        "1 if the certificate's files were valid when last read, 0 if they were refused and the old certificate stays",
        ConstGauge::new(i64::from(renewed)),
    );
    registry.register("tls_handshake_failures", "Failed TLS handshakes", failures.0.clone());
}
