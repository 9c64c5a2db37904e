//! Decides the steps of a batch one after the other over the values that were read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Tick;
use tidegate_core::bytes::DecodeError;
use twox_hash::XxHash64;

use super::byte_map::{Read, Write};
use tidegate_limits::clock::HeldTime;
use tidegate_limits::store::{
    Answer, Cell, Charge, DecidedBy, OwnedStep, Settled, Step, StepClock, StoreError, settle_within,
};

/// How far ahead another node's clock may be for its ticks to simply count as the present, as in [`HeldTime`]. A clock
/// that is further ahead is followed at half its speed instead.
const FAR: Duration = Duration::from_secs(300);

/// The clocks by which a store decides.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The latest tick of this node; other nodes' ticks are in the states.
    here: HeldTime,
    /// The same for cells that clocks of other nodes wrote more than [`FAR`] ahead.
    ahead: HeldTime,
}

/// The outcome of the steps of a batch.
pub(super) struct Decided {
    /// An answer for each step, which is valid once the writes are done.
    pub(super) answers: Vec<Answer>,
    /// The values to write; empty where no step changed anything.
    pub(super) writes: Vec<Write>,
}

/// The state of one key of the batch.
struct Slot {
    cell: Result<Option<Cell>, DecodeError>,
    /// The tick of the last step that named the key and changed something.
    changed_at: Option<Tick>,
}

/// Decides steps in their order over the values that were read; each step sees the changes of those before it.
///
/// All keys of a step that changed something are written. So a successful write proves that no other writer has changed
/// a permitted step's keys since they were read. A refusal is based on the values that were read.
pub(super) fn decide(
    times: &Times,
    steps: &[&OwnedStep],
    keys: &[Arc<[u8]>],
    read: &Read,
    largest_cell: Option<usize>,
) -> Decided {
    let values = read.values.len();
    if values != keys.len() {
        let reason = format!("it returned {values} values for {} keys", keys.len());
        let error = StoreError::Unavailable { reason };
        return Decided { answers: vec![Err(error); steps.len()], writes: Vec::new() };
    }
    let slot = |value: Option<&[u8]>| Slot { cell: value.map(Cell::decode).transpose(), changed_at: None };
    let mut slots: Vec<Slot> = read.values.iter().map(|read| slot(read.value.as_deref())).collect();
    let places: HashMap<&[u8], usize> = keys.iter().enumerate().map(|(at, key)| (&**key, at)).collect();
    let decide = |step: &&OwnedStep| decide_one(times, step, &places, &mut slots, read.now, largest_cell);
    let answers = steps.iter().map(decide).collect();
    let mut writes = Vec::new();
    for ((key, slot), versioned) in keys.iter().zip(&slots).zip(&read.values) {
        let (Some(now), Ok(cell)) = (slot.changed_at, &slot.cell) else { continue };
        let keep = cell.as_ref().and_then(Cell::full_at);
        let keep = keep.map(|full| full.since(now).saturating_add(Write::MARGIN));
        let value = cell.as_ref().map(Cell::encode);
        writes.push(Write { key: Arc::clone(key), version: versioned.version, value, keep });
    }
    Decided { answers, writes }
}

fn decide_one(
    times: &Times,
    step: &OwnedStep,
    places: &HashMap<&[u8], usize>,
    slots: &mut [Slot],
    by_engine: Option<Tick>,
    largest_cell: Option<usize>,
) -> Answer {
    step.with(|lent| {
        let places: Vec<usize> =
            lent.charges.iter().filter_map(|charge| places.get(charge.key).copied()).collect();
        let mut cells = Vec::with_capacity(places.len());
        let mut repaired = false;
        for (at, place) in places.iter().enumerate() {
            cells.push(match &slots[*place].cell {
                Ok(cell) => cell.clone(),
                // Bytes that do not decode are an error, except for a step that forgets the key, which replaces them.
                Err(_) if step.forgets(at) => {
                    repaired = true;
                    None
                }
                Err(source) => {
                    let digest = lent.charges.get(at).map_or(0, |charge| XxHash64::oneshot(0, charge.key));
                    return Err(StoreError::Corrupt { charge: at, digest, source: *source });
                }
            });
        }
        let by_engine = by_engine.filter(|_| matches!(lent.clock, StepClock::Engine));
        let mut now = times.here.hold(by_engine.unwrap_or(lent.now));
        if by_engine.is_none() {
            now = times.among_nodes(now, lent, &cells);
        }
        let (mut settled, changed): (Settled, bool) =
            settle_within(&Step { now, ..*lent }, &mut cells, largest_cell);
        settled.by = DecidedBy::Engine;
        let mended = repaired && settled.allowed;
        if !changed && !mended {
            return Ok(settled);
        }
        let too_large = |cell: &Cell| largest_cell.map(|most| (cell.encode().len(), most));
        let too_large = cells.iter().flatten().filter_map(too_large).find(|(bytes, most)| bytes > most);
        if let Some((bytes, most)) = too_large {
            return Err(StoreError::CellTooLarge { bytes, most });
        }
        for (place, cell) in places.iter().zip(cells) {
            slots[*place] = Slot { cell: Ok(cell), changed_at: Some(now) };
        }
        Ok(settled)
    })
}

impl Times {
    /// Returns the tick to decide by where nodes decide by their own clocks: this node's tick, or a later one if
    /// another node has written a cell far ahead of it.
    ///
    /// Such a cell is not set back, as a single node does after its own clock was set back: that would grant its units
    /// again each time that two nodes take turns.
    fn among_nodes(&self, now: Tick, step: &Step<'_>, cells: &[Option<Cell>]) -> Tick {
        let far_ahead = |(charge, cell): (&Charge<'_>, &Option<Cell>)| {
            let cell = cell.as_ref()?;
            // The charge's quota knows how far this node's wall clock is ahead.
            let quota = if cell.is_under(charge) { charge.quota } else { &cell.quota };
            quota.far_ahead(&cell.state, now)
        };
        let Some(latest) = step.charges.iter().zip(cells).filter_map(far_ahead).max() else { return now };
        if latest.since(now) <= FAR {
            return latest;
        }
        if latest > self.ahead.latest() {
            self.ahead.hold(latest);
        }
        self.ahead.hold(now)
    }
}
