//! Policies, store and clock together: one check over many limits, all or nothing.
//!
//! A protocol's code turns bytes into a [`Descriptor`](crate::Descriptor) and a [`Cost`]; the gate asks the policy set which limits match,
//! takes the time, and has the store settle them all in one step. Where policies say that they are decided elsewhere
//! ([`Gate::with_store`]), each store settles its part, and all of them do or none. If every limit either permits at once or refuses, the
//! time is the process's shared tick, and a refusal is settled once more by the clock (see [`Precision`]); shadows and queues go by the
//! clock from the start, because their answers cannot be taken back. The decision names the policy that binds. The gate knows no protocol:
//! status codes and headers are the caller's business.

mod admission;
mod blocking;
mod blocks;
mod booking;
mod breakers;
mod brought;
mod by_usage;
mod caller_limits;
mod charged;
mod check;
mod check_each;
mod check_together;
mod decide;
mod endings;
mod fetch;
mod giving_back;
mod in_flight;
mod load;
#[cfg(feature = "ticket")]
mod open_tickets;
mod over;
mod places;
mod rounds;
mod routes;
mod sensing;
mod settling;
mod several_stores;
mod standing;
#[cfg(feature = "ticket")]
pub mod ticket;
mod together_plain;
mod unfit;
mod waits;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Priority, Quota, Retry, Tick};

pub use admission::{Admission, Entry};
pub use blocking::BlockError;
pub use breakers::KeyedView;
#[cfg(feature = "ticket")]
pub use by_usage::FinishedBy;
pub use charged::{Charged, ChargedLine, Part};
pub use check::Check;
pub use check_together::Together;
pub use endings::{Fate, Finished, Followed};
use load::Sensing;
pub use places::PlacesStanding;
use routes::Routes;
pub use unfit::Unfit;

use crate::background::Background;
use crate::clock::{Clock, SystemClock, Time};
use crate::policy::{PolicySet, Refusal, Share};
use crate::precision::Precision;
use crate::store::{CapacityError, DecidedBy, Later, MemoryStore, Occupancy, Store};

/// The longest name of a node, in bytes: enough for a usual host name and a port.
const LONGEST_ISSUER: usize = 128;

/// Decides requests under a policy set.
///
/// Share it behind an `Arc`; every call takes `&self`. A check allocates nothing in the usual case and holds no lock but the
/// store's.
#[derive(Debug)]
pub struct Gate {
    policies: ArcSwap<PolicySet>,
    routes: Routes,
    blocks: blocks::Blocks,
    /// Runs what an engine has to be told when nobody waits for it.
    background: Background,
    time: Time,
    precision: Precision,
    /// What conditions and moving rates go by.
    sensing: Sensing,
    /// The name of this node in tickets.
    issuer: Arc<str>,
}

/// One limit's part in a [`GateDecision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    /// Index of the policy in [`GateDecision::policies`].
    pub policy: usize,
    /// Index of the limit within the policy; a shadow limit comes after the policy's own.
    pub limit: usize,
    /// Whether its refusal refuses the request: `false` in shadow.
    pub binding: bool,
    /// Whether the policy charges failures only: a report of the outcome then decides whether the charge stays.
    pub on_failure: bool,
    /// Whether the limit may delay the request.
    pub delays: bool,
    /// The units or places asked of this limit.
    pub cost: Cost,
    /// The units or places that it keeps back from this request, for others of higher priority.
    pub kept_back: u64,
    /// What this limit by itself decided, and how it stands now.
    pub decision: Decision,
}

impl LimitDecision {
    /// Returns what a request of this priority may still take at once: what remains, without what is kept back from it. Of a limit that
    /// may delay it is all that remains, because there the part that is kept back may lie in the delay. While a store that stands in for an
    /// engine decides for one of several nodes, it may be less than what is there for this node.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> u64 {
        let remaining = self.decision.standing.remaining;
        if self.delays { remaining } else { remaining.saturating_sub(self.kept_back) }
    }
}

/// The answer to one request.
#[derive(Clone, Debug)]
#[must_use = "a decision is worth nothing unless it is followed"]
pub struct GateDecision {
    /// Whether the request may pass, now or after [`GateDecision::wait`].
    pub allowed: bool,
    /// How long to hold it back: only queues delay.
    pub wait: Duration,
    /// Every limit that matched and was asked, in the order of the policies. When one store refuses, the stores after it are not asked.
    pub limits: SmallVec<[LimitDecision; 4]>,
    /// Index into `limits` of the limit that binds: when denied, the one whose refusal lasts longest; else the one with least left.
    pub binding: Option<usize>,
    /// The deny-list that refused the request, the time that it has left, or the block of its key; no limit was asked then.
    pub denied_by_list: Option<Box<Refusal>>,
    /// The priority that it was decided for: the check's own, or what policies that demote left of it ([`GateDecision::over`]).
    pub priority: Priority,
    /// The quota that the check brought, which held in place of the limits' own; see [`Check::quota`](field@Check::quota).
    pub brought: Option<Arc<Quota>>,
    /// The tick of the decision, by the clock that decided.
    pub at: Tick,
    /// What decided: of several stores the one furthest from the caller, and a fallback before all others.
    pub by: DecidedBy,
    /// The policies it was decided under.
    pub policies: InForce,
}

