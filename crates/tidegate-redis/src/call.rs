//! Encodes a call of the script, many steps over the cells of some shards, and decodes the reply.
//!
//! The input of each charge is encoded once per step (`Ask`). The script answers with the cells as they were and a letter
//! per step. The answers are computed here, by the library's [`execute`] over the same cells at the same ticks: so they
//! agree with core to the last digit, and a disagreement of the script shows at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};
use smallvec::SmallVec;
use tidegate::store::{AfterLoss, Cell, Charge, ChargeRules, DecidedBy, Step, StoreError, execute};
use tidegate_core::time::nanos;
use tidegate_core::{Quota, Tick};

use crate::cell::{
    EXACT, Form, GcraRule, Rule, longest_window, parts, put_tick, spent, tick, write as write_cell,
};
use crate::sweep::Full;
use crate::work::{CellContent, CellName, CellWrite, Cells, Note, Plan, Prepared, StepResult};

/// The most cells of a call: they are numbered by one byte, and the server is busy for less than a millisecond.
pub(crate) const MOST_CELLS: usize = 250;

#[derive(Debug)]
pub(crate) struct Names {
    hashes: Vec<Box<str>>,
    used: Box<str>,
    nodes: Box<str>,
    form: Box<str>,
}

impl Names {
    /// Makes the names. The number in them is the version of the layout: different layouts never share keys.
    pub(crate) fn new(namespace: &str, shards: u32) -> Self {
        let name = |shard| format!("tg:1:{{{namespace}:{shard}}}:h").into_boxed_str();
        let used = format!("tg:1:{{{namespace}:0}}:used").into_boxed_str();
        let nodes = format!("tg:1:{{{namespace}:0}}:nodes").into_boxed_str();
        let form = format!("shards={shards}").into_boxed_str();
        Self { hashes: (0..shards).map(name).collect(), used, nodes, form }
    }

    pub(crate) fn hash(&self, shard: u32) -> &str {
        self.hashes.get(shard as usize).map_or("", |name| name)
    }

    /// The key that marks the namespace as used, and holds its number of shards; in the slot of the first shard.
    pub(crate) fn used(&self) -> &str {
        &self.used
    }

    /// The hash of the nodes' reports, in the same slot.
    pub(crate) fn nodes(&self) -> &str {
        &self.nodes
    }

    /// The value of the key that marks the namespace as used.
    pub(crate) fn form(&self) -> &str {
        &self.form
    }

    pub(crate) fn shards(&self) -> u32 {
        // Made from a `u32`.
        self.hashes.len() as u32
    }
}

/// The cells of a call, sorted: those of a shard are adjacent, and a cell's number is its index.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    cells: Vec<CellName>,
    shards: Vec<(u32, u8)>,
    usual: Option<UsualBatch>,
}

/// A call whose steps each spend of one GCRA limit, by the server's time.
#[derive(Debug)]
struct UsualBatch {
    /// The length of each cell.
    lengths: Vec<usize>,
    /// The numbers of the steps, in the order of their cells.
    order: Vec<usize>,
}

impl Layout {
    fn of(mut cells: Vec<CellName>) -> Self {
        cells.sort_unstable();
        cells.dedup();
        let mut shards: Vec<(u32, u8)> = Vec::new();
        for cell in &cells {
            match shards.last_mut() {
                Some((shard, many)) if *shard == cell.shard => *many += 1,
                _ => shards.push((cell.shard, 1)),
            }
        }
        Self { cells, shards, usual: None }
    }

    fn usual_batch(&self, steps: &[&Prepared]) -> Option<UsualBatch> {
        let mut forms: Vec<Option<&Form>> = vec![None; self.cells.len()];
        let mut places = Vec::with_capacity(steps.len());
        for step in steps {
            let ([name], [ask], [(form, _)]) = (&step.cells[..], &step.asks[..], &step.forms[..]) else {
                return None;
            };
            if step.plan != Plan::Take || step.tick.is_some() || !is_gcra_but_no_draw(ask) {
                return None;
            }
            let place = self.place(name);
            // Under a changed limit, a key has two forms.
            if forms[place].get_or_insert(form).prefix != form.prefix {
                return None;
            }
            places.push(place);
        }
        let lengths = forms.into_iter().map(|form| form.map_or(0, |form| form.prefix.len() + GCRA_BYTES));
        let mut order: Vec<usize> = (0..steps.len()).collect();
        // Stable: steps over one cell stay in their order.
        order.sort_by_key(|step| places[*step]);
        (steps.len() > 1).then(|| UsualBatch { lengths: lengths.collect(), order })
    }

