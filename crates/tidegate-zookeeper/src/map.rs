//! Cells with versions in ZooKeeper, for central decisions.
//!
//! # Versions
//! A node's version counts its writes, and starts anew when the node is made again: a caller of the old one could
//! overwrite the new. So cells are children of 256 buckets, and deleting a cell also writes its bucket. A cell's
//! version combines its bucket's and its own, and each write checks both. For an absent cell, creating it is the check.
//!
//! ZooKeeper counts up to 2³¹ and then below zero, where -1 means any version. A cell whose version comes near 2³¹ is
//! deleted and made again. A bucket, written once per deletion, does not get that far.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{ByteMap, CasStore, Later, Read, StoreError, Versioned, Write, Written};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use zookeeper_client::{Client, Error, MultiReadResult, MultiWriteError};

use crate::connect::{Answer, Failed, ZooKeeper};
use crate::layout::{BUCKETS, CellPath, cell_state, encode_cell, is_over};

/// The version of an absent cell.
const ABSENT: u32 = u32::MAX;

const OLD: i32 = i32::MAX - 1000;

/// How often a read is tried: the first may have to make a bucket.
const TRIES: usize = 3;

/// Cells in ZooKeeper: one request reads all keys of a step, another one checks their versions and writes.
///
/// Keys are hashed: callers' input neither makes names longer nor can be read in them. Cells whose time is over by
/// ZooKeeper's clock are deleted; each node scans a 256th of them per second.
///
/// A refusal without a write may be based on data that are a moment old on a follower.
#[derive(Clone)]
pub struct ZooKeeperMap {
    zookeeper: ZooKeeper,
    _sweeper: Arc<Sweeper>,
}

impl fmt::Debug for ZooKeeperMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperMap").field("zookeeper", &self.zookeeper).finish_non_exhaustive()
    }
}

impl ZooKeeper {
    /// Returns a store that decides in ZooKeeper: exact over all nodes, with two round trips per decision.
    #[must_use]
    pub fn store(&self) -> CasStore<ZooKeeperMap> {
        CasStore::new(self.map())
    }

    /// Returns the map of cells that [`ZooKeeper::store`] uses. While it or a clone exists, expired cells are deleted.
    #[must_use]
    pub fn map(&self) -> ZooKeeperMap {
        ZooKeeperMap::new(self.clone())
    }
}

impl ZooKeeperMap {
    fn new(zookeeper: ZooKeeper) -> Self {
        Self { _sweeper: Arc::new(Sweeper::start(zookeeper.clone())), zookeeper }
    }

    async fn read_all(&self, places: &[CellPath]) -> Result<Read, Failed> {
        let read = async |client: Client| self.try_to_read(&client, places).await;
        Ok(self.zookeeper.exchange(read).await?.value)
    }

