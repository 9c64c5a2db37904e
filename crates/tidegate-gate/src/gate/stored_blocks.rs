//! Blocks by limits that a store keeps, where its counters outlive this process or are shared with other nodes.
//!
//! A stored block is one more key of the policy, under a limit of 1 for the time of the block: the refusal that begins the
//! block charges it, so it is empty until the block ends, and refusals by other nodes do not make it longer. Before a
//! request is decided, the gate looks at that key, unless it knows of a block that holds. What it finds is kept in
//! [`BlockTable`](super::blocks::BlockTable) like a block of this process, for a second if other nodes may end it.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Cost, Quota, Retry, Tick};

use super::waits::{Waits, run_without_waiting};
use super::{Check, Gate, GateDecision};
use crate::explain::key_text;
use crate::policy::{Block, Descriptor, Mode, Over, PolicySet, Share};
use tidegate_limits::store::{
    Charge, ChargeRules, DecidedBy, Executed, Home, Op, Step, StepClock, StoreError,
};

/// How long a gate goes by a block in a store that other nodes use too: one that was ended there holds here for this long.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The key under which a store keeps the block of one key of a policy.
struct StoredBlock<'p> {
    store: usize,
    /// Whether other nodes may change it.
    is_shared: bool,
    /// The key of the policy's first limit, under which the gate keeps the block.
    key: Vec<u8>,
    cell: Vec<u8>,
    quota: &'p Arc<Quota>,
    owner: u32,
    lasts: Duration,
}

impl Gate {
    /// Reports whether a store keeps blocks of these policies.
    #[inline]
    pub(super) fn stores_blocks(&self, policies: &PolicySet) -> bool {
        policies.blocks_over(false) && !self.routes.forget()
    }

    /// Takes over the blocks of a request's keys that stores know and this gate does not. A store that does not answer
    /// knows none: the limits of the request say what happens then.
    pub(super) async fn learn_blocks(&self, check: &Check<'_, '_>, policies: &PolicySet, waits: Waits) {
        let mut unknown: SmallVec<[usize; 4]> = SmallVec::new();
        let by_now = self.time.now();
        // Nothing is refused here: each policy that may refuse by a block is noted.
        let _ = policies.refuse_by(check.request, check.priority, check.among, |place, policy| {
            let blocks = matches!(policy.over, Over::Block { .. }) && policies.is_keyed(place, check.request);
            let key = if blocks { policies.key(place, 0, check.request) } else { None };
            if key.is_some_and(|key| self.blocks.until(&policy.name, &key, by_now).is_none()) {
                unknown.push(place);
            }
            None
        });
        for place in unknown {
            let asked = self.learn_block(policies, place, check.request, waits);
            let _ = self.before(self.tick_of(check), asked).await;
        }
    }

    /// Keeps the blocks that a decision began in the stores that keep them.
    pub(super) async fn keep_blocks(&self, check: &Check<'_, '_>, decision: &mut GateDecision, waits: Waits) {
        if check.peek || decision.refusal.is_some() {
            return;
        }
        let policies = decision.keep_policies();
        let mut last = None;
        for line in &decision.limits {
            let policy = &policies.policies()[line.policy];
            let refuses = matches!(line.decision.ruling, Ruling::Denied { retry } if retry != Retry::Never);
            let begins = matches!(policy.over, Over::Block { .. }) && policy.mode == Mode::Enforce;
            if !(refuses && begins && line.binding) || last == Some(line.policy) {
                continue;
            }
            last = Some(line.policy);
            let Some(stored) = self.stored_block(&policies, line.policy, check.request) else { continue };
            let Ok(executed) = self.execute_on_block(&stored, Op::Take, waits).await else { continue };
            let wait = match ruling(&executed) {
                Some(Ruling::Denied { retry: Retry::After(wait) }) => wait,
                Some(Ruling::Allowed { .. }) => stored.lasts,
                _ => continue,
            };
            self.know_block(&policies, line.policy, check.request, &stored, wait);
        }
    }

