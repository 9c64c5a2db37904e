//! What the default must do on any service; and of the judge itself: that it counts everybody once, that its machine does what machines do, and that a limit gets
//! what queueing theory says.

use std::collections::BTreeSet;

use tidegate_sim::traffic::Chance;

use super::checks::{
    Check, critical_work_passes, hang_stays_partial, slow_work_is_learnt, tenants_are_apart, tidegate,
};
use super::guard::{LAWS, Protection};
use super::run::run;
use super::service::{Callers, Class, Dip, Drift, Service, Shape, Spread, Trouble, UNBOUNDED};
use super::services::{Set, all, of_set};
use super::tally::Tally;
use super::unseen;

/// Returns the service for a part of its time.
fn short(service: Service) -> Service {
    let part = if service.capacity() > 10_000.0 { 0.04 } else { 0.25 };
    Service { warm: service.warm * part, span: service.span * part, ..service }
}

fn counts_everybody(service: &Service, load: f64, protection: Protection) -> Tally {
    let tally = run(service, load, protection, 1);
    let name = format!("{} at {load}, {protection:?}", service.name);
    let ended = tally.answered + tally.refused + tally.late + tally.hung;
    assert_eq!(tally.offered, ended, "each ends once: {name}: {tally:?}");
    assert!(tally.most_held <= service.slots, "{name}: {} hold a slot", tally.most_held);
    assert!(tally.good <= tally.healthy && tally.allowed <= tally.healthy, "{name}: {tally:?}");
    tally
}

#[test]
fn everybody_is_counted_once_and_no_more_work_than_there_are_slots() {
    for service in all().into_iter().chain(unseen::all()) {
        let service = short(service);
        for load in [0.8, 4.0] {
            let tidegate = counts_everybody(&service, load, Protection::Tidegate);
            let nothing = counts_everybody(&service, load, Protection::Nothing);
            assert_eq!(tidegate.offered, nothing.offered, "the same callers come: {}", service.name);
            assert_eq!(tidegate.allowed, nothing.allowed, "{}", service.name);
        }
    }
}

#[test]
fn each_protection_runs_and_the_same_seed_gives_the_same_run() {
    let service = Service { callers: Callers::told(0.3), span: 2.0, ..Service::pool(8, 0.04) };
    let protections = [Protection::WithBreaker, Protection::Fixed(9)].into_iter().chain(LAWS);
    for protection in protections {
        let first = counts_everybody(&service, 2.0, protection);
        assert_eq!(first, counts_everybody(&service, 2.0, protection), "{protection:?}");
        assert_ne!(first, run(&service, 2.0, protection, 2), "{protection:?}");
        assert!(first.answered > 0, "{protection:?}");
    }
}

/// Returns the share of callers that an M/M/c/K queue takes in, after Erlang. `offered` is in servers.
fn taken_in(offered: f64, servers: u32, places: u32) -> f64 {
    let mut weight = 1.0;
    let mut sum = 1.0;
    for inside in 1..=places {
        weight *= offered / f64::from(inside.min(servers));
        sum += weight;
    }
    1.0 - weight / sum
}

#[test]
fn a_fixed_limit_gets_what_theory_says() {
    for (servers, places, load) in [(4, 4, 1.0), (4, 10, 1.2), (1, 3, 2.0), (16, 20, 0.9)] {
        let pool = Service {
            callers: Callers::within(1000.0),
            warm: 5.0,
            span: 60.0,
            ..Service::pool(servers, 0.01 * f64::from(servers) / 4.0)
        };
        // Theory makes no difference between those who queue and those who share.
        let shared = Service { slots: UNBOUNDED, ..pool.clone() };
        let expected = taken_in(load * f64::from(servers), servers.into(), places);
        for service in [pool, shared] {
            let tally = counts_everybody(&service, load, Protection::Fixed(places.into()));
            let found = tally.answered as f64 / tally.offered as f64;
            let off = (found / expected - 1.0).abs();
            assert!(off < 0.02, "{servers}, {places}, {load}: {found}, not {expected}");
        }
    }
}

