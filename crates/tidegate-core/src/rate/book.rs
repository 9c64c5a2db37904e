//! What a limit that refills evenly has to remember so that charges can be settled in any order.
//!
//! Charges stand in a line, in the order in which they were made; each has a *position*, the sum of all that was charged up to it.
//! Giving a charge back must leave what those behind it hold, and a state of one number cannot say how much that is once
//! something was given back in between. So the book keeps what was given back as *holes* in the line: a position and an
//! amount. What stands behind a position is the distance to the end of the line without the holes in between.
//!
//! A hole also says how much of it could not be given back yet, because charges behind it still count on it. It is tried
//! again whenever something else is settled: a burst that is undone charge by charge comes back entirely in any order.
//!
//! A state has a book from the first settlement that leaves a hole on, until the limit has been full once, as it would have been
//! also without what was given back: then every receipt issued so far has run out. A limit under constant load never is full, so
//! that its book stays, and each check copies it: two allocations, the book and its holes, in the general form of a state. A caller
//! that settles each charge before it makes the next never has a book.

use core::time::Duration;

use smallvec::SmallVec;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

/// One amount for each bandwidth of a limit; all but token buckets of several have one.
pub(crate) type Amounts = SmallVec<[u128; 1]>;

/// The most holes that are kept. A burst of 128 parallel charges leaves at most as many, whatever the order they are settled in.
/// Beyond it the first hole of the line is forgotten, after which older charges may give back less.
const MAX_HOLES: usize = 64;

/// The bytes that a hole is written in.
const fn hole_bytes(bandwidths: usize) -> usize {
    16 + 16 + 1 + 16 * bandwidths
}

/// The most bytes that the holes of one book are written in, so that no state is larger than 4 KiB.
const MOST_HOLE_BYTES: usize = 3700;

/// The most holes that are kept for so many bandwidths: 64 for one, 56 for two, 45 for three, 22 for eight.
const fn most_holes(bandwidths: usize) -> usize {
    let fit = MOST_HOLE_BYTES / hole_bytes(bandwidths);
    if fit < MAX_HOLES { fit } else { MAX_HOLES }
}

/// What one key needs to know of its line of charges where the arrival time does not tell enough. 112 bytes, and 64 for each hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// The sum of all that was given back from the middle of the line. The line ends at the arrival time and this sum.
    pub(crate) given: u128,
    /// Charges up to this position were made before the last carry, and give nothing back.
    pub(crate) since: u128,
    /// The tick by which every receipt has run out. The book is dropped then.
    pub(crate) high: Tick,
    /// The latest tick at which somebody was promised to act.
    pub(crate) promise: Tick,
    /// For each bandwidth, by number: when the running period of a refill at intervals was begun anew; zero where it was not.
    restarts: SmallVec<[Tick; 1]>,
    /// The first time that any period was begun anew; zero if never.
    extended: Tick,
    holes: Vec<Hole>,
}

/// A part of the line that was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hole {
    /// The position at which it ends.
    end: u128,
    amount: u128,
    /// How much of it is still charged, because charges behind it rely on it; for each bandwidth.
    withheld: Amounts,
}

impl Hole {
    fn start(&self) -> u128 {
        self.end.saturating_sub(self.amount)
    }

    /// Takes in the hole that begins where this one ends.
    fn join(&mut self, next: &Self) {
        self.end = next.end;
        self.amount = self.amount.saturating_add(next.amount);
        for (ours, theirs) in self.withheld.iter_mut().zip(&next.withheld) {
            *ours = ours.saturating_add(*theirs);
        }
    }
}

impl Book {
    /// The most bytes that the book of so many bandwidths, or none, is written in.
    pub(crate) const fn largest(bandwidths: usize) -> usize {
        let holes = most_holes(bandwidths) * hole_bytes(bandwidths);
        1 + (16 + 16 + 8 + 8 + 8) + (1 + 8 * bandwidths) + (1 + holes)
    }

    /// Opens a book on a line that has none: nothing was settled out of order, nor was the limit changed while receipts are out.
    pub(crate) fn new(high: Tick, promise: Tick) -> Self {
        Self { high, promise, ..Self::default() }
    }

