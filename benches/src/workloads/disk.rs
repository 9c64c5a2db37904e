//! What it costs to keep counters on disk: the store that does, beside the one in memory that it decides in.
//!
//! Wall time and not CPU time, over seconds: the thread that writes takes its part of the machine, and its pauses count. So the machine has
//! to be quiet. Two threads have both cores of a machine of two, and the thread that writes takes its part from them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tidegate::store::{Charge, Durable, MemoryStore, Op, Settled, Settling, Step, Store, StoreError};
use tidegate::{Clock, Cost, Quota, SystemClock};
use tidegate_disk::{DiskOptions, DiskStore};

use crate::figures::Figures;
use crate::measure::wall;
use crate::pair::pause;

/// Keys in use, in a table for as many.
const KEYS: u64 = 1_000_000;

/// How long one measurement takes: ten writes and more.
const SPAN: Duration = Duration::from_secs(3);

/// Threads that ask strictly and wait.
const STRICT: usize = 64;

/// Checks between two looks at the flag that ends a measurement.
const CHUNK: u64 = 256;

pub(crate) fn run(contender: &str, figures: &mut Figures) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = match contender {
        "memory" => checks(&MemoryStore::with_capacity(KEYS as usize)?, figures),
        "disk" => disk(&folder, figures),
        _ => Err(anyhow::anyhow!("there is no `{contender}` here, but memory, disk")),
    };
    std::fs::remove_dir_all(&folder)?;
    outcome
}

fn disk(folder: &std::path::Path, figures: &mut Figures) -> Result<()> {
    let options = || DiskOptions::new(folder).keys(KEYS as usize);
    let store = DiskStore::open(options())?;
    checks(&store, figures)?;
    // Each key once, so that all of them matter.
    for key in 0..KEYS {
        settle(&store, &key.to_le_bytes(), &lasting()?)?;
    }
    let (before, written) = (store.health(), written_bytes()?);
    let (start, spent) = (wall(), AtomicU64::new(0));
    run_threads(&store, 1, &lasting()?, &spent)?;
    let seconds = start.elapsed().as_secs_f64();
    store.flush()?;
    figures.set("written MB/s", (written_bytes()? - written) as f64 / seconds / 1e6);
    figures.set("pieces MB/s", (store.health().bytes - before.bytes) as f64 / seconds / 1e6);
    figures.set("last write ms", store.health().last_write.as_secs_f64() * 1e3);
    figures.set("strict", strict(&store)?);
    store.close()?;
    figures.set("file MB", std::fs::metadata(store.path())?.len() as f64 / 1e6);
    let start = wall();
    let store = DiskStore::open(options())?;
    figures.set("open ms", start.elapsed().as_secs_f64() * 1e3);
    ensure!(store.opened().keys as u64 > KEYS * 99 / 100, "{:?}", store.opened());
    figures.set("read MB", store.opened().bytes as f64 / 1e6);
    Ok(())
}

/// A limit that is full again within a microsecond, and one that stays spent all day: neither refuses.
fn passing() -> Result<Arc<Quota>> {
    Ok(Arc::new(Quota::per_second(1_000_000_000).burst(1_000_000_000).gcra()?))
}

fn lasting() -> Result<Arc<Quota>> {
    Ok(Arc::new(Quota::per_day(1_000_000_000).gcra()?))
}

fn checks(store: &impl Store, figures: &mut Figures) -> Result<()> {
    for (name, quota) in [("passing", passing()?), ("lasting", lasting()?)] {
        for threads in [1, 2] {
            let spent = AtomicU64::new(0);
            run_threads(store, threads, &quota, &spent)?;
            figures.set(format!("{name} {threads}"), spent.into_inner() as f64 / SPAN.as_secs_f64() / 1e6);
        }
    }
    Ok(())
}

/// Checks random keys on some threads for a while, and counts the checks.
fn run_threads(store: &impl Store, threads: u64, quota: &Arc<Quota>, spent: &AtomicU64) -> Result<()> {
    let (stop, clock) = (AtomicBool::new(false), SystemClock::new());
    std::thread::scope(|scope| {
        let run = |thread: u64| {
            let (stop, clock) = (&stop, clock);
            move || -> Result<()> {
                let mut random = thread.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let (mut settled, mut checks) = (Settled::default(), 0);
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..CHUNK {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let key = (random % KEYS).to_le_bytes();
                        let charges = [Charge::new(&key, quota, Cost::ONE)];
                        let step = Step { receipts: false, ..Step::new(clock.recent(), Op::Take, &charges) };
                        let Settling::Done(done) = store.settle_into(&step, &mut settled) else {
                            anyhow::bail!("it answers later")
                        };
                        done?;
                        ensure!(black_box(settled.allowed), "refused");
                    }
                    checks += CHUNK;
                }
                spent.fetch_add(checks, Ordering::Relaxed);
                Ok(())
            }
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        pause(SPAN);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })
}

fn settle(store: &impl Store, key: &[u8], quota: &Arc<Quota>) -> Result<Settled, StoreError> {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    store.blocking_settle(&Step::new(SystemClock::new().now(), Op::Take, &charges))
}

/// Returns how many strict checks a second are answered, of threads that wait for each.
fn strict(store: &DiskStore) -> Result<f64> {
    let (stop, spent, quota) = (AtomicBool::new(false), AtomicU64::new(0), lasting()?);
    std::thread::scope(|scope| {
        for thread in 0..STRICT {
            let (stop, spent, quota) = (&stop, &spent, &quota);
            scope.spawn(move || {
                let key = thread.to_le_bytes();
                let charges = [Charge { durable: Durable::Strict, ..Charge::new(&key, quota, Cost::ONE) }];
                while !stop.load(Ordering::Relaxed) {
                    let step = Step::new(SystemClock::new().now(), Op::Take, &charges);
                    spent.fetch_add(u64::from(store.blocking_settle(&step).is_ok()), Ordering::Relaxed);
                }
            });
        }
        pause(SPAN);
        stop.store(true, Ordering::Relaxed);
    });
    Ok(spent.into_inner() as f64 / SPAN.as_secs_f64())
}

/// Returns how many bytes this process has had written to disk so far, as the system counts them.
fn written_bytes() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("the system does not say how much was written")?.parse()?)
}
