//! Tells an observer of each key that becomes hot, once.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use tidegate_core::Tick;

use super::heat::Heat;
use tidegate_limits::observer::{HotKeyFound, KeyDigest, Observer};

/// Whom to tell, and from which share on.
#[derive(Debug)]
pub(super) struct Telling {
    observer: Arc<dyn Observer>,
    share: f64,
    at_least: u64,
}

impl Telling {
    pub(super) fn new(observer: impl Observer + 'static, share: f64, at_least: u64) -> Self {
        Self { observer: Arc::new(observer), share, at_least }
    }

    /// Returns whether the key becomes hot with this heat. `is_hot` is its state before, and becomes the one after.
    pub(super) fn becomes_hot(&self, is_hot: &mut bool, heat: Heat) -> bool {
        let was_hot = *is_hot;
        // It cools at half the share: one that stays near the share would otherwise be told over and over.
        let (share, at_least) =
            if was_hot { (self.share / 2.0, self.at_least / 2) } else { (self.share, self.at_least) };
        *is_hot = heat.is_above(share, at_least);
        *is_hot && !was_hot
    }

    pub(super) fn tell(&self, key: KeyDigest, heat: Heat, at: Tick) {
        self.observer.on_hot_key(&HotKeyFound::new(at, key, heat.least, heat.total));
    }
}

/// Digests under keys of their own: the hashes by which the table places its keys stay unknown.
#[derive(Debug, Default)]
pub(super) struct Digests(RandomState);

impl Digests {
    pub(super) fn digest(&self, key: &(impl Hash + ?Sized)) -> KeyDigest {
        KeyDigest(self.0.hash_one(key))
    }
}
