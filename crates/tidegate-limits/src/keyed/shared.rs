//! The state that the clones of a keyed limiter share, and the decisions made through its store.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tidegate_core::rate::GcraReport;
use tidegate_core::{Cost, Quota, Replace, Tick};

use crate::answer::{Answer, CheckResult, Denied};
use crate::clock::{Clock, Time};
use crate::key::Key;
use crate::observer::{Event, KeyDigest, Observer};
use crate::precision::Precision;
use crate::reservation::{ChargeOwner, HeldCharge};
use crate::store::{
    CachedClass, Charge, ChargeRules, Executed, Fingerprint, MemoryStore, Op, PermanentLimit, Reading, Step,
    Store, WordOutcome,
};
use crate::sync::unexplored::{AtomicU64, Mutex};

/// Looks up the limit of a key; `None` means the standard limit.
pub(super) type Resolver = dyn Fn(&[u8]) -> Option<Arc<Quota>> + Send + Sync;

pub(super) struct KeyedState {
    /// The class of the standard limit in the store if the fast path is possible, else 0: its states fit a word, and
    /// there are neither limits per key nor an observer.
    pub(super) fast_class: AtomicU64,
    pub(super) precision: Precision,
    pub(super) time: Time,
    pub(super) store: MemoryStore,
    pub(super) standard: ArcSwap<Standard>,
    /// Held while `fast_class` is set.
    pub(super) publishing: Mutex<()>,
    pub(super) resolver: Option<Arc<Resolver>>,
    pub(super) capacity: usize,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// The hasher of digests for observers. Not the store's seed, so that a logged digest reveals nothing about the
    /// table.
    pub(super) digests: RandomState,
}

#[derive(Debug)]
pub(super) struct Standard {
    pub(super) quota: Arc<Quota>,
    pub(super) replace: Replace,
    /// Counts changes of the standard limit, as a limiter's `terms` count those of its quotas.
    pub(super) terms: u64,
}

impl fmt::Debug for KeyedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedState")
            .field("standard", &self.standard)
            .field("resolver", &self.resolver.is_some())
            .field("occupancy", &self.store.occupancy())
            .field("precision", &self.precision)
            .field("time", &self.time)
            .field("observer", &self.observer)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
pub(super) struct OpArguments {
    pub(super) now: Tick,
    pub(super) cost: Cost,
    pub(super) max_wait: Duration,
}

#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) quota: &'a Arc<Quota>,
    pub(super) replace: Replace,
    pub(super) count: u64,
}

impl KeyedState {
    pub(super) fn arguments(&self, cost: Cost, max_wait: Duration) -> OpArguments {
        OpArguments { now: self.time.now(), cost, max_wait }
    }