    fn place(&self, name: &CellName) -> usize {
        self.cells.binary_search(name).unwrap_or_default()
    }

    fn shard(&self, name: &CellName) -> usize {
        self.shards.binary_search_by_key(&name.shard, |(shard, _)| *shard).unwrap_or_default()
    }

    /// Splits the cells of a usual batch.
    fn split(&self, mut text: &[u8]) -> Option<Vec<CellContent>> {
        let mut cells = Vec::with_capacity(self.cells.len());
        for length in &self.usual.as_ref()?.lengths {
            let (cell, rest) = match text.strip_prefix(b"-") {
                Some(rest) => (CellContent::Nothing, rest),
                None => {
                    let (cell, rest) = text.split_at_checked(*length)?;
                    (CellContent::Bytes(cell.to_vec()), rest)
                }
            };
            cells.push(cell);
            text = rest;
        }
        text.is_empty().then_some(cells)
    }

    /// Returns the letters of a usual batch, of whose steps these were refused.
    fn letters(&self, refused: &[u8]) -> Option<Vec<u8>> {
        let mut letters = vec![b'y'; self.usual.as_ref()?.order.len()];
        for number in refused {
            *letters.get_mut(usize::from(*number).checked_sub(1)?)? = b'n';
        }
        Some(letters)
    }

    /// Returns the letters in the order of the steps.
    fn by_step(&self, letters: Vec<u8>) -> Vec<u8> {
        let Some(UsualBatch { order, .. }) = &self.usual else { return letters };
        let mut by_step = letters.clone();
        for (step, letter) in order.iter().zip(letters) {
            by_step[*step] = letter;
        }
        by_step
    }

    fn put_keys(&self, command: &mut Cmd, names: &Names) {
        command.arg(self.shards.len());
        for (shard, _) in &self.shards {
            command.arg(names.hash(*shard));
        }
    }

    fn counts(&self) -> Vec<u8> {
        self.shards.iter().map(|(_, many)| *many).collect()
    }
}

pub(crate) fn decide(
    steps: &[&Prepared],
    script: &str,
    names: &Names,
    run: &[u8],
    latest: Tick,
    by_callers: bool,
) -> (Cmd, Layout) {
    let mut layout = Layout::of(steps.iter().flat_map(|step| step.cells.iter().copied()).collect());
    layout.usual = layout.usual_batch(steps);
    let ordered = layout.usual.as_ref().map(|usual| usual.order.iter().map(|step| steps[*step]).collect());
    let steps: Vec<&Prepared> = ordered.unwrap_or_else(|| steps.to_vec());
    let (mut asks, mut plan, mut ticks) = (Vec::new(), Vec::new(), Vec::new());
    let mut numbers: HashMap<&Ask, u8> = HashMap::new();
    for step in steps {
        let op = match step.plan {
            Plan::Take => 1,
            Plan::Peek => 2,
            Plan::Read => 3,
        };
        if layout.usual.is_none() {
            // A step has at most as many charges as a call has cells.
            plan.extend([op, step.cells.len() as u8]);
        }
        for (at, name) in step.cells.iter().enumerate() {
            let number = step.asks.get(at).map_or(0, |ask| {
                // At most one per cell.
                let next = numbers.len() as u8 + 1;
                *numbers.entry(ask).or_insert_with(|| {
                    asks.extend_from_slice(ask);
                    next
                })
            });
            plan.extend([layout.place(name) as u8 + 1, number]);
        }
        if let Some(tick) = step.tick {
            // The script then only reads, and the library decides.
            put_tick(&mut ticks, tick).unwrap_or_else(|| ticks.extend([0; 8]));
        }
    }
    let mut head = Vec::with_capacity(9);
    put_tick(&mut head, latest).unwrap_or_else(|| head.extend([0; 8]));
    head.push(u8::from(by_callers));
    let mut command = Cmd::with_capacity(16 + layout.cells.len(), 128 + 32 * layout.cells.len());
    command.arg("EVALSHA").arg(script);
    layout.put_keys(&mut command, names);
    // The epoch that `Note::Begin` writes: no tick of a loss.
    let never_lost = if run.is_empty() { Vec::new() } else { [run, &[0; 8]].concat() };
    command.arg(if layout.usual.is_some() { "b" } else { "d" });
    command.arg(never_lost).arg(head).arg(layout.counts()).arg(asks).arg(plan);
    if layout.usual.is_some() {
        let fields: Vec<u8> = layout.cells.iter().flat_map(|cell| cell.field).collect();
        command.arg(fields);
        return (command, layout);
    }
    command.arg(ticks);
    for cell in &layout.cells {
        command.arg(&cell.field[..]);
    }
    (command, layout)
}

