//! What is kept of the past in memory: the last seconds, and what has not been written yet of minutes and hours.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::codec::{Row, Rows, WIDTH};
use crate::numbers::{Series, ServerSeries};

/// A length of spans that is kept in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tier {
    /// One minute, for a day; a block is an hour.
    Minute,
    /// Five minutes, for four weeks; a block is a day. Of policies only what tells what is usual.
    FiveMinutes,
    /// One hour, for 90 days; a block is a day.
    Hour,
}

impl Tier {
    pub(crate) const ALL: [Self; 3] = [Self::Minute, Self::FiveMinutes, Self::Hour];

    /// The number in keys of the file.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Minute => 1,
            Self::FiveMinutes => 2,
            Self::Hour => 3,
        }
    }

    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::FiveMinutes => 300,
            Self::Hour => 3_600,
        }
    }

    pub(crate) const fn block(self) -> u64 {
        match self {
            Self::Minute => 3_600,
            Self::FiveMinutes | Self::Hour => DAY,
        }
    }

    pub(crate) const fn kept_for(self) -> u64 {
        match self {
            Self::Minute => DAY,
            // The same hour of 28 days, and the last of those days whole.
            Self::FiveMinutes => 29 * DAY,
            Self::Hour => 90 * DAY,
        }
    }

    /// Returns the beginning of the block of a time.
    pub(crate) const fn start(self, at: u64) -> u64 {
        at - at % self.block()
    }

    /// Returns the end of the block that begins at a time.
    pub(crate) const fn end(self, start: u64) -> u64 {
        start.saturating_add(self.block())
    }

    /// Returns the number of a time's span in its block: below 288.
    pub(crate) const fn span(self, at: u64) -> u16 {
        ((at % self.block()) / self.seconds()) as u16
    }
}

pub(crate) const DAY: u64 = 86_400;

/// The name under which the server's own counts are kept. No policy has an empty name.
pub(crate) const SERVER: &str = "";

/// Returns whether longer spans of a column have the largest value of their parts, not the sum.
pub(crate) fn is_largest(name: &str, column: usize) -> bool {
    if name == SERVER {
        ServerSeries::ALL.get(column).is_some_and(|series| series.is_largest())
    } else {
        Series::ALL.get(column).is_some_and(|series| series.is_largest())
    }
}

/// Adds a part of the same span.
pub(crate) fn absorb(name: &str, have: &mut Row, more: &Row) {
    for (column, (have, more)) in have.iter_mut().zip(more).enumerate() {
        *have = if is_largest(name, column) { (*have).max(*more) } else { have.saturating_add(*more) };
    }
}

/// Adds a row to a block.
pub(crate) fn absorb_row(name: &str, rows: &mut Rows, span: u16, more: &Row) {
    match rows.binary_search_by_key(&span, |(span, _)| *span) {
        Ok(at) => absorb(name, &mut rows[at].1, more),
        Err(at) => rows.insert(at, (span, *more)),
    }
}

/// What a decision with the store ends with; the denied share is of these.
const DECIDED: [Series; 4] = [Series::Allowed, Series::Delayed, Series::Denied, Series::Over];

/// Returns what five minutes of a policy keep: enough for the denied share.
fn of_five_minutes(name: &str, row: &Row) -> Row {
    if name == SERVER {
        return *row;
    }
    let mut kept = [0; WIDTH];
    for series in DECIDED {
        kept[series as usize] = row[series as usize];
    }
    kept
}

/// The most policies of one block, or of the last seconds. Others have no history while it is so full.
pub(crate) const MOST_POLICIES: usize = 1_024;

/// The most rows that wait to be written, of about 100 bytes: when the disk is away, about two days of fifty policies
/// or two hours of a thousand. Beyond, the oldest block goes.
pub(crate) const MOST_WAITING: usize = 160_000;

/// What was counted and is not in the file yet. Adding it to what the file has makes the whole, in whatever order.
#[derive(Debug, Default)]
pub(crate) struct Deltas {
    blocks: BTreeMap<(Tier, u64), HashMap<Arc<str>, Rows>>,
    rows: usize,
}

