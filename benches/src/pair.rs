//! What two threads get done together, each on a core of its own.
//!
//! CPU time would not show a thread that waits for its neighbour's cache line any better than wall time, and would show a
//! neighbour that was not running as a gain. So this is wall time, of short bursts, and a burst counts only when both threads
//! had their cores to themselves.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rustix::process::{setpriority_process, setsid};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::measure::{Want, cpu_ns, wall};

/// How long a burst lasts: long compared with the start of a thread, and short enough that no neighbour interrupts it as a rule.
const BURST: Duration = Duration::from_millis(40);

/// The share of its core that each thread must have had.
const CLEAN_SHARE: f64 = 0.95;

/// How many clean bursts to collect, and how many bursts to try for them.
const WANTED: usize = 3;
const ATTEMPTS: usize = 12;

/// Checks between two looks at the flag that ends a burst.
const CHUNK: u64 = 256;

/// What two threads did.
pub(crate) struct Pair {
    /// Checks of both threads, in millions per second: the median of the clean bursts, or of all when none was clean.
    pub(crate) mops: f64,
    pub(crate) clean: bool,
}

/// Runs what `worker` makes, once for each of two threads, in bursts.
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

/// Runs one burst. Returns millions of checks per second, and the smaller of the shares that the threads had of their cores.
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
        // Relaxed: the flag publishes nothing but itself.
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

/// While this lives, some half a second, the process has the highest priority. Only root may raise it: anybody else has to find a quiet
/// machine, which the share of the core then shows, so a refusal is no error.
///
/// Linux divides a core between sessions first, and between the threads of a session after that. So the niceness of a thread has no effect
/// against another session: the process starts a session of its own, and raises that session's priority too.
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

/// Binds the calling thread to a core and asks for all of it.
fn settle_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
    let _ = setpriority_process(None, -20);
}

/// Checks until the flag is up; returns millions of checks per second and the share of the core.
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
