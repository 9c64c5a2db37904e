//! Sends work to the servers, and decides the steps that their script does not.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::store::{
    Caps, Cell, DecidedBy, Executed, Op, OwnedStep, Step, StepAnswer, StoreError, execute_within,
};
use tidegate_core::bytes::DecodeError;
use tidegate_core::time::MAX_STEP_BACK;
use tidegate_core::{Quota, Tick};
use tokio::sync::oneshot;
use twox_hash::XxHash64;

use crate::call::{MOST_CELLS, tells_of_loss};
use crate::cell;
use crate::counts::{Reports, add};
use crate::link::{Common, no_reply};
use crate::route::Route;
use crate::work::{
    CellContent, CellName, CellWrite, Cells, Failure, Note, Plan, Prepared, Reply, StepResult, Work,
};

/// How often a round is decided anew because others have written its cells, and so made progress.
const ATTEMPTS: u32 = 64;

/// The most steps of a round: deciding them takes some milliseconds.
const MOST_STEPS: usize = 512;

/// The first pause before a refused call is sent again; it doubles each time.
const FIRST_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) common: Arc<Common>,
    pub(crate) route: Route,
    pub(crate) clock: SystemClock,
    pub(crate) caps: Caps,
    /// The steps that the library decides.
    pub(crate) queue: Mutex<Queue>,
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
}

// Steps that the script does not decide: their cells are read, decided, and written if unchanged.

/// The steps that wait, and the cells of the rounds under way.
///
/// When several steps have read the same cell, one writes it, and each other one starts over. So that a node does not
/// compete with itself, steps over a cell of a round under way wait, and are the next round together: one read and one
/// write for all. The more steps there are, the more of them share a round.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    busy: HashSet<CellName>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    prepared: Prepared,
    /// Its cells, as a call of the script has found them.
    cells: Option<Cells>,
    answer: oneshot::Sender<StepAnswer>,
}

/// Steps with cells in common, directly or through other steps, in their order.
#[derive(Debug, Default)]
struct Round {
    steps: Vec<Waiting>,
    cells: Vec<CellName>,
}

impl Queue {
    /// Makes rounds of the waiting steps whose cells are free.
    fn next_rounds(&mut self) -> Vec<Round> {
        let mut rounds: Vec<Round> = Vec::new();
        let mut round_of: HashMap<CellName, usize> = HashMap::new();
        let mut held: HashSet<CellName> = HashSet::new();
        for mut step in std::mem::take(&mut self.waiting) {
            if step.answer.is_closed() {
                continue;
            }
            let names = step.prepared.cells.clone();
            let mut met: Vec<usize> = names.iter().filter_map(|name| round_of.get(name).copied()).collect();
            met.sort_unstable();
            met.dedup();
            let cells: usize = met.iter().map(|at| rounds[*at].cells.len()).sum();
            let steps: usize = met.iter().map(|at| rounds[*at].steps.len()).sum();
            let fits = cells + names.len() <= MOST_CELLS && steps < MOST_STEPS;
            if !fits || names.iter().any(|name| self.busy.contains(name) || held.contains(name)) {
                held.extend(names);
                // They are others by then.
                step.cells = None;
                self.waiting.push(step);
                continue;
            }
            let into = met.first().copied().unwrap_or_else(|| {
                rounds.push(Round::default());
                rounds.len() - 1
            });
            for from in met.into_iter().skip(1) {
                let Round { steps, cells } = std::mem::take(&mut rounds[from]);
                round_of.extend(cells.iter().map(|name| (*name, into)));
                rounds[into].steps.extend(steps);
                rounds[into].cells.extend(cells);
            }
            for name in names {
                if round_of.insert(name, into) != Some(into) {
                    rounds[into].cells.push(name);
                }
            }
            rounds[into].steps.push(step);
        }
        rounds.retain(|round| !round.steps.is_empty());
        self.busy.extend(round_of.into_keys());
        rounds
    }
}

/// A round under way; dropped, also by a panic, it frees its cells.
struct Running {
    engine: Arc<Engine>,
    cells: Vec<CellName>,
}