pub(crate) fn write(writes: &[CellWrite], script: &str, names: &Names, run: &[u8]) -> Cmd {
    let layout = Layout::of(writes.iter().map(|write| write.name).collect());
    let mut sorted: Vec<&CellWrite> = writes.iter().collect();
    sorted.sort_unstable_by_key(|write| write.name);
    let mut command = Cmd::new();
    command.arg("EVALSHA").arg(script);
    layout.put_keys(&mut command, names);
    command.arg("w").arg(run).arg(layout.counts());
    for write in sorted {
        let found: &[u8] = match &write.found {
            CellContent::Nothing => b"",
            CellContent::Bytes(bytes) => bytes,
            CellContent::NoHash => b"!",
        };
        command.arg(&write.name.field[..]).arg(found).arg(write.value.as_deref().unwrap_or_default());
    }
    command
}

/// Encodes a call that deletes full cells of a shard, except for those that were used meanwhile.
pub(crate) fn delete(shard: u32, full: &[Full], script: &str, names: &Names, run: &[u8]) -> Cmd {
    let mut command = Cmd::with_capacity(6 + 2 * full.len(), 128 + 48 * full.len());
    command.arg("EVALSHA").arg(script).arg(1).arg(names.hash(shard)).arg("s").arg(run);
    for one in full {
        command.arg(&one.field[..]);
    }
    for one in full {
        command.arg(&one.bytes[..]);
    }
    command
}

/// Encodes a call that writes the report of a node, or removes it if it is empty, and returns those of all nodes.
pub(crate) fn report(node: &str, report: &str, script: &str, names: &Names) -> Cmd {
    let mut command = Cmd::new();
    command.arg("EVALSHA").arg(script).arg(1).arg(names.nodes()).arg("n").arg(node).arg(report);
    command
}

/// Encodes a note into a command. `IsUsed` and `Used` return the previous value, `Epoch` the current one.
pub(crate) fn note(note: Note, names: &Names, run: &[u8]) -> Cmd {
    let mut command = Cmd::new();
    match note {
        Note::IsUsed => command.arg("GET").arg(names.used()),
        Note::Used => command.arg("SET").arg(names.used()).arg(names.form()).arg("NX").arg("GET"),
        Note::Epoch { shard } => command.arg("HGET").arg(names.hash(shard)).arg("e"),
        // The run, and no tick of a loss.
        Note::Begin { shard } => {
            command.arg("HSETNX").arg(names.hash(shard)).arg("e").arg([run, &[0; 8]].concat())
        }
    };
    command
}

/// The bytes of a GCRA cell after its prefix.
const GCRA_BYTES: usize = 15;

/// The values of the reply to a usual batch; every other reply has more.
const USUAL_REPLY: usize = 4;

/// Decodes a reply: the result of each step, and the script's time. `None` if the reply is malformed.
pub(crate) fn decode_reply(
    steps: &[&Prepared],
    layout: &Layout,
    reply: Value,
) -> Option<(Vec<StepResult>, Tick)> {
    let Value::Array(mut values) = reply else { return None };
    let cells = layout.cells.len();
    let (found, letters, lost, now);
    if values.len() == USUAL_REPLY {
        let mut values = values.into_iter();
        found = layout.split(&bytes(values.next()?)?)?;
        now = time(&values.next()?, &values.next()?)?;
        letters = layout.letters(&bytes(values.next()?)?)?;
        lost = Vec::new();
    } else {
        let mut tail = values.split_off(Some(cells).filter(|cells| *cells + 4 == values.len())?).into_iter();
        now = time(&tail.next()?, &tail.next()?)?;
        (letters, lost) = (bytes(tail.next()?)?, bytes(tail.next()?)?);
        found = values.into_iter().map(self::found).collect::<Option<Vec<CellContent>>>()?;
    }
    if letters.len() != steps.len() {
        return None;
    }
    let letters = layout.by_step(letters);
    let mut replay = Replay { layout, found, lost, cells: vec![None; cells] };
    let each = steps.iter().zip(letters).map(|(step, letter)| replay.step_result(step, letter, now));
    Some((each.collect(), now))
}

/// Returns the latest loss in the shards of a reply; the epoch if there was none.
pub(crate) fn last_loss(layout: &Layout, reply: &Value) -> Tick {
    match reply {
        Value::Array(values) if values.len() == layout.cells.len() + 4 => match values.last() {
            Some(Value::BulkString(lost)) => lost.chunks(8).filter_map(|mut at| tick(&mut at).ok()).max(),
            _ => None,
        },
        _ => None,
    }
    .unwrap_or(Tick::EPOCH)
}

