//! A conformance suite for every store, remote ones included.
//!
//! [`run`] takes a function that makes an empty store. It panics, naming the law and the seed, if the store breaks a
//! law. Most laws are checked by one differential trace: random steps run on the store and on [`PlainStore`], and their
//! answers must be equal line by line.
//!
//! Answers that come later are awaited on the calling thread, so a store that needs a runtime must bring its own.

mod trace;

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, SentinelRule, Window};
use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency, Bounds, Concurrency};
use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, GuavaBursty, GuavaWarming, TokenBucket, UberPacer, XTime,
};
use tidegate_core::{Cost, Finish, Outcome, Quota, QuotaError, Rate, Tick};
pub use trace::Random;

use super::{Execution, Home, PlainStore, StepAnswer, Store, StoreError};
use crate::block_on::block_on;
use crate::clock::{Clock as _, ManualClock};
use crate::store::step::{Charge, DecidedBy, Ending, Executed, Op, Step, StepClock};

/// Runs the whole suite against stores that `make` returns, which must be empty.
///
/// `quotas` are the limits to try; [`quotas`] returns at least one of every algorithm. `steps` is the length of each of
/// five random traces: a thousand for an engine over the network, a hundred thousand in memory. If the store has a
/// clock of its own ([`super::Caps::own_clock`]), its answers are compared with those of a plain map at the ticks that
/// they name; [`run_by_clock`] also compares these ticks with the clock.
///
/// # Panics
/// When a law is broken; the message names law, seed and step.
///
/// # Examples
/// A store that counts its steps passes if the one behind it does:
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::store::{Home, Occupancy, PlainStore, Executed, Execution, Step, Store, conformance};
///
/// #[derive(Debug, Default)]
/// struct Counting(PlainStore, AtomicU64);
///
/// impl Store for Counting {
///     fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         self.0.execute_into(step, out)
///     }
///
///     fn occupancy(&self) -> Occupancy {
///         self.0.occupancy()
///     }
/// }
///
/// conformance::run(Counting::default, &conformance::quotas(), 200);
/// ```
pub fn run<S: Store>(make: impl Fn() -> S, quotas: &[Arc<Quota>], steps: u64) {
    suite(|_| make(), None, quotas, steps);
}

/// Runs the suite against stores that use the clock handed to `make` as their own: the suite makes it run fast, slow
/// and backwards.
///
/// # Panics
/// As [`run`].
pub fn run_by_clock<S: Store>(make: impl Fn(ManualClock) -> S, quotas: &[Arc<Quota>], steps: u64) {
    let clock = ManualClock::default();
    suite(|clock| make(clock.clone()), Some(&clock), quotas, steps);
}

fn suite<S: Store>(
    make: impl Fn(&ManualClock) -> S,
    clock: Option<&ManualClock>,
    quotas: &[Arc<Quota>],
    steps: u64,
) {
    let unused = ManualClock::default();
    let make = || make(clock.unwrap_or(&unused));
    check_laws(&make, quotas);
    for seed in 1..=5 {
        let store = make();
        let mut subject = Subject::new(&store, clock);
        match seed {
            1..=3 => trace::one_by_one(&mut subject, quotas, seed, steps),
            _ => trace::many_at_once(&mut subject, quotas, seed, steps),
        }
    }
}

