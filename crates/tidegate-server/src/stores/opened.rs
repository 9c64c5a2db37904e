//! An opened store, and why there is none.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Coordinator;
use tidegate::config::{ReadError, StoreSettings};
use tidegate::store::{CapacityError, Store};

/// An opened store, and what a server has to know of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenStore {
    /// What keeps the counters.
    pub store: Arc<dyn Store>,
    /// Its kind, as metrics name it.
    pub kind: &'static str,
    /// How several nodes share it; `None` for a store of this process.
    pub sharing: Option<Sharing>,
    /// Whether it is an engine that is dialled and has not answered yet.
    pub(crate) away: bool,
    /// The folder of a store on disk, where other state of this server lies as well.
    pub(crate) folder: Option<PathBuf>,
    /// What may be in trouble although it decides.
    pub(crate) kept: Option<Arc<dyn Kept>>,
    /// What whoever starts the server should read.
    pub warnings: Vec<String>,
}

/// How several nodes share one engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sharing {
    /// How many there are at most.
    pub nodes: u64,
    /// How long the engine has to answer.
    pub deadline: Duration,
    /// For how many keys this process keeps counters of its own, for policies with `share: local` or `split`.
    pub keys: usize,
    /// Whether it keeps those keys in full, in twice the memory, and not by their fingerprints.
    pub full_keys: bool,
    /// Through what nodes agree on their parts; `None` where each has an even part of the most there may be.
    pub coordinator: Option<Arc<dyn Coordinator>>,
    /// Whether this node goes by the policies that were put through the coordinator, once there are some.
    pub cluster_policies: bool,
    /// The region whose engine it is, where several regions divide the limits.
    pub region: Option<Region>,
}

/// A region among others that divide the limits, each with an engine of its own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Region {
    /// Its name: the same on all its nodes.
    pub name: String,
    /// How many regions there are at most.
    pub most: u64,
    /// Through what the nodes of all regions agree on the regions' parts.
    pub coordinator: Arc<dyn Coordinator>,
}

/// Counters that are kept somewhere while this process decides.
pub(crate) trait Kept: Debug + Send + Sync {
    /// Why they cannot be kept at present, and for how long that has been so.
    fn trouble(&self) -> Option<(String, Duration)>;

    /// Keeps what has changed, for the last time. Holds the thread.
    ///
    /// # Errors
    /// What was not kept, and why.
    fn close(&self) -> Result<(), String>;
}

/// Why a store cannot be opened. Shows no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// There is no memory for so many keys.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The folder or the file of the disk store.
    #[error("store.kind: disk")]
    Disk(#[from] tidegate_disk::OpenError),
    /// Nobody says where the counters are to be.
    #[error("store.kind: disk: {0}; write store.path")]
    NoFolder(String),
    /// The client of the engine is not built in.
    #[error(
        "store.kind: {kind}: this program was built without its client; build it with `cargo install --path crates/tidegate-cli --features {kind}`"
    )]
    NotBuilt {
        /// The kind, which is the feature's name too.
        kind: &'static str,
    },
    /// Nodes agree on nothing through it.
    #[error(
        "store.kind: {kind}: nodes agree on nothing through it; that takes store.kind: etcd or zookeeper"
    )]
    NoCoordinator {
        /// The kind.
        kind: &'static str,
    },
    /// A file beside the configuration cannot be read.
    #[error("{key}: {} {why}", path.display())]
    File {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        why: ReadError,
    },
    /// A file beside the configuration holds something else than what it is for.
    #[error("{key}: {} {why}", path.display())]
    Content {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What it lacks.
        why: &'static str,
    },
    /// What the file says of the engine is wrong: an address, or a number out of range.
    #[error("store.kind: {kind}: {reason}")]
    Setting {
        /// The kind.
        kind: &'static str,
        /// What is wrong, and what would work.
        reason: String,
    },
    /// The same of the engine through which regions agree.
    #[error("{}", of_region(.0))]
    Region(Box<Self>),
    /// The engine answers, and cannot be used: it refuses the credentials, is too old, or is none of its kind.
    #[error("store.kind: {kind}: {reason}")]
    Engine {
        /// The kind.
        kind: &'static str,
        /// What is wrong, and what would work.
        reason: String,
    },
}

/// Says of `store.region` what a message says of `store`.
pub(super) fn of_region(message: &impl ToString) -> String {
    message.to_string().replacen("store.", "store.region.", 1)
}

impl OpenStoreError {
    /// Returns the number of keys that the system has no memory for, where it is that.
    #[must_use]
    pub const fn too_many_keys(&self) -> Option<usize> {
        match self {
            Self::Capacity(CapacityError::NoMemory { keys })
            | Self::Disk(tidegate_disk::OpenError::Capacity(CapacityError::NoMemory { keys })) => Some(*keys),
            _ => None,
        }
    }

    /// Says whether it is the file, or the choice of program, that has to change: not the machine, a folder or the engine.
    #[must_use]
    pub const fn is_in_the_file(&self) -> bool {
        match self {
            Self::Capacity(CapacityError::NoMemory { .. })
            | Self::File { .. }
            | Self::Content { .. }
            | Self::Engine { .. } => false,
            Self::Region(error) => error.is_in_the_file(),
            Self::Disk(error) => matches!(error, tidegate_disk::OpenError::Interval { .. }),
            Self::Capacity(_)
            | Self::NoFolder(_)
            | Self::NotBuilt { .. }
            | Self::NoCoordinator { .. }
            | Self::Setting { .. } => true,
        }
    }
}

impl OpenStore {
    /// Takes any store, under the name that metrics are to give it.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, kind: &'static str) -> Self {
        Self { store, kind, sharing: None, away: false, folder: None, kept: None, warnings: Vec::new() }
    }

    pub(crate) fn in_memory(settings: &StoreSettings, keys: Option<usize>) -> Result<Self, CapacityError> {
        Ok(Self::new(Arc::new(settings.memory(keys)?), "memory"))
    }
}
