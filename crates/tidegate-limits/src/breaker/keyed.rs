//! Circuit breakers by key, in a table of bounded memory.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, CircuitBreakerState, Condition, Force, Forced};
use tidegate_core::{Ask, Cost, Outcome, Quota, QuotaError, Receipt, Retry, State, Tick};

use super::Refusal;
use super::calls::{self, Call, Changes, Entered, Measured, Refused};
use crate::answer::Denied;
use crate::clock::{Clock, SystemClock, Time};
use crate::deferred_panic::DeferredPanic;
use crate::key::Key;
use crate::observer::{CallDid, KeyDigest, Observer};
use crate::store::{
    Absent, BreakerView, Charge, Executed, Handling, MemoryStore, Occupancy, Op, Step, Store,
};

/// One breaker for each key, for a bounded number of keys.
///
/// Keys are hashed under a secret seed, as those of a [`KeyedLimiter`](crate::KeyedLimiter). A key whose breaker is as
/// good as new takes no memory, so the time window, [`ttl`](super::BreakerBuilder::ttl) and
/// [`forget_after`](super::BreakerBuilder::forget_after) determine how long a key is kept. In a full table the key
/// whose breaker is nearest to that is evicted first. A closed key allocates only for its first call.
/// [Observers](KeyedBreaker::with_observer) receive a digest of the key.
///
/// # Examples
/// ```
/// use tidegate::Outcome;
/// use tidegate::breaker::{CircuitBreaker, KeyedBreaker};
/// use tidegate::clock::ManualClock;
///
/// let hosts = KeyedBreaker::new(CircuitBreaker::builder().consecutive(1), 1000)?.with_clock(ManualClock::default());
/// hosts.try_enter("10.0.0.7")?.leave(Outcome::Failure);
/// assert!(hosts.try_enter("10.0.0.7").is_err());
/// assert!(hosts.try_enter("10.0.0.8").is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KeyedBreaker {
    shared: Arc<Keys>,
}

pub(super) struct Keys {
    quota: Arc<Quota>,
    pub(super) time: Time,
    store: MemoryStore,
    capacity: usize,
    observer: Option<Arc<dyn Observer>>,
    digests: RandomState,
}

impl KeyedBreaker {
    /// Makes a table of closed breakers with room for `capacity` keys, 1 to [`MemoryStore::MAX_KEYS`], on the
    /// [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError`] names the setting that is out of range, or the capacity if it is out of range or the system has
    /// too little memory for it.
    pub fn new<L>(law: L, capacity: usize) -> Result<Self, QuotaError>
    where
        L: TryInto<CircuitBreaker>,
        QuotaError: From<L::Error>,
    {
        let (quota, time) = (Arc::new(Quota::Breaker(law.try_into()?)), Time::new(SystemClock::new()));
        let (store, digests) = (MemoryStore::with_capacity(capacity)?, RandomState::new());
        Ok(Self { shared: Arc::new(Keys { quota, time, store, capacity, observer: None, digests }) })
    }

