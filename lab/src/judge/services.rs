//! The services of the table, in sets.

use tidegate::priority::Criticality;

use super::service::{
    Callers, Class, CpuQuota, Dip, Drag, Flush, Neighbour, Pauses, Service, Shape, Spread, Trouble,
};
use super::unseen;

/// A set of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Half of the services that the law was chosen by. The hash of a name decides.
    A,
    /// The other half.
    B,
    /// Services by another hand, which no law was made with.
    C,
}

impl Set {
    /// Returns the half to which a name belongs: the highest bit of its hash by FNV-1a.
    pub(super) fn of(name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        if hash >> 63 == 0 { Self::A } else { Self::B }
    }
}

pub(super) fn of_set(set: Set) -> Vec<Service> {
    if set == Set::C {
        return unseen::all();
    }
    let mut services = all();
    services.retain(|service| Set::of(service.name) == set);
    services
}

/// Returns the services of both halves. Most can do some 300 requests a second, which is enough to learn from in seconds and little
/// to simulate.
pub(super) fn all() -> Vec<Service> {
    let mut all = pools();
    all.extend(machines());
    all.extend(disturbed());
    all.extend(called_oddly());
    all.extend(of_other_sizes());
    all
}

/// Pools of workers or connections.
fn pools() -> Vec<Service> {
    vec![
        Service {
            name: "pool of connections",
            longest_queue: 0.2,
            callers: Callers::within(0.5),
            ..Service::pool(16, 0.05)
        },
        Service {
            name: "pool with a short wait",
            spread: Spread::Fixed,
            longest_queue: 0.05,
            callers: Callers::told(0.25),
            ..Service::pool(6, 0.02)
        },
        // Most take 58 ms, one in fifty takes 1.2 s.
        Service {
            name: "pool with a long tail",
            spread: Spread::Rare { one_in: 50.0, times: 20.0 },
            callers: Callers::within(2.0),
            ..Service::pool(24, 0.08)
        },
        // Just enough time for one who does not wait.
        Service {
            name: "pool for callers in a hurry",
            spread: Spread::Fixed,
            callers: Callers::told(0.15),
            ..Service::pool(30, 0.1)
        },
        // The places at the start are a quarter of those that it needs.
        Service {
            name: "cold start",
            callers: Callers::within(0.8),
            warm: 0.0,
            span: 12.0,
            ..Service::pool(80, 0.25)
        },
        // The work of given-up requests keeps its connection.
        Service {
            name: "work that outlives its deadline",
            callers: Callers { frees: false, ..Callers::told(0.3) },
            ..Service::pool(12, 0.04)
        },
    ]
}

/// Machines whose requests share cores, memory or a lock.
fn machines() -> Vec<Service> {
    vec![
        // A loop of one thread: one request in two hundred blocks it for 100 ms, the others for 2.5 ms.
        Service {
            name: "loop that blocks now and then",
            work: 0.003,
            spread: Spread::Rare { one_in: 200.0, times: 40.0 },
            wait: 0.005,
            slots: 1,
            cores: 1.0,
            ..Service::default()
        },
        Service {
            name: "pauses of a collector",
            work: 0.0125,
            pauses: Some(Pauses { every: 150, least: 0.02, each_inside: 0.001 }),
            ..Service::default()
        },
        // Four cores use up the time of one, and then stand still for three quarters of each period.
        Service {
            name: "quota of processor time",
            work: 0.0032,
            wait: 0.01,
            quota: Some(CpuQuota { cpu: 0.1, period: 0.1 }),
            callers: Callers::within(0.3),
            ..Service::default()
        },
        Service {
            name: "memory that goes to disk",
            work: 0.025,
            cores: 8.0,
            drag: Drag::Swap { above: 60 },
            ..Service::default()
        },
        // Each one that waits for the lock costs its owner a fiftieth.
        Service {
            name: "one lock",
            work: 0.003,
            wait: 0.012,
            cores: 1.0,
            drag: Drag::Contention { each: 0.02 },
            callers: Callers::within(0.3),
            ..Service::default()
        },
        Service {
            name: "database with a cliff",
            work: 0.08,
            cores: 24.0,
            drag: Drag::Cliff { above: 40, speed: 0.35 },
            callers: Callers::within(0.6),
            ..Service::default()
        },
        Service {
            name: "much waiting and little work",
            work: 0.003,
            wait: 0.15,
            cores: 1.0,
            callers: Callers::within(0.5),
            ..Service::default()
        },
    ]
}

