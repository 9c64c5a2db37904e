//! Errors of opening and closing a store.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tidegate::store::CapacityError;

/// Why a [`DiskStore`](crate::DiskStore) was not opened. The file is unchanged, except for the engine's own repair
/// after a crash.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be used or created.
    #[error(
        "the folder `{}` of the store cannot be used; make it, give it to the user that runs this process, or name another one",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file cannot be opened, read or written.
    #[error(
        "the store's file `{}` cannot be opened; check that the disk has room and that the user of this process may read and write it, or name another folder",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process, or another store of this process, has the file open.
    #[error(
        "the store's file `{}` is in use by another process; stop that one, or give each its own folder",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "the store's file `{}` is damaged ({what}); restore a copy of it, or move it away, and every limit starts full",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// The file is not one of this store.
    #[error(
        "`{}` is not a file of this store ({what}); name another folder, or move the file away",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        what: String,
    },
    /// The file was written by a newer version, or by a build that hashes keys differently.
    #[error(
        "the store's file `{}` was written by another version ({what}); run that version, or move the file away, and every limit starts full",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The difference that was found.
        what: String,
    },
    /// The file keeps full keys and the options ask for fingerprints, or the other way round.
    #[error(
        "the store's file `{}` was made with full_keys: {kept}; keep it so, or move the file away, and every limit starts full",
        path.display()
    )]
    FullKeys {
        /// The file.
        path: PathBuf,
        /// Whether the file was made with full keys.
        kept: bool,
    },
    /// The interval is out of range.
    #[error("a flush interval of {interval:?} cannot be kept; use 1 ms to 1 h")]
    Interval {
        /// The interval of the options.
        interval: Duration,
    },
    /// The pause after a failed write is out of range.
    #[error("a pause of {retry:?} after a write that failed cannot be kept; use 1 ms to 1 h")]
    Retry {
        /// The pause of the options.
        retry: Duration,
    },
    /// The number of keys is out of range.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The writer thread could not be started.
    #[error("no thread could be started to write the store's file; raise the limit of threads")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Why a store was closed without all changes being on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store's file `{}` was closed without its latest changes: {reason}",
    path.display()
)]
pub struct CloseError {
    /// The file.
    pub path: PathBuf,
    /// Why the changes could not be written.
    pub reason: String,
}
