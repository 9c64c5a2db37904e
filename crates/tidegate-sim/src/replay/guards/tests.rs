//! Guards under generated traffic and logs.

use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::{Descriptor, Glob, Limit, Match, Policy, PolicySet, Want};
use tidegate::{Quota, Tick};
use tidegate_core::breaker::CircuitBreaker;
use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency, Bounds};

use crate::replay::{DENIED, Outcome, Replay, ReplayOptions};
use crate::traffic::Traffic;

fn concurrency(max: u64) -> Policy {
    let quota = Quota::concurrency(max, Duration::from_secs(60)).unwrap();
    Policy::new("places", Limit::new(quota, format!("concurrency {max}")))
}

fn breaker() -> Policy {
    let law = CircuitBreaker::builder().jitter(0.0).build().unwrap();
    Policy::new("payments", Limit::new(Quota::Breaker(law), "breaker"))
}

fn simulated(policies: Vec<Policy>, traffic: &str) -> Replay {
    let sets = vec![("policies".to_owned(), Arc::new(PolicySet::new(policies).unwrap()))];
    let mut replay = Replay::new(sets, ReplayOptions::default()).unwrap();
    for arrival in traffic.parse::<Traffic>().unwrap().arrivals(Tick::EPOCH, 1) {
        replay.feed_arrival(&arrival, &Descriptor::new().with("key", arrival.key.text()));
    }
    replay.finish();
    replay
}

fn only(replay: &Replay) -> Outcome {
    replay.outcomes().remove(0)
}

#[test]
fn places_are_held_for_as_long_as_the_line_says() {
    // 100 a second for 200 ms each are 20 in flight; for 400 ms they would be 40.
    let replay =
        simulated(vec![concurrency(30)], "steady 100/s 10s taking 200ms, steady 100/s 10s taking 400ms");
    let outcome = only(&replay);
    let guard = &outcome.policies[0].guards[0];
    assert_eq!((guard.kind.as_str(), guard.most_in_flight), ("concurrency", 30));
    assert_eq!((guard.refused_full, guard.refused_open), (outcome.denied, 0));
    // 30 places for 400 ms each are 75 a second.
    assert!(outcome.denied.abs_diff(250) < 20, "{}", outcome.denied);
    let service = outcome.service.unwrap();
    assert_eq!((service.timed, service.failed, service.most_in_flight), (outcome.allowed, 0, 30));
    assert_eq!(
        (service.p50, service.p99),
        (Some(Duration::from_millis(200)), Some(Duration::from_millis(400)))
    );
}

/// In a replay the service does not react to the limit, so the law used here depends on the duration of work.
#[test]
fn a_limit_that_moves_is_the_one_that_refuses() {
    let law: Adaptive = "aimd".parse().unwrap();
    let Adaptive::Aimd(law) = law.with_bounds(Bounds::new(1, 100).unwrap().start_at(10).unwrap()) else {
        panic!("it is")
    };
    let law = Adaptive::Aimd(law.timeout(Duration::from_millis(500)).unwrap());
    let guard = AdaptiveConcurrency::new(law).ttl(Duration::from_secs(60)).unwrap();
    let policy = Policy::new("places", Limit::new(Quota::from(guard), "adaptive aimd"));
    let replay = simulated(vec![policy], "steady 200/s 10s taking 200ms, steady 200/s 10s taking 800ms");
    let outcome = only(&replay);
    let guard = &outcome.policies[0].guards[0];
    assert_eq!((guard.kind.as_str(), guard.refused()), ("adaptive", outcome.denied));
    let guard = &replay.guards(0).unwrap().limits()[0];
    let limits = &guard.at_most;
    // The limit grows as far as 40 in flight require, and falls once requests take too long.
    assert!(limits.most() >= 40 && limits.now() <= 3, "{} and then {}", limits.most(), limits.now());
    assert!(outcome.denied > 1000, "{}", outcome.denied);
    // A picture must not be labelled with the last of many limits.
    assert_eq!(guard.at_most_words(), format!("1 to {}, moved by aimd", limits.most()));
    let still = simulated(vec![concurrency(30)], "steady 100/s 1s taking 200ms");
    assert_eq!(still.guards(0).unwrap().limits()[0].at_most_words(), "30");
}

