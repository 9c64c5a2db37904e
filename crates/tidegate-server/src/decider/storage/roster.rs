//! Nodes that share an engine that does not coordinate them (Redis): each reports its policies, and tells its operator of
//! more nodes than `store.nodes` says, and of nodes with other policies.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::policy::{Limit, Mode, Policy, PolicySet, Share};
use tidegate::visible;

use crate::stores::{EngineLoad, Roster};

/// How often nodes report: a report is forgotten after ten seconds.
pub(crate) const REPORTS_EVERY: Duration = Duration::from_secs(3);

/// What is seen so often in a row is told: for longer than a node that died is remembered.
const SEEN: u32 = 4;

/// The nodes of an engine, as this one sees them.
#[derive(Debug)]
pub(crate) struct Nodes {
    roster: Arc<dyn Roster>,
    /// A number that no other process has.
    id: String,
    /// The name for people, in one line.
    name: String,
    /// The most nodes, by the file.
    most: u64,
    seen: Mutex<Seen>,
}

/// What the last look found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// How many nodes share the engine; 0 before the first answer, and while it is gone.
    pub(crate) members: usize,
    /// How long the engine took to answer.
    pub(crate) round_trip: Duration,
    /// How busy the engine is.
    pub(crate) load: EngineLoad,
    /// The names of nodes whose policies are others than this one's, and how often in a row there were some.
    others: (Vec<String>, u32),
    /// How often in a row there were more nodes than the file says.
    too_many: u32,
    /// How many looks in a row have failed.
    failures: u32,
    /// The configuration for which the digest was made.
    digest: (u64, String),
}

impl Seen {
    /// Returns whether more nodes share the engine than the file says.
    pub(crate) const fn too_many(&self) -> bool {
        self.too_many >= SEEN
    }

    /// Returns the names of nodes with other policies.
    pub(crate) fn others(&self) -> &[String] {
        if self.others.1 >= SEEN { &self.others.0 } else { &[] }
    }

    /// Takes the reports of all nodes, each a digest and a name.
    fn take(&mut self, reports: &[String], most: u64) {
        let digest = &self.digest.1;
        let of_others = reports.iter().filter_map(|report| report.split_once(' '));
        let mut others: Vec<String> = of_others
            .filter(|(its, _)| its != digest)
            .map(|(_, name)| visible::line(name).to_string())
            .collect();
        others.sort_unstable();
        (self.members, self.failures) = (reports.len(), 0);
        let again = |before: u32, is: bool| if is { before.saturating_add(1) } else { 0 };
        self.too_many = again(self.too_many, reports.len() as u64 > most);
        let times = again(self.others.1, !others.is_empty());
        self.others = (others, times);
    }
}