    /// Returns the block of a key that is in effect, and asks the store that keeps it.
    pub(super) async fn block_of(
        &self,
        policy: &str,
        key: &Descriptor<'_>,
    ) -> Result<Option<Arc<Block>>, StoreError> {
        let set = self.policies.load_full();
        let Some((place, _)) = set.find(policy) else { return Ok(None) };
        self.learn_block(&set, place, key, Waits::Yes).await?;
        let now = self.time.now();
        let Some(bytes) = set.key(place, 0, key) else { return Ok(None) };
        Ok(self.blocks.get(policy, &bytes).filter(|block| now < block.until))
    }

    /// Ends the block of a key, also where a store keeps it, and waits for that store.
    pub(super) async fn unblock_stored(
        &self,
        policy: &str,
        key: &Descriptor<'_>,
    ) -> Result<Option<Arc<Block>>, StoreError> {
        let set = self.policies.load_full();
        let ended = self.block_of(policy, key).await?;
        if let Some((place, _)) = set.find(policy)
            && let Some(stored) = self.stored_block(&set, place, key)
        {
            let executed = self.execute_on_block(&stored, Op::Reset, Waits::Yes).await?;
            if executed.by == DecidedBy::Fallback {
                let reason = "a fallback stands in for it".to_owned();
                return Err(StoreError::Unavailable { reason });
            }
        }
        self.unblock_here(policy, key);
        Ok(ended)
    }

    /// Forgets the block of a key in the store that keeps it, without waiting for the store.
    pub(super) fn forget_stored(&self, set: &PolicySet, place: usize, key: &Descriptor<'_>) {
        if let Some(stored) = self.stored_block(set, place, key) {
            let _ = run_without_waiting(self.execute_on_block(&stored, Op::Reset, Waits::Unwatched));
        }
    }

    /// Takes over the block of one key from the store that keeps it, or that there is none.
    async fn learn_block(
        &self,
        set: &PolicySet,
        place: usize,
        request: &Descriptor<'_>,
        waits: Waits,
    ) -> Result<(), StoreError> {
        let Some(stored) = self.stored_block(set, place, request) else { return Ok(()) };
        let looked = self.execute_on_block(&stored, Op::Peek, waits).await;
        let (name, now) = (&set.policies()[place].name, self.time.now());
        match looked.as_ref().ok().and_then(ruling) {
            Some(Ruling::Denied { retry: Retry::After(wait) }) => {
                self.know_block(set, place, request, &stored, wait);
            }
            Some(Ruling::Allowed { .. }) => {
                self.blocks.end_by_limit(name, &stored.key, now);
            }
            // While the store is gone, this process goes by what it knows.
            _ => self.blocks.go_on(name, &stored.key, now, now.after(KNOWN_FOR)),
        }
        looked.map(drop)
    }

    /// Notes a block that ends after `wait`, as a store says.
    fn know_block(
        &self,
        set: &PolicySet,
        place: usize,
        request: &Descriptor<'_>,
        stored: &StoredBlock<'_>,
        wait: Duration,
    ) {
        let (now, policy) = (self.time.now(), &set.policies()[place]);
        let until = now.after(wait);
        let since =
            until.as_nanos().saturating_sub(u64::try_from(stored.lasts.as_nanos()).unwrap_or(u64::MAX));
        let mut block =
            Block::by_limit(&key_text(set, policy, request), Tick::from_nanos(since).min(now), until);
        if stored.is_shared {
            block.known_until = until.min(now.after(KNOWN_FOR));
        }
        self.blocks.know(&policy.name, &stored.key, now, block);
    }

    /// Executes the key of a stored block.
    async fn execute_on_block(
        &self,
        stored: &StoredBlock<'_>,
        op: Op<'_>,
        waits: Waits,
    ) -> Result<Executed, StoreError> {
        let rules = ChargeRules::new(stored.owner);
        let charges = [Charge { rules, ..Charge::new(&stored.cell, stored.quota, Cost::ONE) }];
        let tag = self.routes.tag(stored.store, &stored.cell);
        let step = Step {
            tag,
            clock: StepClock::Engine,
            receipts: false,
            ..Step::new(self.time.now(), op, &charges)
        };
        self.ask(stored.store, &step, waits).await.unwrap_or(Err(StoreError::MustWait))
    }