    /// Says whether no receipt is left that could be settled at `at`. A book that lasts until [`Tick::MAX`] is kept: that tick
    /// stands for all later ones.
    pub(crate) fn has_passed(&self, at: Tick) -> bool {
        self.high <= at && self.high < Tick::MAX
    }

    /// Says whether the book adds nothing to what the arrival time says by itself.
    pub(crate) fn is_blank(&self) -> bool {
        self.given == 0 && self.since == 0 && self.holes.is_empty()
    }

    /// Returns how much the charges behind `position` hold, of a line that ends at `end`. Where holes were forgotten it is too
    /// much, never too little.
    pub(crate) fn standing_after(&self, position: u128, end: u128) -> u128 {
        let behind = self.holes.iter().filter(|hole| hole.end > position);
        let gone = behind.fold(0u128, |sum, hole| sum.saturating_add(hole.amount));
        end.saturating_sub(position).saturating_sub(gone)
    }

    /// Returns how much of a bandwidth is still charged for charges that were settled.
    pub(crate) fn withheld(&self, band: usize) -> u128 {
        let withheld = self.holes.iter().filter_map(|hole| hole.withheld.get(band));
        withheld.fold(0, |sum, amount| sum.saturating_add(*amount))
    }

    /// Makes a hole of `amount` that ends at `end`.
    pub(crate) fn open(&mut self, end: u128, amount: u128, withheld: Amounts) {
        let at = self.holes.partition_point(|hole| hole.end < end);
        // Room for one more hole; to double the list would waste memory in each key.
        self.holes.reserve_exact(1);
        self.holes.insert(at, Hole { end, amount, withheld });
        // The hole behind is joined first, so that the indices before it stay right.
        for first in [Some(at), at.checked_sub(1)].into_iter().flatten() {
            if let Some([one, next]) = self.holes.get_mut(first..first.saturating_add(2))
                && one.end == next.start()
            {
                one.join(next);
                self.holes.remove(first + 1);
            }
        }
        let most = self.holes.first().map_or(MAX_HOLES, |first| most_holes(first.withheld.len()));
        if let Some(many) = self.holes.len().checked_sub(most) {
            self.holes.drain(..many);
        }
    }

    /// Cuts holes off the end of the line: nobody stands behind them. Returns what was withheld of them.
    pub(crate) fn cut(&mut self, end: &mut u128) -> Amounts {
        let mut released = Amounts::new();
        while let Some(hole) = self.holes.pop_if(|hole| hole.end >= *end) {
            *end = end.saturating_sub(hole.amount);
            released.resize(released.len().max(hole.withheld.len()), 0);
            for (sum, withheld) in released.iter_mut().zip(hole.withheld) {
                *sum = sum.saturating_add(withheld);
            }
        }
        released
    }

    /// Gives back what was withheld, as far as those behind allow: `spent` stays at `front` and what they hold, a position
    /// being worth `weight`.
    pub(crate) fn release(&mut self, band: usize, spent: &mut u128, front: u128, weight: u128, end: u128) {
        let mut behind = self.holes.iter().fold(0u128, |sum, hole| sum.saturating_add(hole.amount));
        // The oldest hole first. Its floor is the highest, so it could give nothing back once later holes have lowered `spent`.
        for hole in &mut self.holes {
            behind = behind.saturating_sub(hole.amount);
            let Some(withheld) = hole.withheld.get_mut(band) else { continue };
            let standing = end.saturating_sub(hole.end).saturating_sub(behind);
            let floor = front.saturating_add(standing.saturating_mul(weight));
            let given = (*withheld).min(spent.saturating_sub(floor));
            *withheld -= given;
            *spent -= given;
        }
    }

    /// When the period of a bandwidth was begun anew, if it was.
    pub(crate) fn restarted(&self, band: usize) -> Tick {
        self.restarts.get(band).copied().unwrap_or_default()
    }

    /// Says whether a period was begun anew while a receipt that runs out at `arrival` was there: it lasts as long as the book then.
    pub(crate) fn outlives(&self, arrival: Tick) -> bool {
        Tick::EPOCH < self.extended && self.extended < arrival
    }

