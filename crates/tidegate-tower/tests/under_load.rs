//! The example service through an outage of its dependency, in a short form.

#[path = "../examples/under_load/load.rs"]
mod load;
#[path = "../examples/under_load/service.rs"]
mod service;

use load::{Seen, USERS};
use service::Phases;

/// The mean of a lane over a span of seconds, as a share of the users.
fn share(lane: &[u32], from: u64, to: u64) -> f64 {
    let seconds = &lane[from as usize..to as usize];
    f64::from(seconds.iter().sum::<u32>()) / f64::from(USERS) / seconds.len() as f64
}

/// Without protection, a dependency that is slow for seven seconds takes the service down permanently: users retry, and
/// the store works off requests that no user waits for any more. With protection every user gets an answer, during the
/// outage from a stand-in.
#[test]
fn with_protection_goodput_stays_and_without_it_collapses() {
    let phases @ Phases { slows, fails, recovers, ends } = Phases::short();
    let [bare, protected]: [Seen; 2] = [false, true].map(|protected| load::run(phases, protected));
    for seen in [&bare, &protected] {
        assert!(share(&seen.good, 0, slows) > 0.95, "all is well at first: {seen:?}");
        assert_eq!(seen.breaker.len() as u64, ends);
    }
    assert!(share(&bare.good, slows + 2, fails) < 0.05, "{bare:?}");
    assert!(
        share(&bare.good, ends - 5, ends) < 0.1,
        "it stays down, though its dependency is well: {bare:?}"
    );

    assert!(share(&protected.good, slows, ends) > 0.95, "{protected:?}");
    assert!(share(&protected.stand_ins, fails, recovers) > 0.9, "{protected:?}");
    assert!(share(&protected.stand_ins, ends - 5, ends) < 0.05, "the real answers are back: {protected:?}");
    assert!(share(&protected.tries, slows, ends) < 1.1, "nobody has to ask again: {protected:?}");
    let states = &protected.breaker;
    assert!(states[..slows as usize].iter().all(|state| *state == "closed"), "{states:?}");
    assert!(states.contains(&"open"), "{states:?}");
    assert_eq!(states.last(), Some(&"closed"));
}
