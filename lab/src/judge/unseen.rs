//! Services by another hand, which no law was made with: what teams run, and what their incident reports tell of.
//!
//! Who wrote them had read no law. A fixed limit, known afterwards, gets nine tenths or more of what the capacity allows
//! of nearly all of them, so whoever gets much less has not found it.

use tidegate::priority::Criticality;

use super::service::{
    Callers, Class, CpuQuota, Dip, Drag, Drift, Flush, Neighbour, Pauses, Service, Shape, Spread, Trouble,
};

/// The tail that many measured services have: few requests take most of the time.
const HEAVY: Spread = Spread::Pareto { power: 1.5, longest: 100.0 };

pub(super) fn all() -> Vec<Service> {
    let mut all = databases_and_threads();
    all.extend(processors_and_memory());
    all.extend(caches());
    all.extend(callers_of_others());
    all.extend(shards());
    all.extend(mixed_work());
    all.extend(machines_that_come_and_go());
    all.extend(crowds());
    all.extend(very_long_or_short());
    all
}

/// Services whose requests hold a connection, a session or a thread.
fn databases_and_threads() -> Vec<Service> {
    vec![
        // Whoever gets no connection within a second is told so.
        Service {
            name: "database behind five connections",
            longest_queue: 1.0,
            callers: Callers::within(1.0),
            warm: 4.0,
            ..Service::pool(5, 0.018)
        },
        // Five hundred fit, but 32 cores do the work, and they share latches.
        Service {
            name: "database with five hundred sessions",
            work: 0.06,
            slots: 500,
            cores: 32.0,
            drag: Drag::Contention { each: 0.001 },
            callers: Callers::within(0.4),
            span: 6.0,
            seeds: 2,
            ..Service::default()
        },
        // A writer that finds its row changed begins again: the more write, the more of it is in vain.
        Service {
            name: "optimistic writers of one hot row",
            work: 0.02,
            slots: 100,
            cores: 6.0,
            drag: Drag::Contention { each: 0.008 },
            callers: Callers { retries: 1, pause: 0.1, ..Callers::within(0.5) },
            seeds: 2,
            ..Service::default()
        },
        // A thread blocks for most of its time. Processors are short before threads are.
        Service {
            name: "web threads that block on another service",
            work: 0.005,
            wait: 0.1,
            wait_spread: Spread::Exponential,
            blocks: true,
            slots: 64,
            cores: 2.0,
            callers: Callers::within(0.7),
            seeds: 2,
            ..Service::default()
        },
        // One request in twenty asks a partner, who does not answer for twelve seconds. Its threads wait 2.5 s.
        Service {
            name: "threads taken by one partner that hangs",
            work: 0.012,
            wait: 0.09,
            blocks: true,
            slots: 16,
            troubles: vec![Trouble { from: 14.0, to: 26.0, share: 0.05, lasts: 2.5, fails: true }],
            callers: Callers::within(1.0),
            warm: 8.0,
            span: 26.0,
            seeds: 2,
            ..Service::default()
        },
        // Every four seconds a checkpoint takes the disk for 0.4 s.
        Service {
            name: "database whose checkpoints stall the disk",
            work: 0.02,
            cores: 6.0,
            dips: (0..5).map(|n| 4.0 * f64::from(n)).map(|at| Dip::slow(at + 2.0, at + 2.4, 0.05)).collect(),
            callers: Callers::within(0.9),
            warm: 4.0,
            span: 12.0,
            ..Service::default()
        },
    ]
}

