//! Keeps the last hour of requests as each policy saw them, so that another limit can be tried on them.
//!
//! Of each request a policy's key, the time to a millisecond, the cost and the verdict are kept, in blocks with a
//! dictionary of keys each: about 6 bytes a request, and 4 if few keys ask. There is room for [`BYTES`]; the oldest block
//! goes first. Where an hour does not fit, *keys* are left out, never requests of a key: a limit decides about the whole
//! sequence of a key, and half a sequence would pass where the whole is refused. Which keys stay depends on their
//! fingerprints alone, so a key that stays at a small share stays at each larger one. The busiest keys of a policy stay in
//! any case, since they are those whom a limit is for.
//!
//! The time is that of the events, so nothing here reads a clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_server::{Seen, Verdict};

use crate::board::{OTHERS, POLICIES, mixed, slot};
use crate::feed::verdict_of;
use crate::sketch::Sketch;

/// The most bytes of blocks: an hour at 1,500 requests a second. The block being written takes up to 3 MiB more, and the
/// lists of the busiest keys 1 MiB.
pub(crate) const BYTES: usize = 32 << 20;

/// For how long requests are kept, in milliseconds.
pub(crate) const KEPT: u64 = 3_600_000;

/// Requests of a block: with fewer, a key that asks a hundred times an hour is in most dictionaries.
const EVENTS: usize = 32_768;

/// The busiest keys of a policy that always stay.
const BUSIEST: usize = 64;

/// Policies whose busiest keys are found.
const PLACES: usize = 64;

/// How often the busiest keys are found, in milliseconds.
const TURN: u64 = 60_000;

/// After how many milliseconds more keys may be kept again.
const CALM: u64 = 600_000;

/// The smallest share is one of 65,536 keys.
const LAST_LEVEL: u8 = 16;

/// The requests of the last hour.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// The most bytes of `blocks`, and the most requests of one.
    most: usize,
    events: usize,
    blocks: VecDeque<Arc<Block>>,
    bytes: usize,
    /// The blocks there have been: the number of the one being written.
    sealed: u64,
    open: Open,
    /// One of so many keys stays, as a power of two.
    level: u8,
    /// The keys that stay in any case, and the number of the block from which on all their requests were kept.
    busy: HashMap<(u16, u64), u64, RandomState>,
    /// Requests by policy, to find those.
    asked: HashMap<u16, Sketch, RandomState>,
    turned: u64,
    /// By [`slot`], when a policy last enforced a limit, in nanoseconds.
    enforced: Vec<u64>,
}

/// A request, as one policy saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) key: u64,
    /// By the gate's clock, in milliseconds.
    pub(crate) at: u64,
    pub(crate) cost: u32,
    pub(crate) verdict: Verdict,
}

impl Default for Traffic {
    fn default() -> Self {
        Self::new(BYTES, EVENTS)
    }
}

impl Traffic {
    /// Keeps at most so many bytes of blocks with so many requests each.
    pub(crate) fn new(most: usize, events: usize) -> Self {
        Self {
            most,
            events,
            blocks: VecDeque::new(),
            bytes: 0,
            sealed: 0,
            open: Open::default(),
            level: 0,
            busy: HashMap::default(),
            asked: HashMap::default(),
            turned: 0,
            enforced: Vec::new(),
        }
    }

    /// Keeps an event, if it is a request that a limit of the policy was asked about.
    ///
    /// What a shadow limit adds to the verdict of its policy is left out, as are requests without a cost: a list or a
    /// block refused them before a limit did, or another policy alone, so they took nothing. So are policies beyond those that have a number of their own.
    pub(crate) fn note(&mut self, seen: &Seen) {
        // Asked first: a verdict without a cost tells too that what follows it is of a shadow limit.
        if seen.policy == OTHERS || !self.is_verdict_of_the_policy(seen) || seen.cost == 0 {
            return;
        }
        let at = seen.at.as_nanos() / 1_000_000;
        if at.abs_diff(self.turned) >= TURN {
            // Requests of this block may have been left out.
            self.find_busiest(at, self.sealed + 1);
        }
        if let Some(asked) = self.asked.get_mut(&seen.policy) {
            asked.add(seen.key, 1, 0);
        } else if self.asked.len() < PLACES {
            self.asked.entry(seen.policy).or_default().add(seen.key, 1, 0);
        }
        if level_of(seen.key) < self.level && !self.busy.contains_key(&(seen.policy, seen.key)) {
            return;
        }
        self.open.push(seen.policy, Kept { key: seen.key, at, cost: seen.cost, verdict: seen.verdict });
        if self.open.events >= self.events {
            self.seal();
        }
    }

