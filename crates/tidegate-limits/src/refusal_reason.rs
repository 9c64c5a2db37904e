//! Why a breaker refused a call.

use tidegate_core::breaker::Forced;

/// Why a breaker refused a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// It is open, because the service failed too often.
    Open,
    /// It is half-open, and the allowed number of probes is in flight.
    HalfOpen,
    /// It refuses a share of the calls, and this call was one of them.
    Shedding,
    /// A person has forced it open.
    Forced(Forced),
}

impl RefusalReason {
    /// Returns the reason as a word for metrics and logs: that of the state of the breaker, such as `half-open`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::Shedding => "shedding",
            Self::Forced(_) => "forced-open",
        }
    }
}