impl Deltas {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Adds what was counted in a second, or in any span within a minute.
    pub(crate) fn add(&mut self, name: &Arc<str>, at: u64, row: &Row) {
        for tier in Tier::ALL {
            let row = if tier == Tier::FiveMinutes { of_five_minutes(name, row) } else { *row };
            self.add_row(name, (tier, tier.start(at)), tier.span(at), &row);
        }
    }

    /// Adds what was not written after all.
    pub(crate) fn add_all(&mut self, other: &Self) {
        for (block, policies) in &other.blocks {
            for (name, rows) in policies {
                for (span, row) in rows {
                    self.add_row(name, *block, *span, row);
                }
            }
        }
    }

    fn add_row(&mut self, name: &Arc<str>, block: (Tier, u64), span: u16, row: &Row) {
        let policies = self.blocks.entry(block).or_default();
        if let Some(rows) = policies.get_mut(name) {
            let before = rows.len();
            absorb_row(name, rows, span, row);
            self.rows += rows.len() - before;
        } else if policies.len() <= MOST_POLICIES {
            policies.insert(Arc::clone(name), vec![(span, *row)]);
            self.rows += 1;
        }
    }

    /// Drops the oldest blocks until at most so many rows are left.
    pub(crate) fn trim(&mut self, most: usize) {
        while self.rows > most {
            let Some(oldest) = self.blocks.keys().copied().min_by_key(|(tier, start)| tier.end(*start))
            else {
                return;
            };
            let gone = self.blocks.remove(&oldest).unwrap_or_default();
            self.rows -= gone.values().map(Vec::len).sum::<usize>();
        }
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        let first = |(block, policies): (&(Tier, u64), &HashMap<Arc<str>, Rows>)| {
            let span = policies.values().filter_map(|rows| rows.first()).map(|(span, _)| *span).min()?;
            Some(block.1 + u64::from(span) * block.0.seconds())
        };
        self.blocks.iter().filter_map(first).min()
    }

    /// The blocks, by tier and beginning.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (Tier, u64, &HashMap<Arc<str>, Rows>)> {
        self.blocks.iter().map(|((tier, start), policies)| (*tier, *start, policies))
    }

    /// Returns the rows of a policy from `from` on and before `to`, with their times.
    pub(crate) fn read(&self, tier: Tier, name: &str, from: u64, to: u64) -> Vec<(u64, Row)> {
        if from >= to {
            return Vec::new();
        }
        let blocks = self.blocks.range((tier, tier.start(from))..(tier, to));
        let rows = blocks.filter_map(|((_, start), policies)| Some((*start, policies.get(name)?)));
        rows.flat_map(|(start, rows)| times(tier, start, rows))
            .filter(|(at, _)| (from..to).contains(at))
            .collect()
    }
}

/// Returns the rows of a block with their times.
pub(crate) fn times(tier: Tier, start: u64, rows: &[(u16, Row)]) -> impl Iterator<Item = (u64, Row)> {
    rows.iter().map(move |(span, row)| (start.saturating_add(u64::from(*span) * tier.seconds()), *row))
}

/// How long seconds are kept.
pub(crate) const SECONDS_KEPT: u64 = 900;

/// The policies that keep each second: the busiest. The others keep ten seconds as one.
const BUSIEST: usize = 64;

const TEN: u64 = 10;

/// The last quarter of an hour, by seconds. At most 4 MiB for the busiest policies; each other one, up to 1,024 in all,
/// takes at most 8 KiB.
#[derive(Debug, Default)]
pub(crate) struct LastQuarter {
    server: VecDeque<(u64, Row)>,
    policies: HashMap<Arc<str>, Seconds>,
    /// The beginning of the ten seconds that have not ended.
    ten: u64,
}

impl LastQuarter {
    pub(crate) fn add(&mut self, at: u64, server: &Row, policies: &[(Arc<str>, Row)]) {
        let ten = at - at % TEN;
        if ten != self.ten {
            self.end_ten(at);
            self.ten = ten;
        }
        let place = self.server.partition_point(|(second, _)| *second < at);
        match self.server.get_mut(place) {
            Some((second, row)) if *second == at => absorb(SERVER, row, server),
            _ => self.server.insert(place, (at, *server)),
        }
        for (name, row) in policies {
            if let Some(seconds) = self.policies.get_mut(name) {
                seconds.add(at, row);
            } else if self.policies.len() < MOST_POLICIES {
                let mut seconds = Seconds::default();
                seconds.add(at, row);
                self.policies.insert(Arc::clone(name), seconds);
            }
        }
    }