/// Services that share processors and memory with a collector, a scheduler or a neighbour.
fn processors_and_memory() -> Vec<Service> {
    vec![
        // One every four seconds; it lasts 0.6 s and more.
        Service {
            name: "full collections of a large heap",
            work: 0.025,
            cores: 8.0,
            pauses: Some(Pauses { every: 1000, least: 0.6, each_inside: 0.004 }),
            callers: Callers::within(1.8),
            warm: 5.0,
            span: 13.0,
            ..Service::default()
        },
        Service {
            name: "half a core for a container",
            work: 0.004,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            wait: 0.02,
            wait_spread: Spread::Exponential,
            cores: 2.0,
            quota: Some(CpuQuota { cpu: 0.05, period: 0.1 }),
            callers: Callers::within(0.6),
            warm: 6.0,
            span: 20.0,
            ..Service::default()
        },
        Service {
            name: "virtual machine whose processor is stolen",
            work: 0.01,
            wait: 0.03,
            wait_spread: Spread::Exponential,
            cores: 2.0,
            neighbour: Some(Neighbour { takes: 0.4, away: 8.0, stays: 5.0 }),
            callers: Callers::within(0.6),
            warm: 5.0,
            span: 20.0,
            ..Service::default()
        },
        // Each upload lies in memory while it is read from the network. Eighty fit.
        Service {
            name: "uploads held in memory",
            work: 0.02,
            wait: 0.15,
            wait_spread: Spread::Even { least: 0.5, most: 1.5 },
            drag: Drag::Swap { above: 80 },
            callers: Callers::within(0.8),
            warm: 5.0,
            span: 14.0,
            ..Service::default()
        },
        // Code that is not compiled yet is slow.
        Service {
            name: "fresh process that compiles as it runs",
            work: 0.0125,
            dips: vec![Dip::slow(0.0, 3.0, 0.25), Dip::slow(3.0, 6.0, 0.5), Dip::slow(6.0, 9.0, 0.8)],
            callers: Callers::within(0.5),
            warm: 0.0,
            span: 14.0,
            ..Service::default()
        },
    ]
}

/// Services that are quick as long as a cache helps.
fn caches() -> Vec<Service> {
    vec![
        Service {
            name: "cache that starts empty",
            work: 0.02,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            cores: 8.0,
            flush: Some(Flush { at: 0.0, times: 3.0, refill: 500.0 }),
            callers: Callers::told(0.8),
            warm: 0.0,
            span: 12.0,
            ..Service::default()
        },
        Service {
            name: "flushed cache before callers who insist",
            work: 0.015,
            cores: 6.0,
            flush: Some(Flush { at: 7.0, times: 5.0, refill: 700.0 }),
            callers: Callers { retries: 2, pause: 0.2, ..Callers::within(0.5) },
            warm: 4.0,
            span: 12.0,
            seeds: 1,
            ..Service::default()
        },
        // One in twenty misses.
        Service {
            name: "two milliseconds from the cache, two hundred without",
            spread: Spread::Rare { one_in: 20.0, times: 100.0 },
            callers: Callers::within(1.0),
            warm: 4.0,
            span: 10.0,
            ..Service::pool(5, 0.0119)
        },
    ]
}

/// Services that wait for others.
fn callers_of_others() -> Vec<Service> {
    let drift = |at, times| Drift { at, times };
    vec![
        // From 0.2 to 0.6 s and back in four minutes. What the gateway itself can do stays the same.
        Service {
            name: "gateway whose backends get three times slower",
            work: 0.04,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            wait: 0.2,
            wait_spread: Spread::Exponential,
            cores: 2.0,
            drift: vec![drift(20.0, 1.0), drift(90.0, 3.0), drift(110.0, 3.0), drift(180.0, 1.0)],
            callers: Callers::within(4.0),
            warm: 20.0,
            span: 180.0,
            seeds: 1,
            ..Service::default()
        },
        // For half a minute its answers take eight times as long, but they come.
        Service {
            name: "backend that browns out for half a minute",
            work: 0.025,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            wait: 0.06,
            wait_spread: Spread::Even { least: 0.5, most: 1.5 },
            cores: 2.0,
            drift: vec![drift(25.0, 1.0), drift(26.0, 8.0), drift(55.0, 8.0), drift(56.0, 1.0)],
            callers: Callers::within(2.0),
            warm: 15.0,
            span: 60.0,
            seeds: 1,
            ..Service::default()
        },
        Service {
            name: "pool whose database browns out twice",
            spread: Spread::Even { least: 0.5, most: 1.5 },
            dips: vec![Dip::slow(30.0, 45.0, 0.25), Dip::slow(65.0, 75.0, 0.25)],
            callers: Callers::told(3.0),
            warm: 15.0,
            span: 75.0,
            seeds: 1,
            ..Service::pool(20, 0.3)
        },
        Service {
            name: "lookups over a network with a tail",
            work: 0.006,
            wait: 0.06,
            wait_spread: HEAVY,
            cores: 2.0,
            callers: Callers::within(1.5),
            warm: 4.0,
            span: 10.0,
            seeds: 2,
            ..Service::default()
        },
        // A payment partner is down for ten seconds, and says so at once.
        Service {
            name: "partner that refuses at once for a while",
            work: 0.015,
            troubles: vec![Trouble { from: 8.0, to: 18.0, share: 0.3, lasts: 0.003, fails: true }],
            callers: Callers::within(0.6),
            warm: 5.0,
            span: 17.0,
            seeds: 2,
            ..Service::default()
        },
    ]
}