    /// Returns a breaker on `clock`. A construction step: every key is closed, and nothing is shared with earlier
    /// clones.
    ///
    /// # Panics
    /// If the system has too little memory for a second table.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        self.new_like(Time::new(clock), self.shared.observer.clone())
    }

    /// Returns a breaker that reports to `observer`, with a digest of the key, its changes of state
    /// ([`Observer::on_key_change`]), and each call that it refuses or that ends ([`Observer::on_key_call`]). A change
    /// by time alone is reported when a call of the key next enters or leaves. Evictions and
    /// [resets](KeyedBreaker::reset) are not reported. A layer of `tidegate-tower` around the breaker reports the same
    /// calls to an observer of its own: count one of the two. A construction step.
    ///
    /// # Panics
    /// As [`KeyedBreaker::with_clock`].
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.new_like(self.shared.time.new_like(), Some(Arc::new(observer)))
    }

    fn new_like(&self, time: Time, observer: Option<Arc<dyn Observer>>) -> Self {
        let Keys { quota, store, capacity, .. } = &*self.shared;
        let store = store.new_like(*capacity).expect("the system has memory for the table once more");
        let (quota, capacity, digests) = (Arc::clone(quota), *capacity, RandomState::new());
        Self { shared: Arc::new(Keys { quota, time, store, capacity, observer, digests }) }
    }

    /// Enters the breaker of a key without waiting. Report the outcome by [`Call::leave`].
    ///
    /// # Errors
    /// [`Denied`], as [`Breaker::try_enter`](crate::Breaker::try_enter).
    pub fn try_enter(&self, key: impl Key) -> Result<Call, Denied> {
        key.with_bytes(|key| {
            if self.shared.observer.is_some() {
                return self.enter_bytes(key).map_err(|refusal| refusal.denied);
            }
            let admitted = self.shared.enter_unobserved(key);
            admitted.map(|receipt| self.call(key, receipt)).map_err(calls::refused)
        })
    }

    /// Enters the breaker of a key without waiting, and says why it refuses.
    ///
    /// # Errors
    /// [`Refusal`], as [`Breaker::enter_with_reason`](crate::Breaker::enter_with_reason).
    pub fn enter_with_reason(&self, key: impl Key) -> Result<Call, Refusal> {
        key.with_bytes(|key| self.enter_bytes(key))
    }

    fn enter_bytes(&self, key: &[u8]) -> Result<Call, Refusal> {
        self.shared.enter(key, |receipt| self.call(key, receipt)).map_err(Refusal::of)
    }

    fn call(&self, key: &[u8], receipt: Receipt) -> Call {
        Call::new(Entered::OfKey(Arc::clone(&self.shared), key.into()), receipt)
    }

    /// Returns when a call of the key may enter: after zero time if it may now. Changes nothing.
    #[must_use]
    pub fn retry(&self, key: impl Key) -> Retry {
        key.with_bytes(|key| self.shared.execute(key, Op::Peek).lines[0].decision.retry())
    }

    /// Returns the current condition of the breaker of a key.
    #[must_use]
    pub fn state(&self, key: impl Key) -> Condition {
        self.view_of(key).condition
    }

    /// Returns the state that a person has forced the breaker of a key into, until when, and why; `None` if it is not
    /// forced.
    #[must_use]
    pub fn forced(&self, key: impl Key) -> Option<Forced> {
        self.view_of(key).forced
    }

    /// Forces the breaker of one key into a state, for `time`, or until [`KeyedBreaker::auto`] if that is `None`; see
    /// [`Breaker::force`](crate::Breaker::force).
    ///
    /// Forced keys lie in the table beside all others, so there are never more of them than it has room for. A key
    /// forced with an end gives its room back after that end, once it was unused for
    /// [`forget_after`](super::BreakerBuilder::forget_after) (five minutes if the breaker [never
    /// forgets](super::BreakerBuilder::forget_after)), or right at the end if it was forced to admit calls and none
    /// came. A key forced without an end is kept until it is released or [reset](KeyedBreaker::reset). In a full table
    /// a key that is forced open is evicted only if all other candidates are refused as well. A key that is forced to
    /// admit calls may be evicted like any other key; after that, the outcomes of its calls decide its state again.
    pub fn force(&self, key: impl Key, to: Force, time: Option<Duration>, reason: &str) {
        let now = self.shared.time.now();
        let forced = Forced::new(to, time.map(|time| now.after(time)), reason);
        key.with_bytes(|key| self.shared.force(key, now, Absent::Begins, Some(forced)));
    }

    /// As [`Breaker::auto`](crate::Breaker::auto), for one key.
    pub fn auto(&self, key: impl Key) {
        let now = self.shared.time.now();
        key.with_bytes(|key| self.shared.force(key, now, Absent::Stays, None));
    }

    fn view_of(&self, key: impl Key) -> BreakerView {
        let looked = key.with_bytes(|key| self.shared.execute(key, Op::Breaker(Handling::Look)));
        *looked.breaker.expect("a step of breakers tells how the last one stands")
    }

    /// Forgets a key and its forced state: its breaker is closed, and outcomes of calls that entered before do not
    /// count.
    pub fn reset(&self, key: impl Key) {
        key.with_bytes(|key| {
            // A reset leaves what a person has forced.
            self.shared.execute(key, Op::Breaker(Handling::Release));
            self.shared.execute(key, Op::Reset);
        });
    }

    /// Returns how many keys are held, and how many were evicted.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.shared.store.occupancy()
    }
}

const BEGINS: &str = "a key without a state is given one";

impl Keys {
    fn law(&self) -> &CircuitBreaker {
        match &*self.quota {
            Quota::Breaker(law) => law,
            _ => unreachable!("the quota was made of a breaker"),
        }
    }

    fn enter_unobserved(&self, key: &[u8]) -> Result<Receipt, Retry> {
        let enter = |law: &CircuitBreaker, state: &mut _, at| {
            law.enter_in_place(state, Ask::allow(at, Cost::ONE), &mut |_| ())
        };
        self.change(key, self.time.now(), Absent::Begins, enter).expect(BEGINS)
    }