#[test]
fn a_breaker_opens_with_failures_and_closes_when_they_end() {
    let calm = "steady 100/s 10s taking 20ms";
    let replay = simulated(
        vec![breaker()],
        &format!("{calm}, steady 100/s 8s taking 20ms failing 90%, {calm}, {calm}"),
    );
    let outcome = only(&replay);
    let guard = &outcome.policies[0].guards[0];
    let told: Vec<_> = guard.changes.iter().map(|change| (change.from, change.to)).collect();
    assert_eq!((told[0], told[1]), (("closed", "open"), ("open", "half-open")), "{:#?}", guard.changes);
    assert_eq!(*told.last().unwrap(), ("half-open", "closed"), "{:#?}", guard.changes);
    assert!(guard.changes[0].why.ends_with("calls failed") && guard.changes[0].at > Tick::from_secs(10));
    assert_eq!(guard.changes[1].at.since(guard.changes[0].at), Duration::from_secs(5));
    assert_eq!((guard.refused(), guard.refused_full), (outcome.denied, 0));
    assert!(guard.refused_open >= 500 && guard.changes_left_out == 0);
    assert_eq!(outcome.policies[0].most_in_use, None, "a breaker has no places");
    assert!(outcome.service.unwrap().failed > 100);
}

#[test]
fn a_breaker_that_sheds_refuses_a_share_while_calls_fail() {
    let law = CircuitBreaker::builder().failure_ratio(0.2).shed_at_most(0.8).build().unwrap();
    let policy = Policy::new("search", Limit::new(Quota::from(law), "breaker"));
    let calm = "poisson 100/s 20s taking 20ms";
    let line = format!("{calm}, poisson 100/s 20s taking 20ms failing 60%, {calm}");
    let replay = simulated(vec![policy], &line);
    let outcome = only(&replay);
    let guard = &outcome.policies[0].guards[0];
    assert_eq!((guard.refused_shed, guard.refused()), (outcome.denied, outcome.denied));
    // Of the 2,000 calls half are in excess once the window holds only calls of that time: 0.4 / 0.8.
    assert!((600..=1_100).contains(&outcome.denied), "{}", outcome.denied);
    let first = &guard.changes[0];
    assert_eq!((first.from, first.to), ("closed", "shedding"));
    assert!(first.why.ends_with("calls failed"), "{}", first.why);
    let last = guard.changes.last().unwrap();
    assert_eq!((last.from, last.to), ("shedding", "closed"));
    let guards = replay.guards(0).unwrap();
    let (_, bands) = guards.limits()[0].breakers.as_ref().unwrap().first(Tick::EPOCH, last.at).unwrap();
    assert!(bands.iter().any(|band| band.state == super::BreakerState::Shedding));
}

/// When good calls leave the window, the share that failed rises with no call. The picture showed such a breaker as
/// closed while it refused.
#[test]
fn a_breaker_that_sheds_because_time_has_passed_is_shown_as_shedding() {
    let law = CircuitBreaker::builder().failure_ratio(0.2).min_calls(20).shed_at_most(0.9).build().unwrap();
    let sheds = Policy::new("search", Limit::new(Quota::from(law), "breaker"));
    // From 13 s on every call is refused by the limit of places, so none reaches the breaker. Its share of failures
    // rises as the good calls of the first ten seconds leave its window.
    let mut places = concurrency(1);
    places.matching = Match::any().attribute("key", Want::OneOf(vec![Glob::new("out").unwrap()]));
    let line = "steady 20/s 10s key in taking 5ms, steady 20/s 3s key in taking 5ms failing 50%, \
                burst 1 key out taking 1min, steady 20/s 12s key out taking 5ms";
    let replay = simulated(vec![sheds, places], line);
    let guard = &only(&replay).policies[0].guards[0];
    assert!(guard.refused_shed > 5, "{guard:#?}");
    let first = &guard.changes[0];
    assert_eq!((first.from, first.to), ("closed", "shedding"));
    assert!(first.at > Tick::from_secs(13), "by time: {first:?}");
}

/// The breaker is simulated beside the gate: if the two disagreed, the picture would not show the breaker that
/// refused.
#[test]
fn the_breaker_that_is_followed_is_the_one_that_refuses() {
    let line = "poisson 60/s 20s taking exponential:80ms failing 20%, poisson 60/s 20s taking exponential:80ms failing 70%, \
                poisson 60/s 90s taking 5ms..900ms failing 3%";
    for seed in 1..3 {
        let sets = vec![("policies".to_owned(), Arc::new(PolicySet::new(vec![breaker()]).unwrap()))];
        let mut replay = Replay::new(sets, ReplayOptions::default()).unwrap();
        for arrival in line.parse::<Traffic>().unwrap().arrivals(Tick::EPOCH, seed) {
            let before = replay.series(0).map_or(0, |series| series.total(DENIED));
            replay.feed_arrival(&arrival, &Descriptor::new());
            let refused = replay.series(0).unwrap().total(DENIED) > before;
            let guards = replay.guards(0).unwrap();
            let breakers = guards.limits()[0].breakers.as_ref().unwrap();
            let Some((_, bands)) = breakers.first(Tick::EPOCH, arrival.at) else { continue };
            let state = bands.last().unwrap().state;
            match state {
                super::BreakerState::Closed => assert!(!refused, "closed at {:?}", arrival.at),
                super::BreakerState::Open => assert!(refused, "open at {:?}", arrival.at),
                super::BreakerState::HalfOpen | super::BreakerState::Shedding => {}
            }
        }
        assert_eq!(only(&replay).errors, 0);
    }
}

