//! The words that the parts share: the series of policies and of the server, and the counts of a second.

/// Defines series with their words, and the counts of one span, indexed by series.
macro_rules! series {
    (
        $(#[$about:meta])* $name:ident, $counts:ident, largest: $($largest:ident)|+;
        $($(#[$of:meta])* $one:ident = $word:literal,)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum $name { $($(#[$of])* $one,)+ }

        impl $name {
            pub(crate) const ALL: [Self; [$($word),+].len()] = [$(Self::$one),+];

            /// Whether longer spans have the largest value of their parts, not the sum.
            pub(crate) const fn is_largest(self) -> bool {
                matches!(self, $(Self::$largest)|+)
            }

            pub(crate) const fn word(self) -> &'static str {
                match self { $(Self::$one => $word,)+ }
            }
        }

        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $counts(pub(crate) [u64; $name::ALL.len()]);

        impl $counts {
            pub(crate) const fn of(&self, series: $name) -> u64 {
                self.0[series as usize]
            }

            /// What passed within the limits.
            pub(crate) const fn passed(&self) -> u64 {
                self.of($name::Allowed).saturating_add(self.of($name::Delayed))
            }

            /// Adds a later part of the same span.
            pub(crate) fn absorb(&mut self, later: &Self) {
                for series in $name::ALL {
                    let (have, more) = (&mut self.0[series as usize], later.of(series));
                    *have = if series.is_largest() { (*have).max(more) } else { have.saturating_add(more) };
                }
            }
        }
    };
}

series! {
    /// What is counted of a policy in a second, a minute or an hour.
    Series, Counts, largest: KeysRefused | HottestShare;
    Allowed = "allowed",
    Delayed = "delayed",
    Denied = "denied",
    Errors = "errors",
    /// Passed with little left.
    Near = "near",
    /// Passed although over the limit.
    Over = "over",
    /// Would be refused by the policy in shadow mode, or by its shadow limit.
    WouldDeny = "would_deny",
    WouldAllow = "would_allow",
    /// Different keys that were refused.
    KeysRefused = "keys_refused",
    AskedUnits = "asked_units",
    AdmittedUnits = "admitted_units",
    /// Of the rate, what the busiest key was admitted, in per mille; 0 where ten seconds of the rate are less than a unit.
    HottestShare = "hottest_share",
    /// Of the denied, those that the limit of a canary decided. Files of earlier builds have none.
    CanaryDenied = "canary_denied",
}

series! {
    /// What is counted of the server.
    ServerSeries, ServerCounts, largest: P50 | P99 | InFlight;
    Allowed = "allowed",
    Delayed = "delayed",
    Denied = "denied",
    Unmatched = "unmatched",
    /// Could not be decided, or could not be read.
    Failed = "failed",
    /// Of deciding, in nanoseconds.
    P50 = "p50",
    P99 = "p99",
    InFlight = "in_flight",
    StoreErrors = "store_errors",
    /// Events that found their ring full.
    Dropped = "dropped",
    /// Seconds that the server ran.
    Up = "up",
}

/// Requests, and how many of them were refused, by which it is ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refused {
    pub(crate) denied: u64,
    pub(crate) requests: u64,
}

impl Refused {
    /// Returns the share that was refused, from 0 to 1; `None`: there was no request.
    pub(crate) fn share(self) -> Option<f64> {
        (self.requests > 0).then(|| self.denied as f64 / self.requests as f64)
    }
}

impl Counts {
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Decisions without the store count as neither.
    pub(crate) fn refused(&self) -> Refused {
        let denied = self.of(Series::Denied);
        let requests = self.passed().saturating_add(self.of(Series::Over)).saturating_add(denied);
        Refused { denied, requests }
    }
}

impl ServerCounts {
    /// Each request has one outcome.
    pub(crate) fn refused(&self) -> Refused {
        let denied = self.of(ServerSeries::Denied);
        let others = [denied, self.of(ServerSeries::Unmatched), self.of(ServerSeries::Failed)];
        Refused { denied, requests: others.into_iter().fold(self.passed(), u64::saturating_add) }
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
