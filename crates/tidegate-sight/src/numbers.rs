//! The words that the parts share: the series of policies and of the server, and the counts of a second.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is counted of a policy in a second, a minute or an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub(crate) enum Series {
    Allowed,
    Delayed,
    Denied,
    Errors,
    /// Passed with little left.
    Near,
    /// Passed although over the limit.
    Over,
    /// Would be refused by the policy in shadow mode, or by its shadow limit.
    WouldDeny,
    WouldAllow,
    /// Different keys that were refused.
    KeysRefused,
    AskedUnits,
    AdmittedUnits,
    /// Of the rate, what the busiest key was admitted, in per mille; the largest of the span.
    HottestShare,
}

impl Series {
    pub(crate) const ALL: [Self; 12] = [
        Self::Allowed,
        Self::Delayed,
        Self::Denied,
        Self::Errors,
        Self::Near,
        Self::Over,
        Self::WouldDeny,
        Self::WouldAllow,
        Self::KeysRefused,
        Self::AskedUnits,
        Self::AdmittedUnits,
        Self::HottestShare,
    ];

    /// Whether longer spans have the largest value of their parts, not the sum.
    pub(crate) const fn is_largest(self) -> bool {
        matches!(self, Self::HottestShare | Self::KeysRefused)
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::Errors => "errors",
            Self::Near => "near",
            Self::Over => "over",
            Self::WouldDeny => "would_deny",
            Self::WouldAllow => "would_allow",
            Self::KeysRefused => "keys_refused",
            Self::AskedUnits => "asked_units",
            Self::AdmittedUnits => "admitted_units",
            Self::HottestShare => "hottest_share",
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What is counted of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub(crate) enum ServerSeries {
    Allowed,
    Delayed,
    Denied,
    Unmatched,
    /// Could not be decided, or could not be read.
    Failed,
    /// Of deciding, in nanoseconds; the largest of the span.
    P50,
    P99,
    /// The largest of the span.
    InFlight,
    StoreErrors,
    /// Events that found their ring full.
    Dropped,
    /// Seconds that the server ran.
    Up,
}

impl ServerSeries {
    pub(crate) const ALL: [Self; 11] = [
        Self::Allowed,
        Self::Delayed,
        Self::Denied,
        Self::Unmatched,
        Self::Failed,
        Self::P50,
        Self::P99,
        Self::InFlight,
        Self::StoreErrors,
        Self::Dropped,
        Self::Up,
    ];

    /// Whether longer spans have the largest value of their parts, not the sum.
    pub(crate) const fn is_largest(self) -> bool {
        matches!(self, Self::P50 | Self::P99 | Self::InFlight)
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::Unmatched => "unmatched",
            Self::Failed => "failed",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::InFlight => "in_flight",
            Self::StoreErrors => "store_errors",
            Self::Dropped => "dropped",
            Self::Up => "up",
        }
    }
}

/// The counts of one policy in one span, indexed by [`Series`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) [u64; Series::ALL.len()]);

impl Counts {
    pub(crate) const fn of(&self, series: Series) -> u64 {
        self.0[series as usize]
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Adds a later part of the same span.
    pub(crate) fn absorb(&mut self, later: &Self) {
        for series in Series::ALL {
            let (have, more) = (&mut self.0[series as usize], later.of(series));
            *have = if series.is_largest() { (*have).max(more) } else { have.saturating_add(more) };
        }
    }
}

/// The counts of the server in one span, indexed by [`ServerSeries`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerCounts(pub(crate) [u64; ServerSeries::ALL.len()]);

impl ServerCounts {
    pub(crate) const fn of(&self, series: ServerSeries) -> u64 {
        self.0[series as usize]
    }

    /// Adds a later part of the same span.
    pub(crate) fn absorb(&mut self, later: &Self) {
        for series in ServerSeries::ALL {
            let (have, more) = (&mut self.0[series as usize], later.of(series));
            *have = if series.is_largest() { (*have).max(more) } else { have.saturating_add(more) };
        }
    }
}

/// What was counted in one span: a second, a minute or an hour. Policies that saw nothing are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// The beginning, in seconds since 1970.
    pub(crate) at: u64,
    pub(crate) server: ServerCounts,
    /// By the policy's number ([`tidegate_server::Sight::policy`]), ascending.
    pub(crate) policies: Vec<(u16, Counts)>,
}