    async fn try_to_read(&self, client: &Client, places: &[CellPath]) -> Result<Read, Failed> {
        let buckets = buckets_of(places);
        let mut tries = 0;
        loop {
            tries += 1;
            let read = self.send_read(client, &buckets, places)?.await?;
            for (bucket, result) in buckets.iter().zip(&read) {
                if matches!(result, MultiReadResult::Error { err: Error::NoNode }) && tries < TRIES {
                    match client.create(bucket, &[], &self.zookeeper.persistent()).await {
                        Ok(_) | Err(Error::NodeExists) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            match read_of(&buckets, places, &read) {
                // A bucket has just been made: read again.
                Err(Failed::Engine(Error::NoNode)) if tries < TRIES => {}
                answer => return answer,
            }
        }
    }

    /// Sends the request, and returns the future of its answer: answers come in order.
    fn send_read(
        &self,
        client: &Client,
        buckets: &[&str],
        places: &[CellPath],
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
        let write = async |client: Client| self.try_to_write(&client, writes).await;
        // Of two equal writes at most one succeeds: both check the same versions.
        let Answer { value, repeated } = self.zookeeper.exchange(write).await?;
        Ok(match value {
            Written::Nothing(now) if repeated => Written::Unknown(now),
            value => value,
        })
    }

    async fn try_to_write(&self, client: &Client, writes: &[Write]) -> Result<Written, Failed> {
        let places: Vec<CellPath> =
            writes.iter().map(|write| self.zookeeper.paths().place(&write.key)).collect();
        let mut writer = client.new_multi_writer();
        // Each bucket once: path, version, and whether one of its cells is deleted.
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
                    writer.add_set_data(&place.cell, &encode_cell(write.keep, value), Some(version))?;
                }
                (Some(value), version) => {
                    if version.is_some() {
                        writer.add_delete(&place.cell, version)?;
                        deletes = true;
                    }
                    writer.add_create(
                        &place.cell,
                        &encode_cell(write.keep, value),
                        &self.zookeeper.persistent(),
                    )?;
                }
            }
            match buckets.iter_mut().find(|(known, _, _)| *known == place.bucket) {
                // The cells were read at different times, and something has changed since.
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
        // Sent right after the write; its answer is only used if the write has failed.
        let buckets = buckets_of(&places);
        let (written, read) = (writer.commit(), self.send_read(client, &buckets, &places)?);
        match written.await.map_err(Failed::from) {
            Ok(_) => Ok(Written::All),
            // Another version, a new cell, or a deleted one: in each case nothing was written.
            Err(Failed::Engine(Error::BadVersion | Error::NodeExists | Error::NoNode)) => {
                let read = read.await.map_err(Failed::from);
                Ok(Written::Nothing(read.and_then(|read| read_of(&buckets, &places, &read)).ok()))
            }
            Err(failed) => Err(failed),
        }
    }
}

impl ByteMap for ZooKeeperMap {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let places: Vec<CellPath> = keys.iter().map(|key| self.zookeeper.paths().place(key)).collect();
        let map = self.clone();
        self.zookeeper.later(async move { map.read_all(&places).await.map_err(StoreError::from) })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let map = self.clone();
        self.zookeeper.later(async move { map.write_all(&writes).await.map_err(StoreError::from) })
    }

    /// Always 0: the number would take a request.
    fn len(&self) -> usize {
        0
    }
}

fn buckets_of(places: &[CellPath]) -> Vec<&str> {
    let mut buckets: Vec<&str> = places.iter().map(|place| place.bucket.as_str()).collect();
    buckets.sort_unstable();
    buckets.dedup();
    buckets
}

fn read_of(buckets: &[&str], places: &[CellPath], read: &[MultiReadResult]) -> Result<Read, Failed> {
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
        // The bucket of every place is in `buckets`.
        let bucket = buckets.binary_search(&place.bucket.as_str()).map_or(0, |at| versions[at]);
        values.push(match result {
            MultiReadResult::Data { data, stat } => Versioned {
                value: Some(cell_state(data).to_vec()),
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
        Self::Engine(error.into())
    }
}

const fn pack(bucket: i32, cell: u32) -> u64 {
    (bucket.cast_unsigned() as u64) << 32 | cell as u64
}

fn unpack(version: u64) -> (i32, Option<i32>) {
    // The two 32-bit halves.
    let (bucket, cell) = ((version >> 32) as u32, version as u32);
    (bucket.cast_signed(), (cell != ABSENT).then_some(cell.cast_signed()))
}

fn unexpected(result: &MultiReadResult) -> Failed {
    match result {
        MultiReadResult::Error { err } => Failed::Engine(err.clone()),
        _ => Failed::Engine(Error::Unimplemented),
    }
}

// Deletes expired cells.
//
// Each node scans one of 256 buckets per second. The number of the last bucket is in a node that the next scanner
// writes: so nodes do not scan the same bucket, and the answer gives the time by ZooKeeper's clock.

const EVERY: Duration = Duration::from_secs(1);

/// The cells that one request reads and deletes: half a megabyte at most.
const AT_ONCE: usize = 128;

#[derive(Debug)]
pub(crate) struct Sweeper(AbortHandle);

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sweeper {
    pub(crate) fn start(zookeeper: ZooKeeper) -> Self {
        let runtime = zookeeper.runtime().clone();
        let task = runtime.spawn(async move {
            loop {
                sleep(EVERY).await;
                zookeeper.renew_session().await;
                // If ZooKeeper does not answer, cells stay until it does.
                let _ = sweep(&zookeeper).await;
            }
        });
        Self(task.abort_handle())
    }
}

async fn sweep(zookeeper: &ZooKeeper) -> Result<(), Failed> {
    let client = zookeeper.client().await?;
    let turn = &zookeeper.paths().sweep;
    let (data, stat) = zookeeper.ask(client.get_data(turn)).await?;
    let next = data.first().map_or(0, |last| (usize::from(*last) + 1) % BUCKETS);
    // Below 256.
    let number = next as u8;
    let now = match zookeeper.ask(client.set_data(turn, &[number], Some(stat.version))).await {
        Ok(written) => written.mtime,
        // Another node has taken this turn.
        Err(Failed::Engine(Error::BadVersion)) => return Ok(()),
        Err(failed) => return Err(failed),
    };
    let bucket = zookeeper.paths().bucket(number);
    let cells = match zookeeper.ask(client.list_children(&bucket)).await {
        Err(Failed::Engine(Error::NoNode)) => return Ok(()),
        cells => cells?,
    };
    for some in cells.chunks(AT_ONCE) {
        delete(zookeeper, &client, &bucket, some, now).await?;
    }
    Ok(())
}

async fn delete(
    zookeeper: &ZooKeeper,
    client: &Client,
    bucket: &str,
    cells: &[String],
    now: i64,
) -> Result<(), Failed> {
    let mut reader = client.new_multi_reader();
    reader.add_get_data(bucket)?;
    for cell in cells {
        reader.add_get_data(&format!("{bucket}/{cell}"))?;
    }
    let read = zookeeper.ask(reader.commit()).await?;
    let mut writer = client.new_multi_writer();
    let mut found = false;
    let Some((MultiReadResult::Data { stat: of_bucket, .. }, read)) = read.split_first() else {
        return Ok(());
    };
    for (cell, result) in cells.iter().zip(read) {
        if let MultiReadResult::Data { data, stat } = result
            && is_over(data, stat.mtime, now)
        {
            writer.add_delete(&format!("{bucket}/{cell}"), Some(stat.version))?;
            found = true;
        }
    }
    if !found {
        return Ok(());
    }
    writer.add_set_data(bucket, &[], Some(of_bucket.version))?;
    match zookeeper.ask(writer.commit()).await {
        // All of them are left until the next turn.
        Ok(_) | Err(Failed::Engine(Error::BadVersion | Error::NoNode)) => Ok(()),
        Err(failed) => Err(failed),
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
