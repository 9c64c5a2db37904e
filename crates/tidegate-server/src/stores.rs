//! Opens the store that a file names.
//!
//! Heavy clients are built in where they are asked for: the features `redis`, `etcd` and `zookeeper`. A file that names an engine whose client
//! is not there is refused, with the words to build it.

mod disk;
#[cfg(feature = "etcd")]
mod etcd;
mod folder;
mod opened;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
mod password;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::Clock;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
use tidegate::config::EngineKind;
use tidegate::config::{EngineSettings, StoreKind, StoreSettings};

pub(crate) use self::opened::Kept;
use self::opened::Opened;
pub use self::opened::{OpenStore, OpenStoreError, Sharing};

/// Opens the store that a file names, with room for `keys` in place of its own number where one is named; `http` is where the server listens, by
/// which a folder that the file does not name is called.
///
/// Waits for an engine, a few seconds at most; a store on disk is read on a thread of its own.
///
/// # Errors
/// [`OpenStoreError`].
pub async fn open_store(
    settings: &StoreSettings,
    keys: Option<usize>,
    http: SocketAddr,
    clock: Arc<dyn Clock>,
) -> Result<OpenStore, OpenStoreError> {
    match &settings.kind {
        StoreKind::Memory => Ok(OpenStore::in_memory(settings, keys, Vec::new())?),
        StoreKind::Disk(disk) => disk::open(settings, disk, keys, http, clock).await,
        StoreKind::Engine(engine) => open_engine(settings, engine, keys).await,
        _ => Err(OpenStoreError::NotBuilt { kind: settings.word() }),
    }
}

async fn open_engine(
    settings: &StoreSettings,
    engine: &EngineSettings,
    keys: Option<usize>,
) -> Result<OpenStore, OpenStoreError> {
    let opened: Opened = match &engine.engine {
        #[cfg(feature = "redis")]
        EngineKind::Redis { topology, after_loss } => redis::open(engine, topology, *after_loss).await?,
        #[cfg(feature = "etcd")]
        EngineKind::Etcd => etcd::open(engine).await?,
        #[cfg(feature = "zookeeper")]
        EngineKind::ZooKeeper => zookeeper::open(engine).await?,
        #[allow(unreachable_patterns, reason = "reached where a client is not built in")]
        _ => return Err(OpenStoreError::NotBuilt { kind: settings.word() }),
    };
    let Opened { store, coordinator, warnings } = opened;
    let keys = keys.unwrap_or(settings.keys);
    let sharing = Sharing { nodes: engine.nodes, deadline: engine.deadline, keys, coordinator };
    Ok(OpenStore { store, kind: settings.word(), sharing: Some(sharing), kept: None, warnings })
}
