//! Sends work to the servers, and decides the steps that their script does not.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::store::{
    Caps, Cell, DecidedBy, Executed, Op, OwnedStep, Step, StepAnswer, StoreError, execute_within,
};
use tidegate_core::bytes::DecodeError;
use tidegate_core::time::MAX_STEP_BACK;
use tidegate_core::{Quota, Tick};
use twox_hash::XxHash64;

use crate::call::tells_of_loss;
use crate::cell;
use crate::counts::{Reports, add};
use crate::link::Common;
use crate::route::Route;
use crate::work::{CellContent, CellWrite, Cells, Failure, Note, Plan, Prepared, Reply, StepResult, Work};

/// How often a step is decided anew because others have written its cells, and so made progress.
const ATTEMPTS: u32 = 64;

/// The first pause before a refused call is sent again; it doubles each time.
const FIRST_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) common: Arc<Common>,
    pub(crate) route: Route,
    pub(crate) clock: SystemClock,
    pub(crate) caps: Caps,
}

impl Engine {
    /// With `tells_first_use`, marks the shards of an unused namespace as complete: a cell missing later was lost.
    /// Returns the number of shards in use, as [`Names::form`](crate::call::Names::form).
    pub(crate) async fn begin(&self, tells_first_use: bool) -> Result<String, StoreError> {
        let is_used = self.noted(Note::IsUsed).await?;
        if is_used.is_none() && tells_first_use {
            // A hash that records a loss was in use before; the key that says so was lost as well.
            let epochs = self.note_each(|shard| Note::Epoch { shard }).await?;
            if !epochs.iter().flatten().any(|epoch| tells_of_loss(epoch)) {
                self.note_each(|shard| Note::Begin { shard }).await?;
            }
        }
        let before = match is_used {
            Some(form) => Some(form),
            // `None` if this node is the first to mark it as used.
            None => self.noted(Note::Used).await?,
        };
        let form = before.map(|form| String::from_utf8_lossy(&form).into_owned());
        Ok(form.unwrap_or_else(|| self.common.names.form().to_owned()))
    }

    async fn noted(&self, note: Note) -> Result<Option<Vec<u8>>, StoreError> {
        match self.ask(Work::Note(note)).await? {
            Reply::Noted(noted) => Ok(noted),
            Reply::Steps(_) | Reply::Wrote(_) => Err(unexpected_reply()),
        }
    }

    /// Writes the report of a node, or removes it if it is empty. Returns those of all nodes.
    pub(crate) async fn exchange_reports(&self, node: &str, report: &str) -> Result<Reports, StoreError> {
        let work = Work::Report { node: node.to_owned(), report: report.to_owned() };
        let Reply::Noted(Some(reports)) = self.ask(work).await? else { return Err(unexpected_reply()) };
        Reports::read(&String::from_utf8_lossy(&reports)).ok_or_else(unexpected_reply)
    }

