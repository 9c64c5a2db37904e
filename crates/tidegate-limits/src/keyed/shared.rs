//! The state that the clones of a keyed limiter share, and the decisions made through its store.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Replace, Tick};

use crate::answer::{Answer, Denied};
use crate::clock::{Clock, Time};
use crate::observer::{Event, KeyDigest, Observer};
use crate::precision::Precision;
use crate::reservation::{HeldCharge, Source};
use crate::store::{Charge, ChargeRules, MemoryStore, Op, Settled, Step, Store};

/// Looks up the limit of a key; `None` means the standard limit.
pub(super) type Resolver = dyn Fn(&[u8]) -> Option<Arc<Quota>> + Send + Sync;

/// What all clones of a keyed limiter share.
pub(super) struct KeyedState {
    /// The class of the standard limit in the store if the fast path is possible: the states of the limit fit a word,
    /// and there are neither limits per key nor an observer. 0 otherwise.
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
    /// The hasher of digests for observers. It differs from the store's seed, so that a logged digest reveals nothing
    /// about the table.
    pub(super) digests: RandomState,
}

/// The limit of every key without a limit of its own.
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

/// The arguments of one operation.
#[derive(Clone, Copy)]
pub(super) struct OpArguments {
    pub(super) now: Tick,
    pub(super) cost: Cost,
    pub(super) max_wait: Duration,
}

/// The limit of a key in one operation.
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

    /// Finds the limit of a key, without reference counting on the usual path.
    pub(super) fn with_terms<R>(&self, key: &[u8], then: impl FnOnce(Terms<'_>) -> R) -> R {
        let own = self.resolver.as_ref().and_then(|resolver| resolver(key));
        let standard = self.standard.load();
        let quota = own.as_ref().unwrap_or(&standard.quota);
        then(Terms { quota, replace: standard.replace, count: standard.terms })
    }

    fn settle(&self, key: &[u8], terms: Terms<'_>, op: Op<'_>, arguments: OpArguments) -> Settled {
        let OpArguments { now, cost, max_wait } = arguments;
        let rules = ChargeRules { replace: terms.replace, ..ChargeRules::new(0) };
        let charge = Charge { max_wait, rules, ..Charge::new(key, terms.quota, cost) };
        let charges = [charge];
        let step = Step::new(now, op, &charges);
        self.store.settle(&step).expect("a store in memory always settles a step of one charge")
    }

    /// Decides once and reports to the observer. Returns the event, and what `keep` takes from the settlement.
    pub(super) fn take<R>(
        &self,
        key: &[u8],
        terms: Terms<'_>,
        mut arguments: OpArguments,
        keep: impl FnOnce(&Settled) -> R,
    ) -> (Event, R) {
        let (kept, answer) = loop {
            let settled = self.settle(key, terms, Op::Take, arguments);
            let answer = Answer::binding_of(&settled);
            if answer.is_allowed() {
                break (keep(&settled), answer);
            }
            // The same as for a limiter without keys: a word may hold a charge with a later tick than this check's.
            match answer.retry().after().zip(Some(self.time.now())) {
                Some((wait, later)) if later.since(arguments.now) >= wait => arguments.now = later,
                _ => break (keep(&settled), answer),
            }
        };
        let (decision, binding) = (answer.decision(), answer.binding());
        let OpArguments { now, cost, max_wait } = arguments;
        let mut event = Event { at: now, cost, max_wait, decision, binding, key: None, shadow: false };
        if let Some(observer) = &self.observer {
            event.key = Some(self.digest(key));
            observer.on_decision(&event);
        }
        (event, kept)
    }

    fn adjust(&self, key: &[u8], op: Op<'_>, cost: Cost) -> Settled {
        self.with_terms(key, |terms| self.settle(key, terms, op, self.arguments(cost, Duration::ZERO)))
    }

    /// Decides through the store: the general form, for every quota.
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

    /// Charges a key for work that acts after at most `max_wait`.
    pub(super) fn charge(
        &self,
        key: &[u8],
        now: Tick,
        cost: Cost,
        max_wait: Duration,
    ) -> Result<HeldCharge, Denied> {
        self.with_terms(key, |terms| {
            let receipt = |settled: &Settled| settled.lines.first().and_then(|line| line.receipt);
            let (event, receipt) = self.take(key, terms, OpArguments { now, cost, max_wait }, receipt);
            if !event.decision.is_allowed() {
                return Err(event.answer().into());
            }
            let receipts = receipt.into_iter().collect();
            Ok(HeldCharge { event, receipts, terms: terms.count, quota: Some(Arc::clone(terms.quota)) })
        })
    }

    /// Settles a charge with the units really spent. If the key's limit has changed since, nothing is given back, and
    /// units spent beyond the charge are charged to the current limit.
    fn settle_held(&self, key: &[u8], held: &HeldCharge, used: u64) {
        let arguments = self.arguments(held.event.cost, Duration::ZERO);
        self.with_terms(key, |terms| {
            let same = terms.count == held.terms
                && held.quota.as_ref().is_some_and(|charged| charged == terms.quota);
            if let [receipt] = held.receipts[..]
                && (same || used > held.event.cost.units())
            {
                self.settle(key, terms, Op::Finish(&[held.ending(receipt, used)]), arguments);
            }
        });
        if let Some(observer) = &self.observer {
            held.notify(&**observer, used);
        }
    }
}

/// One key of a keyed limiter, as the source of a reservation or a wait.
#[derive(Debug)]
pub(super) struct KeySource {
    shared: Arc<KeyedState>,
    /// Keys of usual length are stored inline.
    key: SmallVec<[u8; 32]>,
}

impl KeySource {
    pub(super) fn of(shared: &Arc<KeyedState>, key: &[u8]) -> Arc<dyn Source> {
        Arc::new(Self { shared: Arc::clone(shared), key: key.into() })
    }
}

impl Source for KeySource {
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