#[test]
fn each_key_has_a_breaker_of_its_own() {
    let mut policy = breaker();
    policy.by = vec!["key".to_owned()];
    let traffic = "steady 50/s 10s key good taking 5ms, steady 50/s 2s key bad taking 5ms failing 100%, steady 50/s 2s key good taking 5ms";
    let replay = simulated(vec![policy], traffic);
    let outcome = only(&replay);
    let guard = &outcome.policies[0].guards[0];
    assert_eq!(guard.changes.len(), 1);
    assert_eq!((guard.changes[0].key.as_str(), guard.changes[0].to), ("bad", "open"));
    let guards = replay.guards(0).unwrap();
    assert_eq!(guards.limits()[0].breakers.as_ref().unwrap().first(Tick::EPOCH, Tick::MAX).unwrap().0, "bad");
}

/// A log drives breakers by its statuses and durations.
#[test]
fn a_log_drives_breakers_by_its_statuses_and_durations() {
    use crate::log::{Log, LogOptions};
    use crate::source::Input;
    let run = |status: &str| {
        let line = |at: u32| {
            format!(
                "{{\"time\":\"2026-01-01T00:00:{:02}.{}Z\"{status},\"duration_ms\":80}}\n",
                at / 10,
                at % 10
            )
        };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, (0..300).map(line).collect::<String>().as_bytes()).unwrap();
        let sets = vec![("policies".to_owned(), Arc::new(PolicySet::new(vec![breaker()]).unwrap()))];
        let mut replay = Replay::new(sets, ReplayOptions::default()).unwrap();
        let input = Input::from_arg(file.path().as_os_str());
        let mut log = Log::open(vec![input], LogOptions::default()).unwrap();
        log.read(|record| {
            replay.feed(record);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        replay.finish();
        replay
    };
    let failing = only(&run(",\"status\":500"));
    let first = &failing.policies[0].guards[0].changes[0];
    // The twentieth call, the first that is judged, came at 1.9 s and took 80 ms.
    assert_eq!((first.to, first.at.since(failing.first.unwrap())), ("open", Duration::from_millis(1_980)));
    assert_eq!(failing.service.unwrap().p99, Some(Duration::from_millis(80)));
    let well = only(&run(",\"status\":404"));
    assert_eq!((well.denied, well.policies[0].guards[0].changes.len()), (0, 0), "the caller's fault");
    let silent = run("");
    assert_eq!((silent.without_status(), only(&silent).denied, silent.judges()), (300, 0, true));
}

#[test]
fn who_is_held_back_waits() {
    let queue = Quota::per_second(10).leaky_queue(50).unwrap();
    let mut pace = Policy::new("pace", Limit::new(queue, "leaky-queue 10/s"));
    pace.limits[0].max_wait = Duration::from_secs(5);
    let replay = simulated(vec![pace, concurrency(100)], "burst 20 taking 50ms, steady 1/s 10s taking 50ms");
    let outcome = only(&replay);
    let service = outcome.service.unwrap();
    assert!(service.most_waiting >= 19 && outcome.delayed >= 19, "{service:?}");
    assert_eq!(replay.guards(0).unwrap().waiting.now(), 0);
    assert_eq!(replay.guards(0).unwrap().in_flight.now(), 0);
}

#[test]
fn a_shadow_limit_that_is_a_guard_has_its_own_row() {
    let mut policy = Policy::new("all", Limit::new(Quota::per_second(1_000).gcra().unwrap(), "gcra 1000/s"));
    policy.shadow_limit = concurrency(3).limits.into_iter().next();
    let replay = simulated(vec![policy], "burst 10 taking 1s");
    let outcome = only(&replay);
    assert!(outcome.policies[0].guards.is_empty());
    let guard = &outcome.policies[1].guards[0];
    assert_eq!((outcome.denied, guard.refused_full, guard.most_in_flight), (0, 7, 3));
}

#[test]
fn policies_without_guards_say_nothing_of_them() {
    let all = Policy::new("all", Limit::new(Quota::per_second(5).gcra().unwrap(), "gcra 5/s"));
    let replay = simulated(vec![all], "burst 10 taking 1s failing 50%");
    let outcome = only(&replay);
    assert!(outcome.service.is_none() && outcome.policies[0].guards.is_empty() && replay.guards(0).is_none());
    let json = serde_json::to_string(&outcome).unwrap();
    assert!(!json.contains("guards") && !json.contains("service"), "{json}");
}
