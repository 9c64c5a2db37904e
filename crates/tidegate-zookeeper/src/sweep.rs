//! Deletes expired cells.
//!
//! Each node scans one of 256 buckets per second. The number of the last bucket scanned is kept in a node of its own,
//! which the next scanner writes. So nodes do not scan the same bucket, and the answer to that write gives the time by
//! ZooKeeper's clock, which also dates the cells.

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;
use zookeeper_client::{Client, Error, MultiReadResult};

use crate::connect::ZooKeeper;
use crate::error::Failed;
use crate::layout::{BUCKETS, is_over};

/// The interval between buckets.
const EVERY: Duration = Duration::from_secs(1);

/// The number of cells that one request reads and deletes: at most 4 KiB each, half a megabyte in all.
const AT_ONCE: usize = 128;

/// A task that scans until this is dropped.
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
                // If ZooKeeper does not answer, cells stay until it does.
                let _ = sweep(&zookeeper).await;
            }
        });
        Self(task.abort_handle())
    }
}

/// Scans one bucket.
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

/// Deletes the expired ones of some cells.
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
        // If one of the cells or the bucket has changed, all of them are left until the next turn.
        Ok(_) | Err(Failed::Engine(Error::BadVersion | Error::NoNode)) => Ok(()),
        Err(failed) => Err(failed),
    }
}
