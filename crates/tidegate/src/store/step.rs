//! What a store is asked, and what it answers. Plain data, because a store that runs scripts has to get the same step as one that runs
//! Rust.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Finish, Quota, Receipt, Replace, Tick};

use super::breaker_view::{BreakerView, Handling};
use crate::clock::Clock;

/// One charge of a step: the key, its quota, and the cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key whose capacity is charged: opaque bytes, distinct within a step.
    pub key: &'a [u8],
    /// The limit that holds now. A cell written under another one is carried over first.
    pub quota: &'a Arc<Quota>,
    /// The units or places asked for.
    pub cost: Cost,
    /// The units or places that the limit keeps back from this request, for others of higher priority; 0 is none. The charge is allowed
    /// where one of `cost` and these together would be, with the same `max_wait`, and then takes `cost`; else it is refused as that one
    /// would be. So what is kept back is kept from being refused to others, not from a delay that `max_wait` allows. A step that ends
    /// charges does not look at it.
    ///
    /// Of a limit that a law moves it is a share of the limit as it stands, in parts of
    /// [`Concurrency::MAX_PLACES`](tidegate_core::concurrency::Concurrency::MAX_PLACES), and taken in whole percent: all of them are never
    /// left by anybody.
    pub kept_back: u64,
    /// The longest delay this line accepts; zero for all but queues and waits.
    pub max_wait: Duration,
    /// Whether its refusal refuses the step; `false` for a shadow, which is measured and never refuses.
    pub binding: bool,
    /// How a changed quota takes over what was spent.
    pub replace: Replace,
    /// The number of the policy that the key belongs to, the same for all its keys. Where a store is full, keys of one owner do not push
    /// out those of another beyond an even share.
    pub owner: u32,
    /// What becomes of the charge when an engine cannot decide; see [`OnStoreError`]. Without meaning for the engine itself.
    pub on_error: OnStoreError,
    /// When what the charge changes has to be on disk, in a store that keeps its keys there; see [`Durable`].
    pub durable: Durable,
    /// When a charge is ended: whether it was made by the store that stands in for an engine; see [`DecidedBy::Fallback`].
    pub by_fallback: bool,
    /// Whether the quota is one of very many and holds for this step only: a store keeps it with the key and takes no other note of it.
    pub passing: bool,
}

impl<'a> Charge<'a> {
    /// A binding charge that spends, at once or not at all, and may take all that is there; its owner is 0.
    #[must_use]
    pub const fn new(key: &'a [u8], quota: &'a Arc<Quota>, cost: Cost) -> Self {
        Self {
            key,
            quota,
            cost,
            kept_back: 0,
            max_wait: Duration::ZERO,
            binding: true,
            replace: Replace::AsIs,
            owner: 0,
            on_error: OnStoreError::Local,
            durable: Durable::Interval,
            by_fallback: false,
            passing: false,
        }
    }

    /// Returns the charge that has to be allowed for this one to be: of its cost and what is kept back from it together. `None` where
    /// nothing is kept back.
    #[inline]
    pub(super) fn with_kept_back(&self) -> Option<Self> {
        if self.kept_back == 0 {
            return None;
        }
        let units = self.cost.units().saturating_add(self.kept_back);
        Some(Self { cost: Cost::new(units).unwrap_or(Cost::MAX), kept_back: 0, ..*self })
    }
}

/// What a step does with its charges.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Spends every charge if all binding ones are allowed.
    Take,
    /// Spends like `Take`, of each charge as much of its cost as fits within its longest wait, at least one unit: for nodes that take units
    /// ahead of time. All binding charges get something, or none does.
    ///
    /// What was taken is the cost of the receipt ([`Settlement::receipt`]), so such a step wants receipts; what turns out not to be needed
    /// comes back by ending the receipt. The wait of a line is that until all of its units may act. A refusal tells when one unit would fit. Of
    /// a guard a draw takes several places at once, which are left together, and lapse together if they are not.
    Draw,
    /// Decides like `Take` and changes nothing.
    Peek,
    /// Settles, one [`Ending`] for each charge of the step, all or nothing. Of charges made before, what was not spent comes back, and
    /// what was spent beyond the charge is booked as a debt; the quota of such a charge is the one it was made under, and its cost
    /// what was charged. It is refused only by an [`Ending::Once`]. Whether a charge binds and how it waits say nothing here.
    Finish(&'a [Ending]),
    /// Forgets the keys: their limits are full again, and of charges made before nothing comes back, unless a full store gives up the
    /// note of that.
    Reset,
    /// Does what a person wants of the breakers among the limits, and tells how the last of them stands in [`Settled::breaker`].
    Breaker(Handling<'a>),
}

/// A list of charges to settle at one tick.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// When, as far as the caller knows. A tick before the latest that a store has seen counts as that one: its time does not step back.
    pub now: Tick,
    /// Whose clock decides.
    pub clock: StepClock<'a>,
    /// What the keys have in common: an engine that spreads keys over machines keeps keys of one tag on one machine. Of a store
    /// whose [`super::Caps::one_tag`] is `false` it says nothing.
    pub tag: u64,
    /// Whether the charges will be ended: receipts may be absent from the answer otherwise, and all else it says is the same.
    /// Making them is a part of what a check costs, and most checks want none.
    pub receipts: bool,
    /// What is done.
    pub op: Op<'a>,
    /// The charges, in order; keys are distinct.
    pub charges: &'a [Charge<'a>],
}

