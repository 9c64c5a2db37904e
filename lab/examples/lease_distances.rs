//! Leases on a real Redis behind a slow wire, beside `central` on the same wire: how long a decision takes, how much of the
//! limit is used, by how much it is exceeded, and how many calls the engine gets.
//!
//! `cargo run --release -p tidegate-lab --example lease_distances` prints the table. `200,2000 40,80 4` limits it to these
//! rates and round trips in milliseconds, and runs four rows at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::{Clock, SystemClock};
use tidegate::store::{Charge, Executed, Execution, Leased, Op, Step, StepClock, Store};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::envelope::Envelope;
use tidegate_redis::{AfterLoss, RedisOptions, RedisStore};
use tidegate_testkit::{Fault, FaultyProxy, RedisServer};
use tokio::sync::Semaphore;

/// The length of a run in seconds.
const SECONDS: u64 = 20;

#[derive(Clone, Copy)]
struct Wire {
    round_trip_ms: u64,
    rate: u64,
    burst: u64,
    nodes: usize,
    /// The demand of all nodes, in tenths of the rate.
    tenths: u64,
}

/// The requests of a run: when each was answered and whether it was admitted, and how long it took in microseconds.
type Told = Arc<Mutex<Vec<(Tick, bool, u64)>>>;

struct Seen {
    p50: f64,
    p99: f64,
    used: f64,
    excess: u64,
    calls: f64,
}

fn main() {
    let numbers = |at: usize, usual: &[u64]| -> Vec<u64> {
        let given = std::env::args().nth(at);
        given.map_or(usual.to_vec(), |all| all.split(',').map(|one| one.parse().expect("a number")).collect())
    };
    let (rates, round_trips) = (numbers(1, &[50, 200, 2_000, 20_000]), numbers(2, &[10, 40, 80, 150]));
    let Some(redis) = RedisServer::start(&[]) else { return };
    let at_once = numbers(3, &[1])[0] as usize;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!(
        "round trip\trate\tburst\tnodes\tdemand\tp50\tp99\tused\texcess\tcalls\tcentral p50\tp99\tused\texcess"
    );
    let mut wires = Vec::new();
    for round_trip_ms in round_trips {
        for rate in &rates {
            let within = rate * round_trip_ms / 1000;
            let mut bursts = vec![(2 * within).max(10), (5 * within).max(20), *rate];
            bursts.sort_unstable();
            bursts.dedup();
            let row = |(burst, nodes, tenths)| Wire { round_trip_ms, rate: *rate, burst, nodes, tenths };
            wires.extend(each(&bursts).into_iter().map(row));
        }
    }
    let (address, free) = (redis.addr(), Arc::new(Semaphore::new(at_once)));
    runtime.block_on(async {
        let start = |(number, wire): (usize, Wire)| {
            let free = Arc::clone(&free);
            tokio::spawn(async move {
                let _running = free.acquire().await;
                wire.row(address, number).await
            })
        };
        let rows: Vec<_> = wires.into_iter().enumerate().map(start).collect();
        for row in rows {
            println!("{}", row.await.expect("a row runs to its end"));
        }
    });
}

fn each(bursts: &[u64]) -> Vec<(u64, usize, u64)> {
    let nodes = |burst: u64| [1, 4].map(|nodes| (burst, nodes));
    let pairs = bursts.iter().flat_map(|burst| nodes(*burst));
    pairs.flat_map(|(burst, nodes)| [9, 20].map(|tenths| (burst, nodes, tenths))).collect()
}

impl Wire {
    /// Runs with leases, and then with the engine deciding each request.
    async fn row(self, redis: SocketAddr, number: usize) -> String {
        let proxy = FaultyProxy::before(redis).expect("a port is free");
        let leased = self.run(&proxy, format!("leased {number}").into_bytes(), true).await;
        proxy.set(Fault::None);
        let central = self.run(&proxy, format!("central {number}").into_bytes(), false).await;
        let Self { round_trip_ms, rate, burst, nodes, tenths } = self;
        format!(
            "{round_trip_ms} ms\t{rate}/s\t{burst}\t{nodes}\t{:.1}\t{:.1} ms\t{:.1} ms\t{:.1} %\t{}\t{:.1}\t{:.1} ms\t{:.1} ms\t{:.1} %\t{}",
            tenths as f64 / 10.0,
            leased.p50,
            leased.p99,
            leased.used,
            leased.excess,
            leased.calls,
            central.p50,
            central.p99,
            central.used,
            central.excess,
        )
    }

