//! Measures the cost of a decision in an engine: decisions per second, and the duration of one. For the page of each
//! engine; nothing is asserted.
//!
//! `crates/tidegate-zookeeper/tests/cost.rs` is compiled with this file too.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock as _, SystemClock};
use tidegate::store::{Charge, Executed, Execution, Op, Step, Store, StoreError};
use tidegate::{Cost, Quota, Tick};
use tokio::runtime::Runtime;

/// The duration of each measurement.
const SPAN: Duration = Duration::from_secs(3);

/// Prints a row for each number of contenders and of keys.
pub(crate) fn table(runtime: &Runtime, store: impl Store + 'static) {
    let store: Arc<dyn Store> = Arc::new(store);
    println!("| contenders | keys | decisions/s | p50 ms | p99 ms | given up/s |");
    println!("|---|---|---|---|---|---|");
    for (contenders, keys) in [(1, 1), (16, 1), (1, 1000), (64, 1000)] {
        let (mut took, given_up) = runtime.block_on(measure(&store, contenders, keys));
        took.sort_unstable();
        let at =
            |part: usize| took.get(took.len() * part / 100).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3);
        let each = |count: usize| count as f64 / SPAN.as_secs_f64();
        println!(
            "| {contenders} | {keys} | {:.0} | {:.1} | {:.1} | {:.0} |",
            each(took.len()),
            at(50),
            at(99),
            each(given_up)
        );
    }
}

/// Prints a row for batches of 16 steps ([`Store::execute_each`]) per number of keys, and the same steps one after the
/// other.
pub(crate) fn batches(runtime: &Runtime, store: &impl Store) {
    let clock = SystemClock::new();
    println!("| 16 steps over | one after the other | `execute_each` |");
    println!("|---|---|---|");
    for keys in [1, 16] {
        let mut p50 = [Duration::ZERO; 2];
        for (together, p50) in [false, true].into_iter().zip(&mut p50) {
            let (mut took, begun) = (Vec::new(), clock.now());
            while clock.now().since(begun) < SPAN {
                let now = clock.now();
                runtime.block_on(execute_16(store, keys, now, together));
                took.push(clock.now().since(now));
            }
            took.sort_unstable();
            *p50 = took[took.len() / 2];
        }
        let [alone, together] = p50.map(|p50| p50.as_secs_f64() * 1e3);
        println!("| {keys} | {alone:.1} ms | {together:.1} ms |");
    }
}

async fn execute_16(store: &impl Store, keys: u8, now: Tick, together: bool) {
    let quota = Arc::new(Quota::per_second(1_000_000_000).burst(1_000_000).gcra().unwrap());
    let names: Vec<[u8; 2]> = (0..16).map(|step| [b'b', step % keys]).collect();
    let charges: Vec<_> = names.iter().map(|name| [Charge::new(name, &quota, Cost::ONE)]).collect();
    let steps: Vec<_> = charges.iter().map(|charges| Step::new(now, Op::Take, charges)).collect();
    if together {
        let later = store.execute_each(&steps, &mut Vec::new()).expect("an engine answers later");
        assert!(later.await.iter().all(|answer| answer.as_ref().is_ok_and(|executed| executed.allowed)));
        return;
    }
    for step in &steps {
        let later = store.execute_into(step, &mut Executed::default());
        let Execution::Later(later) = later else { panic!("an engine answers later") };
        assert!(later.await.unwrap().allowed);
    }
}

async fn measure(store: &Arc<dyn Store>, contenders: u32, keys: u32) -> (Vec<Duration>, usize) {
    let quota = Arc::new(Quota::per_second(1_000_000_000).burst(1_000_000).gcra().unwrap());
    let clock = SystemClock::new();
    let begun = clock.now();
    let tasks: Vec<_> = (0..contenders)
        .map(|contender| {
            let (store, quota, clock) = (Arc::clone(store), Arc::clone(&quota), clock);
            tokio::spawn(async move {
                let (mut took, mut given_up, mut turn) = (Vec::new(), 0, contender);
                while clock.now().since(begun) < SPAN {
                    // Each contender visits the keys in an order of its own.
                    turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let key = ((turn >> 8) % keys).to_be_bytes();
                    let now = clock.now();
                    let later = {
                        let charges = [Charge::new(&key, &quota, Cost::ONE)];
                        store.execute_into(&Step::new(now, Op::Take, &charges), &mut Executed::default())
                    };
                    let Execution::Later(later) = later else { panic!("an engine answers later") };
                    match later.await {
                        Ok(executed) => {
                            assert!(executed.allowed);
                            took.push(clock.now().since(now));
                        }
                        Err(StoreError::Contended { .. }) => given_up += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                (took, given_up)
            })
        })
        .collect();
    let (mut all, mut given_up) = (Vec::new(), 0);
    for task in tasks {
        let (took, gave_up) = task.await.unwrap();
        all.extend(took);
        given_up += gave_up;
    }
    (all, given_up)
}
