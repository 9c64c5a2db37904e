//! The agents with the most requests, in bounded memory.

use std::collections::HashMap;
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;

use super::group::{Group, Shared};
use crate::log::Record;
use crate::peaks::GivenHash;
use crate::suggest::signs::{Evidence, agent_name};

/// The agents counted at once, about 4 KiB each. Once counted, an agent with more than one request in 65 stays
/// counted.
const COUNTED: usize = 64;

/// The agents, and what the keys that send them ask for.
#[derive(Debug)]
pub(super) struct Agents {
    hasher: FixedState,
    counted: HashMap<u64, (u64, Group), GivenHash>,
}

impl Default for Agents {
    fn default() -> Self {
        Self { hasher: FixedState::with_seed(1), counted: HashMap::default() }
    }
}

impl Agents {
    /// Counts a request.
    ///
    /// # Source
    /// Misra, Gries: Finding repeated elements, 1982.
    pub(super) fn add(&mut self, record: &Record<'_>, key: u64) {
        let agent = record.agent();
        if agent.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(&*agent);
        if let Some((count, group)) = self.counted.get_mut(&hash) {
            *count += 1;
            group.evidence.add(record, key);
        } else if self.counted.len() < COUNTED {
            let mut group =
                Group { shared: Shared::Agent(agent_name(&agent).into_owned()), evidence: Evidence::new() };
            group.evidence.add(record, key);
            self.counted.insert(hash, (1, group));
        } else {
            self.counted.retain(|_, (count, _)| {
                *count -= 1;
                *count > 0
            });
        }
    }

    /// Returns the agent with the most requests among those that only this key sends and that pass a test.
    pub(super) fn only_of(&self, key: u64, passes: impl Fn(&Evidence) -> bool) -> Option<&Group> {
        let own =
            self.groups().filter(|group| group.evidence.only_key() == Some(key) && passes(&group.evidence));
        own.max_by(|a, b| {
            a.evidence.requests().cmp(&b.evidence.requests()).then_with(|| b.shared.cmp(&a.shared))
        })
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.counted.values().map(|(_, group)| group)
    }
}
