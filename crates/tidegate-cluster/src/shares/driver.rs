//! A task that keeps this node a member, and keeps its part as the nodes have agreed.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_limits::clock::{Clock, before};
use tidegate_limits::store::Later;

use super::protocol::{Leader, Node, ROUNDS, Seen};
use super::{AVERAGED_OVER, Division, Reported, Shares, by_region, region_number};
use crate::{Coordinator, CoordinatorError, Member, MemberReport, OwnReport, Part};

pub(super) const NAME: &str = "shares";

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The pause of the leader while another node waits for something that a node still has to give up.
const LOOK_SOON: Duration = Duration::from_millis(100);

/// The state of the shares, as far as this node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// This node's number ([`Member::joined`]); `None` while it is not a member.
    pub joined: Option<u64>,
    /// Whether it leads.
    pub leads: bool,
    /// The number of members at this node's last look.
    pub members: usize,
    /// The turn of the shares that it follows: how often their document was written since it was
    /// begun; 0 before the first.
    pub turn: u64,
    /// Its part of the [whole](Part::WHOLE), its permanent part included; that alone once the rest has lapsed.
    pub part: u32,
    /// Until when that part is valid, unless it is renewed.
    pub until: Tick,
    /// Whether there are more members than the stated maximum; with regions, more regions.
    pub too_many: bool,
    /// Why the last round failed; `None` if it did not.
    pub failed: Option<String>,
}

/// Joins, renews, reads, leads if this node is the first, and sets a [`Part`]. It does so while [`Driver::run`] is
/// polled.
///
/// It needs no runtime: its clock provides time and waiting ([`Clock::sleep_until`]).
pub struct Driver {
    coordinator: Arc<dyn Coordinator>,
    clock: Arc<dyn Clock>,
    name: String,
    /// The number of this node's region in the document.
    region: Option<u64>,
    own_report: OwnReport,
    part: Part,
    division: Division,
    demand: Box<dyn Fn() -> u64 + Send + Sync>,
    status: Arc<Mutex<Status>>,
    state: State,
}

struct State {
    node: Node,
    leader: Leader,
    joined: Option<u64>,
    version: u64,
    /// The first node in the document.
    first: Option<u64>,
    turn: Option<(Seen, Tick)>,
    measured: Option<(Tick, u64)>,
    average: f64,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    at: Tick,
    or_sooner: bool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("name", &self.name)
            .field("coordinator", &self.coordinator)
            .field("status", &*self.status.lock())
            .finish_non_exhaustive()
    }
}

impl Driver {
    /// Makes a driver. `demand` returns how many units this node has been asked for in all, as
    /// [`Split::demand`](crate::Split::demand) counts them; a number that decreases counts as unchanged. All nodes
    /// have to count the same: only the proportion between them matters, so a node that counts requests where others
    /// count units gets too little.
    pub fn new(
        coordinator: Arc<dyn Coordinator>,
        clock: impl Clock + 'static,
        name: impl Into<String>,
        division: Division,
        demand: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let keeps = coordinator.keeps();
        Self {
            coordinator,
            clock: Arc::new(clock),
            name: name.into(),
            region: None,
            own_report: OwnReport::default(),
            part: division.part(),
            division,
            demand: Box::new(demand),
            status: Arc::default(),
            state: State {
                node: Node::default(),
                leader: Leader::new(division, keeps),
                joined: None,
                version: 0,
                first: None,
                turn: None,
                measured: None,
                average: 0.0,
            },
        }
    }

    /// Makes this node share one part with all nodes of the same region; the [division](Division::among) then counts
    /// regions. An empty name means no region. Either all nodes name one, or none.
    #[must_use]
    pub fn in_region(mut self, name: &str) -> Self {
        let name = name.replace(['\n', '\r'], " ");
        self.region = (!name.is_empty()).then(|| region_number(&name));
        self.own_report.with(|report| report.region = name);
        self
    }

    /// Returns the part that this driver sets, for stores to read.
    #[must_use]
    pub fn part(&self) -> Part {
        self.part.clone()
    }

    /// Returns this node's report about itself, for others to add to.
    #[must_use]
    pub fn own_report(&self) -> OwnReport {
        self.own_report.clone()
    }