pub(crate) fn tells_of_loss(epoch: &[u8]) -> bool {
    epoch.get(16..).is_some_and(|mut at| tick(&mut at).is_ok_and(|lost| lost > Tick::EPOCH))
}

struct Replay<'l> {
    layout: &'l Layout,
    found: Vec<CellContent>,
    /// The tick of the last loss of each shard; empty if losses are not watched.
    lost: Vec<u8>,
    /// The cells that earlier steps of the call have left; `None` for cells that no earlier step has.
    cells: Vec<Option<Option<Cell>>>,
}

impl Replay<'_> {
    fn step_result(&mut self, step: &Prepared, letter: u8, now: Tick) -> StepResult {
        let now = step.tick.unwrap_or(now);
        let places: SmallVec<[usize; 4]> = step.cells.iter().map(|name| self.layout.place(name)).collect();
        if letter == b'c' {
            let found = places.iter().zip(&step.cells);
            let found = found.map(|(place, name)| (self.found_by(*place), self.lost(name))).collect();
            return StepResult::Read(Cells { now, found });
        }
        let mut cells: SmallVec<[Option<Cell>; 4]> = SmallVec::new();
        for (place, (form, quota)) in places.iter().zip(&step.forms) {
            cells.push(match (self.cells[*place].take(), &self.found[*place]) {
                (Some(left), _) => left,
                // The script decides only cells of the charge's own quota.
                (None, CellContent::Bytes(bytes)) => {
                    let state = form.state(bytes.get(form.prefix.len()..).unwrap_or_default());
                    state.ok().map(|state| Cell::new(Arc::clone(quota), state))
                }
                (None, _) => None,
            });
        }
        let (mut executed, _) = step.step.with(|step| execute(&Step { now, ..*step }, &mut cells));
        for (place, cell) in places.into_iter().zip(cells) {
            self.cells[place] = Some(cell);
        }
        executed.by = DecidedBy::Engine;
        if executed.allowed == (letter == b'y') {
            return StepResult::Decided(Ok(executed));
        }
        let reason =
            "the script and the library disagree about a decision, which is a mistake in one of them";
        StepResult::Decided(Err(StoreError::Unavailable { reason: reason.to_owned() }))
    }

    /// Returns the cell that the next step finds. Script and library write it alike.
    fn found_by(&self, place: usize) -> CellContent {
        match &self.cells[place] {
            Some(Some(left)) => CellContent::Bytes(write_cell(left, Tick::EPOCH)),
            Some(None) | None => self.found[place].clone(),
        }
    }

    fn lost(&self, name: &CellName) -> Tick {
        let at = self.layout.shard(name) * 8;
        self.lost.get(at..at + 8).and_then(|mut bytes| tick(&mut bytes).ok()).unwrap_or(Tick::EPOCH)
    }
}

fn found(value: Value) -> Option<CellContent> {
    match value {
        Value::Nil => Some(CellContent::Nothing),
        Value::BulkString(bytes) => Some(CellContent::Bytes(bytes)),
        // The script's reply for a key that is not a hash.
        Value::Int(_) => Some(CellContent::NoHash),
        _ => None,
    }
}