    pub(super) fn with_terms<R>(&self, key: &[u8], then: impl FnOnce(Terms<'_>) -> R) -> R {
        let own = self.resolver.as_ref().and_then(|resolver| resolver(key));
        let standard = self.standard.load();
        let quota = own.as_ref().unwrap_or(&standard.quota);
        then(Terms { quota, replace: standard.replace, count: standard.terms })
    }

    fn execute(&self, key: &[u8], terms: Terms<'_>, op: Op<'_>, arguments: OpArguments) -> Executed {
        let OpArguments { now, cost, max_wait } = arguments;
        let rules = ChargeRules { replace: terms.replace, ..ChargeRules::new(0) };
        let charge = Charge { max_wait, rules, ..Charge::new(key, terms.quota, cost) };
        let charges = [charge];
        let step = Step::new(now, op, &charges);
        self.store.execute(&step).expect("a store in memory always executes a step of one charge")
    }

    /// Decides once and reports to the observer. Returns the event, and what `keep` takes from the store's answer.
    pub(super) fn take<R>(
        &self,
        key: &[u8],
        terms: Terms<'_>,
        mut arguments: OpArguments,
        keep: impl FnOnce(&Executed) -> R,
    ) -> (Event, R) {
        let (kept, answer) = loop {
            let executed = self.execute(key, terms, Op::Take, arguments);
            let answer = Answer::binding_of(&executed);
            if answer.is_allowed() {
                break (keep(&executed), answer);
            }
            // The same as for a limiter without keys: a word may hold a charge with a later tick than this check's.
            match answer.retry().after().zip(Some(self.time.now())) {
                Some((wait, later)) if later.since(arguments.now) >= wait => arguments.now = later,
                _ => break (keep(&executed), answer),
            }
        };
        let OpArguments { now, cost, max_wait } = arguments;
        let mut event = Event::of(answer, now, cost, max_wait);
        if let Some(observer) = &self.observer {
            event.key = Some(self.digest(key));
            observer.on_decision(&event);
        }
        (event, kept)
    }

    fn adjust(&self, key: &[u8], op: Op<'_>, cost: Cost) -> Executed {
        self.with_terms(key, |terms| self.execute(key, terms, op, self.arguments(cost, Duration::ZERO)))
    }

    #[inline(never)]
    pub(super) fn decide_by_store(&self, key: &[u8], cost: Cost) -> Answer {
        let arguments = self.arguments(cost, Duration::ZERO);
        self.with_terms(key, |terms| self.take(key, terms, arguments, |_| ()).0.answer())
    }

    pub(super) fn digest(&self, key: &[u8]) -> KeyDigest {
        KeyDigest(self.digests.hash_one(key))
    }

    pub(super) fn peek(&self, key: &[u8], cost: Cost) -> Answer {
        Answer::binding_of(&self.adjust(key, Op::Peek, cost))
    }

    pub(super) fn reset(&self, key: &[u8]) {
        self.adjust(key, Op::Reset, Cost::ONE);
    }

    pub(super) fn charge(
        &self,
        key: &[u8],
        now: Tick,
        cost: Cost,
        max_wait: Duration,
    ) -> Result<HeldCharge, Denied> {
        self.with_terms(key, |terms| {
            let receipt = |executed: &Executed| executed.lines.first().and_then(|line| line.receipt);
            let (event, receipt) = self.take(key, terms, OpArguments { now, cost, max_wait }, receipt);
            if !event.decision.is_allowed() {
                return Err(event.answer().into());
            }
            let receipts = receipt.into_iter().collect();
            Ok(HeldCharge { event, receipts, terms: terms.count, quota: Some(Arc::clone(terms.quota)) })
        })
    }

    /// Settles a charge with the units really spent. After a change of the limit nothing is given back, and units spent
    /// beyond the charge are charged to the current limit.
    fn settle_held(&self, key: &[u8], held: &HeldCharge, used: u64) {
        let arguments = self.arguments(held.event.cost, Duration::ZERO);
        self.with_terms(key, |terms| {
            let same = terms.count == held.terms
                && held.quota.as_ref().is_some_and(|charged| charged == terms.quota);
            if let [receipt] = held.receipts[..]
                && (same || used > held.event.cost.units())
            {
                self.execute(key, terms, Op::Finish(&[held.ending(receipt, used)]), arguments);
            }
        });
        if let Some(observer) = &self.observer {
            held.notify(&**observer, used);
        }
    }
}

#[derive(Debug)]
pub(super) struct KeySource {
    shared: Arc<KeyedState>,
    key: SmallVec<[u8; 32]>,
}

impl KeySource {
    pub(super) fn of(shared: &Arc<KeyedState>, key: &[u8]) -> Arc<dyn ChargeOwner> {
        Arc::new(Self { shared: Arc::clone(shared), key: key.into() })
    }
}

impl ChargeOwner for KeySource {
    fn clock(&self) -> &dyn Clock {
        self.shared.time.clock()
    }

    fn now(&self) -> Tick {
        self.shared.time.now()
    }

    fn charge(&self, now: Tick, cost: Cost, max_wait: Duration) -> Result<HeldCharge, Denied> {
        self.shared.charge(&self.key, now, cost, max_wait)
    }

    fn settle(&self, held: &HeldCharge, used: u64) {
        self.shared.settle_held(&self.key, held, used);
    }

    fn peek(&self, cost: Cost) -> Answer {
        self.shared.peek(&self.key, cost)
    }

    fn observer(&self) -> Option<&dyn Observer> {
        self.shared.observer.as_deref()
    }