    /// Returns a function that returns the present [`Status`].
    pub fn status(&self) -> impl Fn() -> Status + Send + Sync + 'static {
        let (status, part, clock) = (Arc::clone(&self.status), self.part.clone(), Arc::clone(&self.clock));
        move || Status { part: part.at(clock.now()), ..status.lock().clone() }
    }

    /// Runs until `over` completes, and then leaves, so that others get this node's part at once. Run again, it joins
    /// again.
    ///
    /// # Cancel safety
    /// If the driver is dropped, this node gives up its part at once; the others get it when the engine forgets this
    /// node.
    pub async fn run(&mut self, over: impl Future<Output = ()> + Send) {
        let mut over = Box::pin(over);
        loop {
            let next = {
                let round = Box::pin(self.turn());
                match select(round, over).await {
                    Either::Left((next, still)) => {
                        over = still;
                        next
                    }
                    Either::Right(_) => break,
                }
            };
            match select(Box::pin(self.wait(next)), over).await {
                Either::Left(((), still)) => over = still,
                Either::Right(_) => break,
            }
        }
        self.give_up();
        let until = self.patience();
        let leaves = self.coordinator.leave();
        let _ = self.wait_until(until, leaves).await;
        let _ = self.give_away(until).await;
        (self.state.joined, self.state.turn) = (None, None);
        self.show();
    }

    /// Writes that this node, which uses its part no longer, holds nothing: all others read it at once. The next that
    /// joins may take it, and the next that is to lead sees that this one has gone. The part of a region belongs to its
    /// other nodes.
    async fn give_away(&self, until: Tick) -> Result<(), CoordinatorError> {
        let (Some(joined), None) = (self.state.joined, self.region) else { return Ok(()) };
        loop {
            let document = self.wait_until(until, self.coordinator.read(NAME)).await?;
            let shares = document.bytes.as_deref().and_then(Shares::decode);
            let Some(next) = shares.and_then(|shares| shares.without(joined)) else { return Ok(()) };
            if self.replace(until, document.version, &next).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Takes what no node holds, up to an even part, if this node is a new member without a part: so that it need not
    /// wait for the leader. Returns whether it has.
    async fn take_free(&mut self) -> Result<bool, CoordinatorError> {
        let until = self.patience();
        let (Some(joined), None) = (self.state.joined, self.region) else { return Ok(false) };
        let document = self.wait_until(until, self.coordinator.read(NAME)).await?;
        let shares = document.bytes.as_deref().and_then(Shares::decode);
        // Read after the document, as by a leader.
        let members = self.wait_until(until, self.coordinator.members()).await?.len();
        let Some(next) = shares.and_then(|shares| shares.with(joined, self.division.pool(members), members))
        else {
            return Ok(false);
        };
        Ok(self.replace(until, document.version, &next).await?.is_some())
    }

    async fn replace(
        &self,
        until: Tick,
        version: u64,
        next: &Shares,
    ) -> Result<Option<u64>, CoordinatorError> {
        self.wait_until(until, self.coordinator.replace(NAME, version, next.encode())).await
    }

    async fn turn(&mut self) -> Next {
        let at = self.patience();
        let mut before = self.state.joined;
        let mut result = self.round().await;
        if self.is_forgotten(&result) {
            // Joins again at once, but not twice in a row.
            before = None;
            result = self.round().await;
            self.is_forgotten(&result);
        }
        // Tried once: the leader gives it the rest.
        if before.is_none() && result.is_ok() && self.take_free().await.is_ok_and(|taken| taken) {
            result = self.round().await;
            self.is_forgotten(&result);
        }
        match result {
            Ok(true) => {
                // The others wait for the report that this node has seen the turn.
                let again = self.round().await;
                self.is_forgotten(&again);
            }
            Ok(false) => {}
            Err(error) => {
                self.status.lock().failed = Some(error.to_string());
                return Next { at, or_sooner: false };
            }
        }
        self.status.lock().failed = None;
        match self.lead().await {
            Some(soon) => Next { at: at.min(self.clock.now().after(soon)), or_sooner: true },
            None => Next { at, or_sooner: true },
        }
    }

    /// Returns whether the engine has forgotten this node, which then has no part.
    fn is_forgotten<T>(&mut self, result: &Result<T, CoordinatorError>) -> bool {
        let forgotten = matches!(result, Err(CoordinatorError::Forgotten(_)));
        if forgotten {
            self.state.joined = None;
            self.give_up();
        }
        forgotten
    }

    async fn wait(&self, next: Next) {
        let sleep = self.clock.sleep_until(next.at);
        if !next.or_sooner {
            // This node's version may be old; then `changed` would complete at once, again and again.
            return sleep.await;
        }
        let changed = self.coordinator.changed(NAME, self.state.version);
        let changed = async {
            // An error must not end the wait: `changed` would be tried again and again.
            if changed.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        select(sleep, select(Box::pin(changed), Box::pin(self.own_report.urgent_change()))).await;
    }

    /// Joins or renews, then reads. Returns whether it read a turn that it has not reported yet.
    async fn round(&mut self) -> Result<bool, CoordinatorError> {
        let (began, keeps, until) = (self.clock.now(), self.coordinator.keeps(), self.patience());
        self.measure(began);
        let report = self.own_report.with(|report| {
            let seen = self.state.node.seen();
            (report.line, report.turn) = (seen.line, seen.turn);
            report.demand = (self.state.average * 1e3) as u64;
            report.encode()
        });
        let joined = match self.state.joined {
            Some(joined) => {
                self.wait_until(until, self.coordinator.renew(&report)).await?;
                joined
            }
            None => self.wait_until(until, self.coordinator.join(&self.name, &report)).await?,
        };
        self.state.joined = Some(joined);
        let document = self.wait_until(until, self.coordinator.read(NAME)).await?;
        let shares = document.bytes.as_deref().and_then(Shares::decode);
        let now_seen = self.state.node.seen();
        self.state.node.read(self.region.unwrap_or(joined), began, keeps, shares.as_ref());
        self.state.version = document.version;
        self.state.first = shares.as_ref().and_then(|shares| shares.nodes.first()).map(|node| node.joined);
        self.show();
        let seen = self.state.node.seen();
        if shares.is_none() {
            self.state.turn = None;
        } else if self.state.turn.is_none_or(|(held, _)| held != seen) {
            self.state.turn = Some((seen, began));
        }
        Ok(seen != now_seen)
    }

    /// Looks as a leader, if this node may be one; returns when to look again, or `None` if it does not lead.
    async fn lead(&mut self) -> Option<Duration> {
        let (now, keeps, until) = (self.clock.now(), self.coordinator.keeps(), self.patience());
        // While another node writes, this one need not read the members, unless it comes first in the document: the
        // node that led may have left.
        let led = self.state.turn.is_some_and(|(_, since)| now.since(since) < keeps);
        let joined = self.state.joined?;
        if led && !self.status.lock().leads && self.state.first != Some(joined) {
            return None;
        }
        let looked = async {
            let document = self.wait_until(until, self.coordinator.read(NAME)).await?;
            let members = self.wait_until(until, self.coordinator.members()).await?;
            Ok::<_, CoordinatorError>((document, members))
        };
        let Ok((document, members)) = looked.await else { return Some(LOOK_EVERY) };
        let leads = members.first().is_some_and(|first| first.joined == joined);
        let nodes = members.len();
        let reported = |member: &Member| Reported {
            number: member.joined,
            report: MemberReport::decode(&member.report),
        };
        let members = by_region(members.iter().map(reported));
        {
            let mut status = self.status.lock();
            (status.leads, status.members) = (leads, nodes);
            status.too_many = self.division.is_exceeded(members.len());
        }
        if !leads {
            return None;
        }
        let shares = document.bytes.as_deref().and_then(Shares::decode);
        // Hashed with a random key from the system.
        let drawn = RandomState::new().hash_one(joined);
        if let Some(next) =
            self.state.leader.next_document(self.clock.now(), shares.as_ref(), &members, drawn)
        {
            // If the write is lost or late, the next look finds that.
            let _ = self.replace(until, document.version, &next).await;
        }
        Some(if self.state.leader.is_waiting() { LOOK_SOON } else { LOOK_EVERY })
    }

    /// Updates the average of this node's demand, at any interval.
    fn measure(&mut self, now: Tick) {
        let asked = (self.demand)();
        let Some((at, before)) = self.state.measured else {
            self.state.measured = Some((now, asked));
            return;
        };
        let passed = now.since(at);
        if !passed.is_zero() {
            let rate = asked.saturating_sub(before) as f64 / passed.as_secs_f64();
            let new = -(-passed.div_duration_f64(AVERAGED_OVER)).exp_m1();
            self.state.average += (rate - self.state.average) * new;
            self.state.measured = Some((now, asked));
        }
    }

    fn show(&self) {
        let (now, node) = (self.clock.now(), &self.state.node);
        let part = self.division.permanent_part().saturating_add(node.at(now));
        self.part.set(part, now, node.until());
        let mut status = self.status.lock();
        (status.joined, status.turn) = (self.state.joined, node.seen().turn);
        (status.part, status.until) = (part, node.until());
    }

    fn give_up(&mut self) {
        self.state.node.leave();
        self.show();
        self.status.lock().leads = false;
    }

    fn patience(&self) -> Tick {
        self.clock.now().after(self.coordinator.keeps() / ROUNDS)
    }

    async fn wait_until<T>(
        &self,
        until: Tick,
        later: Later<Result<T, CoordinatorError>>,
    ) -> Result<T, CoordinatorError> {
        match before(&*self.clock, until, later).await {
            Some(answer) => answer,
            None => {
                let patience = self.coordinator.keeps() / ROUNDS;
                let reason = format!("no answer within {} ms", patience.as_millis());
                Err(CoordinatorError::Unavailable { reason })
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
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
            let failing =
                Failing { inner: cluster.node(), mood: Arc::clone(&mood), calls: Arc::clone(&calls) };
            let mut driver = Driver::new(Arc::new(failing), clock.clone(), "a", Division::among(2), || 0);
            let (part, status) = (driver.part(), Box::new(driver.status()));
            let run = Box::pin(async move { driver.run(std::future::pending()).await });
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
            tidegate_limits::block_on(async {
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
        // Regression: it told the part that it no longer used, for as long as it was cut off.
        assert_eq!((rig.status)().part, rig.part());
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
}
