//! The book of a limit that refills evenly: what it keeps so that charges can be settled in any order.
//!
//! Charges stand in a line, in the order in which they were made. Each has a *position*: the sum of all charges up to
//! and including it. Giving a charge back must leave the charges behind it what they hold. A state of one number
//! cannot tell how much comes back once an amount in between was given back. So the book keeps amounts given back from
//! the middle as *holes*: a position and an amount. The charges behind a position hold the distance to the end of the
//! line minus the holes in between. A hole also says how much of it could not be given back yet, because charges
//! behind it still rely on it. It is tried again at each later settlement, so a burst that is undone charge by charge
//! comes back entirely, in any order.
//!
//! A state has a book from the first settlement that leaves a hole until the limit has been full once, and would have
//! been full also without what was given back: then every receipt issued so far has run out. Under constant load the
//! book stays: each charge copies it, in one allocation, and settlements also copy the holes. A caller that settles
//! each charge before it makes the next never has a book.

use core::time::Duration;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::bytes::{DecodeError, Reader, Writer};
use crate::time::Tick;

/// One amount for each bandwidth of a limit. Only token buckets of several bandwidths have more than one.
pub(crate) type Amounts = SmallVec<[u128; 1]>;

/// The most holes that are kept while nobody waits. A burst of 128 parallel charges leaves at most this many, in
/// whatever order they are settled. Beyond it the first hole of the line is forgotten, and older charges may then give
/// back less.
const MAX_HOLES: usize = 64;

/// The most holes that are kept while charges wait: those of a crowd of 4,096 who go away in any order.
const MAX_HOLES_AHEAD: usize = 2048;

/// The first byte of an optional book in byte form. A long book has more holes than are kept while nobody waits.
const NO_BOOK: u8 = 0;
const BOOK: u8 = 1;
const LONG_BOOK: u8 = 2;

const fn hole_bytes(bandwidths: usize) -> usize {
    16 + 16 + 1 + 16 * bandwidths
}

/// The most bytes that the holes of one book take in byte form while nobody waits, so that no such state is larger than
/// 4 KiB.
const MOST_HOLE_BYTES: usize = 3700;

/// The most holes that are kept for a number of bandwidths: 64 for one, 56 for two, 45 for three, 22 for eight.
const fn most_holes(bandwidths: usize) -> usize {
    let fit = MOST_HOLE_BYTES / hole_bytes(bandwidths);
    if fit < MAX_HOLES { fit } else { MAX_HOLES }
}

/// The data that a key keeps about its line of charges besides the arrival time. 96 bytes, and 64 for each hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// The sum of all amounts given back from the middle of the line. The line ends at the arrival time plus this sum.
    pub(crate) given: u128,
    /// Charges up to this position were made before the last carry, and give nothing back.
    pub(crate) void_up_to: u128,
    /// The tick by which every receipt has run out. The book is dropped then.
    pub(crate) expires: Tick,
    /// The latest tick at which a charge was promised to act.
    pub(crate) promise: Tick,
    /// For each bandwidth, by index: when its running period of a refill at intervals was restarted; zero if it was not.
    restarts: SmallVec<[Tick; 1]>,
    /// The first tick at which any period was restarted; zero if none was.
    extended: Tick,
    /// In order of position. A charge changes none of them, so the states before and after it share the list.
    holes: Arc<Vec<Hole>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hole {
    end: u128,
    amount: u128,
    /// How much of it is still charged, because charges behind it rely on it; for each bandwidth.
    withheld: Amounts,
}

impl Hole {
    fn start(&self) -> u128 {
        self.end.saturating_sub(self.amount)
    }

    fn join(&mut self, next: &Self) {
        self.end = next.end;
        self.amount = self.amount.saturating_add(next.amount);
        for (ours, theirs) in self.withheld.iter_mut().zip(&next.withheld) {
            *ours = ours.saturating_add(*theirs);
        }
    }
}

impl Book {
    pub(crate) const fn largest(bandwidths: usize) -> usize {
        let holes = most_holes(bandwidths) * hole_bytes(bandwidths);
        1 + (16 + 16 + 8 + 8 + 8) + (1 + 8 * bandwidths) + (1 + holes)
    }

    /// Opens a book on a line that has none.
    pub(crate) fn new(expires: Tick, promise: Tick) -> Self {
        Self { expires, promise, ..Self::default() }
    }

    /// Says whether every receipt has run out at `at`. A book that lasts until [`Tick::MAX`] is kept, because that
    /// tick stands for all later ones.
    pub(crate) fn has_passed(&self, at: Tick) -> bool {
        self.expires <= at && self.expires < Tick::MAX
    }