/// Returns at least one limit of every algorithm, awkward rates among them.
///
/// # Panics
/// Never: the parameters are constants that the tests build.
#[must_use]
pub fn quotas() -> Vec<Arc<Quota>> {
    let all = [
        Quota::per_second(7).burst(5).gcra(),
        Quota::per_second(999_999_937).burst(1000).gcra(),
        Quota::per_day(3).gcra(),
        Quota::per_second(5).fixed_window(),
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai"),
        Quota::per_second(6).sliding_window(7),
        Quota::per_second(6).sliding_counter(),
        Quota::per_second(6).sliding_log(),
        Quota::per_second(7).burst(4).token_bucket(),
        Quota::per_second(3).burst(9).interval_bucket(),
        Quota::per_second(7).burst(4).leaky_bucket(),
        Quota::per_second(20).burst(2).leaky_queue(8),
        Quota::per_second(20).warm_up(Duration::from_secs(2), ColdFactor::THREE),
        XTime::new(3.7, 6).map(Quota::from),
        Rate::new(30, Duration::from_secs(1)).and_then(|rate| UberPacer::new(rate, 4)).map(Quota::from),
        GuavaBursty::new(5.5, 1.0).map(Quota::from),
        GuavaWarming::new(9.0, Duration::from_secs(1), 3.0).map(Quota::from),
        // Starts below the cost of some asks, so that keys that are denied when first seen have to be kept.
        Rate::new(3, Duration::from_secs(1))
            .and_then(|rate| Bandwidth::new(rate, 8)?.initial(1))
            .map(|bandwidth| TokenBucket::new(bandwidth).into()),
        Quota::concurrency(5, Duration::from_secs(2)),
        Concurrency::new(7).map(Quota::from),
        // Its limit moves, and its state is forgotten, within the span of a trace.
        adaptive("aimd", 5, |guard| guard.forget_after(Duration::from_secs(3))),
        adaptive("hill-climb", 3, |guard| guard.forget_after(Duration::MAX)),
        adaptive("min-latency", 4, Ok),
        // Trips, waits and recovers within the span of a trace.
        CircuitBreaker::builder()
            .window(Window::Time { span: Duration::from_secs(2), buckets: 4 })
            .min_calls(3)
            .open_for(Duration::from_millis(300))
            .ttl(Duration::from_secs(1))
            .probes(2)
            .forget_after(Duration::from_secs(5))
            .build()
            .map(Quota::from),
        CircuitBreaker::sentinel(SentinelRule::ErrorCount(1), Duration::from_millis(200))
            .build()
            .map(Quota::from),
        Quota::per_second(3).burst(7).aligned_bucket(),
        // Two limits of one pace are two limits all the same.
        Quota::per_minute(3).burst(3).gcra(),
        Quota::per(1, Duration::from_secs(20)).burst(3).gcra(),
    ];
    all.into_iter().map(|quota| Arc::new(quota.expect("constant parameters in range"))).collect()
}

fn adaptive(
    law: &str,
    start: u64,
    with: impl Fn(AdaptiveConcurrency) -> Result<AdaptiveConcurrency, QuotaError>,
) -> Result<Quota, QuotaError> {
    let law: Adaptive = law.parse().expect("the name of a law");
    let law = law.with_bounds(Bounds::new(1, 8)?.start_at(start)?);
    with(AdaptiveConcurrency::new(law).ttl(Duration::from_secs(2))?).map(Quota::from)
}

/// A store may follow a clock that is at least this far behind the latest tick.
const FAR_BEHIND: Duration = Duration::from_secs(10);

struct Subject<'a> {
    store: &'a dyn Store,
    clock: Option<&'a ManualClock>,
    plain: PlainStore,
    /// The latest tick of a step.
    latest: Tick,
    /// The latest tick of a step that has to have moved the store's time: a refusal or a peek need not.
    moved: Tick,
}

impl<'a> Subject<'a> {
    fn new(store: &'a dyn Store, clock: Option<&'a ManualClock>) -> Self {
        assert_eq!(store.caps(), store.caps(), "law: a store says the same of itself each time");
        assert_eq!(store.home(), store.home(), "law: a store says the same of itself each time");
        Self { store, clock, plain: PlainStore::default(), latest: Tick::EPOCH, moved: Tick::EPOCH }
    }

    fn judge(&mut self, step: &Step<'_>, ours: StepAnswer, context: &str) -> StepAnswer {
        let at = match &ours {
            Ok(executed) => {
                self.judge_at(step, executed, context);
                self.latest = self.latest.max(executed.at);
                if executed.allowed && !matches!(step.op, Op::Peek) {
                    self.moved = self.moved.max(executed.at);
                }
                executed.at
            }
            Err(_) => step.now,
        };
        let mut executed = Executed::default();
        let theirs = self.plain.execute_at(step, |_| at, &mut executed).map(|()| executed);
        let alike = |answer: StepAnswer| {
            answer.map(|executed| {
                let mut executed = Executed { by: DecidedBy::Local, ..executed };
                if !step.receipts {
                    executed.lines.iter_mut().for_each(|line| line.receipt = None);
                }
                executed
            })
        };
        assert_eq!(alike(ours), alike(theirs.clone()), "law: equal to the plain map; {context}, {step:?}");
        theirs
    }