    /// Tells the verdict of a policy from that of its shadow limit, which has the same words as one of a policy in shadow
    /// mode. Only a policy that enforces has told another verdict at that time, and told it before.
    fn is_verdict_of_the_policy(&mut self, seen: &Seen) -> bool {
        let place = slot(seen.policy);
        match seen.verdict {
            Verdict::Allowed | Verdict::Delayed | Verdict::Denied | Verdict::Over => {
                if self.enforced.is_empty() {
                    self.enforced = vec![0; POLICIES + 1];
                }
                // One more, so that 0 is never.
                self.enforced[place] = self.enforced[place].max(seen.at.as_nanos().saturating_add(1));
                true
            }
            Verdict::WouldDeny | Verdict::WouldAllow => {
                self.enforced.get(place).is_none_or(|last| *last <= seen.at.as_nanos())
            }
            Verdict::Error => true,
        }
    }

    /// Finds the busiest keys of each policy; what they asked long ago counts less. `from`: the first block without a
    /// request yet.
    fn find_busiest(&mut self, at: u64, from: u64) {
        self.turned = at;
        let before = std::mem::take(&mut self.busy);
        for (policy, asked) in &mut self.asked {
            for small in asked.largest(BUSIEST).iter().filter(|small| small.least() >= 1.0) {
                let place = (*policy, small.key);
                self.busy.insert(place, before.get(&place).copied().unwrap_or(from));
            }
            asked.halve();
        }
        self.asked.retain(|_, asked| asked.total > 0);
    }

    /// Ends the block, and makes room for the next.
    fn seal(&mut self) {
        let Some(block) = self.open.block(self.sealed, self.level) else { return };
        let now = self.open.last;
        self.open.clear();
        self.sealed += 1;
        self.bytes += block.bytes();
        self.blocks.push_back(Arc::new(block));
        while let Some(first) = self.blocks.front()
            // Also those of the future, after the clock was set back.
            && (self.bytes > self.most || now.abs_diff(first.to) > KEPT)
        {
            self.bytes -= first.bytes();
            self.blocks.pop_front();
        }
        self.choose_share(now);
    }

    /// Keeps half of the keys if an hour of them does not fit, and twice as many if an hour of four times as many would.
    fn choose_share(&mut self, now: u64) {
        let (mut bytes, mut from, mut to) = (0_usize, u64::MAX, 0_u64);
        for block in self.blocks.iter().rev().take_while(|block| block.level == self.level) {
            (bytes, from, to) = (bytes + block.bytes(), from.min(block.from), to.max(block.to));
        }
        let span = to.saturating_sub(from).max(1);
        let hour = bytes as u128 * u128::from(KEPT) / u128::from(span);
        let most = self.most as u128;
        // Less would be judged by a moment.
        if bytes >= self.most / 8 && hour > most && self.level < LAST_LEVEL {
            self.find_busiest(now, self.sealed);
            self.level += 1;
        } else if span >= CALM && hour * 4 < most && self.level > 0 {
            self.level -= 1;
        }
    }

    /// Returns what is kept of a policy, to be read without the lock that this is behind.
    pub(crate) fn of(&self, policy: u16) -> Recorded {
        let mut blocks: Vec<Arc<Block>> = self.blocks.iter().cloned().collect();
        blocks.extend(self.open.block(self.sealed, self.level).map(Arc::new));
        let busy = self.busy.iter().filter(|((of, _), _)| *of == policy);
        Recorded { policy, blocks, busy: busy.map(|((_, key), since)| (*key, *since)).collect() }
    }
}

/// Returns the smallest share at which a key stays, as a power of two.
pub(crate) fn level_of(key: u64) -> u8 {
    // At most 64.
    mixed(key).leading_zeros() as u8
}

/// The block that is being written.
#[derive(Debug, Default)]
struct Open {
    packed: Vec<u8>,
    keys: Vec<u64>,
    policies: Vec<u16>,
    places: HashMap<(u16, u64), u16, RandomState>,
    events: usize,
    from: u64,
    to: u64,
    first: u64,
    last: u64,
}

