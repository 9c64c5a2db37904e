//! The gate combines policies, stores and a clock: one check decides many limits, all or nothing.
//!
//! Protocol code turns bytes into a [`Descriptor`](crate::Descriptor) and a [`Cost`]. The gate asks the policy set
//! which limits match, reads the time, and has the store settle them all in one step. If policies are decided in
//! different stores ([`Gate::with_store`]), each store settles its part, and either all parts are settled or none. If
//! every limit either permits at once or refuses, the gate uses the process's shared tick, and checks a refusal again
//! with the exact clock (see [`Precision`]); shadow limits and queues use the exact clock from the start, because their
//! answers cannot be taken back. The decision names the policy that binds. The gate is independent of any protocol:
//! status codes and headers are up to the caller.

mod admission;
mod blocking;
mod blocks;
mod booking;
mod by_usage;
mod caller_waits;
mod charged;
mod check;
mod check_each;
mod check_together;
mod decide;
mod endings;
mod fetch;
mod finishing;
mod giving_back;
mod in_flight;
mod inline_quota;
mod load;
mod observed;
#[cfg(feature = "ticket")]
mod open_tickets;
mod over_limit;
mod places;
mod rounds;
mod routes;
mod sensing;
mod settling;
mod several_stores;
mod single_keys;
mod stored_blocks;
#[cfg(feature = "ticket")]
pub mod ticket;
mod together_plain;
mod unsupported;
pub(crate) mod waits;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Priority, Quota, Retry, Tick};

pub use admission::{Admission, Admitting, Entry};
pub use blocking::{BlockError, Blocks};
#[cfg(feature = "ticket")]
pub use by_usage::FinishedBy;
pub use charged::{Charged, ChargedLine, Part};
pub use check::Check;
pub use check_each::CheckingEach;
pub use check_together::{CheckingTogether, Together};
pub use decide::Checking;
pub use endings::{Fate, Finished, SettledCharge};
pub use finishing::{AsCharged, Finishing, FinishingCharges};
use load::Sensing;
use observed::Observed;
pub use places::PlacesStanding;
use routes::Routes;
pub use sensing::Signals;
pub use single_keys::{KeyedView, Keys, SettlingCharge};
pub use unsupported::Unfit;
pub use waits::Asking;

use crate::policy::{Limit, PolicySet, Refusal, Share};
use tidegate_limits::Precision;
use tidegate_limits::background::Background;
use tidegate_limits::clock::{Clock, SystemClock, Time};
use tidegate_limits::store::{CapacityError, DecidedBy, Later, MemoryStore, Occupancy, Store, StoreError};

/// The longest name of a node, in bytes: enough for a usual host name with a port.
const LONGEST_ISSUER: usize = 128;

/// Decides requests under a policy set.
///
/// Share it in an `Arc`; every method takes `&self`. A check usually allocates nothing, and holds no lock but the
/// store's.
#[derive(Debug)]
pub struct Gate {
    policies: ArcSwap<PolicySet>,
    routes: Routes,
    blocks: blocks::BlockTable,
    /// The blocks that policies in shadow mode would have begun.
    would_be_blocks: blocks::BlockTable,
    /// Runs the calls to engines whose callers no longer wait.
    background: Background,
    time: Time,
    precision: Precision,
    /// Whether the calendar windows of the policies follow the clock's wall time.
    on_wall: AtomicBool,
    /// The sources of conditions and moving rates.
    sensing: Sensing,
    /// The name of this node in tickets.
    issuer: Arc<str>,
    observed: Observed,
}

/// One limit's part in a [`GateDecision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    /// Index of the policy in [`GateDecision::policies`].
    pub policy: usize,
    /// Index of the limit within the policy; a shadow limit comes after the policy's own.
    pub limit: usize,
    /// Whether a refusal by this limit refuses the request: `false` for shadow limits and in shadow mode.
    pub binding: bool,
    /// Whether the policy charges failures only: a later report of the outcome decides whether the charge stays.
    pub on_failure: bool,
    /// Whether the limit may delay the request.
    pub delays: bool,
    /// The units or places asked of this limit.
    pub cost: Cost,
    /// The units or places that the limit keeps back from this request, for others of higher priority.
    pub kept_back: u64,
    /// What this limit decided by itself, and its standing afterwards.
    pub decision: Decision,
}

impl LimitDecision {
    /// Returns how much a request of this priority may still take at once: what remains, minus what is kept back from
    /// it. For a limit that may delay requests, nothing is subtracted, because the units kept back may be ones that a
    /// request waits for. While a fallback store decides in place of an engine for one of several nodes, the number may
    /// be less than what this node could take.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> u64 {
        let remaining = self.decision.standing.remaining;
        if self.delays { remaining } else { remaining.saturating_sub(self.kept_back) }
    }

    /// Reports whether the policy could not determine what the request costs, and refuses it for that
    /// ([`OnCostError::Deny`](crate::policy::OnCostError::Deny)). No request costs this much otherwise.
    #[must_use]
    pub fn cost_is_unknown(&self) -> bool {
        self.cost == crate::policy::UNKNOWN_COST
    }
}