impl Nodes {
    pub(super) fn new(roster: Arc<dyn Roster>, name: &str, most: u64) -> Self {
        let id = format!("{:016x}", RandomState::new().build_hasher().finish());
        Self { roster, id, name: visible::line(name).to_string(), most, seen: Mutex::default() }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    /// Reports this node's policies, those of configuration `number`, and looks at the others. Called every
    /// [`REPORTS_EVERY`].
    pub(crate) async fn look(&self, policies: &PolicySet, number: u64) {
        let report = {
            let mut seen = self.seen.lock();
            if seen.digest.0 != number {
                seen.digest = (number, digest(policies));
            }
            format!("{} {}", seen.digest.1, self.name)
        };
        let asked = SystemClock::new().now();
        let reports = self.roster.exchange(&self.id, &report).await;
        let before = self.seen();
        let now = {
            let mut seen = self.seen.lock();
            match reports {
                Ok(reported) => {
                    (seen.round_trip, seen.load) = (SystemClock::new().now().since(asked), reported.load);
                    seen.take(&reported.nodes, self.most);
                }
                Err(error) => {
                    (seen.members, seen.failures) = (0, seen.failures.saturating_add(1));
                    // An outage is told by the store; this may also be a right that is missing.
                    if seen.failures == SEEN {
                        tracing::warn!(%error, "the nodes that share the engine cannot be counted");
                    }
                }
            }
            seen.clone()
        };
        self.tell(&before, &now);
    }

    fn tell(&self, before: &Seen, now: &Seen) {
        let store_nodes = self.most;
        match (before.too_many(), now.too_many()) {
            (false, true) => tracing::warn!(
                members = now.members,
                store_nodes,
                "more nodes share the engine than store.nodes says; while it is gone, together they may grant more than a limit: raise store.nodes on \
                 all nodes, or stop one"
            ),
            (true, false) => tracing::info!("no more nodes share the engine than store.nodes says"),
            _ => {}
        }
        match (before.others().is_empty(), now.others().is_empty()) {
            (true, false) => tracing::warn!(
                nodes = now.others().join(", "),
                "nodes that share the engine have other policies than this one: each counts the same keys under its own limits"
            ),
            (false, true) => tracing::info!("all nodes that share the engine have the same policies"),
            _ => {}
        }
    }

    /// Removes this node's report.
    pub(super) async fn leave(&self) {
        // If the engine does not answer now, the report is forgotten after ten seconds.
        let _ = self.roster.exchange(&self.id, "").await;
    }
}

/// Returns a digest of what nodes must agree on: the names, keys and limits of policies that the engine counts.
fn digest(policies: &PolicySet) -> String {
    let shared = |policy: &&Policy| policy.mode != Mode::Off && policy.share != Some(Share::Local);
    let mut lines: Vec<String> = policies.policies().iter().filter(shared).map(line_of).collect();
    lines.sort_unstable();
    let digest = Sha256::digest(lines.join("\n"));
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn line_of(policy: &Policy) -> String {
    let terms = |limit: &Limit| {
        let special = limit.overrides.iter().chain(&limit.tiers);
        let each = special.flat_map(|choice| choice.values.iter().map(move |value| (&choice.by, value)));
        let mut special: Vec<String> =
            each.map(|(by, (value, terms))| format!("{by:?} {value:?} {:?}", terms.label)).collect();
        special.sort_unstable();
        format!("{:?} {:?} {special:?}", limit.terms.label, limit.max_wait)
    };
    let limits: Vec<String> = policy.each_limit().map(terms).collect();
    let share = policy.share.unwrap_or(Share::Leased).word();
    format!("{:?} {:?} {share} {limits:?}", policy.name, policy.by)
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;

    use super::*;

    #[test]
    fn what_is_seen_for_longer_than_the_dead_are_remembered_is_told() {
        let mut seen = Seen { digest: (1, "d".to_owned()), ..Seen::default() };
        let reports = ["d a", "e b", "d c"].map(str::to_owned);
        for look in 1..=SEEN {
            seen.take(&reports, 2);
            assert_eq!((seen.too_many(), seen.others().len()), (look == SEEN, usize::from(look == SEEN)));
        }
        assert_eq!((seen.members, seen.others()), (3, &["b".to_owned()][..]));
        seen.take(&reports[..1], 2);
        assert!(!seen.too_many() && seen.others().is_empty());
    }

    #[test]
    fn a_digest_is_of_what_nodes_count_together_in_any_order() {
        let policy = |name: &str, label: &str| {
            Policy::new(name, Limit::new(Quota::per_second(1).gcra().unwrap(), label))
        };
        let of = |policies: &[Policy]| digest(&PolicySet::new(policies.to_vec()).unwrap());
        let (a, b) = (policy("a", "1/s"), policy("b", "1/s"));
        let mut local = policy("c", "1/s");
        local.share = Some(Share::Local);
        assert_eq!(of(&[a.clone(), b.clone()]), of(&[b.clone(), local, a.clone()]));
        assert_ne!(of(&[a.clone(), b]), of(&[a, policy("b", "2/s")]));
    }
}