    /// Says whether the book adds nothing to the arrival time.
    pub(crate) fn is_blank(&self) -> bool {
        self.given == 0 && self.void_up_to == 0 && self.holes.is_empty()
    }

    fn most(&self, at: Tick) -> usize {
        match self.holes.first() {
            Some(first) if self.promise <= at => most_holes(first.withheld.len()),
            _ => MAX_HOLES_AHEAD,
        }
    }

    /// Forgets the first holes of the line beyond the most that are kept at a tick.
    pub(crate) fn bound(&mut self, at: Tick) {
        if let Some(many) = self.holes.len().checked_sub(self.most(at)).filter(|many| *many > 0) {
            self.forget(many);
        }
    }

    /// Returns the book with no more holes than are kept while nobody waits; `None` if it has no more.
    pub(crate) fn shortened(&self) -> Option<Self> {
        let most = self.holes.first().map_or(MAX_HOLES, |first| most_holes(first.withheld.len()));
        let many = self.holes.len().checked_sub(most).filter(|many| *many > 0)?;
        let mut book = self.clone();
        book.forget(many);
        Some(book)
    }

    fn forget(&mut self, many: usize) {
        self.holes = Arc::new(self.holes.get(many..).unwrap_or_default().to_vec());
    }

    /// Returns how much the charges behind `position` hold, on a line that ends at `end`. If holes were forgotten, it
    /// is too much, never too little.
    pub(crate) fn standing_after(&self, position: u128, end: u128) -> u128 {
        let behind = self.holes.iter().filter(|hole| hole.end > position);
        let gone = behind.fold(0u128, |sum, hole| sum.saturating_add(hole.amount));
        end.saturating_sub(position).saturating_sub(gone)
    }

    pub(crate) fn withheld(&self, band: usize) -> u128 {
        let withheld = self.holes.iter().filter_map(|hole| hole.withheld.get(band));
        withheld.fold(0, |sum, amount| sum.saturating_add(*amount))
    }

    pub(crate) fn open(&mut self, end: u128, amount: u128, withheld: Amounts) {
        let at = self.holes.partition_point(|hole| hole.end < end);
        let hole = Hole { end, amount, withheld };
        let (before, behind) = self.holes.split_at(at);
        // Room for one more hole; doubling the list would waste memory in each key.
        let mut holes: Vec<Hole> = Vec::with_capacity(self.holes.len() + 1);
        holes.extend_from_slice(before);
        for next in [&hole].into_iter().chain(behind) {
            // Only the new hole can touch the ones beside it.
            match holes.last_mut() {
                Some(last) if last.end == next.start() => last.join(next),
                _ => holes.push(next.clone()),
            }
        }
        self.holes = Arc::new(holes);
    }

    /// Cuts holes off the end of the line, where no charge stands behind them. Returns the amounts withheld of them,
    /// for each bandwidth.
    pub(crate) fn cut(&mut self, end: &mut u128) -> Amounts {
        let mut released = Amounts::new();
        if self.holes.last().is_none_or(|last| last.end < *end) {
            return released;
        }
        let holes = Arc::make_mut(&mut self.holes);
        while let Some(hole) = holes.pop_if(|hole| hole.end >= *end) {
            *end = end.saturating_sub(hole.amount);
            released.resize(released.len().max(hole.withheld.len()), 0);
            for (sum, withheld) in released.iter_mut().zip(hole.withheld) {
                *sum = sum.saturating_add(withheld);
            }
        }
        released
    }

    /// Gives withheld amounts back, as far as the charges behind allow: `spent` stays at least `front` plus what they
    /// hold, where one step of a position is worth `weight`.
    pub(crate) fn release(&mut self, band: usize, spent: &mut u128, front: u128, weight: u128, end: u128) {
        if self.withheld(band) == 0 {
            return;
        }
        let mut behind = self.holes.iter().fold(0u128, |sum, hole| sum.saturating_add(hole.amount));
        // The oldest hole first. Its floor is the highest, so it could give nothing back once later holes have lowered `spent`.
        for hole in Arc::make_mut(&mut self.holes) {
            behind = behind.saturating_sub(hole.amount);
            let Some(withheld) = hole.withheld.get_mut(band) else { continue };
            let standing = end.saturating_sub(hole.end).saturating_sub(behind);
            let floor = front.saturating_add(standing.saturating_mul(weight));
            let given = (*withheld).min(spent.saturating_sub(floor));
            *withheld -= given;
            *spent -= given;
        }
    }

    pub(crate) fn restarted(&self, band: usize) -> Tick {
        self.restarts.get(band).copied().unwrap_or_default()
    }