    /// Enters the breaker of a key, or returns the refusal. `admit` makes the call; see [`calls::BreakerCore::enter`].
    fn enter<C>(&self, key: &[u8], admit: impl FnOnce(Receipt) -> C) -> Result<C, Refused> {
        let now = self.time.now();
        let mut changes = Changes::new();
        let entered = self.change(key, now, Absent::Begins, |law, state, at| {
            calls::enter(law, state, Ask::allow(at, Cost::ONE), &mut |change| changes.push(change))
        });
        let entered = entered.expect(BEGINS).map(admit);
        self.tell(key, &changes, entered.as_ref().err().map(calls::told_refusal).as_ref());
        entered
    }

    /// Leaves the breaker of a key. If the key was reset meanwhile, its state is younger than the receipt, and the
    /// outcome does not count.
    pub(super) fn leave(&self, key: &[u8], receipt: &Receipt, measured: Measured, outcome: Outcome) {
        let (now, mut changes) = (self.time.now(), Changes::new());
        let answered = measured.answered(receipt, now);
        self.change(key, now, Absent::Stays, |law, state, at| {
            law.leave_in_place(state, at, receipt, answered, outcome, &mut |change| {
                changes.push(change);
            });
        });
        self.tell(key, &changes, Some(&CallDid::Ended { outcome, took: now.since(receipt.at) }));
    }

    fn force(&self, key: &[u8], now: Tick, absent: Absent, forced: Option<Forced>) {
        let mut changes = Changes::new();
        self.change(key, now, absent, |law, state, at| {
            law.force_in_place(state, at, forced, &mut |change| changes.push(change));
        });
        self.tell(key, &changes, None);
    }

    /// Changes the breaker of a key. `None` if the key has no state and is not given one.
    fn change<R>(
        &self,
        key: &[u8],
        now: Tick,
        absent: Absent,
        change: impl FnOnce(&CircuitBreaker, &mut CircuitBreakerState, Tick) -> R,
    ) -> Option<R> {
        self.store.change(key, &self.quota, absent, now, |cell, at| match &mut cell.state {
            State::Breaker(state) => change(self.law(), state, at),
            _ => unreachable!("the state is of the breaker that all keys have"),
        })
    }

    fn tell(&self, key: &[u8], changes: &Changes, did: Option<&CallDid>) {
        let Some(observer) = &self.observer else { return };
        if changes.is_empty() && did.is_none() {
            return;
        }
        let digest = KeyDigest(self.digests.hash_one(key));
        let tell = || {
            changes.iter().for_each(|change| observer.on_key_change(change, digest));
            did.into_iter().for_each(|did| observer.on_key_call(did, digest));
        };
        // A call may be dropped by a panic of its work.
        DeferredPanic::of(tell).1.resume_unless_panicking();
    }

    fn execute(&self, key: &[u8], op: Op<'_>) -> Executed {
        let charges = [Charge::new(key, &self.quota, Cost::ONE)];
        let step = Step::new(self.time.now(), op, &charges);
        self.store.execute(&step).expect("a store in memory always executes a step of one charge")
    }
}

