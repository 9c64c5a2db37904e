//! A file of [`redb`] in a folder: private, locked, checked when it is opened, and put aside if it is damaged.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Database, DatabaseError, Key, ReadOnlyTable, ReadTransaction, TableDefinition, TableError, Value,
};

/// The size of the engine's page cache, in bytes.
const CACHE: usize = 4 << 20;

#[derive(Debug)]
pub(crate) enum FileError {
    System(String),
    InUse,
    Damaged(String),
    Newer(String),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(what) | Self::Newer(what) => f.write_str(what),
            Self::InUse => f.write_str("another process has the file open"),
            Self::Damaged(what) => write!(f, "the file is damaged: {what}"),
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl From<redb::Error> for FileError {
    fn from(error: redb::Error) -> Self {
        match error {
            // Not a file of the engine, or a part of one.
            redb::Error::Io(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Self::Damaged(error.to_string())
            }
            redb::Error::Io(error) => Self::System(error.to_string()),
            // Of a write after one that failed, or by a reader meanwhile.
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
                Self::System("an earlier write has failed".to_owned())
            }
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::InUse,
            redb::Error::UpgradeRequired(version) => Self::Newer(format!("its engine's form is {version}")),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// An open file, locked against other processes until it is dropped; or the same in memory.
#[derive(Debug)]
pub(crate) struct EngineFile {
    pub(crate) engine: Database,
    path: Option<PathBuf>,
    inode: Option<(u64, u64)>,
}

impl EngineFile {
    /// Returns whether the file is still there under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        self.inode.is_none() || self.path.as_deref().is_none_or(|path| inode_at(path) == self.inode)
    }
}

/// Opens or makes a file in a folder, which is made too, and reads it. One that cannot be read is put aside as `aside`
/// with a warning, and another one is begun. `what`: what it has, for the warning.
pub(crate) fn open<T>(
    folder: &Path,
    name: &str,
    aside: &str,
    what: &str,
    read: impl Fn(EngineFile) -> Result<T, FileError>,
) -> Result<T, FileError> {
    let opened = || guarded(|| read(open_file(folder, name)?));
    match opened() {
        Err(FileError::Damaged(damage)) => {
            let (path, aside) = (folder.join(name), folder.join(aside));
            std::fs::rename(&path, &aside)?;
            tracing::warn!(
                path = %aside.display(), what, damage, "a file is damaged; it is put aside, and begun anew"
            );
            opened()
        }
        opened => opened,
    }
}

fn open_file(folder: &Path, name: &str) -> Result<EngineFile, FileError> {
    make_folder(folder)?;
    let path = folder.join(name);
    if std::fs::symlink_metadata(&path).is_ok_and(|known| known.is_symlink()) {
        let what = "it is a symbolic link, which is not followed";
        return Err(FileError::System(what.to_owned()));
    }
    let file = private(OpenOptions::new().read(true).write(true).create(true).truncate(false)).open(&path)?;
    let inode = inode_of(&file);
    // Put there since it was looked at.
    if inode_at(&path) != inode {
        return Err(FileError::System("another file has taken its place".to_owned()));
    }
    Ok(EngineFile { engine: on_disk(file)?, path: Some(path), inode })
}

/// The whole file is read and checked now, or altered pages would only be found when they are needed.
fn on_disk(file: File) -> Result<Database, FileError> {
    let open = || -> Result<Database, DatabaseError> {
        let backend = FileBackend::new(file)?;
        Database::builder()
            .set_cache_size(CACHE)
            .set_check_integrity_on_open(true)
            .create_with_backend(backend)
    };
    open().map_err(|error| redb::Error::from(error).into())
}

/// Makes a file in memory.
pub(crate) fn in_memory() -> Result<EngineFile, FileError> {
    let made = Database::builder().set_cache_size(1 << 20).create_with_backend(InMemoryBackend::new());
    let engine = made.map_err(|error| FileError::from(redb::Error::from(error)))?;
    Ok(EngineFile { engine, path: None, inode: None })
}

/// Opens a table to read it; `None`: a file of an earlier build lacks it.
pub(crate) fn table_if_there<K: Key + 'static, V: Value + 'static>(
    reading: &ReadTransaction,
    table: TableDefinition<'_, K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, redb::Error> {
    match reading.open_table(table) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Calls engine code that reads a possibly damaged file: a panic counts as damage.
pub(crate) fn guarded<T, E: Into<FileError>>(then: impl FnOnce() -> Result<T, E>) -> Result<T, FileError> {
    match catch_unwind(AssertUnwindSafe(then)) {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(FileError::Damaged("its engine cannot read it".to_owned())),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match std::fs::metadata(folder) {
        Ok(known) if known.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::NotADirectory, "there is a file of that name")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private_folder(DirBuilder::new()).create(folder)
        }
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn private_folder(mut builder: DirBuilder) -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt as _;
    builder.mode(0o700);
    builder
}

#[cfg(not(unix))]
fn private_folder(builder: DirBuilder) -> DirBuilder {
    builder
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn inode_of(file: &File) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().ok().map(|known| (known.dev(), known.ino()))
}

#[cfg(unix)]
fn inode_at(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).ok().map(|known| (known.dev(), known.ino()))
}

#[cfg(not(unix))]
fn inode_of(_: &File) -> Option<(u64, u64)> {
    None
}

#[cfg(not(unix))]
fn inode_at(_: &Path) -> Option<(u64, u64)> {
    None
}
