//! Compare-and-set over engines that lose writes, answer late, apply writes twice, or never answer.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::clock::{Clock as _, ManualClock};
use tidegate::gate::Unfit;
use tidegate::policy::{Limit, Policy, PolicySet, Share};
use tidegate::store::{
    ByteMap, Caps, CasStore, Charge, Durable, Ending, Executed, Execution, Home, Later, Occupancy, Op,
    OwnedStep, PlainStore, Read, Step, StepAnswer, Store, StoreError, Write, Written, conformance,
};
use tidegate::{Cost, Gate, Quota, Tick};
use tidegate_core::Finish;

use crate::byte_map::Bytes;
use crate::byte_map::faulty::{Fault, Faulty};
use crate::store::steps;

fn over(fault: &Fault) -> CasStore<Faulty> {
    CasStore::new(Faulty::new(fault.clone()))
}

#[test]
fn it_conforms_although_every_third_write_loses() {
    conformance::run(|| over(&Fault::Loses), &conformance::quotas(), steps(3_000));
}

#[test]
fn it_conforms_over_an_engine_that_tells_what_a_lost_write_found() {
    conformance::run(|| over(&Fault::Tells), &conformance::quotas(), steps(1_500));
}

#[test]
fn it_conforms_over_an_engine_that_answers_late() {
    conformance::run(|| over(&Fault::Late), &conformance::quotas(), steps(1_500));
}

#[test]
fn it_conforms_where_each_write_is_applied_twice() {
    conformance::run(|| over(&Fault::Twice), &conformance::quotas(), steps(1_500));
}

#[test]
fn it_conforms_by_an_engines_clock_that_runs_fast_slow_and_backwards() {
    conformance::run_by_clock(|clock| over(&Fault::Clock(clock)), &conformance::quotas(), steps(3_000));
}

/// A charge whose write may have been executed counts once or twice; what is given back, once or not at all.
#[test]
fn a_write_that_may_have_been_executed_never_grants_more() {
    let store = over(&Fault::Unsure);
    let quota = Arc::new(Quota::per_day(1_000).fixed_window().unwrap());
    let charges = [Charge::new(b"key", &quota, Cost::ONE)];
    let now = Tick::from_secs(1_000);
    let left = || {
        let peeked = store.blocking_execute(&Step::new(now, Op::Peek, &charges)).unwrap();
        peeked.lines[0].decision.standing.remaining
    };
    let mut receipts = Vec::new();
    for taken in 1..=60 {
        let step = Step { receipts: true, ..Step::new(now, Op::Take, &charges) };
        receipts.push(store.blocking_execute(&step).unwrap().lines[0].receipt.unwrap());
        assert!((1_000 - 2 * taken..=1_000 - taken).contains(&left()), "{} left of {taken} taken", left());
    }
    let (full, mut failed) = (left(), 0);
    for (given, receipt) in (1..).zip(receipts) {
        let endings = [Ending::new(receipt, Finish::UNDONE)];
        failed += u64::from(store.blocking_execute(&Step::new(now, Op::Finish(&endings), &charges)).is_err());
        assert!(left() <= full + given, "{} left after {given} were given back to {full}", left());
    }
    assert!(failed > 5, "{failed} were unsure");
}

/// Executes the steps of a batch in another order wherever neither their keys nor their ticks fix the order.
#[derive(Debug)]
struct OutOfOrder(Arc<CasStore<Faulty>>);

impl Store for OutOfOrder {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.0.execute_into(step, out)
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        out.clear();
        let (store, steps): (_, Vec<OwnedStep>) =
            (Arc::clone(&self.0), steps.iter().map(OwnedStep::of).collect());
        Some(Box::pin(async move {
            let mut answers: Vec<Option<StepAnswer>> = vec![None; steps.len()];
            let keys = |step: &OwnedStep| {
                step.with(|step| step.charges.iter().map(|charge| charge.key.to_vec()).collect::<Vec<_>>())
            };
            // The ticks by which the steps count: a step with an earlier tick than the one before counts at that one's
            // tick.
            let mut latest = Tick::EPOCH;
            let ticks: Vec<Tick> = steps
                .iter()
                .map(|step| {
                    latest = latest.max(step.with(|step| step.now));
                    latest
                })
                .collect();
            while answers.iter().any(Option::is_none) {
                // The last step that shares no key with an unanswered earlier step, and has the same tick as all of
                // them.
                let ready = (0..steps.len()).rev().find(|at| {
                    let mine = keys(&steps[*at]);
                    let earlier = (0..*at).filter(|other| answers[*other].is_none());
                    let after = |other: usize| {
                        ticks[other] != ticks[*at] || keys(&steps[other]).iter().any(|key| mine.contains(key))
                    };
                    answers[*at].is_none() && !earlier.into_iter().any(after)
                });
                let at = ready.unwrap();
                answers[at] = Some(execute_at(&store, &steps[at], ticks[at]).await);
            }
            answers.into_iter().flatten().collect()
        }))
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }

    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn home(&self) -> Home {
        self.0.home()
    }
}

