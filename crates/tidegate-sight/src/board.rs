//! Counts each policy's events of the current second, and remembers the last minute.
//!
//! Distinct keys cannot be counted by adding: a key that is refused in each second of a minute is one key. So each policy
//! has a linear counter per minute, 256 bytes, and counters of several minutes are joined by "or".
//!
//! # Source
//! Whang, Vander-Zanden, Taylor: A linear-time probabilistic counting algorithm for database applications, 1990.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_server::{Seen, Verdict};

use crate::numbers::{Counts, Series, ServerCounts, Span};

/// Policies with a number of their own. A process that sees more names counts the others together.
pub(crate) const POLICIES: usize = 4_096;

/// The number of all policies beyond [`POLICIES`].
pub(crate) const OTHERS: u16 = u16::MAX;

/// Returns the index of a policy in a list of [`POLICIES`] + 1.
pub(crate) fn slot(policy: u16) -> usize {
    usize::from(policy).min(POLICIES)
}

/// The counts of the current second. Each policy takes about 200 bytes, and 1.3 KiB more from its first refusal on: at
/// most 6.5 MiB.
#[derive(Debug)]
pub(crate) struct Board {
    numbers: HashMap<Arc<str>, u16, RandomState>,
    rows: Vec<Row>,
    others: Row,
    /// The policies of this second's events.
    touched: Vec<u16>,
    /// The minute of the current second, counted from 1970.
    minute: u64,
}

#[derive(Debug)]
struct Row {
    name: Arc<str>,
    per_second: Option<f64>,
    counts: Counts,
    is_touched: bool,
    /// The last second with an event; 0: none.
    last: u64,
    refused: Option<Box<RefusedKeys>>,
}

impl Row {
    fn new(name: Arc<str>, per_second: Option<f64>) -> Self {
        Self { name, per_second, counts: Counts::default(), is_touched: false, last: 0, refused: None }
    }
}

