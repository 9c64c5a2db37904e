//! Traffic made up from a line of text, the same every time.
//!
//! ```text
//! steady 80/s 1min, burst 500, steady 150/s 1min, ramp 10/s 200/s 2min, poisson 50/s 1min keys zipf:1.1:1000, idle 10s
//! ```
//! Segments follow each other. Each may say who asks (`key NAME`, `keys uniform:N`, `keys zipf:S:N`) and what a request
//! costs (`cost N`); without, everyone is `key-1` and costs 1. Ticks are whole nanoseconds; chance comes from the seed alone.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::{GrammarError, WrittenRate, span};
use tidegate::{Cost, Tick};

/// What is wrong with a line of traffic, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("traffic, column {column}: {what}")]
pub struct TrafficError {
    /// The column of the word that is wrong, in characters from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// Traffic as written: a list of segments. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Traffic {
    segments: Arc<[Segment]>,
}

#[derive(Clone, Debug)]
struct Segment {
    shape: Shape,
    keys: Keys,
    cost: Cost,
}

/// A rate as an exact ratio.
#[derive(Clone, Copy, Debug)]
struct Pace {
    count: u64,
    period: u64,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Steady { pace: Pace, span: u64 },
    Ramp { from: Pace, to: Pace, span: u64 },
    Poisson { pace: Pace, span: u64 },
    Burst { count: u64 },
    Idle { span: u64 },
}

#[derive(Clone, Debug)]
enum Keys {
    One(Arc<str>),
    Uniform(u32),
    /// Shares of the first keys added up, out of 2³².
    Zipf(Arc<[u32]>),
}

/// More keys than this would be a table of many megabytes for a picture that looks the same.
const MAX_KEYS: u64 = 1_000_000;
/// What a fast machine decides in some minutes; a line of text that asks for more is a slip in a unit.
const MAX_REQUESTS: u128 = 1_000_000_000;
const MAX_SPAN: u64 = 366 * 86_400 * 1_000_000_000;
const SHAPES: [&str; 5] = ["steady", "burst", "ramp", "poisson", "idle"];
const OPTIONS: [&str; 3] = ["keys", "key", "cost"];

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TrafficKey {
    /// One of many, from 1.
    Number(u32),
    /// By name.
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
    /// When.
    pub at: Tick,
    /// Who.
    pub key: TrafficKey,
    /// How much.
    pub cost: Cost,
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

/// The words of one segment, with their places.
struct Words<'t> {
    text: &'t str,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    column: usize,
}

impl<'t> Words<'t> {
    fn next(&mut self) -> Option<Word<'t>> {
        let rest = &self.text[self.from..self.to];
        let start = self.from + (rest.len() - rest.trim_start().len());
        let rest = rest.trim_start();
        let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.from = start + length;
        let column = self.text[..start].chars().count() + 1;
        (length > 0).then(|| Word { text: &rest[..length], column })
    }

    fn want(&mut self, what: &str) -> Result<Word<'t>, TrafficError> {
        let column = self.text[..self.to].chars().count() + 1;
        self.next().ok_or_else(|| TrafficError { column, what: format!("{what} is missing") })
    }
}