/// The policies that were in force at one moment; reads as an `Arc<PolicySet>`.
///
/// A check holds the set by a lease and not by a reference count, which all threads would write to. A clone holds a reference count. Leases
/// are made for as long as a request takes: to keep the policies longer, clone the `Arc`.
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
    /// Holds the policies by a reference count from now on, and not by a lease, and returns them: for decisions that are awaited. A thread
    /// has eight leases that cost nothing, which are left to checks that are not awaited.
    fn keep_policies(&mut self) -> InForce {
        let kept = self.policies.clone();
        self.policies = kept.clone();
        kept
    }

    /// Returns the index of the policy that binds, if any limit matched.
    #[must_use]
    pub fn policy(&self) -> Option<usize> {
        match &self.denied_by_list {
            Some(refusal) => refusal.policy,
            None => self.binding.map(|at| self.limits[at].policy),
        }
    }

    /// Returns the name of the policy that binds, if any limit matched.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.policy().map(|at| self.policies.policies()[at].name.as_str())
    }

    /// Returns when the same request is worth repeating; after no time when it was allowed.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.binding {
            _ if self.allowed => Retry::After(Duration::ZERO),
            Some(binding) => self.limits[binding].decision.retry(),
            // A deny-list refuses, and does not change by waiting.
            None if let Some(refusal) = &self.denied_by_list => match &refusal.block {
                Some(block) => Retry::After(block.until.since(self.at)),
                None => Retry::Never,
            },
            // Not all of its limits were asked, because another check of the same call refuses.
            None => Retry::Unknown,
        }
    }

    /// Returns the limits that refuse, shadows left out.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitDecision> {
        self.limits.iter().filter(|limit| limit.binding && !limit.decision.is_allowed())
    }
}

impl Gate {
    /// Makes a gate over a store, on the machine's clock.
    #[must_use]
    pub fn new(policies: impl Into<Arc<PolicySet>>, store: impl Store + 'static) -> Self {
        let time = Time::new(SystemClock::new());
        Self {
            policies: ArcSwap::new(policies.into()),
            routes: Routes::new(Arc::new(store)),
            blocks: blocks::Blocks::default(),
            background: Background::default(),
            time,
            precision: Precision::default(),
            sensing: Sensing::default(),
            issuer: Arc::default(),
        }
    }

    /// Makes a gate with room for `keys` live keys in memory, 1 to [`MemoryStore::MAX_KEYS`].
    ///
    /// # Errors
    /// [`CapacityError`] for a number out of range, or where the system hands out no memory for so many.
    pub fn in_memory(policies: impl Into<Arc<PolicySet>>, keys: usize) -> Result<Self, CapacityError> {
        Ok(Self::new(policies, MemoryStore::with_capacity(keys)?))
    }

    /// Replaces the clock: a virtual one for tests and replays.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Time::new(clock);
        self
    }

    /// Chooses the store that decides policies with `share: local` (or `split`, `central`, `leased`). Policies that name no `share` go to
    /// the store that the gate was made with. That store also decides `local` if it keeps the keys of this process, or `central` if several
    /// nodes share it, unless another store is given for that word here. Checks of a policy whose word has no store fail with
    /// [`StoreError::NoStore`](crate::store::StoreError::NoStore). If a word is given two stores, the later one decides, and the other is
    /// dropped.
    ///
    /// A request whose policies lie in several stores is settled all or none: the stores of this process are asked first, engines last, and
    /// what was taken is undone when a later one refuses or fails. In between, other requests see it taken.
    #[must_use]
    pub fn with_store(mut self, share: Share, store: impl Store + 'static) -> Self {
        self.routes.add(share, Arc::new(store));
        self
    }

    /// Has the store that the gate was made with decide policies with `share: leased` (or another word) too.
    ///
    /// The same store given to [`Gate::with_store`] is a second one to the gate: a request under policies with and without that word is then
    /// two steps, where it could be one, and a reset is sent twice.
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

    /// Replaces what runs the calls to engines that nobody waits for any more: charges that are undone and places that are left, because an
    /// admission or a check was dropped. Each call takes half a minute at most. The default is one thread, started when it is first needed;
    /// it runs 1024 calls at once, lets 1024 more wait, and drops the rest. A program with a runtime passes the calls to it by its handle,
    /// since they may come from any thread: `move |later| drop(runtime.spawn(later))`. While an engine without a deadline of its own
    /// ([`Fallback`](crate::store::Fallback) has one) is silent, the runtime holds as many calls as callers leave behind in half a minute.
    #[must_use]
    pub fn with_background(mut self, run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        self.background = Background::new(run);
        self
    }

    /// Chooses how exactly the gate takes the time: [`Precision::Exact`], or [`Precision::Shared`]; [`Precision::Leased`] is the same as
    /// `Shared` here.
    #[must_use]
    pub const fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Names this node in its tickets, so that another one that is handed a ticket of a store in this node's memory can say whose it
    /// is: an address such as `10.0.0.7:8080`. Cut after 128 bytes; unnamed where it is not called.
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

    /// Puts other policies in force. Counters survive: keys are named after policies, and a changed limit of the same
    /// algorithm takes over what was spent when the key is next used. Estimates that policies have learnt go on by their names.
    pub fn replace(&self, policies: impl Into<Arc<PolicySet>>) {
        let policies = policies.into();
        policies.learn_from(&self.policies.load());
        self.policies.store(policies);
    }

    /// Returns how full the store is that the gate was made with.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.routes.own().occupancy()
    }

    /// Returns now, by the gate's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.time.now()
    }
}
