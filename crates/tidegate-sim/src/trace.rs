//! Traces: one JSON object per line in, one decision per line out, straight through the pure arithmetic.
//!
//! No gate and no clock is in the way, so a trace says what a limit is, and comparing two traces compares two
//! implementations. The format is described in `docs/trace.md`, whose examples are this module's tests. A line that cannot be
//! understood ends the run: a trace with a gap proves nothing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use serde::Deserialize;
use tidegate::{Ask, Cost, Quota, Receipt, Replace, Standing, Tick};
use tidegate_core::{Algorithm, Retry, State, Transition};

use crate::source::MAX_LINE;

/// Why a trace ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Reading or writing failed.
    #[error("line {line}: cannot go on")]
    Io {
        /// The line, from 1.
        line: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A line that is not understood.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

/// What a line asks for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Op {
    #[default]
    Allow,
    Reserve,
    Peek,
    Refund,
    Cancel,
    Change,
}

impl Op {
    const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Reserve => "reserve",
            Self::Peek => "peek",
            Self::Refund => "refund",
            Self::Cancel => "cancel",
            Self::Change => "change",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ReplaceWord {
    AsIs,
    Proportional,
    Reset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineIn<'a> {
    t: u64,
    #[serde(borrow, default)]
    key: Cow<'a, str>,
    cost: Option<u64>,
    #[serde(default)]
    op: Op,
    max_wait: Option<u64>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    rate: Option<Cow<'a, str>>,
    burst: Option<u64>,
    replace: Option<ReplaceWord>,
}

/// What a finished trace did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceTally {
    /// Operations.
    pub lines: u64,
    /// Allows, reserves and peeks that were allowed.
    pub allowed: u64,
    /// Those that were denied.
    pub denied: u64,
}

/// A limit that traces are run through, with the states of its keys.
///
/// States are kept for every key of the trace, receipts for every line with an `id`: memory grows with both.
pub struct Trace<F> {
    /// What changes said so far: the rate and the burst.
    changed: (Option<String>, Option<u64>),
    make: F,
    quota: Quota,
    algorithm: String,
    states: HashMap<String, State, foldhash::fast::RandomState>,
    receipts: HashMap<String, (String, Receipt), foldhash::fast::RandomState>,
}

impl<F> std::fmt::Debug for Trace<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace")
            .field("quota", &self.quota)
            .field("keys", &self.states.len())
            .finish_non_exhaustive()
    }
}

impl<F: Fn(Option<&str>, Option<u64>) -> Result<Quota, String>> Trace<F> {
    /// Makes a trace of a limit. `make` makes it, at first with its own numbers, after a `change` with the rate (as written)
    /// and the burst that the trace says.
    ///
    /// # Errors
    /// What `make` says when the numbers are no limit.
    pub fn new(make: F) -> Result<Self, String> {
        let quota = make(None, None)?;
        let algorithm = algorithm(&quota);
        Ok(Self {
            changed: (None, None),
            make,
            quota,
            algorithm,
            states: HashMap::default(),
            receipts: HashMap::default(),
        })
    }

    /// Runs operations from `from` and writes their decisions to `to`.
    ///
    /// # Errors
    /// [`TraceError`] at the first line that cannot be read, understood or answered. What was written before stands.
    pub fn run(&mut self, mut from: impl BufRead, mut to: impl Write) -> Result<TraceTally, TraceError> {
        let (mut tally, mut text, mut out, mut line) =
            (TraceTally::default(), String::new(), String::new(), 0);
        loop {
            text.clear();
            line += 1;
            let io = |source| TraceError::Io { line, source };
            // One byte more than a line may have, so that a line of just that length is told from a longer one.
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
            self.step(&read, &mut out, &mut tally).map_err(|what| TraceError::Line { line, what })?;
            out.push('\n');
            to.write_all(out.as_bytes()).map_err(io)?;
            tally.lines += 1;
        }
    }