async fn execute_at(store: &CasStore<Faulty>, step: &OwnedStep, now: Tick) -> StepAnswer {
    let mut executed = Executed::default();
    match step.with(|step| store.execute_into(&Step { now, ..*step }, &mut executed)) {
        Execution::Done(done) => done.map(|()| executed),
        Execution::Later(later) => later.await,
    }
}

#[test]
fn a_batch_may_be_executed_in_another_order() {
    let quotas = conformance::quotas();
    conformance::run(|| OutOfOrder(Arc::new(over(&Fault::Late))), &quotas, 2_000);
}

#[test]
fn a_key_contended_for_ever_is_an_error_and_changes_nothing() {
    #[derive(Debug, Default)]
    struct Contended(Bytes);
    impl ByteMap for Contended {
        fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
            self.0.read(tag, keys)
        }
        fn write_if_unchanged(&self, _: u64, _: Vec<Write>) -> Later<Result<Written, StoreError>> {
            Box::pin(async { Ok(Written::Nothing(None)) })
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let store = CasStore::new(Contended::default());
    let quotas = conformance::quotas();
    let charges = [Charge::new(b"k", &quotas[0], Cost::ONE)];
    let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
    assert!(matches!(store.blocking_execute(&step), Err(StoreError::Contended { .. })));
    assert_eq!(store.occupancy().used, 0);
}

/// Polls a step this many times. Returns the answer if it came.
fn poll(step: &mut Later<StepAnswer>, times: u64) -> Poll<StepAnswer> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut polls = (0..times).map(|_| step.as_mut().poll(&mut cx));
    polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
}

fn later(store: &impl Store, step: &Step<'_>) -> Later<StepAnswer> {
    let Execution::Later(later) = store.execute_into(step, &mut Executed::default()) else {
        panic!("it waits")
    };
    later
}

/// Steps that wait for a silent engine are dropped by their callers in the end. Then other steps on the same key
/// proceed, and steps on other keys never wait.
#[test]
fn an_engine_that_never_answers_one_step_answers_others() {
    let silent = Arc::new(AtomicU64::new(0));
    let store = over(&Fault::Never(Arc::clone(&silent)));
    let quotas = conformance::quotas();
    let take = |key: &[u8]| {
        let charges = [Charge::new(key, &quotas[0], Cost::ONE)];
        later(&store, &Step::new(Tick::from_secs(1), Op::Take, &charges))
    };
    for _ in 0..2 {
        silent.store(1, Ordering::Relaxed);
        let mut first = take(b"k");
        assert!(poll(&mut first, 100).is_pending());
        let (mut second, mut third) = (take(b"k"), take(b"k"));
        assert!(poll(&mut second, 100).is_pending());
        assert!(poll(&mut third, 100).is_pending());
        assert!(poll(&mut take(b"other"), 100).is_ready(), "another key");
        drop(first);
        drop(second);
        assert!(poll(&mut third, 100).is_ready());
    }
    let charges = [Charge::new(b"k", &quotas[0], Cost::ONE)];
    let peek = Step::new(Tick::from_secs(1), Op::Peek, &charges);
    let left = store.blocking_execute(&peek).unwrap().lines[0].decision.standing;
    assert_eq!(left.remaining, left.limit - 2, "those that were not answered spent nothing");
}

/// Sets an engine's clock to each step's tick, so that it deletes by the same time that decides.
#[derive(Debug)]
struct Timed(CasStore<Faulty>, ManualClock);

impl Timed {
    fn new() -> Self {
        let clock = ManualClock::default();
        Self(over(&Fault::Forgets(clock.clone())), clock)
    }
}

impl Store for Timed {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        let step = step.read_clock();
        self.1.set(self.1.now().max(step.now));
        // One clock for the store and the engine: the store ignores a clock that is behind.
        let step = Step { now: self.1.now(), ..step };
        Execution::Done(self.0.blocking_execute(&step).map(|executed| *out = executed))
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }

    fn home(&self) -> Home {
        self.0.home()
    }
}

