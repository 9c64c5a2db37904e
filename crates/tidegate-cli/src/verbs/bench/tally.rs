//! What came of the asks: counts, codes and latencies, over all and of each second.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::answer::{Answer, Code, Fate};
use super::judge::{Ask, MAX_WAITING};

/// Codes that are told apart, at most: a server that answers by more than this answers at random.
const MAX_CODES: usize = 64;

/// The longest latency that is told from longer ones, in microseconds: a timeout is 60 s at most, what waits for a connection takes longer.
const LONGEST: u64 = 3_600_000_000;

/// Latencies, to three digits. About 180 KiB.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

/// How many asks went how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Sent, or tried to be.
    pub(super) asked: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) failed: u64,
}

/// A second of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Second {
    /// Counted from 1; the last may be longer or shorter than the others.
    pub(super) number: u64,
    pub(super) counts: Counts,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

/// The account of a run.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) counts: Counts,
    pub(super) codes: BTreeMap<Code, u64>,
    /// From when each ask was due, which in a closed loop is when it was sent.
    pub(super) latencies: Latencies,
    /// From when each ask was sent.
    pub(super) from_sending: Latencies,
    /// The failure that came first, in words.
    pub(super) first_failure: Option<String>,
    this_second: Counts,
    this_seconds_latencies: Latencies,
    pub(super) seconds: Vec<Second>,
    /// When each worker sent what it waits for; the greatest number where it waits for nothing.
    in_flight: Vec<u64>,
    /// Asks for the judge; `None` if nobody judges.
    asks: Option<Vec<Ask>>,
}

/// The ask that a worker is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) key: u32,
    pub(super) due: u64,
    pub(super) sent: u64,
}

impl Tally {
    pub(super) fn new(workers: usize, is_judged: bool) -> Self {
        Self {
            counts: Counts::default(),
            codes: BTreeMap::new(),
            latencies: Latencies::default(),
            from_sending: Latencies::default(),
            first_failure: None,
            this_second: Counts::default(),
            this_seconds_latencies: Latencies::default(),
            seconds: Vec::new(),
            in_flight: vec![u64::MAX; workers],
            asks: is_judged.then(Vec::new),
        }
    }

    /// Notes that a worker is about to send at a moment, which must have been read while this is held: no ask is then sent before the moment
    /// up to which [`Tally::take_asks`] says that all are known.
    pub(super) fn sends(&mut self, worker: usize, now: u64) {
        self.in_flight[worker] = now;
        self.counts.asked += 1;
        self.this_second.asked += 1;
    }

    /// Notes what came of an ask.
    pub(super) fn ends(&mut self, worker: usize, ask: Sent, now: u64, answer: Answer) {
        self.in_flight[worker] = u64::MAX;
        for counts in [&mut self.counts, &mut self.this_second] {
            *match answer.fate {
                Fate::Allowed => &mut counts.allowed,
                Fate::Denied => &mut counts.denied,
                Fate::Failed | Fate::Lost | Fate::Unsent => &mut counts.failed,
            } += 1;
        }
        // A quick error is no quick decision; who got no answer at all has waited in vain.
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

    /// Notes asks that were due and never sent, the first of them so long ago: each counts with the time for which it waited.
    pub(super) fn left_over(&mut self, asks: u64, waited: u64) {
        // Due one after the other, they waited for anything between that and nothing.
        let steps = asks.min(1_000);
        for step in 0..steps {
            let count = asks * (step + 1) / steps - asks * step / steps;
            self.latencies.record(waited / steps * (steps - step), count);
        }
    }

    /// Ends a second, and returns it.
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

    /// Says whether anything happened since the last second ended.
    pub(super) fn has_begun_a_second(&self) -> bool {
        self.this_second != Counts::default()
    }

    /// Takes the asks that ended since, with the moment before which no other ask was sent; `now` must have been read while this is held.
    pub(super) fn take_asks(&mut self, now: u64) -> Option<(Vec<Ask>, u64)> {
        let known_until = self.in_flight.iter().copied().min().unwrap_or(u64::MAX).min(now);
        self.asks.as_mut().map(|asks| (std::mem::take(asks), known_until))
    }

    /// Returns how many asks have no answer.
    pub(super) fn unanswered(&self) -> u64 {
        let Counts { asked, allowed, denied, failed } = self.counts;
        asked.saturating_sub(allowed + denied + failed)
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("three digits, and bounds that are in order"))
    }
}

impl Latencies {
    /// Notes a latency in nanoseconds, rounded up to the microsecond.
    fn record(&mut self, nanos: u64, count: u64) {
        self.0.saturating_record_n(nanos.div_ceil(1_000), count);
    }

    /// Returns the latency that a share of the asks did not exceed; zero if there were none.
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

/// Returns a latency as people read it.
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
        assert_eq!(tally.end_second().counts, Counts::default());
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
            tally.ends(0, ASK, 8_000_000, Answer { fate: Fate::Failed, code: Code::Status(status) });
        }
        assert_eq!((tally.counts.failed, tally.latencies.at(0.5)), (200, Duration::ZERO));
        assert_eq!(tally.codes.len(), MAX_CODES + 1);
        assert_eq!(tally.codes.values().sum::<u64>(), 200);
    }
}
