//! Selects the store that decides each policy, and finds policies that the stores of a gate cannot decide as configured.

use std::any::Any;
use std::iter::successors;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Gate;
#[cfg(feature = "ticket")]
use super::charged::MadeCharge;
use crate::policy::{Limit, PolicySet, Share, Shares, tag_of_key};
use tidegate_limits::store::{Cell, Durable, Home, Store, StoreError};

/// The stores of a gate, in the order in which a request asks them: those that answer without waiting come first.
#[derive(Debug)]
pub(super) struct Routes {
    stores: SmallVec<[Arc<dyn Store>; 1]>,
    /// The index of the store that the gate was created with.
    own: usize,
    /// The index of the store for each `share:` word, in the order of [`Share::ALL`].
    by_share: [Option<usize>; Share::ALL.len()],
    /// Whether all stores are in the memory of this process, and end with it.
    forget: bool,
    /// The `share:` words that the gate's own store decides; `None` if one step of it cannot hold all charges of a
    /// request.
    plain: Option<Shares>,
    /// Whether any step of the gate's own store may have to be awaited.
    own_waits: bool,
}

/// Makes a store shared. One that the caller shares already is kept as it is: in a second [`Arc`], each step would pass
/// one more call, which only forwards.
pub(super) fn shared(store: impl Store + 'static) -> Arc<dyn Store> {
    let any: &dyn Any = &store;
    let already = any.downcast_ref::<Arc<dyn Store>>().cloned();
    already.unwrap_or_else(|| Arc::new(store))
}

impl Routes {
    pub(super) fn new(own: Arc<dyn Store>) -> Self {
        let mut by_share = [None; Share::ALL.len()];
        let share = match own.home() {
            Home::Process { .. } => Share::Local,
            Home::Nodes => Share::Central,
        };
        by_share[share as usize] = Some(0);
        let mut routes =
            Self { stores: SmallVec::new(), own: 0, by_share, plain: None, own_waits: false, forget: false };
        routes.stores.push(own);
        routes.find_plain();
        routes
    }

    pub(super) fn add(&mut self, share: Share, store: Arc<dyn Store>) {
        let waits = store.caps().waits_often();
        let at = self.stores.iter().position(|other| !waits && other.caps().waits_often());
        let at = at.unwrap_or(self.stores.len());
        self.stores.insert(at, store);
        for place in self.by_share.iter_mut().flatten().chain([&mut self.own]) {
            *place += usize::from(*place >= at);
        }
        let replaced = self.by_share[share as usize].replace(at);
        self.drop_unasked(replaced);
        self.find_plain();
    }

    /// Makes the gate's own store decide a `share:` word, without a second handle on the store.
    pub(super) fn give_own(&mut self, share: Share) {
        let replaced = self.by_share[share as usize].replace(self.own);
        self.drop_unasked(replaced);
        self.find_plain();
    }

    /// Drops the store at an index if it no longer decides any policy.
    fn drop_unasked(&mut self, place: Option<usize>) {
        if let Some(place) = place.filter(|place| !self.is_asked(*place)) {
            self.stores.remove(place);
            for other in self.by_share.iter_mut().flatten().chain([&mut self.own]) {
                *other -= usize::from(*other > place);
            }
        }
    }

    /// Reports whether a store decides any policy.
    fn is_asked(&self, store: usize) -> bool {
        store == self.own || self.by_share.contains(&Some(store))
    }

    fn find_plain(&mut self) {
        let here = Share::ALL.into_iter().filter(|share| self.by_share[*share as usize] == Some(self.own));
        let caps = self.own().caps();
        self.plain = (!caps.one_tag).then(|| here.collect());
        self.own_waits = caps.waits_often();
        self.forget = (0..self.stores.len()).all(|store| self.forgets(store));
    }

    /// Reports whether all charges of a request fit one step of the gate's own store, if its policies have these
    /// `share:` words.
    #[inline]
    pub(super) fn are_plain(&self, shares: Shares) -> bool {
        self.plain.is_some_and(|plain| shares.within(plain))
    }

    /// Returns the store that the gate was created with.
    #[inline]
    pub(super) fn own(&self) -> &dyn Store {
        &*self.stores[self.own]
    }

    /// Reports whether any step of the gate's own store may have to be awaited, and not only steps with `durable:
    /// strict`.
    #[inline]
    pub(super) const fn own_waits(&self) -> bool {
        self.own_waits
    }

    /// Reports whether all stores forget their keys at the end of this process.
    #[inline]
    pub(super) const fn forget(&self) -> bool {
        self.forget
    }

    /// Reports whether a store is in the memory of this process, and ends with it.
    pub(super) fn forgets(&self, store: usize) -> bool {
        let caps = self.stores[store].caps();
        caps.always_decides && !caps.later_if_strict
    }

    pub(super) fn len(&self) -> usize {
        self.stores.len()
    }

    /// Returns the tag of a key in a store; 0 if the store needs no tags.
    pub(super) fn tag(&self, store: usize, key: &[u8]) -> u64 {
        if self.stores[store].caps().one_tag { tag_of_key(key) } else { 0 }
    }

