//! Steps and their answers: what a store is asked, and what it returns. Plain data, because a store that runs scripts
//! has to get the same step as one that runs Rust.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Finish, Quota, Receipt, Replace, Tick};

use super::cell::Cell;
use super::guards::{BreakerView, Handling, Moved};
use crate::clock::Clock;

/// One charge of a step: the key, its quota, and the cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key whose capacity is charged: opaque bytes, distinct within a step.
    pub key: &'a [u8],
    /// The limit that holds now. A cell that was written under another limit is first carried over to this one.
    pub quota: &'a Arc<Quota>,
    /// The units or places asked for.
    pub cost: Cost,
    /// The units or places that are kept back from this request for others of higher priority; 0 is none. The charge is
    /// allowed only where a charge of `cost` plus `kept_back` would be, with the same `max_wait`; it then takes only
    /// `cost`. Otherwise it is refused as that larger charge would be. So requests of higher priority are not refused
    /// because of this charge, but may be delayed by up to its `max_wait`. Steps that end charges ignore this field.
    ///
    /// For a limit that an adaptive law moves, this is a share of the limit at its present size, in parts of
    /// [`Concurrency::MAX_PLACES`](tidegate_core::concurrency::Concurrency::MAX_PLACES), and counted in whole percent.
    /// A share of all of them (100 %) always refuses.
    pub kept_back: u64,
    /// The longest delay that this charge accepts; zero for all but queues and waits.
    pub max_wait: Duration,
    /// Whether its refusal refuses the step; `false` for a shadow, which is measured and never refuses.
    pub binding: bool,
    /// The rules that the limit sets, whatever the request.
    pub rules: ChargeRules,
    /// Only where a charge is ended: whether it was made by the store that stands in for an engine; see
    /// [`DecidedBy::Fallback`].
    pub by_fallback: bool,
    /// Whether the quota is one of very many and holds for this step only: the store keeps it with the key and does not
    /// register it elsewhere.
    pub inline_quota: bool,
}

impl<'a> Charge<'a> {
    /// Makes a binding charge that does not wait, with nothing kept back, under the usual rules for the owner 0.
    #[must_use]
    pub const fn new(key: &'a [u8], quota: &'a Arc<Quota>, cost: Cost) -> Self {
        Self {
            key,
            quota,
            cost,
            kept_back: 0,
            max_wait: Duration::ZERO,
            binding: true,
            rules: ChargeRules::new(0),
            by_fallback: false,
            inline_quota: false,
        }
    }

    /// Returns the charge that has to be allowed for this one to be allowed: its cost plus the units kept back. `None`
    /// where nothing is kept back.
    #[inline]
    pub(super) fn with_kept_back(&self) -> Option<Self> {
        if self.kept_back == 0 {
            return None;
        }
        let units = self.cost.units().saturating_add(self.kept_back);
        Some(Self { cost: Cost::new(units).unwrap_or(Cost::MAX), kept_back: 0, ..*self })
    }
}

/// The rules of a charge that its limit sets, the same for all requests.
///
/// Carried as one value of 8 bytes through plans, charges and receipts to the store that applies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeRules {
    /// The number of the policy that the key belongs to, the same for all keys of the policy. In a full store, keys of
    /// one owner do not evict those of another beyond an even share.
    pub owner: u32,
    /// How a changed quota takes over what was spent under the former one.
    pub replace: Replace,
    /// What happens to the charge when an engine cannot decide; see [`OnStoreError`]. The engine itself ignores it.
    pub on_error: OnStoreError,
    /// When the change has to be on disk, in a store that keeps its keys on disk; see [`Durable`].
    pub durable: Durable,
    /// Whether charges are usually settled with fewer or more units than they cost. Nodes that hold units of the limit
    /// then know that any number may come back, whichever of them has tickets.
    pub settled: bool,
}

impl ChargeRules {
    /// Makes the usual rules for the keys of an owner: what was spent is carried over as it is, a store of this process
    /// stands in for an engine that cannot decide, no answer waits for the disk, and charges stay as they are.
    #[must_use]
    pub const fn new(owner: u32) -> Self {
        let (replace, on_error, durable) = (Replace::AsIs, OnStoreError::Local, Durable::Interval);
        Self { owner, replace, on_error, durable, settled: false }
    }
}

/// The operation of a step on its charges.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Spends every charge if all binding ones are allowed.
    Take,
    /// Spends like `Take`, but takes only as many units of each charge's cost as fit within its longest wait, at least
    /// one. For nodes that take units ahead of time. Either all binding charges get units, or none does.
    ///
    /// The amount taken is the cost of the receipt ([`ChargeAnswer::receipt`]), so such a step has to ask for receipts;
    /// units that turn out not to be needed are given back by ending the receipt. The wait in an answer is the time
    /// until all of its units may be used. The retry of a refusal is the time when one unit would fit. From a guard, a
    /// draw takes several places at once; they are released together, and if they are not, they lapse together.
    Draw,
    /// Decides like `Take` and changes nothing.
    Peek,
    /// Ends charges, with one [`Ending`] for each charge of the step, all or nothing. Units that were charged before
    /// and not spent come back; units spent beyond the charge are booked as a debt. The quota of such a charge is the
    /// one that it was made under, and its cost is the amount that was charged. Only a binding [`Ending::Once`] or
    /// [`Ending::Extend`] can refuse the step. `binding` of other endings and `max_wait` of all are ignored.
    Finish(&'a [Ending]),
    /// Forgets the keys: their limits are full again. Charges made before give nothing back when they end, unless a
    /// full store has evicted the note of the reset. A state that a person has forced a breaker into stays.
    Reset,
    /// Applies an operator's request to the breakers among the limits, and returns the state of the last one in
    /// [`Executed::breaker`].
    Breaker(Handling<'a>),
}

/// A list of charges to execute at one tick.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The caller's time. A tick before the store's time counts as that time, which does not step back. Every step that
    /// changes something moves it; a store need not remember a tick by which it only refused or looked.
    pub now: Tick,
    /// The clock that decides.
    pub clock: StepClock<'a>,
    /// A number that the keys share: an engine that spreads keys over machines keeps keys of one tag on one machine.
    /// Ignored by stores whose [`super::Caps::one_tag`] is `false`.
    pub tag: u64,
    /// Whether the charges will be ended. If `false`, receipts may be absent from the answer; the rest of it is the
    /// same. Making receipts is part of the cost of a check, and most checks need none.
    pub receipts: bool,
    /// Whether somebody watches the guards: the answer then has what the step has changed of them ([`Executed::moved`]).
    pub watched: bool,
    /// What to do with the charges.
    pub op: Op<'a>,
    /// The charges, in order; keys are distinct.
    pub charges: &'a [Charge<'a>],
}

