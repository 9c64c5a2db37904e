//! The coordinator that the nodes of several regions agree through, behind long wires.
//!
//! Every call of every node crosses to another region and back: a coordinator that needs a majority has servers
//! in several regions, and no server answers alone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::{Clock as _, ManualClock};
use tidegate::cluster::{Coordinator, CoordinatorError, Document, LocalCluster, Member};
use tidegate::store::Later;

use super::link::{Passes, WireCondition};

/// How long a silent member is kept; the server asks the same of etcd.
const KEEPS: Duration = Duration::from_secs(10);

const WATCHED_EVERY: Duration = Duration::from_millis(20);

/// A wire between two continents: 100 ms each way.
pub(super) const FAR: WireCondition =
    WireCondition { delay: Duration::from_millis(100), ..WireCondition::FAIR };

/// The coordinator of all regions, as seen from one region. Clones share its state.
#[derive(Clone)]
pub(crate) struct GlobalCoordinator {
    shared: Arc<Wires>,
    region: usize,
}

struct Wires {
    cluster: LocalCluster,
    clock: ManualClock,
    wires: Mutex<Vec<WireCondition>>,
    /// The number of calls so far, and how many of them were made while a request was being decided.
    calls: AtomicU64,
    on_path: AtomicU64,
    deciding: AtomicBool,
}

impl GlobalCoordinator {
    pub(super) fn new(regions: usize) -> Self {
        let clock = ManualClock::default();
        let shared = Wires {
            cluster: LocalCluster::new(clock.clone(), KEEPS),
            clock,
            wires: Mutex::new(vec![FAR; regions]),
            calls: AtomicU64::new(0),
            on_path: AtomicU64::new(0),
            deciding: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), region: 0 }
    }

    pub(super) fn of(&self, region: usize) -> Self {
        Self { shared: Arc::clone(&self.shared), region }
    }

    pub(crate) const fn region(&self) -> usize {
        self.region
    }

    pub(crate) fn regions(&self) -> usize {
        self.shared.wires.lock().len()
    }

    /// Returns the coordinator for one node of the region, which keeps time by `clock`.
    pub(crate) fn coordinator(&self, clock: ManualClock) -> Arc<dyn Coordinator> {
        let inner = self.shared.cluster.node();
        Arc::new(RemoteCoordinator { global: self.clone(), clock, inner })
    }

    pub(super) fn rewire(&self, wire: WireCondition) {
        self.shared.wires.lock()[self.region] = wire;
    }

    /// Sets whether the calls that follow are made while a request is being decided. A run has one thread, so the
    /// atomics are relaxed.
    pub(super) fn deciding(&self, deciding: bool) {
        self.shared.deciding.store(deciding, Ordering::Relaxed);
    }

    pub(super) fn calls(&self) -> (u64, u64) {
        (self.shared.calls.load(Ordering::Relaxed), self.shared.on_path.load(Ordering::Relaxed))
    }

    fn count(&self) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        if self.shared.deciding.load(Ordering::Relaxed) {
            self.shared.on_path.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for GlobalCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalCoordinator").field("region", &self.region).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct RemoteCoordinator {
    global: GlobalCoordinator,
    clock: ManualClock,
    inner: Arc<dyn Coordinator>,
}

impl RemoteCoordinator {
    /// Waits for the time that a message is on its way; forever if the wire does not let it pass.
    async fn travels(&self, answer: bool) {
        let wire = self.global.shared.wires.lock()[self.global.region];
        match wire.passes {
            Passes::All => {}
            Passes::Requests if !answer => {}
            _ => std::future::pending::<()>().await,
        }
        self.clock.sleep_until(self.clock.now().after(wire.delay)).await;
    }

    /// Calls the coordinator, with the delay of the wire each way.
    fn call<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Coordinator) -> Later<Result<T, CoordinatorError>> + Send + 'static,
    ) -> Later<Result<T, CoordinatorError>> {
        let remote = self.clone();
        Box::pin(async move {
            remote.global.count();
            remote.travels(false).await;
            remote.global.shared.clock.set(remote.clock.now());
            let answer = ask(&*remote.inner).await;
            remote.travels(true).await;
            answer
        })
    }
}

impl Coordinator for RemoteCoordinator {
    fn keeps(&self) -> Duration {
        KEEPS
    }

    fn join(&self, name: &str, says: &[u8]) -> Later<Result<u64, CoordinatorError>> {
        let (name, says) = (name.to_owned(), says.to_vec());
        self.call(move |inner| inner.join(&name, &says))
    }

    fn renew(&self, says: &[u8]) -> Later<Result<(), CoordinatorError>> {
        let says = says.to_vec();
        self.call(move |inner| inner.renew(&says))
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        self.call(|inner| inner.leave())
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.call(|inner| inner.members())
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        let document = document.to_owned();
        self.call(move |inner| inner.read(&document))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        let document = document.to_owned();
        self.call(move |inner| inner.replace(&document, version, bytes))
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        let (remote, document) = (self.clone(), document.to_owned());
        Box::pin(async move {
            remote.global.count();
            remote.travels(false).await;
            let found = loop {
                let found = remote.inner.read(&document).await?;
                if found.version != seen {
                    break found;
                }
                remote.clock.sleep_until(remote.clock.now().after(WATCHED_EVERY)).await;
            };
            remote.travels(true).await;
            Ok(found)
        })
    }
}
