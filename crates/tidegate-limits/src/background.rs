//! Runs futures in the background, for work that no caller waits for.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use futures_timer::Delay;

use crate::block_on::thread_waker;
use crate::store::Later;

/// The capacity of the channel, and the most futures that run at once. Further futures are dropped: the units that they
/// would have given back stay charged until time returns them.
const MOST: usize = 1024;

/// The time limit of one future: longer than waits for engines usually take, and short enough that futures whose engine
/// never answers do not pile up.
const LONGEST: Duration = Duration::from_secs(30);

type Run = dyn Fn(Later<()>) + Send + Sync;

/// Runs futures that no caller waits for.
#[derive(Clone)]
pub struct Background(Arc<Run>);

impl Background {
    /// Makes a runner from the function that starts each future.
    pub fn new(run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    /// Runs a future to its end, or drops it after 30 seconds.
    pub fn run(&self, later: Later<()>) {
        (self.0)(Box::pin(Bounded { later, over: Delay::new(LONGEST) }));
    }
}

impl Default for Background {
    /// One thread, which runs up to 1,024 futures at once. Beyond that futures are dropped.
    fn default() -> Self {
        let worker: OnceLock<Option<(SyncSender<Later<()>>, Thread)>> = OnceLock::new();
        Self::new(move |later| {
            // If the channel is full or the thread could not be started, the future is dropped.
            if let Some((sender, thread)) = worker.get_or_init(one_thread)
                && sender.try_send(later).is_ok()
            {
                thread.unpark();
            }
        })
    }
}

fn one_thread() -> Option<(SyncSender<Later<()>>, Thread)> {
    let (sender, receiver) = sync_channel::<Later<()>>(MOST);
    let named = thread::Builder::new().name("tidegate-later".to_owned());
    let worker = named.spawn(move || run_all(&receiver)).ok()?;
    Some((sender, worker.thread().clone()))
}

/// Runs futures concurrently, so that one with an unresponsive engine does not hold up the others.
fn run_all(receiver: &Receiver<Later<()>>) {
    let waker = thread_waker();
    let mut running: Vec<Later<()>> = Vec::new();
    loop {
        if running.is_empty() {
            let Ok(later) = receiver.recv() else { return };
            running.push(later);
        }
        while running.len() < MOST {
            match receiver.try_recv() {
                Ok(later) => running.push(later),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        // Polls all at each turn: there are usually few, so a waker of their own for each is not worthwhile.
        running.retain_mut(|later| is_pending(later, &waker));
        if !running.is_empty() {
            // If it was woken or sent more in the meantime, `park` returns at once: `unpark` leaves a token.
            thread::park();
        }
    }
}

/// Polls a future once and returns whether it is pending. A future that panics, when polled or dropped, is over, and
/// does not affect the others.
fn is_pending(later: &mut Later<()>, waker: &Waker) -> bool {
    let poll = || later.as_mut().poll(&mut Context::from_waker(waker)).is_pending();
    let pending = catch_unwind(AssertUnwindSafe(poll)).unwrap_or(false);
    if !pending {
        // Dropped here, where its panic is caught, and replaced by a future whose drop cannot panic.
        let over = mem::replace(later, Box::pin(std::future::ready(())));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(over)));
    }
    pending
}

struct Bounded {
    later: Later<()>,
    over: Delay,
}

impl Future for Bounded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.later.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => Pin::new(&mut self.over).poll(cx),
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("a connection's guard does")
        }
    }

    #[test]
    fn one_that_never_ends_and_one_that_panics_hold_up_no_other() {
        let background = Background::default();
        background.run(Box::pin(std::future::pending()));
        background.run(Box::pin(async { panic!("an engine's driver does") }));
        background.run(Box::pin(async {
            let _panics = PanicsWhenDropped;
        }));
        let captured = PanicsWhenDropped;
        background.run(Box::pin(std::future::poll_fn(move |_| {
            let _ = &captured;
            Poll::Ready(())
        })));
        let (sender, receiver) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            background.run(Box::pin(async move { sender.send(number).unwrap() }));
        }
        let done: Vec<i32> =
            (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(done, [0, 1, 2]);
    }
}
