//! Laws of nodes over a coordinator: shares move, and policies reach all nodes. In real time, over real engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{LOOK_EVERY, Make, PATIENCE};
use crate::block_on::block_on;
use crate::clock::{Clock as _, SystemClock};
use crate::cluster::shares::{Division, Driver, Status};
use crate::cluster::{Coordinator, Part, policies};

/// A node on a thread of its own.
struct Running {
    part: Part,
    /// Units asked for in each turn of the loop below.
    asked: Arc<AtomicU64>,
    status: Box<dyn Fn() -> Status>,
    /// The versions that it has applied or refused.
    applied: Arc<Mutex<Vec<u64>>>,
    over: Option<futures_util::future::AbortHandle>,
    ended: Receiver<()>,
}

impl Running {
    fn start(coordinator: Arc<dyn Coordinator>, name: &str, division: Division) -> Self {
        let clock = SystemClock::new();
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let demand = move || count.load(Ordering::Relaxed);
        let driver = Driver::new(Arc::clone(&coordinator), clock, name, division, demand);
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

    /// Makes the node leave, and waits until it has left.
    fn stop(&mut self) {
        if let Some(over) = self.over.take() {
            over.abort();
            self.ended.recv_timeout(PATIENCE).expect("law: a node that is stopped leaves");
        }
    }
}

/// Looks until a condition holds, and checks each time that the parts add up to at most the whole.
fn until(nodes: &[Running], what: &str, asks: impl Fn(), holds: impl Fn() -> bool) -> Duration {
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

/// Checks that three nodes divide the whole by demand, and take over the part of a node that leaves; and that policies
/// reach all of them, while a wrong version changes nothing and is seen to be refused. Takes several times as long as
/// members are kept, in real time. The cluster must have no members, no shares and no policies when this begins.
///
/// # Panics
/// When a law is broken; the message names it.
pub fn agreement(make: Make<'_>) {
    let division = Division::among(3);
    let start = |name: &str| Running::start(make(), name, division);
    let mut nodes = vec![start("a"), start("b"), start("c")];
    let clock = SystemClock::new();
    let part = |node: &Running| u64::from(node.part.at(clock.now())) * 100 / u64::from(Part::WHOLE);
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
    let leads = |node: &Running| (node.status)().leads;
    // It is not specified which one leads: nodes that start together may join in any order, and a node that was held up
    // joins again as the last.
    until(&nodes[1..], "one of those that are left leads", || (), || leads(&nodes[1]) != leads(&nodes[2]));
    nodes.iter_mut().for_each(Running::stop);
    assert!(
        block_on(coordinator.members()).is_ok_and(|members| members.is_empty()),
        "law: who is stopped is no member"
    );
}
