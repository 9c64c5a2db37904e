//! Runs traces: one JSON object per line in, one decision per line out, computed by the pure arithmetic of limits.
//!
//! There is no gate and no clock in between, so a trace defines what a limit does, and comparing two traces compares
//! two implementations. All policies of a file are charged or none, by the function that every store runs.
//! `docs/trace.md` describes the format, and its examples are this module's tests. An invalid line ends the run: a
//! trace with a gap proves nothing.

mod operation_line;
mod subject;

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use tidegate::limiter::{Receipt, Replace};
use tidegate::policy::{PolicySet, Source};
use tidegate::store::{self, Cell, Charge, Executed, Step};
use tidegate::{Quota, Tick};
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Finish, Outcome, Retry};

use self::operation_line::{LineIn, Op, ReplaceWord};
use self::subject::{ChargedLimit, Policies, SingleLimit, Subject};
use crate::source::MAX_LINE;
use crate::units::grouped;
use crate::unknown::{AssumedOn, UnknownNumber};

pub(crate) use subject::algorithm;

/// Why a trace ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Reading or writing failed.
    #[error("line {line}: cannot go on")]
    Io {
        /// The line, from 1.
        line: u64,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A line is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// The error.
        what: String,
    },
}

/// The counts of a finished trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceTally {
    /// Operations.
    pub lines: u64,
    /// Allows, reserves and peeks that were allowed.
    pub allowed: u64,
    /// Allows, reserves and peeks that were denied.
    pub denied: u64,
}

/// A limit, or the policies of a file, with the states of all keys of a trace.
///
/// Receipts with their `id`s are kept until they are settled, at most a million. So memory otherwise grows only with
/// the keys.
pub struct Trace<'m> {
    subject: Subject<'m>,
    shows_states: bool,
    cells: HashMap<Box<[u8]>, Cell, foldhash::fast::RandomState>,
    /// Charges that are allowed but not settled yet, by id. An id names one charge at a time.
    held: HashMap<String, OpenCharge, foldhash::fast::RandomState>,
    most_held: usize,
    line: u64,
}

/// The most charges with an `id` that may be unsettled, about 300 bytes each under one limit.
const MOST_HELD: usize = 1_000_000;

/// An allowed line that can still be settled.
struct OpenCharge {
    line: u64,
    key: String,
    lines: Vec<(ChargedLimit, Receipt)>,
}

impl std::fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("keys", &self.cells.len()).finish_non_exhaustive()
    }
}

impl<'m> Trace<'m> {
    /// Makes a trace of one limit. `make` builds it: with its own numbers, and after a `change` with the given rate and
    /// burst.
    ///
    /// # Errors
    /// If the numbers do not form a limit.
    pub fn of_limit(
        make: impl Fn(Option<&str>, Option<u64>) -> Result<Quota, String> + 'm,
    ) -> Result<Self, String> {
        Ok(Self::of(Subject::Limit(SingleLimit::new(Box::new(make))?)))
    }

    /// Makes a trace of policies: each line is charged under all their limits or none, as in the gate. The policies
    /// must match every request, since a line of a trace has no path to match.
    ///
    /// # Errors
    /// If all policies are off.
    pub fn of_policies(policies: Arc<PolicySet>) -> Result<Self, String> {
        Ok(Self::of(Subject::Policies(Policies::new(policies)?)))
    }

    fn of(subject: Subject<'m>) -> Self {
        Self {
            subject,
            shows_states: false,
            cells: HashMap::default(),
            held: HashMap::default(),
            most_held: MOST_HELD,
            line: 0,
        }
    }

    /// Also writes the whole state of each limit on every line. A sliding log has one entry per charge in its window,
    /// so the output may grow with the square of the input.
    #[must_use]
    pub fn with_states(mut self) -> Self {
        self.shows_states = true;
        self
    }

    /// Runs operations from `from` and writes their decisions to `to`.
    ///
    /// # Errors
    /// [`TraceError`] at the first line that cannot be read, is invalid or cannot be answered.
    pub fn run(&mut self, mut from: impl BufRead, mut to: impl Write) -> Result<TraceTally, TraceError> {
        let (mut tally, mut text, mut out, mut line) =
            (TraceTally::default(), String::new(), String::new(), 0);
        loop {
            text.clear();
            line += 1;
            let io = |source| TraceError::Io { line, source };
            // One byte more than a line may have tells a longer line from one of exactly that length.
            if io::Read::take(&mut from, MAX_LINE as u64 + 1).read_line(&mut text).map_err(io)? == 0 {
                to.flush().map_err(io)?;
                return Ok(tally);
            }
            if text.len() > MAX_LINE {
                let what = format!("is longer than {} KiB", MAX_LINE >> 10);
                return Err(TraceError::Line { line, what });
            }
            if text.trim().is_empty() {
                continue;
            }
            out.clear();
            let read: LineIn<'_> = serde_json::from_str(&text)
                .map_err(|error| TraceError::Line { line, what: short(&error.to_string()) })?;
            self.line = line;
            self.step(&read, &mut out, &mut tally).map_err(|what| TraceError::Line { line, what })?;
            out.push_str("}\n");
            to.write_all(out.as_bytes()).map_err(io)?;
            tally.lines += 1;
        }
    }

