//! What happens when an engine is gone: decided in this one place.
//!
//! A [`Fallback`] is a store around an engine's. While the engine answers, it hands steps on; answers that come later get a deadline. A
//! step that the engine cannot decide goes by the words of its charges ([`OnStoreError`]): it passes, is refused, or is decided by a store
//! of this process, which grants this node's part of the limit.
//!
//! # Which errors count
//! [`StoreError::Unavailable`], which the deadline is too: the step is decided here, and after several in a row the next ones are too
//! (see [Outages](#outages)).
//! [`StoreError::Contended`], [`StoreError::Corrupt`] and [`StoreError::CellTooLarge`] speak of keys and not of the engine: that step is
//! decided here, the next one is the engine's again. So does a deadline that was over while the engine answered other exchanges
//! ([`Store::exchanges`]), as where other nodes write the same key first each time. All others are mistakes of the caller
//! and returned.
//!
//! # Outages
//! A step that is not answered is decided here, by itself: an answer that is lost or late now and then is no outage. After three in a row
//! ([`FallbackBuilder::outage_after`]), each at most 10 s after the one before, the engine counts as gone. A step does not count if one that
//! was asked later was answered in the meantime: then a message was lost, and the engine is there. Steps are then decided at once,
//! without waiting; one of them at a time, each a stated interval after the one before, asks the engine and waits until the deadline, as
//! a probe. When one is answered the engine is back. Each change is told once ([`FallbackBuilder::on_change`]), whatever the traffic.
//!
//! So what an outage costs: steps that are under way when the engine goes wait one deadline each; where they come one at a time, the first
//! three do. After that one step in an interval waits. A step waits at most one deadline in any case. An engine that answers at least
//! one of three steps never counts as gone, and each step that it does not answer waits a deadline. That is also how an engine of several machines behaves when one of them is gone.
//!
//! A step that missed its deadline is dropped, and not awaited in the background: an engine that hangs would collect a step for each
//! request, with a connection each. The step may have been done all the same, so its caller may be charged twice, in the engine and here.
//! That never lets more through.
//!
//! # The bound
//! Of a charge with [`OnStoreError::Local`] each unit counts as many times as there are nodes ([`FallbackBuilder::nodes`]). So `N` nodes
//! that each know the number of nodes grant together *at most what the limit grants, and one request on each node more*: that of a caller
//! who asks for more than the node's part. Such a request passes where the part is full, and what it took beyond the part is owed.
//!
//! Two kinds of limits do not remember what is owed. Those that count windows forget it when the window ends: where a window has not
//! enough for one request on each node, each node grants one in each window, and with fewer in the window than nodes that is more than
//! its limit. Places of a bulkhead are not owed either: with fewer places than nodes there is one on each. A window that begins with its
//! first charge begins on each node for itself.
//!
//! That bound holds beside the engine, which has granted what it has granted before: a key that was empty there starts anew here. Over an
//! outage and the time before it: at most twice the limit, and `N` requests more.
//!
//! Of each node's part the same fraction is kept for requests of higher priority ([`Charge::kept_back`]) as of the whole limit. So a request
//! of lower priority passes only where it fits beside that: one that asks for more than the rest of the node's part is refused for as long
//! as the engine is gone, and told that nobody knows how long that is. Where the kept fraction is less than one unit of the node's part, which
//! nobody could use alone, it passes where the part is full.
//!
//! Units are drawn ([`Op::Draw`]) from the engine alone: while it is gone, that is an error.
//!
//! # What is ended where
//! What was charged here is ended here ([`Charge::by_fallback`]), whether the engine is back or not, and what was charged by the engine
//! there: while it is gone, that is an error and may be told again. A step that ends charges of both is divided. Marks
//! ([`Ending::Once`]) go with the engine's. The engine is asked first: it alone may refuse or fail, and then nothing is ended here. If its
//! answer is lost after it has settled, and the step is told again, its mark refuses, and what was charged here stays charged.

mod breaker;
mod share;
mod shared;
mod stand_in;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use breaker::{Breaker, Told};
pub use breaker::{Change, Health};
use shared::Shared;
use stand_in::StandIn;

use super::{Answer, Caps, Home, Later, Occupancy, Op, Settled, Settling, Step, Store, one_by_one};
#[cfg(doc)]
use super::{Charge, Ending, OnStoreError, StoreError};
use crate::clock::Clock;

/// How long an engine has to answer, unless another time is chosen: far beyond what one in the same building takes, and as long as a
/// caller hardly notices.
pub const DEADLINE: Duration = Duration::from_millis(250);

/// How long after one probe the next one is, unless another time is chosen: an engine that is back is asked again within about a
/// second, and one that hangs keeps one request a second waiting.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How many steps in a row have no answer before the engine counts as gone, unless chosen: with one answer in fifty lost that is once in
/// 125,000 steps, and an engine that refuses at once is left after three.
pub const OUTAGE_AFTER: u32 = 3;

