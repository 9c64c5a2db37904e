//! Requests that overlap: a charge undone after others were charged follows the rules of settling, as in the plain map.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::{Clock as _, ManualClock};
use tidegate::gate::Check;
use tidegate::limiter::Decision;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, Share};
use tidegate::store::{
    ByteMap, Caps, CasStore, Charge, DecidedBy, Ending, Executed, Execution, Later, Op, PlainStore, Read,
    Step, Store, StoreError, Write, Written, conformance,
};
use tidegate::{Cost, Gate, Quota, Tick};

use tidegate_core::Finish;

use crate::byte_map::{Bytes, OnTheSpot};
use crate::two_stores::scripted::{BackgroundTasks, Behaviour, Ended, Scripted, drive};
use tidegate::store::conformance::Random;

/// One request waits for the second store while others pass through the first, and is then refused. The first store
/// stands as if everything had happened to a plain map in that order.
#[test]
fn what_is_undone_late_is_undone_by_the_law_of_settling() {
    for (seed, quota) in conformance::quotas().iter().enumerate() {
        let mut random = Random::seeded(seed as u64);
        for _ in 0..20 {
            undone_late(quota, &mut random);
        }
    }
}

fn undone_late(quota: &Arc<Quota>, random: &mut Random) {
    let clock = ManualClock::at(Tick::from_secs(1_000_000));
    let (first, second, background) =
        (Arc::new(PlainStore::default()), Scripted::default(), BackgroundTasks::default());
    let mut local = Policy::new("local", Limit::new(Arc::clone(quota), "local"));
    local.share = Some(Share::Local);
    let none = Quota::per_hour(1).gcra().unwrap();
    let mut central = Policy::new("central", Limit::new(none, "central"));
    (central.share, central.by) = (Some(Share::Central), vec!["late".to_owned()]);
    let gate = Gate::new(PolicySet::new(vec![local, central]).unwrap(), Arc::clone(&first))
        .with_store(Share::Central, second.clone())
        .with_clock(clock.clone())
        .with_background(background.take());
    let late = Descriptor::new().with("late", "yes");
    // The second store has no room for the late request.
    assert!(matches!(drive(gate.check(&late), 20), Ended::Done(_)));
    let (plain, key) = (PlainStore::default(), [0]);
    let judge = |op: Op<'_>, cost: Cost| {
        // On a guard, a request takes one place whatever it costs.
        let cost = if quota.is_guard() { Cost::ONE } else { cost };
        let charges = [Charge::new(&key, quota, cost)];
        plain.blocking_execute(&Step::new(clock.now(), op, &charges)).unwrap()
    };
    let spend = |units: u64| {
        let cost = Cost::new(units).unwrap();
        let others = Descriptor::new();
        let Ended::Done(Ok(told)) = drive(gate.check(Check::of(&others).cost(cost)), 20) else {
            panic!("it answers")
        };
        let executed = judge(Op::Take, cost);
        assert_eq!(told.limits[0].decision, executed.lines[0].decision);
    };
    judge(Op::Take, Cost::ONE);
    let cost = Cost::new(1 + random.below(3)).unwrap();
    second.next(if random.below(2) == 0 { Behaviour::Silent } else { Behaviour::SilentAfter });
    let polls = std::cell::Cell::new(0);
    let mut waiting = Box::pin(gate.check(Check::of(&late).cost(cost)));
    let mut poll = || {
        polls.set(polls.get() + 1);
        waiting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    };
    let taken = judge(Op::Take, cost);
    let first_poll = poll();
    assert_eq!(first_poll.is_pending(), taken.allowed);
    for _ in 0..random.below(4) {
        clock.advance(Duration::from_millis(random.below(300)));
        spend(1 + random.below(2));
    }
    clock.advance(Duration::from_millis(random.below(300)));
    // The second store refuses the late request, or its caller gives up.
    second.speak();
    if random.below(2) == 0 {
        for _ in 0..20 * u32::from(first_poll.is_pending()) {
            if poll().is_ready() {
                break;
            }
        }
    }
    drop(waiting);
    background.run();
    assert!(background.is_idle());
    if let Some(receipt) = taken.lines[0].receipt {
        judge(Op::Finish(&[Ending::new(receipt, Finish::UNDONE)]), cost);
    }
    let stands: Decision = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0].decision;
    assert_eq!(stands, judge(Op::Peek, Cost::ONE).lines[0].decision, "{quota:?}");
}

