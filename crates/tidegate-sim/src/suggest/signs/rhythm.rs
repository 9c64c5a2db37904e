//! Recognises requests that come at an even pace, from the pauses between them, in 1.1 KiB.

use std::time::Duration;

use tidegate::Tick;

/// Places per doubling of the pause; two adjacent places cover a fifth to either side of their middle.
const STEPS: f64 = 4.0;
/// The number of places: from one second to a day and a half.
const PLACES: usize = 68;
/// A shorter time between two requests is no pause: both belong to one round.
const SHORTEST: f64 = 1.0;
/// A night's pause must not outweigh an even pace by day; in seconds.
const LONGEST: f64 = 3_600.0;
/// The least share of the time that must lie in equal pauses.
const EVEN: f64 = 0.8;
const PAUSES: u32 = 3;
/// From this number of requests per round on, an even pace is a job's, whatever it asks for: a crawler at an even pace
/// asks for one page at a time.
const ROUND: u64 = 5;
/// Several requests every second or two are a stream, as of a crawler with many connections.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(5);
/// Most access logs have whole seconds.
const WHOLE: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Rhythm {
    first: Option<Tick>,
    last: Option<Tick>,
    requests: u64,
    at_once: u64,
    /// Each request at least a second after the last begins one.
    rounds: u64,
    /// The time between requests of one stream, in seconds.
    streaming: f64,
    /// The number of pauses in each place, and their total length in seconds.
    pauses: Box<[(u32, f64); PLACES]>,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            first: None,
            last: None,
            requests: 0,
            at_once: 0,
            rounds: 1,
            streaming: 0.0,
            pauses: Box::new([(0, 0.0); PLACES]),
        }
    }
}

impl Rhythm {
    pub(super) fn add(&mut self, at: Tick) {
        let pause = self.last.map_or(0.0, |last| at.since(last).as_secs_f64());
        let goes_on = self.goes_on(at);
        self.requests += 1;
        self.at_once = if pause > 0.0 { 1 } else { self.at_once + 1 };
        self.first = self.first.or(Some(at));
        self.last = self.last.max(Some(at));
        self.rounds += u64::from(pause >= SHORTEST);
        if pause < SHORTEST || goes_on {
            self.streaming += pause;
        } else {
            let place = ((pause.log2() * STEPS) as usize).min(PLACES - 1);
            let (count, sum) = &mut self.pauses[place];
            *count = count.saturating_add(1);
            *sum += pause;
        }
    }

    pub(super) fn lasted(&self) -> Duration {
        self.first.zip(self.last).map_or(Duration::ZERO, |(first, last)| last.since(first))
    }

    /// A request may continue a stream whose times were cut to whole seconds: it came in the second after one with
    /// several requests.
    fn goes_on(&self, at: Tick) -> bool {
        let is_next = self.last.is_some_and(|last| {
            last.as_nanos().is_multiple_of(WHOLE) && at.as_nanos() == last.as_nanos() + WHOLE
        });
        is_next && self.at_once > 1
    }

    /// Rounds of several requests at an even pace, with pauses of some seconds between rounds.
    pub(super) fn is_in_rounds(&self) -> bool {
        self.requests >= ROUND * self.rounds && self.pace().is_some_and(|pace| pace >= BETWEEN_ROUNDS)
    }

    /// Returns the pause of an even pace: most of the time in pauses must lie in pauses of about this length, and at
    /// least as much as in streams.
    pub(super) fn pace(&self) -> Option<Duration> {
        let weight = |(count, sum): (u32, f64)| sum.min(f64::from(count) * LONGEST);
        let all: f64 = self.pauses.iter().map(|pauses| weight(*pauses)).sum();
        let pairs = self.pauses.windows(2).map(|pair| {
            (weight(pair[0]) + weight(pair[1]), pair[0].0.saturating_add(pair[1].0), pair[0].1 + pair[1].1)
        });
        let (weight, count, sum) = pairs.max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
        let is_even = count >= PAUSES && weight >= EVEN * all && weight >= self.streaming;
        is_even.then(|| Duration::try_from_secs_f64(sum / f64::from(count)).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rhythm(seconds: impl IntoIterator<Item = f64>) -> Rhythm {
        let mut rhythm = Rhythm::default();
        for second in seconds {
            rhythm.add(Tick::from_nanos((second * 1e9).round() as u64));
        }
        rhythm
    }

    fn pace(seconds: impl IntoIterator<Item = f64>) -> Option<u64> {
        rhythm(seconds).pace().map(|pace| pace.as_secs())
    }

    /// With times in whole seconds, as in access logs, a scraper's six requests a second look like rounds of six
    /// every second; they must not count as a timer. The same log with milliseconds has no pauses.
    #[test]
    fn a_stream_in_whole_seconds_is_no_timer() {
        for rate in [2.0, 5.0, 6.5, 8.0, 40.0] {
            let stream = || (0..3_000).map(move |n| f64::from(n) / rate);
            for stream in [rhythm(stream()), rhythm(stream().map(f64::floor))] {
                assert!(!stream.is_in_rounds() && stream.pace().is_none(), "{rate} a second: {stream:?}");
            }
        }
        // At random: some seconds have one request, some none.
        let chance = |n: u32| f64::from(n) / 6.0 + f64::from(n.wrapping_mul(2_654_435_769) >> 16) / 65_536.0;
        let mut times: Vec<f64> = (0..5_000).map(|n| chance(n).floor()).collect();
        times.sort_unstable_by(f64::total_cmp);
        assert!(!rhythm(times).is_in_rounds());
        assert!(!rhythm((0..3_000).map(|n| f64::from(n / 10))).is_in_rounds(), "ten at once, every second");
        // Rounds at either resolution: two hundred requests within twenty seconds, every half hour.
        let job = || (0..3_200).map(|n| f64::from(n / 200 * 1_800) + f64::from(n % 200) * 0.1);
        assert!(rhythm(job()).is_in_rounds() && rhythm(job().map(f64::floor)).is_in_rounds());
        // One request a second is an even pace; a stream that stalls now and then is not.
        assert_eq!(pace((0..100).map(f64::from)), Some(1));
        assert_eq!(pace((0..4_000).map(|n| f64::from(n) * 0.25 + f64::from(n / 1_000 * 10))), None);
    }

    #[test]
    fn an_even_pace_is_told_from_a_crowd() {
        assert_eq!(pace((0..100).map(|n| f64::from(n) * 10.0)), Some(10));
        // Thirty requests at once, every five minutes.
        assert_eq!(pace((0..300).map(|n| f64::from(n / 30 * 300) + f64::from(n % 30) * 0.06)), Some(298));
        // Every ten seconds, late by up to a second, and off at night.
        let day = |day: u32| {
            (0..2_000).map(move |n| f64::from(day) * 86_400.0 + f64::from(n) * 10.0 + f64::from(n % 3) * 0.4)
        };
        assert_eq!(pace((0..5).flat_map(day)), Some(10));
        // Pauses between 4 s and 48 s, as readers have them.
        let reading = |at: &mut f64, n| {
            *at += 4.0 + f64::from(n * 37 % 45);
            Some(*at)
        };
        assert_eq!(pace((0..200).scan(0.0, reading)), None);
        assert_eq!(pace([0.0, 100.0, 200.0]), None, "two pauses say nothing");
        assert_eq!(pace((0..500).map(|n| f64::from(n) * 0.1)), None, "a stream without pauses is no timer");
    }
}
