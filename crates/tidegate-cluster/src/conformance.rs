//! A conformance suite for every coordinator, in memory and over real engines.
//!
//! [`run`] checks the interface, and panics with the name of a law that is broken. [`agreement()`] makes nodes divide
//! limits and follow policies. Everything is awaited on the calling thread; a coordinator that needs a runtime brings
//! its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::shares::{Division, Driver, Status};
use super::{Coordinator, CoordinatorError, Document, Member, Part, policies};
use tidegate_limits::block_on;
use tidegate_limits::clock::{Clock as _, SystemClock};
use tidegate_limits::store::Later;

/// How long a real engine may take to forget a member.
const PATIENCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(20);

type Make<'a> = &'a dyn Fn() -> Arc<dyn Coordinator>;

/// Checks all laws. The cluster must have no members when this begins, and no document whose name begins with `law-`.
///
/// `pass` lets time pass, if the cluster uses a manual clock; for a real engine it does nothing.
///
/// # Panics
/// When a law is broken; the message names it.
pub fn run(make: Make<'_>, pass: &dyn Fn(Duration)) {
    members_are_numbered_as_they_come(make);
    what_is_not_polled_is_not_done(make);
    a_document_is_written_by_whoever_has_seen_its_last_version(make);
    whoever_waits_is_told(make);
    whoever_is_silent_is_forgotten(make, pass);
}

fn done<T>(later: Later<Result<T, CoordinatorError>>, what: &str) -> T {
    block_on(later).unwrap_or_else(|error| panic!("law: {what}: {error}"))
}

fn members(node: &dyn Coordinator) -> Vec<Member> {
    done(node.members(), "members are told")
}

fn members_are_numbered_as_they_come(make: Make<'_>) {
    let (one, two) = (make(), make());
    assert!(
        matches!(block_on(one.renew(b"")), Err(CoordinatorError::Forgotten(_))),
        "law: who has not joined cannot renew"
    );
    done(one.leave(), "who has not joined may leave");
    let first = done(one.join("one", b"a"), "a node joins");
    let second = done(two.join("two", b"b"), "a node joins");
    assert!(0 < first && first < second, "law: numbers grow: {first}, {second}");
    assert_eq!(done(one.join("one", b"c"), "a member joins"), first, "law: a member keeps its number");
    done(two.renew(&[0, 255]), "a member renews");
    let member =
        |name: &str, joined, report: &[u8]| Member { name: name.to_owned(), joined, report: report.to_vec() };
    let expected = vec![member("one", first, b"c"), member("two", second, &[0, 255])];
    assert_eq!(members(&*one), expected, "law: all nodes see the members, in order");
    assert_eq!(members(&*two), expected, "law: all nodes see the members, in order");

    // A name is not an identity: a node that starts again is another member, while its former instance may still be
    // running.
    let again = make();
    let third = done(again.join("one", b""), "a node joins under the name of a member");
    assert!(third > second, "law: numbers grow");
    assert_eq!(members(&*two).len(), 3, "law: two members may have one name");
    done(again.leave(), "a member leaves");
    done(one.leave(), "a member leaves");
    done(one.leave(), "who has left may leave");
    assert!(
        matches!(block_on(one.renew(b"")), Err(CoordinatorError::Forgotten(_))),
        "law: who has left cannot renew"
    );
    assert_eq!(members(&*two), expected[1..], "law: who has left is no member");
    assert!(done(one.join("one", b""), "a node joins again") > third, "law: numbers are not given again");
    done(one.leave(), "a member leaves");
    done(two.leave(), "a member leaves");
    assert_eq!(members(&*two), [], "law: who has left is no member");
}

fn what_is_not_polled_is_not_done(make: Make<'_>) {
    let node = make();
    drop(node.join("nobody", b""));
    drop(node.replace("law-unpolled", 0, b"x".to_vec()));
    assert_eq!(members(&*node), [], "law: what is not polled is not done");
    let read = done(node.read("law-unpolled"), "a document is read");
    assert_eq!(read, Document::default(), "law: what is not polled is not done");
}

