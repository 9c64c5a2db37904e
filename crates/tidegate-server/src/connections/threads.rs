//! Runs the connections of all doors on one thread per core, each with its own runtime.
//!
//! A connection stays on its thread. One runtime over all threads would make a gRPC call half as expensive again:
//! tasks would change cores, and wake each other's threads.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use super::places::RESERVE;

/// The most tasks that wait for one thread. Beyond that, [`Threads::run`] waits.
const WAITING: usize = 256;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads of a server. Dropping this ends them with their tasks.
#[derive(Debug)]
pub(crate) struct Threads {
    threads: Vec<Sender<Task>>,
    turn: AtomicUsize,
}

impl Threads {
    /// Starts a thread for each core that this process may use.
    ///
    /// # Errors
    /// The system's, if a thread cannot be started.
    pub(crate) async fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut threads = Vec::with_capacity(cores);
        for number in 0..cores {
            threads.push(one(number).await?);
        }
        Ok(Self { threads, turn: AtomicUsize::new(0) })
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Runs a task on the thread whose turn it is, once fewer than [`WAITING`] tasks wait for it.
    ///
    /// # Cancel safety
    /// If dropped before it ends, the task is dropped too.
    pub(super) async fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Relaxed: any order spreads the tasks.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        // A thread ends, and drops what it did not take, only when `self` is dropped.
        let _ = self.threads[turn % self.threads.len()].send(Box::pin(task)).await;
    }
}

async fn one(number: usize) -> io::Result<Sender<Task>> {
    let (sender, tasks) = channel(WAITING);
    let (tell, told) = oneshot::channel();
    // Made on its own thread: if that does not start, the runtime would be dropped here, inside another one.
    let thread = move || match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let _ = tell.send(Ok(()));
            runtime.block_on(run(tasks));
        }
        Err(error) => drop(tell.send(Err(error))),
    };
    thread::Builder::new().name(format!("tidegate-door-{number}")).spawn(thread)?;
    told.await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map(|()| sender)
}

async fn run(mut tasks: Receiver<Task>) {
    while let Some(task) = tasks.recv().await {
        tokio::spawn(task);
    }
}

// How many connections the system lets this process hold.
//
// Many systems give a process 1,024 descriptors, and let it raise that to a far higher hard limit. The low one
// protects programs that use `select`, which this one does not.

/// Descriptors for all but connections: listeners, files, the log, the runtime's own.
const OTHERS: usize = 64;

/// Descriptors of each thread's runtime.
const PER_THREAD: usize = 4;

/// Returns how many of the `wanted` connections each door may have under the limit of descriptors, at least 1. Raises
/// the soft limit if that helps.
pub(crate) fn fitting(wanted: usize, doors: usize, threads: usize) -> usize {
    let (wanted, doors, others) = (wanted.max(1), doors.max(1), OTHERS + threads * PER_THREAD);
    let needed = wanted.saturating_add(RESERVE).saturating_mul(doors).saturating_add(others);
    match limit(needed) {
        Some(limit) if limit < needed => {
            let fitting = under(limit, doors, others);
            tracing::warn!(
                descriptors = limit,
                doors,
                "{wanted} connections were asked for at each door and {fitting} fit the limit of open files; raise it to {needed} \
                 (ulimit -n, LimitNOFILE)"
            );
            fitting
        }
        _ => wanted,
    }
}

/// Returns the connections of each door beside its reserve under a limit, at least 1.
fn under(limit: usize, doors: usize, others: usize) -> usize {
    (limit.saturating_sub(others) / doors).saturating_sub(RESERVE).max(1)
}

/// Raises the soft limit towards `needed`. Returns the limit that then applies, if the system has one.
#[cfg(unix)]
fn limit(needed: usize) -> Option<usize> {
    use rustix::process::{Resource::Nofile, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Nofile);
    let (soft, needed) = (current.unwrap_or(u64::MAX), needed as u64);
    let raised = maximum.map_or(needed, |hard| needed.min(hard));
    let is_raised = raised > soft && setrlimit(Nofile, Rlimit { current: Some(raised), maximum }).is_ok();
    Some(usize::try_from(if is_raised { raised } else { soft }).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn limit(_: usize) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn tasks_run_on_threads_of_their_own_and_end_with_them() {
        let threads = Threads::start().await.unwrap();
        let (tell, told) = oneshot::channel();
        threads.run(async move { drop(tell.send(thread::current().name().map(str::to_owned))) }).await;
        assert!(told.await.unwrap().unwrap().starts_with("tidegate-door-"));
        let (held, dropped) = oneshot::channel::<()>();
        let waits = async move {
            pending::<()>().await;
            drop(held);
        };
        threads.run(waits).await;
        drop(threads);
        assert!(dropped.await.is_err());
    }

    #[test]
    fn what_fits_is_never_more_than_asked_for_and_never_nothing() {
        assert_eq!(fitting(0, 1, 1), 1);
        assert_eq!(fitting(10, 2, 1), 10);
        assert!(fitting(usize::MAX, 2, 1) >= 1);
    }

    #[test]
    fn all_doors_together_stay_under_the_limit() {
        for doors in [1, 2] {
            for limit in [1024, 4096, 1 << 20] {
                let together = (under(limit, doors, OTHERS) + RESERVE) * doors + OTHERS;
                assert!((limit - doors..=limit).contains(&together), "{doors} doors, {limit}: {together}");
            }
            assert_eq!(under(0, doors, OTHERS), 1);
        }
    }
}
