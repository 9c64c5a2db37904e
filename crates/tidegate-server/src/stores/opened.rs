//! An opened store, and the errors of opening one.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Coordinator;
use tidegate::config::{ReadError, StoreSettings};
use tidegate::store::{CapacityError, Later, Store, StoreError};

/// An opened store, with what a server must know about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenStore {
    /// The store that holds the counters.
    pub store: Arc<dyn Store>,
    /// The kind of store, as in metrics.
    pub kind: &'static str,
    /// How several nodes share it; `None` for a store of this process.
    pub(crate) sharing: Option<Sharing>,
    /// Whether an engine is being dialled and has not answered.
    pub(crate) away: bool,
    /// Of a store on disk; the server keeps other state there too.
    pub(crate) folder: Option<PathBuf>,
    /// Writes counters to disk.
    pub(crate) kept: Option<Arc<dyn PersistentCounters>>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// How several nodes share one engine.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    /// The most nodes that share it.
    pub(crate) nodes: u64,
    /// How long the engine may take to answer.
    pub(crate) deadline: Duration,
    /// The number of keys for which this process keeps its own counters (`share: local`, `split`).
    pub(crate) keys: usize,
    /// Whether these counters store full keys, in twice the memory, instead of fingerprints.
    pub(crate) full_keys: bool,
    /// The coordinator by which nodes agree on their parts; `None`: each has an even part of the limit, for the
    /// most nodes.
    pub(crate) coordinator: Option<Arc<dyn Coordinator>>,
    /// Where nodes tell of themselves if no coordinator does.
    pub(crate) roster: Option<Arc<dyn Roster>>,
    /// Whether this node uses policies published through the coordinator.
    pub(crate) cluster_policies: bool,
    pub(crate) region: Option<Region>,
}

/// An engine that does not coordinate its nodes, where each tells the others of itself.
pub(crate) trait Roster: Debug + Send + Sync {
    /// Writes this node's report, an empty one to leave. Returns those of all nodes of the last ten seconds.
    fn exchange(&self, node: &str, report: &str) -> Later<Result<Reported, StoreError>>;
}

/// What the nodes of an engine report, and how busy it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    pub(crate) nodes: Vec<String>,
    pub(crate) load: EngineLoad,
}

/// How busy an engine is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineLoad {
    /// The used part of the memory that it may use.
    pub(crate) memory: f64,
    /// The processor time of the thread that executes all calls, since its start.
    pub(crate) processor: Duration,
}

/// A region that divides the limits with others, each with its own engine.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Its name: the same on all its nodes.
    pub(crate) name: String,
    /// The most regions.
    pub(crate) most: u64,
    /// The coordinator by which the nodes of all regions agree on the regions' parts.
    pub(crate) coordinator: Arc<dyn Coordinator>,
}

/// Counters that are written to disk while this process decides.
pub(crate) trait PersistentCounters: Debug + Send + Sync {
    /// Why counters cannot be written, and since how long.
    fn trouble(&self) -> Option<(String, Duration)>;

    /// Writes a copy of all counters into the folder `backup` beside them, in place of an earlier one, and returns its file.
    /// Blocks the thread; only one call at a time.
    ///
    /// # Errors
    /// Why there is none.
    fn back_up(&self) -> Result<PathBuf, String>;

    /// Writes the last changes. Blocks the thread.
    ///
    /// # Errors
    /// What was not written, and why.
    fn close(&self) -> Result<(), String>;
}

/// Why a store cannot be opened. Messages contain no secrets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// There is not enough memory for this many keys.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The folder or the file of the disk store cannot be used.
    #[error("store.kind: disk")]
    Disk(#[from] tidegate_disk::OpenError),
    /// There is no default folder for the counters.
    #[error("store.kind: disk: {0}; write store.path")]
    NoFolder(String),
    /// The client of the engine is not built in.
    #[error(
        "store.kind: {kind}: this build lacks the client of this engine; build it with the feature `{kind}`"
    )]
    NotBuilt {
        /// The kind, which is also the name of the feature.
        kind: &'static str,
    },
    /// The store cannot coordinate nodes.
    #[error("store.kind: {kind}: nodes cannot agree through it; that needs store.kind: etcd or zookeeper")]
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
        /// Why it cannot be read.
        why: ReadError,
    },
    /// A file beside the configuration does not have the expected content.
    #[error("{key}: {} {why}", path.display())]
    Content {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// A setting of the engine is wrong: an address, or a number out of range.
    #[error("store.kind: {kind}: {reason}")]
    Setting {
        /// The kind.
        kind: &'static str,
        /// What is wrong, and what would work.
        reason: String,
    },
    /// An error about the engine by which regions agree.
    #[error("{}", of_region(.0))]
    Region(Box<Self>),
    /// The former store, or its file, cannot be used.
    #[error("store.from: {}: {reason}", path.display())]
    Former {
        /// Its policy file.
        path: PathBuf,
        /// What is wrong, and what would work.
        reason: String,
        /// Whether a file or the choice of program must change.
        in_the_file: bool,
    },
    /// The engine answers but cannot be used: it refuses the credentials, is too old, or is of another kind.
    #[error("store.kind: {kind}: {reason}")]
    Engine {
        /// The kind.
        kind: &'static str,
        /// What is wrong, and what would work.
        reason: String,
    },
}

/// Rewrites a message about `store` for `store.region`.
pub(super) fn of_region(message: &impl ToString) -> String {
    message.to_string().replacen("store.", "store.region.", 1)
}

impl OpenStoreError {
    /// Returns the error as one about the former store, with its causes.
    pub(super) fn of_former(&self, path: &Path) -> Self {
        let mut reason = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Self::Former { path: path.to_owned(), reason, in_the_file: self.is_in_the_file() }
    }

    /// Returns the number of keys that there is not enough memory for; `None` for every other error.
    #[must_use]
    pub const fn too_many_keys(&self) -> Option<usize> {
        match self {
            Self::Capacity(CapacityError::NoMemory { keys })
            | Self::Disk(tidegate_disk::OpenError::Capacity(CapacityError::NoMemory { keys })) => Some(*keys),
            _ => None,
        }
    }

    /// Returns whether the file or the choice of program must change, not the machine, a folder or the engine.
    #[must_use]
    pub const fn is_in_the_file(&self) -> bool {
        match self {
            Self::Capacity(CapacityError::NoMemory { .. })
            | Self::File { .. }
            | Self::Content { .. }
            | Self::Engine { .. } => false,
            Self::Region(error) => error.is_in_the_file(),
            Self::Former { in_the_file, .. } => *in_the_file,
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
    /// Wraps any store, under the name that metrics use for it.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, kind: &'static str) -> Self {
        Self { store, kind, sharing: None, away: false, folder: None, kept: None, warnings: Vec::new() }
    }

    /// Returns the folder of a store on disk; `None` for all others. Only one process uses it.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub(crate) fn in_memory(settings: &StoreSettings, keys: Option<usize>) -> Result<Self, CapacityError> {
        Ok(Self::new(Arc::new(settings.memory(keys)?), "memory"))
    }
}