impl fmt::Debug for KeyedBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreaker").field("occupancy", &self.occupancy()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    //! Compares a keyed breaker with one single breaker for each key, each with a lock of its own.

    use std::thread;

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;
    use crate::breaker::{Breaker, BreakerBuilder, Change, Window};
    use crate::clock::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many keys the properties use.
    const KEYS: usize = 4;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Enter(usize),
        /// Leaves the oldest call of the key.
        Leave(usize, Outcome),
        Force(usize, Force, Option<u64>),
        Auto(usize),
        Reset(usize),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = || 0..KEYS;
        let outcome = prop::sample::select(vec![
            Outcome::Failure,
            Outcome::Failure,
            Outcome::Success,
            Outcome::Overloaded,
            Outcome::Ignored,
        ]);
        let to = prop::sample::select(vec![Force::Open, Force::Closed, Force::MetricsOnly, Force::Disabled]);
        let step = prop_oneof![
            6 => key().prop_map(Step::Enter),
            6 => (key(), outcome).prop_map(|(key, outcome)| Step::Leave(key, outcome)),
            1 => (key(), to, prop::option::of(1u64..20)).prop_map(|(key, to, secs)| Step::Force(key, to, secs)),
            1 => key().prop_map(Step::Auto),
            1 => key().prop_map(Step::Reset),
            2 => (1u64..8_000).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 1..120)
    }

    fn law() -> BreakerBuilder {
        CircuitBreaker::builder().consecutive(2).jitter(0.0).steps(1).probes(2).ttl(30 * SECOND)
    }

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<Change>>);

    impl Observer for Heard {
        fn on_change(&self, change: &Change) {
            self.0.lock().push(change.clone());
        }
    }

    impl Heard {
        fn since(&self) -> Vec<Change> {
            std::mem::take(&mut self.0.lock())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// The same calls, forced states and waits give the same answers, states and changes, key by key.
        #[test]
        fn each_key_has_the_breaker_that_it_would_have_alone(steps in steps()) {
            let clock = ManualClock::default();
            let heard = [(); 2].map(|()| Arc::new(Heard::default()));
            let keyed =
                KeyedBreaker::new(law(), 1000).unwrap().with_clock(clock.clone()).with_observer(heard[0].clone());
            let alone = || {
                Breaker::new(law()).unwrap().with_clock(clock.clone()).with_observer(heard[1].clone())
            };
            let mut single: [Breaker; KEYS] = std::array::from_fn(|_| alone());
            let mut inside: [Vec<(Call, Call)>; KEYS] = std::array::from_fn(|_| Vec::new());
            for step in steps {
                match step {
                    Step::Enter(key) => match (keyed.try_enter(key as u64), single[key].try_enter()) {
                        (Ok(one), Ok(other)) => inside[key].push((one, other)),
                        (Err(one), Err(other)) => prop_assert_eq!(one.retry(), other.retry()),
                        (one, other) => prop_assert!(false, "{:?} and {:?}", one.is_ok(), other.is_ok()),
                    },
                    Step::Leave(key, outcome) if !inside[key].is_empty() => {
                        let (one, other) = inside[key].remove(0);
                        one.leave(outcome);
                        other.leave(outcome);
                    }
                    Step::Leave(..) => {}
                    Step::Force(key, to, secs) => {
                        let time = secs.map(Duration::from_secs);
                        keyed.force(key as u64, to, time, "by hand");
                        single[key].force(to, time, "by hand");
                    }
                    Step::Auto(key) => {
                        keyed.auto(key as u64);
                        single[key].auto();
                    }
                    Step::Reset(key) => {
                        keyed.reset(key as u64);
                        single[key] = alone();
                        // Outcomes of calls from before do not count any more.
                        for (one, other) in inside[key].drain(..) {
                            one.leave(Outcome::Failure);
                            drop(other);
                        }
                        heard[1].since();
                        // New calls cannot enter at the tick of forgotten ones.
                        clock.advance(Duration::from_nanos(2));
                    }
                    Step::Wait(millis) => clock.advance(Duration::from_millis(millis)),
                }
                for (key, alone) in single.iter().enumerate() {
                    let view = keyed.view_of(key as u64);
                    prop_assert_eq!(&view.forced, &alone.forced(), "key {} after {:?}", key, step);
                    prop_assert_eq!(view.condition.as_str(), alone.state().as_str(), "key {} after {:?}", key, step);
                    prop_assert_eq!(view.totals, alone.totals(), "key {} after {:?}", key, step);
                }
                prop_assert_eq!(heard[0].since(), heard[1].since(), "after {:?}", step);
            }
        }
    }

    /// Calls of several threads on few keys, while other keys come: each call is counted once.
    #[test]
    fn no_call_of_any_thread_is_lost() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 2_000;
        let hosts = KeyedBreaker::new(
            CircuitBreaker::builder().window(Window::Calls(16_000)).failure_ratio(1.0),
            100_000,
        )
        .unwrap()
        .with_clock(ManualClock::default());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let hosts = &hosts;
                scope.spawn(move || {
                    for call in 0..CALLS {
                        let outcome = if call % 4 == 0 { Outcome::Failure } else { Outcome::Success };
                        hosts.try_enter(("kept", call % 3)).unwrap().leave(outcome);
                        drop(hosts.try_enter(("another", thread, call)).unwrap());
                    }
                });
            }
        });
        let totals: Vec<(u64, u64)> = (0..3_u64)
            .map(|key| hosts.view_of(("kept", key)).totals)
            .map(|totals| (u64::from(totals.calls), u64::from(totals.failures)))
            .collect();
        let calls = |key: u64| (0..CALLS).filter(move |call| call % 3 == key);
        let expected: Vec<(u64, u64)> = (0..3)
            .map(|key| {
                let failed = calls(key).filter(|call| call % 4 == 0).count() as u64;
                (THREADS * calls(key).count() as u64, THREADS * failed)
            })
            .collect();
        assert_eq!((totals, hosts.occupancy().evicted), (expected, 0));
    }
}
