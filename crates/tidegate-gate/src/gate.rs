//! The gate combines policies, stores and a clock: one check decides many limits, all or nothing.
//!
//! Protocol code turns bytes into a [`Descriptor`](crate::Descriptor) and a [`Cost`](tidegate_core::Cost). The gate asks the policy set
//! which limits match, reads the time, and has the store execute them all in one step. If policies are decided in
//! different stores ([`Gate::with_store`]), each store executes its part, and either all parts are charged or none. If
//! every limit either permits at once or refuses, the gate uses the process's shared tick, and checks a refusal again
//! with the exact clock (see [`Precision`]); shadow limits and queues use the exact clock from the start, because their
//! answers cannot be taken back. The decision names the policy that binds. The gate is independent of any protocol:
//! status codes and headers are up to the caller.

mod admission;
mod blocking;
mod blocks;
mod booking;
mod charged;
mod check;
mod check_each;
mod check_together;
mod decide;
mod decision;
mod endings;
mod finishing;
mod giving_back;
mod load;
mod observed;
mod over_limit;
mod routes;
mod sensing;
mod settling;
mod several_stores;
mod single_keys;
mod stored_blocks;
#[cfg(feature = "ticket")]
pub mod ticket;
pub(crate) mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use tidegate_core::{Outcome, Tick};

pub use admission::{Admission, Admitting, Entry};
pub use blocking::{BlockError, Blocks};
pub use charged::{Charged, ChargedLine, Part};
pub use check::Check;
pub use check_each::CheckingEach;
pub use check_together::{CheckingTogether, Together};
pub use decide::Checking;
pub use decision::{ChargedAnyway, GateDecision, InForce, LimitDecision};
pub use endings::{Fate, Finished, SettledCharge};
pub use finishing::{AsCharged, Finishing, FinishingCharges};
use load::Sensing;
use observed::Observed;
use routes::Routes;
pub use routes::Unfit;
pub use sensing::Signals;
pub use single_keys::{ExecutingCharge, KeyedView, Keys, PlacesStanding};
#[cfg(feature = "ticket")]
pub use ticket::FinishedBy;
pub use waits::Asking;

use crate::policy::{Limit, PolicySet, Refusal, Share};
use crate::switches::Switches;
use tidegate_limits::Background;
use tidegate_limits::Precision;
use tidegate_limits::clock::{Clock, SystemClock, Time};
use tidegate_limits::observer::Observer;
use tidegate_limits::signals::Reading;
use tidegate_limits::store::{CapacityError, Later, MemoryStore, Occupancy, Store, StoreError};

/// The longest name of a node, in bytes: enough for a usual host name with a port.
const LONGEST_ISSUER: usize = 128;

/// Decides requests under a policy set.
///
/// Share it in an `Arc`; every method takes `&self`. Most methods that ask stores return a value that has asked nobody
/// yet: its `now()` answers at once; awaited, it waits for engines too. A check usually allocates nothing, and holds no
/// lock but the store's.
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

