//! A coordinator in this process's memory: for nodes of one process, for tests, and for simulations, whose clock it
//! uses.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;

use super::{Coordinator, CoordinatorError, Document, Member};
use tidegate_limits::clock::Clock;
use tidegate_limits::store::Later;

/// The largest document, since engines have such a bound: 1 MiB.
const LARGEST: usize = 1 << 20;

/// A cluster of nodes in one process. Clones share one cluster.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::clock::ManualClock;
/// use tidegate::cluster::LocalCluster;
///
/// let clock = ManualClock::default();
/// let cluster = LocalCluster::new(clock.clone(), Duration::from_secs(10));
/// let (one, other) = (cluster.node(), cluster.node());
/// # fn now<T>(later: tidegate::store::Later<T>) -> T {
/// #     futures_util::FutureExt::now_or_never(later).expect("it has nothing to wait for")
/// # }
/// let first = now(one.join("a", b""))?;
/// let second = now(other.join("b", b""))?;
/// assert!(first < second, "the first one leads");
/// clock.advance(Duration::from_secs(10));
/// assert!(now(one.members())?.is_empty(), "nothing was heard of them");
/// # Ok::<(), tidegate::cluster::CoordinatorError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalCluster {
    shared: Arc<ClusterState>,
}

#[derive(Debug)]
struct LocalCoordinator {
    cluster: LocalCluster,
    /// This node's number, once it has joined.
    mine: Arc<Mutex<Option<u64>>>,
}

#[derive(Debug)]
struct ClusterState {
    clock: Arc<dyn Clock>,
    keeps: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    changes: u64,
    numbers: u64,
    members: Vec<(Member, Tick)>,
    documents: BTreeMap<String, Document>,
    /// The wakers of futures that wait for a document. Each change wakes all of them, because there are few.
    waiting: BTreeMap<u64, Waker>,
    /// The wakers to be called after the lock is released: they run foreign code.
    woken: BTreeMap<u64, Waker>,
}

struct Changed {
    shared: Arc<ClusterState>,
    document: String,
    seen: u64,
    /// Its number among the waiting futures, once it has been polled.
    number: Option<u64>,
}

impl LocalCluster {
    /// Makes an empty cluster. By `clock`, members are forgotten when they are silent for `keeps`.
    pub fn new(clock: impl Clock + 'static, keeps: Duration) -> Self {
        Self { shared: Arc::new(ClusterState { clock: Arc::new(clock), keeps, state: Mutex::default() }) }
    }

    /// Returns another node's coordinator.
    #[must_use]
    pub fn node(&self) -> Arc<dyn Coordinator> {
        Arc::new(LocalCoordinator { cluster: self.clone(), mine: Arc::default() })
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn document(&self, name: &str) -> Document {
        self.documents.get(name).cloned().unwrap_or_default()
    }
}

impl LocalCoordinator {
    fn later<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State, &mut Option<u64>, Tick, Duration) -> Result<T, CoordinatorError>
        + Send
        + 'static,
    ) -> Later<Result<T, CoordinatorError>> {
        let (shared, mine) = (Arc::clone(&self.cluster.shared), Arc::clone(&self.mine));
        Box::pin(async move {
            let now = shared.clock.now();
            let (result, woken) = {
                let (mut state, mut mine) = (shared.state.lock(), mine.lock());
                state.members.retain(|(_, heard)| now.since(*heard) < shared.keeps);
                let result = act(&mut state, &mut mine, now, shared.keeps);
                (result, std::mem::take(&mut state.woken))
            };
            woken.into_values().for_each(Waker::wake);
            result
        })
    }
}

impl Coordinator for LocalCoordinator {
    fn keeps(&self) -> Duration {
        self.cluster.shared.keeps
    }

