//! Lets all other ready tasks of a thread run first.
//!
//! When an answer is sent to a caller whose thread sleeps, the kernel must wake that thread, which takes as long as
//! deciding a request. So a connection makes its answers in its turn, and sends them after all other ready connections
//! have made theirs. The first answer then wakes a caller that has many connections, and the others find it awake. If
//! no other connection is ready, the next turn comes at once.

use std::future::poll_fn;
use std::task::{Context, Poll};

/// Whether a task has queued behind the other ready tasks.
#[derive(Debug, Default)]
pub(super) struct AfterOthers {
    waited: bool,
}

impl AfterOthers {
    /// Returns whether the task is queued behind the others now.
    pub(super) fn waits(&self) -> bool {
        self.waited
    }

    /// The first call returns pending and queues the task behind all that are ready now. The second call returns ready.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.waited = !self.waited;
        if self.waited {
            // A single-threaded runtime has one FIFO queue. A multi-threaded runtime also queues a task that wakes
            // itself last.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// Waits until all other tasks of this thread that are ready now have had a turn.
///
/// # Cancel safety
/// Cancel safe.
pub(crate) async fn after_others() {
    let mut after = AfterOthers::default();
    poll_fn(|cx| after.poll(cx)).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn all_who_are_ready_go_first() {
        let (turns, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
        for task in 0..3 {
            let turns = Arc::clone(&turns);
            tasks.spawn(async move {
                turns.lock().push((task, "made"));
                after_others().await;
                turns.lock().push((task, "sent"));
            });
        }
        tasks.join_all().await;
        let each = |what| (0..3).map(move |task| (task, what));
        assert_eq!(*turns.lock(), each("made").chain(each("sent")).collect::<Vec<_>>());
    }
}