    fn step(&mut self, line: &LineIn<'_>, out: &mut String, tally: &mut TraceTally) -> Result<(), String> {
        line.check()?;
        match line.op {
            Op::Allow | Op::Reserve | Op::Peek => self.ask(line, out, tally),
            Op::Settle => {
                let used =
                    line.used.ok_or("op `settle` needs `used`, the units really spent; 0 undoes it")?;
                self.settle(line, used, out)
            }
            Op::Cancel => self.settle(line, 0, out),
            Op::Change => self.change(line, out),
        }
    }

    fn ask(&mut self, line: &LineIn<'_>, out: &mut String, tally: &mut TraceTally) -> Result<(), String> {
        if let Some(id) = &line.id {
            self.check_id(id)?;
        }
        let found = self.subject.find(line)?;
        operation_line::head(out, line.t, &line.key, line.op);
        let mut charged = match found {
            Ok(charged) => charged,
            Err(entry) => {
                tally.denied += 1;
                operation_line::listed(out, &entry);
                return Ok(());
            }
        };
        let max_wait = match (line.op, line.max_wait) {
            (Op::Reserve, None) => Some(Duration::MAX),
            (_, wait) => wait.map(Duration::from_nanos),
        };
        if let Some(max_wait) = max_wait {
            charged.iter_mut().for_each(|charged| charged.max_wait = max_wait);
        }
        let executed = self.take(line, &charged);
        if executed.allowed {
            tally.allowed += 1;
        } else {
            tally.denied += 1;
        }
        let lines = executed
            .lines
            .iter()
            .zip(&charged)
            .map(|(executed, charged)| (charged, Some(executed.decision.ruling)));
        self.write(out, Tick::from_nanos(line.t), Some(ruling(&executed, &charged)), lines);
        if let Some(id) = &line.id
            && executed.allowed
        {
            let receipts = executed.lines.iter().map(|line| line.receipt);
            let lines =
                charged.into_iter().zip(receipts).filter_map(|(charged, receipt)| Some((charged, receipt?)));
            let held = OpenCharge { line: self.line, key: line.key.to_string(), lines: lines.collect() };
            self.held.insert(id.to_string(), held);
        }
        Ok(())
    }

    fn check_id(&self, id: &str) -> Result<(), String> {
        if let Some(OpenCharge { line, .. }) = self.held.get(id) {
            return Err(format!(
                "the id {id:?} is that of line {line}, which is not settled yet; settle that first, or take another id"
            ));
        }
        if self.held.len() >= self.most_held {
            return Err(format!(
                "{} charges with an `id` are not settled yet, and a trace holds no more; settle or cancel some, or leave out the `id` of those \
                 that never are",
                grouped(self.most_held as u64)
            ));
        }
        Ok(())
    }

    /// Decides all limits of a line in one step, as a store does.
    fn take(&mut self, line: &LineIn<'_>, charged: &[ChargedLimit]) -> Executed {
        let now = Tick::from_nanos(line.t);
        let mut cells: Vec<Option<Cell>> = Vec::with_capacity(charged.len());
        for charged in charged {
            // Even if the first line is refused: a limit that does not start full fills from then on.
            let fresh = || Cell::new(Arc::clone(&charged.quota), charged.quota.fresh(now));
            cells.push(Some(self.cells.remove(&charged.key).unwrap_or_else(fresh)));
        }
        let op = if line.op == Op::Peek { store::Op::Peek } else { store::Op::Take };
        let charges: Vec<Charge<'_>> = charged.iter().map(ChargedLimit::charge).collect();
        let (executed, _) = store::execute(&Step::new(now, op, &charges), &mut cells);
        for (charged, cell) in charged.iter().zip(cells) {
            if let Some(cell) = cell {
                self.cells.insert(charged.key.clone(), cell);
            }
        }
        executed
    }