    fn step(&mut self, line: &LineIn<'_>, out: &mut String, tally: &mut TraceTally) -> Result<(), String> {
        let now = Tick::from_nanos(line.t);
        let has = |name: &str, there: bool, ops: &[Op]| {
            let refused = there && !ops.contains(&line.op);
            if refused { Err(format!("`{name}` means nothing to op `{}`", line.op.word())) } else { Ok(()) }
        };
        has("max_wait", line.max_wait.is_some(), &[Op::Reserve, Op::Peek])?;
        has("rate", line.rate.is_some(), &[Op::Change])?;
        has("burst", line.burst.is_some(), &[Op::Change])?;
        has("replace", line.replace.is_some(), &[Op::Change])?;
        has("cost", line.cost.is_some(), &[Op::Allow, Op::Reserve, Op::Peek, Op::Refund])?;
        has("id", line.id.is_some(), &[Op::Allow, Op::Reserve, Op::Cancel])?;
        let cost =
            Cost::new(line.cost.unwrap_or(1)).ok_or("cost 0 asks for nothing; use op `peek` to look")?;
        match line.op {
            Op::Change => return self.change(line, now, out),
            Op::Cancel => return self.cancel(line, now, out),
            _ => {}
        }
        if !self.states.contains_key(&*line.key) {
            self.states.insert(line.key.to_string(), self.quota.fresh(now));
        }
        let state = self.states.get_mut(&*line.key).expect("there, or put there just now");
        if line.op == Op::Refund {
            *state = self.quota.refund(state, now, cost);
            let answer = (None, self.quota.standing(state, now));
            write(out, now, &line.key, line.op, answer, &self.algorithm, state);
            return Ok(());
        }
        let max_wait = match (line.op, line.max_wait) {
            (Op::Reserve, None) => Duration::MAX,
            (_, wait) => Duration::from_nanos(wait.unwrap_or(0)),
        };
        let answer = match self.quota.decide(state, Ask::within(now, cost, max_wait)) {
            Transition::Allowed { wait, next, receipt } => {
                tally.allowed += 1;
                if line.op != Op::Peek {
                    *state = next;
                    if let Some(id) = &line.id {
                        self.receipts.insert(id.to_string(), (line.key.to_string(), receipt));
                    }
                }
                Ok(wait)
            }
            Transition::Denied { retry } => {
                tally.denied += 1;
                Err(retry)
            }
        };
        let answer = (Some(answer), self.quota.standing(state, now));
        write(out, now, &line.key, line.op, answer, &self.algorithm, state);
        Ok(())
    }

    fn cancel(&mut self, line: &LineIn<'_>, now: Tick, out: &mut String) -> Result<(), String> {
        let id = line.id.as_deref().ok_or("op `cancel` needs the `id` of an earlier line")?;
        let found = self.receipts.remove(id);
        let (key, receipt) =
            found.ok_or_else(|| format!("no allowed line before has the id {id:?}, or it was cancelled"))?;
        if !line.key.is_empty() && line.key != key {
            return Err(format!("the line with id {id:?} was for another key"));
        }
        let state = self.states.get_mut(&key).expect("a receipt comes from a state");
        *state = self.quota.cancel(state, now, &receipt);
        write(out, now, &key, line.op, (None, self.quota.standing(state, now)), &self.algorithm, state);
        Ok(())
    }

