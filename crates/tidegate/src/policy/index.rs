//! Finds the policies that may match without asking each: a thousand that speak of other paths cost nothing.
//!
//! Each policy is filed under one thing it surely needs: the exact value of an attribute or header, an exact host, or the
//! leading literal segments of its paths. What needs none of these is filed under "always". A request looks itself up in each
//! drawer and merges the few lists, in the order of the policies.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::glob::prefix;
use super::matching::{Match, View, Want};

/// How many leading segments of a path are looked at: `/api/v1/users` and its kind are told apart.
const MAX_DEPTH: usize = 4;

type Drawer = HashMap<Box<str>, Vec<u32>, RandomState>;

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
        let mut lists: SmallVec<[&[u32]; 8]> = SmallVec::new();
        lists.push(&self.always);
        for (name, drawer) in &self.by_attribute {
            lists.extend(view.descriptor.value(name).and_then(|value| places(drawer, value)));
        }
        if !self.by_host.is_empty() {
            lists.extend(view.host.as_deref().and_then(|host| places(&self.by_host, host)));
        }
        if let Some(readings) = &view.path {
            for path in readings.each() {
                for (at, drawer) in self.by_path.iter().enumerate() {
                    if !drawer.is_empty() {
                        lists.extend(places(drawer, prefix(path, at + 1)));
                    }
                }
            }
        }
        merge(&mut lists, |place| visit(place as usize));
    }
}

fn places<'i>(drawer: &'i Drawer, value: &str) -> Option<&'i [u32]> {
    drawer.get(value).map(Vec::as_slice)
}

fn add(drawer: &mut Drawer, value: &str, place: u32) {
    let list = drawer.entry(value.into()).or_default();
    if list.last() != Some(&place) {
        list.push(place);
    }
}

/// Merges ascending lists, each number once.
fn merge(lists: &mut SmallVec<[&[u32]; 8]>, mut visit: impl FnMut(u32)) {
    lists.retain(|list| !list.is_empty());
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
