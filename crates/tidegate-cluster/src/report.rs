//! The report of a member about itself, as text, so that an engine's own tools can show it.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// The longest reason of a refusal that is reported, in bytes; the rest is cut.
const LONGEST_REFUSAL: usize = 400;

/// The report of a member about itself ([`Member::report`](super::Member::report)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// The region whose part of the shares it uses together with all other members there; empty: it has a part of its
    /// own.
    pub(crate) region: String,
    /// How many thousandths of a unit it is asked for each second, allowed or not.
    pub(crate) demand: u64,
    /// The line of the shares that it follows ([`shares`](super::shares)); 0 before the first.
    pub(crate) line: u64,
    /// The turn of the shares that it follows; 0 before the first.
    pub(crate) turn: u64,
    /// The version of the policies that it follows; 0 for those that it started with.
    pub policies: u64,
    /// The version of the policies that it refuses, and why; version 0 is a document in an unknown form.
    pub refused: Option<(u64, String)>,
}

impl MemberReport {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "demand {}.{:03}\nline {}\nturn {}\npolicies {}\n",
            self.demand / 1000,
            self.demand % 1000,
            self.line,
            self.turn,
            self.policies
        );
        if !self.region.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "region {}", self.region.replace(['\n', '\r'], " "));
        }
        if let Some((version, why)) = &self.refused {
            let why = why[..why.floor_char_boundary(LONGEST_REFUSAL)].replace(['\n', '\r'], " ");
            let _ = writeln!(text, "refused {version} {why}");
        }
        text.into_bytes()
    }

    /// Reads a report. Unknown words are ignored, and invalid values count as absent: members of another version
    /// report more or less.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut report = Self::default();
        for text in String::from_utf8_lossy(bytes).lines() {
            let Some((word, value)) = text.split_once(' ') else { continue };
            let number = || value.parse().unwrap_or(0);
            match word {
                "demand" => report.demand = thousandths(value).unwrap_or(0),
                "line" => report.line = number(),
                "turn" => report.turn = number(),
                "region" => report.region = value.to_owned(),
                "policies" => report.policies = number(),
                "refused" => {
                    let (version, why) = value.split_once(' ').unwrap_or((value, ""));
                    report.refused = version.parse().ok().map(|version| (version, why.to_owned()));
                }
                _ => {}
            }
        }
        report
    }
}

/// Parses a number with up to three decimals, in thousandths; a number that is too large gives the largest one.
fn thousandths(text: &str) -> Option<u64> {
    let (units, rest) = text.split_once('.').unwrap_or((text, "0"));
    let scale = 10u64.pow(3u32.checked_sub(u32::try_from(rest.len()).ok()?)?);
    Some(units.parse::<u64>().ok()?.saturating_mul(1000).saturating_add(rest.parse::<u64>().ok()? * scale))
}

/// This node's report about itself, to which several tasks add. Clones share one report.
#[derive(Clone, Debug, Default)]
pub struct OwnReport {
    shared: Arc<PublishedReport>,
}

#[derive(Debug, Default)]
struct PublishedReport {
    report: Mutex<MemberReport>,
    /// Whether there is a change that should not wait for the next round.
    urgent: AtomicBool,
    waker: AtomicWaker,
}

impl OwnReport {
    /// Returns the present report.
    #[must_use]
    pub fn now(&self) -> MemberReport {
        self.shared.report.lock().clone()
    }

    /// Changes the report, which is sent in the next round.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut MemberReport) -> R) -> R {
        change(&mut self.shared.report.lock())
    }

    /// Changes the report, and has it sent at once.
    pub(super) fn update(&self, change: impl FnOnce(&mut MemberReport)) {
        self.with(change);
        // Release here, Acquire in `urgent_change`: the task that is woken sees the change.
        self.shared.urgent.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Waits until there is a change that should be sent at once. Only one task may wait at a time.
    pub(super) async fn urgent_change(&self) {
        poll_fn(|cx| {
            self.shared.waker.register(cx.waker());
            if self.shared.urgent.swap(false, Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_and_what_is_not_known_is_passed_over() {
        let refused = Some((9, "line 3: no such key".to_owned()));
        let report = MemberReport {
            region: "eu west".to_owned(),
            demand: 7,
            line: 5,
            turn: u64::MAX,
            policies: 3,
            refused,
        };
        assert_eq!(MemberReport::decode(&report.encode()), report);
        assert_eq!(MemberReport::decode(&MemberReport::default().encode()), MemberReport::default());
        let others = b"mood good\nturn x\ndemand 5\nrefused\n\xff\nrefused z y\n";
        assert_eq!(MemberReport::decode(others), MemberReport { demand: 5_000, ..MemberReport::default() });
        for (text, demand) in
            [("0.5", 500), ("7.25", 7_250), ("1.0005", 0), ("1.", 0), ("x.1", 0), ("1.-1", 0)]
        {
            assert_eq!(MemberReport::decode(format!("demand {text}").as_bytes()).demand, demand, "{text}");
        }
        let most = MemberReport { demand: u64::MAX, ..MemberReport::default() };
        assert_eq!(MemberReport::decode(&most.encode()), most);
        let long = MemberReport { refused: Some((1, "\u{e9}\n".repeat(1000))), ..MemberReport::default() };
        let told = MemberReport::decode(&long.encode()).refused.unwrap().1;
        assert!(told.len() <= LONGEST_REFUSAL && !told.contains('\n'));
    }
}
