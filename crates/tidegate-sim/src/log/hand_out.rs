//! Hands out the requests whose turn has come, several at once where their records can be held at once.

use std::ops::ControlFlow;

use smallvec::SmallVec;
use tidegate::Tick;

use super::malformed::Malformed;
use super::reader::Reader;
use super::record::Record;
use super::tally::{LINE_BITS, Tally};
use crate::order::{Held, Line, Reorder};

/// Requests handed out at once, at most: as many waits for memory as a core has under way at a time.
pub(super) const TOGETHER: usize = 16;

/// Hands out the next requests whose turn has come, those that are wanted, so many at once.
#[inline]
pub(super) fn hand_out(
    order: &mut Reorder,
    together: usize,
    (readers, tally): (&mut [Reader], &mut Tally),
    is_wanted: &mut impl FnMut(&mut Tally, &Record<'_>) -> bool,
    each: &mut impl FnMut(&[Record<'_>]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut records: SmallVec<[Record<'_>; TOGETHER]> = SmallVec::new();
    let taken = if readers.iter().all(Reader::borrows_lines_alone) {
        let mut taken = 0;
        for held in order.ready().take(together) {
            let Line { mark, time_at, bytes } = held.line;
            let read = readers[(mark >> LINE_BITS) as usize].read_apart(bytes, held.time, time_at);
            records.extend(taken_as(held, read, tally).filter(|record| is_wanted(tally, record)));
            taken += 1;
        }
        taken
    } else {
        let Some(held) = order.ready().next() else { return ControlFlow::Continue(()) };
        let Line { mark, time_at, bytes } = held.line;
        let read = readers[(mark >> LINE_BITS) as usize].read_timed(bytes, held.time, time_at);
        records.extend(taken_as(held, read, tally).filter(|record| is_wanted(tally, record)));
        1
    };
    let flow = if records.is_empty() { ControlFlow::Continue(()) } else { each(&records) };
    drop(records);
    order.drop_first(taken);
    flow
}

/// Returns the request of a line as of the time that the line counts as; a line that is none is noted.
#[inline]
fn taken_as<'r>(
    held: Held<'_>,
    read: Result<Option<Record<'r>>, Malformed>,
    tally: &mut Tally,
) -> Option<Record<'r>> {
    match read {
        Ok(record) => record.map(|record| Record { time: Tick::from_nanos(held.time), ..record }),
        Err(why) => {
            tally.note(held.line.mark, held.line.bytes, why);
            None
        }
    }
}
