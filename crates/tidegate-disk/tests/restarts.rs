//! The states of a store after it was closed and opened again.

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{NOW, allowed, daily, left, open, options};
use tidegate::clock::ManualClock;
use tidegate::store::conformance::{Random, quotas};
use tidegate::store::{Charge, Ending, Executed, Home, Op, PlainStore, Step, Store};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::{Decision, Finish, Outcome, Receipt};
use tidegate_disk::{DiskStore, OpenError};

#[test]
fn what_was_spent_is_spent_and_tickets_know_their_store() {
    let folder = tempfile::tempdir().unwrap();
    let (ten, places) = (daily(10), Arc::new(Quota::concurrency(2, Duration::from_secs(60)).unwrap()));
    let (home, made) = {
        let store = open(folder.path());
        assert!(store.opened().new);
        assert!((0..10).all(|_| allowed(&store, b"ann", &ten)));
        assert!(!allowed(&store, b"ann", &ten));
        assert!(allowed(&store, b"places", &places));
        store.close().unwrap();
        assert!(store.close().is_ok(), "closed is closed");
        (store.home(), store.opened())
    };
    let store = open(folder.path());
    assert!(made.new && !store.opened().new);
    assert_eq!(store.opened().keys, 2);
    assert!(!allowed(&store, b"ann", &ten));
    assert!(allowed(&store, b"bob", &ten));
    assert_eq!(left(&store, b"places", &places), 1, "its holder may still come back");
    let charges = [Charge::new(b"places", &places, Cost::ONE)];
    let later = Step::new(NOW.after(Duration::from_secs(61)), Op::Peek, &charges);
    let peeked = store.blocking_execute(&later).unwrap();
    assert_eq!(peeked.lines[0].decision.standing.remaining, 2, "and after its time to live it is free");
    assert_eq!(store.home(), home);
    let other = tempfile::tempdir().unwrap();
    assert_ne!(open(other.path()).home(), home);
    assert!(matches!(home, Home::Process { .. }));
}

/// The parts of an answer to compare. Without the receipts' marks: the marks of a key that was full again, and
/// forgotten, start anew.
fn told(executed: &Executed) -> (bool, Duration, Vec<(Decision, Option<Cost>)>) {
    let lines = executed.lines.iter().map(|line| (line.decision, line.receipt.map(|receipt| receipt.cost)));
    (executed.allowed, executed.wait, lines.collect())
}

/// A store that is closed and reopened all the time, sometimes with another capacity, compared with a plain map that
/// never is. Charges from before a restart are settled after it.
#[test]
fn a_store_that_restarts_answers_as_one_that_never_does() {
    for round in 1..=4 {
        let folder = tempfile::tempdir().unwrap();
        let full_keys = round % 2 == 0;
        let make = |keys| DiskStore::open(options(folder.path()).keys(keys).full_keys(full_keys)).unwrap();
        let (mut store, plain) = (make(1000), PlainStore::default());
        let (quotas, mut random) = (quotas(), Random::seeded(round));
        let (mut now, mut made) = (NOW, Vec::new());
        for turn in 0..1500 {
            now = now.after(Duration::from_millis(random.below(400)));
            let key = [random.below(40) as u8];
            let quota = &quotas[(key[0] as usize + usize::from(random.below(20) == 0)) % quotas.len()];
            let charges = [Charge::new(&key, quota, Cost::ONE)];
            let (answer, expected) = match random.below(8) {
                0 if !made.is_empty() => {
                    let (key, quota, [ours, theirs]): ([u8; 1], Arc<Quota>, [Receipt; 2]) =
                        made.swap_remove(random.below(made.len() as u64) as usize);
                    let finish = Finish { used: random.below(3), outcome: Outcome::Success };
                    let charges = [Charge::new(&key, &quota, Cost::ONE)];
                    let (ours, theirs) = ([Ending::new(ours, finish)], [Ending::new(theirs, finish)]);
                    let finish = |store: &dyn Store, endings: &[Ending]| {
                        store.blocking_execute(&Step::new(now, Op::Finish(endings), &charges)).unwrap()
                    };
                    (finish(&store, &ours), finish(&plain, &theirs))
                }
                1 => {
                    let step = Step::new(now, Op::Reset, &charges);
                    (store.blocking_execute(&step).unwrap(), plain.blocking_execute(&step).unwrap())
                }
                _ => {
                    let step = Step::new(now, Op::Take, &charges);
                    let answers =
                        (store.blocking_execute(&step).unwrap(), plain.blocking_execute(&step).unwrap());
                    let receipts = answers.0.lines[0].receipt.zip(answers.1.lines[0].receipt);
                    if let Some((ours, theirs)) = receipts.filter(|_| made.len() < 30) {
                        made.push((key, Arc::clone(quota), [ours, theirs]));
                    }
                    answers
                }
            };
            assert_eq!(told(&answer), told(&expected), "round {round}, turn {turn}");
            match random.below(100) {
                0..5 => store.flush().unwrap(),
                5..7 => {
                    store.close().unwrap();
                    store = make(if random.below(3) == 0 { 700 } else { 1000 });
                }
                _ => {}
            }
        }
    }
}