/// Whatever was charged, ended, marked or reset: a key that is deleted when its time to be kept is over answers the
/// same as one that is kept, in every field.
#[test]
fn an_engine_that_deletes_what_need_not_be_kept_answers_as_one_that_never_does() {
    for quota in conformance::quotas() {
        // A token bucket's receipts contain the form of its state, and a new state has another form than one that
        // filled up; see below.
        if !matches!(*quota, Quota::TokenBucket(_)) {
            conformance::run(Timed::new, &[quota], steps(400));
        }
    }
}

/// The same while keys change from limit to limit, guards included: a charge under one limit is ended under another,
/// after the engine deleted a key that another engine still has. Regression: a cell that was full under another limit
/// was carried over if it still existed. Then the charge that changed the limit gave nothing back, and all of it if the
/// cell was deleted.
#[test]
fn an_engine_that_deletes_answers_as_one_that_never_does_while_limits_change() {
    let mut quotas = conformance::quotas();
    // Receipts of these kinds contain how often the limit has changed, which a new state does not know. It does not
    // matter then.
    quotas.retain(|quota| !matches!(**quota, Quota::TokenBucket(_) | Quota::XTime(_)));
    conformance::run(Timed::new, &quotas, steps(1_000));
    // Every pair by itself, so that keys return to a limit that they had before.
    for (at, one) in quotas.iter().enumerate() {
        for other in &quotas[at + 1..] {
            conformance::run(Timed::new, &[Arc::clone(one), Arc::clone(other)], 16);
        }
    }
}

/// Bytes that are not a state: every step reports that and changes nothing, without naming the key, until a step
/// forgets the key.
#[test]
fn a_corrupt_key_is_named_by_a_digest_and_mended_by_whoever_forgets_it() {
    let quota = Arc::new(Quota::per_hour(5).gcra().unwrap());
    let mark = Arc::new(Quota::per_hour(1).gcra().unwrap());
    let now = Tick::from_secs(1_000_000);
    let charges = [Charge::new(b"sound", &quota, Cost::ONE), Charge::new(b"secret", &quota, Cost::ONE)];
    let marked = [charges[0], charges[1], Charge::new(b"mark", &mark, Cost::ONE)];
    let spoil = |map: &Faulty| {
        let key: Arc<[u8]> = b"secret".as_slice().into();
        let version = map.bytes.read_now(&[Arc::clone(&key)]).values[0].version;
        assert!(map.bytes.write_now(&[Write { key, version, value: Some(vec![1, 0, 255]), keep: None }]));
    };
    let map = Faulty::default();
    let store = CasStore::new(map.clone());
    let execute = |op: Op<'_>, charges: &[Charge<'_>]| store.blocking_execute(&Step::new(now, op, charges));
    let taken = execute(Op::Take, &charges).unwrap();
    let endings = [0, 1].map(|at: usize| Ending::new(taken.lines[at].receipt.unwrap(), Finish::UNDONE));
    spoil(&map);
    for op in [Op::Take, Op::Peek, Op::Finish(&endings)] {
        let error = execute(op, &charges).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { charge: 1, .. }), "{error:?}");
        let told = format!("{error} {error:?}");
        assert!(!told.contains("secret") && told.contains("charge 2"), "{told}");
    }
    assert_eq!(execute(Op::Peek, &charges[..1]).unwrap().lines[0].decision.standing.remaining, 4);
    assert!(execute(Op::Reset, &charges[1..]).unwrap().allowed);
    assert_eq!(execute(Op::Take, &charges).unwrap().lines[1].decision.standing.remaining, 4);

    // A settlement that forgets the key also repairs it, unless its mark refuses the whole settlement.
    spoil(&map);
    assert!(execute(Op::Take, &marked[2..]).unwrap().allowed);
    let once = [endings[0], Ending::Forget, Ending::Once];
    assert!(!execute(Op::Finish(&once), &marked).unwrap().allowed);
    assert!(execute(Op::Peek, &charges).is_err(), "refused, it has changed nothing");
    assert!(execute(Op::Finish(&once[..2]), &charges).unwrap().allowed);
    assert!(execute(Op::Take, &charges).unwrap().allowed);
}