    /// Returns where the keys of these charges are kept: in one process, if that holds for any of them.
    #[cfg(feature = "ticket")]
    pub(super) fn home<'c>(&self, charges: impl Iterator<Item = &'c MadeCharge>) -> Home {
        let homes = charges.filter_map(|made| {
            let store = &self.stores[self.of(made.rules.share).ok()?];
            Some(store.home_of(made.by_fallback))
        });
        homes
            .fold(None, |so_far, home| match so_far {
                Some(Home::Process { .. }) => so_far,
                _ => Some(home),
            })
            .unwrap_or_else(|| self.own().home())
    }

    /// Reports whether any step of the store that decides policies with a `share:` word may have to be awaited.
    pub(super) fn may_wait(&self, share: Option<Share>) -> bool {
        self.of(share).is_ok_and(|store| self.stores[store].caps().may_wait)
    }

    pub(super) fn store(&self, at: usize) -> &dyn Store {
        &*self.stores[at]
    }

    /// Returns a store as an `Arc`, which may outlive the gate.
    pub(super) fn share(&self, at: usize) -> Arc<dyn Store> {
        Arc::clone(&self.stores[at])
    }

    /// Returns the index of the store that decides policies with a `share:` word.
    ///
    /// # Errors
    /// [`StoreError::NoStore`] if the word has no store.
    pub(super) fn of(&self, share: Option<Share>) -> Result<usize, StoreError> {
        let Some(share) = share else { return Ok(self.own) };
        self.by_share[share as usize].ok_or(StoreError::NoStore { share: share.word() })
    }
}

/// A requirement of a policy that its store cannot meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The state of a limit may exceed what the store can hold: some checks would fail with
    /// [`StoreError::CellTooLarge`](tidegate_limits::store::StoreError::CellTooLarge).
    #[error(
        "policy `{policy}`: the state of a key of `{limit}` may take {bytes} bytes, and its store takes {most} at most; choose an \
         algorithm with a smaller state, a lower limit, or `share: local`"
    )]
    TooLarge {
        /// The policy's name.
        policy: String,
        /// The short form of the limit.
        limit: String,
        /// The largest possible state of a key, in bytes.
        bytes: usize,
        /// The largest state that the store can hold, in bytes.
        most: usize,
    },
    /// No store decides the policy's `share` word: every check would fail with
    /// [`StoreError::NoStore`](tidegate_limits::store::StoreError::NoStore).
    #[error(
        "policy `{policy}`: no store here decides `share: {share}`; leave `share` out, or use a store that several nodes have in common"
    )]
    NoStore {
        /// The policy's name.
        policy: String,
        /// The word.
        share: &'static str,
    },
    /// The policy has `durable: strict`, but its store is not on disk.
    #[error(
        "policy `{policy}`: its store is not on disk, and cannot keep `durable: strict`; write `durable: interval`, or leave it out"
    )]
    NotDurable {
        /// The policy's name.
        policy: String,
    },
}

impl Gate {
    /// Returns the requirements of a set's policies that this gate's stores cannot meet, in the order of the policies.
    /// Call it before the set is put in force.
    #[must_use]
    pub fn unfit(&self, policies: &PolicySet) -> Vec<Unfit> {
        let mut unfit = Vec::new();
        for policy in policies.policies() {
            let name = || policy.name.clone();
            let Ok(store) = self.routes.of(policy.share) else {
                let share = policy.share.map_or("", |share| share.word());
                unfit.push(Unfit::NoStore { policy: name(), share });
                continue;
            };
            let caps = self.routes.store(store).caps();
            let mut stores = successors(Some(self.routes.store(store)), |store| store.beneath());
            if policy.durable == Durable::Strict && !stores.any(|store| store.caps().later_if_strict) {
                unfit.push(Unfit::NotDurable { policy: name() });
            }
            let Some(most) = caps.largest_cell else { continue };
            for terms in policy.limits.iter().chain(&policy.shadow_limit).flat_map(Limit::all_terms) {
                let bytes = terms.quota.as_ref().map_or(0, |quota| Cell::largest(quota));
                if bytes > most {
                    unfit.push(Unfit::TooLarge { policy: name(), limit: terms.label.clone(), bytes, most });
                }
            }
        }
        unfit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limits::store::PlainStore;

    #[test]
    fn a_store_that_is_shared_already_is_kept_as_it_is() {
        let store: Arc<dyn Store> = Arc::new(PlainStore::default());
        assert!(Arc::ptr_eq(&shared(Arc::clone(&store)), &store));
    }

    #[test]
    fn a_word_of_the_own_store_takes_no_place_of_its_own() {
        let store = || -> Arc<dyn Store> { Arc::new(PlainStore::default()) };
        let mut routes = Routes::new(store());
        routes.add(Share::Split, store());
        routes.add(Share::Leased, store());
        let leased: Shares = [Share::Leased].into_iter().collect();
        assert!(routes.len() == 3 && !routes.are_plain(leased));
        routes.give_own(Share::Leased);
        assert!(
            routes.len() == 2 && routes.are_plain(leased),
            "one step for policies with the word and without"
        );
        assert_eq!(routes.of(Some(Share::Leased)).unwrap(), routes.of(None).unwrap());
        assert_ne!(routes.of(Some(Share::Split)).unwrap(), routes.of(None).unwrap());
    }
}
