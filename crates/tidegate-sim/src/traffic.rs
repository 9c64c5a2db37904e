//! Generates traffic from a line of text, the same every time.
//!
//! ```text
//! steady 80/s 1min, burst 500, steady 150/s 1min, ramp 10/s 200/s 2min, poisson 50/s 1min keys zipf:1.1:1000, idle 10s
//! ```
//! Segments follow each other. Each may name its keys (`key NAME`, `keys uniform:N`, `keys zipf:S:N`) and the cost of
//! a request (`cost N`); by default all requests have the key `key-1` and cost 1. The duration of requests is given
//! by `taking 20ms`, `taking 20ms..400ms` (uniform) or `taking exponential:50ms` (random, with this mean), and
//! failures by `failing 30%`. Attributes are given one by one (`with request.path=/login with user.tier=gold`), and
//! the priority by `priority sheddable`. Ticks are whole nanoseconds. Randomness comes from the seed alone, and the
//! times of requests do not depend on their durations and failures.

mod grammar;
mod segment;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tidegate::priority::Priority;
use tidegate::{Cost, Outcome, Tick};

pub use self::grammar::TrafficError;
use self::grammar::{Words, segment};
pub use self::segment::{Chance, KeyChoice, KeyDraws};
use self::segment::{Fate, Keys, Segment};

/// Traffic, as a list of segments. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Traffic {
    segments: Arc<[Segment]>,
}

/// Parses the duration of a request, as after the word `taking`: from 1 ns to 366 days.
///
/// # Errors
/// A message that says why the text is not such a duration.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_sim::traffic::request_time;
///
/// assert_eq!(request_time("200ms"), Ok(Duration::from_millis(200)));
/// assert_eq!(request_time("0s").unwrap_err(), "`0s` is not a span to simulate; use 1ns to 366d");
/// ```
pub fn request_time(text: &str) -> Result<Duration, String> {
    grammar::time(text).map(Duration::from_nanos).map_err(|error| error.what)
}

/// The most requests: as many as a fast machine decides in a few minutes. A text that asks for more probably has a
/// wrong unit.
const MAX_REQUESTS: u128 = 1_000_000_000;

/// The key of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TrafficKey {
    /// One of many numbered keys, from 1.
    Number(u32),
    /// A named key.
    Name(Arc<str>),
}

impl TrafficKey {
    /// Returns the key as text: `key-1` or the name.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Number(number) => Cow::Owned(format!("key-{number}")),
            Self::Name(name) => Cow::Borrowed(name),
        }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of the request.
    pub at: Tick,
    /// The key of the request.
    pub key: TrafficKey,
    /// The cost of the request.
    pub cost: Cost,
    /// How long it takes once admitted; `None` if the segment does not tell.
    pub took: Option<Duration>,
    /// How it ends; `None` if the segment does not tell.
    pub outcome: Option<Outcome>,
    /// Its attributes besides the key, as (name, value), shared with all requests of the segment.
    pub attributes: Arc<[(Box<str>, Box<str>)]>,
    /// Its priority: critical if the segment does not tell.
    pub priority: Priority,
}

impl std::str::FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let mut segments = Vec::new();
        let (mut start, mut requests) = (0, 0u128);
        for part in text.split(',') {
            let mut words = Words { text, from: start, to: start + part.len() };
            let segment = segment(&mut words)?;
            requests = requests.saturating_add(segment.shape.requests());
            if requests > MAX_REQUESTS {
                let column = text[..start].chars().count() + 1;
                let what = format!("with this segment it is {requests} requests; use at most {MAX_REQUESTS}");
                return Err(TrafficError { column, what });
            }
            segments.push(segment);
            start += part.len() + 1;
        }
        Ok(Self { segments: segments.into() })
    }
}

impl Traffic {
    /// Returns the requests, from `start` on. The same seed gives the same requests.
    pub fn arrivals(&self, start: Tick, seed: u64) -> impl Iterator<Item = Arrival> + use<> {
        Arrivals {
            segments: Arc::clone(&self.segments),
            place: 0,
            start: start.as_nanos(),
            number: 0,
            last: 0,
            chance: Chance(seed),
            fate: Fate::of(seed),
        }
    }