impl Word<'_> {
    fn error(self, what: impl Into<String>) -> TrafficError {
        TrafficError { column: self.column, what: what.into() }
    }

    fn pace(self) -> Result<Pace, TrafficError> {
        match self.text.parse::<WrittenRate>() {
            Ok(rate @ WrittenRate::Per { count, .. }) => {
                let period = rate.period().map_or(1, |period| period.as_nanos() as u64);
                Ok(Pace { count, period })
            }
            Ok(_) => Err(self.error("traffic needs a number: write 100/s")),
            Err(GrammarError::Zero { .. }) => Ok(Pace { count: 0, period: 1_000_000_000 }),
            Err(error) => Err(self.error(error.to_string())),
        }
    }

    /// Reads a span. A bare `m` is a minute here: nobody simulates months by mistake.
    fn span(self) -> Result<u64, TrafficError> {
        let minutes = self.text.strip_suffix('m').filter(|number| number.bytes().all(|b| b.is_ascii_digit()));
        let read = match minutes {
            Some(number) => span(&format!("{number}min")),
            None => span(self.text),
        };
        let nanos = read.map_err(|error| self.error(error.to_string()))?.as_nanos();
        u64::try_from(nanos)
            .ok()
            .filter(|nanos| (1..=MAX_SPAN).contains(nanos))
            .ok_or_else(|| self.error(format!("`{}` is not a span to simulate; use 1ns to 366d", self.text)))
    }

    fn number(self, what: &str, most: u64) -> Result<u64, TrafficError> {
        let number = self.text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| {
            self.error(format!("{what} `{}` is not a whole number from 1 to {most}", self.text))
        })
    }
}

fn segment(words: &mut Words<'_>) -> Result<Segment, TrafficError> {
    let shape = words.want("a segment (steady, burst, ramp, poisson or idle)")?;
    let shape = match shape.text {
        "steady" => {
            Shape::Steady { pace: words.want("a rate")?.pace()?, span: words.want("a span")?.span()? }
        }
        "poisson" => {
            Shape::Poisson { pace: words.want("a rate")?.pace()?, span: words.want("a span")?.span()? }
        }
        "ramp" => Shape::Ramp {
            from: words.want("a rate to begin with")?.pace()?,
            to: words.want("a rate to end with")?.pace()?,
            span: words.want("a span")?.span()?,
        },
        "burst" => Shape::Burst { count: words.want("a count")?.number("count", 1_000_000_000)? },
        "idle" => Shape::Idle { span: words.want("a span")?.span()? },
        other => {
            let near = crate::words::nearest(other, &SHAPES);
            return Err(
                shape.error(format!("`{other}` is no kind of traffic{near}; use {}", SHAPES.join(", ")))
            );
        }
    };
    let (mut keys, mut cost) = (Keys::Uniform(1), Cost::ONE);
    while let Some(option) = words.next() {
        match option.text {
            "key" => keys = Keys::One(words.want("a name")?.text.into()),
            "keys" => keys = many(words.want("`uniform:N` or `zipf:S:N`")?)?,
            "cost" => {
                let word = words.want("a cost")?;
                cost = Cost::new(word.number("cost", 1 << 60)?).unwrap_or_default();
            }
            other => {
                let near = crate::words::nearest(other, &OPTIONS);
                return Err(option.error(format!("`{other}` is no option{near}; use {}", OPTIONS.join(", "))));
            }
        }
    }
    Ok(Segment { shape, keys, cost })
}

fn many(word: Word<'_>) -> Result<Keys, TrafficError> {
    let refuse = || {
        let near = crate::words::nearest(word.text.split(':').next().unwrap_or(""), &["uniform", "zipf"]);
        word.error(format!("`{}` is no choice of keys{near}; use uniform:N or zipf:S:N", word.text))
    };
    let count = |text: &str| {
        let number = text.parse().ok().filter(|number| (1..=MAX_KEYS).contains(number));
        number.ok_or_else(|| word.error(format!("`{text}` is not a number of keys from 1 to {MAX_KEYS}")))
    };
    let parts: Vec<&str> = word.text.split(':').collect();
    match parts[..] {
        ["uniform", number] => Ok(Keys::Uniform(count(number)? as u32)),
        ["zipf", exponent, number] => {
            let exponent: f64 = exponent.parse().map_err(|_| refuse())?;
            if !(0.0..=10.0).contains(&exponent) {
                return Err(word.error("the exponent of zipf is 0 to 10"));
            }
            Ok(zipf(exponent, count(number)?))
        }
        _ => Err(refuse()),
    }
}