impl<'a> Step<'a> {
    /// Makes a step that is decided at the caller's tick, with receipts; its tag is 0.
    #[must_use]
    pub const fn new(now: Tick, op: Op<'a>, charges: &'a [Charge<'a>]) -> Self {
        Self { now, clock: StepClock::Caller, tag: 0, receipts: true, watched: false, op, charges }
    }

    /// Returns the step with the present tick of its clock, for a store that cannot decide by an older one first: a
    /// clock in [`StepClock::Fresh`] is read at once.
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

/// The clock that decides a step.
#[derive(Clone, Copy, Debug)]
pub enum StepClock<'a> {
    /// The caller's: [`Step::now`].
    Caller,
    /// The caller's. [`Step::now`] may be a little old: it is good enough to permit by. Before a refusal, this clock is
    /// read, and its tick decides.
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
    /// This process, out of units that it had drawn from an engine ahead of time.
    Lease,
    /// An engine.
    Engine,
    /// A store in this process that stands in for an engine, because the engine did not answer.
    Fallback,
}

/// What a step with [`Op::Finish`] does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Ends a charge that was made before.
    Finish {
        /// The receipt that the step which made the charge returned. It must be ended only once; the holder is
        /// responsible for that.
        receipt: Receipt,
        /// What was spent, and how the work went.
        finish: Finish,
        /// If the charge was forgotten before this tick, at which its limit would have been full again: books what was
        /// spent as a new charge. A charge is forgotten when its key is reset, or evicted for lack of room. `None`: a
        /// forgotten charge stays forgotten.
        renew: Option<Tick>,
    },
    /// Holds the places of a guard for another time to live ([`Quota::extend`]). If they are not there any more, or the
    /// limit is no guard with a time to live, the whole step is refused, and nothing has changed. The receipt in the
    /// answer ends the charge from then on, and this one no longer does.
    ///
    /// A charge that is not [binding](Charge::binding) refuses no step: without its places there is no receipt in the
    /// answer.
    Extend {
        /// The receipt of the places.
        receipt: Receipt,
    },
    /// Forgets the key, as [`Op::Reset`] does.
    Forget,
    /// Charges the key as [`Op::Take`] does, without waiting. If that is refused, the whole step is refused, and
    /// nothing has changed. So a limit of one unit lets a step happen only once.
    ///
    /// A charge that is not [binding](Charge::binding) refuses no step: it is charged if there is room and the step is
    /// not refused, and only then is there a receipt in the answer. So of several different steps, one learns that it
    /// was the first.
    Once,
}

impl Ending {
    /// Ends a charge; a charge that was forgotten stays forgotten.
    #[must_use]
    pub const fn new(receipt: Receipt, finish: Finish) -> Self {
        Self::Finish { receipt, finish, renew: None }
    }
}

/// The answer to one charge of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeAnswer {
    /// The decision of this limit by itself, and its standing after the step.
    pub decision: Decision,
    /// The receipt that ends the charge; present when it was spent, unless the step asked for no receipts
    /// ([`Step::receipts`]). In the answer to [`Op::Finish`] it is the receipt of the ended charge, and its cost is the
    /// number of units that came back; absent where none came back.
    pub receipt: Option<Receipt>,
}

/// The answer to a step: one answer per charge, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Whether every binding charge was allowed.
    pub allowed: bool,
    /// The longest delay among the binding charges of an allowed step.
    pub wait: Duration,
    /// The tick of the decision, of the clock that decided.
    pub at: Tick,
    /// Who decided.
    pub by: DecidedBy,
    /// One answer per charge, in order.
    pub lines: SmallVec<[ChargeAnswer; 4]>,
    /// The state of a breaker, in the answer to [`Op::Breaker`].
    pub breaker: Option<Box<BreakerView>>,
    /// The guards that the step has changed, if it is [watched](Step::watched).
    pub moved: Vec<Moved>,
    /// The cells of the keys, one for each charge, in the answer to [`Handling::Copy`].
    pub cells: Vec<Option<Cell>>,
}

/// When a change has to be on disk, in a store that keeps its keys on disk. Other stores ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durable {
    /// Some time after the answer, together with all changes since the last write: a crash loses the last fraction of a
    /// second.
    #[default]
    Interval,
    /// Before the answer, which waits for the disk: a crash loses nothing. Applies where a binding charge is taken and
    /// where a charge is ended; a shadow never waits.
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
