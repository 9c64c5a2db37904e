//! The event of a key that makes up much of the traffic.

use tidegate_core::Tick;

use super::KeyDigest;

/// A key that has become hot: it makes up more than the chosen share of all, and had not before, or had cooled since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotKeyFound {
    /// When, as its caller told the time.
    pub at: Tick,
    /// The digest of the key: see [`HotKeys::digest`](tidegate_gate::hot_keys::HotKeys::digest).
    pub key: KeyDigest,
    /// A lower bound of its count.
    pub least: u64,
    /// The counted total of all keys.
    pub total: u64,
}

impl HotKeyFound {
    /// Creates the event.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(at: Tick, key: KeyDigest, least: u64, total: u64) -> Self {
        Self { at, key, least, total }
    }
}
