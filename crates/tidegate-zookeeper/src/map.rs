//! Cells under versions, for central decisions.
//!
//! # Versions
//! A node's version counts its writes, and begins anew when it is deleted and made again: by that alone, who has read the old one could write
//! over the new one. So cells lie in 256 nodes, the buckets, and whoever deletes a cell writes its bucket in the same step. A cell's version
//! is that of its bucket and its own together, and each write checks both. For a cell that is absent, creating it is the check.
//!
//! ZooKeeper counts to 2³¹ and then goes on below zero, where -1 stands for any version. A cell that comes near is deleted and made again. A bucket is
//! written once for each deletion, and does not come that far.

use std::fmt;
use std::sync::Arc;

use tidegate::store::{ByteMap, CasStore, Later, Read, StoreError, Versioned, Write, Written};
use zookeeper_client::{Client, Error, MultiReadResult, MultiWriteError};

use crate::cell;
use crate::connect::ZooKeeper;
use crate::error::Failed;
use crate::path::Place;
use crate::sweep::Sweeper;

/// What stands for a cell's own version where there is no cell.
const ABSENT: u32 = u32::MAX;

/// Beyond this version a cell is made anew.
const OLD: i32 = i32::MAX - 1000;

/// How often a read is tried: a bucket may have to be made, and a read changes nothing.
const TRIES: usize = 3;

/// Cells in ZooKeeper: one request reads all keys of a step, one checks their versions and writes them.
///
/// Keys are hashed: so what callers send neither grows ZooKeeper's names nor can be read in them. Each cell holds for how long it has to be
/// kept; those whose time is over by ZooKeeper's clock are deleted, a 256th part of all each second on each node.
///
/// What is refused without a write is refused by what the server that was asked knows, which may be a moment old on a follower.
#[derive(Clone)]
pub struct ZooKeeperMap {
    zookeeper: ZooKeeper,
    /// Sweeps while a clone of this is there.
    _sweeper: Arc<Sweeper>,
}

impl fmt::Debug for ZooKeeperMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperMap").field("zookeeper", &self.zookeeper).finish_non_exhaustive()
    }
}

impl ZooKeeper {
    /// Returns a store that decides in ZooKeeper: exact, over all nodes, and two round trips a decision.
    #[must_use]
    pub fn store(&self) -> CasStore<ZooKeeperMap> {
        CasStore::new(self.map())
    }

    /// Returns the map of cells that [`ZooKeeper::store`] is made of. While it, or a clone, is in use, cells whose time is over are deleted.
    #[must_use]
    pub fn map(&self) -> ZooKeeperMap {
        ZooKeeperMap::new(self.clone())
    }
}

impl ZooKeeperMap {
    fn new(zookeeper: ZooKeeper) -> Self {
        Self { _sweeper: Arc::new(Sweeper::start(zookeeper.clone())), zookeeper }
    }

    async fn read_all(&self, places: &[Place]) -> Result<Read, Failed> {
        let buckets = buckets_of(places);
        let mut tries = 0;
        loop {
            tries += 1;
            let client = self.zookeeper.client().await?;
            let read = match self.zookeeper.ask(self.send_read(&client, &buckets, places)?).await {
                Err(Failed::Said(Error::ConnectionLoss)) if tries < TRIES => continue,
                answer => answer?,
            };
            for (bucket, result) in buckets.iter().zip(&read) {
                if matches!(result, MultiReadResult::Error { err: Error::NoNode }) && tries < TRIES {
                    match self.zookeeper.ask(client.create(bucket, &[], &self.zookeeper.persistent())).await {
                        Ok(_) | Err(Failed::Said(Error::NodeExists)) => {}
                        Err(failed) => return Err(failed),
                    }
                }
            }
            match read_of(&buckets, places, &read) {
                // A bucket has just been made.
                Err(Failed::Said(Error::NoNode)) if tries < TRIES => {}
                answer => return answer,
            }
        }
    }

    /// Sends the request that reads buckets and places, and returns its answer to be awaited. ZooKeeper answers the requests of one client in their
    /// order.
    fn send_read(
        &self,
        client: &Client,
        buckets: &[&str],
        places: &[Place],
    ) -> Result<impl Future<Output = Result<Vec<MultiReadResult>, Error>>, Failed> {
        let mut reader = client.new_multi_reader();
        for bucket in buckets {
            reader.add_get_data(bucket)?;
        }
        for place in places {
            reader.add_get_data(&place.cell)?;
        }
        Ok(reader.commit())
    }