#[test]
fn less_room_keeps_those_that_are_over_their_limit() {
    let folder = tempfile::tempdir().unwrap();
    let two = daily(2);
    let keys: Vec<[u8; 2]> = (0..2000_u16).map(u16::to_le_bytes).collect();
    {
        let store = DiskStore::open(options(folder.path()).keys(10_000)).unwrap();
        for (at, key) in keys.iter().enumerate() {
            assert!(allowed(&store, key, &two));
            assert!(at >= 200 || allowed(&store, key, &two));
        }
    }
    let store = DiskStore::open(options(folder.path()).keys(1000)).unwrap();
    assert!(store.opened().keys < 2000 && store.opened().keys > 1000, "{:?}", store.opened());
    assert!(keys[..200].iter().all(|key| !allowed(&store, key, &two)));
}

#[test]
fn a_clock_that_went_back_stands_still_or_is_set_right() {
    let (folder, ten) = (tempfile::tempdir().unwrap(), daily(10));
    let spend = |store: &DiskStore, now: Tick| {
        let charges = [Charge::new(b"ann", &ten, Cost::ONE)];
        store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed
    };
    let at = |now| DiskStore::open(options(folder.path()).clock(ManualClock::at(now))).unwrap();
    let store = at(NOW);
    assert!((0..10).all(|_| spend(&store, NOW)));
    drop(store);
    // A minute back: time stands still for that minute.
    let store = at(NOW.before(Duration::from_secs(60)));
    assert_eq!(store.opened().clock_was_ahead, Some(Duration::from_secs(60)));
    assert!(!spend(&store, NOW.before(Duration::from_secs(60))));
    drop(store);
    // Ten days back: the clock was fast, and none of its grants are granted again.
    let back = NOW.before(Duration::from_secs(864_000));
    let store = at(back);
    assert_eq!(store.opened().clock_was_ahead, Some(Duration::from_secs(864_000)));
    assert!(!spend(&store, back));
    assert!(!spend(&store, back.after(Duration::from_secs(8000))));
    assert!(spend(&store, back.after(Duration::from_secs(9000))), "and time goes on from there");
    drop(store);
    let store = at(back.after(Duration::from_secs(9000)));
    assert_eq!(store.opened().clock_was_ahead, None, "what the fast clock wrote is gone from the file");
}

/// A copy holds at least what was spent before it was made, and nothing that was not spent.
#[test]
fn a_copy_is_made_while_threads_charge() {
    for full_keys in [false, true] {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let options = |folder: &Path| options(folder).full_keys(full_keys);
        let store = DiskStore::open(options(folder.path())).unwrap();
        let (many, keys) = (daily(1_000_000), (0..100u8).map(|key| [key]));
        let spent = |store: &DiskStore| -> Vec<u64> {
            keys.clone().map(|key| 1_000_000 - left(store, &key, &many)).collect()
        };
        let over = AtomicBool::new(false);
        let (before, after) = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for key in keys.clone().cycle() {
                        allowed(&store, &key, &many);
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            common::until("all keys were charged", || spent(&store).iter().all(|units| *units > 3));
            let before = spent(&store);
            store.copy_to(other.path().join("copy")).unwrap();
            let after = spent(&store);
            over.store(true, Ordering::Relaxed);
            (before, after)
        });
        let again = store.copy_to(other.path().join("copy"));
        assert!(matches!(again, Err(OpenError::InUse { .. })), "{again:?}");
        let copy = DiskStore::open(options(&other.path().join("copy"))).unwrap();
        for (key, units) in spent(&copy).into_iter().enumerate() {
            assert!((before[key]..=after[key]).contains(&units), "{} {units} {}", before[key], after[key]);
        }
        assert_eq!(copy.home(), store.home(), "tickets are settled in a store that was restored");
    }
}