fn time(seconds: &Value, nanos: &Value) -> Option<Tick> {
    Some(Tick::from_secs(whole(seconds)?).after(Duration::from_nanos(whole(nanos)?)))
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// The numbers of one charge, in the order in which the script's `ask` reads them. Charges with equal input share one.
pub(crate) type Ask = SmallVec<[u8; 96]>;

/// The most quotas whose forms are cached: policies have far fewer.
const MOST_FORMS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Forms {
    /// The quota is kept alive with its form, so that no other is allocated at its address.
    known: Mutex<HashMap<usize, KnownForm>>,
}

type KnownForm = (Arc<Quota>, Option<Arc<Form>>);

impl Forms {
    pub(crate) fn of(&self, charge: &Charge<'_>) -> Option<Arc<Form>> {
        if charge.inline_quota {
            return Form::of(charge.quota).map(Arc::new);
        }
        let address = Arc::as_ptr(charge.quota) as usize;
        let mut known = self.known.lock();
        if let Some((_, form)) = known.get(&address) {
            return form.clone();
        }
        let form = Form::of(charge.quota).map(Arc::new);
        if known.len() >= MOST_FORMS {
            known.clear();
        }
        known.insert(address, (Arc::clone(charge.quota), form.clone()));
        form
    }
}

impl Form {
    /// Encodes a charge; `None` if a number does not fit, and the library has to decide.
    pub(crate) fn ask(
        &self,
        charge: &Charge<'_>,
        spends: Spends,
        after_loss: AfterLoss,
        now: Tick,
    ) -> Option<Ask> {
        // Names every rule: a new one does not compile until it is said what the script does with it. It has no use
        // for these: it decides only cells of the charge's own quota, which take over nothing.
        let ChargeRules { owner: _, replace: _, on_error: _, durable: _, settled: _ } = charge.rules;
        let max_wait = nanos(charge.max_wait);
        let mut out = Ask::new();
        match &self.rule {
            Rule::Gcra(rule) => {
                let most = rule.full().checked_add(rule.passes_in(max_wait)?).filter(|most| *most < EXACT)?;
                let units = Units::of(charge, spends, rule.limit.burst());
                let (need, add) = units.times(rule.unit);
                out.extend_from_slice(&[1, units.flags(charge)]);
                doubles(&mut out, &[need, add, most, horizon(rule, after_loss)]);
                self.put_prefix(&mut out);
                units.put_draw(&mut out, rule.unit);
                doubles(&mut out, &[rule.grain, rule.rate]);
            }
            Rule::Window { limit, calendar } => {
                let most = limit.limit();
                let wait = Some(max_wait).filter(|wait| *wait < EXACT)?;
                let units = Units::of(charge, spends, most);
                let (need, add) = units.times(1);
                let watched = if after_loss == AfterLoss::Full { 0 } else { longest_window(limit) };
                out.extend_from_slice(&[if *calendar { 3 } else { 2 }, units.flags(charge)]);
                doubles(&mut out, &[need, add, most, watched.min(EXACT - 1)]);
                self.put_prefix(&mut out);
                units.put_draw(&mut out, 1);
                doubles(&mut out, &[wait]);
                if *calendar {
                    let (first, last) = limit.window_at(now);
                    for (seconds, rest) in [parts(first)?, parts(last)?] {
                        out.extend_from_slice(&seconds.to_le_bytes());
                        out.extend_from_slice(&rest.to_le_bytes());
                    }
                } else {
                    // A window's last tick is one nanosecond before the next window begins.
                    let span = nanos(limit.period()) - 1;
                    doubles(&mut out, &[span / 1_000_000_000, span % 1_000_000_000]);
                }
            }
        }
        Some(out)
    }

    fn put_prefix(&self, out: &mut Ask) {
        // At most 242 bytes, see `Form::of`.
        out.push(self.prefix.len() as u8);
        out.extend_from_slice(&self.prefix);
    }
}

fn is_gcra_but_no_draw(ask: &Ask) -> bool {
    matches!(ask[..], [1, 0 | 1, ..])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spends {
    All,
    /// As much of its cost as fits, at least one unit.
    WhatFits,
}

#[derive(Clone, Copy)]
struct Units {
    /// The cost; for a draw, at most what can ever fit. Zero if it can never fit.
    cost: u64,
    kept_back: u64,
    draws: bool,
}

impl Units {
    fn of(charge: &Charge<'_>, spends: Spends, most: u64) -> Self {
        let fits = most.saturating_sub(charge.kept_back);
        let cost = match (charge.cost.units(), spends) {
            (cost, Spends::All) if cost > fits => 0,
            (cost, _) => cost.min(fits),
        };
        // Costs that can never fit are all encoded the same way.
        Self { cost, kept_back: charge.kept_back.min(most), draws: cost > 0 && spends == Spends::WhatFits }
    }

    /// Returns what must fit, and what is then spent, both times `unit`. A cost that can never fit becomes 2^53, which
    /// is above the script's `most`.
    fn times(self, unit: u64) -> (u64, u64) {
        if self.cost == 0 {
            return (EXACT, EXACT);
        }
        ((self.cost + self.kept_back) * unit, self.cost * unit)
    }

    fn flags(self, charge: &Charge<'_>) -> u8 {
        u8::from(charge.binding) | u8::from(self.draws) << 1
    }

    fn put_draw(self, out: &mut Ask, unit: u64) {
        if self.draws {
            doubles(out, &[unit, self.kept_back]);
        }
    }
}

/// Returns for how many ticks after a loss a cell may be fuller than it should be.
fn horizon(rule: &GcraRule, after_loss: AfterLoss) -> u64 {
    let spent = spent(after_loss, rule.limit.burst()) * rule.unit;
    if spent == 0 { 0 } else { (spent.div_ceil(rule.rate) + 1).min(EXACT - 1) }
}

fn doubles(out: &mut Ask, numbers: &[u64]) {
    for number in numbers {
        // Exact, because none is above 2^53.
        out.extend_from_slice(&(*number as f64).to_le_bytes());
    }
}
