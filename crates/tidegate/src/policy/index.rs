//! Finds the policies that may match without asking each: a thousand that speak of other paths cost nothing.
//!
//! Each policy is filed under one thing it surely needs: the exact value of an attribute or header, an exact host, or the
//! leading literal segments of its paths. What needs none of these is filed under "always". A request looks itself up in each
//! drawer and merges the few lists, in the order of the policies.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::matching::{Match, View, Want};

/// How many leading segments of a path are looked at: `/api/v1/users` and its kind are told apart.
const MAX_DEPTH: usize = 4;

type Drawer = HashMap<Box<str>, Vec<u32>, RandomState>;

/// Ascending places, as found in several drawers.
type Lists<'i> = SmallVec<[&'i [u32]; 8]>;

/// The drawers of one set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    always: Vec<u32>,
    by_attribute: Vec<(Box<str>, Drawer)>,
    by_host: Drawer,
    /// At `depth - 1`: the first `depth` segments, as a path.
    by_path: [Drawer; MAX_DEPTH],
}

impl Index {
    /// Files the matches of a set, by their place in it. The same place may be filed under several values.
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
            let drawer = match self.by_attribute.iter().position(|(have, _)| have == name) {
                Some(at) => &mut self.by_attribute[at].1,
                None => {
                    self.by_attribute.push((name.clone(), Drawer::default()));
                    let last = self.by_attribute.len() - 1;
                    &mut self.by_attribute[last].1
                }
            };
            return values.into_iter().flatten().for_each(|value| add(drawer, value, place));
        }
        let hosts = matching.hosts();
        let literal_hosts = hosts.iter().map(|glob| glob.literals()).collect::<Option<Vec<_>>>();
        if let Some(values) = literal_hosts.filter(|_| !hosts.is_empty()) {
            return values.into_iter().flatten().for_each(|host| add(&mut self.by_host, host, place));
        }
        let paths = matching.paths();
        let prefixes = || paths.iter().flat_map(|glob| glob.literal_prefixes(MAX_DEPTH));
        if paths.is_empty() || prefixes().any(|(depth, _)| depth == 0) {
            return self.always.push(place);
        }
        for (depth, path) in prefixes() {
            add(&mut self.by_path[depth - 1], path, place);
        }
    }

    /// Calls `visit` with each place that may match, once, in order. Allocates nothing for up to eight lists.
    pub(crate) fn candidates(&self, view: &View<'_, '_>, mut visit: impl FnMut(usize)) {
        let mut lists: Lists<'_> = SmallVec::new();
        if !self.always.is_empty() {
            lists.push(&self.always);
        }
        for (name, drawer) in &self.by_attribute {
            if let Some(value) = view.descriptor.value(name) {
                look_up(drawer, value, &mut lists);
            }
        }
        if !self.by_host.is_empty()
            && let Some(host) = view.host()
        {
            look_up(&self.by_host, host, &mut lists);
        }
        let depth = MAX_DEPTH - self.by_path.iter().rev().take_while(|drawer| drawer.is_empty()).count();
        if depth > 0
            && let Some(readings) = view.path()
        {
            for path in readings.each() {
                for (drawer, prefix) in self.by_path[..depth].iter().zip(prefixes(path)) {
                    look_up(drawer, prefix, &mut lists);
                }
            }
        }
        merge(&mut lists, |place| visit(place as usize));
    }
}

fn look_up<'i>(drawer: &'i Drawer, value: &str, lists: &mut Lists<'i>) {
    if !drawer.is_empty()
        && let Some(list) = drawer.get(value)
    {
        lists.push(list);
    }
}

/// Returns the first segment of a rooted path, the first two, and so on to the whole.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'/').map(|(at, _)| at);
    ends.chain([path.len()]).map(|end| &path[..end])
}

fn add(drawer: &mut Drawer, value: &str, place: u32) {
    let list = drawer.entry(value.into()).or_default();
    if list.last() != Some(&place) {
        list.push(place);
    }
}

/// Merges ascending lists, each number once.
fn merge(lists: &mut Lists<'_>, mut visit: impl FnMut(u32)) {
    if let [only] = lists.as_slice() {
        return only.iter().copied().for_each(visit);
    }
    while let Some(least) = lists.iter().filter_map(|list| list.first()).min().copied() {
        visit(least);
        for list in &mut *lists {
            while list.first() == Some(&least) {
                *list = &list[1..];
            }
        }
    }
}
