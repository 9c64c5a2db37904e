//! Checks the simulator against known results, and the default against its bars in short runs.

mod page;
mod work;

use std::time::Duration;

use super::backend::{self, Backend, Contention, Excess, Sharing, Speed, Wait, Work};
use super::controllers::{DEFAULT, NONE, PUBLISHED, fixed};
use super::figures;
use super::front::Front;
use super::ideal::ideal;
use super::load::Load;
use super::meter::Measured;
use super::scenario::{self, Chain};
use super::world::{Service, run};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn service(sharing: Sharing, work: Work) -> Backend {
    Backend {
        name: String::new(),
        about: "",
        sharing,
        work,
        speed: Speed::Steady,
        contention: Contention::None,
        wait: Wait::None,
        excess: Excess::Waits,
        deadline: secs(60),
    }
}

fn unprotected(backend: Backend, rate: f64, until: Duration, seed: u64) -> Measured {
    run(vec![Service { backend, front: Front::open() }], &Load::steady(rate, until), seed)
}

fn mean_latency(measured: &Measured) -> f64 {
    let sum: f64 = measured.latencies.iter().map(|(micros, _)| f64::from(*micros)).sum();
    sum / measured.latencies.len() as f64 / 1000.0
}

#[test]
fn one_worker_takes_as_long_as_the_formula_of_m_m_1_says() {
    // 10 ms of work and 70 a second: the mean latency is 1 / (100 − 70) of a second, whether queued or shared.
    for sharing in [Sharing::Queued(1), Sharing::Shared(1)] {
        let measured = unprotected(service(sharing, Work::Exponential(ms(10))), 70.0, secs(2000), 5);
        let mean = mean_latency(&measured);
        assert!((mean / 33.33 - 1.0).abs() < 0.04, "{sharing:?}: {mean} ms");
    }
}

#[test]
fn eight_workers_take_as_long_as_erlangs_c_says() {
    // 640 a second on 8 workers of 10 ms: a load of 6.4. C(8, 6.4) of Erlang's C formula, computed from his B
    // formula.
    let (servers, load) = (8.0, 6.4);
    let first = (1..=8).fold(1.0, |blocked, server| load * blocked / (f64::from(server) + load * blocked));
    let waits = first / (1.0 - load / servers * (1.0 - first));
    let expected = 10.0 + waits * 10.0 / (servers - load);
    let backend = service(Sharing::Queued(8), Work::Exponential(ms(10)));
    let mean = mean_latency(&unprotected(backend, 640.0, secs(300), 6));
    assert!((mean / expected - 1.0).abs() < 0.03, "{mean} ms, expected {expected}");
}

#[test]
fn a_loss_system_turns_away_what_erlangs_b_says() {
    // A fixed limit of 8 without a queue, 1600 a second on 8 workers of 10 ms: a load of 16.
    let blocked = (1..=8).fold(1.0, |blocked, server| 16.0 * blocked / (f64::from(server) + 16.0 * blocked));
    let backend = service(Sharing::Queued(8), Work::Exponential(ms(10)));
    let protected = vec![Service { backend, front: Front::behind(fixed(8).with_room(0)) }];
    let measured = run(protected, &Load::steady(1600.0, secs(60)), 7);
    let goodput = measured.goodput(secs(0), secs(60));
    assert!((goodput / (1600.0 * (1.0 - blocked)) - 1.0).abs() < 0.02, "{goodput}");
}