#[test]
fn what_the_capacity_allows_is_the_load_or_the_capacity() {
    let service = Service { spread: Spread::Fixed, span: 20.0, ..Service::pool(10, 0.025) };
    let run = |service: &Service, load| counts_everybody(service, load, Protection::Nothing);
    let below = run(&service, 0.8);
    assert!((below.allowed / below.healthy - 1.0).abs() < 1e-6, "{} of {}", below.allowed, below.healthy);
    assert_eq!(below.answered, below.offered, "nobody waits for long");
    let above = run(&service, 4.0);
    assert!((above.allowed / (400.0 * 20.0) - 1.0).abs() < 0.01, "{}", above.allowed);
    assert!(above.share() < 0.1, "all are late: {}", above.share());

    let best = run_fixed(&service, 4.0, 20);
    assert!((0.98..=1.01).contains(&best), "{best}");
    let dips = vec![Dip::slow(13.0, f64::INFINITY, 0.5)];
    let dip = Service { dips, ..service };
    let allowed = run(&dip, 4.0).allowed;
    assert!((allowed / (400.0 * 15.0) - 1.0).abs() < 0.02, "{allowed}: half of it after half of the time");
    let best = run_fixed(&dip, 4.0, 20);
    assert!((0.98..=1.03).contains(&best), "{best}");
}

fn run_fixed(service: &Service, load: f64, places: u64) -> f64 {
    counts_everybody(service, load, Protection::Fixed(places)).share()
}

#[test]
fn the_hash_of_a_name_decides_its_half() {
    let (services, unseen) = (all(), unseen::all());
    let names: BTreeSet<&str> = services.iter().chain(&unseen).map(|service| service.name).collect();
    assert_eq!(names.len(), services.len() + unseen.len(), "each name is the name of one");
    assert!(services.len() >= 24 && unseen.len() >= 20);
    let (a, b) = (of_set(Set::A).len(), of_set(Set::B).len());
    assert_eq!(a + b, services.len());
    assert!(a >= 8 && b >= 8, "{a} and {b}");
}

#[test]
fn all_capacities_are_those_that_the_names_promise() {
    let capacity = |name: &str| all().iter().find(|service| service.name == name).unwrap().capacity();
    assert!((capacity("quota of processor time") - 312.5).abs() < 0.01);
    assert!((capacity("pauses of a collector") - 304.4).abs() < 0.5);
    assert!((capacity("work of fifty microseconds") - 200_000.0).abs() < 1.0);
    assert!((capacity("work of half a minute") - 64.0 / 30.0).abs() < 0.01);
}

