//! Tells whether others ask for the same pages: a crawler takes what everybody reads, an app asks for its own user's
//! data.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;

use crate::log::Record;
use crate::suggest::signs::{Evidence, PATHS};

/// The pages followed: those with the smallest hashes, a fair sample of all, in about 50 KiB.
const FOLLOWED: usize = 1_024;
/// The least share, and the least number, of a crawler's sampled pages that a client with another agent asks for too.
const READ: (f64, usize) = (0.02, 2);

/// A sample of the pages of a log, and whether different agents asked for each.
#[derive(Debug)]
pub(super) struct Pages {
    paths: FixedState,
    /// For each page, the agent that asked first, and whether another one did too.
    followed: BTreeMap<u64, (u64, bool)>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { paths: FixedState::with_seed(PATHS), followed: BTreeMap::new() }
    }
}

impl Pages {
    pub(super) fn add(&mut self, record: &Record<'_>) {
        if record.path.is_empty() {
            return;
        }
        let hash = self.paths.hash_one(record.path);
        let is_full = self.followed.len() == FOLLOWED;
        if is_full && self.followed.last_key_value().is_some_and(|(largest, _)| hash > *largest) {
            return;
        }
        let agent = self.paths.hash_one(&*record.agent());
        self.followed
            .entry(hash)
            .and_modify(|(first, several)| *several |= *first != agent)
            .or_insert((agent, false));
        if self.followed.len() > FOLLOWED {
            self.followed.pop_last();
        }
    }

    /// Says whether others read some of the pages in this evidence.
    pub(super) fn are_read_by_others(&self, evidence: &Evidence) -> bool {
        let followed: Vec<bool> = evidence
            .pages()
            .filter_map(|page| self.followed.get(&page).map(|(_, several)| *several))
            .collect();
        let read = followed.iter().filter(|several| **several).count();
        read >= READ.1 && read as f64 >= READ.0 * followed.len() as f64
    }
}