fn a_document_is_written_by_whoever_has_seen_its_last_version(make: Make<'_>) {
    const NAME: &str = "law-document";
    let (one, two) = (make(), make());
    let read = |node: &dyn Coordinator| done(node.read(NAME), "a document is read");
    let replace = |node: &dyn Coordinator, version, bytes: &[u8]| {
        done(node.replace(NAME, version, bytes.to_vec()), "a document is replaced")
    };
    assert_eq!(read(&*one), Document::default(), "law: what was never written has no bytes and version 0");
    assert_eq!(replace(&*one, 1, b"x"), None, "law: only at its version");
    let first = replace(&*one, 0, b"").expect("law: the first write is at version 0");
    assert_eq!(
        read(&*two),
        Document { bytes: Some(Vec::new()), version: first },
        "law: all nodes read what was written, be it empty"
    );
    assert_eq!(replace(&*two, 0, b"x"), None, "law: the first write is one");
    let second = replace(&*two, first, &[0, 255, 10]).expect("law: who knows the version writes");
    assert!(second > first, "law: versions grow");
    assert_eq!(replace(&*one, first, b"late"), None, "law: who knows an old version does not write");
    let largest = one.replace(NAME, second, vec![b'x'; 64 << 20]);
    assert!(
        matches!(block_on(largest), Err(CoordinatorError::TooLarge { .. })),
        "law: what is too large is told as such"
    );
    assert_eq!(read(&*one), Document { bytes: Some(vec![0, 255, 10]), version: second });

    // All nodes write at once, at the same version: one of them succeeds.
    let nodes: Vec<_> = (0..4).map(|_| make()).collect();
    let mut version = second;
    for turn in 0u8..8 {
        let written: Vec<u64> = std::thread::scope(|scope| {
            let write = |node| scope.spawn(move || replace(node, version, &[turn]));
            let writers: Vec<_> = nodes.iter().map(|node| write(&**node)).collect();
            writers.into_iter().filter_map(|writer| writer.join().expect("a writer only writes")).collect()
        });
        assert_eq!(written.len(), 1, "law: of those who write at one version, one does");
        assert!(written[0] > version, "law: versions grow");
        version = written[0];
    }
}

fn whoever_waits_is_told(make: Make<'_>) {
    const NAME: &str = "law-watched";
    let (reader, writer) = (make(), make());
    let mut version = 0;
    for turn in 0u8..4 {
        // In every second turn, the wait is polled before the write; a wait that is first polled after the write must
        // be told, too.
        let mut waiting = reader.changed(NAME, version);
        let waits = turn % 2 == 0;
        if waits {
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "law: nothing is told before there is something to tell");
        }
        let written = done(writer.replace(NAME, version, vec![turn]), "a document is replaced");
        version = written.expect("law: who knows the version writes");
        let told = done(waiting, "a change is told");
        assert_eq!(told, Document { bytes: Some(vec![turn]), version }, "law: the last change is told");
    }
    let told = done(reader.changed(NAME, 0), "what has changed is told at once");
    assert_eq!(told.version, version, "law: what has changed is told at once");
    // A wait that is dropped leaves nothing behind.
    for _ in 0..3 {
        let mut waiting = reader.changed(NAME, version);
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Pending, "law: nothing is told before there is something to tell");
    }
    assert_eq!(done(reader.read(NAME), "a document is read").version, version);
}

fn whoever_is_silent_is_forgotten(make: Make<'_>, pass: &dyn Fn(Duration)) {
    let (silent, speaking) = (make(), make());
    done(silent.join("silent", b""), "a node joins");
    let stays = done(speaking.join("speaking", b""), "a node joins");
    let keeps = speaking.keeps();
    assert!(!keeps.is_zero(), "law: a member is kept for some time");
    // An engine that watches connections treats a closed one as silence.
    drop(silent);
    let clock = SystemClock::new();
    let begun = clock.now();
    loop {
        pass(keeps / 4);
        done(speaking.renew(b"still here"), "who renews in time is not forgotten");
        let there = members(&*speaking);
        assert!(there.iter().any(|member| member.joined == stays), "law: who renews in time is a member");
        if there.len() == 1 {
            break;
        }
        assert!(clock.now().since(begun) < PATIENCE, "law: who is silent is forgotten");
        block_on(futures_timer::Delay::new(LOOK_EVERY));
    }
    done(speaking.leave(), "a member leaves");
}

struct RunningNode {
    part: Part,
    asked: Arc<AtomicU64>,
    status: Box<dyn Fn() -> Status>,
    /// The versions that it has applied or refused.
    applied: Arc<Mutex<Vec<u64>>>,
    over: Option<futures_util::future::AbortHandle>,
    ended: Receiver<()>,
}

impl RunningNode {
    fn start(coordinator: Arc<dyn Coordinator>, name: &str, division: Division) -> Self {
        let clock = SystemClock::new();
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let demand = move || count.load(Ordering::Relaxed);
        let mut driver = Driver::new(Arc::clone(&coordinator), clock, name, division, demand);
        let (part, status, own_report) = (driver.part(), Box::new(driver.status()), driver.own_report());
        let applied = Arc::new(Mutex::new(Vec::new()));
        let took = Arc::clone(&applied);
        let follows = policies::follow(coordinator, Arc::new(clock), own_report, move |version| {
            let result = match version {
                None => Err(policies::UNREADABLE.to_owned()),
                Some(version) if version.bytes == b"wrong" => Err("line 1: it is wrong".to_owned()),
                Some(version) => {
                    took.lock().push(version.version);
                    Ok(())
                }
            };
            std::future::ready(result)
        });
        let (over, until) = futures_util::future::abortable(std::future::pending::<()>());
        let (sender, ended) = sync_channel(1);
        std::thread::spawn(move || {
            let runs = driver.run(async move {
                let _ = over.await;
            });
            block_on(futures_util::future::select(Box::pin(runs), Box::pin(follows)));
            let _ = sender.send(());
        });
        Self { part, asked, status, applied, over: Some(until), ended }
    }