impl Board {
    /// Makes an empty board at a time in seconds since 1970.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            numbers: HashMap::default(),
            rows: Vec::new(),
            others: Row::new("(other policies)".into(), None),
            touched: Vec::new(),
            minute: now / 60,
        }
    }

    /// Returns the number of a policy, and notes its rate.
    pub(crate) fn policy(&mut self, name: &str, per_second: Option<f64>) -> u16 {
        let per_second = per_second.filter(|rate| rate.is_finite() && *rate > 0.0);
        if let Some(number) = self.numbers.get(name) {
            self.rows[usize::from(*number)].per_second = per_second;
            return *number;
        }
        let Some(number) = u16::try_from(self.rows.len()).ok().filter(|number| slot(*number) < POLICIES)
        else {
            return OTHERS;
        };
        let name = Arc::<str>::from(name);
        self.numbers.insert(Arc::clone(&name), number);
        self.rows.push(Row::new(name, per_second));
        number
    }

    pub(crate) fn number_of(&self, name: &str) -> Option<u16> {
        if *name == *self.others.name { Some(OTHERS) } else { self.numbers.get(name).copied() }
    }

    pub(crate) fn name_of(&self, policy: u16) -> Option<Arc<str>> {
        self.row(policy).map(|row| Arc::clone(&row.name))
    }

    /// Returns the rate of the policy's first limit with one rate for all keys, in units a second; above 0.
    pub(crate) fn per_second(&self, policy: u16) -> Option<f64> {
        self.row(policy).and_then(|row| row.per_second)
    }

    /// Returns the share of the policy's rate that so many units a second are; `None` without such a rate, and where ten
    /// seconds of it, over which units are counted, are less than one unit: any request would be many times as much.
    pub(crate) fn share_of_rate(&self, policy: u16, per_second: f64) -> Option<f64> {
        let rate = self.per_second(policy).filter(|rate| rate * 10.0 >= 1.0)?;
        Some(per_second / rate)
    }

    /// Returns how many different keys the policy refused in this minute and the four before it, about.
    pub(crate) fn keys_refused(&self, policy: u16) -> u64 {
        let refused = self.row(policy).and_then(|row| row.refused.as_ref());
        refused.map_or(0, |refused| refused.estimate(self.minute, MINUTES))
    }

    /// Returns the policies with the last second in which each had an event; 0: none.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (u16, u64)> {
        let numbered = (0..).zip(self.rows.iter().map(|row| row.last));
        let others = (self.others.last > 0).then_some((OTHERS, self.others.last));
        numbered.chain(others)
    }

    fn row(&self, policy: u16) -> Option<&Row> {
        if policy == OTHERS { Some(&self.others) } else { self.rows.get(usize::from(policy)) }
    }

    /// Counts an event. Allocates at a policy's first refusal only.
    pub(crate) fn note(&mut self, seen: &Seen) {
        let is_known = usize::from(seen.policy) < self.rows.len();
        let policy = if is_known { seen.policy } else { OTHERS };
        let row = if is_known { &mut self.rows[usize::from(policy)] } else { &mut self.others };
        if !row.is_touched {
            row.is_touched = true;
            self.touched.push(policy);
        }
        let cost = u64::from(seen.cost);
        // A policy in shadow mode, or a shadow limit, adds no units: the same request may be counted beside it.
        let (series, asked, admitted) = match seen.verdict {
            Verdict::Allowed => (Series::Allowed, cost, cost),
            Verdict::Delayed => (Series::Delayed, cost, cost),
            Verdict::Denied => (Series::Denied, cost, 0),
            Verdict::Over => (Series::Over, cost, cost),
            Verdict::Error => (Series::Errors, cost, 0),
            Verdict::WouldDeny => (Series::WouldDeny, 0, 0),
            Verdict::WouldAllow => (Series::WouldAllow, 0, 0),
        };
        add(&mut row.counts, series, 1);
        add(&mut row.counts, Series::AskedUnits, asked);
        add(&mut row.counts, Series::AdmittedUnits, admitted);
        add(&mut row.counts, Series::Near, u64::from(seen.near));
        add(&mut row.counts, Series::CanaryDenied, u64::from(seen.canary && seen.verdict == Verdict::Denied));
        if seen.verdict == Verdict::Denied {
            row.refused.get_or_insert_default().note(self.minute, seen.key);
        }
    }

    /// Ends the second that begins at `at`, in seconds since 1970, and returns its counts.
    ///
    /// [`Series::KeysRefused`] is the number of different keys refused in the minute so far, so the largest of a minute is
    /// the number of the minute. [`Series::HottestShare`] is left at 0. Takes time only for policies with events.
    pub(crate) fn end_second(&mut self, at: u64, server: ServerCounts) -> Span {
        self.touched.sort_unstable();
        let (mut policies, minute) = (Vec::with_capacity(self.touched.len()), self.minute);
        for policy in self.touched.drain(..) {
            let row = if policy == OTHERS { &mut self.others } else { &mut self.rows[usize::from(policy)] };
            let mut counts = std::mem::take(&mut row.counts);
            if let Some(refused) = &row.refused {
                counts.0[Series::KeysRefused as usize] = refused.estimate(minute, 1);
            }
            (row.is_touched, row.last) = (false, at.max(1));
            policies.push((policy, counts));
        }
        self.minute = at.saturating_add(1) / 60;
        Span { at, server, policies }
    }
}