    fn judge_at(&self, step: &Step<'_>, executed: &Executed, context: &str) {
        let local = matches!(self.store.home(), Home::Process { .. });
        assert_eq!(
            executed.by == DecidedBy::Local,
            local,
            "law: an answer says whether this process decided it; {context}, {step:?}"
        );
        // A store may follow a clock that is far behind, so that a clock that was far ahead for a moment does not stop
        // time.
        let held = |tick: Tick| {
            let (behind, at) = (self.latest.since(tick), executed.at);
            (tick.max(self.moved)..=tick.max(self.latest)).contains(&at)
                || behind > FAR_BEHIND && at > self.moved
        };
        let in_time = match step.clock {
            StepClock::Caller => held(step.now),
            // A permission may be by the older tick; a refusal is by the fresh one.
            StepClock::Fresh(clock) => {
                let fresh = clock.now().max(step.now);
                held(fresh) || held(step.now) && (executed.allowed || executed.at >= fresh)
            }
            StepClock::Engine if !self.store.caps().own_clock => held(step.now),
            StepClock::Engine => match self.clock {
                Some(clock) => held(clock.now()),
                None => executed.at >= self.latest,
            },
        };
        assert!(
            in_time,
            "law: decided by the clock that the step names, which does not step back; {context}, at {:?} after {:?}, {step:?}",
            executed.at, self.latest
        );
    }
}

fn execute(store: &dyn Store, step: &Step<'_>) -> StepAnswer {
    let mut executed = Executed::default();
    match store.execute_into(step, &mut executed) {
        Execution::Done(done) => done.map(|()| executed),
        Execution::Later(later) => {
            assert!(store.caps().may_wait, "law: only a store that says so answers later");
            block_on(later)
        }
    }
}

fn check_laws<S: Store>(make: &dyn Fn() -> S, quotas: &[Arc<Quota>]) {
    repeated_keys_are_refused(&make(), quotas);
    a_refused_step_changes_nothing(&make(), quotas);
    a_step_that_happens_once_is_all_or_nothing(&make(), quotas);
    an_answer_that_nobody_awaits_is_not_asked_for(&make(), quotas);
    an_answer_that_is_given_up_holds_up_nobody(&make(), quotas);
    a_state_that_is_too_large_is_refused(&make());
    permits_are_neither_lost_nor_doubled(&make());
    a_place_is_held_longer_by_its_receipt_alone(&make());
}

fn repeated_keys_are_refused(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let charges =
        [Charge::new(b"twice", &quotas[0], Cost::ONE), Charge::new(b"twice", &quotas[0], Cost::ONE)];
    let answer = execute(store, &Step::new(Tick::from_secs(1), Op::Take, &charges));
    assert_eq!(answer, Err(StoreError::RepeatedKey), "law: a key named twice is refused");
}

fn a_refused_step_changes_nothing(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let now = Tick::from_secs(1_000_000);
    let small = Arc::new(Quota::per_second(1).gcra().expect("constant parameters in range"));
    for (index, quota) in quotas.iter().enumerate() {
        let (key, other) = ([b'k', index as u8], [b'o', index as u8]);
        let peek = |cost| {
            let charges = [Charge::new(&key, quota, cost)];
            execute(store, &Step::new(now, Op::Peek, &charges)).expect("a peek is answered")
        };
        let before = peek(Cost::ONE);
        let charges = [Charge::new(&key, quota, Cost::ONE), Charge::new(&other, &small, Cost::MAX)];
        let refused = execute(store, &Step::new(now, Op::Take, &charges)).expect("a refusal is an answer");
        assert!(!refused.allowed, "law: the maximum cost is refused");
        assert_eq!(peek(Cost::ONE), before, "law: a refused step changes nothing ({quota:?})");
    }
}