/// One store decided by its fallback and the other by its engine: each charge is ended where it was made.
#[test]
fn a_charge_is_ended_by_whoever_has_made_it() {
    #[derive(Debug)]
    struct Judged(PlainStore, DecidedBy);
    impl Store for Judged {
        fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
            let by_fallback = self.1 == DecidedBy::Fallback;
            if matches!(step.op, Op::Finish(_)) {
                assert!(step.charges.iter().all(|charge| charge.by_fallback == by_fallback), "{step:?}");
            }
            *out = Executed { by: self.1, ..self.0.blocking_execute(step).unwrap() };
            Execution::Done(Ok(()))
        }
        fn occupancy(&self) -> tidegate::store::Occupancy {
            self.0.occupancy()
        }
    }
    let policy = |share: Share| {
        let quota = Quota::per_hour(5).gcra().unwrap();
        let mut policy = Policy::new(share.word(), Limit::new(quota, "5/h"));
        policy.share = Some(share);
        policy
    };
    let set = PolicySet::new(vec![policy(Share::Central), policy(Share::Leased)]).unwrap();
    let gate = Gate::new(set, PlainStore::default())
        .with_store(Share::Central, Judged(PlainStore::default(), DecidedBy::Fallback))
        .with_store(Share::Leased, Judged(PlainStore::default(), DecidedBy::Engine));
    let admission = gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap();
    assert_eq!(admission.by, DecidedBy::Fallback);
    admission.cancel().now().unwrap();
    let left = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
    assert!(left.iter().all(|limit| limit.decision.standing.remaining == 5));
}

/// Regression: an engine with a clock that runs ahead dates charges by that clock. A reset dated by the caller's clock
/// came before them, and did not void what was given back later.
#[test]
fn a_reset_is_dated_by_the_clock_of_the_charges() {
    #[derive(Clone, Debug)]
    struct Ahead(Bytes, ManualClock);
    impl ByteMap for Ahead {
        fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
            let now = Some(self.1.now().after(Duration::from_secs(3600)));
            let read = Read { now, ..self.0.read_now(keys) };
            Box::pin(async move { Ok(read) })
        }
        fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
            self.0.write_if_unchanged(tag, writes)
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let clock = ManualClock::at(Tick::from_secs(1_000_000));
    let map = Ahead(Bytes::default(), clock.clone());
    let quota = Arc::new(Quota::per_day(5).gcra().unwrap());
    let node = || {
        let all = Policy::new("all", Limit::new(Arc::clone(&quota), "5/d"));
        let store = OnTheSpot(CasStore::new(map.clone()));
        Gate::new(PolicySet::new(vec![all]).unwrap(), store).with_clock(clock.clone())
    };
    let (gate, other) = (node(), node());
    // The key of a limit without `by`: the policy's name with its length, the limit, and no names.
    let key = [&[3], "all".as_bytes(), &[0, 0]].concat();
    let before = gate.admit(Check::of(&Descriptor::new()).cost(5)).now().unwrap().admitted().unwrap();
    other.keys().reset(&[Charge::new(&key, &quota, Cost::ONE)]).now().unwrap();
    clock.advance(Duration::from_secs(1));
    let _after = gate.admit(Check::of(&Descriptor::new()).cost(5)).now().unwrap().admitted().unwrap();
    before.cancel().now().unwrap();
    assert_eq!(
        gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0].decision.standing.remaining,
        0
    );
}

/// A store that spreads keys over machines: each step has one tag, and each key always has the same tag.
#[derive(Debug, Default)]
struct Sharded {
    plain: PlainStore,
    tags: Mutex<HashMap<Vec<u8>, u64>>,
}

impl Store for Sharded {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        let mut tags = self.tags.lock();
        for charge in step.charges {
            let tag = *tags.entry(charge.key.to_vec()).or_insert(step.tag);
            assert_eq!(tag, step.tag, "a key of one tag in a step of another");
        }
        self.plain.execute_into(step, out)
    }

    fn occupancy(&self) -> tidegate::store::Occupancy {
        self.plain.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.one_tag = true;
        caps
    }
}

/// Limits by the same values form one step, others form steps of their own, and the request still charges all or
/// nothing.
#[test]
fn a_store_of_shards_is_asked_for_keys_of_one_tag() {
    let policy = |name: &str, per_hour: u64, by: &[&str]| {
        let mut policy = Policy::new(name, Limit::new(Quota::per_hour(per_hour).gcra().unwrap(), name));
        policy.by = by.iter().map(|name| (*name).to_owned()).collect();
        policy
    };
    let policies = vec![
        policy("user", 5, &["user.id"]),
        policy("user too", 4, &["user.id"]),
        policy("all", 3, &[]),
        policy("path", 100, &["user.id", "path"]),
    ];
    let store = Arc::new(Sharded::default());
    let gate = Gate::new(PolicySet::new(policies).unwrap(), Arc::clone(&store));
    let left = |request: &Descriptor<'_>| -> Vec<u64> {
        let limits = gate.check(Check::of(request).peek()).now().unwrap().limits;
        limits.iter().map(|limit| limit.decision.standing.remaining).collect()
    };
    let (ann, bob) = (Descriptor::new().with("user.id", "ann"), Descriptor::new().with("user.id", "bob"));
    for _ in 0..2 {
        assert!(gate.check(&ann).now().unwrap().allowed);
    }
    let admission = gate.admit(&bob).now().unwrap().admitted().unwrap();
    assert!(!gate.check(&ann).now().unwrap().allowed, "all have had three");
    assert_eq!(left(&ann), [3, 2, 0, 98], "refused, it has spent nothing on any shard");
    admission.cancel().now().unwrap();
    assert_eq!(left(&bob), [5, 4, 1, 100]);
    let tags: BTreeSet<u64> = store.tags.lock().values().copied().collect();
    assert_eq!((store.tags.lock().len(), tags.len()), (7, 5), "two users, their paths, and all");
}