    async fn write_all(&self, writes: &[Write]) -> Result<Written, Failed> {
        let client = self.zookeeper.client().await?;
        let places: Vec<Place> =
            writes.iter().map(|write| self.zookeeper.paths().place(&write.key)).collect();
        let mut writer = client.new_multi_writer();
        // Each bucket once: its version, and whether a cell of it is deleted.
        let mut buckets: Vec<(String, i32, bool)> = Vec::with_capacity(writes.len());
        for (write, place) in writes.iter().zip(&places) {
            let (bucket, cell) = unpack(write.version);
            let mut deletes = false;
            match (&write.value, cell) {
                (None, None) => {}
                (None, Some(version)) => {
                    writer.add_delete(&place.cell, Some(version))?;
                    deletes = true;
                }
                (Some(value), Some(version)) if (0..OLD).contains(&version) => {
                    writer.add_set_data(&place.cell, &cell::encode(write.keep, value), Some(version))?;
                }
                (Some(value), version) => {
                    if version.is_some() {
                        writer.add_delete(&place.cell, version)?;
                        deletes = true;
                    }
                    writer.add_create(
                        &place.cell,
                        &cell::encode(write.keep, value),
                        &self.zookeeper.persistent(),
                    )?;
                }
            }
            match buckets.iter_mut().find(|(known, _, _)| *known == place.bucket) {
                // Not read at one instant: so something has changed since.
                Some((_, version, _)) if *version != bucket => return Ok(Written::Nothing(None)),
                Some((_, _, known)) => *known |= deletes,
                None => buckets.push((place.bucket.clone(), bucket, deletes)),
            }
        }
        for (bucket, version, deletes) in &buckets {
            if *deletes {
                writer.add_set_data(bucket, &[], Some(*version))?;
            } else {
                writer.add_check_version(bucket, *version)?;
            }
        }
        // The read is sent right behind the write, and looked at where that has lost.
        let buckets = buckets_of(&places);
        let (written, read) = (writer.commit(), self.send_read(&client, &buckets, &places)?);
        match self.zookeeper.ask(written).await {
            Ok(_) => Ok(Written::All),
            // Another version, another cell, none any more: in each case nothing was written.
            Err(Failed::Said(Error::BadVersion | Error::NodeExists | Error::NoNode)) => {
                let read = self.zookeeper.ask(read).await;
                Ok(Written::Nothing(read.and_then(|read| read_of(&buckets, &places, &read)).ok()))
            }
            Err(failed) => Err(failed),
        }
    }
}

impl ByteMap for ZooKeeperMap {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let places: Vec<Place> = keys.iter().map(|key| self.zookeeper.paths().place(key)).collect();
        let map = self.clone();
        self.zookeeper.later(async move { map.read_all(&places).await.map_err(Failed::into_store) })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let map = self.clone();
        self.zookeeper.later(async move { map.write_all(&writes).await.map_err(Failed::into_store) })
    }

    /// Always 0: it would have to be asked.
    fn len(&self) -> usize {
        0
    }
}

/// The buckets of places, each once, in order.
fn buckets_of(places: &[Place]) -> Vec<&str> {
    let mut buckets: Vec<&str> = places.iter().map(|place| place.bucket.as_str()).collect();
    buckets.sort_unstable();
    buckets.dedup();
    buckets
}

/// What a request has read of buckets and places.
fn read_of(buckets: &[&str], places: &[Place], read: &[MultiReadResult]) -> Result<Read, Failed> {
    let Some((of_buckets, of_cells)) = read.split_at_checked(buckets.len()) else {
        return Err(Error::NoNode.into());
    };
    let version = |result: &MultiReadResult| match result {
        MultiReadResult::Data { stat, .. } => Ok(stat.version),
        other => Err(unexpected(other)),
    };
    let versions: Vec<i32> = of_buckets.iter().map(version).collect::<Result<_, _>>()?;
    let mut values = Vec::with_capacity(places.len());
    for (place, result) in places.iter().zip(of_cells) {
        // Every place's bucket is among the buckets.
        let bucket = buckets.binary_search(&place.bucket.as_str()).map_or(0, |at| versions[at]);
        values.push(match result {
            MultiReadResult::Data { data, stat } => Versioned {
                value: Some(cell::state(data).to_vec()),
                version: pack(bucket, stat.version.cast_unsigned()),
            },
            MultiReadResult::Error { err: Error::NoNode } => {
                Versioned { value: None, version: pack(bucket, ABSENT) }
            }
            other => return Err(unexpected(other)),
        });
    }
    Ok(Read { values, now: None })
}

impl From<MultiWriteError> for Failed {
    fn from(error: MultiWriteError) -> Self {
        Self::Said(error.into())
    }
}

/// Puts the version of a bucket and that of a cell in it into one number.
const fn pack(bucket: i32, cell: u32) -> u64 {
    (bucket.cast_unsigned() as u64) << 32 | cell as u64
}

/// Returns the version of a bucket and that of a cell in it; `None` where there is no cell.
fn unpack(version: u64) -> (i32, Option<i32>) {
    // Two halves of 32 bits.
    let (bucket, cell) = ((version >> 32) as u32, version as u32);
    (bucket.cast_signed(), (cell != ABSENT).then_some(cell.cast_signed()))
}

fn unexpected(result: &MultiReadResult) -> Failed {
    match result {
        MultiReadResult::Error { err } => Failed::Said(err.clone()),
        _ => Failed::Said(Error::Unimplemented),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_versions_fit_one_number() {
        for bucket in [0, 1, i32::MAX, i32::MIN, -2] {
            assert_eq!(unpack(pack(bucket, ABSENT)), (bucket, None));
            for cell in [0, 1, i32::MAX, i32::MIN] {
                assert_eq!(unpack(pack(bucket, cell.cast_unsigned())), (bucket, Some(cell)));
            }
        }
    }
}
