//! A thread per core for the connections of all doors, each with a runtime of its own.
//!
//! A connection stays on the thread that it was given to. One runtime over all threads costs a call of gRPC half as much again: tasks move
//! between cores, and each wakes another.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

/// Tasks that wait for their thread; of more, those who bring them wait.
const WAITING: usize = 256;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads of a server. They end, and what runs on them is dropped, when this is dropped.
#[derive(Debug)]
pub(crate) struct Threads {
    threads: Vec<Sender<Task>>,
    /// Counts tasks, so that threads get them in turn.
    turn: AtomicUsize,
}

impl Threads {
    /// Starts one thread for each core that this process may use.
    ///
    /// # Errors
    /// The system's, if it starts no thread.
    pub(crate) async fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut threads = Vec::with_capacity(cores);
        for number in 0..cores {
            threads.push(one(number).await?);
        }
        Ok(Self { threads, turn: AtomicUsize::new(0) })
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Runs a task on the thread whose turn it is. Waits where [`WAITING`] tasks wait for that thread already.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it has dropped the task.
    pub(super) async fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Relaxed: any order is a turn.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        // A thread ends only with this value; a task that it does not take is dropped.
        let _ = self.threads[turn % self.threads.len()].send(Box::pin(task)).await;
    }
}

async fn one(number: usize) -> io::Result<Sender<Task>> {
    let (sender, tasks) = channel(WAITING);
    let (tell, told) = oneshot::channel();
    // Made on its thread: a runtime may not be dropped where others run, which a thread that does not start would do.
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
}
