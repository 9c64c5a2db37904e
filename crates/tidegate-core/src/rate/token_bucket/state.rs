//! The state of a token bucket.

use smallvec::SmallVec;

use super::{Bandwidth, Refill, TokenBucket};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Receipt, Replace};
use crate::rate::book::{Amounts, Book};
use crate::rate::schedule::read_mark;
use crate::time::{Rate, Tick};

/// The most bandwidths of one bucket: each costs time in every check; three are enough for most uses.
pub(super) const MOST_BANDWIDTHS: usize = 8;

/// The state of [`TokenBucket`] for one key: 40 bytes. With several bandwidths, 160 bytes more on the heap, and 24
/// for each bandwidth but the first. Charges that are settled out of order need up to 5 KiB more (one bandwidth)
/// until the bucket is full; up to 130 KiB while charges wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucketState {
    pub(super) last: Tick,
    pub(super) first: Level,
    pub(super) more: Option<Box<More>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct More {
    /// With several bandwidths: all units charged so far. For one bandwidth, the level tells it.
    charged: u128,
    others: Vec<Level>,
    book: Option<Book>,
}

impl TokenBucketState {
    pub(super) const fn largest(bandwidths: usize) -> usize {
        8 + 1 + 24 * bandwidths + 16 + Book::largest(bandwidths)
    }

    pub(super) fn new(last: Tick, levels: &[Level], charged: u128, book: Option<Book>) -> Self {
        let (first, others) = match levels {
            [] => (Level::of(0, 0), [].as_slice()),
            [first, others @ ..] => (*first, others),
        };
        let charged = if others.is_empty() { 0 } else { charged };
        let more = (!others.is_empty() || book.is_some())
            .then(|| Box::new(More { charged, others: others.to_vec(), book }));
        Self { last, first, more }
    }

    pub(super) fn level(&self, index: usize) -> Option<Level> {
        match (index.checked_sub(1), &self.more) {
            (None, _) => Some(self.first),
            (Some(index), Some(more)) => more.others.get(index).copied(),
            (Some(_), None) => None,
        }
    }

    pub(super) fn book(&self) -> Option<&Book> {
        self.more.as_ref().and_then(|more| more.book.as_ref())
    }

    /// Returns the state with the fewer gaps that an engine has room for; `None` if it has no more than those.
    pub(super) fn shortened(&self) -> Option<Self> {
        let more = self.more.as_ref()?;
        let book = Some(more.book.as_ref()?.shortened()?);
        let more = Some(Box::new(More { charged: more.charged, others: more.others.clone(), book }));
        Some(Self { more, ..*self })
    }

    pub(super) fn charged(&self) -> u128 {
        self.more.as_ref().map_or(0, |more| more.charged)
    }
}

/// One bandwidth at the tick of the last change. In halves, since a `u128`'s alignment would enlarge the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    spent: [u64; 2],
    /// Interval refill: ns of the running period that have passed. Aligned refill: ns since the last refill was due,
    /// and a period; 0 if unused.
    pub(super) into: u64,
}

impl Level {
    pub(super) fn of(spent: u128, into: u64) -> Self {
        // Each half fits 64 bits.
        Self { spent: [(spent >> 64) as u64, spent as u64], into }
    }

    pub(super) fn spent(self) -> u128 {
        (u128::from(self.spent[0]) << 64) | u128::from(self.spent[1])
    }

    pub(super) fn charge(self, amount: u128) -> Self {
        Self::of(self.spent().saturating_add(amount), self.into)
    }
}

/// The levels of all bandwidths at one tick. Up to four lie on the stack; more take a list on the heap.
pub(super) type Levels = SmallVec<[Level; 4]>;

impl Bytes for TokenBucketState {
    fn write(&self, out: &mut Writer) {
        let others = self.more.as_ref().map_or([].as_slice(), |more| &more.others);
        out.tick(self.last);
        // At most eight.
        out.u8(1 + others.len() as u8);
        for level in [self.first].iter().chain(others) {
            out.u128(level.spent());
            out.u64(level.into);
        }
        if !others.is_empty() {
            out.u128(self.charged());
        }
        Book::write_some(self.book(), out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, count) = (from.tick()?, from.u8()?);
        if count == 0 || usize::from(count) > MOST_BANDWIDTHS {
            return Err(DecodeError::Value { field: "bandwidths" });
        }
        let levels = (0..count).map(|_| Ok(Level::of(from.u128()?, from.u64()?)));
        let levels = levels.collect::<Result<Levels, DecodeError>>()?;
        let charged = if count > 1 { from.u128()? } else { 0 };
        Ok(Self::new(last, &levels, charged, Book::read_some(from)?))
    }
}

