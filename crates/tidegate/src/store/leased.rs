//! Units drawn from an engine ahead of time, so that most requests ask nobody.
//!
//! A [`Leased`] is a store around an engine's. A node *draws* many units in one call ([`Op::Draw`](super::Op::Draw)), keeps them in a *pocket*
//! for a short time, and grants requests out of it on the spot ([`DecidedBy::Lease`](super::DecidedBy::Lease)). What is not spent in time is
//! given back by settling the draw's own receipt. Node clocks are asked for spans only, so they need not agree.
//!
//! # The bound
//! Every unit that a request spends was drawn before, and the engine drew it by its limit. So what all nodes together admit in any span
//! is at most what the engine allows in it, and the units that were in pockets when the span began: `O`, which is a stated part of the burst
//! ([`LeasedBuilder::outstanding`]). In the *strict* form, the default, the engine's limit has a burst that is smaller by `O`, and the excess over the
//! limit as written is exactly 0. With [`LeasedBuilder::bounded`] the engine has the whole burst, and the excess is at most `O`. Lost or late
//! replies, crashes and clocks make pockets fewer, never more.
//!
//! `O` is divided among the nodes by their [`Part`]s; a node whose part shrinks gives back what is above it before it spends another unit.
//!
//! # Which limits
//! | limit | leased | else |
//! |---|---|---|
//! | GCRA, leaky bucket, token bucket of one bandwidth that refills evenly | yes | burst · part too small for `O ≥ 1`: by the engine |
//! | fixed window, rolling or of the calendar | yes, within the window: the excess is 0 in either form | |
//! | token bucket of several bandwidths or at intervals, sliding window, counter and log, warm-up, profiles of peers | no | by the engine |
//! | charges that accept a wait; queues | no | by the engine |
//! | places, breakers | no | by the engine, where a place is a lease of its own: it frees itself when its time to live has passed |
//!
//! What is decided by the engine takes one call for each request, as with `share: central`, by the same (in the strict form smaller)
//! limit. So the largest cost that a strict limit ever grants is its burst less `O`.
//!
//! # When units are drawn
//! A key that was not asked for lately is decided in one call, which draws what the request needs. The more it is asked for, the more is drawn
//! at once, up to what lasts for a stated time ([`LeasedBuilder::target`]). When half of it is spent, the next draw is made in the background;
//! at most one is under way for a key, and requests that need it wait for it together: for as long as a draw is to last, or three round
//! trips if that is longer. If it has not come by then they ask the engine themselves, and so do others until it comes or fails. Where the engine has no units left, it grants
//! those of the near future, and says from when they may be spent; until then requests are refused here without a call. So they are when
//! it refuses, until the time that it names, or for as long as units may be held ([`LeasedBuilder::lasts`]) if that is shorter: what is
//! settled with less, given back or reset elsewhere is found then. What comes back through this node is drawn again at once.
//!
//! There is no timer in here. Draws are made on the way of requests; what idle keys hold is given back by [`Leased::tick`], which the server calls a
//! few times in the time that units may be held. Where it is not called, idle units stay spent until time returns them.
//!
//! # Settling, and tickets
//! The receipt of a leased charge is the engine's, of these very units: any node may end it, before and after the pocket has ended. Units that
//! come back go to the engine's limit, and a debt is booked there. A charge that used exactly what it was charged asks nobody.
//!
//! # Failures
//! Put a [`Fallback`](super::Fallback) around the engine, and this around it. While the engine is gone, pockets are spent to their end; then the
//! fallback decides, by the words of each charge. A pocket in the memory of a node that crashes is lost: fewer units are admitted, by
//! at most that, until time returns them.

mod asking;
mod demand;
mod draw;
mod drawing;
mod engine_part;
mod health;
mod held;
#[cfg(test)]
mod model;
mod other_steps;
mod pocket;
mod purse;
mod request;
mod shared;
mod table;
mod terms;
mod under_way;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub use health::LeaseHealth;
use shared::{Counts, Inner};
use table::Table;
use terms::{AllTerms, LeaseOptions};
use tidegate_core::{Quota, Tick};