    /// Ends ten seconds: those of policies that are not among the busiest become one, and what is far from now goes,
    /// before it or, after a step of the clock, ahead of it.
    fn end_ten(&mut self, now: u64) {
        let ten = self.ten;
        let mut by_load: Vec<&mut Seconds> = self.policies.values_mut().collect();
        by_load.iter_mut().for_each(|seconds| seconds.weigh(ten));
        by_load.sort_by(|one, other| other.load.total_cmp(&one.load));
        by_load.into_iter().skip(BUSIEST).for_each(|seconds| seconds.merge(ten));
        let near = |at: u64| at.saturating_add(SECONDS_KEPT) > now && at < now.saturating_add(SECONDS_KEPT);
        self.server.retain(|(at, _)| near(*at));
        self.policies.retain(|_, seconds| {
            seconds.points.retain(|point| near(point.at));
            !seconds.points.is_empty()
        });
    }

    pub(crate) fn read_server(&self, from: u64, to: u64) -> Vec<(u64, Row)> {
        self.server.iter().filter(|(at, _)| (from..to).contains(at)).copied().collect()
    }

    /// Returns the seconds of a policy. Where ten are kept as one, their counts are spread over them.
    pub(crate) fn read(&self, name: &str, from: u64, to: u64) -> Vec<(u64, Row)> {
        let mut rows = Vec::new();
        let Some(seconds) = self.policies.get(name) else { return rows };
        for point in &seconds.points {
            let parts = if point.ten { TEN } else { 1 };
            for part in 0..parts {
                let at = point.at.saturating_add(part);
                let row = point.part(name, part, parts);
                if (from..to).contains(&at) && row.iter().any(|count| *count > 0) {
                    rows.push((at, row));
                }
            }
        }
        rows
    }
}

/// The last seconds of one policy, in their order.
#[derive(Debug, Default)]
struct Seconds {
    points: VecDeque<Point>,
    /// Decisions, those of ten seconds ago counting four fifths.
    load: f64,
}

/// One second, or ten. Counts beyond `u32::MAX` are kept as that.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: u64,
    ten: bool,
    counts: [u32; WIDTH],
}

impl Point {
    const fn covers(&self, at: u64) -> bool {
        self.at == at || self.ten && self.at <= at && at - self.at < TEN
    }

    fn absorb(&mut self, more: &[u32; WIDTH]) {
        for (column, (have, more)) in self.counts.iter_mut().zip(more).enumerate() {
            // Any name but the server's, which has no points.
            *have =
                if is_largest("policy", column) { (*have).max(*more) } else { have.saturating_add(*more) };
        }
    }

    fn part(&self, name: &str, part: u64, parts: u64) -> Row {
        let mut row = [0; WIDTH];
        for (column, (value, count)) in row.iter_mut().zip(&self.counts).enumerate() {
            let count = u64::from(*count);
            let spread = count / parts + u64::from(part < count % parts);
            *value = if is_largest(name, column) { count } else { spread };
        }
        row
    }
}

impl Seconds {
    fn add(&mut self, at: u64, row: &Row) {
        let counts = row.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let place = self.points.partition_point(|point| point.at <= at);
        if let Some(before) = place.checked_sub(1).and_then(|before| self.points.get_mut(before))
            && before.covers(at)
        {
            before.absorb(&counts);
            return;
        }
        self.points.insert(place, Point { at, ten: false, counts });
    }

    fn range_of(&self, ten: u64) -> (usize, usize) {
        let first = self.points.partition_point(|point| point.at < ten);
        (first, self.points.partition_point(|point| point.at < ten.saturating_add(TEN)))
    }

    fn weigh(&mut self, ten: u64) {
        let (first, end) = self.range_of(ten);
        let count =
            |point: &Point| DECIDED.iter().map(|one| u64::from(point.counts[*one as usize])).sum::<u64>();
        let decided: u64 = self.points.range(first..end).map(count).sum();
        self.load = self.load * 0.8 + decided as f64;
    }