/// A step that ends a charge, forgets a key and makes a mark is executed twice: the second time, the mark refuses it,
/// and nothing changes.
fn a_step_that_happens_once_is_all_or_nothing(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let now = Tick::from_secs(1_000_000);
    let mark = Arc::new(Quota::per_hour(1).gcra().expect("constant parameters in range"));
    let execute = |op: Op<'_>, charges: &[Charge<'_>]| {
        execute(store, &Step::new(now, op, charges)).expect("a step over distinct keys is executed")
    };
    for (index, quota) in quotas.iter().enumerate() {
        let keys = [b'e', b'f', b'm'].map(|first| [first, index as u8]);
        let charges = [quota, quota, &mark];
        let charges: Vec<_> =
            keys.iter().zip(charges).map(|(key, quota)| Charge::new(key, quota, Cost::ONE)).collect();
        let taken = execute(Op::Take, &charges[..2]);
        let Some(receipt) = taken.lines[0].receipt else { continue };
        let undone = Ending::new(receipt, Finish::UNDONE);
        let endings = [undone, Ending::Forget, Ending::Once];
        let first = execute(Op::Finish(&endings), &charges);
        assert!(first.allowed, "law: what was not yet done is done ({quota:?})");
        // The first step left nothing to end, so if the second acted, it would show as debts and forgotten charges.
        let more = execute(Op::Take, &charges[1..2]);
        let before = execute(Op::Peek, &charges);
        let owed = Ending::new(receipt, Finish { used: 100, outcome: Outcome::Success });
        let second = execute(Op::Finish(&[owed, Ending::Forget, Ending::Once]), &charges);
        assert!(!second.allowed, "law: a mark is made once ({quota:?}, {more:?})");
        assert!(second.lines.iter().all(|line| line.receipt.is_none()), "law: refused, nothing is charged");
        assert_eq!(
            execute(Op::Peek, &charges),
            before,
            "law: a refused settlement changes nothing ({quota:?})"
        );
        let note = Charge { binding: false, ..charges[2] };
        let third = execute(Op::Finish(&[Ending::Forget, Ending::Once]), &[charges[1], note]);
        assert!(third.allowed, "law: a mark that is not binding refuses nothing ({quota:?})");
        assert_eq!(third.lines[1].receipt, None, "law: such a mark tells whether it was made ({quota:?})");
    }
}

/// A place that is held longer has another receipt, and the former one finds nothing. Where the place has lapsed, the step
/// is refused with the marks in it.
fn a_place_is_held_longer_by_its_receipt_alone(store: &dyn Store) {
    let start = Tick::from_secs(1_000_000);
    let places =
        Arc::new(Quota::concurrency(2, Duration::from_secs(30)).expect("constant parameters in range"));
    let mark = Arc::new(Quota::per_hour(1).gcra().expect("constant parameters in range"));
    let charges = [b"mark-1".as_slice(), b"held"].map(|key| {
        let quota = if key == b"held" { &places } else { &mark };
        Charge::new(key, quota, Cost::ONE)
    });
    let execute = |secs, op: Op<'_>, charges: &[Charge<'_>]| {
        let now = start.after(Duration::from_secs(secs));
        execute(store, &Step::new(now, op, charges)).expect("a step over distinct keys is executed")
    };
    let in_use = |secs| 2 - execute(secs, Op::Peek, &charges[1..]).lines[0].decision.standing.remaining;
    let taken = execute(0, Op::Take, &charges[1..]).lines[0].receipt.expect("a receipt of a place");
    let held = execute(20, Op::Finish(&[Ending::Once, Ending::Extend { receipt: taken }]), &charges);
    assert!(held.allowed, "law: a place is held longer");
    let receipt = held.lines[1].receipt.expect("law: a place that is held longer has a receipt");
    assert_eq!(in_use(49), 1, "law: it is held from then on");
    let again = execute(49, Op::Finish(&[Ending::Extend { receipt: taken }]), &charges[1..]);
    assert!(!again.allowed && again.lines[0].receipt.is_none(), "law: the former receipt holds nothing");
    execute(49, Op::Finish(&[Ending::new(taken, Finish::UNDONE)]), &charges[1..]);
    assert_eq!(in_use(49), 1, "law: the former receipt returns nothing");
    execute(49, Op::Finish(&[Ending::new(receipt, Finish::UNDONE)]), &charges[1..]);
    assert_eq!(in_use(49), 0, "law: the new receipt returns the place");

    let lapsed = execute(50, Op::Take, &charges[1..]).lines[0].receipt.expect("a receipt of a place");
    let charges = [Charge::new(b"mark-2", &mark, Cost::ONE), charges[1]];
    let late = execute(81, Op::Finish(&[Ending::Once, Ending::Extend { receipt: lapsed }]), &charges);
    assert!(!late.allowed, "law: a place that has lapsed is not held");
    let unmarked = execute(81, Op::Finish(&[Ending::Once]), &charges[..1]);
    assert!(unmarked.allowed, "law: a refused step makes no mark");
    let charges = [Charge::new(b"mark-3", &mark, Cost::ONE), Charge { binding: false, ..charges[1] }];
    let shadow = execute(81, Op::Finish(&[Ending::Once, Ending::Extend { receipt: lapsed }]), &charges);
    assert!(shadow.allowed, "law: a place that is not binding refuses nothing");
    let receipts = shadow.lines.iter().map(|line| line.receipt.is_some()).collect::<Vec<_>>();
    assert_eq!(receipts, [true, false], "law: and is not held where it has lapsed");
}

