//! Callers who give up, at their deadline or with a batch that is partly decided; and callers who cannot wait for a
//! part of a batch.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::clock::{Clock as _, ManualClock};
use tidegate::gate::Check;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, Share};
use tidegate::store::{PlainStore, StoreError};
use tidegate::{Gate, Quota, Tick};

use crate::two_stores::scripted::{BackgroundTasks, Behaviour, Ended, Scripted, drive};

const LIMIT: u64 = 5;

/// A policy that counts each request with an attribute of the policy's name.
fn policy(name: &str, share: Share) -> Policy {
    let mut policy = Policy::new(name, Limit::new(Quota::per_day(LIMIT).gcra().unwrap(), "5/day"));
    (policy.share, policy.by) = (Some(share), vec![name.to_owned()]);
    policy
}

struct World {
    clock: ManualClock,
    gate: Gate,
    central: Scripted,
    leased: Scripted,
    background: BackgroundTasks,
}

impl World {
    /// A gate over a store of this process and two engines.
    fn new() -> Self {
        let (central, leased, background) =
            (Scripted::default(), Scripted::default(), BackgroundTasks::default());
        let clock = ManualClock::at(Tick::from_secs(1_000_000));
        let all = vec![
            policy("local", Share::Local),
            policy("central", Share::Central),
            policy("leased", Share::Leased),
        ];
        let gate = Gate::new(PolicySet::new(all).unwrap(), PlainStore::default())
            .with_store(Share::Central, central.clone())
            .with_store(Share::Leased, leased.clone())
            .with_clock(clock.clone())
            .with_background(background.take());
        Self { clock, gate, central, leased, background }
    }

    /// Lets the engines answer everything, and returns what is left of each limit.
    fn left(&self) -> [u64; 3] {
        self.central.speak();
        self.leased.speak();
        self.background.run();
        assert!(self.background.is_idle());
        let all = Descriptor::new().with("local", "").with("central", "").with("leased", "");
        let Ended::Done(Ok(looked)) = drive(self.gate.check(Check::of(&all).peek()), 20) else {
            panic!("all answer")
        };
        std::array::from_fn(|limit| looked.limits[limit].decision.standing.remaining)
    }

    fn in_a_second(&self) -> Tick {
        self.clock.now().after(Duration::from_secs(1))
    }
}

fn poll<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Regression: requests of the batch that were already decided stayed charged, and requests over several stores were
/// undone in only some of them.
#[test]
fn a_batch_that_is_dropped_leaves_nothing_charged() {
    let world = World::new();
    let local = Descriptor::new().with("local", "");
    let two = Descriptor::new().with("local", "").with("central", "");
    let all = Descriptor::new().with("local", "").with("leased", "");
    for polls in 0..6 {
        world.leased.next(Behaviour::Silent);
        let checks = [Check::of(&local), Check::of(&two), Check::of(&all)];
        assert!(matches!(drive(world.gate.check_each(&checks), polls), Ended::Dropped));
        assert_eq!(world.left(), [LIMIT; 3], "after {polls} polls");
    }
    let checks = [Check::of(&local), Check::of(&two), Check::of(&all)];
    let Ended::Done(decided) = drive(world.gate.check_each(&checks), 20) else { panic!("all answer") };
    assert!(decided.iter().all(|decision| decision.as_ref().is_ok_and(|decision| decision.allowed)));
    assert_eq!(world.left(), [LIMIT - 3, LIMIT - 1, LIMIT - 1], "one that ends keeps its charges");
}

/// Regression: a store decided and charged at once, but its caller was told that nothing was charged.
#[test]
fn a_batch_that_cannot_wait_for_all_tells_what_was_decided() {
    let store = Scripted::default();
    let set =
        PolicySet::new(vec![Policy::new("all", Limit::new(Quota::per_day(5).gcra().unwrap(), "5/day"))]);
    let gate = Gate::new(set.unwrap(), store.clone()).with_clock(ManualClock::default());
    let request = Descriptor::new();
    store.next(Behaviour::AtOnce);
    let decided = gate.check_each(&[Check::of(&request); 2]).now();
    assert!(decided[0].as_ref().is_ok_and(|decision| decision.allowed), "{decided:?}");
    assert_eq!(decided[1].as_ref().unwrap_err(), &StoreError::MustWait);
    store.next(Behaviour::AtOnce);
    assert_eq!(
        gate.check(Check::of(&request).peek()).now().unwrap().limits[0].decision.standing.remaining,
        4
    );
}

