//! Cells with versions in etcd, for central decisions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, Error, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tidegate::Tick;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::store::{ByteMap, CasStore, Later, Read, StoreError, Versioned, Write, Written};
use tokio::sync::watch;

use crate::connect::{Answer, Etcd, Failed};

/// The length of a cell's name: 192 bits of the key's SHA-256, for which no collision can be found.
const NAME: usize = 24;

/// Cells in etcd: one transaction reads all keys of a step. Another one compares their revisions and writes them, or
/// reads them again.
///
/// Keys are hashed: callers' input neither makes them longer nor can be read in them. Cells that matter only for some
/// time are under leases, which many share (at most about 200 per node), rounded up by up to an eighth.
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
        let response = self.etcd.ask(|client| execute(client, txn.clone())).await?;
        Ok(read_of(&response))
    }

    /// Writes the cells, once more if a lease was gone: etcd has refused the whole write.
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
        let txn = Txn::new().when(compares).and_then(puts).or_else(gets);
        // Of two equal transactions at most one succeeds: both compare the same revisions.
        let Answer { value, repeated } =
            self.etcd.exchange(true, |client| execute(client, txn.clone())).await?;
        Ok(match value.succeeded() {
            true => Written::All,
            false if repeated => Written::Unknown(Some(read_of(&value))),
            false => Written::Nothing(Some(read_of(&value))),
        })
    }
}

pub(crate) async fn execute(mut client: Client, txn: Txn) -> Result<TxnResponse, Error> {
    client.txn(txn).await
}

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

// Leases that many cells share, so that not every write has to make one.
//
// Time is divided into stretches of a power of two in seconds, at most an eighth of the time to keep. The cell gets a
// lease that ends with a stretch. It is kept at least two seconds and up to about an eighth longer, and about ten
// stretches of each length are in use.

/// The longest time for which a cell is kept, ten years: longer than any state matters, and accepted by etcd.
const LONGEST: u64 = 10 * 366 * 86_400;

const PART: u64 = 8;

/// The length in seconds, and the number of the stretch with which a lease ends.
type Stretch = (u64, u64);

pub(crate) type Granted = watch::Receiver<Option<Result<i64, String>>>;

#[derive(Clone, Debug)]
pub(crate) struct Leases {
    etcd: Etcd,
    clock: SystemClock,
    held: Arc<Mutex<HashMap<Stretch, Granted>>>,
}

impl Leases {
    pub(crate) fn new(etcd: Etcd) -> Self {
        Self { etcd, clock: SystemClock::new(), held: Arc::default() }
    }

    /// Returns a lease that lasts for `keep` at least, for [`lease`] to await.
    ///
    /// A task requests it once for all callers, so that one that stops waiting does not lose it.
    pub(crate) fn for_at_least(&self, keep: Duration) -> Granted {
        let now = self.clock.now();
        let stretch = stretch(keep, now);
        let mut held = self.held.lock();
        // Drops ended and refused leases, which are few.
        held.retain(|(length, number), granted| {
            number.saturating_mul(*length) > seconds(now) && !matches!(&*granted.borrow(), Some(Err(_)))
        });
        let ask = || {
            // Counted from before the request. One second more, because `now` is cut to whole seconds.
            let lasts = (stretch.0 * stretch.1).saturating_sub(seconds(now)).saturating_add(1);
            let (told, granted) = watch::channel(None);
            let etcd = self.etcd.clone();
            self.etcd.runtime().spawn(async move {
                let lasts = i64::try_from(lasts).unwrap_or(i64::MAX);
                // Executed twice, it leaves one behind that nobody uses.
                let grant = async |mut client: Client| client.lease_grant(lasts, None).await;
                let granted = etcd.ask(grant).await;
                let _ =
                    told.send(Some(granted.map(|granted| granted.id()).map_err(|failed| failed.reason())));
            });
            granted
        };
        held.entry(stretch).or_insert_with(ask).clone()
    }

    /// Forgets all leases when one is gone: it was revoked, or etcd was restored from a copy.
    pub(crate) fn forget(&self) {
        self.held.lock().clear();
    }
}

pub(crate) async fn lease(mut granted: Granted) -> Result<i64, Failed> {
    match granted.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ok(lease))) => Ok(*lease),
        Ok(Some(Err(reason))) => Err(Failed::NoLease(reason.clone())),
        Ok(None) | Err(_) => Err(Failed::NoLease("etcd: the runtime of the connection has ended".to_owned())),
    }
}

fn seconds(tick: Tick) -> u64 {
    tick.as_nanos() / 1_000_000_000
}

/// Returns the first stretch that ends at least `keep` after `now`.
fn stretch(keep: Duration, now: Tick) -> Stretch {
    let keep = keep.as_secs().saturating_add(1).min(LONGEST);
    let length = 1 << (keep / PART).max(1).ilog2();
    let over = seconds(now).saturating_add(1).saturating_add(keep);
    (length, over.div_ceil(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_after_the_time_and_not_much_later() {
        for keep in [1, 2, 7, 8, 60, 3600, 86_400, 31 * 86_400] {
            for now in [0, 1, 999, 86_399, 1_000_003] {
                let (length, number) = stretch(Duration::from_secs(keep), Tick::from_secs(now));
                let ends = length * number;
                assert!(ends >= now + keep, "{keep} s from {now}: ends at {ends}");
                assert!(ends <= now + keep + keep / 8 + 4, "{keep} s from {now}: ends at {ends}");
            }
        }
    }

    #[test]
    fn few_leases_are_in_use_at_once() {
        let mut held = std::collections::HashSet::new();
        for keep in 1..20_000 {
            held.insert(stretch(Duration::from_secs(keep), Tick::from_secs(1_000_000)));
        }
        assert!(held.len() < 120, "{}", held.len());
    }
}