    fn settle(&mut self, line: &LineIn<'_>, used: u64, out: &mut String) -> Result<(), String> {
        let op = line.op.word();
        let id = line.id.as_deref().ok_or_else(|| format!("op `{op}` needs the `id` of an earlier line"))?;
        let none = || format!("no allowed line before has the id {id:?}, or it was settled");
        let Entry::Occupied(found) = self.held.entry(id.to_owned()) else { return Err(none()) };
        if !line.key.is_empty() && line.key != found.get().key {
            return Err(format!("the line with id {id:?} was for another key"));
        }
        let (held, now) = (found.remove(), Tick::from_nanos(line.t));
        for (charged, receipt) in &held.lines {
            let cell = self.cells.get_mut(&charged.key).expect("a receipt comes from a state");
            // A receipt holds numbers of the limit that it was made under. Under another limit nothing is refunded, and
            // only more is charged.
            let used = if cell.quota == charged.quota { used } else { used.max(receipt.cost.units()) };
            // A trace does not tell the outcome.
            let finish = Finish { used, outcome: Outcome::Ignored };
            cell.state = cell.quota.finish(&cell.state, now, receipt, finish);
        }
        operation_line::head(out, line.t, &held.key, line.op);
        self.write(out, now, None, held.lines.iter().map(|(charged, _)| (charged, None)));
        Ok(())
    }

    fn change(&mut self, line: &LineIn<'_>, out: &mut String) -> Result<(), String> {
        let Subject::Limit(limit) = &mut self.subject else {
            return Err("a limit from a file is not changed by a trace; spell it out with --rate".to_owned());
        };
        let (old, now) = (limit.change(line)?, Tick::from_nanos(line.t));
        let how = match line.replace {
            None | Some(ReplaceWord::AsIs) => Replace::AsIs,
            Some(ReplaceWord::Proportional) => Replace::Proportional,
            Some(ReplaceWord::Reset) => Replace::Reset,
        };
        for cell in self.cells.values_mut() {
            let state = limit.quota.carry(&old, &cell.state, now, how);
            *cell = Cell::new(Arc::clone(&limit.quota), state);
        }
        let _ = write!(out, r#"{{"t":{},"op":"change","keys":{}"#, line.t, self.cells.len());
        Ok(())
    }

    /// Writes the result of a line: one object for a single limit, a list of limits for policies.
    fn write<'a>(
        &self,
        out: &mut String,
        now: Tick,
        ruling: Option<Ruling>,
        lines: impl Iterator<Item = (&'a ChargedLimit, Option<Ruling>)>,
    ) {
        if let Some(ruling) = ruling {
            operation_line::ruling(out, ruling);
        }
        let listed = matches!(self.subject, Subject::Policies(_));
        if listed {
            out.push_str(r#","limits":["#);
        }
        for (at, (charged, ruling)) in lines.enumerate() {
            if listed {
                out.push_str(if at == 0 { "{" } else { ",{" });
                operation_line::name(out, charged);
                if let Some(ruling) = ruling {
                    operation_line::ruling(out, ruling);
                }
            }
            if let Some(cell) = self.cells.get(&charged.key) {
                // A peek or a refusal leaves a state of another tier unchanged: show it as the limit of this line would
                // carry it over.
                let state = if cell.quota == charged.quota {
                    Cow::Borrowed(&cell.state)
                } else {
                    Cow::Owned(charged.quota.carry(&cell.quota, &cell.state, now, charged.rules.replace))
                };
                operation_line::standing(out, &charged.quota.standing(&state, now));
                if self.shows_states {
                    operation_line::state(out, &charged.quota, &state);
                }
            }
            if listed {
                out.push('}');
            }
        }
        if listed {
            out.push(']');
        }
    }
}

/// The longest wait or, if any limit refuses, the refusal that lasts longest.
fn ruling(executed: &Executed, charged: &[ChargedLimit]) -> Ruling {
    if executed.allowed {
        return Ruling::Allowed { wait: executed.wait };
    }
    let refusals = executed
        .lines
        .iter()
        .zip(charged)
        .filter(|(line, charged)| charged.binding && !line.decision.is_allowed());
    let retry = refusals.map(|(line, _)| line.decision.retry()).max().unwrap_or(Retry::Unknown);
    Ruling::Denied { retry }
}

/// The parser's "at line 1" would contradict the line number of the trace.
fn short(message: &str) -> String {
    message.replace(" at line 1 column ", " at column ")
}

impl Trace<'_> {
    /// Returns the numbers that policies use, with the effect on each policy: a trace tells none of them.
    #[must_use]
    pub fn unknown_numbers(&self) -> Vec<UnknownNumber> {
        self.set().map_or_else(Vec::new, |set| UnknownNumber::of(set, why_unknown))
    }

    /// Returns the switches of the policies: nothing in a trace turns one.
    #[must_use]
    pub fn assumed_on(&self) -> Vec<AssumedOn> {
        self.set().map_or_else(Vec::new, |set| AssumedOn::of(set, why_unknown))
    }

    fn set(&self) -> Option<&PolicySet> {
        match &self.subject {
            Subject::Limit(_) => None,
            Subject::Policies(policies) => Some(&policies.set),
        }
    }
}

fn why_unknown(source: &Source) -> Option<String> {
    // What turns a switch is reported of the switch.
    let is_switch = matches!(source, Source::Switch(_));
    (!is_switch).then(|| format!("a trace does not say what `{source}` is"))
}

#[cfg(test)]
mod tests;