impl Gate {
    /// Creates a gate over a store, with the machine's clock.
    #[must_use]
    pub fn new(policies: impl Into<Arc<PolicySet>>, store: impl Store + 'static) -> Self {
        let time = Time::new(SystemClock::new());
        Self {
            policies: ArcSwap::new(policies.into()),
            routes: Routes::new(routes::shared(store)),
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

    /// Sets the store that decides policies with this word for `share`. Policies without `share` are decided by the
    /// store that the gate was created with. That store also decides `local` if it keeps the
    /// keys of this process, or `central` if several nodes share it, unless that word gets another store here. Checks
    /// of a policy whose word has no store fail with [`StoreError::NoStore`]. If a
    /// word gets two stores, the later one decides and the earlier one is dropped.
    ///
    /// A request whose policies lie in several stores is charged all or nothing: the stores of this process are asked
    /// first and engines last, and what was taken is undone if a later store refuses or fails. Until then, other
    /// requests see it as taken.
    #[must_use]
    pub fn with_store(mut self, share: Share, store: impl Store + 'static) -> Self {
        self.routes.add(share, routes::shared(store));
        self
    }

    /// Makes the store that the gate was created with also decide policies with this word for `share`.
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

    /// Tells `observer` what the gate does, each event with the name of its policy ([`Observer::on_named`]):
    ///
    /// | what | event |
    /// |---|---|
    /// | a check | one [`Decision`](tidegate_limits::observer::AnyEvent::Decision) for each limit that was charged; if the check was refused, for each limit that refused |
    /// | a charge that is given back whole | [`Cancel`](tidegate_limits::observer::AnyEvent::Cancel) |
    /// | a charge that is settled with other units than were charged | [`Settle`](tidegate_limits::observer::AnyEvent::Settle) |
    /// | a breaker that changes its state, also by hand | [`Change`](tidegate_limits::observer::AnyEvent::Change), or [`KeyChange`](tidegate_limits::observer::AnyEvent::KeyChange) under a policy with `by` |
    /// | a law that moves the number of places | [`Limit`](tidegate_limits::observer::AnyEvent::Limit) |
    ///
    /// [`Event::binding`](tidegate_limits::observer::Event::binding) is the index of the limit within its policy, and
    /// [`Event::shadow`](tidegate_limits::observer::Event::shadow) says that the limit refuses
    /// nothing. Peeks are not told, nor requests that meet no limit because a list, a block or a deadline refuses them, nor
    /// single charges ([`Keys::execute`]). A
    /// change that an engine makes while no caller waits for its answer is not told.
    ///
    /// A gate without an observer pays a branch for each check.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use tidegate::clock::ManualClock;
    /// use tidegate::observer::{AnyEvent, Observer};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// #[derive(Debug, Default)]
    /// struct Refusals(Mutex<Vec<String>>);
    ///
    /// impl Observer for Refusals {
    ///     fn on_named(&self, policy: &str, event: AnyEvent<'_>) {
    ///         if let AnyEvent::Decision(event) = event && !event.decision.is_allowed() {
    ///             self.0.lock().unwrap().push(policy.to_owned());
    ///         }
    ///     }
    /// }
    ///
    /// let refusals = Arc::new(Refusals::default());
    /// let one = Policy::new("one a minute", Limit::new(Quota::per_minute(1).gcra()?, "1/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![one])?, 100)?
    ///     .with_clock(ManualClock::default())
    ///     .with_observer(refusals.clone());
    /// for _ in 0..2 {
    ///     gate.check(&Descriptor::new()).now()?;
    /// }
    /// assert_eq!(*refusals.0.lock().unwrap(), ["one a minute"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observed = Observed::by(Arc::new(observer));
        self
    }

    /// Replaces the source of the machine's load, for policies that use it, by `read`. A check calls `read` up to ten
    /// times per second, so it should return at once. The default is [`Watch`](tidegate_limits::signals::Watch), whose thread
    /// starts with the first check under such policies.
    #[must_use]
    pub fn with_machine(mut self, read: impl Fn() -> Reading + Send + Sync + 'static) -> Self {
        self.sensing.machine = Some(Arc::new(read));
        self
    }

    /// Sets the switches for policies: `when: switch NAME off` holds while the switch of that name is off, for requests
    /// whose priority it is off for. Without switches, and for an unknown name, such a policy does not hold. A change
    /// of a switch takes effect within a tenth of a second.
    ///
    /// The gate tells the switches what it reads for its policies and for the
    /// [triggers](PolicySet::with_triggers) of its policy set, so that a number turns them.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::gate::switches::{Off, Switches};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::priority::Criticality;
    /// use tidegate::{Gate, Quota};
    ///
    /// let few = Policy::new("few previews", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
    ///     .when("switch previews off".parse()?);
    /// let switches = Switches::new(["previews"])?;
    /// switches.turn_off("previews", Off::below(Criticality::Critical, "the image service is moved"))?;
    /// let gate = Gate::in_memory(PolicySet::new(vec![few])?, 1000)?.with_switches(switches);
    ///
    /// let request = Descriptor::new();
    /// let report = || Check::of(&request).priority(Criticality::Sheddable);
    /// assert!(gate.check(report()).now()?.allowed);
    /// assert!(!gate.check(report()).now()?.allowed);
    /// assert!(gate.check(&request).now()?.limits.is_empty(), "on for what is critical");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_switches(mut self, switches: Switches) -> Self {
        self.sensing.switches = Some(switches);
        self
    }

