//! Draws units from an engine ahead of time, so that most requests need no call to the engine.
//!
//! A [`Leased`] wraps an engine's store. A node *draws* many units in one call ([`Op::Draw`]), keeps them in a *batch*
//! for a short time, and grants requests out of it ([`DecidedBy::Lease`]). Units not spent in time are given back by
//! settling the draw's receipt. Node clocks only measure spans, so they need not agree.
//!
//! # The bound
//! Each unit that a request spends was drawn before. So in any span, all nodes together admit at most what the engine
//! allows in it, plus the units that were in batches when it began. These are at most `O`, a configured part of the
//! burst ([`LeasedBuilder::outstanding`]). In the *strict* form, the default, the engine's burst is smaller by `O`, and
//! the excess over the limit is exactly 0. With [`LeasedBuilder::bounded`] the engine has the whole burst, and the
//! excess is at most `O`. Lost or late replies, crashes and clock errors only make batches smaller, never larger.
//!
//! `O` is divided among the nodes by their [`Part`]s. A node whose part shrinks gives back the surplus before it spends
//! another unit.
//!
//! # Which limits
//! | limit | leased | otherwise |
//! |---|---|---|
//! | GCRA, leaky bucket, token bucket of one bandwidth that refills evenly | yes | by the engine, if the burst is too small for `O ≥ 1` |
//! | fixed window, rolling or of the calendar | yes, within the window: the excess is 0 in both forms | |
//! | token bucket of several bandwidths or with refills at once, sliding window, counter and log, warm-up, profiles of peers | no | by the engine |
//! | charges that accept a wait; queues | no | by the engine |
//! | places, breakers | no | by the engine; there, a place is a lease of its own, which lapses after its time to live |
//!
//! A limit that is not leased takes one call for each request, as with `share: central`; in the strict form by the
//! smaller limit. So the largest cost that a strict limit ever grants is its burst less `O`.
//!
//! # When units are drawn
//! A key without recent requests is decided in one call, which draws what the request needs. The higher its demand,
//! the more is drawn at once, up to what the demand needs in a configured time ([`LeasedBuilder::target`]). When half
//! of the batch is spent, the next draw is made in the background. At most one draw per key is in flight. Requests
//! that need it wait for it together, for the target time or three round trips, whichever is longer, and then ask the
//! engine themselves, as do later requests until the draw arrives or fails. Where no units are left, the engine grants
//! those of the near future; until then, requests are refused here without a call. So they are after the engine
//! refuses, until the time that it names, but for no longer than units may be held ([`LeasedBuilder::lasts`]): units
//! may come back elsewhere. Units that come back through this node are drawn again at once.
//!
//! Requests start the draws; this store has no timer. [`Leased::tick`] gives back what idle keys hold: without it, idle
//! units stay spent until the limit refills.
//!
//! # Settling, and tickets
//! The receipt of a leased charge is the engine's receipt of these very units: any node may end it at any time. Units
//! that come back go to the engine's limit, and a debt is booked there. A charge that used exactly what it was charged
//! needs no call.
//!
//! # Failures
//! Put a [`Fallback`](crate::Fallback) between the engine and this store. While the engine is gone, batches are spent
//! to their end; then the fallback decides, as each charge says. The batch of a node that crashes is lost until the
//! limit refills.

mod allowance;
mod asking;
mod draws;
mod leasable;
mod lease;
mod refusals;
mod request;
mod state;
mod table;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub use asking::LeaseHealth;
use leasable::{AllTerms, LeaseOptions};
use request::standing;
use state::{LeaseCounters, LeasedState};
use table::LeaseTable;
use tidegate_core::decision::Ruling;
use tidegate_core::{Decision, Quota, Tick};
use tidegate_limits::Background;
use tidegate_limits::clock::Clock;
use tidegate_limits::store::refuse_repeated;
use tidegate_limits::store::{
    Caps, ChargeAnswer, DecidedBy, Ending, Executed, Execution, Later, Occupancy, Op, Step, StepAnswer, Store,
};

use crate::Part;

/// The default share of a burst that all nodes together may hold, in thousandths. With a smaller share, nodes draw more
/// often.
const OUTSTANDING: u64 = 50;

/// The default size of a draw, as the time in which the node's demand needs it: a few tens of round trips within one
/// building.
pub const TARGET: Duration = Duration::from_millis(50);

/// The default time for which units may be held: units stranded at an idle node come back after that.
const LASTS: Duration = Duration::from_secs(1);

/// The default number of keys that have batches: about 30 MB.
const KEYS: usize = 65_536;

const USUAL: LeaseOptions =
    LeaseOptions { outstanding: OUTSTANDING, strict: true, target: TARGET, lasts: LASTS, nodes: 1 };