use super::{Answer, Caps, Home, Occupancy, Settled, Settling, Step, Store};
use crate::background::Background;
use crate::clock::Clock;
use crate::cluster::Part;
use crate::later::Later;

/// How many thousandths of a burst all nodes together may hold, unless chosen: in the strict form a burst out of nothing is smaller by as
/// much, and the fewer there are, the more often is drawn.
pub const OUTSTANDING: u64 = 50;

/// How much of its own demand a node draws at once, unless chosen: some tens of round trips within one building.
pub const TARGET: Duration = Duration::from_millis(50);

/// How long units may be held, unless chosen: what an idle node strands comes back after that.
pub const LASTS: Duration = Duration::from_secs(1);

/// For how many keys pockets are kept, unless chosen: some 30 MB.
pub const KEYS: usize = 65_536;

/// What a deployment has that chooses nothing.
const USUAL: LeaseOptions =
    LeaseOptions { outstanding: OUTSTANDING, strict: true, target: TARGET, lasts: LASTS };

/// Returns how many units of a limit one of `nodes` nodes holds at most, where each has an even part and everything else is as usual: no draw is larger.
/// `None` where the limit is not leased, and each request asks the engine.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::Quota;
/// use tidegate::store::leased::most_held;
/// let quota = Arc::new(Quota::per_second(1_000).burst(1_000).gcra()?);
/// assert_eq!(most_held(&quota, 2), Some(25), "an even part of 5 % of the burst");
/// assert_eq!(most_held(&quota, 100), None, "less than two units");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[must_use]
pub fn most_held(quota: &Arc<Quota>, nodes: u64) -> Option<u64> {
    terms::most_held(quota, nodes, &USUAL)
}

/// A store that draws units from an engine ahead of time; see the [module](self).
///
/// Cheap to clone; clones are the same store. A charge whose units are in a pocket costs a lock and a look into a map, allocates nothing and
/// is answered on the spot. Takes about half a kilobyte for each key in use, and never more than for the stated number of keys; others are
/// decided by the engine.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::store::{Charge, DecidedBy, Leased, Op, PlainStore, Step, Store};
/// use tidegate::{Clock, Cost, ManualClock, Quota, Tick};
///
/// # let engine = PlainStore::default();
/// let clock = ManualClock::at(Tick::from_secs(1_000));
/// let store = Leased::around(engine, clock.clone()).build();
/// let quota = Arc::new(Quota::per_second(1_000).burst(1_000).gcra()?);
/// let mut by = Vec::new();
/// for _ in 0..100 {
///     clock.advance(std::time::Duration::from_millis(1));
///     let charges = [Charge::new(b"key", &quota, Cost::ONE)];
///     by.push(store.blocking_settle(&Step::new(clock.now(), Op::Take, &charges))?.by);
/// }
/// assert_eq!(by[99], DecidedBy::Lease);
/// assert!(store.health().messages < 20, "one call for many requests");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Leased {
    inner: Arc<Inner>,
}

/// Makes a [`Leased`]. All nodes of a deployment have to choose the same, but for keys and background.
#[must_use = "a leased store is made by `build`"]
pub struct LeasedBuilder {
    engine: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    part: Part,
    options: LeaseOptions,
    keys: usize,
    background: Background,
}

impl LeasedBuilder {
    /// Says which part of the outstanding units is this node's; all of them unless it is said. The parts of all nodes must never add up to
    /// more than the whole: where nobody keeps them so, [`Part::even`] of the most nodes there may ever be does.
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    /// Chooses how many thousandths of a burst all nodes together may hold, 1 to 500; [`OUTSTANDING`] unless chosen. A number out of range
    /// counts as the nearest within.
    pub const fn outstanding(mut self, per_mille: u64) -> Self {
        self.options.outstanding = if per_mille == 0 {
            1
        } else if per_mille > 500 {
            500
        } else {
            per_mille
        };
        self
    }

