//! Runs random histories of steps on a store and on a plain map.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Finish, Outcome, Quota, Receipt, Replace, Tick};

use super::super::step::{Charge, ChargeRules, Ending, Executed, Op, Step, StepClock};
use super::{Subject, execute};
use crate::block_on::block_on;
use crate::clock::{Clock as _, ManualClock};

const MOST_OPEN: usize = 64;

const MOST_AT_ONCE: u64 = 6;

const KEYS: [&str; 13] =
    ["", "i", "j", "a", "b", "c", "d", "e", "f", "g", "h", "a longer key, as paths are", "\u{1F30A}"];

const TAG: u64 = 0xACE0_FACE;

/// A small generator (xorshift64*): random traces need reproducible numbers, not high-quality ones.
///
/// # Source
/// S. Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts a stream of numbers; different seeds start different streams, 0 included.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next number below `bound`; always 0 for a bound of 0 or 1.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16;
        if bound == 0 { 0 } else { number % bound }
    }
}

pub(super) fn one_by_one(subject: &mut Subject<'_>, quotas: &[Arc<Quota>], seed: u64, steps: u64) {
    // The first seed uses the caller's clock alone, as for a store without another clock.
    let mut history = History::new(quotas, seed, subject.store.caps().one_tag, seed > 1);
    for number in 0..steps {
        let asked = history.next(subject);
        let charges = asked.charges(quotas);
        let fresh = history.fresh.clone();
        let step = asked.step(&charges, &fresh);
        let theirs =
            subject.judge(&step, execute(subject.store, &step), &format!("seed {seed}, step {number}"));
        if let Ok(executed) = theirs {
            history.keep(&asked, &executed);
        }
    }
}

/// Executes the steps in batches, in some of which steps name the same keys; the answers must be those of the steps one
/// by one.
pub(super) fn many_at_once(subject: &mut Subject<'_>, quotas: &[Arc<Quota>], seed: u64, steps: u64) {
    let mut history = History::new(quotas, seed, subject.store.caps().one_tag, true);
    let mut number = 0;
    while number < steps {
        let many = 1 + history.random.below(MOST_AT_ONCE);
        let mut asked: Vec<StepParts> = (0..many).map(|_| history.next(subject)).collect();
        let repeats = history.random.below(16) == 0;
        if repeats {
            // It is not specified whether a refused step moves the store's time, so this step comes with an old tick.
            (asked[0].now, asked[0].by) = (Tick::EPOCH, By::Caller);
        }
        let mut charges: Vec<Vec<Charge<'_>>> = asked.iter().map(|asked| asked.charges(quotas)).collect();
        if repeats {
            // One of them is refused; the others are executed.
            let twice = charges[0][0];
            charges[0].push(twice);
        }
        let fresh = history.fresh.clone();
        let both = asked.iter().zip(&charges);
        let steps: Vec<Step<'_>> = both.map(|(asked, charges)| asked.step(charges, &fresh)).collect();
        // Its former contents must not matter.
        let mut answers = vec![Ok(Executed::default())];
        if let Some(later) = subject.store.execute_each(&steps, &mut answers) {
            assert!(subject.store.caps().may_wait, "law: only a store that says so answers later");
            answers = block_on(later);
        }
        assert_eq!(answers.len(), steps.len(), "law: one answer for each step; seed {seed}, step {number}");
        let mut decided: Vec<_> = asked.iter().zip(&steps).zip(answers).collect();
        if subject.clock.is_none() && subject.store.caps().own_clock {
            // An engine may decide the steps of a batch in any order, each by its clock: those that its script cannot
            // decide come later.
            decided.sort_by_key(|(_, ours)| ours.as_ref().map_or(Tick::EPOCH, |executed| executed.at));
        }
        for ((asked, step), ours) in decided {
            let theirs = subject.judge(step, ours, &format!("seed {seed}, step {number} of a batch"));
            if let Ok(executed) = theirs {
                history.keep(asked, &executed);
            }
            number += 1;
        }
    }
}

/// Charges end before and after they may act, at once and long after, with nothing, a part, all, or more than was
/// charged.
struct History {
    random: Random,
    now: Tick,
    fresh: ManualClock,
    open: Vec<OpenCharge>,
    quotas: usize,
    /// There are fewer keys than limits, so each seed starts at another place in the list.
    start: usize,
    one_tag: bool,
    /// Whether all clocks are used, and receipts left out.
    mixed: bool,
}