    async fn run(self, proxy: &FaultyProxy, key: Vec<u8>, leases: bool) -> Seen {
        let quota = Arc::new(Quota::per_second(self.rate).burst(self.burst).gcra().expect("in range"));
        let (clock, told, mut nodes) = (SystemClock::new(), Told::default(), Vec::new());
        for _ in 0..self.nodes {
            let options = RedisOptions::single(&format!("redis://{}", proxy.addr())).expect("a URL");
            let options = options.after_loss(AfterLoss::Full);
            nodes.push(RedisStore::connect(options).await.expect("Redis is there"));
        }
        proxy.set(Fault::Delay(Duration::from_micros(self.round_trip_ms * 500)));
        let demand = self.rate * self.tenths / 10;
        let mut running = Vec::new();
        for (number, engine) in nodes.into_iter().enumerate() {
            let (quota, key, told, clock) = (Arc::clone(&quota), key.clone(), Arc::clone(&told), clock);
            let each = self.nodes as u64;
            running.push(tokio::spawn(async move {
                match leases {
                    true => {
                        let runtime = tokio::runtime::Handle::current();
                        let leased = Leased::around(engine, clock).nodes(each);
                        let leased = leased.background(move |later| drop(runtime.spawn(later))).build();
                        let (ticking, time) = (leased.clone(), clock);
                        let ticks = tokio::spawn(async move {
                            loop {
                                tokio::time::sleep(Duration::from_millis(250)).await;
                                if let Some(back) = ticking.tick(time.now()) {
                                    back.await;
                                }
                            }
                        });
                        load(leased.clone(), &clock, &quota, &key, &told, (number as u64, each, demand))
                            .await;
                        ticks.abort();
                        leased.health().messages
                    }
                    false => {
                        load(engine, &clock, &quota, &key, &told, (number as u64, each, demand)).await;
                        0
                    }
                }
            }));
        }
        let mut calls = 0;
        for node in running {
            calls += node.await.expect("a node runs to its end");
        }
        let mut told = std::mem::take(&mut *told.lock());
        told.sort_unstable();
        let mut judge = Envelope::of(&quota).expect("a rate and a burst");
        told.iter().for_each(|(at, allowed, _)| judge.ask(*at, 1, *allowed));
        let mut took: Vec<u64> = told.iter().map(|(.., took)| *took).collect();
        took.sort_unstable();
        let part = |percent: usize| took[took.len() * percent / 100] as f64 / 1000.0;
        Seen {
            p50: part(50),
            p99: part(99),
            used: judge.utilisation().per_mille() as f64 / 10.0,
            excess: judge.excess(),
            calls: calls as f64 * 100.0 / took.len() as f64,
        }
    }
}

/// Asks at an even pace; `(number, nodes, demand)` say which requests are this node's.
async fn load(
    store: impl Store + Clone + 'static,
    clock: &SystemClock,
    quota: &Arc<Quota>,
    key: &[u8],
    told: &Told,
    (number, nodes, demand): (u64, u64, u64),
) {
    let (start, mut next, mut open) = (clock.now(), number, Vec::new());
    while next < demand * SECONDS {
        let now = clock.now();
        let due = start.after(Duration::from_nanos(next * 1_000_000_000 / demand));
        if due > now {
            tokio::time::sleep(due.since(now).min(Duration::from_millis(1))).await;
            continue;
        }
        next += nodes;
        let charges = [Charge::new(key, quota, Cost::ONE)];
        let step = Step { receipts: false, clock: StepClock::Engine, ..Step::new(now, Op::Take, &charges) };
        let mut out = Executed::default();
        let (clock, told) = (*clock, Arc::clone(told));
        let tell = move |allowed: bool| {
            let at = clock.now();
            let took = u64::try_from(at.since(now).as_micros()).unwrap_or(u64::MAX);
            told.lock().push((at, allowed, took));
        };
        match store.execute_into(&step, &mut out) {
            Execution::Done(done) => tell(done.is_ok() && out.allowed),
            Execution::Later(later) => {
                open.push(tokio::spawn(async move { tell(later.await.is_ok_and(|done| done.allowed)) }));
            }
        }
    }
    for request in open {
        let _ = request.await;
    }
}
