//! One limit per key, in memory that is bounded up front.
//!
//! A limiter for callers who are not trusted to be few: a key that is full again takes no memory, and a flood of new keys
//! cannot grow the table (see [`MemoryStore`] for who has to go when it is full). For several limits at once, or for stores
//! beyond the process, there is [`crate::store`] and the gate over it; this is the short way for the common case.

mod fast_path;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tidegate_core::{Cost, Quota, QuotaError, Replace, Standing, Tick};

use crate::clock::{Clock, SystemClock, Time};
use crate::limiter::{Answer, Denied, Held, Reservation, Source};
use crate::observer::{Event, KeyDigest, Observer};
use crate::precision::Precision;
use crate::store::{Charge, MemoryStore, Occupancy, Op, Settled, Step, Store};
use crate::wait::Wait;

/// Says which keys have a limit of their own.
type Resolver = dyn Fn(&[u8]) -> Option<Arc<Quota>> + Send + Sync;

/// One limit per key, for at most a chosen number of live keys.
///
/// Keys are bytes (`&str`, `String`, `[u8; 4]` of an address, a digest), hashed by the store under a secret seed and not
/// kept. A clone shares the state; it costs one count of references.
///
/// # Examples
/// ```
/// use tidegate::{KeyedLimiter, ManualClock, Quota};
///
/// let limiter = KeyedLimiter::new(Quota::per_minute(2), 100_000)?.with_clock(ManualClock::default());
/// assert!(limiter.allow("ann").is_allowed());
/// assert!(limiter.allow("ann").is_allowed());
/// assert!(!limiter.allow("ann").is_allowed());
/// assert!(limiter.allow("bob").is_allowed(), "everybody has their own");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedLimiter {
    shared: Arc<Shared>,
}

struct Shared {
    /// The class of the standard limit in the store, where its states are words and nothing else has a say: no limit per key, no
    /// observer; see [`crate::store::KeptClass`]. 0 otherwise.
    fast_class: AtomicU64,
    precision: Precision,
    time: Time,
    store: MemoryStore,
    standard: ArcSwap<Standard>,
    /// Held while `fast_class` is set.
    publishing: Mutex<()>,
    resolver: Option<Arc<Resolver>>,
    capacity: usize,
    observer: Option<Arc<dyn Observer>>,
    /// Digests for observers; not the store's seed, so that a logged digest says nothing about the table.
    digests: RandomState,
}

/// The limit of every key that has none of its own.
#[derive(Debug)]
struct Standard {
    quota: Arc<Quota>,
    replace: Replace,
    /// Counts changes, as a limiter's terms do.
    terms: u64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("standard", &self.standard)
            .field("resolver", &self.resolver.is_some())
            .field("occupancy", &self.store.occupancy())
            .field("precision", &self.precision)
            .field("time", &self.time)
            .field("observer", &self.observer)
            .finish_non_exhaustive()
    }
}

