//! Counts, codes and latencies of asks, in all and for each second.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::client::{Answer, Code, Fate};
use super::judge::{Ask, MAX_WAITING};

/// A server with more codes answers at random.
const MAX_CODES: usize = 64;

/// The longest latency that is distinguished, in microseconds. A timeout is at most 60 s, but an ask may wait longer
/// for a connection.
const LONGEST: u64 = 3_600_000_000;

/// A histogram of latencies, to three significant digits. Takes about 180 KiB.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AskCounts {
    /// Or tried to be sent.
    pub(super) asked: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) failed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Second {
    /// The number of the second, from 1; the last may be longer or shorter than the others.
    pub(super) number: u64,
    pub(super) counts: AskCounts,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

#[derive(Debug)]
pub(super) struct Tally {
    pub(super) counts: AskCounts,
    pub(super) codes: BTreeMap<Code, u64>,
    /// Latencies since each ask was due; in a closed loop that is when it was sent.
    pub(super) latencies: Latencies,
    /// Latencies since each ask was sent.
    pub(super) from_sending: Latencies,
    /// Asks that no policy limits, as far as answers tell.
    pub(super) unlimited: u64,
    pub(super) first_failure: Option<String>,
    this_second: AskCounts,
    this_seconds_latencies: Latencies,
    pub(super) seconds: Vec<Second>,
    /// When each worker sent its current ask; `u64::MAX` if it has none.
    in_flight: Vec<u64>,
    /// The asks for the judge; `None` without a judge.
    asks: Option<Vec<Ask>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) key: u32,
    pub(super) due: u64,
    pub(super) sent: u64,
}

impl Tally {
    pub(super) fn new(workers: usize, is_judged: bool) -> Self {
        Self {
            counts: AskCounts::default(),
            codes: BTreeMap::new(),
            latencies: Latencies::default(),
            from_sending: Latencies::default(),
            unlimited: 0,
            first_failure: None,
            this_second: AskCounts::default(),
            this_seconds_latencies: Latencies::default(),
            seconds: Vec::new(),
            in_flight: vec![u64::MAX; workers],
            asks: is_judged.then(Vec::new),
        }
    }

    /// Records that a worker is about to send an ask. `now` must have been read while this tally is locked, so that no
    /// ask is sent before the time returned by [`Tally::take_asks`].
    pub(super) fn sends(&mut self, worker: usize, now: u64) {
        self.in_flight[worker] = now;
        self.counts.asked += 1;
        self.this_second.asked += 1;
    }

    pub(super) fn ends(&mut self, worker: usize, ask: Sent, now: u64, answer: Answer) {
        self.in_flight[worker] = u64::MAX;
        self.unlimited += u64::from(answer.is_unlimited);
        for counts in [&mut self.counts, &mut self.this_second] {
            *match answer.fate {
                Fate::Allowed => &mut counts.allowed,
                Fate::Denied => &mut counts.denied,
                Fate::Failed | Fate::Lost | Fate::Unsent => &mut counts.failed,
            } += 1;
        }
        // An error may come quickly without a decision. An ask without any answer counts with the time it waited.
        if matches!(answer.fate, Fate::Allowed | Fate::Denied | Fate::Lost) {
            let latency = now.saturating_sub(ask.due);
            self.latencies.record(latency, 1);
            self.this_seconds_latencies.record(latency, 1);
            self.from_sending.record(now.saturating_sub(ask.sent), 1);
        }
        if self.codes.len() < MAX_CODES || self.codes.contains_key(&answer.code) {
            *self.codes.entry(answer.code).or_default() += 1;
        } else {
            *self.codes.entry(Code::Word("others".into())).or_default() += 1;
        }
        if let Some(asks) = &mut self.asks
            && asks.len() < MAX_WAITING
        {
            asks.push(Ask { key: ask.key, sent: ask.sent, answered: now, fate: answer.fate });
        }
    }

    /// Records asks that were due but never sent; the first of them has waited for `waited`. Each counts with the time
    /// it waited.
    pub(super) fn left_over(&mut self, asks: u64, waited: u64) {
        // Due times are evenly spaced, so waits range from `waited` down to zero.
        let steps = asks.min(1_000);
        for step in 0..steps {
            let count = asks * (step + 1) / steps - asks * step / steps;
            self.latencies.record(waited / steps * (steps - step), count);
        }
    }

