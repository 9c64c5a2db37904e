//! Decides steps while an engine is gone.
//!
//! A [`Fallback`] wraps an engine's store. While the engine answers, steps pass on, with a deadline. A step that the
//! engine cannot decide is treated as its charges say ([`OnStoreError`]): it is allowed, refused, or decided by a store
//! of this process, which grants this node's part of the limit. Below, *here* means without the engine.
//!
//! # Which errors count
//! After [`StoreError::Unavailable`] or a missed deadline, the step is decided here. After several in a row, the engine
//! is not asked (see [Outages](#outages)). [`StoreError::Contended`], [`StoreError::Corrupt`] and
//! [`StoreError::CellTooLarge`] are errors of keys: that step is decided here, and the next one goes to the engine. The
//! same holds for a missed deadline while the engine answered other exchanges ([`Store::exchanges`]): other nodes won
//! every write of the key. All other errors are the caller's mistakes and are returned.
//!
//! # Outages
//! A single step without an answer is no outage: answers are lost or late now and then. After three such steps in a row
//! ([`FallbackBuilder::outage_after`]), each at most 10 s after the one before, the engine counts as gone. A step does
//! not count if one that was asked later was answered. Then steps are decided here at once; one at a time, at a stated
//! interval, asks the engine as a probe and waits until the deadline. A probe that is answered ends the outage. Each
//! change is reported once ([`FallbackBuilder::on_change`]).
//!
//! So steps in flight when the engine goes wait one deadline each, or the first three if steps come one at a time;
//! afterwards one step per interval waits. A step never waits for more than one deadline. An engine that answers at
//! least one of three consecutive steps never counts as gone, and each step that it does not answer waits for a
//! deadline: so does an engine of several machines when one of them is gone.
//!
//! A step that missed its deadline is dropped, or an engine that hangs would collect a connection for each request. The
//! engine may have done it all the same: its caller may be charged twice, which never lets more through.
//!
//! # The bound
//! With [`OnStoreError::Local`], each unit of a charge counts as many times as there are nodes
//! ([`FallbackBuilder::nodes`]). So `N` nodes grant together *at most what the limit grants, plus one request on each
//! node* that asks for more than the node's part. Such a request passes where the part is full, and the rest is owed.
//!
//! Two kinds of limits do not remember what is owed. Windows forget it at their end: with less than one request for
//! each node, each node still grants one in each window. Places of a bulkhead are not owed: with fewer places than
//! nodes, each node has one. A window that begins with its first charge begins on each node separately.
//!
//! A key that was used up in the engine starts anew here. So over an outage and the time before it, the nodes grant at
//! most twice the limit plus `N` requests.
//!
//! The same fraction of each node's part as of the whole limit is kept for requests of higher priority
//! ([`Charge::kept_back`]). A request that asks for more than the rest is refused for as long as the engine is gone,
//! with an unknown retry time. If that fraction is less than one unit of the node's part, the request passes where the
//! part is full.
//!
//! Units are drawn ([`Op::Draw`]) only from the engine: while it is gone, a draw is an error.
//!
//! # Where charges end
//! A charge that was made here ends here ([`Charge::by_fallback`]), whether the engine is up again or not; one that
//! was made by the engine ends there, with an error while it is gone, and the call may be repeated. A step with both
//! kinds is split, and marks ([`Ending::Once`]) belong to the engine's half. The engine is asked first, because only
//! it may refuse or fail. If its answer is lost and the step is repeated, its mark refuses, and what was charged here
//! stays charged.

mod breaker;
mod deciding;
mod stand_in;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use breaker::{Breaker, ChangeCallback};
pub use breaker::{Change, Health};
use deciding::FallbackState;
use stand_in::StandIn;
use tidegate_limits::clock::Clock;
#[cfg(doc)]
use tidegate_limits::store::{Charge, Ending, OnStoreError, StoreError};
use tidegate_limits::store::{
    Executed, Execution, Home, Later, Occupancy, Op, Step, StepAnswer, Store, one_by_one,
};

/// The default deadline: far beyond what an engine in the same building takes, and hardly noticed by callers.
pub const DEADLINE: Duration = Duration::from_millis(250);

/// The default interval between probes: an engine that is back is asked within about a second, and one that hangs
/// keeps one request a second waiting.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The default number of unanswered steps in a row after which the engine counts as gone. If one answer in fifty is
/// lost, that happens once in 125,000 steps.
pub const OUTAGE_AFTER: u32 = 3;