    fn change(&mut self, line: &LineIn<'_>, now: Tick, out: &mut String) -> Result<(), String> {
        if line.rate.is_none() && line.burst.is_none() {
            return Err("op `change` needs a `rate`, a `burst` or both".to_owned());
        }
        let rate = line.rate.as_deref().map(str::to_owned).or_else(|| self.changed.0.clone());
        let burst = line.burst.or(self.changed.1);
        let quota = (self.make)(rate.as_deref(), burst)?;
        let how = match line.replace {
            None | Some(ReplaceWord::AsIs) => Replace::AsIs,
            Some(ReplaceWord::Proportional) => Replace::Proportional,
            Some(ReplaceWord::Reset) => Replace::Reset,
        };
        for state in self.states.values_mut() {
            *state = quota.carry(&self.quota, state, now, how);
        }
        (self.quota, self.changed) = (quota, (rate, burst));
        let _ = write!(out, r#"{{"t":{},"op":"change","keys":{}}}"#, line.t, self.states.len());
        Ok(())
    }
}

/// Returns the name of a limit's algorithm as policies write it: `gcra`, `sliding-window`.
#[must_use]
pub fn algorithm(quota: &Quota) -> String {
    // Each variant of `Quota` has the name of its algorithm, and a list of them here would fall behind.
    let shown = format!("{quota:?}");
    let mut name = String::new();
    for char in shown.chars().take_while(char::is_ascii_alphanumeric) {
        if char.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(char.to_ascii_lowercase());
    }
    name
}

type Answer = (Option<Result<Duration, Retry>>, Standing);

/// Writes one decision. Spans are nanoseconds; `retry_after` is null when no wait helps.
fn write(out: &mut String, now: Tick, key: &str, op: Op, answer: Answer, algorithm: &str, state: &State) {
    let (verdict, standing) = answer;
    let key = serde_json::to_string(key).unwrap_or_default();
    let key = tidegate::visible::json(&key);
    let _ = write!(out, r#"{{"t":{},"key":{key},"op":"{}""#, now.as_nanos(), op.word());
    match verdict {
        None => {}
        Some(Ok(wait)) => {
            let _ = write!(out, r#","allowed":true,"wait":{},"retry_after":0"#, wait.as_nanos());
        }
        Some(Err(retry)) => {
            out.push_str(r#","allowed":false,"wait":0,"retry_after":"#);
            match retry.after() {
                Some(wait) => out.push_str(&wait.as_nanos().to_string()),
                None => out.push_str("null"),
            }
        }
    }
    let _ = write!(
        out,
        r#","remaining":{},"reset_after":{},"state":{{"algorithm":"{algorithm}","bytes":""#,
        standing.remaining,
        standing.reset_after.as_nanos()
    );
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for byte in state.encode() {
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
    }
    out.push_str("\"}}");
}

/// The parser's "at line 1" would contradict the line of the trace.
fn short(message: &str) -> String {
    message.replace(" at line 1 column ", " at column ")
}

#[cfg(test)]
mod tests {
    use tidegate::policy::{GrammarError, WrittenRate};

    use super::*;

    fn run(input: &str) -> (String, Result<TraceTally, String>) {
        let mut trace = Trace::new(|rate, burst| {
            let rate: WrittenRate =
                rate.unwrap_or("10/s").parse().map_err(|error: GrammarError| error.to_string())?;
            let WrittenRate::Per { count, .. } = rate else {
                return Err("a trace has no `unlimited`".to_owned());
            };
            let builder = Quota::per(count, rate.period().unwrap()).burst(burst.unwrap_or(5));
            builder.gcra().map_err(|error| error.to_string())
        })
        .unwrap();
        let mut out = Vec::new();
        let result = trace.run(input.as_bytes(), &mut out).map_err(|error| error.to_string());
        (String::from_utf8(out).unwrap(), result)
    }

    /// The blocks of `docs/trace.md`: what goes in, and what comes out.
    #[test]
    fn the_examples_of_the_manual_are_true() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/trace.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let blocks: Vec<&str> = manual.split("```").skip(1).step_by(2).collect();
        let block = |name: &str| {
            blocks
                .iter()
                .filter_map(move |block| block.strip_prefix(name))
                .map(str::trim_start)
                .collect::<Vec<_>>()
        };
        let (ins, outs) = (block("jsonl in"), block("jsonl out"));
        assert!(!ins.is_empty() && ins.len() == outs.len());
        for (input, want) in ins.into_iter().zip(outs) {
            let (out, result) = run(input);
            result.unwrap();
            assert_eq!(shortened(&out), want);
        }
    }

    /// The bytes of a state are core's to change; the manual shows their head only.
    fn shortened(out: &str) -> String {
        let mut parts = out.split("\"bytes\":\"");
        let head = parts.next().unwrap_or("").to_owned();
        parts.fold(head, |text, part| {
            let (bytes, rest) = part.split_once('"').unwrap();
            format!("{text}\"bytes\":\"{}…\"{rest}", &bytes[..4])
        })
    }

    #[test]
    fn mistakes_name_their_line() {
        let rows = [
            (r#"{"t":0,"key":"a","cost":0}"#, "line 1: cost 0 asks for nothing; use op `peek` to look"),
            (r#"{"key":"a"}"#, "line 1: missing field `t` at column 11"),
            ("\n\n{", "line 3: EOF while parsing an object at column 1"),
            (
                r#"{"t":0,"op":"alow"}"#,
                "line 1: unknown variant `alow`, expected one of `allow`, `reserve`, `peek`, `refund`, `cancel`, `change` at column 18",
            ),
            (
                r#"{"t":0,"op":"cancel","id":"x"}"#,
                "line 1: no allowed line before has the id \"x\", or it was cancelled",
            ),
            (r#"{"t":0,"op":"change"}"#, "line 1: op `change` needs a `rate`, a `burst` or both"),
            (
                r#"{"t":0,"op":"change","rate":"5/m"}"#,
                "line 1: \"m\" could be minute or month; write min or month",
            ),
            (r#"{"t":0,"op":"allow","max_wait":5}"#, "line 1: `max_wait` means nothing to op `allow`"),
        ];
        for (input, want) in rows {
            assert_eq!(run(input).1.unwrap_err(), want, "{input}");
        }
    }

    #[test]
    fn algorithms_have_the_names_that_policies_write() {
        assert_eq!(algorithm(&Quota::per_second(1).gcra().unwrap()), "gcra");
        assert_eq!(algorithm(&Quota::per_second(1).sliding_log().unwrap()), "sliding-log");
    }
}