    /// Says whether a period was restarted while a receipt that runs out at `arrival` was open. Such a receipt lasts
    /// as long as the book.
    pub(crate) fn outlives(&self, arrival: Tick) -> bool {
        Tick::EPOCH < self.extended && self.extended < arrival
    }

    pub(crate) fn restart(&mut self, band: usize, at: Tick) {
        self.restarts.resize(self.restarts.len().max(band + 1), Tick::EPOCH);
        self.restarts[band] = at;
        if self.extended == Tick::EPOCH {
            self.extended = at;
        }
    }

    /// Adapts the book to a clock that was set back by `span` at the tick `from`. Charges up to the position `end`
    /// give nothing back, for as long as they could have by the old clock.
    pub(crate) fn set_back(&mut self, span: Duration, from: Tick, end: u128) {
        self.clear_holes();
        self.void_up_to = end;
        self.expires = self.expires.max(from);
        self.promise = self.promise.before(span);
        self.extended = self.extended.before(span);
        for restart in &mut self.restarts {
            *restart = restart.before(span);
        }
    }

    /// Forgets all holes: the limit is full again, so earlier charges hold nothing any more.
    pub(crate) fn clear_holes(&mut self) {
        if !self.holes.is_empty() {
            self.holes = Arc::default();
        }
    }
}

impl Book {
    /// Appends an optional book: one byte, and the book.
    pub(crate) fn write_some(book: Option<&Self>, out: &mut Writer) {
        let Some(book) = book else { return out.u8(NO_BOOK) };
        out.u8(if book.holes.len() > MAX_HOLES { LONG_BOOK } else { BOOK });
        book.write(out);
    }

    pub(crate) fn read_some(from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        match from.u8()? {
            NO_BOOK => Ok(None),
            BOOK => Self::read(from, false).map(Some),
            LONG_BOOK => Self::read(from, true).map(Some),
            _ => Err(DecodeError::Value { field: "book" }),
        }
    }

    fn write(&self, out: &mut Writer) {
        out.u128(self.given);
        out.u128(self.void_up_to);
        out.tick(self.expires);
        out.tick(self.promise);
        out.tick(self.extended);
        // At most eight bandwidths.
        out.u8(self.restarts.len() as u8);
        for restart in &self.restarts {
            out.tick(*restart);
        }
        if self.holes.len() > MAX_HOLES {
            out.u64(self.holes.len() as u64);
        } else {
            out.u8(self.holes.len() as u8);
        }
        for hole in self.holes.iter() {
            out.u128(hole.end);
            out.u128(hole.amount);
            out.u8(hole.withheld.len() as u8);
            for amount in &hole.withheld {
                out.u128(*amount);
            }
        }
    }

    fn read(from: &mut Reader<'_>, long: bool) -> Result<Self, DecodeError> {
        let (given, void_up_to, expires, promise) = (from.u128()?, from.u128()?, from.tick()?, from.tick()?);
        let extended = from.tick()?;
        let restarts = (0..from.u8()?).map(|_| from.tick()).collect::<Result<_, _>>()?;
        let (count, most) =
            if long { (from.u64()?, MAX_HOLES_AHEAD) } else { (from.u8()?.into(), MAX_HOLES) };
        if count > most as u64 {
            return Err(DecodeError::Value { field: "holes" });
        }
        let hole = |_| {
            let (end, amount) = (from.u128()?, from.u128()?);
            let withheld = (0..from.u8()?).map(|_| from.u128()).collect::<Result<_, _>>()?;
            Ok(Hole { end, amount, withheld })
        };
        let holes: Arc<Vec<Hole>> =
            (0..count).map(hole).collect::<Result<Vec<_>, DecodeError>>().map(Arc::new)?;
        if !holes.is_sorted_by_key(|hole| hole.end) {
            return Err(DecodeError::Value { field: "holes" });
        }
        Ok(Self { given, void_up_to, expires, promise, restarts, extended, holes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that the documentation of the states gives.
    #[test]
    fn a_book_takes_what_is_said() {
        assert_eq!((size_of::<Book>(), size_of::<Hole>()), (96, 64));
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
        assert_eq!(book.holes.len(), 201);
        book.promise = Tick::from_secs(9);
        book.bound(Tick::from_secs(8));
        assert_eq!(book.holes.len(), 201, "somebody waits");
        book.bound(Tick::from_secs(9));
        assert_eq!(book.holes.len(), MAX_HOLES);
        let mut end = 100 + 20 * 199;
        book.cut(&mut end);
        assert_eq!((end, book.holes.len()), (90 + 20 * 199, MAX_HOLES - 1));
    }
}