/// Services that something happens to.
fn disturbed() -> Vec<Service> {
    let always = Trouble { from: 0.0, to: f64::INFINITY, share: 0.1, lasts: 5.0, fails: false };
    vec![
        Service {
            name: "noisy neighbour",
            work: 0.012,
            neighbour: Some(Neighbour { takes: 0.5, away: 3.0, stays: 1.5 }),
            callers: Callers::within(0.4),
            ..Service::default()
        },
        Service {
            name: "greedy neighbour, deadlines told",
            neighbour: Some(Neighbour { takes: 0.7, away: 2.0, stays: 0.7 }),
            callers: Callers::told(0.8),
            ..Service::pool(30, 0.1)
        },
        Service {
            name: "hung shard, one in ten",
            work: 0.0125,
            spread: Spread::Fixed,
            troubles: vec![always],
            callers: Callers::within(1.0),
            ..Service::default()
        },
        Service {
            name: "hung shard, one in fifty, deadlines told",
            work: 0.0125,
            spread: Spread::Fixed,
            troubles: vec![Trouble { share: 0.02, ..always }],
            callers: Callers::told(1.0),
            ..Service::default()
        },
        Service {
            name: "errors that come fast and then slow",
            work: 0.0125,
            troubles: vec![
                Trouble { from: 5.0, to: 8.0, share: 0.4, lasts: 0.001, fails: true },
                Trouble { from: 8.0, to: 11.0, share: 0.4, lasts: 0.6, fails: true },
            ],
            callers: Callers::within(0.8),
            ..Service::default()
        },
        Service {
            name: "flush of a cache",
            work: 0.025,
            cores: 8.0,
            flush: Some(Flush { at: 5.0, times: 4.0, refill: 600.0 }),
            callers: Callers::within(0.6),
            span: 11.0,
            ..Service::default()
        },
        Service {
            name: "dependency that is slow for a while",
            dips: vec![Dip::slow(5.0, 8.0, 0.3)],
            callers: Callers::within(0.6),
            ..Service::pool(20, 0.06)
        },
        Service {
            name: "half of the machines gone",
            dips: vec![Dip::slow(5.0, f64::INFINITY, 0.5)],
            callers: Callers::told(0.5),
            ..Service::pool(20, 0.06)
        },
    ]
}

/// Services whose callers are not all alike, or do more than call and wait.
fn called_oddly() -> Vec<Service> {
    let level = |name, share, cost, level| Class { level, ..Class::of(name, share, cost) };
    let quiet = |name| Class { steady: true, ..Class::of(name, 0.06, 1.0) };
    vec![
        Service {
            name: "callers who try again",
            callers: Callers { retries: 2, pause: 0.05, ..Callers::within(0.3) },
            ..Service::pool(12, 0.04)
        },
        Service {
            name: "callers who hang up on work that goes on",
            callers: Callers { patience: 0.5, frees: false, ..Callers::within(1.0) },
            ..Service::pool(12, 0.04)
        },
        Service {
            name: "callers who hang up on work that ends",
            work: 0.0125,
            callers: Callers { patience: 0.5, ..Callers::within(1.0) },
            ..Service::default()
        },
        Service {
            name: "slow ramp and a crowd at its end",
            shape: Shape::Crowd,
            callers: Callers::within(0.4),
            warm: 2.0,
            span: 14.0,
            ..Service::pool(8, 0.025)
        },
        Service { name: "waves", work: 0.0125, shape: Shape::Waves { period: 2.0 }, ..Service::default() },
        // A quarter of the work is critical.
        Service {
            name: "costs and levels",
            classes: vec![
                level("orders", 3.0, 0.5, Criticality::Critical),
                level("pages", 1.0, 2.0, Criticality::SheddablePlus),
                level("reports", 0.5, 5.0, Criticality::Sheddable),
            ],
            callers: Callers::within(0.6),
            ..Service::default()
        },
        Service {
            name: "cheap and dear requests",
            work: 0.006,
            classes: vec![Class::of("cheap", 9.0, 1.0), Class::of("dear", 1.0, 15.0)],
            ..Service::default()
        },
        Service {
            name: "four levels",
            classes: vec![
                level("first", 1.0, 1.0, Criticality::CriticalPlus),
                level("second", 1.0, 1.0, Criticality::Critical),
                level("third", 1.0, 1.0, Criticality::SheddablePlus),
                level("fourth", 1.0, 1.0, Criticality::Sheddable),
            ],
            callers: Callers::within(0.4),
            ..Service::pool(12, 0.04)
        },
        Service {
            name: "flood of one tenant",
            classes: vec![
                quiet("anna"),
                quiet("ben"),
                quiet("carl"),
                quiet("dora"),
                quiet("emil"),
                quiet("fred"),
                Class::of("flood", 1.0, 1.0),
            ],
            tenants: true,
            callers: Callers::within(0.4),
            ..Service::pool(12, 0.04)
        },
    ]
}