fn hold(checks: impl IntoIterator<Item = Check>) {
    let failed: Vec<String> =
        checks.into_iter().filter(|check| !check.passed()).map(|check| check.to_string()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_partial_hang_stays_partial() {
    hold(hang_stays_partial(1));
}

#[test]
fn a_cut_is_judged_by_what_entered_after_it() {
    hold(slow_work_is_learnt(1));
}

#[test]
fn quiet_tenants_are_answered_beside_a_flood() {
    hold(tenants_are_apart(1));
}

/// The goal is 0.999.
#[test]
fn critical_work_passes_beside_dear_work() {
    let check = critical_work_passes(3);
    assert!(check.found() >= 0.99, "{check}");
}

/// Of half A with two seeds: at eight tenths of the capacity (the goal is 0.99 of the best limit on each), at the capacity, and
/// just above.
#[test]
fn the_default_answers_most_of_what_the_capacity_allows() {
    for (load, mean, least) in [(0.8, 0.96, 0.8), (1.0, 0.91, 0.6), (1.4, 0.95, 0.75)] {
        let shares: Vec<f64> = of_set(Set::A)
            .iter()
            .map(|service| tidegate(service, load, 2.min(service.seeds)).share())
            .collect();
        let found = shares.iter().sum::<f64>() / shares.len() as f64;
        let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(found >= mean && worst >= least, "{found} and {worst} at {load}: {shares:?}");
    }
}

/// Returns the mean of many draws, and the largest.
fn drawn(spread: Spread) -> (f64, f64) {
    let mut chance = Chance(1);
    let draws: Vec<f64> = (0..1_000_000).map(|_| spread.draw(&mut chance)).collect();
    (draws.iter().sum::<f64>() / 1e6, draws.into_iter().fold(0.0, f64::max))
}

#[test]
fn a_heavy_tail_has_the_mean_one() {
    let (mean, largest) = drawn(Spread::Pareto { power: 1.3, longest: 200.0 });
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!((40.0..80.0).contains(&largest), "{largest}: the shortest is 0.3");
}

#[test]
fn bursts_and_clumps_leave_the_load_as_it_is() {
    let service = Service {
        shape: Shape::Bursts { every: 10.0, lasts: 1.0, times: 6.0 },
        clump: 20,
        span: 100.0,
        warm: 0.0,
        ..Service::pool(20, 0.05)
    };
    assert!((service.part_of_load(0.5) / service.part_of_load(5.0) - 6.0).abs() < 1e-9);
    let offered = counts_everybody(&service, 0.5, Protection::Nothing).offered as f64;
    assert!((offered / 20_000.0 - 1.0).abs() < 0.1, "{offered}");
    assert_eq!(offered % 20.0, 0.0);
}

#[test]
fn machines_that_are_gone_do_less_at_the_same_speed() {
    let gone = vec![Dip::small(0.0, f64::INFINITY, 0.5)];
    let pool = Service { spread: Spread::Fixed, dips: gone, span: 20.0, ..Service::pool(10, 0.025) };
    let tally = counts_everybody(&pool, 4.0, Protection::Fixed(5));
    // A slot is empty until the next request comes.
    assert!((tally.answered as f64 / (200.0 * 20.0) - 1.0).abs() < 0.05, "{}", tally.answered);
    assert_eq!(tally.most_held, 5);
    assert!(tally.latencies.p99() < 0.028, "{}: nobody is slower", tally.latencies.p99());
}

#[test]
fn who_blocks_holds_a_slot_and_no_core() {
    // The slots let 200 through in a second, the one core 500.
    let service = Service {
        work: 0.002,
        wait: 0.048,
        spread: Spread::Fixed,
        blocks: true,
        slots: 10,
        cores: 1.0,
        span: 20.0,
        ..Service::default()
    };
    assert!((service.capacity() - 200.0).abs() < 1e-6);
    assert!(run_fixed(&service, 2.0, 10) > 0.9);
    assert!(run_fixed(&service, 2.0, 5) < 0.52);
    // One in ten that holds its slot for 1 s, and fails, leaves a third of the slots to the others.
    let hangs = Trouble { from: 0.0, to: f64::INFINITY, share: 0.1, lasts: 1.0, fails: true };
    let hung = Service { troubles: vec![hangs], ..service.clone() };
    let tally = counts_everybody(&hung, 4.0, Protection::Fixed(20));
    let expected = 10.0 * 0.9 / (0.9 * 0.05 + 0.1) * 20.0;
    assert!((tally.allowed / expected - 1.0).abs() < 0.02, "{}", tally.allowed);
    assert!((tally.answered as f64 / expected - 1.0).abs() < 0.1, "{} of {expected}", tally.answered);
    // Twice the wait is nearly half of the capacity, and without blocking it is only latency.
    let drift = vec![Drift { at: 0.0, times: 2.0 }];
    let slow = Service { drift, ..service };
    let allowed = counts_everybody(&slow, 4.0, Protection::Nothing).allowed;
    assert!((allowed / (10.0 / 0.098 * 20.0) - 1.0).abs() < 0.02, "{allowed}");
    let free = Service { blocks: false, slots: UNBOUNDED, ..slow };
    let tally = counts_everybody(&free, 0.5, Protection::Nothing);
    assert_eq!(tally.answered, tally.offered);
    assert!((0.096..0.12).contains(&tally.latencies.p99()), "{}", tally.latencies.p99());
}

#[test]
fn the_wait_drifts_evenly() {
    let drift = vec![Drift { at: 10.0, times: 1.0 }, Drift { at: 20.0, times: 3.0 }];
    let service = Service { drift, ..Service::default() };
    let found = [0.0, 10.0, 15.0, 20.0, 90.0].map(|at| service.times_as_long(at));
    assert_eq!(found, [1.0, 1.0, 2.0, 3.0, 3.0]);
    assert_eq!(Service::default().times_as_long(5.0), 1.0);
}

#[test]
fn each_class_has_its_own_time() {
    let patient = Class { within: Some(10.0), ..Class::of("patient", 1.0, 1.0) };
    let classes = vec![Class::of("hasty", 1.0, 1.0), patient];
    let service = Service { classes, callers: Callers::within(0.2), ..Service::pool(10, 0.025) };
    let tally = counts_everybody(&service, 2.0, Protection::Fixed(400));
    assert!(tally.class_share(0) < 0.1, "{}: all are late", tally.class_share(0));
    assert!(tally.class_share(1) > 0.4, "{}", tally.class_share(1));
}