// Settling a token bucket, and carrying it over; the module of the bucket states the law.

struct Settled {
    at: Tick,
    charged: Tick,
    /// A bit for each bandwidth whose running period the charge started.
    began: u64,
    undone: bool,
    back: u64,
    /// What charges made since then hold, in positions.
    standing: u128,
    /// No earlier settlement has withheld anything.
    first: bool,
}

impl TokenBucket {
    /// Returns the book of a state, or a new one that says the same as the levels.
    pub(super) fn book(&self, state: &TokenBucketState, levels: &Levels, at: Tick) -> Book {
        let kept = state.book().filter(|book| !book.has_passed(at));
        kept.cloned().unwrap_or_else(|| Book::new(self.full(levels, at), self.shown(levels, at)))
    }

    /// Makes a state, with a book only while that says more than the levels. While somebody waits, the book is kept
    /// even if both name the same promise, since they no longer do once the last charge is undone. For the same
    /// reason, the book of several bandwidths, whose positions do not tell time, is kept to its end; unless it was
    /// opened just now, as `new` says.
    pub(super) fn state(
        &self,
        at: Tick,
        levels: &Levels,
        charged: u128,
        book: Book,
        new: bool,
    ) -> TokenBucketState {
        let waits = || book.promise > at || self.shown(levels, at) > at;
        let told = new || self.single().is_some();
        let blank = told && book.is_blank() && book.expires <= self.full(levels, at) && !waits();
        let book = (!blank && !book.has_passed(at)).then_some(book);
        TokenBucketState::new(at, levels, charged, book)
    }

    /// Books units behind all promises, down to [`Rate::MAX_COUNT`] units below empty.
    pub(super) fn owe(&self, state: &TokenBucketState, at: Tick, units: u64) -> TokenBucketState {
        let (units, new) = (units.min(Rate::MAX_COUNT), state.book().is_none());
        let mut levels = self.levels(state, at);
        let mut book = self.book(state, &levels, at);
        if levels.iter().all(|level| level.spent() == 0) {
            book.clear_holes();
        }
        for (bandwidth, level) in self.bandwidths.iter().zip(&mut levels) {
            let deepest = bandwidth.amount(bandwidth.capacity()) + bandwidth.amount(Rate::MAX_COUNT);
            let owed = level.spent().saturating_add(bandwidth.amount(units)).min(deepest);
            *level = Level::of(owed.max(level.spent()), level.into);
        }
        book.expires = book.expires.max(self.full(&levels, at));
        self.state(at, &levels, state.charged().saturating_add(u128::from(units)), book, new)
    }

    /// Returns the amount of a bandwidth that stays charged when a charge is settled. Charges made after it hold
    /// `standing`. May restart the period, which changes `level`.
    fn floor(&self, index: usize, level: &mut Level, settled: &Settled, book: &mut Book) -> u128 {
        let bandwidth = &self.bandwidths[index];
        let (mut refill, at) = (0, settled.at);
        if bandwidth.refill == Refill::Interval {
            let begun = Tick::from_nanos(at.as_nanos().saturating_sub(level.into));
            let restarted = book.restarted(index);
            let there = settled.began & (1 << index) != 0 && begun == settled.charged
                || begun == restarted && settled.charged <= begun;
            let others = level.spent().saturating_sub(bandwidth.amount(settled.back));
            let oldest = others.saturating_sub(book.withheld(index))
                <= settled.standing.saturating_mul(self.weight(bandwidth));
            if settled.undone && there && oldest {
                level.into = 0;
                book.restart(index, at);
                if book.promise > at {
                    return u128::MAX;
                }
            } else if begun > settled.charged.max(restarted) {
                refill = u128::from(bandwidth.gain);
            }
        }
        let front = bandwidth.back_by(*level, at, book.promise.max(at), &self.wall);
        let floor = front.saturating_add(settled.standing.saturating_mul(self.weight(bandwidth)));
        // Units charged before this charge kept the period running, with or without it.
        let before = settled.first && level.spent().saturating_sub(bandwidth.amount(settled.back)) > floor;
        if before { floor } else { floor.saturating_add(refill) }
    }

    /// Returns the weight of one step of a position in a bandwidth.
    fn weight(&self, bandwidth: &Bandwidth) -> u128 {
        if self.single().is_some() { 1 } else { u128::from(bandwidth.weight) }
    }