    /// Lets the engine have the whole burst: all nodes together may then admit more than the limit, by the outstanding units at most.
    pub const fn bounded(mut self) -> Self {
        self.options.strict = false;
        self
    }

    /// Chooses how much of its own demand a node draws at once; [`TARGET`] unless chosen.
    pub const fn target(mut self, target: Duration) -> Self {
        self.options.target = target;
        self
    }

    /// Chooses how long units may be held; [`LASTS`] unless chosen.
    pub const fn lasts(mut self, lasts: Duration) -> Self {
        self.options.lasts = lasts;
        self
    }

    /// Chooses for how many keys pockets are kept, rounded up to a multiple of 64; [`KEYS`] unless chosen.
    pub const fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Replaces what runs the calls to the engine that no request waits for: draws ahead of need, and units given back. Each takes half a
    /// minute at most. The default is one thread; a program with a runtime passes them to it, as for
    /// [`Gate::with_background`](crate::Gate::with_background).
    pub fn background(mut self, run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        self.background = Background::new(run);
        self
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> Leased {
        let Self { engine, clock, part, options, keys, background } = self;
        let (terms, table) = (AllTerms::new(options), Table::new(keys));
        Leased {
            inner: Arc::new(Inner {
                engine,
                clock,
                part,
                terms,
                table,
                background,
                counts: Counts::default(),
                round_trip: AtomicU64::new(0),
            }),
        }
    }
}

impl fmt::Debug for LeasedBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedBuilder")
            .field("engine", &self.engine)
            .field("part", &self.part)
            .field("options", &self.options)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl Leased {
    /// Builds a leased store around an engine's. The clock has to be the one whose ticks steps carry: the gate's.
    pub fn around(engine: impl Store + 'static, clock: impl Clock + 'static) -> LeasedBuilder {
        LeasedBuilder {
            engine: Arc::new(engine),
            clock: Arc::new(clock),
            part: Part::even(1),
            options: USUAL,
            keys: KEYS,
            background: Background::default(),
        }
    }

    /// Gives back what was held too long or is above this node's part, and forgets idle keys. To be called a few times within the time that
    /// units may be held, by whoever has a timer. `None` where there is nothing to send; else the future sends it, and does nothing before
    /// it is polled.
    ///
    /// Costs a look at each key.
    ///
    /// # Cancel safety
    /// If dropped before it ends, what was not sent stays spent until time returns it.
    #[must_use = "what is given back has to be sent: await the future"]
    pub fn tick(&self, now: Tick) -> Option<Later<()>> {
        self.send(self.inner.tidy(now, false))
    }

    /// Gives back all that is held, as a server does that shuts down, when no request comes any more.
    ///
    /// # Cancel safety
    /// As [`Leased::tick`].
    pub async fn close(&self) {
        let returns = self.inner.tidy(self.inner.clock.now(), true);
        self.inner.give_all_back(returns).await;
    }

    /// Returns how the leases of this node go. Costs a look at each key.
    #[must_use]
    pub fn health(&self) -> LeaseHealth {
        self.inner.health()
    }

    fn send(&self, returns: Vec<drawing::Return>) -> Option<Later<()>> {
        let inner = Arc::clone(&self.inner);
        (!returns.is_empty())
            .then(|| -> Later<()> { Box::pin(async move { inner.give_all_back(returns).await }) })
    }
}

impl Store for Leased {
    #[inline]
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        self.inner.settle(step, out)
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        self.inner.settle_each(steps, out)
    }

    fn occupancy(&self) -> Occupancy {
        self.inner.engine.occupancy()
    }

    fn caps(&self) -> Caps {
        Caps { may_wait: true, always_decides: false, ..self.inner.engine.caps() }
    }

    fn home(&self) -> Home {
        self.inner.engine.home()
    }

    fn home_of(&self, by_fallback: bool) -> Home {
        self.inner.engine.home_of(by_fallback)
    }
}
