//! Measures the throughput of two threads together, each on a core of its own.
//!
//! Measured in wall time, because CPU time has no advantage here: waiting for a neighbour's cache line counts in both,
//! and with CPU time a thread whose neighbour was not running would look faster. The bursts are short, and a burst
//! counts only if both threads had their cores to themselves.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rustix::process::{setpriority_process, setsid};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};

use crate::measure::{Want, cpu_ns, wall};

/// The duration of a burst: long compared with the start of a thread, and short enough that other processes rarely
/// interrupt it.
const BURST: Duration = Duration::from_millis(40);

/// The share of its core that each thread must have had.
const CLEAN_SHARE: f64 = 0.95;

/// The number of undisturbed bursts wanted, and the most bursts to try.
const WANTED: usize = 3;
const ATTEMPTS: usize = 12;

/// Checks between two reads of the flag that ends a burst.
const CHUNK: u64 = 256;

/// The result of two threads.
pub(crate) struct Pair {
    /// The checks of both threads, in millions per second: the median of the undisturbed bursts, or of all if there was
    /// none.
    pub(crate) mops: f64,
    pub(crate) clean: bool,
}

/// Calls `worker` once for each of two threads, and runs the checks that it returns, in bursts.
pub(crate) fn pair<W: FnMut() -> bool>(want: Want, worker: impl Fn(usize) -> W + Sync) -> Result<Pair> {
    let (mut clean, mut unclean) = (Vec::new(), Vec::new());
    let _priority = Priority::raise();
    for _ in 0..ATTEMPTS {
        let (mops, share) = burst(want, &worker)?;
        if share >= CLEAN_SHARE {
            clean.push(mops)
        } else {
            unclean.push(mops)
        }
        if clean.len() == WANTED {
            break;
        }
    }
    let found = !clean.is_empty();
    let mut bursts = if found { clean } else { unclean };
    bursts.sort_by(f64::total_cmp);
    Ok(Pair { mops: bursts[bursts.len() / 2], clean: found })
}

/// Runs one burst. Returns millions of checks per second, and the smaller one of the threads' shares of their cores.
fn burst<W: FnMut() -> bool>(want: Want, worker: &(impl Fn(usize) -> W + Sync)) -> Result<(f64, f64)> {
    let (start, stop) = (Barrier::new(3), AtomicBool::new(false));
    let threads = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let (start, stop) = (&start, &stop);
            move || {
                settle_on(thread);
                let mut check = worker(thread);
                start.wait();
                run_until(stop, want, &mut check)
            }
        };
        let threads = [scope.spawn(run(0)), scope.spawn(run(1))];
        start.wait();
        pause(BURST);
        // Relaxed: no other memory depends on the flag.
        stop.store(true, Ordering::Relaxed);
        threads.map(|thread| thread.join().expect("a worker does not panic"))
    });
    let (mut mops, mut share) = (0.0, f64::INFINITY);
    for thread in threads {
        let (thread_mops, thread_share) = thread?;
        mops += thread_mops;
        share = thread_share.min(share);
    }
    Ok((mops, share))
}

/// Gives the process the highest priority while this lives, about half a second. Only root may raise it. Without root
/// the machine has to be quiet, which the threads' shares of their cores show, so a refusal is ignored.
///
/// Linux divides a core between sessions first, and then between the threads of a session. So a thread's niceness has
/// no effect against another session: the process starts a session of its own, and raises that session's priority too.
struct Priority;

impl Priority {
    const SESSION: &str = "/proc/self/autogroup";

    fn raise() -> Self {
        let _ = setsid();
        let _ = std::fs::write(Self::SESSION, "-20");
        Self
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::SESSION, "0");
    }
}

/// Binds the calling thread to a core and raises its priority.
fn settle_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
    let _ = setpriority_process(None, -20);
}

/// Checks until the flag is set; returns millions of checks per second and the thread's share of its core.
fn run_until(stop: &AtomicBool, want: Want, check: &mut impl FnMut() -> bool) -> Result<(f64, f64)> {
    let (wall, cpu) = (wall(), cpu_ns());
    let (mut checks, mut permitted) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..CHUNK {
            permitted += u64::from(black_box(check()));
        }
        checks += CHUNK;
    }
    let nanos = wall.elapsed().as_nanos() as f64;
    let share = (cpu_ns() - cpu) as f64 / nanos;
    want.verify(permitted, checks)?;
    Ok((checks as f64 * 1e3 / nanos, share))
}

#[allow(clippy::disallowed_methods, reason = "a bench waits for its threads")]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}

// The figures of one run, written as one line of JSON.

/// Named numbers, in nanoseconds unless the name gives another unit. Figures named `pair` are millions of checks per
/// second.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    found: BTreeMap<String, f64>,
    unclean: Vec<String>,
}

impl Figures {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.found.insert(name.into(), value);
    }

    /// Records the figures of two threads, and whether each had its core to itself.
    pub(crate) fn set_pair(&mut self, name: impl Into<String>, pair: &Pair) {
        let name = name.into();
        if !pair.clean {
            self.unclean.push(name.clone());
        }
        self.set(name, pair.mops);
    }

    /// Adds all figures of `part`, with `prefix` before their names.
    pub(crate) fn take(&mut self, prefix: &str, part: Self) {
        self.found.extend(part.found.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
        self.unclean.extend(part.unclean.into_iter().map(|name| format!("{prefix}{name}")));
    }

    pub(crate) fn line(&self, workload: &str, contender: &str) -> Value {
        json!({"workload": workload, "contender": contender, "figures": self.found, "unclean": self.unclean})
    }
}
