//! Holds units for requests that are not yet decided.

use std::sync::Arc;

use smallvec::SmallVec;

use super::drawing::Return;
use super::pocket::Piece;
use super::purse::GivenBack;
use super::shared::Inner;
use super::table::ChargeSettings;
use super::terms::Terms;

/// Units taken by a request that is not yet admitted; put back when dropped.
pub(super) struct Held {
    pub(super) inner: Arc<Inner>,
    pub(super) pieces: SmallVec<[Taken; 4]>,
}

/// Units that were taken out of a purse, and the purse's identity.
pub(super) struct Taken {
    pub(super) hash: u64,
    pub(super) key: Arc<[u8]>,
    /// The terms of the purse. If the key has other terms by now, its purse is a new one that does not count these
    /// units.
    pub(super) terms: Arc<Terms>,
    pub(super) settings: ChargeSettings,
    pub(super) piece: Piece,
}

impl Held {
    /// Admits the request: the units that it holds are spent.
    pub(super) fn admit(mut self) {
        for Taken { hash, key, terms, piece, .. } in self.pieces.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            if let Some(entry) = shard.get(hash, &key).filter(|entry| Arc::ptr_eq(&entry.purse.terms, &terms))
            {
                entry.purse.release(&piece);
            }
        }
    }
}

/// The request is not admitted: the units that it holds are put back.
impl Drop for Held {
    fn drop(&mut self) {
        let mut returns = Vec::new();
        for Taken { hash, key, terms, settings, piece } in self.pieces.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            shard.granted = shard.granted.saturating_sub(1);
            match shard.get(hash, &key).filter(|entry| Arc::ptr_eq(&entry.purse.terms, &terms)) {
                Some(entry) => {
                    let mut back = GivenBack::new();
                    entry.purse.release(&piece);
                    entry.purse.put_back(&piece, &mut back);
                    returns.extend(Inner::returns(entry, back));
                }
                None => {
                    let receipt = piece.receipt(&terms.engine);
                    returns.push(Return { key, terms, settings, receipt });
                }
            }
        }
        self.inner.give_back(returns);
    }
}