/// A limit whose state may be larger than the engine takes is reported before its first request.
#[test]
fn a_gate_names_the_policies_whose_states_do_not_fit_its_stores() {
    let policy = |name: &str, quota: Quota| Policy::new(name, Limit::new(quota, name));
    let fits = policy("fits", Quota::per_hour(10).sliding_log().unwrap());
    let large = policy("large", Quota::per_hour(10_000).sliding_log().unwrap());
    let mut here = policy("here", Quota::per_hour(10_000).sliding_log().unwrap());
    here.share = Some(Share::Local);
    let set = PolicySet::new(vec![fits, large, here]).unwrap();
    let gate = Gate::new(set, over(&Fault::Usual)).with_store(Share::Local, PlainStore::default());
    let unfit = gate.unfit(&gate.policies());
    assert_eq!(unfit.len(), 1);
    let Unfit::TooLarge { policy, bytes, most, .. } = &unfit[0] else { panic!("{unfit:?}") };
    assert_eq!((&**policy, *most), ("large", 4096));
    assert!(*bytes > 4096);
    assert!(unfit[0].to_string().starts_with("policy `large`: "), "{}", unfit[0]);
}

/// Regression: a policy file for another store was put in force. Then each request was refused, or counts that the file
/// said were on disk were not.
#[test]
fn a_gate_names_the_policies_whose_words_its_stores_cannot_keep() {
    let policy = |name: &str| Policy::new(name, Limit::new(Quota::per_hour(10).gcra().unwrap(), name));
    let (mut central, mut strict) = (policy("central"), policy("strict"));
    central.share = Some(Share::Central);
    strict.durable = Durable::Strict;
    let set = PolicySet::new(vec![policy("plain"), central, strict]).unwrap();
    let gate = Gate::new(PolicySet::default(), PlainStore::default());
    let told: Vec<String> = gate.unfit(&set).iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2);
    assert!(told[0].starts_with("policy `central`: no store here decides `share: central`"), "{told:?}");
    assert!(told[1].starts_with("policy `strict`: its store is not on disk"), "{told:?}");
    let shared = Gate::new(PolicySet::default(), over(&Fault::Usual));
    assert_eq!(shared.unfit(&set).len(), 1, "an engine decides `central`, and has its own disk");
}

/// Regression: an engine driver that returned fewer values than it was asked for made the step panic.
#[test]
fn an_engine_that_returns_fewer_values_than_keys_has_not_answered() {
    #[derive(Debug)]
    struct Short(Bytes);
    impl ByteMap for Short {
        fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
            let mut read = self.0.read_now(keys);
            read.values.pop();
            Box::pin(async move { Ok(read) })
        }
        fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
            self.0.write_if_unchanged(tag, writes)
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let quota = Arc::new(Quota::per_hour(5).gcra().unwrap());
    let charges = [Charge::new(b"a", &quota, Cost::ONE), Charge::new(b"b", &quota, Cost::ONE)];
    let store = CasStore::new(Short(Bytes::default()));
    let Err(StoreError::Unavailable { reason }) =
        store.blocking_execute(&Step::new(Tick::from_secs(1), Op::Take, &charges))
    else {
        panic!("no answer can be made of it")
    };
    assert_eq!(reason, "it returned 1 values for 2 keys");
    assert_eq!(store.occupancy().used, 0);
}

/// A key changes from a slow rate to a guard, is deleted by the engine once nobody is inside, and comes back under the
/// rate. Regression: when the first charge ended, it gave back what others had charged since.
#[test]
fn what_a_rate_charged_before_a_guard_is_void_after_it() {
    let slow = Arc::new(Quota::per_day(1).gcra().unwrap());
    let places = Arc::new(Quota::concurrency(1, Duration::from_secs(10)).unwrap());
    let at = |secs: u64| Tick::from_secs(1_000_000 + secs);
    for store in [Box::new(Timed::new()) as Box<dyn Store>, Box::new(PlainStore::default())] {
        let execute = |secs, op: Op<'_>, quota| {
            store
                .blocking_execute(&Step::new(at(secs), op, &[Charge::new(b"key", quota, Cost::ONE)]))
                .unwrap()
        };
        let first = execute(0, Op::Take, &slow).lines[0].receipt.unwrap();
        let place = execute(1, Op::Take, &places).lines[0].receipt.unwrap();
        let left = execute(2, Op::Finish(&[Ending::new(place, Finish::UNDONE)]), &places);
        assert!(left.lines[0].receipt.is_some(), "a place is left where it was taken");
        assert!(execute(100, Op::Take, &slow).allowed, "a guard says nothing of what was spent");
        let undone = execute(101, Op::Finish(&[Ending::new(first, Finish::UNDONE)]), &slow);
        assert_eq!(undone.lines[0].receipt, None);
        assert!(!execute(102, Op::Take, &slow).allowed, "the second charge stands");
    }
}