    /// Notes that the period of a bandwidth begins anew.
    pub(crate) fn restart(&mut self, band: usize, at: Tick) {
        self.restarts.resize(self.restarts.len().max(band + 1), Tick::EPOCH);
        self.restarts[band] = at;
        if self.extended == Tick::EPOCH {
            self.extended = at;
        }
    }

    /// Makes the book one of a line whose clock was set back by `span` at the tick `from`. Charges up to the position `end` give
    /// nothing back any more, for as long as the clock that was set back would have let them.
    pub(crate) fn set_back(&mut self, span: Duration, from: Tick, end: u128) {
        self.rest();
        self.since = end;
        self.high = self.high.max(from);
        self.promise = self.promise.before(span);
        self.extended = self.extended.before(span);
        for restart in &mut self.restarts {
            *restart = restart.before(span);
        }
    }

    /// Forgets all holes: the limit is full again, so the charges before them hold nothing any more.
    pub(crate) fn rest(&mut self) {
        self.holes.clear();
    }
}

impl Book {
    /// Appends a book that may be missing: one byte, and the book.
    pub(crate) fn write_some(book: Option<&Self>, out: &mut Writer) {
        out.u8(u8::from(book.is_some()));
        if let Some(book) = book {
            book.write(out);
        }
    }

    /// Reads what [`Book::write_some`] wrote.
    pub(crate) fn read_some(from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        match from.u8()? {
            0 => Ok(None),
            1 => Self::read(from).map(Some),
            _ => Err(DecodeError::Value { field: "book" }),
        }
    }
}

impl Bytes for Book {
    fn write(&self, out: &mut Writer) {
        out.u128(self.given);
        out.u128(self.since);
        out.tick(self.high);
        out.tick(self.promise);
        out.tick(self.extended);
        // At most eight bandwidths, and 64 holes.
        out.u8(self.restarts.len() as u8);
        for restart in &self.restarts {
            out.tick(*restart);
        }
        out.u8(self.holes.len() as u8);
        for hole in &self.holes {
            out.u128(hole.end);
            out.u128(hole.amount);
            out.u8(hole.withheld.len() as u8);
            for amount in &hole.withheld {
                out.u128(*amount);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (given, since, high, promise) = (from.u128()?, from.u128()?, from.tick()?, from.tick()?);
        let extended = from.tick()?;
        let restarts = (0..from.u8()?).map(|_| from.tick()).collect::<Result<_, _>>()?;
        let count = from.u8()?;
        if usize::from(count) > MAX_HOLES {
            return Err(DecodeError::Value { field: "holes" });
        }
        let hole = |_| {
            let (end, amount) = (from.u128()?, from.u128()?);
            let withheld = (0..from.u8()?).map(|_| from.u128()).collect::<Result<_, _>>()?;
            Ok(Hole { end, amount, withheld })
        };
        let holes: Vec<Hole> = (0..count).map(hole).collect::<Result<_, DecodeError>>()?;
        if !holes.is_sorted_by_key(|hole| hole.end) {
            return Err(DecodeError::Value { field: "holes" });
        }
        Ok(Self { given, since, high, promise, restarts, extended, holes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that the states' documentation tells.
    #[test]
    fn a_book_takes_what_is_said() {
        assert_eq!((size_of::<Book>(), size_of::<Hole>()), (112, 64));
        assert_eq!(size_of::<crate::rate::GcraState>(), 32);
    }

    #[test]
    fn holes_that_touch_are_one_and_there_are_never_too_many() {
        let mut book = Book::default();
        for end in [30, 10, 20] {
            book.open(end, 10, [5].into_iter().collect());
        }
        assert_eq!(book.holes.len(), 1);
        assert_eq!(book.standing_after(0, 40), 10);
        for end in (0..200).map(|nth| 100 + 20 * nth) {
            book.open(end, 10, [0].into_iter().collect());
        }
        assert_eq!(book.holes.len(), MAX_HOLES);
        let mut end = 100 + 20 * 199;
        book.cut(&mut end);
        assert_eq!((end, book.holes.len()), (90 + 20 * 199, MAX_HOLES - 1));
    }
}