    async fn note_each(&self, note: impl Fn(u32) -> Note) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let shards: Vec<u32> = (0..self.common.names.shards()).collect();
        let mut all = Vec::with_capacity(shards.len());
        for some in shards.chunks(256) {
            for noted in join_all(some.iter().map(|shard| self.noted(note(*shard)))).await {
                all.push(noted?);
            }
        }
        Ok(all)
    }

    /// Sends work to the server that holds the cells, again for a while if it was refused without being executed.
    pub(crate) async fn ask(&self, work: Work) -> Result<Reply, StoreError> {
        let until = self.clock.now().after(self.common.dialer.options.patience);
        let (mut pause, mut asking) = (FIRST_PAUSE, None);
        loop {
            let link = asking.take().map(|link| (link, true));
            let link = link.or_else(|| self.route.link(work.shard()).map(|link| (link, false)));
            let failure = match link {
                Some((link, asking)) => match link.ask(work.clone(), asking).await {
                    Ok(reply) => return Ok(reply),
                    Err(failure) => failure,
                },
                None => Failure::NotDone {
                    code: "CLUSTERDOWN".to_owned(),
                    reason: "no master holds the slot".to_owned(),
                },
            };
            let (code, reason) = match failure {
                Failure::Failed(error) => {
                    self.route.look_again();
                    return Err(error);
                }
                Failure::NotDone { code, reason } => (code, reason),
            };
            let now = self.clock.now();
            if now >= until {
                return Err(StoreError::Unavailable { reason });
            }
            add(&self.common.counters.retries, 1);
            if code == "ASK" {
                asking = self.route.named(&reason);
            } else {
                self.route.look_again();
            }
            if asking.is_none() {
                self.clock.sleep_until(now.after(pause).min(until)).await;
                pause *= 2;
            }
        }
    }

    pub(crate) async fn by_library(&self, mut prepared: Prepared, mut cells: Option<Cells>) -> StepAnswer {
        add(&self.common.counters.by_library, 1);
        prepared.plan = Plan::Read;
        prepared.asks.clear();
        for _ in 0..ATTEMPTS {
            let read = match cells.take() {
                Some(cells) => cells,
                None => match self.ask(Work::Decide(vec![prepared.clone()])).await? {
                    Reply::Steps(told) => match told.into_iter().next() {
                        Some(StepResult::Read(cells)) => cells,
                        _ => return Err(unexpected_reply()),
                    },
                    Reply::Wrote(_) | Reply::Noted(_) => return Err(unexpected_reply()),
                },
            };
            let (executed, writes) = self.decide(&prepared, &read)?;
            if writes.is_empty() {
                return Ok(executed);
            }
            match self.ask(Work::Write(writes)).await? {
                Reply::Wrote(true) => return Ok(executed),
                Reply::Wrote(false) => add(&self.common.counters.conflicts, 1),
                Reply::Steps(_) | Reply::Noted(_) => return Err(unexpected_reply()),
            }
        }
        Err(StoreError::Contended { attempts: ATTEMPTS })
    }

    fn decide(&self, prepared: &Prepared, read: &Cells) -> Result<(Executed, Vec<CellWrite>), StoreError> {
        let now = read.now;
        let step = &prepared.step;
        let mut cells: SmallVec<[Option<Cell>; 4]> = SmallVec::new();
        let (mut replaced, mut mended) = (false, false);
        for (at, (found, lost)) in read.found.iter().enumerate() {
            cells.push(match self.cell(step, at, found, *lost, now)? {
                CellRead::Found(cell) => cell,
                CellRead::Lost(cell) => {
                    replaced = true;
                    Some(cell)
                }
                CellRead::Garbage => {
                    mended = true;
                    None
                }
            });
        }
        // A settlement needs the cell as it was written.
        if step.with(|step| matches!(step.op, Op::Take | Op::Draw | Op::Peek)) {
            // Written even if the step is refused, or the key would not refill.
            replaced |= cells.iter_mut().flatten().fold(false, |any, cell| self.set_back(cell, now) | any);
        }
        let largest = self.caps.largest_cell;
        let (mut executed, changed) =
            step.with(|step| execute_within(&Step { now, ..*step }, &mut cells, largest));
        executed.by = DecidedBy::Engine;
        // The replacement of a cell is written even if the step is refused, for the script. Unreadable bytes go
        // only if the step that forgets their key is granted.
        let looks = step.with(|step| matches!(step.op, Op::Peek));
        let anew = (replaced || mended) && !looks && (executed.allowed || !mended);
        if !changed && !anew {
            return Ok((executed, Vec::new()));
        }
        let most = largest.unwrap_or(usize::MAX);
        let mut writes = Vec::with_capacity(cells.len());
        for ((name, (found, _)), cell) in prepared.cells.iter().zip(&read.found).zip(&cells) {
            let bytes = cell.as_ref().map_or(0, |cell| cell.encode().len());
            if bytes > most {
                return Err(StoreError::CellTooLarge { bytes, most });
            }
            let value = cell.as_ref().map(|cell| cell::write(cell, now));
            writes.push(CellWrite { name: *name, found: found.clone(), value });
        }
        Ok((executed, writes))
    }

    /// Sets a cell back that was written before the clock was, so that it stands still no longer than
    /// [`Common::stands_still`]. The library would let it stand still for [`MAX_STEP_BACK`]. It does so for calendar
    /// windows, whose edges stay where they are. Returns whether the cell has changed.
    fn set_back(&self, cell: &mut Cell, now: Tick) -> bool {
        let more = MAX_STEP_BACK.saturating_sub(self.common.stands_still());
        let on_calendar =
            matches!(&*cell.quota, Quota::FixedWindow(limit) if limit.calendar_parts().is_some());
        if on_calendar || more.is_zero() {
            return false;
        }
        let back = cell.quota.set_back(&cell.state, now.before(more));
        back.map(|state| cell.state = state).is_some()
    }

    fn cell(
        &self,
        step: &OwnedStep,
        charge: usize,
        found: &CellContent,
        lost: Tick,
        now: Tick,
    ) -> Result<CellRead, StoreError> {
        let read = match found {
            CellContent::Nothing => None,
            CellContent::Bytes(bytes) => Some(cell::read(bytes)),
            CellContent::NoHash => Some(Err(DecodeError::Value { field: "the hash that holds it" })),
        };
        let read = match read.transpose() {
            Ok(read) => read,
            Err(_) if step.forgets(charge) => return Ok(CellRead::Garbage),
            Err(source) => {
                add(&self.common.counters.corrupt, 1);
                let digest = step.with(|step| XxHash64::oneshot(0, step.charges[charge].key));
                return Err(StoreError::Corrupt { charge, digest, source });
            }
        };
        let after_loss = self.common.dialer.options.after_loss;
        let replaced = step
            .with(|step| cell::replaced(after_loss, step.charges[charge].quota, read.as_ref(), lost, now));
        if let Some(cell) = replaced {
            add(&self.common.counters.replaced, 1);
            return Ok(CellRead::Lost(cell));
        }
        Ok(CellRead::Found(read.map(|(cell, _)| cell)))
    }
}

enum CellRead {
    Found(Option<Cell>),
    /// The replacement of a cell that the server has lost.
    Lost(Cell),
    /// The bytes that were found cannot be read.
    Garbage,
}

pub(crate) fn unexpected_reply() -> StoreError {
    StoreError::Unavailable { reason: "the server's answer does not fit what was asked".to_owned() }
}