/// Services a part of whose data is slow or gone.
fn shards() -> Vec<Service> {
    vec![
        // It answers, in 0.9 s instead of 15 ms, and a thread waits for it.
        Service {
            name: "one slow shard of sixteen",
            work: 0.015,
            blocks: true,
            slots: 48,
            troubles: vec![Trouble {
                from: 0.0,
                to: f64::INFINITY,
                share: 1.0 / 16.0,
                lasts: 0.9,
                fails: false,
            }],
            callers: Callers::within(2.0),
            warm: 5.0,
            span: 10.0,
            ..Service::default()
        },
        Service {
            name: "shard that hangs for fifteen seconds, deadlines told",
            work: 0.02,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            troubles: vec![Trouble { from: 10.0, to: 25.0, share: 0.05, lasts: 30.0, fails: false }],
            callers: Callers::told(0.5),
            warm: 6.0,
            span: 26.0,
            seeds: 2,
            ..Service::default()
        },
        Service {
            name: "shard that hangs and returns, no deadlines told",
            work: 0.02,
            troubles: vec![Trouble { from: 10.0, to: 20.0, share: 0.03, lasts: 3.0, fails: false }],
            callers: Callers::within(0.7),
            warm: 6.0,
            span: 22.0,
            seeds: 2,
            ..Service::default()
        },
    ]
}

/// Services with requests that are not alike, or not from the same callers.
fn mixed_work() -> Vec<Service> {
    let steady = |name| Class { steady: true, ..Class::of(name, 0.05, 1.0) };
    vec![
        Service {
            name: "search with a heavy tail of queries",
            work: 0.03,
            spread: HEAVY,
            cores: 12.0,
            callers: Callers::within(2.0),
            warm: 4.0,
            span: 10.0,
            seeds: 2,
            ..Service::default()
        },
        // An import costs a hundred clicks, and its caller has time.
        Service {
            name: "imports beside clicks",
            work: 0.002,
            slots: 16,
            classes: vec![
                Class::of("clicks", 40.0, 1.0),
                Class {
                    level: Criticality::Sheddable,
                    within: Some(10.0),
                    ..Class::of("imports", 1.0, 100.0)
                },
            ],
            callers: Callers::within(0.5),
            warm: 4.0,
            span: 10.0,
            seeds: 2,
            ..Service::default()
        },
        // People take two fifths of the capacity at any load.
        Service {
            name: "crawlers beside people",
            work: 0.015,
            classes: vec![
                Class { steady: true, ..Class::of("people", 0.4, 1.0) },
                Class { level: Criticality::Sheddable, ..Class::of("crawlers", 1.0, 2.0) },
            ],
            callers: Callers::within(0.7),
            warm: 4.0,
            span: 12.0,
            ..Service::default()
        },
        Service {
            name: "two large customers among eight small ones",
            classes: ["ash", "beech", "birch", "elm", "fir", "lime", "oak", "yew"]
                .into_iter()
                .map(steady)
                .chain([Class::of("large", 1.0, 1.0), Class::of("larger", 2.0, 2.0)])
                .collect(),
            tenants: true,
            callers: Callers::within(0.8),
            warm: 4.0,
            span: 12.0,
            ..Service::pool(16, 0.05)
        },
        // Whoever waits too long loads the page again, and the work for the first time goes on.
        Service {
            name: "people who reload a slow page",
            callers: Callers { retries: 2, pause: 0.1, ..Callers::within(1.0) },
            warm: 5.0,
            span: 11.0,
            seeds: 1,
            ..Service::pool(24, 0.08)
        },
        Service {
            name: "phones that come back again and again",
            spread: Spread::Even { least: 0.5, most: 1.5 },
            callers: Callers { retries: 4, pause: 1.0, ..Callers::told(0.6) },
            warm: 5.0,
            span: 12.0,
            seeds: 1,
            ..Service::pool(7, 0.035)
        },
    ]
}