    fn merge(&mut self, ten: u64) {
        let (first, end) = self.range_of(ten);
        if first == end {
            return;
        }
        let mut whole = Point { at: ten, ten: true, counts: [0; WIDTH] };
        self.points.drain(first..end).for_each(|point| whole.absorb(&point.counts));
        self.points.insert(first, whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(allowed: u64, hottest: u64) -> Row {
        let mut row = [0; WIDTH];
        row[Series::Allowed as usize] = allowed;
        row[Series::HottestShare as usize] = hottest;
        row
    }

    fn total(rows: &[(u64, Row)]) -> u64 {
        rows.iter().map(|(_, row)| row[Series::Allowed as usize]).sum()
    }

    #[test]
    fn the_busiest_keep_seconds_and_the_others_tens_that_add_up() {
        let mut recent = LastQuarter::default();
        for at in 1_000..1_100 {
            let policies: Vec<(Arc<str>, Row)> =
                (0..100).map(|number| (Arc::from(format!("p{number}")), row(number + 1, 5))).collect();
            recent.add(at, &row(7, 0), &policies);
        }
        let (busy, quiet) = (recent.read("p99", 0, u64::MAX), recent.read("p2", 0, u64::MAX));
        assert_eq!((busy.len(), total(&busy)), (100, 10_000));
        assert_eq!((quiet.len(), total(&quiet)), (100, 300));
        assert!(quiet.iter().all(|(_, row)| row[Series::HottestShare as usize] == 5));
        let lengths = |name: &str| recent.policies[name].points.len();
        assert_eq!((lengths("p99"), lengths("p2")), (100, 9 + 10), "the last ten seconds have not ended");
        assert_eq!(recent.read("p2", 1_005, 1_015).len(), 10);
        assert_eq!(recent.read_server(1_010, 1_020).len(), 10);
    }

    #[test]
    fn seconds_are_bounded_whatever_the_clock_does() {
        let mut recent = LastQuarter::default();
        let year = 365 * DAY;
        let name: Arc<str> = Arc::from("p");
        let second =
            |recent: &mut LastQuarter, at: u64| recent.add(at, &row(1, 0), &[(Arc::clone(&name), row(1, 0))]);
        for at in 0..5_000 {
            second(&mut recent, year + at);
        }
        assert!(recent.policies["p"].points.len() <= 910 && recent.server.len() <= 910);
        second(&mut recent, 3 * year);
        for at in 0..5_000 {
            second(&mut recent, year + 1_400 + at);
        }
        for at in [u64::MAX, 0, u64::MAX - 5, 1, year] {
            second(&mut recent, at);
        }
        assert!(recent.policies["p"].points.len() <= 1_820 && recent.server.len() <= 1_820);
        assert!(recent.read("p", 0, u64::MAX).iter().is_sorted_by(|one, next| one.0 < next.0));
    }

    #[test]
    fn spans_of_the_past_merge_into_their_minute_and_rows_are_bounded() {
        let (mut deltas, name): (_, Arc<str>) = (Deltas::default(), Arc::from("p"));
        for at in [7_200, 7_259, 3_600, 7_230, 7_260] {
            deltas.add(&name, at, &row(1, at));
        }
        let minutes = deltas.read(Tier::Minute, "p", 0, u64::MAX);
        assert_eq!(
            minutes.iter().map(|(at, row)| (*at, row[0])).collect::<Vec<_>>(),
            [(3_600, 1), (7_200, 3), (7_260, 1)]
        );
        assert_eq!(minutes[1].1[Series::HottestShare as usize], 7_259, "the largest, not the sum");
        assert_eq!(deltas.read(Tier::FiveMinutes, "p", 7_200, 7_500)[0].1[Series::HottestShare as usize], 0);
        assert_eq!(deltas.read(Tier::Hour, "p", 3_600, 7_200).len(), 1);
        assert_eq!(deltas.oldest(), Some(3_600), "the hour of the first; its day begins before");
        for hour in 0..200 {
            deltas.add(&name, hour * 3_600, &row(1, 0));
        }
        deltas.trim(20);
        assert!(deltas.rows <= 20);
        assert!(!deltas.read(Tier::Minute, "p", 199 * 3_600, u64::MAX).is_empty(), "the newest stays");
    }
}
