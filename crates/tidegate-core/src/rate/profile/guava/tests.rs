use super::*;
use crate::decision::Cost;

#[test]
fn the_documented_warm_up() {
    let limit = GuavaWarming::new(5.0, Duration::from_secs(3), 3.0).unwrap();
    let (mut state, mut now) = (limit.fresh(Tick::from_secs(7)), Tick::from_secs(7));
    let mut waits = Vec::new();
    for _ in 0..10 {
        let Transition::Allowed { wait, next, .. } =
            limit.decide(&state, Ask::within(now, Cost::ONE, Duration::MAX))
        else {
            panic!("any wait is accepted")
        };
        waits.push(format!("{:.2}", wait.as_secs_f64()));
        (state, now) = (next, now.after(wait));
    }
    assert_eq!(waits.join(" "), "0.00 0.57 0.52 0.47 0.41 0.36 0.31 0.25 0.21 0.20");
}
