//! Finds the policies that may match a request without trying each: a thousand policies for other paths cost nothing.
//!
//! Each policy is filed under one condition that its requests must meet: exact values of an attribute or header, exact
//! hosts, or the leading literal segments of its paths; otherwise under "always". For a request, each of these tables is
//! looked up, and the few lists found are merged in the order of the policies.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::matching::{Match, View, Want};
use super::path::{DEPTH, NormalPath};

/// For each value, the places of the policies that require it, in ascending order.
#[derive(Clone, Debug, Default)]
struct ValueTable {
    lists: HashMap<Box<str>, Vec<u32>, RandomState>,
    /// A bit set of the lengths of the values, in bytes modulo 64: a value of any other length need not be hashed.
    lengths: u64,
}

/// The lookup tables of one set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    always: Vec<u32>,
    by_attribute: Vec<(Box<str>, ValueTable)>,
    by_host: ValueTable,
    /// At `depth - 1`: the first `depth` segments, as a path.
    by_path: [ValueTable; DEPTH],
    /// The number of path tables up to the last that is not empty.
    depth: usize,
}

impl Index {
    /// Files the matches of a set, each with its place in the set. One place may be filed under several values.
    pub(crate) fn build<'m>(matches: impl Iterator<Item = (u32, &'m Match)>) -> Self {
        let mut index = Self::default();
        for (place, matching) in matches {
            index.file(place, matching);
        }
        index
    }

    fn file(&mut self, place: u32, matching: &Match) {
        for (name, want) in matching.attributes() {
            let Want::OneOf(globs) = want else { continue };
            let Some(values) = globs.iter().map(|glob| glob.literals()).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let table = match self.by_attribute.iter().position(|(have, _)| have == name) {
                Some(at) => &mut self.by_attribute[at].1,
                None => {
                    self.by_attribute.push((name.clone(), ValueTable::default()));
                    let last = self.by_attribute.len() - 1;
                    &mut self.by_attribute[last].1
                }
            };
            return values.into_iter().flatten().for_each(|value| table.add(value, place));
        }
        let hosts = matching.hosts();
        let literal_hosts = hosts.iter().map(|glob| glob.literals()).collect::<Option<Vec<_>>>();
        if let Some(values) = literal_hosts.filter(|_| !hosts.is_empty()) {
            return values.into_iter().flatten().for_each(|host| self.by_host.add(host, place));
        }
        let paths = matching.paths();
        let prefixes = || paths.iter().flat_map(|glob| glob.literal_prefixes(DEPTH));
        if paths.is_empty() || prefixes().any(|(depth, _)| depth == 0) {
            return self.always.push(place);
        }
        for (depth, path) in prefixes() {
            self.by_path[depth - 1].add(path, place);
            self.depth = self.depth.max(depth);
        }
    }

    /// Finds the place of each policy that may match, once and in order. Allocates nothing for up to eight lists.
    ///
    /// `found` must be empty.
    pub(crate) fn look_up<'i>(&'i self, view: &View<'_, '_>, found: &mut Candidates<'i>) {
        found.add(&self.always);
        for (name, table) in &self.by_attribute {
            if let Some(value) = view.descriptor.value(name) {
                found.add(table.get(value));
            }
        }
        if !self.by_host.is_empty()
            && let Some(host) = view.host()
        {
            found.add(self.by_host.get(host));
        }
        if self.depth > 0
            && let Some(readings) = view.path()
        {
            readings.each().for_each(|reading| self.look_up_path(reading, found));
        }
    }

    #[inline]
    fn look_up_path<'i>(&'i self, path: &NormalPath<'_>, found: &mut Candidates<'i>) {
        for (table, prefix) in self.by_path[..self.depth].iter().zip(path.prefixes()) {
            found.add(table.get(prefix));
        }
    }
}

impl ValueTable {
    fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    fn add(&mut self, value: &str, place: u32) {
        self.lengths |= length_bit(value);
        let list = self.lists.entry(value.into()).or_default();
        if list.last() != Some(&place) {
            list.push(place);
        }
    }

    #[inline]
    fn get(&self, value: &str) -> &[u32] {
        if self.lengths & length_bit(value) == 0 {
            return &[];
        }
        self.lists.get(value).map_or(&[], Vec::as_slice)
    }
}

const fn length_bit(value: &str) -> u64 {
    1 << (value.len() % 64)
}

/// The places of policies that may match, in ascending order, from one or several lists.
#[derive(Debug, Default)]
pub(crate) struct Candidates<'i> {
    first: &'i [u32],
    others: SmallVec<[&'i [u32]; 7]>,
}

impl<'i> Candidates<'i> {
    #[inline]
    fn add(&mut self, list: &'i [u32]) {
        if self.first.is_empty() {
            self.first = list;
        } else if !list.is_empty() {
            self.others.push(list);
        }
    }

    /// Removes the smallest place from all lists that have it and returns it.
    fn merge(&mut self) -> Option<u32> {
        let heads = self.others.iter().filter_map(|list| list.first());
        let least = *heads.chain(self.first.first()).min()?;
        for list in self.others.iter_mut().chain([&mut self.first]) {
            while let [first, rest @ ..] = *list
                && *first == least
            {
                *list = rest;
            }
        }
        Some(least)
    }
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if !self.others.is_empty() {
            return self.merge().map(|place| place as usize);
        }
        let (least, rest) = self.first.split_first()?;
        self.first = rest;
        Some(*least as usize)
    }
}