/// Returns the most units of a limit that one of `nodes` nodes holds near the engine, if each node has an even part and all
/// options are the defaults; far away it may hold its part of the burst. `settled`: its policy's charges are usually settled
/// with another cost. `None` where the engine decides each request.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::Quota;
/// use tidegate::store::leased::most_held;
/// let quota = Arc::new(Quota::per_second(1_000).burst(1_000).gcra()?);
/// assert_eq!(most_held(&quota, 2, false), Some(64), "a call for many requests");
/// assert_eq!(most_held(&quota, 2, true), Some(25), "an even part of 5 % of the burst");
/// assert_eq!(most_held(&quota, 100, false), None, "a part of ten units");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[must_use]
pub fn most_held(quota: &Arc<Quota>, nodes: u64, settled: bool) -> Option<u64> {
    leasable::most_held(quota, settled, &LeaseOptions { nodes, ..USUAL })
}

/// A store that draws units from an engine ahead of time; see the [module](self).
///
/// Cheap to clone; clones share one store. A charge whose units are in a batch, or that the engine has just refused, costs
/// a lock and a lookup in a map, allocates nothing and is answered on the spot. Takes about half a kilobyte for each key in
/// use, up to the configured number of keys; other keys are decided by the engine.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::clock::{Clock, ManualClock};
/// use tidegate::store::{Charge, DecidedBy, Leased, Op, PlainStore, Step, Store};
/// use tidegate::{Cost, Quota, Tick};
///
/// # let engine = PlainStore::default();
/// let clock = ManualClock::at(Tick::from_secs(1_000));
/// let store = Leased::around(engine, clock.clone()).build();
/// let quota = Arc::new(Quota::per_second(1_000).burst(1_000).gcra()?);
/// let mut by = Vec::new();
/// for _ in 0..100 {
///     clock.advance(std::time::Duration::from_millis(1));
///     let charges = [Charge::new(b"key", &quota, Cost::ONE)];
///     by.push(store.blocking_execute(&Step::new(clock.now(), Op::Take, &charges))?.by);
/// }
/// assert_eq!(by[99], DecidedBy::Lease);
/// assert!(store.health().messages < 20, "one call for many requests");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Leased {
    inner: Arc<LeasedState>,
}

/// Builds a [`Leased`]. All nodes of a deployment have to choose the same options, except for `keys` and `background`.
#[must_use = "a leased store is made by `build`"]
pub struct LeasedBuilder {
    engine: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    part: Option<Part>,
    options: LeaseOptions,
    keys: usize,
    background: Background,
}