/// A store that decides by itself what an engine cannot decide; see the [module](self).
///
/// Cheap to clone; clones share one store. While the engine answers, a step costs one atomic load more.
///
/// # Examples
/// ```
/// use tidegate::clock::SystemClock;
/// use tidegate::store::Fallback;
/// # use tidegate::store::MemoryStore;
/// # let engine = MemoryStore::with_capacity(8).expect("room for few keys");
/// let store = Fallback::around(engine, SystemClock::new())
///     .nodes(3)
///     .on_change(|change| eprintln!("{}: {}", if change.up { "back" } else { "gone" }, change.reason))
///     .build();
/// assert_eq!(store.health().down, None, "the engine is asked");
/// ```
#[derive(Clone, Debug)]
pub struct Fallback {
    shared: Arc<FallbackState>,
}

/// Builds a [`Fallback`].
#[must_use = "a fallback is made by `build`"]
pub struct FallbackBuilder {
    engine: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    probe_every: Duration,
    outage_after: u32,
    nodes: u64,
    on_change: Option<Box<ChangeCallback>>,
}

impl FallbackBuilder {
    /// Sets how long the engine has to answer; [`DEADLINE`] by default. Has no effect on answers on the spot.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the interval between probes of an engine that is gone; [`PROBE_EVERY`] by default.
    pub const fn probe_every(mut self, interval: Duration) -> Self {
        self.probe_every = interval;
        self
    }

    /// Sets the number of unanswered steps in a row after which the engine counts as gone; [`OUTAGE_AFTER`] by default,
    /// 0 counts as 1.
    pub const fn outage_after(mut self, failures: u32) -> Self {
        self.outage_after = failures;
        self
    }

    /// Sets the number of nodes; 1 by default, 0 counts as 1: for charges with [`OnStoreError::Local`].
    pub const fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets a function that is called once when the engine starts to count as gone, and once when it counts as up
    /// again.
    ///
    /// It is called on the thread of the step that found out, outside every lock. Close changes may arrive out of
    /// order; [`Change::at`] tells their order.
    pub fn on_change(mut self, on_change: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Some(Box::new(on_change));
        self
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> Fallback {
        let Self { engine, clock, deadline, probe_every, outage_after, nodes, on_change } = self;
        let breaker = Arc::new(Breaker::new(probe_every, outage_after, on_change));
        Fallback {
            shared: Arc::new(FallbackState {
                engine,
                clock,
                breaker,
                stand_in: StandIn::new(nodes),
                deadline,
            }),
        }
    }
}

impl fmt::Debug for FallbackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackBuilder")
            .field("engine", &self.engine)
            .field("deadline", &self.deadline)
            .field("probe_every", &self.probe_every)
            .field("outage_after", &self.outage_after)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Fallback {
    /// Starts building a fallback around an engine's store. The clock, which should be the gate's, measures the
    /// deadline.
    pub fn around(engine: impl Store + 'static, clock: impl Clock + 'static) -> FallbackBuilder {
        FallbackBuilder {
            engine: Arc::new(engine),
            clock: Arc::new(clock),
            deadline: DEADLINE,
            probe_every: PROBE_EVERY,
            outage_after: OUTAGE_AFTER,
            nodes: 1,
            on_change: None,
        }
    }

    /// Returns whether the engine is asked, since when, and how much was decided without it.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.breaker.health()
    }
}

impl Store for Fallback {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        match step.op {
            Op::Take | Op::Peek => self.shared.decide(step, out),
            Op::Finish(endings) => self.shared.finish(step, endings, out),
            Op::Reset => self.shared.reset(step, out),
            // Draws are spent in this process, and the stand-in's units are there already.
            Op::Draw => self.shared.ask(step, out),
            // A forced state belongs to the breaker in the engine; the stand-in's breakers decide by the outcomes that
            // they have seen themselves.
            Op::Breaker(_) => self.shared.engine.execute_into(step, out),
        }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        if steps.is_empty() {
            // An empty answer to no steps would not show that the engine is up.
            out.clear();
            return None;
        }
        if steps.iter().all(|step| matches!(step.op, Op::Take | Op::Peek)) {
            self.shared.decide_each(steps, out)
        } else {
            // Each charge that ends belongs either to the engine or to this process.
            one_by_one(self, steps, out)
        }
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&*self.shared.engine)
    }

    fn occupancy(&self) -> Occupancy {
        self.shared.engine.occupancy()
    }

    fn home_of(&self, by_fallback: bool) -> Home {
        if by_fallback { self.shared.stand_in.store().home() } else { self.home() }
    }
}
