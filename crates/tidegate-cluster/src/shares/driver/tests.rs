//! How a node keeps its membership while its engine fails in part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use super::*;
use crate::{Document, LocalCluster};
use tidegate_limits::clock::ManualClock;

const KEEPS: Duration = Duration::from_secs(8);

/// More calls than any run of these tests needs: a driver that does not wait is stopped here.
const MOST_CALLS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    /// Reads are answered, writes fail.
    WritesFail,
    /// Nothing is answered, and no error is returned.
    Hangs,
}

/// A coordinator in memory that fails in part and counts its calls.
#[derive(Debug)]
struct Failing {
    inner: Arc<dyn Coordinator>,
    mood: Arc<Mutex<Mood>>,
    calls: Arc<AtomicU64>,
}

impl Failing {
    fn call<T: Send + 'static>(
        &self,
        writes: bool,
        later: Later<Result<T, CoordinatorError>>,
    ) -> Later<Result<T, CoordinatorError>> {
        assert!(self.calls.fetch_add(1, Ordering::Relaxed) < MOST_CALLS, "it asks without waiting");
        match *self.mood.lock() {
            Mood::WritesFail if writes => {
                Box::pin(async { Err(CoordinatorError::Unavailable { reason: "read only".to_owned() }) })
            }
            Mood::Hangs => Box::pin(std::future::pending()),
            _ => later,
        }
    }
}

impl Coordinator for Failing {
    fn keeps(&self) -> Duration {
        KEEPS
    }

    fn join(&self, name: &str, report: &[u8]) -> Later<Result<u64, CoordinatorError>> {
        self.call(true, self.inner.join(name, report))
    }

    fn renew(&self, report: &[u8]) -> Later<Result<(), CoordinatorError>> {
        self.call(true, self.inner.renew(report))
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        self.call(true, self.inner.leave())
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.call(false, self.inner.members())
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        self.call(false, self.inner.read(document))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        self.call(true, self.inner.replace(document, version, bytes))
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        self.call(false, self.inner.changed(document, seen))
    }
}

/// One running node, with a manual clock.
struct Rig {
    clock: ManualClock,
    cluster: LocalCluster,
    mood: Arc<Mutex<Mood>>,
    calls: Arc<AtomicU64>,
    part: Part,
    status: Box<dyn Fn() -> Status>,
    run: Later<()>,
}

impl Rig {
    fn new() -> Self {
        let clock = ManualClock::at(Tick::from_secs(1_000));
        let cluster = LocalCluster::new(clock.clone(), KEEPS);
        let (mood, calls) = (Arc::new(Mutex::new(Mood::Well)), Arc::<AtomicU64>::default());
        let failing = Failing { inner: cluster.node(), mood: Arc::clone(&mood), calls: Arc::clone(&calls) };
        let driver = Driver::new(Arc::new(failing), clock.clone(), "a", Division::among(2), || 0);
        let (part, status) = (driver.part(), Box::new(driver.status()));
        let run = Box::pin(driver.run(std::future::pending()));
        Self { clock, cluster, mood, calls, part, status, run }
    }

    /// Lets the node run for a span; returns how many calls it made.
    fn run(&mut self, span: Duration) -> u64 {
        let before = self.calls.load(Ordering::Relaxed);
        let end = self.clock.now().after(span);
        let mut cx = Context::from_waker(Waker::noop());
        while self.clock.now() < end {
            // Polls twice: tasks that the first poll woke continue in the second.
            for _ in 0..2 {
                assert!(self.run.as_mut().poll(&mut cx).is_pending());
            }
            self.clock.advance(Duration::from_millis(50));
        }
        assert!(self.run.as_mut().poll(&mut cx).is_pending());
        self.calls.load(Ordering::Relaxed) - before
    }

    fn part(&self) -> u32 {
        self.part.at(self.clock.now())
    }

    /// Another node, which does not follow the shares, rewrites the document.
    fn others_write(&self) {
        tidegate_limits::block_on::block_on(async {
            let node = self.cluster.node();
            let document = node.read(NAME).await.unwrap();
            let bytes = document.bytes.unwrap_or_default();
            let mut shares = Shares::decode(&bytes).unwrap();
            shares.turn += 1;
            node.replace(NAME, document.version, shares.encode()).await.unwrap();
        });
    }
}

#[test]
fn writes_that_fail_while_the_document_changes_are_tried_again_at_their_time() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(6));
    assert!((rig.status)().leads && rig.part() > Division::among(2).permanent_part());
    *rig.mood.lock() = Mood::WritesFail;
    rig.others_write();
    let calls = rig.run(Duration::from_secs(6));
    assert!(calls <= 8, "{calls} calls in three rounds");
    assert!((rig.status)().failed.is_some_and(|why| why.contains("read only")));
}

#[test]
fn a_node_that_was_forgotten_joins_again_at_once() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(6));
    let before = (rig.status)().joined;
    *rig.mood.lock() = Mood::Hangs;
    rig.run(KEEPS * 2);
    assert_eq!(rig.part(), Division::among(2).permanent_part());
    *rig.mood.lock() = Mood::Well;
    // The round that finds this out also joins again.
    rig.run(KEEPS / ROUNDS);
    let status = (rig.status)();
    assert!(status.joined > before && status.failed.is_none(), "{status:?}");
}

#[test]
fn two_rounds_without_an_answer_cost_no_part() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(6));
    let had = rig.part();
    assert!(had > Division::among(2).permanent_part());
    for _ in 0..20 {
        // Tries every phase of the rounds: from just after an answered one until two have hung.
        *rig.mood.lock() = Mood::Hangs;
        for _ in 0..KEEPS.as_millis() / 50 / 2 {
            rig.run(Duration::from_millis(50));
            assert_eq!(rig.part(), had);
        }
        *rig.mood.lock() = Mood::Well;
        for _ in 0..KEEPS.as_millis() / 50 / 2 + 3 {
            rig.run(Duration::from_millis(50));
            assert_eq!(rig.part(), had);
        }
    }
}