impl KeyedLimiter {
    /// Makes a limiter in which every key starts full, with room for `capacity` live keys, living by the [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is no limit.
    pub fn new<Q>(quota: Q, capacity: usize) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        let standard = Standard { quota: Arc::new(quota.try_into()?), replace: Replace::AsIs, terms: 0 };
        let shared = Shared {
            fast_class: AtomicU64::new(0),
            precision: Precision::default(),
            time: Time::new(SystemClock::new()),
            store: MemoryStore::with_capacity(capacity),
            standard: ArcSwap::from_pointee(standard),
            publishing: Mutex::new(()),
            resolver: None,
            capacity,
            observer: None,
            digests: RandomState::default(),
        };
        shared.publish_class();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a limiter that lives by `clock`. A step of construction: the result starts full and shares nothing with
    /// earlier clones, for ticks of two clocks cannot be compared.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        self.rebuilt(|shared| shared.time = Time::new(clock))
    }

    /// Returns a limiter in another [`Precision`]. A step of construction, as [`KeyedLimiter::with_clock`] is.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        self.rebuilt(|shared| shared.precision = precision)
    }

    /// Returns a limiter that tells keys apart by themselves and not by their fingerprints, in twice the memory and at about
    /// twice the cost of a check; see [`MemoryStore::with_full_keys`]. A step of construction, as [`KeyedLimiter::with_clock`] is.
    #[must_use]
    pub fn with_full_keys(self) -> Self {
        self.rebuilt(|shared| shared.store = MemoryStore::with_full_keys(shared.capacity))
    }

    /// Returns a limiter whose decisions `observer` is told; hand in an `Arc` to keep a hold of it. A step of construction, as
    /// [`KeyedLimiter::with_clock`] is.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.rebuilt(|shared| shared.observer = Some(Arc::new(observer)))
    }

    /// Returns a limiter that asks `own` for the limit of each key; `None` means the standard one. A step of construction, as
    /// [`KeyedLimiter::with_clock`] is.
    ///
    /// `own` is called once per operation, outside every lock, so it should look up rather than compute, and hand out
    /// clones of one `Arc` per class of keys. When its answer for a key changes, what was spent is carried over.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{KeyedLimiter, ManualClock, Quota};
    ///
    /// let paying = Arc::new(Quota::per_minute(1000).gcra()?);
    /// let limiter = KeyedLimiter::new(Quota::per_minute(10), 100_000)?
    ///     .with_clock(ManualClock::default())
    ///     .with_quotas(move |key| key.starts_with(b"paying:").then(|| paying.clone()));
    /// assert_eq!(limiter.standing("paying:ann").remaining, 1000);
    /// assert_eq!(limiter.standing("bob").remaining, 10);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn with_quotas(self, own: impl Fn(&[u8]) -> Option<Arc<Quota>> + Send + Sync + 'static) -> Self {
        self.rebuilt(|shared| shared.resolver = Some(Arc::new(own)))
    }

    /// Returns a limiter with one part replaced.
    fn rebuilt(&self, replace: impl FnOnce(&mut Shared)) -> Self {
        let old = &*self.shared;
        let mut shared = Shared {
            fast_class: AtomicU64::new(0),
            precision: old.precision,
            time: old.time.again(),
            store: old.store.again(old.capacity),
            standard: ArcSwap::new(old.standard.load_full()),
            publishing: Mutex::new(()),
            resolver: old.resolver.clone(),
            capacity: old.capacity,
            observer: old.observer.clone(),
            digests: RandomState::default(),
        };
        replace(&mut shared);
        shared.publish_class();
        Self { shared: Arc::new(shared) }
    }

    /// Spends one unit of the key now, or refuses and changes nothing.
    ///
    /// For a GCRA quota without an observer or limits per key: one load of the shared tick ([`Precision`] chooses otherwise), one hash
    /// and one short lock of the key's cache line. All others read the clock and take a little longer. Never allocates for a
    /// known key and a quota whose state is of fixed size.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn allow(&self, key: impl AsRef<[u8]>) -> Answer {
        self.allow_n(key, Cost::ONE)
    }

    /// Spends `cost` of the key now, or refuses and changes nothing. A cost above the burst is refused for ever.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn allow_n(&self, key: impl AsRef<[u8]>, cost: Cost) -> Answer {
        self.decide(key.as_ref(), cost)
    }

    /// Spends one unit of the key now and says whether it did: [`KeyedLimiter::allow`] for whoever asks for no more than that.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn admit(&self, key: impl AsRef<[u8]>) -> bool {
        self.admit_n(key, Cost::ONE)
    }

    /// Spends `cost` of the key now and says whether it did; see [`KeyedLimiter::admit`].
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn admit_n(&self, key: impl AsRef<[u8]>, cost: Cost) -> bool {
        self.decide(key.as_ref(), cost)
    }

    /// Spends one unit of each of `keys`, in order, as [`KeyedLimiter::allow`] would one by one, and hands each with its answer to
    /// `tell`.
    ///
    /// The keys share one clock reading, and their memory is fetched together: a third of the time of single calls where
    /// there are more keys than the processor's caches hold. Takes any number of keys, sixteen at a time. Not one
    /// decision but many: each key is charged or refused for itself.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{KeyedLimiter, ManualClock, Quota};
    ///
    /// let limiter = KeyedLimiter::new(Quota::per_minute(1), 1000)?.with_clock(ManualClock::default());
    /// let mut allowed = Vec::new();
    /// limiter.allow_each(&["ann", "bob", "ann"], |key, answer| {
    ///     if answer.is_allowed() {
    ///         allowed.push(*key);
    ///     }
    /// });
    /// assert_eq!(allowed, ["ann", "bob"]);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn allow_each<K: AsRef<[u8]>>(&self, keys: &[K], tell: impl FnMut(&K, Answer)) {
        self.decide_each(keys, tell);
    }

    /// Spends one unit of each of `keys` and says whether it did: [`KeyedLimiter::allow_each`] for whoever asks for no more than
    /// that.
    pub fn admit_each<K: AsRef<[u8]>>(&self, keys: &[K], tell: impl FnMut(&K, bool)) {
        self.decide_each(keys, tell);
    }

    #[inline(never)]
    fn allow_at_length(&self, key: &[u8], cost: Cost) -> Answer {
        let asked = self.asked(cost, Duration::ZERO);
        self.with_terms(key, |terms| self.take(key, terms, asked).1.answer())
    }

    /// Spends `cost` of the key under a limit the caller names for this call, in place of what would hold for the key. What
    /// was spent under another limit is carried over. Hand in clones of one `Arc`, not a new one each time.
    #[must_use = "a refusal goes unnoticed otherwise"]
    pub fn allow_with(&self, key: impl AsRef<[u8]>, cost: Cost, quota: &Arc<Quota>) -> Answer {
        let standard = self.shared.standard.load();
        let terms = Terms { quota, replace: standard.replace, count: standard.terms };
        self.take(key.as_ref(), terms, self.asked(cost, Duration::ZERO)).1.answer()
    }

    /// Spends `cost` of the key now for work that acts after a delay of at most `max_wait`; see [`crate::Limiter::reserve`].
    ///
    /// # Errors
    /// [`Denied`] when the delay would be longer.
    pub fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        cost: Cost,
        max_wait: Duration,
    ) -> Result<Reservation, Denied> {
        self.reserve_at(key.as_ref(), self.now(), cost, max_wait)
    }

    /// Waits until `cost` of the key may be spent: first come, first served per key. The future holds a copy of the key.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Cost, KeyedLimiter, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = KeyedLimiter::new(Quota::per_second(10), 1000)?;
    /// limiter.wait("ann", Cost::ONE).within(Duration::from_millis(500)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, key: impl AsRef<[u8]>, cost: Cost) -> Wait {
        Wait::new(Source::Key { limiter: self.clone(), key: key.as_ref().into(), quota: None }, cost)
    }

    /// Holds the calling thread until `cost` of the key may be spent, at most for `timeout`. Not for async code.
    ///
    /// # Errors
    /// [`Denied`], at once and with nothing spent, when `timeout` cannot be met.
    pub fn blocking_wait(
        &self,
        key: impl AsRef<[u8]>,
        cost: Cost,
        timeout: Duration,
    ) -> Result<Answer, Denied> {
        Ok(self.reserve(key, cost, timeout)?.block())
    }

    /// Says what [`KeyedLimiter::allow`] would answer, with the standing of now; changes nothing, takes no room for the key and
    /// tells no observer.
    #[must_use]
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Answer {
        self.peek_n(key.as_ref(), Cost::ONE)
    }

    /// Says what [`KeyedLimiter::allow_n`] would answer; see [`KeyedLimiter::peek`].
    #[must_use]
    pub fn peek_n(&self, key: impl AsRef<[u8]>, cost: Cost) -> Answer {
        Answer::binding_of(&self.adjust(key.as_ref(), Op::Peek, cost))
    }

    /// Forgets the key: its limit is full again, and of reservations made before nothing comes back, unless the key is pushed out of a
    /// full limiter and comes again.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        self.adjust(key.as_ref(), Op::Reset, Cost::ONE);
    }

    /// Returns how the key stands now.
    #[must_use]
    pub fn standing(&self, key: impl AsRef<[u8]>) -> Standing {
        self.peek(key).standing()
    }

    /// Puts `quota` in the place of the standard limit, for all keys and all clones. A key takes over what it spent, as `how`
    /// says, when it is next used; until then it goes on refilling at the old rate.
    ///
    /// Costs the same for one key and for a million. Reservations made before a change give nothing back when settled after.
    ///
    /// # Errors
    /// [`QuotaError`] when the new numbers are no limit; the old ones then stay.
    pub fn change<Q>(&self, quota: Q, how: Replace) -> Result<(), QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        let quota = Arc::new(quota.try_into()?);
        self.shared.standard.rcu(|old| Standard {
            quota: Arc::clone(&quota),
            replace: how,
            terms: old.terms + 1,
        });
        self.shared.publish_class();
        Ok(())
    }

    /// Returns how full the memory is and what had to be given up.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.shared.store.occupancy()
    }

    /// Returns the digest by which events name the key.
    #[must_use]
    pub fn digest(&self, key: impl AsRef<[u8]>) -> KeyDigest {
        KeyDigest(self.shared.digests.hash_one(key.as_ref()))
    }
}