#[test]
fn an_engine_is_given_up_at_the_deadline_and_what_was_charged_comes_back() {
    for behaviour in [Behaviour::Silent, Behaviour::SilentAfter] {
        let world = World::new();
        let all = Descriptor::new().with("local", "").with("central", "").with("leased", "");
        let check = Check::of(&all).deadline(world.in_a_second());
        world.leased.next(behaviour);
        let mut asked = Box::pin(world.gate.check(check));
        for _ in 0..10 {
            assert!(poll(&mut asked).is_pending());
        }
        world.clock.advance(Duration::from_secs(1));
        let Poll::Ready(Err(StoreError::DeadlinePassed)) = poll(&mut asked) else {
            panic!("the deadline is over")
        };
        assert_eq!(world.clock.sleepers(), 0);
        drop(asked);
        assert_eq!(world.left(), [LIMIT; 3], "{behaviour:?}");
    }
}

#[test]
fn an_answer_before_the_deadline_is_an_answer() {
    let world = World::new();
    let all = Descriptor::new().with("local", "").with("central", "");
    let check = Check::of(&all).deadline(world.in_a_second());
    let Ended::Done(Ok(decision)) = drive(world.gate.check(check), 20) else { panic!("it answers") };
    assert!(decision.allowed);
    assert_eq!(world.clock.sleepers(), 0);
    assert_eq!(world.left(), [LIMIT - 1, LIMIT - 1, LIMIT]);
}

#[test]
fn after_the_deadline_no_engine_is_asked() {
    let world = World::new();
    let all = Descriptor::new().with("local", "").with("central", "");
    let late = Check::of(&all).deadline(world.clock.now());
    // If the engine were asked, it would charge.
    let Ended::Done(Err(StoreError::DeadlinePassed)) = drive(world.gate.check(late), 1) else {
        panic!("it is too late")
    };
    assert!(world.background.is_idle());
    assert_eq!(world.left(), [LIMIT; 3]);
    // A decision of this process takes no time.
    let local = Descriptor::new().with("local", "");
    let late = Check::of(&local).deadline(world.clock.now());
    assert!(world.gate.check(late).now().unwrap().allowed);
}

#[test]
fn calls_of_many_checks_are_given_up_too() {
    let world = World::new();
    let (one, other) =
        (Descriptor::new().with("local", "").with("central", ""), Descriptor::new().with("local", ""));
    let checks = [Check::of(&one).deadline(world.in_a_second()), Check::of(&other)];
    world.central.next(Behaviour::Silent);
    let mut together = Box::pin(world.gate.check_together(&checks));
    assert!(poll(&mut together).is_pending());
    world.clock.advance(Duration::from_secs(1));
    assert!(matches!(poll(&mut together), Poll::Ready(Err(StoreError::DeadlinePassed))));
    drop(together);
    assert_eq!(world.left(), [LIMIT; 3]);

    let checks = [Check::of(&one).deadline(world.in_a_second()), Check::of(&other)];
    world.central.next(Behaviour::Silent);
    let mut each = Box::pin(world.gate.check_each(&checks));
    assert!(poll(&mut each).is_pending());
    world.clock.advance(Duration::from_secs(1));
    let Poll::Ready(decided) = poll(&mut each) else { panic!("the deadline is over") };
    assert!(matches!(decided[0], Err(StoreError::DeadlinePassed)));
    assert!(decided[1].as_ref().is_ok_and(|decision| decision.allowed), "it asks no engine");
    drop(each);
    assert_eq!(world.left(), [LIMIT - 1, LIMIT, LIMIT]);
}

/// A refusal is returned at the deadline, even if an engine has not yet given back what it had taken.
#[test]
fn a_refusal_does_not_wait_for_its_undoing_beyond_the_deadline() {
    let world = World::new();
    let leased = Descriptor::new().with("leased", "");
    for _ in 0..LIMIT {
        assert!(matches!(drive(world.gate.check(&leased), 20), Ended::Done(Ok(_))));
    }
    let both = Descriptor::new().with("central", "").with("leased", "");
    let mut asked = Box::pin(world.gate.check(Check::of(&both).deadline(world.in_a_second())));
    // The first engine answers the request, and then does not answer when it is to undo its charge.
    assert!(poll(&mut asked).is_pending());
    world.central.next(Behaviour::Silent);
    for _ in 0..10 {
        assert!(poll(&mut asked).is_pending());
    }
    world.clock.advance(Duration::from_secs(1));
    let Poll::Ready(Ok(decision)) = poll(&mut asked) else { panic!("the deadline is over") };
    assert!(!decision.allowed);
    drop(asked);
    assert_eq!(world.left(), [LIMIT, LIMIT, 0]);
}