impl<'a> Step<'a> {
    /// Makes a step that is decided by the caller's tick and has receipts; its tag is 0.
    #[must_use]
    pub const fn new(now: Tick, op: Op<'a>, charges: &'a [Charge<'a>]) -> Self {
        Self { now, clock: StepClock::Caller, tag: 0, receipts: true, op, charges }
    }

    /// Returns the step with the tick of its clock, for a store that has no use for an older one: what [`StepClock::Fresh`] says is
    /// read at once.
    #[must_use]
    pub fn read_clock(self) -> Self {
        match self.clock {
            StepClock::Fresh(clock) => {
                Self { now: self.now.max(clock.now()), clock: StepClock::Caller, ..self }
            }
            StepClock::Caller | StepClock::Engine => self,
        }
    }
}

/// Whose clock decides a step.
#[derive(Clone, Copy, Debug)]
pub enum StepClock<'a> {
    /// The caller's: [`Step::now`].
    Caller,
    /// The caller's. [`Step::now`] may be a little old: it is good enough to permit by, and before a refusal this clock is read
    /// and decides.
    Fresh(&'a dyn Clock),
    /// The engine's own, where it has one ([`super::Caps::own_clock`]); else the caller's.
    Engine,
}

/// Who made a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// A store in this process.
    #[default]
    Local,
    /// This process, out of what it had drawn from an engine ahead of time.
    Lease,
    /// An engine.
    Engine,
    /// A store in this process that stands in for an engine, because the engine did not answer.
    Fallback,
}

/// What a settlement does with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Ends a charge that was made before.
    Finish {
        /// Of the charge, as the step that made it returned it. Each is ended once; whoever holds it sees to that.
        receipt: Receipt,
        /// What was spent, and how the work went.
        finish: Finish,
        /// Books what was spent anew if the charge was forgotten before its time: its key was reset, or given up for lack of room,
        /// before this tick, at which its limit would have been full again. `None` leaves forgotten what is forgotten.
        renew: Option<Tick>,
    },
    /// Forgets the key, as [`Op::Reset`] does.
    Forget,
    /// Charges the key as [`Op::Take`] does, at once or not at all. If that is refused, the whole step is, and nothing has changed: so a
    /// limit of one unit lets a settlement happen once.
    Once,
}

impl Ending {
    /// Ends a charge; what is forgotten stays forgotten.
    #[must_use]
    pub const fn new(receipt: Receipt, finish: Finish) -> Self {
        Self::Finish { receipt, finish, renew: None }
    }
}

/// The answer to one charge of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// What this limit by itself decided, and how it stands after the step.
    pub decision: Decision,
    /// Needed to settle the charge; present when it was spent, unless the step wanted no receipts ([`Step::receipts`]). In the answer to
    /// [`Op::Finish`] it is the receipt of the charge, its cost being the units that came back; absent where none did.
    pub receipt: Option<Receipt>,
}

/// The answer to a step: one settlement per charge, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Whether every binding charge was allowed.
    pub allowed: bool,
    /// The longest delay among the binding charges of an allowed step.
    pub wait: Duration,
    /// The tick of the decision, by the clock that decided.
    pub at: Tick,
    /// Who decided.
    pub by: DecidedBy,
    /// One per charge.
    pub lines: SmallVec<[Settlement; 4]>,
    /// How a breaker stands, in the answer to [`Op::Breaker`].
    pub breaker: Option<Box<BreakerView>>,
}

/// When what a charge changes has to be on disk, in a store that keeps its keys there. Of no meaning for all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durable {
    /// Some time after the answer, with all that changed since the last time: a crash loses the last fraction of a second.
    #[default]
    Interval,
    /// Before the answer, which waits for the disk: a crash loses nothing. Counts where a charge is taken that binds, and where one is
    /// ended; a shadow waits for nothing.
    Strict,
}

/// What happens to a charge when an engine cannot decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// The charge is allowed, and nothing is counted.
    Allow,
    /// The charge is refused, and so is its request.
    Deny,
    /// A store of this process stands in, and grants this node's share of the limit.
    #[default]
    Local,
}