    fn digest(&self) -> Option<KeyDigest> {
        Some(self.shared.digest(&self.key))
    }
}

// Decides the check of a key on the key's word in the table, without the general form of its state.
//
// This code is shaped by the instructions it compiles to. With a million keys a check waits for memory, and a processor
// prefetches for as many checks as fit its instruction window. So the usual path has few instructions, no calls and
// almost no stores, and every rare case is a call.

/// Keys looked up together: the number of cache misses that a core keeps in flight at once, and a few more.
const BATCH: usize = 16;

/// The longest key that is hashed without a call.
const SHORT: usize = 16;

impl KeyedState {
    /// Decides a check. The usual check is decided without a call, so that no register has to be saved: a saved
    /// register could be restored only after the locked instruction.
    #[inline]
    pub(super) fn decide<T: CheckResult>(&self, key: &[u8], cost: Cost) -> T {
        match self.permit(key, cost.units()) {
            Some(report) => T::permitted(report),
            None => self.decide_slowly(key, cost),
        }
    }

    #[inline(never)]
    fn decide_slowly<T: CheckResult>(&self, key: &[u8], cost: Cost) -> T {
        if let Some(report) = self.refusal(key, cost.units()) {
            return T::refused(report, cost.units());
        }
        match self.reading(self.tick()) {
            Some(by) => self.decide_at_length(self.store.fingerprint(key), key, &by, cost),
            None => T::of(self.decide_by_store(key, cost)),
        }
    }

    #[inline(never)]
    fn decide_at_length<T: CheckResult>(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        cost: Cost,
    ) -> T {
        let result = self.decide_on_word(fingerprint, key, by, cost.units());
        result.unwrap_or_else(|| T::of(self.decide_by_store(key, cost)))
    }

    pub(super) fn decide_each<K: Key, T: CheckResult>(&self, keys: &[K], mut tell: impl FnMut(&K, T)) {
        for keys in keys.chunks(BATCH) {
            let Some(by) = self.reading(self.tick()) else {
                keys.iter()
                    .for_each(|key| tell(key, key.with_bytes(|bytes| self.decide_slowly(bytes, Cost::ONE))));
                continue;
            };
            let mut fingerprints = [Fingerprint::default(); BATCH];
            let mut touched = 0;
            for (fingerprint, key) in fingerprints.iter_mut().zip(keys) {
                *fingerprint = key.with_bytes(|bytes| self.store.fingerprint(bytes));
                touched ^= self.store.touch(*fingerprint);
            }
            std::hint::black_box(touched);
            let mut refusals =
                Refusals { fingerprints: &fingerprints[..keys.len()], seen: [None; BATCH], later: None };
            for (at, key) in keys.iter().enumerate() {
                let result = match self.store.permit_by(fingerprints[at], &by, 1) {
                    Some(word) => T::permitted(by.form.report(word, by.now)),
                    None => self.refuse_in_batch(at, key, &by, &mut refusals),
                };
                tell(key, result);
            }
        }
    }
}

/// What the refusals among keys looked up together share: from the first one on, the words of the keys that follow, and
/// then one reading of the clock. It refuses a key whose word is still the same, as in [`KeyedState::decide_by_clock`].
struct Refusals<'b> {
    fingerprints: &'b [Fingerprint],
    seen: [Option<u64>; BATCH],
    later: Option<Reading<'b>>,
}

impl KeyedState {
    /// Decides a key of a batch that is not permitted by the tick and at once.
    #[inline(never)]
    fn refuse_in_batch<'b, K: Key, T: CheckResult>(
        &self,
        at: usize,
        key: &K,
        by: &Reading<'b>,
        refusals: &mut Refusals<'b>,
    ) -> T {
        let Refusals { fingerprints, seen, later } = refusals;
        if later.is_none() {
            for (seen, fingerprint) in seen.iter_mut().zip(*fingerprints).skip(at) {
                *seen = self.store.word(*fingerprint, by.limit.class());
            }
            *later = by.later(self.time.now());
        }
        if let (Some(word), Some(by)) = (seen[at], later)
            && by.form.take(word, by.now, 1).is_none()
            && self.store.word(fingerprints[at], by.limit.class()) == Some(word)
        {
            return T::refused(by.form.report(word, by.now), 1);
        }
        key.with_bytes(|bytes| self.decide_at_length(fingerprints[at], bytes, by, Cost::ONE))
    }
}

