use std::sync::Arc;
use std::time::Duration;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::{Quota, Tick};
use tidegate_core::breaker::CircuitBreaker;
use tidegate_sim::replay::{Replay, ReplayOptions};
use tidegate_sim::report::{Form, first_picture};
fn main() {
    let law = CircuitBreaker::builder().build().unwrap();
    let policies = vec![
        Policy::new(
            "places",
            Limit::new(Quota::concurrency(20, Duration::from_secs(60)).unwrap(), "concurrency 20"),
        ),
        Policy::new("payments", Limit::new(Quota::Breaker(law), "breaker")),
    ];
    let sets = vec![("p".to_owned(), Arc::new(PolicySet::new(policies).unwrap()))];
    let mut replay = Replay::new(sets, ReplayOptions::default());
    let traffic: tidegate_sim::traffic::Traffic = std::env::args().nth(1).unwrap().parse().unwrap();
    for arrival in traffic.arrivals(Tick::EPOCH, 1) {
        replay.feed_arrival(&arrival, &Descriptor::new());
    }
    replay.finish();
    println!("{:#?}", replay.outcomes()[0].policies[1].guards);
    std::fs::write("/work/tmp/seen.png", first_picture(&replay, Form::Png).unwrap().bytes).unwrap();
    std::fs::write("/work/tmp/seen.svg", first_picture(&replay, Form::Svg).unwrap().bytes).unwrap();
}