#[test]
fn work_is_neither_lost_nor_made() {
    // Twice the load that 4 workers can take: all of them are always busy, so 400 a second are finished.
    let backend = Backend { deadline: secs(600), ..service(Sharing::Queued(4), Work::Even(ms(10), ms(10))) };
    let goodput = unprotected(backend, 800.0, secs(20), 8).goodput(secs(1), secs(20));
    assert!((goodput - 400.0).abs() < 1.0, "{goodput}");
    for sharing in [Sharing::Queued(4), Sharing::Shared(4)] {
        let measured = unprotected(service(sharing, Work::Even(ms(5), ms(15))), 300.0, secs(30), 1);
        let arrived: u32 = measured.offered.iter().sum();
        assert_eq!(measured.latencies.len() as u32, arrived, "{sharing:?}: everybody is served in the end");
        assert!((f64::from(arrived) / 9_000.0 - 1.0).abs() < 0.04, "{arrived} arrived");
    }
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_bit_and_another_seed_another() {
    for backend in backend::table().into_iter().chain(backend::held_back()) {
        let load = Load { until: secs(3), ..scenario::overload_load(backend.capacity(), 2.0) };
        let once = |seed| {
            let front = (DEFAULT.protect)(&backend);
            run(vec![Service { backend: backend.clone(), front }], &load, seed)
        };
        assert_eq!(once(1), once(1), "{}", backend.name);
        assert_ne!(once(1), once(2), "{}", backend.name);
    }
}

/// Sixteen places of 20 ms, and twice the load that they can take.
#[test]
fn the_knee_has_sixteen_places_and_collapses_without_protection() {
    let knee = &backend::table()[0];
    assert_eq!((knee.capacity(), knee.best_inside()), (800.0, 16));
    let score = |controller| scenario::overload(knee, &controller, 2.0, 1..=1).goodput;
    assert!(score(NONE) < 0.1 && score(DEFAULT) > 0.95);
}

#[test]
fn nobody_does_better_than_the_ideal_by_more_than_chance() {
    for backend in backend::table() {
        let load = scenario::overload_load(backend.capacity(), 2.0);
        let best = ideal(&backend, &load, secs(2), secs(10));
        let front = Front::behind(fixed(u64::from(backend.best_inside())).with_short_queue());
        let measured =
            run(vec![Service { backend: backend.clone(), front }], &Load { until: secs(10), ..load }, 3);
        let goodput = measured.goodput(secs(2), secs(10)) / best;
        // Heavy-tailed work varies by some percent in eight seconds, and requests that waited before a pause are
        // finished after it.
        assert!(goodput < 1.06, "{}: {goodput}", backend.name);
    }
}

#[test]
fn where_a_large_limit_wins_it_loses_to_the_default_if_callers_wait_for_a_shorter_time() {
    let [aimd, ..] = PUBLISHED;
    for name in ["timer", "latency shift", "mixed costs"] {
        let service = backend::table().into_iter().find(|backend| backend.name == name).unwrap();
        let impatient = figures::impatient(&service);
        let [default, aimd] =
            [DEFAULT, aimd].map(|law| scenario::overload(&impatient, &law, 2.0, 1..=1).goodput);
        assert!(default > aimd + 0.5, "{name}: {default} and {aimd}");
    }
}

#[test]
fn the_pictures_of_the_manual_are_what_the_simulation_draws() {
    let images = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images");
    for (name, svg) in figures::pictures().unwrap() {
        let kept = std::fs::read_to_string(format!("{images}/{name}")).unwrap_or_default();
        assert!(
            kept == svg,
            "{name}: draw it again with `cargo run --release -p tidegate-lab --example overload`"
        );
    }
}

/// The documentation of each law must link to its picture, and only to pictures that exist.
#[test]
fn the_documentation_of_each_law_has_its_picture() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut linked = Vec::new();
    let limits = ["aimd", "bbr", "gradient", "hill_climb", "min_latency", "vegas"];
    let limits = limits.map(|law| format!("concurrency/{law}.rs"));
    let throttles = ["pid", "shedding", "sre"].map(|law| format!("throttle/{law}.rs"));
    let queues = ["codel.rs", "../../tidegate-limits/src/bulkhead/queue.rs"].map(str::to_owned);
    for law in limits.iter().chain(&throttles).chain(&queues) {
        let text = std::fs::read_to_string(root.join("crates/tidegate-core/src").join(law)).unwrap();
        let links = text.lines().filter_map(|line| line.strip_prefix("/// ")?.split_once("/docs/images/"));
        let before = linked.len();
        linked.extend(links.filter_map(|(_, link)| Some(link.split_once(')')?.0.to_owned())));
        assert!(linked.len() > before, "{law} links to no picture");
    }
    for name in &linked {
        assert!(root.join("docs/images").join(name).is_file(), "there is no {name}");
    }
    for picture in PUBLISHED.map(|law| figures::law_picture(law.name)) {
        assert!(linked.contains(&picture), "no law links to {picture}");
    }
}

#[test]
fn the_default_holds_its_bars_on_one_service_and_on_a_chain() {
    for chain in [Chain::single(), Chain::of_three()] {
        let name = chain.name;
        assert!(chain.overload(&DEFAULT, 2.0, 1..=1) >= 0.9, "{name}");
        let spike = chain.spike(&DEFAULT, 1..=15);
        assert!(spike.is_some_and(|span| span <= ms(100)), "{name}: {spike:?}");
        let levels = chain.levels(&DEFAULT, 1..=1);
        assert!(levels[3] >= 0.999 && levels[0] < 0.3, "{name}: {levels:?}");
        let storm = chain.storm(&DEFAULT, None, 1..=1);
        assert!(storm.is_some_and(|span| span <= secs(5)), "{name}: {storm:?}");
    }
    assert!(
        Chain::of_three().storm(&NONE, None, 1..=1).is_none(),
        "without protection the storm does not end"
    );
}