    pub(super) fn end_second(&mut self) -> Second {
        let latencies = &mut self.this_seconds_latencies;
        let second = Second {
            number: self.seconds.len() as u64 + 1,
            counts: std::mem::take(&mut self.this_second),
            p50: latencies.at(0.5),
            p99: latencies.at(0.99),
        };
        latencies.0.reset();
        self.seconds.push(second);
        second
    }

    pub(super) fn has_begun_a_second(&self) -> bool {
        self.this_second != AskCounts::default()
    }

    /// Takes the asks that have ended since the last call, with the time before which all sent asks are known. `now`
    /// must have been read while this tally is locked.
    pub(super) fn take_asks(&mut self, now: u64) -> Option<(Vec<Ask>, u64)> {
        let known_until = self.in_flight.iter().copied().min().unwrap_or(u64::MAX).min(now);
        self.asks.as_mut().map(|asks| (std::mem::take(asks), known_until))
    }

    /// Asks without an answer.
    pub(super) fn unanswered(&self) -> u64 {
        let AskCounts { asked, allowed, denied, failed } = self.counts;
        asked.saturating_sub(allowed + denied + failed)
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("three digits, and bounds that are in order"))
    }
}

impl Latencies {
    /// Records a latency in nanoseconds, rounded up to a microsecond.
    fn record(&mut self, nanos: u64, count: u64) {
        self.0.saturating_record_n(nanos.div_ceil(1_000), count);
    }

    /// The latency that a share of the asks did not exceed; zero if there were none.
    pub(super) fn at(&self, share: f64) -> Duration {
        if self.0.is_empty() {
            Duration::ZERO
        } else {
            Duration::from_micros(self.0.value_at_quantile(share))
        }
    }

    pub(super) fn longest(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }

    pub(super) fn json(&self) -> Value {
        let millis = |latency: Duration| latency.as_micros() as f64 / 1e3;
        json!({
            "count": self.0.len(),
            "mean_ms": (self.0.mean() * 1e3).round() / 1e6,
            "p50_ms": millis(self.at(0.5)),
            "p90_ms": millis(self.at(0.9)),
            "p99_ms": millis(self.at(0.99)),
            "p999_ms": millis(self.at(0.999)),
            "max_ms": millis(self.longest()),
        })
    }
}

pub(super) fn took(latency: Duration) -> String {
    match latency.as_micros() {
        0 => "-".to_owned(),
        micros @ 1..10_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        micros => format!("{:.1} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: Sent = Sent { key: 0, due: 1_000_000, sent: 5_000_000 };

    #[test]
    fn an_ask_that_waited_for_a_connection_waited() {
        let mut tally = Tally::new(1, true);
        tally.sends(0, 5_000_000);
        assert_eq!(tally.take_asks(9_000_000).unwrap().1, 5_000_000);
        tally.ends(0, ASK, 8_000_000, Answer::word(Fate::Allowed, "allowed"));
        assert_eq!(tally.latencies.longest().as_millis(), 7);
        assert_eq!(tally.from_sending.longest().as_millis(), 3);
        let (asks, known_until) = tally.take_asks(9_000_000).unwrap();
        assert_eq!((asks.len(), known_until), (1, 9_000_000));
        let second = tally.end_second();
        assert_eq!((second.number, second.counts.allowed, second.p99.as_millis()), (1, 1, 7));
        assert_eq!(tally.end_second().counts, AskCounts::default());
    }

    #[test]
    fn what_was_never_sent_is_in_the_percentiles() {
        let mut tally = Tally::new(1, false);
        tally.left_over(10_000, 2_000_000_000);
        assert!((950..1_050).contains(&tally.latencies.at(0.5).as_millis()), "{:?}", tally.latencies.at(0.5));
        assert!((1_990..2_010).contains(&tally.latencies.longest().as_millis()));
        assert_eq!(tally.latencies.0.len(), 10_000);
        tally.left_over(0, 5);
        assert_eq!(tally.latencies.0.len(), 10_000);
    }

    #[test]
    fn quick_errors_make_no_latency_and_codes_are_bounded() {
        let mut tally = Tally::new(1, false);
        for status in 0..200 {
            tally.ends(
                0,
                ASK,
                8_000_000,
                Answer { code: Code::Status(status), ..Answer::word(Fate::Failed, "") },
            );
        }
        assert_eq!((tally.counts.failed, tally.latencies.at(0.5)), (200, Duration::ZERO));
        assert_eq!(tally.codes.len(), MAX_CODES + 1);
        assert_eq!(tally.codes.values().sum::<u64>(), 200);
    }
}