/// Adds the shares up on a grid of 2³², so that the last bit of a platform's power function does not decide who asks.
fn zipf(exponent: f64, count: u64) -> Keys {
    let weight = |rank: u64| (rank as f64).powf(-exponent);
    let total: f64 = (1..=count).map(weight).sum();
    let mut sum = 0.0;
    let shares = (1..=count).map(|rank| {
        sum += weight(rank);
        (sum / total * f64::from(u32::MAX)).round() as u32
    });
    Keys::Zipf(shares.collect())
}

impl Traffic {
    /// Returns the requests, from `start` on. The same seed gives the same requests.
    #[must_use]
    pub fn arrivals(&self, start: Tick, seed: u64) -> Arrivals {
        Arrivals {
            segments: Arc::clone(&self.segments),
            place: 0,
            start: start.as_nanos(),
            number: 0,
            last: 0,
            chance: Chance(seed),
        }
    }

    /// Returns how long the traffic lasts.
    #[must_use]
    pub fn span(&self) -> Duration {
        let spans = self.segments.iter().map(|segment| segment.shape.span());
        Duration::from_nanos(spans.fold(0, u64::saturating_add))
    }
}

impl Shape {
    fn span(self) -> u64 {
        match self {
            Self::Steady { span, .. }
            | Self::Ramp { span, .. }
            | Self::Poisson { span, .. }
            | Self::Idle { span } => span,
            Self::Burst { .. } => 0,
        }
    }

    /// Returns how many requests it makes, by the mean of what is left to chance.
    fn requests(self) -> u128 {
        let at = |pace: Pace, span: u64| u128::from(pace.count) * u128::from(span) / u128::from(pace.period);
        match self {
            Self::Steady { pace, span } | Self::Poisson { pace, span } => at(pace, span),
            Self::Ramp { from, to, span } => (at(from, span) + at(to, span)) / 2,
            Self::Burst { count } => u128::from(count),
            Self::Idle { .. } => 0,
        }
    }

    /// Returns when request `number` of the segment comes, after the segment's start; `None` after its last.
    fn offset(self, number: u64, last: u64, chance: &mut Chance) -> Option<u64> {
        let (at, span) = match self {
            Self::Idle { .. } => return None,
            Self::Burst { count } => return (number < count).then_some(0),
            Self::Steady { pace: Pace { count: 0, .. }, .. }
            | Self::Poisson { pace: Pace { count: 0, .. }, .. } => {
                return None;
            }
            Self::Steady { pace, span } => {
                let at = u128::from(number) * u128::from(pace.period) / u128::from(pace.count);
                (u64::try_from(at).unwrap_or(u64::MAX), span)
            }
            Self::Poisson { pace, span } => {
                // The gap is a 32-bit fixed-point number of means.
                let gap = u128::from(chance.exponential()) * u128::from(pace.period) / u128::from(pace.count);
                (last.saturating_add(u64::try_from(gap >> 32).unwrap_or(u64::MAX)), span)
            }
            Self::Ramp { from, to, span } => (ramp(from, to, span, number)?, span),
        };
        (at < span).then_some(at)
    }
}

/// Returns when the area under a ramp reaches `number`: the solution of a square equation in the form that loses no digits.
/// Root and division are exact to the last bit on every platform, so this is as repeatable as integers, and 53 bits of
/// precision are a nanosecond in a hundred days.
fn ramp(from: Pace, to: Pace, span: u64, number: u64) -> Option<u64> {
    let per_nano = |pace: Pace| pace.count as f64 / pace.period as f64;
    let (from, to, number) = (per_nano(from), per_nano(to), number as f64);
    let slope = (to - from) / span as f64;
    let root = from * from + 2.0 * slope * number;
    if number == 0.0 {
        return (from > 0.0 || to > 0.0).then_some(0);
    }
    if root < 0.0 {
        return None;
    }
    let at = 2.0 * number / (from + root.sqrt());
    at.is_finite().then_some(at as u64)
}