/// The answer to one request.
#[derive(Clone, Debug)]
#[must_use = "a decision has no effect unless the caller follows it"]
pub struct GateDecision {
    /// Whether the request may pass, now or after [`GateDecision::wait`].
    pub allowed: bool,
    /// How long to delay the request; only queues delay.
    pub wait: Duration,
    /// Every limit that matched and was checked, in the order of the policies. If one store refuses, later stores are
    /// not asked.
    pub limits: SmallVec<[LimitDecision; 4]>,
    /// Index into `limits` of the limit that binds: after a denial, the one whose refusal lasts longest; otherwise the
    /// one with least remaining.
    pub binding: Option<usize>,
    /// The refusal by a deny-list, a deadline or a block of the key; in that case no limit was checked.
    pub refusal: Option<Box<Refusal>>,
    /// What policies with [`ChargeOn::Always`](crate::policy::ChargeOn::Always) were charged although a limit refused;
    /// `None` if there was nothing of the kind to charge.
    pub anyway: Option<Box<ChargedAnyway>>,
    /// The priority that the request was decided for: the check's own, or the one that demoting policies lowered it to
    /// ([`GateDecision::over`]).
    pub priority: Priority,
    /// The quota that the check brought, which applied in place of the limits' own; see
    /// [`Check::quota`](field@Check::quota).
    pub brought: Option<Arc<Quota>>,
    /// The tick of the decision, by the clock that decided.
    pub at: Tick,
    /// Who decided. If several stores decided, the one furthest from the caller is named; if one of them was a
    /// fallback, the fallback.
    pub by: DecidedBy,
    /// The policies that applied.
    pub policies: InForce,
}

/// What policies with [`ChargeOn::Always`](crate::policy::ChargeOn::Always) were charged although a limit refused.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChargedAnyway {
    /// The limits that were charged: the index of the policy in [`GateDecision::policies`], the index of the limit within
    /// the policy, and the units.
    pub lines: Vec<(usize, usize, Cost)>,
    /// The error of a store that did not charge its limits; those are not in `lines`.
    pub error: Option<StoreError>,
}

/// The policies in force at one moment; dereferences to an `Arc<PolicySet>`.
///
/// A check holds the set by a lease rather than a reference count, since all threads would write to that count. A clone
/// holds a reference count. Leases are meant for the duration of a request: to keep the policies longer, clone the
/// `Arc`.
#[derive(Debug)]
pub struct InForce(Guard<Arc<PolicySet>>);

impl Deref for InForce {
    type Target = Arc<PolicySet>;

    fn deref(&self) -> &Arc<PolicySet> {
        &self.0
    }
}

impl Clone for InForce {
    fn clone(&self) -> Self {
        Self(Guard::from_inner(Arc::clone(&self.0)))
    }
}

impl GateDecision {
    /// Replaces the lease on the policies by a reference count and returns the policies; for decisions that are
    /// awaited. A thread has eight cheap leases, which are left to checks that are not awaited.
    fn keep_policies(&mut self) -> InForce {
        let kept = self.policies.clone();
        self.policies = kept.clone();
        kept
    }

    /// Returns the index of the policy that binds, if any limit matched.
    #[must_use]
    pub fn policy(&self) -> Option<usize> {
        match &self.refusal {
            Some(refusal) => refusal.policy,
            None => self.binding.map(|at| self.limits[at].policy),
        }
    }

    /// Returns the name of the policy that binds, if any limit matched.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.policy().map(|at| self.policies.policies()[at].name.as_str())
    }

    /// Returns when the same request is worth repeating; a zero wait if it was allowed.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.binding {
            _ if self.allowed => Retry::After(Duration::ZERO),
            Some(binding) => self.limits[binding].decision.retry(),
            // A deny-list refuses, and waiting does not change that.
            None if let Some(refusal) = &self.refusal => match &refusal.block {
                Some(block) => Retry::After(block.until.since(self.at)),
                None => Retry::Never,
            },
            // Not all limits were checked, because another check of the same call refuses.
            None => Retry::Unknown,
        }
    }

    /// Returns the limits that refuse, without shadow limits.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitDecision> {
        self.limits.iter().filter(|limit| limit.binding && !limit.decision.is_allowed())
    }
}

impl Gate {
    /// Creates a gate over a store, with the machine's clock.
    #[must_use]
    pub fn new(policies: impl Into<Arc<PolicySet>>, store: impl Store + 'static) -> Self {
        let time = Time::new(SystemClock::new());
        Self {
            policies: ArcSwap::new(policies.into()),
            routes: Routes::new(Arc::new(store)),
            blocks: blocks::BlockTable::default(),
            would_be_blocks: blocks::BlockTable::default(),
            background: Background::default(),
            time,
            precision: Precision::default(),
            on_wall: AtomicBool::new(false),
            sensing: Sensing::default(),
            issuer: Arc::default(),
            observed: Observed::default(),
        }
    }