struct OpenCharge {
    key: usize,
    quota: usize,
    receipt: Receipt,
    full_at: Tick,
}

struct StepParts {
    now: Tick,
    by: By,
    tag: u64,
    receipts: bool,
    kind: TraceOp,
    lines: Vec<TraceLine>,
    endings: Vec<Ending>,
}

#[derive(Clone, Copy)]
enum By {
    Caller,
    Fresh,
    Engine,
}

#[derive(Clone, Copy)]
enum TraceOp {
    Take,
    Draw,
    Peek,
    Finish,
    Reset,
}

struct TraceLine {
    key: usize,
    quota: usize,
    cost: Cost,
    kept_back: u64,
    max_wait: Duration,
    binding: bool,
    replace: Replace,
}

impl History {
    fn new(quotas: &[Arc<Quota>], seed: u64, one_tag: bool, mixed: bool) -> Self {
        Self {
            random: Random::seeded(seed),
            now: Tick::from_secs(1_600_000_000),
            fresh: ManualClock::default(),
            open: Vec::new(),
            quotas: quotas.len(),
            start: seed as usize * KEYS.len(),
            one_tag,
            mixed,
        }
    }

    fn next(&mut self, subject: &Subject<'_>) -> StepParts {
        self.now = self.moved(self.now);
        self.fresh.set(self.now.after(Duration::from_nanos(self.random.below(50_000_000))));
        if let Some(clock) = subject.clock.filter(|_| self.mixed && self.random.below(2) == 0) {
            // Moves on from the clock's present time, or from the latest tick.
            let from = if self.random.below(4) == 0 { clock.now() } else { subject.latest };
            clock.set(self.moved(from));
        }
        let count = 1 + self.random.below(3) as usize;
        let turn = self.random.below(16);
        let (mut lines, mut endings) = (Vec::new(), Vec::new());
        if (3..9).contains(&turn) && !self.open.is_empty() {
            self.end_some(count, &mut lines, &mut endings);
        }
        if endings.is_empty() {
            lines = self.charge_some(count);
        }
        let kind = match turn {
            _ if !endings.is_empty() => TraceOp::Finish,
            0..2 => TraceOp::Peek,
            2 => TraceOp::Reset,
            14.. => TraceOp::Draw,
            _ => TraceOp::Take,
        };
        if matches!(kind, TraceOp::Draw) {
            // More than most limits have left, so that a part of it is drawn.
            lines
                .iter_mut()
                .for_each(|line| line.cost = Cost::new(line.cost.units() * 5).unwrap_or(line.cost));
        }
        // A permission by an older tick cannot be withdrawn, so only steps that cannot wait use this clock.
        let plain =
            matches!(kind, TraceOp::Take) && lines.iter().all(|line| line.binding && line.max_wait.is_zero());
        let by = match self.random.below(4) {
            _ if !self.mixed => By::Caller,
            0 if plain => By::Fresh,
            0 | 1 => By::Engine,
            _ => By::Caller,
        };
        let tag = if self.one_tag { TAG } else { self.random.below(3) };
        let receipts = !self.mixed || self.random.below(3) != 0 || matches!(kind, TraceOp::Draw);
        StepParts { now: self.now, by, tag, receipts, kind, lines, endings }
    }

    fn moved(&mut self, from: Tick) -> Tick {
        match self.random.below(8) {
            0..3 => from,
            3..6 => from.after(Duration::from_nanos(self.random.below(400_000_000))),
            6 => from.after(Duration::from_secs(self.random.below(90_000))),
            _ => Tick::from_nanos(from.as_nanos().saturating_sub(self.random.below(1_000_000_000))),
        }
    }

    fn charge_some(&mut self, count: usize) -> Vec<TraceLine> {
        let first = self.random.below(KEYS.len() as u64) as usize;
        let line = |offset| {
            let key = (first + offset) % KEYS.len();
            // Now and then a key gets another quota of the list: a live change.
            let other = usize::from(self.random.below(50) == 0);
            TraceLine {
                key,
                quota: (self.start + key + other) % self.quotas,
                cost: Cost::new(1 + self.random.below(4)).unwrap_or(Cost::ONE),
                kept_back: [0, 0, 0, 1, 3][self.random.below(5) as usize],
                max_wait: Duration::from_millis([0, 0, 0, 50, 5000][self.random.below(5) as usize]),
                binding: self.random.below(8) != 0,
                replace: [Replace::AsIs, Replace::Proportional, Replace::Reset]
                    [self.random.below(3) as usize],
            }
        };
        (0..count).map(line).collect()
    }

