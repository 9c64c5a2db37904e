//! A proposed limit, with what it would have done.

use serde::Serialize;

use crate::peaks::Distinct;
use crate::replay::PeakRate;

/// What one limit would have done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// The limit: so many per window, and as many at once.
    pub count: u64,
    /// Requests refused.
    pub denied: u64,
    /// Their share, 0 to 1.
    pub denied_share: f64,
    /// Keys refused at least once.
    pub keys_hit: u64,
    /// Their share, 0 to 1.
    pub keys_hit_share: f64,
}

/// A proposed limit and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// The attributes of the key.
    pub by: Vec<String>,
    /// The rate; the burst is its count.
    pub rate: PeakRate,
    /// Requests that have a key.
    pub requests: u64,
    /// Different keys.
    #[serde(flatten)]
    pub keys: Distinct,
    /// Peaks of the keys in one window, as (percent of keys, peak): that share of the keys never went above.
    pub percentiles: Vec<(f64, u64)>,
    /// Whether the proposal keeps what was asked; if not, it is the highest peak and some.
    pub keeps: bool,
    /// What the proposal would have done.
    pub proposed: Evidence,
    /// What half of it would have done.
    pub half: Evidence,
    /// What twice as much would have done.
    pub double: Evidence,
}

impl Evidence {
    /// Makes the evidence of a limit that would have refused nobody.
    pub(super) fn nothing(count: u64) -> Self {
        Self { count, denied: 0, denied_share: 0.0, keys_hit: 0, keys_hit_share: 0.0 }
    }
}

impl Suggestion {
    /// Returns a warning when the log has too few keys for the share to mean anything: 99.9 % of a hundred keys is all of
    /// them, the abuser included.
    #[must_use]
    pub fn caution(&self, keep: f64) -> Option<String> {
        let keys = self.keys.about();
        let spared = (keys as f64 * (1.0 - keep) + 1e-9).floor();
        (spared < 1.0 && keep < 1.0).then(|| {
            let fewer = percent(1.0 - 1.0 / keys.max(2) as f64);
            format!(
                "{} of {keys} keys is all of them, the worst included; keep {fewer} or less to leave one out",
                percent(keep)
            )
        })
    }

    /// Returns the proposal as a policy, to paste into a file: in shadow first.
    #[must_use]
    pub fn yaml(&self, name: &str) -> String {
        let Evidence { denied, denied_share, keys_hit, count, .. } = self.proposed;
        format!(
            "  - name: {name}\n    # From {} requests of {} keys: would have refused {denied} requests ({}) of {keys_hit} keys.\n    \
             mode: shadow\n    by: [{}]\n    limit: {{ algorithm: gcra, rate: {}, burst: {count} }}\n",
            self.requests,
            self.keys,
            percent(denied_share),
            self.by.join(", "),
            self.rate,
        )
    }
}

/// Writes a share as a percentage with two meaningful digits.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        p if p < 0.01 => "< 0.01 %".to_owned(),
        p if p < 10.0 => format!("{p:.2} %"),
        p => format!("{p:.1} %"),
    }
}