    /// Creates a gate with room for `keys` live keys in memory, 1 to [`MemoryStore::MAX_KEYS`].
    ///
    /// # Errors
    /// [`CapacityError`] if the number is out of range or the system cannot allocate the memory.
    pub fn in_memory(policies: impl Into<Arc<PolicySet>>, keys: usize) -> Result<Self, CapacityError> {
        Ok(Self::new(policies, MemoryStore::with_capacity(keys)?))
    }

    /// Replaces the clock, for example by a virtual one for tests and replays.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Time::new(clock);
        self
    }

    /// Sets the store that decides policies with `share: local` (or `split`, `central`, `leased`). Policies without
    /// `share` are decided by the store that the gate was created with. That store also decides `local` if it keeps the
    /// keys of this process, or `central` if several nodes share it, unless that word gets another store here. Checks
    /// of a policy whose word has no store fail with [`StoreError::NoStore`]. If a
    /// word gets two stores, the later one decides and the earlier one is dropped.
    ///
    /// A request whose policies lie in several stores is settled all or nothing: the stores of this process are asked
    /// first and engines last, and what was taken is undone if a later store refuses or fails. Until then, other
    /// requests see it as taken.
    #[must_use]
    pub fn with_store(mut self, share: Share, store: impl Store + 'static) -> Self {
        self.routes.add(share, Arc::new(store));
        self
    }

    /// Makes the store that the gate was created with also decide policies with `share: leased` (or another word).
    ///
    /// Passing the same store to [`Gate::with_store`] would make it a second store for the gate: a request under
    /// policies with and without that word would take two steps instead of one, and a reset would be sent twice.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{PolicySet, Share};
    /// use tidegate::store::MemoryStore;
    /// use tidegate::Gate;
    ///
    /// let memory = MemoryStore::with_capacity(1_000)?;
    /// let gate = Gate::new(PolicySet::default(), memory).with_own_store_for(Share::Split);
    /// # drop(gate);
    /// # Ok::<(), tidegate::store::CapacityError>(())
    /// ```
    #[must_use]
    pub fn with_own_store_for(mut self, share: Share) -> Self {
        self.routes.give_own(share);
        self
    }

    /// Replaces the executor of calls to engines that no caller waits for any more: undoing charges and leaving places,
    /// because an admission or a check was dropped. Each call takes at most half a minute. The default is one thread,
    /// started when first needed; it runs 1024 calls at once, queues 1024 more, and drops any others. A program with a
    /// runtime passes the calls to the runtime's handle, since they may come from any thread: `move |later|
    /// drop(runtime.spawn(later))`. While an engine without a deadline of its own (`Fallback`
    /// has one) does not answer, the runtime holds as many calls as callers leave behind in half a minute.
    #[must_use]
    pub fn with_background(mut self, run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        self.background = Background::new(run);
        self
    }

    /// Sets how exactly the gate takes the time: [`Precision::Exact`] or [`Precision::Shared`]; [`Precision::Leased`]
    /// is the same as `Shared` here.
    #[must_use]
    pub const fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Names this node in its tickets, as an address such as `10.0.0.7:8080`. Another node that receives a ticket of a
    /// store in this node's memory can then report which node it belongs to. Names are cut after 128 bytes; by default
    /// the node has no name.
    #[must_use]
    pub fn with_issuer(mut self, name: &str) -> Self {
        self.issuer = name[..name.floor_char_boundary(LONGEST_ISSUER)].into();
        self
    }

    /// Returns the policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }

    /// Puts other policies in force. Counters survive: keys contain the names of policies, and a changed limit of the
    /// same algorithm takes over what was spent when the key is next used. Learned estimates are taken over by policy
    /// name.
    pub fn replace(&self, policies: impl Into<Arc<PolicySet>>) {
        let policies = policies.into();
        policies.learn_from(&self.policies.load());
        self.follow_wall(&policies);
        self.policies.store(policies);
    }

    /// Makes the calendar windows and aligned buckets of policies follow the wall clock, where this gate's clock decides them. An engine
    /// with a clock of its own has the wall clock's time.
    #[cold]
    fn follow_wall(&self, policies: &PolicySet) {
        let Some(wall) = self.time.clock().wall() else { return };
        for policy in policies.policies() {
            if self.routes.of(policy.share).is_ok_and(|store| self.routes.store(store).caps().own_clock) {
                continue;
            }
            let limits = policy.limits.iter().chain(&policy.shadow_limit);
            for quota in limits.flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref()) {
                quota.follow_wall(&wall);
            }
        }
    }

    /// Returns the policies in force for a check.
    #[inline]
    fn in_force(&self) -> Guard<Arc<PolicySet>> {
        let policies = self.policies.load();
        // Relaxed: whoever sees it late does the same again, without effect.
        if !self.on_wall.load(Ordering::Relaxed) {
            self.follow_wall(&policies);
            self.on_wall.store(true, Ordering::Relaxed);
        }
        policies
    }

    /// Returns how full the store is that the gate was created with.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.routes.own().occupancy()
    }

    /// Returns the present tick of the gate's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.time.now()
    }
}
