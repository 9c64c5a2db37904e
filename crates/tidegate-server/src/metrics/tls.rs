//! What is told of certificates and handshakes: written where a door is encrypted, and nowhere else.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Transport;

/// Why a handshake came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum Reason {
    /// The caller does not speak TLS.
    plain_text,
    /// The caller showed no certificate, or one that is not taken.
    certificate,
    /// The caller refused: it does not trust the server's certificate, mostly.
    refused,
    /// There is no version, cipher or protocol that both have, or the caller broke the rules.
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

/// How many handshakes came to nothing, by protocol and reason. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Failures(Family<FailureLabels, Counter>);

impl Default for Failures {
    fn default() -> Self {
        let family = Family::default();
        for transport in Transport::ALL {
            for reason in Reason::ALL {
                // A series that is there from the start shows its first step.
                drop(family.get_or_create(&FailureLabels { transport, reason }));
            }
        }
        Self(family)
    }
}

impl Failures {
    /// Counts one.
    pub(crate) fn count(&self, transport: Transport, reason: Reason) {
        self.0.get_or_create(&FailureLabels { transport, reason }).inc();
    }
}

/// Adds when the certificate ends, in seconds of Unix time, whether its last renewal succeeded, and the handshakes that came to nothing.
pub(crate) fn show(registry: &mut Registry, ends: Option<u64>, renewed: bool, failures: &Failures) {
    if let Some(ends) = ends {
        registry.register(
            "tls_certificate_expiry_timestamp_seconds",
            "When the server's certificate ends, or one behind it that ends before, Unix time",
            ConstGauge::new(i64::try_from(ends).unwrap_or(i64::MAX)),
        );
    }
    registry.register(
        "tls_last_renewal_successful",
        "1 when the certificate's files were good when they were read last, 0 when they were refused",
        ConstGauge::new(i64::from(renewed)),
    );
    registry.register("tls_handshake_failures", "TLS handshakes that came to nothing", failures.0.clone());
}
