//! Cells with versions in etcd, for central decisions.

use std::fmt;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use sha2::{Digest as _, Sha256};
use tidegate::store::{ByteMap, CasStore, Later, Read, StoreError, Versioned, Write, Written};

use crate::connect::Etcd;
use crate::error::Failed;
use crate::leases::{Granted, Leases, lease};

/// The length of a cell's name, in bytes of the key's SHA-256: 192 bits, for which no collision can be found.
const NAME: usize = 24;

/// How often a read is tried: if one member of the cluster does not answer, another one may.
const TRIES: usize = 3;

/// Cells in etcd: one transaction reads all keys of a step. Another one compares their revisions and writes them, or,
/// if one has changed, reads them again.
///
/// Keys are hashed, so that callers' input neither makes etcd's keys longer nor can be read in them. Cells that matter
/// only for some time are under leases, which many cells share (at most about 200 leases per node), rounded up by up to
/// an eighth of their time.
///
/// A step with more than 128 keys exceeds etcd's limit for one transaction, unless its `--max-txn-ops` is raised.
#[derive(Clone)]
pub struct EtcdMap {
    etcd: Etcd,
    cells: Arc<[u8]>,
    leases: Leases,
}

impl fmt::Debug for EtcdMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdMap").field("etcd", &self.etcd).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Returns a store that decides in etcd: exact over all nodes, with two round trips per decision.
    #[must_use]
    pub fn store(&self) -> CasStore<EtcdMap> {
        CasStore::new(self.map())
    }

    /// Returns the map of cells that [`Etcd::store`] uses.
    #[must_use]
    pub fn map(&self) -> EtcdMap {
        EtcdMap::new(self.clone())
    }
}

impl EtcdMap {
    fn new(etcd: Etcd) -> Self {
        let cells = etcd.key("cells/").into();
        Self { leases: Leases::new(etcd.clone()), etcd, cells }
    }

    fn name(&self, key: &[u8]) -> Vec<u8> {
        let digest = Sha256::digest(key);
        // In hex, so that etcd's own tools can show it.
        let hex = |byte: &u8| char::from_digit(u32::from(*byte), 16).map_or(b'0', |digit| digit as u8);
        let halves = digest[..NAME].iter().flat_map(|byte| [byte >> 4, byte & 15]);
        self.cells.iter().copied().chain(halves.map(|half| hex(&half))).collect()
    }

    async fn read_all(&self, names: &[Vec<u8>]) -> Result<Read, Failed> {
        let gets: Vec<TxnOp> = names.iter().map(|name| TxnOp::get(name.clone(), None)).collect();
        let txn = Txn::new().and_then(gets);
        let mut tries = 0;
        let response = loop {
            tries += 1;
            let mut client = self.etcd.client();
            match self.etcd.ask(client.txn(txn.clone())).await {
                Err(failed) if tries < TRIES && failed.may_pass() => {}
                answer => break answer?,
            }
        };
        Ok(read_of(&response))
    }

    /// Writes the cells. If a lease was gone, etcd has refused the whole write, and it is tried once more.
    async fn write_all(&self, writes: &[Write]) -> Result<Written, Failed> {
        match self.try_to_write(writes).await {
            Err(failed) if failed.is_lease_gone() => {
                self.leases.forget();
                self.try_to_write(writes).await
            }
            answer => answer,
        }
    }

    async fn try_to_write(&self, writes: &[Write]) -> Result<Written, Failed> {
        // All leases are requested before the first one is awaited.
        let leases: Vec<Option<Granted>> = writes
            .iter()
            .map(|write| write.keep.filter(|_| write.value.is_some()))
            .map(|keep| keep.map(|keep| self.leases.for_at_least(keep)))
            .collect();
        let (mut compares, mut puts) = (Vec::with_capacity(writes.len()), Vec::with_capacity(writes.len()));
        let mut gets = Vec::with_capacity(writes.len());
        for (write, granted) in writes.iter().zip(leases) {
            let name = self.name(&write.key);
            let version = i64::try_from(write.version).unwrap_or(i64::MAX);
            // An absent key has revision 0.
            compares.push(Compare::mod_revision(name.clone(), CompareOp::Equal, version));
            gets.push(TxnOp::get(name.clone(), None));
            puts.push(match (&write.value, granted) {
                (None, _) => TxnOp::delete(name, None),
                (Some(value), None) => TxnOp::put(name, value.clone(), None),
                (Some(value), Some(granted)) => {
                    let options = PutOptions::new().with_lease(lease(granted).await?);
                    TxnOp::put(name, value.clone(), Some(options))
                }
            });
        }
        let mut client = self.etcd.client();
        let txn = Txn::new().when(compares).and_then(puts).or_else(gets);
        let answer = self.etcd.ask(client.txn(txn)).await?;
        Ok(if answer.succeeded() { Written::All } else { Written::Nothing(Some(read_of(&answer))) })
    }
}

/// Decodes the response of a transaction that only reads.
fn read_of(response: &TxnResponse) -> Read {
    let values = response.op_responses().into_iter().map(|response| match response {
        TxnOpResponse::Get(mut got) => got.take_kvs().pop().map_or_else(Versioned::default, |held| {
            // Revisions are positive.
            let version = u64::try_from(held.mod_revision()).unwrap_or(0);
            Versioned { value: Some(held.into_key_value().1), version }
        }),
        _ => Versioned::default(),
    });
    Read { values: values.collect(), now: None }
}

impl ByteMap for EtcdMap {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| self.name(key)).collect();
        let map = self.clone();
        self.etcd.later(async move { map.read_all(&names).await.map_err(StoreError::from) })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let map = self.clone();
        self.etcd.later(async move { map.write_all(&writes).await.map_err(StoreError::from) })
    }

    /// Always 0: the number would take a request.
    fn len(&self) -> usize {
        0
    }
}