/// Services that are much slower, faster, larger or smaller than the others.
fn of_other_sizes() -> Vec<Service> {
    vec![
        slow_work("work of half a minute"),
        Service {
            name: "work of fifty microseconds",
            callers: Callers::within(0.02),
            warm: 0.15,
            span: 0.25,
            seeds: 1,
            ..Service::pool(10, 0.000_05)
        },
        Service {
            name: "four hundred places",
            spread: Spread::Even { least: 0.5, most: 1.5 },
            callers: Callers::within(3.0),
            warm: 6.0,
            span: 10.0,
            ..Service::pool(400, 1.2)
        },
        Service {
            name: "one place",
            callers: Callers::within(0.3),
            warm: 10.0,
            span: 40.0,
            ..Service::pool(1, 0.02)
        },
    ]
}

/// Returns 64 slots for work of 10 to 50 s: two requests a second.
pub(super) fn slow_work(name: &'static str) -> Service {
    Service {
        name,
        spread: Spread::Even { least: 1.0 / 3.0, most: 5.0 / 3.0 },
        callers: Callers::within(90.0),
        warm: 240.0,
        span: 600.0,
        ..Service::pool(64, 30.0)
    }
}

/// Returns a service of a few milliseconds, far below its capacity at half of it, a part of which hangs for 5 s from a
/// time on. What comes two seconds later is counted.
pub(super) fn partly_hung(name: &'static str, one_in: f64, told: bool) -> Service {
    let hangs_from = 10.0;
    Service {
        name,
        spread: Spread::Fixed,
        troubles: vec![Trouble {
            from: hangs_from,
            to: f64::INFINITY,
            share: 1.0 / one_in,
            lasts: 5.0,
            fails: false,
        }],
        callers: if told { Callers::told(1.0) } else { Callers::within(1.0) },
        warm: hangs_from + 2.0,
        span: 15.0,
        ..Service::default()
    }
}

/// Returns quiet tenants, who ask for a twelfth of the capacity each, and one that asks for all the rest of the load.
pub(super) fn flooded(name: &'static str) -> Service {
    let quiet = |name| Class { steady: true, ..Class::of(name, 1.0 / 12.0, 1.0) };
    Service {
        name,
        classes: vec![
            quiet("north"),
            quiet("east"),
            quiet("south"),
            quiet("west"),
            Class::of("flood", 1.0, 1.0),
        ],
        tenants: true,
        span: 15.0,
        ..Service::pool(20, 0.05)
    }
}

/// Returns a machine a third of whose work is critical and cheap; the rest is dear and may be shed.
pub(super) fn priced(name: &'static str) -> Service {
    Service {
        name,
        classes: vec![
            Class::of("critical", 2.0, 1.0),
            Class { level: Criticality::Sheddable, ..Class::of("sheddable", 1.0, 4.0) },
        ],
        callers: Callers::within(0.8),
        span: 15.0,
        ..Service::default()
    }
}
