//! A cache of values that a store computes once for each limit.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::Quota;

/// The number of parts of the map: adding a limit copies one part and not the whole map.
const PARTS: usize = 64;

/// The most limits in a part: 4,096 in all. A part that is full is cleared, and its values are computed again as its
/// limits are used.
const MOST_IN_A_PART: usize = 64;

/// Values by limit.
///
/// Reading takes no lock: limits are few and rarely change, and a new one is added to a copy.
pub struct PerLimit<T> {
    parts: Box<[ArcSwap<MapPart<T>>]>,
    writes: Mutex<()>,
}

/// Keyed by the address of a limit, which does not change while its `Arc` is kept here.
type MapPart<T> = HashMap<usize, (Arc<Quota>, T)>;

impl<T> Default for PerLimit<T> {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| ArcSwap::default()).collect(), writes: Mutex::default() }
    }
}

impl<T: Clone> PerLimit<T> {
    /// Passes the value of a limit to `then`, after making it if there is none.
    pub fn with<R>(&self, quota: &Arc<Quota>, make: impl FnOnce() -> T, then: impl FnOnce(&T) -> R) -> R {
        let address = Arc::as_ptr(quota).addr();
        // The low bits of addresses are alike, because allocations are aligned.
        let part = &self.parts[(address >> 6) % PARTS];
        if let Some((_, value)) = part.load().get(&address) {
            return then(value);
        }
        let value = make();
        {
            let _alone = self.writes.lock();
            let mut copy = HashMap::clone(&part.load());
            if copy.len() >= MOST_IN_A_PART {
                copy.clear();
            }
            // If two threads make it at once, the later value stays; both are of the same limit.
            copy.insert(address, (Arc::clone(quota), value.clone()));
            part.store(Arc::new(copy));
        }
        then(&value)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.load().len()).sum()
    }
}

impl<T> fmt::Debug for PerLimit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerLimit").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_remembered_and_never_too_many() {
        let values = PerLimit::default();
        let quota = || Arc::new(Quota::per_second(1000).burst(200).gcra().unwrap());
        let first = quota();
        assert_eq!(values.with(&first, || 1, |value| *value), 1);
        assert_eq!(values.with(&first, || 2, |value| *value), 1);
        for number in 0..2 * PARTS * MOST_IN_A_PART {
            assert_eq!(values.with(&quota(), || number, |value| *value), number);
        }
        assert!(values.len() <= PARTS * MOST_IN_A_PART);
        assert!(values.with(&first, || 3, |value| *value) != 2);
    }
}
