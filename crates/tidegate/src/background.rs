//! What has to be done although nobody waits for it.

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
use crate::later::Later;

/// How many may wait for the thread, and how many it runs at once. Beyond that they are dropped: what they would have given back stays
/// charged until time returns it.
const MOST: usize = 1024;

/// How long one may take: longer than engines are waited for as a rule, and short enough that what an engine never answers does not add up.
const LONGEST: Duration = Duration::from_secs(30);

type Run = dyn Fn(Later<()>) + Send + Sync;

/// Runs futures that nobody waits for.
#[derive(Clone)]
pub(crate) struct Background(Arc<Run>);

impl Background {
    pub(crate) fn new(run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    /// Runs a future to its end, or for half a minute.
    pub(crate) fn run(&self, later: Later<()>) {
        (self.0)(Box::pin(Bounded { later, over: Delay::new(LONGEST) }));
    }
}

impl Default for Background {
    fn default() -> Self {
        let worker: OnceLock<Option<(SyncSender<Later<()>>, Thread)>> = OnceLock::new();
        Self::new(move |later| {
            // Full, or no thread could be had: then it is dropped.
            if let Some((sender, thread)) = worker.get_or_init(one_thread)
                && sender.try_send(later).is_ok()
            {
                thread.unpark();
            }
        })
    }
}

/// Starts a thread that runs what it is sent, and ends after the last of it when the sender is gone.
fn one_thread() -> Option<(SyncSender<Later<()>>, Thread)> {
    let (sender, receiver) = sync_channel::<Later<()>>(MOST);
    let named = thread::Builder::new().name("tidegate-later".to_owned());
    let worker = named.spawn(move || run_all(&receiver)).ok()?;
    Some((sender, worker.thread().clone()))
}

/// Runs futures side by side, so that one whose engine does not answer holds up no other.
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
        // All of them at each turn: there are few as a rule, and their wakers need not be told apart.
        running.retain_mut(|later| is_pending(later, &waker));
        if !running.is_empty() {
            // Woken or sent more since, it does not park: unpark leaves a token.
            thread::park();
        }
    }
}

/// Polls once. One that panics is over, and takes no other with it, nor does one that panics when it is dropped.
fn is_pending(later: &mut Later<()>, waker: &Waker) -> bool {
    let poll = || later.as_mut().poll(&mut Context::from_waker(waker)).is_pending();
    let pending = catch_unwind(AssertUnwindSafe(poll)).unwrap_or(false);
    if !pending {
        // Dropped here, and in its place one that can be dropped anywhere.
        let over = mem::replace(later, Box::pin(std::future::ready(())));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(over)));
    }
    pending
}

/// A future that ends with its time.
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