/// A store that decides by itself what an engine cannot; see the [module](self).
///
/// Cheap to clone; clones are the same store. While the engine answers, a step costs one load more.
///
/// # Examples
/// ```
/// use tidegate::SystemClock;
/// use tidegate::store::Fallback;
/// # use tidegate::store::MemoryStore;
/// # let engine = MemoryStore::with_capacity(8).expect("room for few keys");
/// let store = Fallback::around(engine, SystemClock::new())
///     .nodes(3)
///     .on_change(|change| eprintln!("{}: {}", if change.up { "back" } else { "gone" }, change.reason))
///     .build();
/// assert!(store.health().is_up());
/// ```
#[derive(Clone, Debug)]
pub struct Fallback {
    shared: Arc<Shared>,
}

/// Makes a [`Fallback`].
#[must_use = "a fallback is made by `build`"]
pub struct FallbackBuilder {
    engine: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    probe_every: Duration,
    outage_after: u32,
    nodes: u64,
    told: Option<Box<Told>>,
}

impl FallbackBuilder {
    /// Chooses how long the engine has to answer; [`DEADLINE`] unless chosen. Without effect on answers on the spot.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Chooses how long after one probe of an engine that is gone the next one is; [`PROBE_EVERY`] unless chosen.
    pub const fn probe_every(mut self, interval: Duration) -> Self {
        self.probe_every = interval;
        self
    }

    /// Chooses how many steps in a row have no answer before the engine counts as gone; [`OUTAGE_AFTER`] unless chosen, 0 counts as 1.
    pub const fn outage_after(mut self, failures: u32) -> Self {
        self.outage_after = failures;
        self
    }

    /// Says how many nodes there are; 1 unless it is said, 0 counts as 1. See [`Fallback::set_nodes`].
    pub const fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes;
        self
    }

    /// Has somebody told when the engine goes and when it is back: one call each, however many requests there are.
    ///
    /// Called on the thread of the step that found out, outside every lock; changes that follow each other closely on different
    /// threads may arrive in another order, which [`Change::at`] tells.
    pub fn on_change(mut self, told: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.told = Some(Box::new(told));
        self
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> Fallback {
        let Self { engine, clock, deadline, probe_every, outage_after, nodes, told } = self;
        let breaker = Arc::new(Breaker::new(probe_every, outage_after, told));
        Fallback {
            shared: Arc::new(Shared { engine, clock, breaker, stand_in: StandIn::new(nodes), deadline }),
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
    /// Builds a fallback around an engine's store; the clock, which should be the gate's, tells when the engine is late.
    pub fn around(engine: impl Store + 'static, clock: impl Clock + 'static) -> FallbackBuilder {
        FallbackBuilder {
            engine: Arc::new(engine),
            clock: Arc::new(clock),
            deadline: DEADLINE,
            probe_every: PROBE_EVERY,
            outage_after: OUTAGE_AFTER,
            nodes: 1,
            told: None,
        }
    }

    /// Returns whether the engine is asked, since when, and how much was decided without it.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.breaker.health()
    }

    /// Says how many nodes there are from now on, for charges with [`OnStoreError::Local`]; 0 counts as 1. What was charged before stays
    /// charged, as much as it was, and is ended by the number it was charged under.
    pub fn set_nodes(&self, nodes: u64) {
        self.shared.stand_in.nodes.set(nodes, self.shared.clock.now());
    }
}

impl Store for Fallback {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match step.op {
            Op::Take | Op::Peek => self.shared.decide(step, out),
            Op::Finish(endings) => self.shared.finish(step, endings, out),
            Op::Reset => self.shared.reset(step, out),
            // Units are drawn from an engine to be spent here; what the stand-in has is here already.
            Op::Draw => self.shared.ask(step, out),
            // What a person forces holds where the engine keeps it, and the stand-in goes by its own evidence.
            Op::Breaker(_) => self.shared.engine.settle_into(step, out),
        }
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        if steps.is_empty() {
            // The engine would answer nothing with nothing, which does not say that it is there.
            out.clear();
            return None;
        }
        if steps.iter().all(|step| matches!(step.op, Op::Take | Op::Peek)) {
            self.shared.decide_each(steps, out)
        } else {
            // Charges that end belong to the engine or to this process, each by itself.
            one_by_one(self, steps, out)
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.shared.engine.occupancy()
    }

    fn caps(&self) -> Caps {
        self.shared.engine.caps()
    }

    fn home(&self) -> Home {
        self.shared.engine.home()
    }

    fn home_of(&self, by_fallback: bool) -> Home {
        if by_fallback { self.shared.stand_in.store().home() } else { self.home() }
    }
}
