//! Where a charge ends: at the engine or at the fallback store, whichever took it.

use std::sync::Arc;

use tidegate::limiter::{Finish, Receipt, Retry};
use tidegate::store::fallback::PROBE_EVERY;
use tidegate::store::{Charge, DecidedBy, Ending, Op, StoreError};
use tidegate::{Cost, Outcome, Quota};

use crate::engine::Mood;
use crate::fallback::{Rig, per_hour, rig};

#[test]
fn charges_are_ended_where_they_were_made() {
    let (rig, quota) = (rig(1), per_hour(10));
    let key = Charge::new(b"k", &quota, Cost::new(4).unwrap());
    let undo = |receipt: Receipt| [Ending::new(receipt, Finish::UNDONE)];
    let left = |rig: &Rig| rig.execute(Op::Peek, &[key]).unwrap().lines[0].decision.standing.remaining;
    let theirs = rig.take(key).lines[0].receipt.unwrap();
    rig.engine.be(Mood::Errs);
    let ours = rig.take(key).lines[0].receipt.unwrap();
    // During the outage a charge of the engine cannot be ended; the call may be repeated later.
    let gone = rig.execute(Op::Finish(&undo(theirs)), &[key]);
    assert_eq!(gone, Err(StoreError::Unavailable { reason: "connection refused".to_owned() }));
    let here = Charge { by_fallback: true, ..key };
    let other = rig.take(Charge::new(b"other", &quota, Cost::ONE)).lines[0].receipt.unwrap();
    assert_eq!(left(&rig), 6);
    assert_eq!(rig.execute(Op::Finish(&undo(ours)), &[here]).unwrap().by, DecidedBy::Fallback);
    assert_eq!(left(&rig), 10);
    rig.engine.be(Mood::Now);
    rig.clock.advance(PROBE_EVERY);
    assert_eq!(left(&rig), 6, "the engine still has its own charge");
    // When the engine is back, one step ends charges of both stores, with an idempotency mark.
    let mark = Charge::new(b"mark", &quota, Cost::ONE);
    let both = [mark, Charge { by_fallback: true, ..Charge::new(b"other", &quota, Cost::ONE) }, key];
    let [theirs, other] = [undo(theirs)[0], undo(other)[0]];
    let executed = rig.execute(Op::Finish(&[Ending::Once, other, theirs]), &both).unwrap();
    assert!(executed.allowed);
    let back: Vec<_> =
        executed.lines.iter().map(|line| line.receipt.map(|receipt| receipt.cost.units())).collect();
    assert_eq!(back, [Some(1), Some(1), Some(4)]);
    assert_eq!(left(&rig), 10);
    let full = Arc::new(Quota::per_hour(1).gcra().unwrap());
    let mark = Charge::new(b"once", &full, Cost::ONE);
    let ended = [Ending::Once, other, theirs];
    let charges = [mark, both[1], both[2]];
    assert!(rig.execute(Op::Finish(&ended), &charges).unwrap().allowed);
    assert!(!rig.execute(Op::Finish(&ended), &charges).unwrap().allowed, "a mark is made once");
}

#[test]
fn a_reset_forgets_the_key_in_both() {
    let (rig, quota) = (rig(1), per_hour(1));
    let key = Charge::new(b"k", &quota, Cost::ONE);
    rig.take(key);
    rig.engine.be(Mood::Errs);
    rig.take(key);
    assert!(rig.execute(Op::Reset, &[key]).is_err(), "nothing is forgotten while half of it cannot be");
    assert!(!rig.take(key).allowed);
    rig.engine.be(Mood::Later);
    rig.clock.advance(PROBE_EVERY);
    assert!(rig.execute(Op::Reset, &[key]).is_ok());
    assert!(rig.take(key).allowed);
    rig.engine.be(Mood::Errs);
    rig.take(Charge::new(b"any", &quota, Cost::ONE));
    assert!(rig.take(key).allowed);
}

#[test]
fn a_share_is_shown_and_given_back_in_units_of_the_caller() {
    let (rig, quota) = (rig(3), per_hour(60));
    rig.engine.be(Mood::Errs);
    let five = Charge::new(b"k", &quota, Cost::new(5).unwrap());
    let first = rig.take(five);
    let standing = first.lines[0].decision.standing;
    assert_eq!((standing.limit, standing.remaining), (20, 15));
    let receipt = first.lines[0].receipt.unwrap();
    assert_eq!(receipt.cost.units(), 5);
    let here = Charge { by_fallback: true, ..five };
    let used = |used| [Ending::new(receipt, Finish { used, outcome: Outcome::Success })];
    let back = rig.execute(Op::Finish(&used(2)), &[here]).unwrap();
    assert_eq!(back.lines[0].receipt.unwrap().cost.units(), 3);
    assert_eq!(back.lines[0].decision.standing.remaining, 18, "60 - 2 at three each, by three");
    // A cost above one node's share but within the limit: it takes the whole share and leaves a debt.
    let large = Charge::new(b"large", &quota, Cost::new(50).unwrap());
    let granted = rig.take(large);
    assert!(granted.allowed);
    let standing = granted.lines[0].decision.standing;
    assert_eq!((standing.remaining, standing.debt), (0, 30), "150 of 60 at three each");
    let never = rig.take(Charge::new(b"large", &quota, Cost::new(61).unwrap()));
    assert_eq!(never.lines[0].decision.retry(), Retry::Never);
}