/// Spreads a key over all 64 bits (the last steps of MurmurHash3), so that a part of them can stand for the key.
pub(crate) fn mixed(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let key = (key ^ (key >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    key ^ (key >> 33)
}

fn add(counts: &mut Counts, series: Series, amount: u64) {
    let count = &mut counts.0[series as usize];
    *count = count.saturating_add(amount);
}

/// Minutes for which refused keys are remembered.
const MINUTES: u64 = 5;

/// Bits of a linear counter. It is right within some percent up to 10,000 keys, and says 15,615 when all bits are set.
const BITS: u64 = 2_048;

/// Which keys were refused, as hashed bits per minute.
#[derive(Debug, Default)]
struct RefusedKeys([MinuteOfKeys; MINUTES as usize]);

#[derive(Debug, Default)]
struct MinuteOfKeys {
    /// Counted from 1970.
    minute: u64,
    bits: [u64; (BITS / 64) as usize],
}

impl RefusedKeys {
    fn note(&mut self, minute: u64, key: u64) {
        let place = &mut self.0[(minute % MINUTES) as usize];
        if place.minute != minute {
            *place = MinuteOfKeys { minute, ..MinuteOfKeys::default() };
        }
        let bit = mixed(key) >> (64 - BITS.ilog2());
        place.bits[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// Estimates the number of different keys in the last `minutes` minutes, this one included.
    fn estimate(&self, minute: u64, minutes: u64) -> u64 {
        let mut joined = MinuteOfKeys::default().bits;
        // Minutes after this one, from before the clock was set back, are left out.
        for place in self.0.iter().filter(|place| place.minute <= minute && minute - place.minute < minutes) {
            for (bits, more) in joined.iter_mut().zip(place.bits) {
                *bits |= more;
            }
        }
        let set: u64 = joined.iter().map(|bits| u64::from(bits.count_ones())).sum();
        let clear = (BITS - set).max(1);
        (BITS as f64 * (BITS as f64 / clear as f64).ln()).round() as u64
    }
}

/// Seconds that [`LastMinute`] has one by one.
const SECONDS: usize = 10;

/// The last ten seconds and the last minute, summed. Keeps 10 seconds and 5 spans of ten seconds, only of policies with
/// events: at most 10 MiB, if 4,097 policies have events in every second.
#[derive(Debug, Default)]
pub(crate) struct LastMinute {
    seconds: VecDeque<Span>,
    tens: VecDeque<Sum>,
    /// Of the seconds since the last ten of them: less than ten.
    part: Sum,
}

/// Counts of several seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) seconds: u64,
    pub(crate) server: ServerCounts,
    pub(crate) policies: HashMap<u16, Counts, RandomState>,
}

impl LastMinute {
    /// Adds a second.
    pub(crate) fn push(&mut self, span: &Span) {
        if self.seconds.len() >= SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back(span.clone());
        self.part.add_span(span);
        if self.part.seconds >= SECONDS as u64 {
            if self.tens.len() >= 5 {
                self.tens.pop_front();
            }
            self.tens.push_back(std::mem::take(&mut self.part));
        }
    }

    /// Returns the sum of the last ten seconds.
    pub(crate) fn ten_seconds(&self) -> Sum {
        let mut sum = Sum::default();
        self.seconds.iter().for_each(|span| sum.add_span(span));
        sum
    }

    /// Returns the sum of the last minute: of 50 to 59 seconds.
    pub(crate) fn minute(&self) -> Sum {
        let mut sum = self.part.clone();
        self.tens.iter().for_each(|ten| sum.add_sum(ten));
        sum
    }
}

impl Sum {
    fn add_span(&mut self, span: &Span) {
        self.seconds += 1;
        self.server.absorb(&span.server);
        for (policy, counts) in &span.policies {
            self.policies.entry(*policy).or_default().absorb(counts);
        }
    }

    fn add_sum(&mut self, more: &Self) {
        self.seconds += more.seconds;
        self.server.absorb(&more.server);
        for (policy, counts) in &more.policies {
            self.policies.entry(*policy).or_default().absorb(counts);
        }
    }

    /// Returns a count as a rate per second.
    pub(crate) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Tick;

    use super::*;

    fn seen(policy: u16, verdict: Verdict, key: u64, cost: u32) -> Seen {
        Seen { policy, verdict, near: false, canary: false, key, cost, at: Tick::EPOCH }
    }

    #[test]
    fn each_second_has_the_counts_of_its_events() {
        let mut board = Board::new(120);
        let (a, b) = (board.policy("a", Some(2.0)), board.policy("b", None));
        assert_eq!((board.policy("a", Some(f64::NAN)), board.per_second(a)), (a, None));
        let (seldom, minute) = (board.policy("c", Some(3.0 / 3_600.0)), board.policy("d", Some(0.1)));
        let shares = [a, b, seldom, minute].map(|policy| board.share_of_rate(policy, 0.2));
        assert_eq!(shares, [None, None, None, Some(2.0)]);
        board.note(&seen(b, Verdict::Denied, 1, 3));
        board.note(&seen(b, Verdict::Allowed, 1, 2));
        board.note(&Seen { near: true, ..seen(b, Verdict::Delayed, 1, 5) });
        board.note(&seen(b, Verdict::WouldDeny, 1, 5));
        board.note(&Seen { canary: true, ..seen(b, Verdict::Denied, 1, 0) });
        board.note(&Seen { canary: true, ..seen(b, Verdict::Over, 1, 0) });
        let span = board.end_second(120, ServerCounts::default());
        let counts = span.policies[0].1;
        assert_eq!((span.at, span.policies.len(), span.policies[0].0), (120, 1, b));
        let expected = [
            (Series::Allowed, 1),
            (Series::Delayed, 1),
            (Series::Denied, 2),
            (Series::Over, 1),
            (Series::CanaryDenied, 1),
            (Series::Near, 1),
            (Series::WouldDeny, 1),
            (Series::KeysRefused, 1),
            (Series::AskedUnits, 10),
            (Series::AdmittedUnits, 7),
        ];
        for (series, count) in expected {
            assert_eq!(counts.of(series), count, "{series:?}");
        }
        assert!(board.end_second(121, ServerCounts::default()).policies.is_empty());
        assert_eq!(board.policies().collect::<Vec<_>>(), [(a, 0), (b, 120), (seldom, 0), (minute, 0)]);
    }

    /// The largest of a minute's seconds is the number of keys of the minute; five minutes are joined.
    #[test]
    fn a_key_that_is_refused_each_second_is_one_key() {
        let mut board = Board::new(600);
        let policy = board.policy("a", None);
        let mut of_minutes = [0; 6];
        for at in 600..960 {
            board.note(&seen(policy, Verdict::Denied, 1, 1));
            board.note(&seen(policy, Verdict::Denied, at, 1));
            let span = board.end_second(at, ServerCounts::default());
            let most: &mut u64 = &mut of_minutes[(at / 60 - 10) as usize];
            *most = (*most).max(span.policies[0].1.of(Series::KeysRefused));
        }
        for count in of_minutes {
            assert!((59..=63).contains(&count), "{count}");
        }
        board.note(&seen(policy, Verdict::Denied, 1, 1));
        let five = board.keys_refused(policy);
        assert!((230..=250).contains(&five), "four whole minutes and a begun one: {five}");
    }

    #[test]
    fn many_keys_are_counted_within_some_percent_and_a_clock_set_back_ends_them() {
        let mut keys = RefusedKeys::default();
        for key in 0..5_000_u64 {
            keys.note(9, key.wrapping_mul(key).wrapping_add(key << 40));
        }
        let count = keys.estimate(9, 5);
        assert!((4_500..5_500).contains(&count), "{count}");
        assert_eq!((keys.estimate(13, 5), keys.estimate(14, 5), keys.estimate(8, 5)), (count, 0, 0));
        (0..1_000_000).for_each(|key| keys.note(14, key));
        assert_eq!(keys.estimate(14, 1), 15_615);
    }

    #[test]
    fn policies_beyond_the_bound_share_a_number() {
        let mut board = Board::new(0);
        for number in 0..5_000 {
            board.policy(&number.to_string(), None);
        }
        assert_eq!(board.policy("4095", None), 4_095);
        assert_eq!(board.policy("4096", None), OTHERS);
        assert_eq!(board.name_of(OTHERS).as_deref(), Some("(other policies)"));
        assert_eq!(board.name_of(4_096), None);
        board.note(&seen(OTHERS, Verdict::Allowed, 1, 1));
        board.note(&seen(4_096, Verdict::Allowed, 1, 1));
        let span = board.end_second(7, ServerCounts::default());
        assert_eq!(span.policies.iter().map(|(policy, _)| *policy).collect::<Vec<_>>(), [OTHERS]);
        assert_eq!(span.policies[0].1.of(Series::Allowed), 2);
    }

    #[test]
    fn the_last_minute_is_of_fifty_to_fifty_nine_seconds() {
        let mut recent = LastMinute::default();
        for at in 0..200 {
            let mut counts = Counts::default();
            counts.0[Series::Denied as usize] = 2;
            recent.push(&Span { at, policies: vec![(3, counts)], ..Span::default() });
            let (ten, minute) = (recent.ten_seconds(), recent.minute());
            assert_eq!(ten.seconds, (at + 1).min(10));
            assert_eq!(minute.policies[&3].of(Series::Denied), minute.seconds * 2);
            assert!(at < 60 || (50..60).contains(&minute.seconds), "{}", minute.seconds);
            assert!(at >= 50 || minute.seconds == at + 1);
        }
    }
}
