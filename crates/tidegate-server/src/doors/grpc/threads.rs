//! A thread per core, each with a runtime of its own.
//!
//! One runtime over all threads costs a call half as much again: tasks move between cores, and each wakes another.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{Sender, channel};

/// Tasks that wait for their thread; of more, those who bring them wait.
const WAITING: usize = 256;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads of a door. They end, and what runs on them is dropped, when this is dropped.
#[derive(Debug)]
pub(super) struct Threads {
    threads: Vec<Sender<Task>>,
    /// Counts tasks, so that threads get them in turn.
    turn: AtomicUsize,
}

impl Threads {
    /// Starts one thread for each core that this process may use.
    ///
    /// # Errors
    /// The system's, if it starts no thread.
    pub(super) fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(one).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { threads, turn: AtomicUsize::new(0) })
    }

    /// Runs a task on the thread whose turn it is.
    pub(super) async fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Relaxed: any order is a turn.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        // A thread ends only with this value; a task that it does not take is dropped.
        let _ = self.threads[turn % self.threads.len()].send(Box::pin(task)).await;
    }
}

fn one(number: usize) -> io::Result<Sender<Task>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (sender, mut tasks) = channel::<Task>(WAITING);
    thread::Builder::new().name(format!("tidegate-grpc-{number}")).spawn(move || {
        runtime.block_on(async {
            while let Some(task) = tasks.recv().await {
                tokio::spawn(task);
            }
        });
    })?;
    Ok(sender)
}
