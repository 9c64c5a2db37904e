//! Measures the cost of keeping counters on disk: the store on disk, compared with the one in memory in which it
//! decides.
//!
//! A check is measured by the CPU time of the checking threads, which a neighbour that takes a core does not affect.
//! The cost of the writer thread is a figure of its own: the rest of the process's CPU time, per wall time.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::{Clock, SystemClock};
use tidegate::store::{
    Charge, ChargeRules, Durable, Executed, Execution, MemoryStore, Op, Step, Store, StoreError,
};
use tidegate::{Cost, Quota};
use tidegate_disk::{DiskOptions, DiskStore};

use crate::measure::{cpu_ns, wall};
use crate::pair::{Figures, pause};

/// Keys in use, in a table for as many.
const KEYS: u64 = 1_000_000;

/// The duration of one measurement: at least ten writes.
const SPAN: Duration = Duration::from_secs(3);

/// Threads that make strict checks and wait for each.
const STRICT: usize = 64;

/// Checks between two reads of the flag that ends a measurement.
const CHUNK: u64 = 256;

pub(crate) fn run(contender: &str, figures: &mut Figures) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = match contender {
        "memory" => {
            let make = || MemoryStore::with_capacity(KEYS as usize);
            checks(&make()?, figures, "passing", &passing()?)?;
            checks(&make()?, figures, "lasting", &lasting()?)
        }
        "disk" => disk(&folder, figures),
        _ => Err(anyhow::anyhow!("there is no `{contender}` here, but memory, disk")),
    };
    std::fs::remove_dir_all(&folder)?;
    outcome
}

fn disk(folder: &std::path::Path, figures: &mut Figures) -> Result<()> {
    let options = || DiskOptions::new(folder).keys(KEYS as usize);
    let store = DiskStore::open(options())?;
    checks(&store, figures, "passing", &passing()?)?;
    store.close()?;
    std::fs::remove_file(store.path())?;
    let store = DiskStore::open(options())?;
    checks(&store, figures, "lasting", &lasting()?)?;
    let (before, written) = (store.health(), written_bytes()?);
    let (start, process) = (wall(), process_ns());
    let ran = run_threads(&store, 1, &lasting()?)?;
    let writer = (process_ns() - process).saturating_sub(ran.cpu_ns);
    store.flush()?;
    let seconds = start.elapsed().as_secs_f64();
    figures.set("checks M/s", ran.checks as f64 / seconds / 1e6);
    figures.set("writer core %", writer as f64 / seconds / 1e7);
    figures.set("written MB/s", (written_bytes()? - written) as f64 / seconds / 1e6);
    figures.set("pieces MB/s", (store.health().bytes - before.bytes) as f64 / seconds / 1e6);
    figures.set("last write ms", store.health().last_write.as_secs_f64() * 1e3);
    figures.set("strict", strict(&store)?);
    store.close()?;
    figures.set("file MB", std::fs::metadata(store.path())?.len() as f64 / 1e6);
    let (start, cpu) = (wall(), cpu_ns());
    let store = DiskStore::open(options())?;
    figures.set("open ms", start.elapsed().as_secs_f64() * 1e3);
    figures.set("open cpu ms", (cpu_ns() - cpu) as f64 / 1e6);
    ensure!(store.opened().keys as u64 > KEYS * 99 / 100, "{:?}", store.opened());
    figures.set("read MB", store.opened().bytes as f64 / 1e6);
    Ok(())
}

/// A limit that is full again within a microsecond, and one that stays spent all day; neither refuses.
fn passing() -> Result<Arc<Quota>> {
    Ok(Arc::new(Quota::per_second(1_000_000_000).burst(1_000_000_000).gcra()?))
}

fn lasting() -> Result<Arc<Quota>> {
    Ok(Arc::new(Quota::per_day(1000).gcra()?))
}

fn checks(store: &impl Store, figures: &mut Figures, name: &str, quota: &Arc<Quota>) -> Result<()> {
    // Each key once, because a new key takes longer.
    for key in 0..KEYS {
        execute(store, &key.to_le_bytes(), quota)?;
    }
    for threads in [1, 2] {
        let ran = run_threads(store, threads, quota)?;
        figures.set(format!("{name} {threads}"), ran.cpu_ns as f64 / ran.checks as f64);
    }
    Ok(())
}

/// The number of checks of some threads, and their CPU time.
#[derive(Debug, Default)]
struct Ran {
    checks: u64,
    cpu_ns: u64,
}

/// Returns the CPU time of the process so far.
fn process_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Checks random keys on several threads for a while.
fn run_threads(store: &impl Store, threads: u64, quota: &Arc<Quota>) -> Result<Ran> {
    let (stop, clock) = (AtomicBool::new(false), SystemClock::new());
    std::thread::scope(|scope| {
        let run = |thread: u64| {
            let (stop, clock) = (&stop, clock);
            move || -> Result<Ran> {
                let start = cpu_ns();
                let mut random = thread.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let (mut executed, mut checks) = (Executed::default(), 0);
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..CHUNK {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let key = (random % KEYS).to_le_bytes();
                        let charges = [Charge::new(&key, quota, Cost::ONE)];
                        let step = Step { receipts: false, ..Step::new(clock.recent(), Op::Take, &charges) };
                        let Execution::Done(done) = store.execute_into(&step, &mut executed) else {
                            anyhow::bail!("it answers later")
                        };
                        done?;
                        ensure!(black_box(executed.allowed), "refused");
                    }
                    checks += CHUNK;
                }
                Ok(Ran { checks, cpu_ns: cpu_ns() - start })
            }
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        pause(SPAN);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_fold(Ran::default(), |all, thread| {
            let ran = thread.join().expect("a worker does not panic")?;
            Ok(Ran { checks: all.checks + ran.checks, cpu_ns: all.cpu_ns + ran.cpu_ns })
        })
    })
}

fn execute(store: &impl Store, key: &[u8], quota: &Arc<Quota>) -> Result<Executed, StoreError> {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    store.blocking_execute(&Step::new(SystemClock::new().now(), Op::Take, &charges))
}

/// Returns how many strict checks are answered per second, with threads that wait for each.
fn strict(store: &DiskStore) -> Result<f64> {
    let (stop, spent, quota) = (AtomicBool::new(false), AtomicU64::new(0), passing()?);
    std::thread::scope(|scope| {
        for thread in 0..STRICT {
            let (stop, spent, quota) = (&stop, &spent, &quota);
            scope.spawn(move || {
                let key = thread.to_le_bytes();
                let rules = ChargeRules { durable: Durable::Strict, ..ChargeRules::new(0) };
                let charges = [Charge { rules, ..Charge::new(&key, quota, Cost::ONE) }];
                while !stop.load(Ordering::Relaxed) {
                    let step = Step::new(SystemClock::new().now(), Op::Take, &charges);
                    spent.fetch_add(u64::from(store.blocking_execute(&step).is_ok()), Ordering::Relaxed);
                }
            });
        }
        pause(SPAN);
        stop.store(true, Ordering::Relaxed);
    });
    Ok(spent.into_inner() as f64 / SPAN.as_secs_f64())
}

/// Returns the bytes that this process has written to disk so far, as the system counts them.
fn written_bytes() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("the system does not say how much was written")?.parse()?)
}