    /// Decides a request and spends its cost, on all matching limits or on none.
    ///
    /// Nothing happens until the returned [`Checking`] is asked for its answer, at once or awaited.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(60).gcra()?, "60/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(&request).now()?.allowed);
    /// assert!(gate.check(&request).await?.allowed, "the same, and waits for an engine if there is one");
    /// assert!(!gate.check(Check::of(&request).cost(61)).now()?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub fn check<'a, 'd: 'a>(&'a self, check: impl Into<Check<'a, 'd>>) -> Checking<'a, 'd> {
        Checking::of(self, check.into(), None)
    }

    /// Decides like [`Gate::check`], and stores in `charged` what was charged, for [`Gate::finish`]. If the work is finished in the same place,
    /// [`Gate::admit`] is shorter.
    ///
    /// `charged` is emptied first, and stays empty if the request is refused. Costs a check and two allocations.
    #[inline(always)]
    pub fn charge<'a, 'd: 'a>(
        &'a self,
        check: impl Into<Check<'a, 'd>>,
        charged: &'a mut Charged,
    ) -> Checking<'a, 'd> {
        charged.clear();
        Checking::of(self, check.into(), Some(charged))
    }

    /// Decides requests in order, as [`Gate::check`] would one by one.
    ///
    /// Each request is allowed or refused independently; for a single decision about all of them, use
    /// [`Gate::check_together`]. Takes about two kilobytes per request.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(2).gcra()?, "2/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let request = Descriptor::new();
    /// let decisions = gate.check_each(&[Check::of(&request); 3]).now();
    /// let allowed: Vec<bool> = decisions.into_iter().map(|decision| decision.is_ok_and(|decision| decision.allowed)).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn check_each<'a, 'd>(&'a self, checks: &'a [Check<'a, 'd>]) -> CheckingEach<'a, 'd> {
        CheckingEach::of(self, checks)
    }

    /// Decides several checks of one call as one: either all are charged or none is.
    ///
    /// If two checks meet the same limit under the same key, it is charged once with the sum of their costs, so both
    /// must fit together. Peeks are decided first, and can refuse the call like others. A deny-list that refuses one
    /// check refuses the call before any limit is asked. The earliest deadline of the checks applies to the call.
    ///
    /// Compares all pairs of keys, so the time grows with the square of the number of limits: intended for a handful of
    /// checks.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let mut per_ip = Policy::new("per-ip", Limit::new(Quota::per_minute(5).gcra()?, "5/min"));
    /// per_ip.by = vec!["client.ip".to_owned()];
    /// let gate = Gate::in_memory(PolicySet::new(vec![per_ip])?, 1000)?;
    /// let (one, other) = (Descriptor::new().with("client.ip", "192.0.2.1"), Descriptor::new().with("client.ip", "192.0.2.2"));
    /// let three = |request| Check::of(request).cost(3);
    /// assert!(gate.check_together(&[three(&one), three(&other)]).now()?.allowed);
    /// // The second has 2 left: the first is not charged either.
    /// assert!(!gate.check_together(&[Check::of(&one), three(&other)]).now()?.allowed);
    /// assert_eq!(gate.check(Check::of(&one).peek()).now()?.limits[0].decision.standing.remaining, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn check_together<'a, 'd>(&'a self, checks: &'a [Check<'a, 'd>]) -> CheckingTogether<'a, 'd> {
        CheckingTogether::of(self, checks)
    }

    /// Settles the charges of a check, or a part of them. For each charge, `used` returns the units really spent;
    /// `None`: the units charged. If less was spent, the difference is given back as far as the charge still holds it;
    /// if more was spent, the excess is booked as a debt.
    ///
    /// For policies that charge failures only, the outcome decides: [`Outcome::CallersFault`] keeps the charge.
    /// [`Outcome::Success`] forgets everything held against the key, as long as the policy still charges failures only;
    /// otherwise it undoes the charge. Every other outcome undoes the charge. If another request's success has
    /// meanwhile forgotten a charge that is to be kept, the charge is booked again, provided that the policy still has
    /// that limit: otherwise an attacker with one valid password could try wrong ones alongside it for free.
    ///
    /// Takes one step per store and tag; each step is all or nothing. Charges that this value has settled before are
    /// not settled again, and are not in the result.
    pub const fn finish<'a, 'c: 'a, U>(
        &'a self,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: U,
    ) -> FinishingCharges<'a, 'c, U>
    where
        U: FnMut(&ChargedLine<'_>) -> Option<u64>,
    {
        FinishingCharges::of(self, charged, part, outcome, used)
    }

    /// Undoes what a check charged without reporting the result, for callers that have gone away. If an engine must be
    /// told, that happens in the background ([`Gate::with_background`]).
    ///
    /// Charges that a store fails to undo stay until time returns them.
    pub fn undo_unwatched(&self, charged: &Charged) {
        self.finish_unwatched(charged, charged.of(Part::All), |_| Some(0));
    }

    /// Books what `requests` requests like this one would be charged in each limit that they meet, each with its cost under
    /// each policy, even beyond what the limit has left; refuses nothing. Zero requests book nothing; more units than the
    /// number type holds count as its largest number.
    ///
    /// Shadow limits are booked too. Concurrency limits, adaptive limits and breakers are not, since they depend on
    /// calls that enter and leave. If a deny-list, a deadline or a block refuses the request, nothing is booked.
    ///
    /// Takes one step per store and tag. If a step fails, the steps before it have booked.
    ///
    /// # Errors
    /// As for [`Checking`].
    ///
    /// # Cancel safety
    /// If dropped before completion, some limits may have booked and others not; an engine that is being asked books in
    /// the background.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_hour(10).gcra()?, "10/h"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let request = Descriptor::new();
    /// gate.book(Check::of(&request).cost(7), 1).now()?;
    /// assert_eq!(gate.check(Check::of(&request).peek()).now()?.limits[0].decision.standing.remaining, 3);
    /// gate.book(&request, 7).now()?;
    /// let looked = gate.check(Check::of(&request).peek()).now()?;
    /// assert_eq!(looked.limits[0].decision.standing.debt, 4, "it has happened");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn book<'a, 'd: 'a>(
        &'a self,
        check: impl Into<Check<'a, 'd>>,
        requests: u64,
    ) -> Asking<'a, Result<(), StoreError>> {
        let check = check.into();
        Asking::new(move |waits| async move { self.book_parts(&check, requests, waits).await })
    }

    /// Gives back what a check of this cost would charge now, to each limit that it meets; refuses nothing.
    ///
    /// Gives back at most the units in use, even if another caller spent them: only callers that are trusted with the
    /// whole limit should be allowed to ask for it. A limit that stores each charge separately (`sliding-log`) gives
    /// nothing back; neither do places and breakers, which need their charges.
    ///
    /// Takes two or three steps of a store per limit, the first of them a peek. If a step fails, the limits before
    /// it have given back. Between the steps one unit may be charged, and another request refused because of it.
    ///
    /// # Errors
    /// As for [`Checking`].
    ///
    /// # Cancel safety
    /// If dropped before completion, some limits may have given back and others not; an engine that is being asked
    /// gives back in the background.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_hour(10).gcra()?, "10/h"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(Check::of(&request).cost(7)).now()?.allowed);
    /// gate.give_back(Check::of(&request).cost(4)).now()?;
    /// assert_eq!(gate.check(Check::of(&request).peek()).now()?.limits[0].decision.standing.remaining, 7);
    /// gate.give_back(Check::of(&request).cost(1000)).now()?;
    /// assert_eq!(gate.check(Check::of(&request).peek()).now()?.limits[0].decision.standing.remaining, 10, "never fuller than full");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give_back<'a, 'd: 'a>(
        &'a self,
        check: impl Into<Check<'a, 'd>>,
    ) -> Asking<'a, Result<(), StoreError>> {
        let check = check.into();
        Asking::new(move |waits| async move { self.give_back_parts(&check, waits).await })
    }

    /// Returns the refusal that a check would meet before any limit is asked: by a deny-list, a deadline, or a block of
    /// its key or for all policies; `None` if there is none. For doors that let some requests pass without asking the
    /// limits.
    #[must_use]
    pub fn refusal_before_limits(&self, check: &Check<'_, '_>) -> Option<Refusal> {
        self.refusal(&self.policies.load(), check)
    }

    /// Returns the numbers that conditions and moving rates go by: to report and to read them.
    #[must_use]
    pub const fn signals(&self) -> Signals<'_> {
        Signals(self)
    }

    /// Returns access to single keys of the stores, whatever the policies say of them: to read and reset them, to handle
    /// their breakers, and to settle charges of keys that belong to no policy.
    #[must_use]
    pub const fn keys(&self) -> Keys<'_> {
        Keys(self)
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
            for quota in
                policy.each_limit().flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref())
            {
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
