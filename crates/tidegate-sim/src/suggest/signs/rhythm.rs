//! Whether requests come at an even pace, from the pauses between them, in 1.1 KiB.

use std::time::Duration;

use tidegate::Tick;

/// Four steps to a doubling; two that lie together hold what differs by a fifth from their middle.
const STEPS: f64 = 4.0;
/// From one second to a day and a half.
const PLACES: usize = 68;
/// A shorter time between two requests is no pause: they belong to one round.
const SHORTEST: f64 = 1.0;
/// A longer pause counts as much as this one: nights say nothing of an even pace by day. In seconds.
const LONGEST: f64 = 3_600.0;
/// The share of the time that must lie in equal pauses.
const EVEN: f64 = 0.8;
/// Equal pauses, at least.
const PAUSES: u32 = 3;

/// The pauses of one key, sorted by their length.
#[derive(Clone, Debug)]
pub(super) struct Rhythm {
    last: Option<Tick>,
    /// How many there were, and how long they took together, in seconds.
    pauses: Box<[(u32, f64); PLACES]>,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self { last: None, pauses: Box::new([(0, 0.0); PLACES]) }
    }
}

impl Rhythm {
    pub(super) fn add(&mut self, at: Tick) {
        let pause = self.last.map_or(0.0, |last| at.since(last).as_secs_f64());
        self.last = self.last.max(Some(at));
        if pause >= SHORTEST {
            // Beyond the last place lie pauses of days.
            let place = ((pause.log2() * STEPS) as usize).min(PLACES - 1);
            let (count, sum) = &mut self.pauses[place];
            *count = count.saturating_add(1);
            *sum += pause;
        }
    }

    /// Returns how many rounds of requests there were, with pauses between them.
    pub(super) fn rounds(&self) -> u64 {
        1 + self.pauses.iter().map(|(count, _)| u64::from(*count)).sum::<u64>()
    }

    /// Returns the pause of an even pace: by far the most of the time lies in pauses of about this length.
    pub(super) fn pace(&self) -> Option<Duration> {
        let weight = |(count, sum): (u32, f64)| sum.min(f64::from(count) * LONGEST);
        let all: f64 = self.pauses.iter().map(|pauses| weight(*pauses)).sum();
        let pairs = self.pauses.windows(2).map(|pair| {
            (weight(pair[0]) + weight(pair[1]), pair[0].0.saturating_add(pair[1].0), pair[0].1 + pair[1].1)
        });
        let (weight, count, sum) = pairs.max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
        let is_even = count >= PAUSES && weight >= EVEN * all;
        is_even.then(|| Duration::try_from_secs_f64(sum / f64::from(count)).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(seconds: impl IntoIterator<Item = f64>) -> Option<u64> {
        let mut rhythm = Rhythm::default();
        for second in seconds {
            rhythm.add(Tick::from_nanos((second * 1e9) as u64));
        }
        rhythm.pace().map(|pace| pace.as_secs())
    }

    #[test]
    fn an_even_pace_is_told_from_a_crowd() {
        assert_eq!(pace((0..100).map(|n| f64::from(n) * 10.0)), Some(10));
        // Thirty at once, every five minutes.
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