impl LeasedBuilder {
    /// Sets the most nodes that there may ever be; 1 by default. Each may hold an even part, if no
    /// [`part`](LeasedBuilder::part) is set.
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.options.nodes = nodes.max(1);
        self
    }

    /// Sets which part of what all nodes hold is this node's, for example that of a [driver](crate::shares::Driver). The
    /// parts of all nodes must never add up to more than the whole.
    pub fn part(mut self, part: Part) -> Self {
        self.part = Some(part);
        self
    }

    /// Sets how many thousandths of a burst all nodes together may hold, 1 to 500; 50 by default. A number
    /// out of range counts as the nearest one in range.
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

    /// Gives the engine the whole burst: all nodes together may then admit more than the limit, by at most the
    /// outstanding units.
    pub const fn bounded(mut self) -> Self {
        self.options.strict = false;
        self
    }

    /// Sets the size of a draw: as many units as the node's demand needs in that time; [`TARGET`] by default.
    pub const fn target(mut self, target: Duration) -> Self {
        self.options.target = target;
        self
    }

    /// Sets how long units may be held; one second by default.
    pub const fn lasts(mut self, lasts: Duration) -> Self {
        self.options.lasts = lasts;
        self
    }

    /// Sets for how many keys batches are kept, rounded up to a multiple of 64; 65,536 by default.
    pub const fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Replaces the runner of calls that no request waits for: draws ahead of need, and units given back. Each takes at
    /// most half a minute. The default is one thread; a program with a runtime spawns the futures there, as with
    /// `Gate::with_background`.
    pub fn background(mut self, run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        self.background = Background::new(run);
        self
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> Leased {
        let Self { engine, clock, part, options, keys, background } = self;
        let part = part.unwrap_or_else(|| Part::even(options.nodes));
        let (terms, table) = (AllTerms::new(options), LeaseTable::new(keys));
        Leased {
            inner: Arc::new(LeasedState {
                engine,
                clock,
                part,
                terms,
                table,
                background,
                draws: AtomicBool::new(true),
                counts: LeaseCounters::default(),
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
    /// Starts building a leased store around an engine's store. The clock must be the gate's.
    pub fn around(engine: impl Store + 'static, clock: impl Clock + 'static) -> LeasedBuilder {
        LeasedBuilder {
            engine: Arc::new(engine),
            clock: Arc::new(clock),
            part: None,
            options: USUAL,
            keys: KEYS,
            background: Background::default(),
        }
    }

    /// Gives back units that were held too long or are above this node's part, and forgets idle keys. A program with a
    /// timer calls it a few times within the time that units may be held. `None` if there is nothing to send.
    ///
    /// Visits each key.
    ///
    /// # Cancel safety
    /// If dropped before it completes, units that were not sent stay spent until the limit refills.
    #[must_use = "what is given back has to be sent: await the future"]
    pub fn tick(&self, now: Tick) -> Option<Later<()>> {
        self.send(self.inner.tidy(now, false))
    }

    /// Gives back all units that are held. For the end of a server, after the last request.
    ///
    /// # Cancel safety
    /// As [`Leased::tick`].
    pub async fn close(&self) {
        let returns = self.inner.tidy(self.inner.clock.now(), true);
        self.inner.give_all_back(returns).await;
    }

    /// Stops drawing units, or goes on. A node that has stopped spends what it holds, gives back what is left when it
    /// may be held no longer, and has the engine decide everything else.
    pub fn draw_ahead(&self, draws: bool) {
        self.inner.draws.store(draws, Ordering::Relaxed);
    }

    /// Returns how long the engine takes to answer this node; zero before its first answer.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.inner.round_trip()
    }

    /// Returns whether the engine decides each request under a limit, because its burst is too small for the time that
    /// the engine takes to answer.
    #[must_use]
    pub fn is_too_far_for(&self, quota: &Arc<Quota>) -> bool {
        let part = Part::even(self.inner.terms.nodes()).at(Tick::EPOCH);
        let too_far = |terms: &Arc<leasable::Terms>| allowance::is_too_far(terms, part, self.round_trip());
        self.inner.terms.of(quota).as_ref().is_some_and(too_far)
    }

    /// Returns the health of this node's leases. Visits each key.
    #[must_use]
    pub fn health(&self) -> LeaseHealth {
        self.inner.health()
    }

    /// Calls `each` with every key that has units out, and how many ([`LeaseHealth::outstanding`]). Visits each key, and
    /// holds a lock meanwhile: `each` must not use this store.
    pub fn each_outstanding(&self, mut each: impl FnMut(&[u8], u64)) {
        let now = self.inner.clock.now();
        for mut shard in self.inner.table.shards() {
            let out = shard.entries().map(|entry| (&entry.key, entry.lease.outstanding(now)));
            out.filter(|(_, units)| *units > 0).for_each(|(key, units)| each(key, units));
        }
    }

    fn send(&self, returns: Vec<draws::Return>) -> Option<Later<()>> {
        let inner = Arc::clone(&self.inner);
        (!returns.is_empty())
            .then(|| -> Later<()> { Box::pin(async move { inner.give_all_back(returns).await }) })
    }
}

impl Store for Leased {
    #[inline]
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.inner.execute(step, out)
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        self.inner.execute_each(steps, out)
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&*self.inner.engine)
    }

    fn occupancy(&self) -> Occupancy {
        self.inner.engine.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = self.inner.engine.caps();
        (caps.may_wait, caps.keeps_abandoned, caps.always_decides) = (true, true, false);
        caps
    }
}

impl LeasedState {
    /// Ends charges that used exactly what was charged: that changes no limit, so the engine is not asked. `false` if
    /// any charge is of another kind.
    fn finish_at_once(&self, step: &Step<'_>, endings: &[Ending], out: &mut Executed) -> bool {
        if refuse_repeated(step).is_err() {
            return false;
        }
        out.lines.clear();
        for (charge, ending) in step.charges.iter().zip(endings) {
            let Ending::Finish { receipt, finish, renew: None } = ending else { return false };
            let exact = finish.used == receipt.cost.units();
            if !exact || charge.by_fallback || charge.quota.is_guard() {
                return false;
            }
            let hash = self.table.hash(charge.key);
            let mut shard = self.table.lock(hash);
            let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
                return false;
            };
            let ruling = Ruling::Allowed { wait: Duration::ZERO };
            let decision = Decision { ruling, standing: standing(entry, step.now) };
            out.lines.push(ChargeAnswer { decision, receipt: None });
        }
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        out.breaker = None;
        true
    }

    /// Answers a peek, if batches have the units; returns `false` if the engine has to be asked.
    fn peek_at_once(&self, step: &Step<'_>, out: &mut Executed) -> bool {
        if refuse_repeated(step).is_err() {
            return false;
        }
        out.lines.clear();
        for charge in step.charges {
            let hash = self.table.hash(charge.key);
            let mut shard = self.table.lock(hash);
            let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
                return false;
            };
            let (now, part) = (self.now_of(step, entry.lease.terms.is_window()), self.part.at(step.now));
            if !entry.lease.would_grant(charge.cost, charge.kept_back, now, part) {
                return false;
            }
            let decision =
                Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: standing(entry, now) };
            out.lines.push(ChargeAnswer { decision, receipt: None });
        }
        debug_assert!(matches!(step.op, Op::Peek));
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        true
    }

    /// Drops the units held of a key. Must not be called before the engine has forgotten it: until then, they are spent
    /// as usual.
    fn forget(&self, key: &[u8]) {
        let (hash, now) = (self.table.hash(key), self.clock.now());
        if let Some(entry) = self.table.lock(hash).get(hash, key) {
            self.counts.burned.fetch_add(entry.lease.forget(now), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod model;