/// Services whose capacity changes in steps.
fn machines_that_come_and_go() -> Vec<Service> {
    vec![
        // A half at a time. The new ones are slow for a while.
        Service {
            name: "deploy of half of the machines at a time",
            dips: vec![
                Dip::small(8.0, 14.0, 0.5),
                Dip::slow(14.0, 16.0, 0.8),
                Dip::small(18.0, 24.0, 0.5),
                Dip::slow(24.0, 26.0, 0.8),
            ],
            callers: Callers::within(0.6),
            warm: 5.0,
            span: 25.0,
            seeds: 2,
            ..Service::pool(16, 0.08)
        },
        Service {
            name: "machines that are added one by one",
            work: 0.05,
            cores: 12.0,
            dips: vec![
                Dip::small(0.0, 12.0, 0.25),
                Dip::small(12.0, 18.0, 0.5),
                Dip::small(18.0, 24.0, 0.75),
            ],
            callers: Callers::within(1.0),
            warm: 6.0,
            span: 24.0,
            seeds: 2,
            ..Service::default()
        },
        // Two of three zones are gone, one after the other, and come back together.
        Service {
            name: "zones that fail one after the other",
            work: 0.06,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            cores: 18.0,
            dips: vec![Dip::small(10.0, 16.0, 2.0 / 3.0), Dip::small(16.0, 22.0, 1.0 / 3.0)],
            callers: Callers::told(0.8),
            warm: 5.0,
            span: 23.0,
            seeds: 1,
            ..Service::default()
        },
    ]
}

/// Services whose callers come in crowds.
fn crowds() -> Vec<Service> {
    vec![
        // Eight times as many for five seconds of each minute.
        Service {
            name: "jobs that start at the full minute",
            shape: Shape::Bursts { every: 60.0, lasts: 5.0, times: 8.0 },
            callers: Callers::within(4.0),
            warm: 50.0,
            span: 120.0,
            seeds: 1,
            ..Service::pool(12, 0.3)
        },
        Service {
            name: "news that everybody opens",
            work: 0.016,
            wait: 0.02,
            wait_spread: Spread::Exponential,
            shape: Shape::Bursts { every: 15.0, lasts: 4.0, times: 5.0 },
            callers: Callers::within(0.7),
            warm: 8.0,
            span: 22.0,
            seeds: 2,
            ..Service::default()
        },
        Service {
            name: "page that asks for twenty parts at once",
            work: 0.02,
            cores: 8.0,
            clump: 20,
            callers: Callers::within(1.0),
            warm: 4.0,
            span: 9.0,
            ..Service::default()
        },
        Service {
            name: "nightly jobs that come in heaps of fifty",
            spread: Spread::Even { least: 0.5, most: 1.5 },
            clump: 50,
            callers: Callers::told(20.0),
            warm: 30.0,
            span: 150.0,
            ..Service::pool(24, 1.0)
        },
    ]
}

/// Services whose times are far from the usual ones.
fn very_long_or_short() -> Vec<Service> {
    vec![
        Service {
            name: "lookups of a hundred microseconds",
            cores: 2.0,
            work: 0.0001,
            callers: Callers::within(0.01),
            warm: 0.4,
            span: 0.5,
            seeds: 1,
            ..Service::default()
        },
        Service {
            name: "bids within thirty milliseconds",
            work: 0.004,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            wait: 0.004,
            cores: 8.0,
            callers: Callers::told(0.03),
            warm: 1.5,
            span: 2.5,
            seeds: 1,
            ..Service::default()
        },
        // 20 to 60 s on eight cores.
        Service {
            name: "videos that take up to a minute",
            work: 40.0,
            spread: Spread::Even { least: 0.5, most: 1.5 },
            cores: 8.0,
            callers: Callers::told(180.0),
            warm: 600.0,
            span: 3000.0,
            ..Service::default()
        },
        // Each answer makes the others of the batch a little slower.
        Service {
            name: "model that answers in batches of thirty-two",
            spread: Spread::Even { least: 0.25, most: 1.75 },
            drag: Drag::Contention { each: 0.001 },
            callers: Callers { patience: 60.0, ..Callers::within(30.0) },
            warm: 60.0,
            span: 300.0,
            ..Service::pool(32, 6.0)
        },
        Service {
            name: "reports with a heavy tail of seconds",
            spread: Spread::Pareto { power: 1.6, longest: 60.0 },
            callers: Callers::told(30.0),
            warm: 60.0,
            span: 400.0,
            ..Service::pool(12, 2.0)
        },
        // Some five hundred wait at any time.
        Service {
            name: "calls that stay open for five seconds",
            work: 0.01,
            wait: 5.0,
            wait_spread: Spread::Even { least: 0.2, most: 1.8 },
            cores: 1.0,
            callers: Callers::within(15.0),
            warm: 30.0,
            span: 60.0,
            seeds: 1,
            ..Service::default()
        },
    ]
}