    /// Returns the number of the first segment with requests but without durations, from 1; `None` if there is none.
    #[must_use]
    pub fn untimed(&self) -> Option<usize> {
        let untimed = |segment: &Segment| segment.taking.is_none() && segment.shape.requests() > 0;
        self.segments.iter().position(untimed).map(|at| at + 1)
    }

    /// Returns the names of the attributes of all segments together.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let with_requests = self.segments.iter().filter(|segment| segment.shape.requests() > 0);
        with_requests.flat_map(|segment| segment.attributes.iter().map(|(name, _)| &**name))
    }

    /// Returns how long the traffic lasts.
    #[must_use]
    pub fn span(&self) -> Duration {
        let spans = self.segments.iter().map(|segment| segment.shape.span());
        Duration::from_nanos(spans.fold(0, u64::saturating_add))
    }
}

#[derive(Clone, Debug)]
struct Arrivals {
    segments: Arc<[Segment]>,
    place: usize,
    start: u64,
    number: u64,
    last: u64,
    chance: Chance,
    fate: Fate,
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        loop {
            let segment = self.segments.get(self.place)?;
            if let Some(offset) = segment.shape.offset(self.number, self.last, &mut self.chance) {
                self.number += 1;
                self.last = offset;
                let key = match &segment.keys {
                    Keys::One(name) => TrafficKey::Name(Arc::clone(name)),
                    keys => TrafficKey::Number(keys.draw(&mut self.chance) + 1),
                };
                let at = Tick::from_nanos(self.start.saturating_add(offset));
                let (took, outcome) = self.fate.of_one(segment.taking, segment.failing);
                let (attributes, priority) = (Arc::clone(&segment.attributes), segment.priority);
                return Some(Arrival { at, key, cost: segment.cost, took, outcome, attributes, priority });
            }
            self.start = self.start.saturating_add(segment.shape.span());
            (self.place, self.number, self.last) = (self.place + 1, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn arrivals(text: &str) -> Vec<Arrival> {
        text.parse::<Traffic>().unwrap().arrivals(Tick::from_secs(100), 7).collect()
    }

    #[test]
    fn segments_follow_each_other() {
        let all = arrivals("steady 2/s 1s, burst 2 key a cost 5, idle 1s, steady 3/s 1s");
        let shown: Vec<_> =
            all.iter().map(|a| (a.at.as_nanos() - 100_000_000_000, a.key.text().into_owned())).collect();
        let want = [
            (0, "key-1"),
            (500_000_000, "key-1"),
            (1_000_000_000, "a"),
            (1_000_000_000, "a"),
            (2_000_000_000, "key-1"),
            (2_333_333_333, "key-1"),
            (2_666_666_666, "key-1"),
        ];
        assert_eq!(shown, want.map(|(at, key)| (at, key.to_owned())));
        assert_eq!(all[2].cost.units(), 5);
    }

    #[test]
    fn the_counts_are_those_of_the_rates() {
        assert_eq!(arrivals("steady 80/s 1m, burst 500, steady 150/s 1m").len(), 4800 + 500 + 9000);
        assert_eq!(arrivals("ramp 10/s 200/s 2m").len(), 12_600);
        assert_eq!(arrivals("ramp 200/s 0/s 10s").len(), 1_000);
        assert_eq!(arrivals("ramp 0/s 200/s 10s").len(), 1_000);
        assert_eq!(arrivals("steady 100/10min 1h").len(), 600);
        let poisson = arrivals("poisson 50/s 10m").len();
        assert!(poisson.abs_diff(30_000) < 600, "{poisson}");
    }

    #[test]
    fn the_same_seed_gives_the_same_requests_in_time_order() {
        let text = "poisson 50/s 10s keys zipf:1.1:1000, ramp 1/s 90/s 5s keys uniform:10";
        let all = arrivals(text);
        assert_eq!(all, arrivals(text));
        assert!(all.is_sorted_by_key(|arrival| arrival.at));
        assert_ne!(
            all,
            text.parse::<Traffic>().unwrap().arrivals(Tick::from_secs(100), 8).collect::<Vec<_>>()
        );
    }

    #[test]
    fn zipf_prefers_the_first_keys_in_proportion() {
        let mut counts: HashMap<TrafficKey, u32> = HashMap::new();
        for arrival in arrivals("steady 1000/s 1m keys zipf:1:100") {
            *counts.entry(arrival.key).or_default() += 1;
        }
        let (first, second) = (counts[&TrafficKey::Number(1)], counts[&TrafficKey::Number(2)]);
        // 60,000 / (1 + 1/2 + ... + 1/100) = 11,566
        assert!(first.abs_diff(11_566) < 400 && second.abs_diff(5_783) < 300, "{first} {second}");
    }

    #[test]
    fn how_requests_go_does_not_change_when_they_come() {
        let bare = arrivals("poisson 50/s 10s keys uniform:9");
        let told = arrivals("poisson 50/s 10s keys uniform:9 taking exponential:20ms failing 30%");
        assert_eq!(bare.len(), told.len());
        assert!(bare.iter().zip(&told).all(|(bare, told)| (bare.at, &bare.key) == (told.at, &told.key)));
        assert!(bare.iter().all(|bare| bare.took.is_none() && bare.outcome.is_none()));
    }

    #[test]
    fn times_and_failures_are_those_of_the_line() {
        let mean = |text: &str| {
            let all = arrivals(text);
            all.iter().filter_map(|arrival| arrival.took).sum::<Duration>().as_secs_f64() * 1e3
                / all.len() as f64
        };
        assert_eq!(mean("burst 100 taking 20ms"), 20.0);
        let (even, chance) =
            (mean("burst 10000 taking 20ms..400ms"), mean("burst 10000 taking exponential:50ms"));
        assert!((even - 210.0).abs() < 5.0 && (chance - 50.0).abs() < 2.0, "{even} {chance}");
        let between = arrivals("burst 1000 taking 1ns..3ns");
        let seen: std::collections::BTreeSet<_> = between.iter().filter_map(|arrival| arrival.took).collect();
        assert_eq!(seen.into_iter().map(|took| took.as_nanos()).collect::<Vec<_>>(), [1, 2, 3]);
        let failures = |share: &str| {
            let failed = |arrival: &Arrival| arrival.outcome == Some(Outcome::Failure);
            arrivals(&format!("burst 10000 failing {share}")).iter().filter(|arrival| failed(arrival)).count()
        };
        assert_eq!((failures("0%"), failures("100%")), (0, 10_000));
        assert!(failures("30%").abs_diff(3_000) < 150 && failures("0.5%").abs_diff(50) < 25);
    }

    #[test]
    fn segments_that_do_not_say_how_long_requests_take_are_found() {
        let untimed = |text: &str| text.parse::<Traffic>().unwrap().untimed();
        assert_eq!(untimed("steady 1/s 1s taking 2ms, idle 1s, burst 3 taking 1ms..2ms"), None);
        assert_eq!(untimed("steady 1/s 1s taking 2ms, idle 1s, burst 3 failing 5%"), Some(3));
    }

    #[test]
    fn requests_have_the_attributes_and_the_priority_of_their_segment() {
        let line = "burst 1 with request.path=/login with user.tier=gold priority sheddable/3, burst 1, idle 1s with c=";
        let all = arrivals(line);
        let shown = |arrival: &Arrival| {
            let pairs: Vec<_> =
                arrival.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (pairs.join(" "), arrival.priority.to_string())
        };
        assert_eq!(shown(&all[0]), ("request.path=/login user.tier=gold".into(), "sheddable/3".into()));
        assert_eq!(shown(&all[1]), (String::new(), "critical".into()));
        let traffic: Traffic = line.parse().unwrap();
        assert_eq!(traffic.attributes().collect::<Vec<_>>(), ["request.path", "user.tier"]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(steady|burst|ramp|poisson|idle|keys|key|cost| |,|1/s|0/s|5|1m|zipf:1:3|taking|failing|\\.\\.|1ms|exponential:|%|\\.|99|é|with|request.path=/|=|priority|sheddable|/3){0,14}") {
            if let Ok(traffic) = text.parse::<Traffic>() {
                let _ = traffic.arrivals(Tick::EPOCH, 1).take(100).count();
            }
        }
    }
}
