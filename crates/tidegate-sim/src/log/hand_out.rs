//! Hands out the requests that are ready, several at once where their records can be held at once.

use std::ops::ControlFlow;

use smallvec::SmallVec;
use tidegate::Tick;

use super::reader::Reader;
use super::record::Record;
use super::tally::{LINE_BITS, Tally};
use crate::order::{OrderedLine, Reorder};

/// The most requests handed out at once: about as many memory loads as a core can have in flight.
pub(super) const TOGETHER: usize = 16;

/// Hands out up to `together` of the next requests that are ready and wanted.
#[inline]
pub(super) fn hand_out(
    order: &mut Reorder,
    together: usize,
    readers: &mut [Reader],
    tally: &mut Tally,
    is_wanted: &mut impl FnMut(&mut Tally, &mut Record<'_>) -> bool,
    each: &mut dyn FnMut(&[Record<'_>]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut records: SmallVec<[Record<'_>; TOGETHER]> = SmallVec::new();
    let taken = if readers.iter().all(Reader::borrows_lines_alone) {
        let mut taken = 0;
        for held in order.ready().take(together) {
            let OrderedLine { mark, time_at, bytes } = held.line;
            // Fill the record in place: it is large, and there is one for each line.
            records.push(Record::at(held.time));
            let Some(record) = records.last_mut() else { break };
            let read = readers[(mark >> LINE_BITS) as usize].fill_apart(bytes, time_at, record);
            if let Err(why) = read {
                tally.note(mark, bytes, why);
                records.pop();
            } else if !is_wanted(tally, record) {
                records.pop();
            }
            taken += 1;
        }
        taken
    } else {
        let Some(held) = order.ready().next() else { return ControlFlow::Continue(()) };
        let OrderedLine { mark, bytes, .. } = held.line;
        match readers[(mark >> LINE_BITS) as usize].read(bytes) {
            Ok(Some(mut record)) => {
                record.time = Tick::from_nanos(held.time);
                if is_wanted(tally, &mut record) {
                    records.push(record);
                }
            }
            Ok(None) => {}
            Err(why) => tally.note(mark, bytes, why),
        }
        1
    };
    let flow = if records.is_empty() { ControlFlow::Continue(()) } else { each(&records) };
    drop(records);
    order.drop_first(taken);
    flow
}