impl Open {
    fn push(&mut self, policy: u16, kept: Kept) {
        let Kept { key, at, cost, verdict } = kept;
        if self.events == 0 {
            (self.from, self.to, self.first, self.last) = (at, at, at, at);
        }
        let next = self.keys.len();
        let place = *self.places.entry((policy, key)).or_insert_with(|| {
            self.keys.push(key);
            self.policies.push(policy);
            // A block has fewer events than there are numbers.
            next as u16
        });
        write(&mut self.packed, u64::from(place));
        // Threads are drained one after the other, so times go back a little.
        let step = at.wrapping_sub(self.last).cast_signed();
        write(&mut self.packed, ((step << 1) ^ (step >> 63)).cast_unsigned());
        // The verdict in three bits, and a cost of up to 31.
        let small = if cost < SMALL_COSTS { cost } else { 0 };
        self.packed.push((verdict as u8) | ((small as u8) << 3));
        if small == 0 {
            write(&mut self.packed, u64::from(cost));
        }
        (self.from, self.to, self.last) = (self.from.min(at), self.to.max(at), at);
        self.events += 1;
    }

    /// Returns the block; `None` if it is empty.
    fn block(&self, number: u64, level: u8) -> Option<Block> {
        (self.events > 0).then(|| Block {
            number,
            packed: self.packed.as_slice().into(),
            keys: self.keys.as_slice().into(),
            policies: self.policies.as_slice().into(),
            first: self.first,
            from: self.from,
            to: self.to,
            level,
        })
    }

    /// Begins the next block, and keeps the memory.
    fn clear(&mut self) {
        self.packed.clear();
        self.keys.clear();
        self.policies.clear();
        self.places.clear();
        self.events = 0;
    }
}

/// Costs below this stand beside the verdict; above 0.
const SMALL_COSTS: u32 = 32;

/// Writes a number in groups of seven bits, the lowest first.
fn write(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Requests of a span of time, in the order in which they were told.
#[derive(Debug)]
struct Block {
    /// Blocks are numbered in the order in which they are told.
    number: u64,
    packed: Box<[u8]>,
    /// The keys by their numbers in the block, and their policies.
    keys: Box<[u64]>,
    policies: Box<[u16]>,
    /// The time of the first request, the earliest and the latest.
    first: u64,
    from: u64,
    to: u64,
    /// The share of keys that was kept, as a power of two.
    level: u8,
}

impl Block {
    fn bytes(&self) -> usize {
        self.packed.len() + size_of_val(&*self.keys) + size_of_val(&*self.policies) + size_of::<Self>()
    }

    /// Hands over the requests of a policy.
    fn read(&self, policy: u16, mut each: impl FnMut(Kept)) {
        let mut bytes = Unread(&self.packed);
        let mut at = self.first;
        while let Some(place) = bytes.number() {
            let step = bytes.number().unwrap_or(0);
            at = at.wrapping_add((step >> 1) ^ (step & 1).wrapping_neg());
            let byte = bytes.byte().unwrap_or(0);
            let cost = match u32::from(byte >> 3) {
                0 => bytes.number().and_then(|cost| u32::try_from(cost).ok()).unwrap_or(1),
                small => small,
            };
            let place = place as usize;
            if self.policies.get(place) == Some(&policy) {
                each(Kept { key: self.keys[place], at, cost, verdict: verdict_of(byte & 7) });
            }
        }
    }
}

/// What is left to read of a block.
struct Unread<'b>(&'b [u8]);

impl Unread<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }
}

/// What was kept of one policy.
#[derive(Debug)]
pub(crate) struct Recorded {
    policy: u16,
    blocks: Vec<Arc<Block>>,
    /// The keys that always stayed, and since which block.
    busy: Vec<(u64, u64)>,
}

impl Recorded {
    /// Returns what was kept from one millisecond to another, both included.
    pub(crate) fn between(&self, from: u64, to: u64) -> Stretch<'_> {
        let blocks: Vec<&Block> = self
            .blocks
            .iter()
            .map(|block| &**block)
            .filter(|block| block.from <= to && block.to >= from)
            .collect();
        let level = blocks.iter().map(|block| block.level).max().unwrap_or(0);
        let begins = blocks.iter().map(|block| block.from).min().unwrap_or(to).min(to);
        let is_whole = |key: u64, since: u64| {
            let before = blocks.iter().filter(|block| block.number < since).map(|block| block.level).max();
            level_of(key) >= before.unwrap_or(0)
        };
        let always = self.busy.iter().filter(|(key, since)| is_whole(*key, *since));
        let mut always: Vec<u64> = always.map(|(key, _)| *key).collect();
        always.sort_unstable();
        Stretch { policy: self.policy, blocks, from, to, begins: begins.max(from), level, always }
    }
}

/// What was kept of one policy in a span of time.
#[derive(Debug)]
pub(crate) struct Stretch<'r> {
    policy: u16,
    blocks: Vec<&'r Block>,
    from: u64,
    to: u64,
    /// Where it begins: later than asked for, if that is no longer or was not yet kept.
    begins: u64,
    /// The share of keys whose requests are all there, as a power of two.
    pub(crate) level: u8,
    /// Further keys whose requests are all there, in order.
    always: Vec<u64>,
}