/// The requests of a [`Traffic`], in time order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    segments: Arc<[Segment]>,
    place: usize,
    /// When the segment at hand begins.
    start: u64,
    number: u64,
    last: u64,
    chance: Chance,
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
                    Keys::Uniform(1) => TrafficKey::Number(1),
                    Keys::Uniform(count) => TrafficKey::Number(self.chance.below(*count) + 1),
                    Keys::Zipf(shares) => {
                        let at = (self.chance.next() >> 32) as u32;
                        let rank = shares.partition_point(|share| *share < at).min(shares.len() - 1);
                        TrafficKey::Number(rank as u32 + 1)
                    }
                };
                let at = Tick::from_nanos(self.start.saturating_add(offset));
                return Some(Arrival { at, key, cost: segment.cost });
            }
            self.start = self.start.saturating_add(segment.shape.span());
            (self.place, self.number, self.last) = (self.place + 1, 0, 0);
        }
    }
}

/// A small generator of chance that is the same everywhere and for ever.
///
/// # Source
/// Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014 (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `count`; its bias, below 2⁻³², does not show.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        ((u64::from((self.next() >> 32) as u32) * u64::from(count)) >> 32) as u32
    }

    /// Returns an exponential variate of mean 1, in units of 2⁻³², by comparisons alone: no logarithm that differs between platforms.
    ///
    /// Uniform numbers are drawn as long as they fall. A run of odd length gives its first number; a run of even length is
    /// thrown away and counts one whole mean.
    ///
    /// # Source
    /// J. von Neumann, Various techniques used in connection with random digits, 1951.
    fn exponential(&mut self) -> u64 {
        let mut whole = 0u64;
        loop {
            let first = self.next() >> 32;
            let (mut before, mut length) = (first, 1u32);
            loop {
                let next = self.next() >> 32;
                if next >= before {
                    break;
                }
                before = next;
                length += 1;
            }
            if length % 2 == 1 {
                return (whole << 32) + first;
            }
            whole += 1;
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
    fn exponential_gaps_have_mean_and_variance_one() {
        let mut chance = Chance(3);
        let all: Vec<f64> = (0..100_000).map(|_| chance.exponential() as f64 / 2f64.powi(32)).collect();
        let mean = all.iter().sum::<f64>() / 1e5;
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn mistakes_name_their_place_and_the_nearest_word() {
        let rows = [
            ("", "traffic, column 1: a segment (steady, burst, ramp, poisson or idle) is missing"),
            (
                "stedy 1/s 1s",
                "traffic, column 1: `stedy` is no kind of traffic; did you mean `steady`?; use steady, burst, ramp, poisson, idle",
            ),
            ("idle 1s, steady 1/s", "traffic, column 20: a span is missing"),
            (
                "steady 100 1s",
                "traffic, column 8: \"100\" does not say per what; write 100/s, 100/min or 100/day",
            ),
            (
                "steady 1/s 1x",
                "traffic, column 12: unknown unit \"x\"; use ms, s, min, h, day, week, month or year",
            ),
            (
                "burst 5,steady 1000000000/s 366d",
                "traffic, column 9: with this segment it is 31622400000000005 requests; use at most 1000000000",
            ),
            ("burst 0", "traffic, column 7: count `0` is not a whole number from 1 to 1000000000"),
            (
                "burst 5 keys zip:1:2",
                "traffic, column 14: `zip:1:2` is no choice of keys; did you mean `zipf`?; use uniform:N or zipf:S:N",
            ),
            (
                "burst 5 kyes uniform:3",
                "traffic, column 9: `kyes` is no option; did you mean `keys`?; use keys, key, cost",
            ),
        ];
        for (text, want) in rows {
            assert_eq!(text.parse::<Traffic>().unwrap_err().to_string(), want, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(steady|burst|ramp|poisson|idle|keys|key|cost| |,|1/s|0/s|5|1m|zipf:1:3|é){0,12}") {
            if let Ok(traffic) = text.parse::<Traffic>() {
                let _ = traffic.arrivals(Tick::EPOCH, 1).take(100).count();
            }
        }
    }
}