impl KeyedState {
    pub(super) fn publish_class(&self) {
        let _guard = self.publishing.lock();
        let plain = self.resolver.is_none() && self.observer.is_none();
        let class = self.store.class(&self.standard.load().quota, self.time.now()).filter(|_| plain);
        // Relaxed: a reader that knows a limit's class can read the limit, whatever the order of this store.
        self.fast_class.store(class.map_or(0, CachedClass::bits), Ordering::Relaxed);
    }

    /// Returns the limit of a key that may be decided without a call.
    #[inline(always)]
    fn limit_at_hand(&self, key: &[u8]) -> Option<&PermanentLimit> {
        if key.len() > SHORT || self.precision == Precision::Exact {
            return None;
        }
        let class = CachedClass::of_bits(self.fast_class.load(Ordering::Relaxed)).class()?;
        self.store.cached_limit(class)
    }

    /// Returns the standing of a key that is refused the units by the clock, which is read after the key's word, as in
    /// [`KeyedState::decide_by_clock`]. `None` if it is not, or not for certain.
    #[inline(always)]
    fn refusal(&self, key: &[u8], units: u64) -> Option<GcraReport> {
        let limit = self.limit_at_hand(key)?;
        let word = self.store.word(self.store.fingerprint(key), limit.class())?;
        let now = limit.form.scaled(self.time.now())?;
        limit.form.take(word, now, units).is_none().then(|| limit.form.report(word, now))
    }

    /// Spends units of a key by the shared tick of the system clock, and returns the standing afterwards. `None` if it
    /// is refused, or cannot be decided without a call.
    #[inline(always)]
    fn permit(&self, key: &[u8], units: u64) -> Option<GcraReport> {
        let limit = self.limit_at_hand(key)?;
        let now = limit.form.scaled(self.time.shared_tick()?)?;
        let word = self.store.permit(self.store.fingerprint(key), limit, now, units)?;
        Some(limit.form.report(word, now))
    }

    fn tick(&self) -> Tick {
        if self.precision == Precision::Exact { self.time.now() } else { self.time.recent() }
    }

    fn reading(&self, tick: Tick) -> Option<Reading<'_>> {
        let class = CachedClass::of_bits(self.fast_class.load(Ordering::Relaxed));
        class.class()?;
        let reading = match self.store.limit(class) {
            Some(limit) => Reading::at(limit, tick),
            None => None,
        };
        if reading.is_none() {
            // Either the form's time range has ended, after an hour to a century, or the limit's number is being
            // reclaimed. Publish again to get a new one.
            self.publish_class();
        }
        reading
    }

    /// Spends units of a key by its word. A refusal is decided by the clock.
    #[inline(always)]
    fn decide_on_word<T: CheckResult>(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        units: u64,
    ) -> Option<T> {
        let mut taken = self.store.permit_or_read(fingerprint, by, units);
        if taken == WordOutcome::Undecided {
            taken = self.store.take(fingerprint, key, by, units);
        }
        match taken {
            WordOutcome::Permitted(word) => Some(T::permitted(by.form.report(word, by.now))),
            WordOutcome::Undecided => None,
            WordOutcome::Refused(seen) => self.decide_by_clock(fingerprint, key, by, units, seen),
        }
    }

    /// Reads the clock for units that the word `seen` refused. If it refuses them now, too, the check is refused: every
    /// charge in the word has an earlier tick, because the word was read before the clock. Nothing is written then. The
    /// loop ends because a changed word means that another check was permitted.
    #[inline(never)]
    fn decide_by_clock<T: CheckResult>(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        units: u64,
        mut seen: u64,
    ) -> Option<T> {
        loop {
            // By the same limit; if its number has been given to another limit since, the store detects it.
            let by = by.later(self.time.now())?;
            if by.form.take(seen, by.now, units).is_none() {
                return Some(T::refused(by.form.report(seen, by.now), units));
            }
            match self.store.take(fingerprint, key, &by, units) {
                WordOutcome::Permitted(word) => {
                    return Some(T::permitted(by.form.report(word, by.now)));
                }
                WordOutcome::Refused(word) => seen = word,
                WordOutcome::Undecided => return None,
            }
        }
    }
}