impl Stretch<'_> {
    /// Returns whether all requests of a key are there at a share, as a power of two, that is no larger than this one's.
    pub(crate) fn has_whole(&self, key: u64, level: u8) -> bool {
        level_of(key) >= level || self.always.binary_search(&key).is_ok()
    }

    /// Returns how long it is.
    pub(crate) fn seconds(&self) -> f64 {
        self.to.saturating_sub(self.begins) as f64 / 1_000.0
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Adds the requests of a block, of keys whose sequences are whole, in the order in which they were told: threads are
    /// told one after the other, so times may go back by a part of a second.
    pub(crate) fn read(&self, block: usize, into: &mut Vec<Kept>) {
        let Some(block) = self.blocks.get(block) else { return };
        block.read(self.policy, |kept| {
            if (self.from..=self.to).contains(&kept.at) && self.has_whole(kept.key, self.level) {
                into.push(kept);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Tick;

    use super::*;

    fn seen(policy: u16, key: u64, at: u64) -> Seen {
        let at = Tick::from_nanos(at.saturating_mul(1_000_000));
        Seen { policy, verdict: Verdict::Allowed, near: false, canary: false, key, cost: 1, at }
    }

    fn all(stretch: &Stretch<'_>) -> Vec<Kept> {
        let mut kept = Vec::new();
        (0..stretch.blocks()).for_each(|block| stretch.read(block, &mut kept));
        kept
    }

    fn counts(keys: impl Iterator<Item = u64>) -> HashMap<u64, u64> {
        let mut counts = HashMap::new();
        keys.for_each(|key| *counts.entry(key).or_default() += 1);
        counts
    }

    /// A reproducible stream of numbers.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(*state)
    }

    #[test]
    fn requests_come_back_as_they_were() {
        let mut traffic = Traffic::new(BYTES, 100);
        let verdicts = [
            Verdict::Allowed,
            Verdict::Delayed,
            Verdict::Denied,
            Verdict::Over,
            Verdict::Error,
            Verdict::WouldDeny,
            Verdict::WouldAllow,
        ];
        let costs = [1, 2, 31, 32, 300, u32::MAX];
        let (mut state, mut told) = (1, Vec::new());
        for number in 0..1_050_u64 {
            // Policies 5 and 6 are in shadow mode. Times go back now and then.
            let verdict = verdicts[number as usize % 7];
            let policy = number as u16 % 7;
            let at = 5_000_000 + number * 3 - next(&mut state) % 100;
            let kept = Kept { key: next(&mut state) % 50, at, cost: costs[number as usize % 6], verdict };
            traffic.note(&Seen { verdict, cost: kept.cost, ..seen(policy, kept.key, at) });
            if policy == 3 || policy == 5 {
                told.push((policy, kept));
            }
        }
        for policy in [3, 5] {
            let recorded = traffic.of(policy);
            let of_policy = told.iter().filter(|(of, _)| *of == policy).map(|(_, kept)| *kept);
            assert!(of_policy.eq(all(&recorded.between(0, u64::MAX))), "{policy}");
            let part = recorded.between(5_001_000, 5_002_000);
            assert_eq!((part.begins, part.seconds(), part.level), (5_001_000, 1.0, 0));
            assert!(all(&part).iter().all(|kept| (5_001_000..=5_002_000).contains(&kept.at)));
        }
        assert!(all(&traffic.of(9).between(0, u64::MAX)).is_empty());
    }

    #[test]
    fn a_request_takes_six_bytes() {
        let mut traffic = Traffic::default();
        let mut state = 1;
        // 1,500 a second, half of them by a hundred keys and half by ten thousand.
        for number in 0..300_000_u64 {
            let key = next(&mut state);
            let key = if key.is_multiple_of(2) { key % 100 } else { key % 10_000 };
            traffic.note(&seen(1, key, number * 2 / 3));
        }
        let events = traffic.blocks.len() * EVENTS;
        assert!(traffic.bytes <= events * 6, "{} bytes for {events}", traffic.bytes);
    }

    #[test]
    fn a_request_is_kept_once_whatever_else_its_policy_tells() {
        let mut traffic = Traffic::default();
        for (number, verdict) in [
            // The policy enforces, and has a shadow limit.
            (1, Verdict::Allowed),
            (1, Verdict::WouldDeny),
            (2, Verdict::Denied),
            (2, Verdict::WouldDeny),
            // Told by another thread in between.
            (1, Verdict::WouldAllow),
            // From now on it is in shadow mode.
            (3, Verdict::WouldDeny),
            (4, Verdict::WouldAllow),
        ] {
            traffic.note(&Seen { verdict, ..seen(1, 7, number) });
        }
        // A list refuses before any limit is asked.
        traffic.note(&Seen { verdict: Verdict::Denied, cost: 0, ..seen(1, 7, 5) });
        traffic.note(&seen(OTHERS, 7, 6));
        // Another policy refuses what this one lets pass; its shadow limit would refuse it as well.
        traffic.note(&Seen { cost: 0, ..seen(1, 7, 8) });
        traffic.note(&Seen { verdict: Verdict::WouldDeny, ..seen(1, 7, 8) });
        let kept = all(&traffic.of(1).between(0, 10));
        let verdicts: Vec<_> = kept.iter().map(|kept| kept.verdict).collect();
        assert_eq!(verdicts, [Verdict::Allowed, Verdict::Denied, Verdict::WouldDeny, Verdict::WouldAllow]);
        assert!(all(&traffic.of(OTHERS).between(0, 10)).is_empty());
    }

    /// More requests than there is room for: whole keys are left out, the same ones everywhere, and never the busiest.
    #[test]
    fn keys_are_left_out_whole_and_the_busiest_stay() {
        const MOST: usize = 1 << 20;
        let mut traffic = Traffic::new(MOST, 512);
        let (mut state, mut told) = (7, Vec::new());
        let busiest = 1_000_000..1_000_008_u64;
        for number in 0..400_000_u64 {
            let random = next(&mut state);
            let (is_busy, random) = (random.is_multiple_of(24), random / 24);
            let key = if is_busy { busiest.start + random % 8 } else { random % 5_000 };
            let at = number * 2;
            traffic.note(&seen(1, key, at));
            told.push((key, at));
            assert!(traffic.bytes <= MOST);
        }
        let now = 800_000;
        let recorded = traffic.of(1);
        let begins = recorded.between(0, now).begins;
        assert!(now - begins > 10_000, "{begins}");
        let stretch = recorded.between(begins + 1, now);
        assert!(traffic.level > 0 && stretch.level > 0 && stretch.level >= traffic.level);
        let read = counts(all(&stretch).iter().map(|kept| kept.key));
        let asked = counts(told.iter().filter(|(_, at)| *at > begins).map(|(key, _)| *key));
        for (key, requests) in &read {
            assert_eq!(requests, &asked[key], "the sequence of {key} is whole");
        }
        for key in asked.keys() {
            let stays = level_of(*key) >= stretch.level || busiest.contains(key);
            assert!(!stays || read.contains_key(key), "{key} stays");
        }
        assert!(read.len() < asked.len() / 2, "{} of {}", read.len(), asked.len());
        // A smaller share is a part of it.
        assert!(stretch.has_whole(busiest.start, stretch.level + 1));

        // With fewer requests, more keys are kept again.
        let level = traffic.level;
        (1..5_000).for_each(|second| traffic.note(&seen(1, busiest.start, now + second * 1_000)));
        assert!(traffic.level < level);
    }

    #[test]
    fn an_hour_is_kept() {
        let mut traffic = Traffic::new(BYTES, 100);
        for second in 0..10_000 {
            traffic.note(&seen(1, second % 7, second * 1_000));
        }
        let stretch = traffic.of(1);
        let begins = stretch.between(0, u64::MAX).begins;
        assert!((6_200_000..=6_400_000).contains(&begins), "{begins}");
        assert_eq!(traffic.bytes, traffic.blocks.iter().map(|block| block.bytes()).sum::<usize>());
    }

    #[test]
    fn a_clock_that_jumps_does_no_harm() {
        let mut traffic = Traffic::new(8 << 10, 50);
        let last = u64::MAX / 1_000_000;
        for begin in [5_000_000, 0, last - 1_000, 10_000_000, 9_990_000, last, 3] {
            for number in 0..1_000 {
                traffic.note(&seen(1, number % 90, begin + number % 900));
                assert!(traffic.bytes <= 8 << 10);
            }
            let recorded = traffic.of(1);
            for (from, to) in [(0, u64::MAX), (begin, begin + 900), (u64::MAX, 0)] {
                let stretch = recorded.between(from, to);
                assert!(stretch.seconds() >= 0.0);
                assert!(all(&stretch).iter().all(|kept| (from..=to).contains(&kept.at)));
            }
        }
        assert!(!all(&traffic.of(1).between(3, 903)).is_empty(), "what came last is kept");
    }
}