/// What one operation asks.
#[derive(Clone, Copy)]
struct Asked {
    now: Tick,
    cost: Cost,
    max_wait: Duration,
}

/// The limit that holds for a key in one operation.
#[derive(Clone, Copy)]
struct Terms<'a> {
    quota: &'a Arc<Quota>,
    replace: Replace,
    count: u64,
}

impl KeyedLimiter {
    pub(crate) fn clock(&self) -> &dyn Clock {
        self.shared.time.clock()
    }

    pub(crate) fn now(&self) -> Tick {
        self.shared.time.now()
    }

    fn asked(&self, cost: Cost, max_wait: Duration) -> Asked {
        Asked { now: self.now(), cost, max_wait }
    }

    /// Finds the limit of a key, without counting references on the usual path.
    fn with_terms<R>(&self, key: &[u8], then: impl FnOnce(Terms<'_>) -> R) -> R {
        let own = self.shared.resolver.as_ref().and_then(|resolver| resolver(key));
        let standard = self.shared.standard.load();
        let quota = own.as_ref().unwrap_or(&standard.quota);
        then(Terms { quota, replace: standard.replace, count: standard.terms })
    }

    fn settle(&self, key: &[u8], terms: Terms<'_>, op: Op<'_>, asked: Asked) -> Settled {
        let Asked { now, cost, max_wait } = asked;
        let charge = Charge { max_wait, replace: terms.replace, ..Charge::new(key, terms.quota, cost) };
        let charges = [charge];
        let step = Step::new(now, op, &charges);
        self.shared.store.settle(&step).expect("a store in memory always settles a step of one charge")
    }

    /// Decides once and tells the observer.
    fn take(&self, key: &[u8], terms: Terms<'_>, mut asked: Asked) -> (Settled, Event) {
        let (settled, answer) = loop {
            let settled = self.settle(key, terms, Op::Take, asked);
            let answer = Answer::binding_of(&settled);
            if answer.is_allowed() {
                break (settled, answer);
            }
            // As a limiter of one does it: a word may hold a charge of a later tick than was asked by.
            match answer.retry().after().zip(Some(self.now())) {
                Some((wait, later)) if later.since(asked.now) >= wait => asked.now = later,
                _ => break (settled, answer),
            }
        };
        let (decision, binding) = (answer.decision(), answer.binding());
        let Asked { now, cost, max_wait } = asked;
        let mut event = Event { at: now, cost, max_wait, decision, binding, key: None };
        if let Some(observer) = &self.shared.observer {
            event.key = Some(self.digest(key));
            observer.on_decision(&event);
        }
        (settled, event)
    }

    fn adjust(&self, key: &[u8], op: Op<'_>, cost: Cost) -> Settled {
        self.with_terms(key, |terms| self.settle(key, terms, op, self.asked(cost, Duration::ZERO)))
    }

    pub(crate) fn reserve_at(
        &self,
        key: &[u8],
        now: Tick,
        cost: Cost,
        max_wait: Duration,
    ) -> Result<Reservation, Denied> {
        self.with_terms(key, |terms| {
            let (settled, event) = self.take(key, terms, Asked { now, cost, max_wait });
            if !settled.allowed {
                return Err(event.answer().into());
            }
            let quota = Some(Arc::clone(terms.quota));
            let source = Source::Key { limiter: self.clone(), key: key.into(), quota };
            let receipts = settled.lines.iter().filter_map(|line| line.receipt).collect();
            Ok(Reservation::new(source, Held { event, receipts, terms: terms.count }))
        })
    }

    /// Settles a charge with what was really spent. Where the key's limit has changed since, nothing comes back, and the limit that
    /// holds now is charged what was spent beyond it.
    pub(crate) fn settle_key(&self, key: &[u8], quota: Option<&Arc<Quota>>, held: &Held, used: u64) {
        let asked = self.asked(held.event.cost, Duration::ZERO);
        self.with_terms(key, |terms| {
            let same = terms.count == held.terms && quota.is_some_and(|charged| charged == terms.quota);
            if let [receipt] = held.receipts[..]
                && (same || used > held.event.cost.units())
            {
                self.settle(key, terms, Op::Finish(&[held.ending(receipt, used)]), asked);
            }
        });
        self.tell(|observer| held.tell(observer, used));
    }

    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.shared.observer {
            event(&**observer);
        }
    }
}