    pub(super) fn give_back(
        &self,
        state: &TokenBucketState,
        at: Tick,
        receipt: &Receipt,
        back: u64,
    ) -> TokenBucketState {
        let (arrival, position) = read_mark(receipt);
        let mut levels = self.levels(state, at);
        let mut book = self.book(state, &levels, at);
        let mut end = self.bare_end(&levels, at, state.charged()).wrapping_add(book.given);
        // Once the end of the line has reached the largest number, positions mean nothing.
        let known = position > book.void_up_to && position <= end && end < u128::MAX;
        // A charge from before a period was restarted can be settled until that period ends.
        let passed = arrival <= at && arrival < Tick::MAX && !book.outlives(arrival);
        let gone = passed || levels.iter().all(|level| level.spent() == 0);
        if gone || !known {
            return state.clone();
        }
        let first = state.book().is_none();
        let alone = first && position == end;
        let standing = book.standing_after(position, end);
        // The low half. With an even refill, marks hold another number there, but only refills at intervals read this one.
        let began = receipt.marks().0 as u64;
        let undone = back == receipt.cost.units();
        let settled = Settled { at, charged: receipt.at, began, undone, back, standing, first };
        let mut withheld = Amounts::new();
        for (index, (bandwidth, level)) in self.bandwidths.iter().zip(&mut levels).enumerate() {
            let amount = bandwidth.amount(back);
            let floor = if standing == 0 { 0 } else { self.floor(index, level, &settled, &mut book) };
            let given = amount.min(level.spent().saturating_sub(floor));
            *level = bandwidth.level(level.spent() - given, level.into);
            withheld.push(amount - given);
        }
        book.open(position, self.single().map_or(u128::from(back), |one| one.amount(back)), withheld);
        let released = book.cut(&mut end);
        let promise = book.promise.max(at);
        for (index, (bandwidth, level)) in self.bandwidths.iter().zip(&mut levels).enumerate() {
            let mut spent = level.spent().saturating_sub(released.get(index).copied().unwrap_or(0));
            if bandwidth.refill == Refill::Continuous {
                let front = bandwidth.back_by(*level, at, promise, &self.wall);
                book.release(index, &mut spent, front, self.weight(bandwidth), end);
            }
            *level = bandwidth.level(spent, level.into);
        }
        let full = self.full(&levels, at);
        if alone && undone {
            // Everything is as it was before the charge, promises included.
            return TokenBucketState::new(at, &levels, end, None);
        }
        // Every promise still ahead acts before the limit is full.
        book.promise = book.promise.min(full);
        book.bound(at);
        // A period that was restarted ends later than any receipt says.
        book.expires = if alone { book.expires.min(full) } else { book.expires.max(full) };
        if self.single().is_some() {
            // Below zero, and so wrapped, if a restarted period has moved the bare end up.
            book.given = end.wrapping_sub(self.bare_end(&levels, at, 0));
        }
        self.state(at, &levels, end, book, alone)
    }

    /// Returns the state as it was at its last change, as if that had been at `to`, an earlier tick.
    pub(super) fn rewound(&self, state: &TokenBucketState, to: Tick) -> TokenBucketState {
        let from = state.last;
        let levels = self.levels(state, from);
        let mut book = self.book(state, &levels, from);
        let end = self.bare_end(&levels, from, state.charged()).wrapping_add(book.given);
        let bare = self.bare_end(&levels, to, 0);
        book.set_back(from.since(to), from, end.max(bare));
        book.given = if self.single().is_some() { book.void_up_to - bare } else { 0 };
        let charged = book.void_up_to;
        TokenBucketState::new(to, &levels, charged, Some(book))
    }

    /// Carries a state over. Receipts issued so far give nothing back, because their units had another weight.
    pub(super) fn carried(
        &self,
        old: &Self,
        state: &TokenBucketState,
        at: Tick,
        how: Replace,
    ) -> TokenBucketState {
        let olds = old.levels(state, at);
        let mut book = old.book(state, &olds, at);
        let before = old.bare_end(&olds, at, state.charged()).wrapping_add(book.given);
        let mut from = old.with(&olds);
        let levels: Levels = self
            .bandwidths
            .iter()
            .map(|bandwidth| match from.next() {
                Some((old, level)) => bandwidth.carry(old, level, how),
                None => bandwidth.fresh(),
            })
            .collect();
        let bare = self.bare_end(&levels, at, 0);
        if book.has_passed(at) {
            return TokenBucketState::new(at, &levels, before, None);
        }
        book.clear_holes();
        book.void_up_to = before.max(bare);
        book.given = if self.single().is_some() { book.void_up_to - bare } else { 0 };
        book.expires = book.expires.max(self.full(&levels, at));
        if how == Replace::Reset {
            book.promise = Tick::EPOCH;
        }
        let charged = book.void_up_to;
        self.state(at, &levels, charged, book, false)
    }
}