    fn stop(&mut self) {
        if let Some(over) = self.over.take() {
            over.abort();
            self.ended.recv_timeout(PATIENCE).expect("law: a node that is stopped leaves");
        }
    }
}

/// Looks until a condition holds, and checks each time that the parts add up to at most the whole.
fn until(nodes: &[RunningNode], what: &str, asks: impl Fn(), holds: impl Fn() -> bool) -> Duration {
    let clock = SystemClock::new();
    let begun = clock.now();
    while !holds() {
        let now = clock.now();
        let parts: Vec<u32> = nodes.iter().map(|node| node.part.at(now)).collect();
        let sum: u64 = parts.iter().map(|part| u64::from(*part)).sum();
        assert!(sum <= u64::from(Part::WHOLE), "law: parts add up to the whole at most: {parts:?}");
        let told = || nodes.iter().map(|node| (node.status)()).collect::<Vec<_>>();
        assert!(now.since(begun) < PATIENCE, "law: {what}; {parts:?}, {:?}", told());
        asks();
        block_on(futures_timer::Delay::new(LOOK_EVERY));
    }
    clock.now().since(begun)
}

/// Checks that three nodes divide the whole by demand and take over the part of a node that leaves; and that policies
/// reach all of them, while a wrong version changes nothing and is seen to be refused. Takes several times as long as
/// members are kept, in real time. The cluster must have no members, no shares and no policies when this begins.
///
/// # Panics
/// When a law is broken; the message names it.
pub fn agreement(make: Make<'_>) {
    let division = Division::among(3);
    let start = |name: &str| RunningNode::start(make(), name, division);
    let mut nodes = vec![start("a"), start("b"), start("c")];
    let clock = SystemClock::new();
    let part = |node: &RunningNode| u64::from(node.part.at(clock.now())) * 100 / u64::from(Part::WHOLE);
    until(
        &nodes,
        "nodes divide evenly what nobody asks for",
        || (),
        || nodes.iter().all(|node| part(node) > 25),
    );
    for hot in [1, 2] {
        let asks = || {
            nodes[hot].asked.fetch_add(1000, Ordering::Relaxed);
        };
        until(&nodes, "who is asked for all has nearly all", asks, || part(&nodes[hot]) >= 90);
    }

    let coordinator = make();
    let put = |bytes: &[u8]| {
        block_on(policies::put(&*coordinator, bytes.to_vec(), None)).expect("law: policies are put")
    };
    let have = |version| nodes.iter().all(|node| node.applied.lock().last() == Some(&version));
    let standings = || block_on(policies::nodes(&*coordinator)).expect("law: members are told");
    assert_eq!(put(b"right"), 1, "law: the first version is 1");
    until(&nodes, "policies come to all nodes", || (), || have(1));
    until(&nodes, "who follows is seen", || (), || standings().iter().all(|node| node.follows == 1));
    assert_eq!(put(b"wrong"), 2);
    until(
        &nodes,
        "who refuses is seen",
        || (),
        || {
            let refused = |node: &policies::Following| {
                node.refused.as_ref().is_some_and(|(version, why)| *version == 2 && why.contains("line 1"))
            };
            standings().iter().all(|node| refused(node) && node.follows == 1)
        },
    );
    assert!(have(1), "law: what is refused changes nothing");
    let back =
        block_on(policies::rollback(&*coordinator, 1)).expect("law: what was in force can be put again");
    assert_eq!(back, 3, "law: versions grow");
    until(&nodes, "policies come to all nodes", || (), || have(3));
    until(
        &nodes,
        "who follows is seen",
        || (),
        || standings().iter().all(|node| node.follows == 3 && node.refused.is_none()),
    );

    // The leader leaves; the others get its part.
    nodes[0].stop();
    let asks = || {
        nodes[1].asked.fetch_add(1000, Ordering::Relaxed);
    };
    until(&nodes, "who is asked for all has nearly all, whoever leads", asks, || part(&nodes[1]) >= 90);
    let leads = |node: &RunningNode| (node.status)().leads;
    // It is not specified which one leads: nodes that start together may join in any order, and a node that was held up
    // joins again as the last.
    until(&nodes[1..], "one of those that are left leads", || (), || leads(&nodes[1]) != leads(&nodes[2]));
    nodes.iter_mut().for_each(RunningNode::stop);
    assert!(
        block_on(coordinator.members()).is_ok_and(|members| members.is_empty()),
        "law: who is stopped is no member"
    );
}