/// If a future is dropped before it is polled, its step was not done: for one step, and for many at once.
fn an_answer_that_nobody_awaits_is_not_asked_for(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let now = Tick::from_secs(1_000_000);
    for (index, quota) in quotas.iter().enumerate() {
        let key = [b'd', index as u8];
        let charges = [Charge::new(&key, quota, Cost::ONE)];
        let peek = || execute(store, &Step::new(now, Op::Peek, &charges)).expect("a peek is answered");
        let (before, take) = (peek(), Step::new(now, Op::Take, &charges));
        match store.execute_into(&take, &mut Executed::default()) {
            // It answers on the spot.
            Execution::Done(_) => return,
            Execution::Later(later) => drop(later),
        }
        assert_eq!(peek(), before, "law: an answer that is not polled asks nothing");
        if let Some(later) = store.execute_each(&[take, take], &mut Vec::new()) {
            drop(later);
            assert_eq!(peek(), before, "law: answers that are not polled ask nothing");
        }
    }
}

/// If a future is dropped after it was polled, its step may or may not be done, and no lock is left behind.
fn an_answer_that_is_given_up_holds_up_nobody(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let now = Tick::from_secs(1_000_000);
    for (index, quota) in quotas.iter().enumerate() {
        let key = [b'g', index as u8];
        let charges = [Charge::new(&key, quota, Cost::ONE)];
        let take = Step::new(now, Op::Take, &charges);
        if let Execution::Later(mut later) = store.execute_into(&take, &mut Executed::default()) {
            let _ = later.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        let next = execute(store, &take).expect("law: a step after one that was given up is answered");
        assert_eq!(next.lines.len(), 1, "law: one line for each charge");
    }
}

/// If a store has a bound on its cells, a log grows up to it and no further.
fn a_state_that_is_too_large_is_refused(store: &dyn Store) {
    let Some(most) = store.caps().largest_cell else { return };
    let log = Arc::new(Quota::per_hour(most as u64).sliding_log().expect("as many as bytes"));
    let charges = [Charge::new(b"log", &log, Cost::ONE)];
    let start = Tick::from_secs(1_000_000);
    let tick = |turn: usize| start.after(Duration::from_millis(turn as u64));
    for turn in 0..most {
        let answer = execute(store, &Step::new(tick(turn), Op::Take, &charges));
        match answer {
            Ok(executed) => assert!(executed.allowed, "law: a log takes what it has room for"),
            Err(StoreError::CellTooLarge { bytes, most: bound }) => {
                assert!(bound == most && bytes > most, "law: a state too large is named with its size");
                let peek =
                    execute(store, &Step::new(tick(turn), Op::Peek, &charges)).expect("a peek is answered");
                let left = peek.lines[0].decision.standing.remaining;
                assert_eq!(left, (most - turn) as u64, "law: what is refused for its size is not charged");
                return;
            }
            Err(error) => panic!("law: a state too large is told as such, not as {error:?}"),
        }
    }
    panic!("law: no state is larger than the {most} bytes that the store says");
}

/// Threads race for one shared limit, together with one of their own in each step: the shared limit is spent exactly.
fn permits_are_neither_lost_nor_doubled(store: &dyn Store) {
    const BURST: u64 = 200;
    let shared = Arc::new(Quota::per_day(1).burst(BURST).gcra().expect("constant parameters in range"));
    let (now, threads) = (Tick::from_secs(1), 4u8);
    let allowed: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || {
                    let own = [b'w', thread];
                    let charges =
                        [Charge::new(b"all", shared, Cost::ONE), Charge::new(&own, shared, Cost::ONE)];
                    let step = Step::new(now, Op::Take, &charges);
                    // A store may give up under contention; then nothing was spent, and the caller asks again.
                    let taken = || execute(store, &step).is_ok_and(|executed| executed.allowed);
                    (0..BURST).filter(|_| taken()).count() as u64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker only executes")).sum()
    });
    let charges = [Charge::new(b"all", &shared, Cost::ONE)];
    let left = execute(store, &Step::new(now, Op::Peek, &charges)).expect("a peek is answered");
    let left = left.lines[0].decision.standing.remaining;
    assert_eq!(allowed + left, BURST, "law: every permit is given once");
}
