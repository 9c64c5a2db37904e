//! Callers that ask for more places than a law's present limit.

use std::time::Duration;

use tidegate::bulkhead::Tenants;
use tidegate::clock::ManualClock;
use tidegate::concurrency::{Aimd, Bounds, Concurrency, HillClimb, Partition, Vegas};
use tidegate::limiter::Retry;
use tidegate::policy::{KeepFor, Kept};
use tidegate::priority::Criticality;
use tidegate::{Bulkhead, Outcome};

use super::{Waiter, ready};

fn of_two() -> Bulkhead {
    Bulkhead::adaptive(HillClimb::default().bounds(Bounds::new(1, 1000).unwrap().start_at(2).unwrap()))
}

/// Regression: all callers asked for eight places, and the limit had fallen to two. All were refused, so the law
/// learned nothing, and the limit stayed at two for ever although the service was idle.
#[test]
fn a_limit_below_what_all_ask_for_is_learnt_from_and_rises() {
    let bounds = Bounds::new(1, 1000).unwrap().start_at(2).unwrap();
    for bulkhead in [
        Bulkhead::adaptive(HillClimb::default().bounds(bounds)),
        Bulkhead::adaptive(Vegas::default().bounds(bounds)),
        Bulkhead::adaptive(Aimd::default().bounds(bounds)),
    ] {
        let clock = ManualClock::default();
        let bulkhead = bulkhead.with_clock(clock.clone());
        // A service that works on four calls at full speed, 10 ms each; twelve callers that try again at once.
        let (mut inside, mut ended) = (Vec::new(), 0);
        for millisecond in 0..60_000 {
            while inside.len() < 12
                && let Ok(permit) = bulkhead.enter_n(8).now()
            {
                inside.push((permit, 10.0));
            }
            clock.advance(Duration::from_millis(1));
            let speed = (4.0 / inside.len() as f64).min(1.0);
            inside.iter_mut().for_each(|(_, left)| *left -= speed);
            for (permit, _) in inside.extract_if(.., |(_, left)| *left < 1e-9) {
                permit.leave(Outcome::Success);
                ended += u32::from(millisecond >= 50_000);
            }
        }
        assert!(ended >= 3600, "{ended} of 4000 in ten seconds: {bulkhead:?}");
    }
}

#[test]
fn one_who_asks_for_more_than_there_is_takes_all_alone() {
    let bulkhead = of_two();
    let narrow = bulkhead.try_enter().unwrap();
    assert_eq!(bulkhead.enter_n(5).now().unwrap_err().retry(), Retry::Unknown, "somebody is inside");
    let mut wide = Waiter::new(bulkhead.enter_n(5));
    let mut next = Waiter::new(bulkhead.enter());
    assert!(wide.poll().is_pending() && next.poll().is_pending());
    drop(narrow);
    let wide = ready(wide.poll()).unwrap();
    assert_eq!((wide.places(), bulkhead.standing().debt), (5, 3));
    assert!(next.poll().is_pending() && bulkhead.try_enter().is_err());
    drop(wide);
    drop(ready(next.poll()).unwrap());
    assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (2, 0));
}

#[test]
fn a_limit_that_falls_below_what_a_waiter_asks_for_does_not_refuse_it() {
    let (clock, bounds) = (ManualClock::default(), Bounds::new(1, 1000).unwrap().start_at(4).unwrap());
    let bulkhead = Bulkhead::adaptive(Aimd::default().bounds(bounds)).with_clock(clock.clone());
    let [one, two] = [bulkhead.try_enter().unwrap(), bulkhead.try_enter().unwrap()];
    let mut wide = Waiter::new(bulkhead.enter_n(4));
    assert!(wide.poll().is_pending());
    clock.advance(Duration::from_secs(1));
    one.leave(Outcome::Overloaded);
    assert!(bulkhead.standing().limit < 4 && wide.poll().is_pending());
    two.leave(Outcome::Ignored);
    assert_eq!(ready(wide.poll()).unwrap().places(), 4);
}

#[test]
fn more_than_there_can_ever_be_is_never_and_promised_places_stay_free() {
    let most = Concurrency::MAX_PLACES;
    assert_eq!(of_two().enter_n(most + 1).now().unwrap_err().retry(), Retry::Never);
    assert_eq!(of_two().enter_n(most).now().unwrap().places(), most);
    let kept = KeepFor::default().with(Criticality::CriticalPlus, Kept::Percent(50));
    let keeps = of_two().with_keep_for(kept).unwrap();
    assert_eq!(keeps.enter_n(2).now().unwrap_err().retry(), Retry::Unknown, "a place is kept");
    let divided = of_two().with_tenants(Tenants::default().each(Partition::default(), 9).unwrap());
    let refused = divided.enter_n(3).of("ann").now().unwrap_err();
    assert_eq!(refused.retry(), Retry::Unknown, "two are divided");
    let fixed = Bulkhead::new(2).unwrap();
    assert_eq!(fixed.enter_n(3).now().unwrap_err().retry(), Retry::Never, "nothing moves it");
}
