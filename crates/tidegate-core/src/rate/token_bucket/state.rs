//! The state of a token bucket.

use smallvec::SmallVec;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::rate::book::Book;
use crate::time::Tick;

/// The most bandwidths of one bucket.
pub(super) const MOST_BANDWIDTHS: usize = 8;

/// The state of [`TokenBucket`](super::TokenBucket) for one key: 40 bytes. With several bandwidths, 160 bytes more on
/// the heap, and 24 for each bandwidth but the first.
///
/// Charges that are settled out of order need as much more, at most 5 KiB (one bandwidth), until the bucket is full; at
/// most 130 KiB while charges wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucketState {
    pub(super) last: Tick,
    pub(super) first: Level,
    pub(super) more: Option<Box<More>>,
}

/// The parts that most token buckets do not need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct More {
    /// With several bandwidths: all units charged so far. For one bandwidth, the level tells it.
    charged: u128,
    others: Vec<Level>,
    book: Option<Book>,
}

impl TokenBucketState {
    /// The size of the largest state of a number of bandwidths, in byte form.
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

/// One bandwidth at the tick of the last change. Two halves instead of a `u128` avoid its alignment, which would
/// enlarge the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    spent: [u64; 2],
    /// Interval refill: ns of the running period that have passed. Aligned refill: ns since the last refill was due,
    /// and a period; 0 in a bucket that has not been used.
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