    /// Returns where a store keeps the block of a key; `None` where this process alone keeps it.
    fn stored_block<'p>(
        &self,
        set: &'p PolicySet,
        place: usize,
        request: &Descriptor<'_>,
    ) -> Option<StoredBlock<'p>> {
        let policy = &set.policies()[place];
        let Over::Block { lasts } = policy.over else { return None };
        let own = self.routes.of(policy.share).ok()?;
        if self.routes.forgets(own) {
            return None;
        }
        // A node's part of a limit of 1 would be all of it or nothing, so nodes share the key itself.
        let store = self.routes.of(Some(Share::Central)).unwrap_or(own);
        let (cell, quota, owner) = set.block_key(place, request)?;
        let is_shared = self.routes.store(store).home() == Home::Nodes;
        Some(StoredBlock { store, is_shared, key: set.key(place, 0, request)?, cell, quota, owner, lasts })
    }
}

/// Returns what a store says of a block. `None`: a fallback stands in for it, which does not know.
fn ruling(executed: &Executed) -> Option<Ruling> {
    let line = executed.lines.first().filter(|_| executed.by != DecidedBy::Fallback)?;
    Some(line.decision.ruling)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::Policy;
    use crate::policy::Limit;
    use tidegate_limits::ManualClock;
    use tidegate_limits::block_on;
    use tidegate_limits::store::{Caps, Execution, Occupancy, PlainStore, Store};

    const NOON: Tick = Tick::from_secs(1_800_014_400);

    /// A map that outlives gates, or is shared by them.
    #[derive(Debug)]
    struct Kept {
        cells: PlainStore,
        home: Home,
        is_gone: AtomicBool,
    }

    impl Store for Kept {
        fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
            if self.is_gone.load(Ordering::Relaxed) {
                return Execution::Done(Err(StoreError::Unavailable { reason: "gone".to_owned() }));
            }
            self.cells.execute_into(step, out)
        }

        fn occupancy(&self) -> Occupancy {
            self.cells.occupancy()
        }

        fn caps(&self) -> Caps {
            let mut caps = self.cells.caps();
            caps.always_decides = false;
            caps
        }

        fn home(&self) -> Home {
            self.home
        }
    }

    fn kept(home: Home) -> Arc<Kept> {
        Arc::new(Kept { cells: PlainStore::default(), home, is_gone: AtomicBool::new(false) })
    }

    fn gate(store: &Arc<Kept>, clock: &ManualClock) -> Gate {
        let limit = Limit::new(Quota::per_minute(2).fixed_window().unwrap(), "2/min");
        let mut policy = Policy::new("per-user", limit);
        policy.by = vec!["user.id".to_owned()];
        policy.over = Over::Block { lasts: Duration::from_secs(600) };
        let set = PolicySet::new(vec![policy]).unwrap();
        let gate = Gate::new(set, Arc::clone(store) as Arc<dyn Store>).with_clock(clock.clone());
        assert!(gate.unfit(&gate.policies()).is_empty());
        gate
    }

    fn user(id: &str) -> Descriptor<'_> {
        Descriptor::new().with("user.id", id)
    }

    fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Until now counters on disk outlived a restart and blocks did not, and nodes did not know each other's, so that a
    /// file with both was refused.
    #[test]
    fn a_block_outlives_its_gate_where_the_counters_do() {
        let (store, clock) = (kept(Home::of_process()), ManualClock::at(NOON));
        let first = gate(&store, &clock);
        let answers = [0; 3].map(|_| first.check(&user("1")).now().unwrap().allowed);
        assert_eq!(answers, [true, true, false]);
        drop(first);
        clock.advance(secs(300));
        let second = gate(&store, &clock);
        assert!(second.blocks().list("per-user").is_empty());
        let looked = second.check(Check::of(&user("1")).peek()).now().unwrap();
        assert_eq!((looked.allowed, looked.retry()), (false, Retry::After(secs(300))));
        let block = second.blocks().list("per-user").remove(0);
        assert_eq!((block.since, block.until, block.by_limit), (NOON, NOON.after(secs(600)), true));
        assert_eq!(&*block.key, "user.id=1");
        assert!(second.check(&user("2")).now().unwrap().allowed);
        clock.advance(secs(299));
        let refused = second.check(&user("1")).now().unwrap();
        assert_eq!((refused.retry(), refused.refusal.unwrap().status), (Retry::After(secs(1)), 429));
        clock.advance(secs(1));
        assert!(second.check(&user("1")).now().unwrap().allowed, "refusals did not make it longer");
    }

    #[test]
    fn nodes_know_each_others_blocks_and_that_one_has_ended() {
        let (store, clock) = (kept(Home::Nodes), ManualClock::at(NOON));
        let (one, other) = (gate(&store, &clock), gate(&store, &clock));
        for _ in 0..2 {
            assert!(one.check(&user("1")).now().unwrap().allowed);
        }
        assert!(!other.check(&user("1")).now().unwrap().allowed, "the limit is shared");
        clock.advance(secs(60));
        let refused = block_on(one.check(&user("1"))).unwrap();
        assert_eq!((refused.allowed, refused.retry()), (false, Retry::After(secs(540))));
        let together = one.check_together(&[Check::of(&user("2")), Check::of(&user("1"))]).now().unwrap();
        assert!(!together.allowed && together.decisions[1].refusal.is_some());
        let each = one.check_each(&[Check::of(&user("1")), Check::of(&user("2"))]).now();
        let each: Vec<bool> = each.into_iter().map(|decided| decided.unwrap().allowed).collect();
        assert_eq!(each, [false, true]);
        // Ended at one node, it holds at the other for a second more at most.
        let ended = block_on(one.blocks().remove("per-user", &user("1"))).unwrap().unwrap();
        assert_eq!(ended.until, NOON.after(secs(600)));
        assert!(one.check(&user("1")).now().unwrap().allowed);
        clock.advance(secs(1));
        assert!(other.check(&user("1")).now().unwrap().allowed);
        assert!(other.blocks().list("per-user").is_empty());
        assert_eq!(block_on(other.blocks().find("per-user", &user("1"))).unwrap(), None);
        assert_eq!(block_on(other.blocks().remove("per-user", &user("1"))).unwrap(), None);
        // Begun in a call of several checks, it is kept too.
        assert!(!one.check_together(&[Check::of(&user("1")).cost(2)]).now().unwrap().allowed);
        assert!(block_on(other.blocks().find("per-user", &user("1"))).unwrap().is_some());
        assert!(one.blocks().remove("per-user", &user("1")).now().unwrap().is_some());
        assert_eq!(block_on(other.blocks().find("per-user", &user("1"))).unwrap(), None);
    }

    /// An outage frees nobody whom this process knows to be blocked.
    #[test]
    fn a_block_that_is_known_holds_while_its_store_is_gone() {
        let (store, clock) = (kept(Home::Nodes), ManualClock::at(NOON));
        let (one, other) = (gate(&store, &clock), gate(&store, &clock));
        let answers = [0; 3].map(|_| one.check(&user("1")).now().unwrap().allowed);
        assert_eq!(answers, [true, true, false]);
        store.is_gone.store(true, Ordering::Relaxed);
        for _ in 0..9 {
            clock.advance(secs(60));
            assert!(one.check(&user("1")).now().unwrap().refusal.is_some());
            assert!(other.check(&user("1")).now().is_err(), "the limit has no store");
            assert!(block_on(other.blocks().find("per-user", &user("1"))).is_err());
            assert!(block_on(one.blocks().remove("per-user", &user("1"))).is_err(), "it has not ended");
        }
        store.is_gone.store(false, Ordering::Relaxed);
        assert!(!other.check(&user("1")).now().unwrap().allowed);
        clock.advance(secs(60));
        assert!(
            one.check(&user("1")).now().unwrap().allowed && other.check(&user("1")).now().unwrap().allowed
        );
    }

    /// A person's block is of this process, and the store, which has none, does not end it.
    #[test]
    fn a_block_by_hand_stays_where_the_store_has_none() {
        let (store, clock) = (kept(Home::Nodes), ManualClock::at(NOON));
        let (one, other) = (gate(&store, &clock), gate(&store, &clock));
        one.blocks()
            .add("per-user", &user("1"), Block::new("user.id=1", NOON, NOON.after(secs(90)), "abuse"))
            .unwrap();
        clock.advance(secs(30));
        assert!(
            !one.check(&user("1")).now().unwrap().allowed && other.check(&user("1")).now().unwrap().allowed
        );
        assert_eq!(&*block_on(one.blocks().find("per-user", &user("1"))).unwrap().unwrap().reason, "abuse");
    }
}