    /// Ends some charges, and in the same step forgets keys or charges them once: before the other charges, between
    /// them, or after them.
    fn end_some(&mut self, count: usize, lines: &mut Vec<TraceLine>, endings: &mut Vec<Ending>) {
        let line = |key, quota, cost| TraceLine {
            key,
            quota,
            cost,
            kept_back: 0,
            max_wait: Duration::ZERO,
            binding: true,
            replace: Replace::AsIs,
        };
        for _ in 0..count {
            let Some(last) = self.open.len().checked_sub(1) else { break };
            // Usually the latest, now and then an older one.
            let older = self.random.below(3) == 0;
            let back = if older { self.random.below(self.open.len() as u64) as usize } else { 0 };
            let ended = self.open.swap_remove(last - back);
            if lines.iter().all(|line: &TraceLine| line.key != ended.key) {
                lines.push(line(ended.key, ended.quota, ended.receipt.cost));
                endings.push(ended.ending(&mut self.random));
            }
        }
        for key in 0..KEYS.len() {
            if self.random.below(16) != 0 || lines.iter().any(|line| line.key == key) {
                continue;
            }
            let cost = Cost::new(1 + self.random.below(4)).unwrap_or(Cost::ONE);
            let binding = self.random.below(2) != 0;
            let at = self.random.below(1 + lines.len() as u64) as usize;
            lines.insert(at, TraceLine { binding, ..line(key, (self.start + key) % self.quotas, cost) });
            endings.insert(at, if self.random.below(2) == 0 { Ending::Once } else { Ending::Forget });
        }
    }

    /// Keeps the charges of a step, to be ended later: all of a take or a draw, and the [`Ending::Once`] of an ending.
    fn keep(&mut self, asked: &StepParts, executed: &Executed) {
        for (at, (line, charge_answer)) in asked.lines.iter().zip(&executed.lines).enumerate() {
            let charged = asked.endings.get(at).is_none_or(|ending| *ending == Ending::Once);
            if let Some(receipt) = charge_answer.receipt.filter(|_| charged) {
                let full_at = receipt.at.after(charge_answer.decision.standing.reset_after);
                self.open.push(OpenCharge { key: line.key, quota: line.quota, receipt, full_at });
            }
        }
        if self.open.len() > MOST_OPEN {
            self.open.drain(..MOST_OPEN / 2);
        }
    }
}

impl OpenCharge {
    fn ending(&self, random: &mut Random) -> Ending {
        let units = self.receipt.cost.units();
        let used = match random.below(8) {
            0..4 => 0,
            4 => units / 2,
            5 => units,
            6 => units + 1 + random.below(5),
            // Far more than any limit: debts have a bound.
            _ => u64::MAX >> random.below(64),
        };
        let outcome = [Outcome::Success, Outcome::CallersFault, Outcome::Failure, Outcome::Ignored];
        let finish = Finish { used, outcome: outcome[random.below(4) as usize] };
        let renew = (random.below(4) == 0).then_some(self.full_at);
        Ending::Finish { receipt: self.receipt, finish, renew }
    }
}

impl StepParts {
    fn charges<'q>(&self, quotas: &'q [Arc<Quota>]) -> Vec<Charge<'q>> {
        let charge = |line: &TraceLine| Charge {
            kept_back: line.kept_back,
            max_wait: line.max_wait,
            binding: line.binding,
            rules: ChargeRules { replace: line.replace, ..ChargeRules::new(0) },
            ..Charge::new(KEYS[line.key].as_bytes(), &quotas[line.quota], line.cost)
        };
        self.lines.iter().map(charge).collect()
    }

    fn step<'s>(&'s self, charges: &'s [Charge<'s>], fresh: &'s ManualClock) -> Step<'s> {
        let op = match self.kind {
            TraceOp::Take => Op::Take,
            TraceOp::Draw => Op::Draw,
            TraceOp::Peek => Op::Peek,
            TraceOp::Finish => Op::Finish(&self.endings),
            TraceOp::Reset => Op::Reset,
        };
        let clock = match self.by {
            By::Caller => StepClock::Caller,
            By::Fresh => StepClock::Fresh(fresh),
            By::Engine => StepClock::Engine,
        };
        Step { clock, tag: self.tag, receipts: self.receipts, ..Step::new(self.now, op, charges) }
    }
}
