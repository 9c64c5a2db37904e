//! A step that owns its data, to be kept while an engine is asked.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::breaker::Forced;
use tidegate_core::{Cost, Finish, Quota, Tick};

use super::cell::Cell;
use super::guards::Handling;
use super::step::{Charge, ChargeRules, DecidedBy, Ending, Executed, Op, Step, StepClock};

/// A [`Step`] that owns its data.
///
/// The tick is fixed when the owned step is made: the clock that a step may carry ([`StepClock::Fresh`]) is read then.
#[derive(Clone, Debug)]
pub struct OwnedStep {
    now: Tick,
    by_engine: bool,
    tag: u64,
    receipts: bool,
    watched: bool,
    op: OwnedOp,
    charges: SmallVec<[OwnedCharge; 4]>,
}

#[derive(Clone, Debug)]
enum OwnedOp {
    Take,
    Draw,
    Peek,
    Finish(Box<[Ending]>),
    Reset,
    Look,
    Force(Forced),
    Release,
    Adopt,
    Copy,
    TakeOver(Box<[Option<Cell>]>),
}

#[derive(Clone, Debug)]
struct OwnedCharge {
    key: Box<[u8]>,
    quota: Arc<Quota>,
    cost: Cost,
    kept_back: u64,
    max_wait: Duration,
    binding: bool,
    rules: ChargeRules,
    by_fallback: bool,
    inline_quota: bool,
}

impl OwnedStep {
    /// Copies a step. Allocates at most twice for each of its charges.
    #[must_use]
    pub fn of(step: &Step<'_>) -> Self {
        let step = step.read_clock();
        let op = match step.op {
            Op::Take => OwnedOp::Take,
            Op::Draw => OwnedOp::Draw,
            Op::Peek => OwnedOp::Peek,
            Op::Finish(endings) => OwnedOp::Finish(endings.into()),
            Op::Reset => OwnedOp::Reset,
            Op::Breaker(Handling::Look) => OwnedOp::Look,
            Op::Breaker(Handling::Force(forced)) => OwnedOp::Force(forced.clone()),
            Op::Breaker(Handling::Release) => OwnedOp::Release,
            Op::Breaker(Handling::Adopt) => OwnedOp::Adopt,
            Op::Breaker(Handling::Copy) => OwnedOp::Copy,
            Op::Breaker(Handling::TakeOver(cells)) => OwnedOp::TakeOver(cells.into()),
        };
        Self {
            now: step.now,
            by_engine: matches!(step.clock, StepClock::Engine),
            tag: step.tag,
            receipts: step.receipts,
            watched: step.watched,
            op,
            charges: step.charges.iter().map(OwnedCharge::of).collect(),
        }
    }

    /// Returns the step that undoes the charges of a step, according to the answer to it; `None` where nothing was
    /// charged.
    ///
    /// It uses the engine's clock where there is one, as the step itself does, because receipts are dated by the clock
    /// that decided.
    pub fn undoing(step: &Step<'_>, executed: &Executed) -> Option<Self> {
        let by_fallback = executed.by == DecidedBy::Fallback;
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let mut endings: SmallVec<[Ending; 4]> = SmallVec::new();
        for (charge, line) in step.charges.iter().zip(&executed.lines) {
            let Some(receipt) = line.receipt else { continue };
            charges.push(Charge { by_fallback, ..*charge });
            endings.push(Ending::new(receipt, Finish::UNDONE));
        }
        let undoing = Step {
            tag: step.tag,
            clock: StepClock::Engine,
            watched: step.watched,
            ..Step::new(executed.at, Op::Finish(&endings), &charges)
        };
        (!charges.is_empty()).then(|| Self::of(&undoing))
    }

    /// Lends the step to a function.
    pub fn with<R>(&self, then: impl FnOnce(&Step<'_>) -> R) -> R {
        then(&self.lend(&self.lend_charges()))
    }

    /// Lends many steps to a function.
    pub fn with_each<R>(steps: &[&Self], then: impl FnOnce(&[Step<'_>]) -> R) -> R {
        let charges: Vec<_> = steps.iter().map(|step| step.lend_charges()).collect();
        let steps: Vec<_> = steps.iter().zip(&charges).map(|(step, charges)| step.lend(charges)).collect();
        then(&steps)
    }

    fn lend_charges(&self) -> SmallVec<[Charge<'_>; 4]> {
        self.charges.iter().map(OwnedCharge::lend).collect()
    }

    fn lend<'a>(&'a self, charges: &'a [Charge<'a>]) -> Step<'a> {
        Step {
            now: self.now,
            clock: if self.by_engine { StepClock::Engine } else { StepClock::Caller },
            tag: self.tag,
            receipts: self.receipts,
            watched: self.watched,
            op: match &self.op {
                OwnedOp::Take => Op::Take,
                OwnedOp::Draw => Op::Draw,
                OwnedOp::Peek => Op::Peek,
                OwnedOp::Finish(endings) => Op::Finish(endings),
                OwnedOp::Reset => Op::Reset,
                OwnedOp::Look => Op::Breaker(Handling::Look),
                OwnedOp::Force(forced) => Op::Breaker(Handling::Force(forced)),
                OwnedOp::Release => Op::Breaker(Handling::Release),
                OwnedOp::Adopt => Op::Breaker(Handling::Adopt),
                OwnedOp::Copy => Op::Breaker(Handling::Copy),
                OwnedOp::TakeOver(cells) => Op::Breaker(Handling::TakeOver(cells)),
            },
            charges,
        }
    }

    /// Returns the step's tick.
    pub const fn now(&self) -> Tick {
        self.now
    }

    /// Returns the step's tag.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns whether the step forgets the key of one of its charges, which repairs bytes that do not decode.
    #[must_use]
    pub fn forgets(&self, charge: usize) -> bool {
        match &self.op {
            OwnedOp::Reset => true,
            OwnedOp::Finish(endings) => matches!(endings.get(charge), Some(Ending::Forget)),
            _ => false,
        }
    }
}

impl OwnedCharge {
    fn of(charge: &Charge<'_>) -> Self {
        Self {
            key: charge.key.into(),
            quota: Arc::clone(charge.quota),
            cost: charge.cost,
            kept_back: charge.kept_back,
            max_wait: charge.max_wait,
            binding: charge.binding,
            rules: charge.rules,
            by_fallback: charge.by_fallback,
            inline_quota: charge.inline_quota,
        }
    }

    fn lend(&self) -> Charge<'_> {
        Charge {
            key: &self.key,
            quota: &self.quota,
            cost: self.cost,
            kept_back: self.kept_back,
            max_wait: self.max_wait,
            binding: self.binding,
            rules: self.rules,
            by_fallback: self.by_fallback,
            inline_quota: self.inline_quota,
        }
    }
}
