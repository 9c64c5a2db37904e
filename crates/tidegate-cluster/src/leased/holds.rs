//! Holds units for requests that are not yet decided.

use std::sync::Arc;

use smallvec::SmallVec;

use super::batch::Portion;
use super::draws::Return;
use super::leasable::Terms;
use super::lease::GivenBack;
use super::shared::LeasedState;
use super::table::ChargeSettings;

/// Units taken by a request that is not yet admitted; put back when dropped.
pub(super) struct HeldUnits {
    pub(super) inner: Arc<LeasedState>,
    pub(super) portions: SmallVec<[Taken; 4]>,
}

/// Units that were taken out of a lease, and the lease's identity.
pub(super) struct Taken {
    pub(super) hash: u64,
    pub(super) key: Arc<[u8]>,
    /// The terms of the lease. If the key has other terms by now, its lease is a new one that does not count these
    /// units.
    pub(super) terms: Arc<Terms>,
    pub(super) settings: ChargeSettings,
    pub(super) portion: Portion,
}

impl HeldUnits {
    /// Admits the request: the units that it holds are spent.
    pub(super) fn admit(mut self) {
        for Taken { hash, key, terms, portion, .. } in self.portions.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            if let Some(entry) = shard.get(hash, &key).filter(|entry| Arc::ptr_eq(&entry.lease.terms, &terms))
            {
                entry.lease.release(&portion);
            }
        }
    }
}

/// The request is not admitted: the units that it holds are put back.
impl Drop for HeldUnits {
    fn drop(&mut self) {
        let mut returns = Vec::new();
        for Taken { hash, key, terms, settings, portion } in self.portions.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            shard.granted = shard.granted.saturating_sub(1);
            match shard.get(hash, &key).filter(|entry| Arc::ptr_eq(&entry.lease.terms, &terms)) {
                Some(entry) => {
                    let mut back = GivenBack::new();
                    entry.lease.release(&portion);
                    entry.lease.put_back(&portion, &mut back);
                    returns.extend(LeasedState::returns(entry, back));
                }
                None => {
                    let receipt = portion.receipt(&terms.engine);
                    returns.push(Return { key, terms, settings, receipt });
                }
            }
        }
        self.inner.give_back(returns);
    }
}