impl Running {
    async fn run(self, round: Round) {
        let mut steps = round.steps;
        let answers = self.engine.decide_round(&mut steps, &self.cells).await;
        let answers = answers.unwrap_or_else(|error| vec![Err(error); steps.len()]);
        for (step, answer) in steps.into_iter().zip(answers) {
            let _ = step.answer.send(answer);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut queue = self.engine.queue.lock();
        self.cells.iter().for_each(|name| {
            queue.busy.remove(name);
        });
        let rounds = queue.next_rounds();
        drop(queue);
        self.engine.start(rounds);
    }
}

impl Engine {
    /// Decides steps in their order, each with its cells as a call of the script has found them.
    pub(crate) fn by_library(
        self: &Arc<Self>,
        steps: Vec<(Prepared, Cells)>,
    ) -> Vec<impl Future<Output = StepAnswer> + use<>> {
        add(&self.common.counters.by_library, steps.len() as u64);
        let mut told = Vec::with_capacity(steps.len());
        let rounds = {
            let mut queue = self.queue.lock();
            for (prepared, cells) in steps {
                let (answer, receiver) = oneshot::channel();
                queue.waiting.push(Waiting { prepared, cells: Some(cells), answer });
                told.push(async move { receiver.await.unwrap_or_else(|_| Err(no_reply())) });
            }
            queue.next_rounds()
        };
        self.start(rounds);
        told
    }

    fn start(self: &Arc<Self>, rounds: Vec<Round>) {
        for round in rounds {
            let running = Running { engine: Arc::clone(self), cells: round.cells.clone() };
            self.common.runtime.spawn(running.run(round));
        }
    }

    /// Decides the steps of a round over the same cells, and writes them together, again while others are faster.
    async fn decide_round(
        &self,
        steps: &mut Vec<Waiting>,
        names: &[CellName],
    ) -> Result<Vec<StepAnswer>, StoreError> {
        let mut read = match &mut steps[..] {
            [alone] => alone.cells.take(),
            _ => None,
        };
        for _ in 0..ATTEMPTS {
            steps.retain(|step| !step.answer.is_closed());
            let Some(first) = steps.first() else { return Ok(Vec::new()) };
            let cells = match read.take() {
                Some(cells) => cells,
                None => {
                    // By the server's time if any step is.
                    let by_caller = steps.iter().all(|step| step.prepared.tick.is_some());
                    let tick = first.prepared.tick.filter(|_| by_caller);
                    self.read(&first.prepared, tick, names).await?
                }
            };
            let (answers, writes) = self.decide_each(steps, names, &cells);
            if writes.is_empty() {
                return Ok(answers);
            }
            match self.ask(Work::Write(writes)).await? {
                Reply::Wrote(true) => return Ok(answers),
                Reply::Wrote(false) => add(&self.common.counters.conflicts, 1),
                Reply::Steps(_) | Reply::Noted(_) => return Err(unexpected_reply()),
            }
        }
        Err(StoreError::Contended { attempts: ATTEMPTS })
    }

    async fn read(
        &self,
        like: &Prepared,
        tick: Option<Tick>,
        names: &[CellName],
    ) -> Result<Cells, StoreError> {
        let read = Prepared {
            step: Arc::clone(&like.step),
            tick,
            plan: Plan::Read,
            cells: names.into(),
            asks: SmallVec::new(),
            forms: SmallVec::new(),
        };
        let Reply::Steps(told) = self.ask(Work::Decide(vec![read])).await? else {
            return Err(unexpected_reply());
        };
        match told.into_iter().next() {
            Some(StepResult::Read(cells)) => Ok(cells),
            _ => Err(unexpected_reply()),
        }
    }

    /// Decides steps one after the other; each finds the cells as the one before leaves them. Returns the answers,
    /// which are valid once the writes are done.
    fn decide_each(
        &self,
        steps: &[Waiting],
        names: &[CellName],
        read: &Cells,
    ) -> (Vec<StepAnswer>, Vec<CellWrite>) {
        let mut left: HashMap<CellName, CellWrite> = HashMap::new();
        let found_by = |left: &HashMap<CellName, CellWrite>, name: &CellName| {
            let at = names.iter().position(|known| known == name)?;
            let (found, lost) = read.found.get(at)?;
            let found = match left.get(name) {
                Some(CellWrite { value: Some(bytes), .. }) => CellContent::Bytes(bytes.clone()),
                Some(CellWrite { value: None, .. }) => CellContent::Nothing,
                None => found.clone(),
            };
            Some((found, *lost))
        };
        let answer = |step: &Waiting| {
            let found = step.prepared.cells.iter().map(|name| found_by(&left, name)).collect::<Option<_>>();
            let found = found.ok_or_else(unexpected_reply)?;
            let now = step.prepared.tick.unwrap_or(read.now);
            let (executed, writes) = self.decide(&step.prepared, &Cells { now, found })?;
            for write in writes {
                // The first one has what the server holds.
                let CellWrite { name, value, .. } = write.clone();
                left.entry(name).or_insert(write).value = value;
            }
            Ok(executed)
        };
        let answers = steps.iter().map(answer).collect();
        (answers, left.into_values().collect())
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