    fn join(&self, name: &str, report: &[u8]) -> Later<Result<u64, CoordinatorError>> {
        let (name, report) = (name.to_owned(), report.to_vec());
        self.later(move |held, mine, now, _| {
            if let Some((member, heard)) =
                held.members.iter_mut().find(|(member, _)| Some(member.joined) == *mine)
            {
                (member.report, *heard) = (report, now);
                return Ok(member.joined);
            }
            let joined = held.next();
            held.members.push((Member { name, joined, report }, now));
            *mine = Some(joined);
            Ok(joined)
        })
    }

    fn renew(&self, report: &[u8]) -> Later<Result<(), CoordinatorError>> {
        let report = report.to_vec();
        self.later(move |held, mine, now, keeps| {
            let found = held.members.iter_mut().find(|(member, _)| Some(member.joined) == *mine);
            let (member, heard) = found.ok_or(CoordinatorError::Forgotten(keeps))?;
            (member.report, *heard) = (report, now);
            Ok(())
        })
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        self.later(|held, mine, _, _| {
            let left = mine.take();
            held.members.retain(|(member, _)| Some(member.joined) != left);
            Ok(())
        })
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.later(|held, _, _, _| Ok(held.members.iter().map(|(member, _)| member.clone()).collect()))
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        let document = document.to_owned();
        self.later(move |held, _, _, _| Ok(held.document(&document)))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        let document = document.to_owned();
        self.later(move |held, _, _, _| {
            if bytes.len() > LARGEST {
                let bytes = bytes.len();
                return Err(CoordinatorError::TooLarge { document, bytes, most: LARGEST });
            }
            if held.document(&document).version != version {
                return Ok(None);
            }
            let version = held.next();
            held.documents.insert(document, Document { bytes: Some(bytes), version });
            held.woken = std::mem::take(&mut held.waiting);
            Ok(Some(version))
        })
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        let (shared, document) = (Arc::clone(&self.cluster.shared), document.to_owned());
        Box::pin(Changed { shared, document, seen, number: None })
    }
}

impl Future for Changed {
    type Output = Result<Document, CoordinatorError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Cloned before the lock is taken, and dropped after it is released: a waker runs foreign code.
        let mut waker = Some(cx.waker().clone());
        let mut state = this.shared.state.lock();
        let found = state.document(&this.document);
        let poll = if found.version == this.seen {
            let number = *this.number.get_or_insert_with(|| state.next_number());
            waker = waker.and_then(|waker| state.waiting.insert(number, waker));
            Poll::Pending
        } else {
            Poll::Ready(Ok(found))
        };
        drop(state);
        drop(waker);
        poll
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let waits = self.number.and_then(|number| self.shared.state.lock().waiting.remove(&number));
        drop(waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use tidegate_limits::clock::{ManualClock, SystemClock};

    #[test]
    fn it_conforms() {
        let clock = ManualClock::default();
        let cluster = LocalCluster::new(clock.clone(), Duration::from_secs(10));
        conformance::run(&|| cluster.node(), &|span| clock.advance(span));
    }

    /// A waker that calls the same cluster: it was once called while the cluster was locked.
    struct Asks(Arc<dyn Coordinator>);

    impl std::task::Wake for Asks {
        fn wake(self: Arc<Self>) {
            let mut read = self.0.read("d");
            assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    }

    #[test]
    fn whoever_is_woken_may_ask_at_once_and_a_wait_that_is_dropped_leaves_nothing() {
        let cluster = LocalCluster::new(ManualClock::default(), Duration::from_secs(10));
        let node = cluster.node();
        let waker = Waker::from(Arc::new(Asks(cluster.node())));
        let mut changed = node.changed("d", 0);
        for _ in 0..3 {
            assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let gone = node.changed("d", 0);
        drop(gone);
        assert_eq!(cluster.shared.state.lock().waiting.len(), 1);
        let mut replace = node.replace("d", 0, vec![1]);
        assert!(replace.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn nodes_agree_over_it() {
        let cluster = LocalCluster::new(SystemClock::new(), Duration::from_secs(1));
        conformance::agreement(&|| cluster.node());
    }
}
