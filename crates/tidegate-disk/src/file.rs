//! The store's file: one engine with two tables, and the check that the file is still in its place.

use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, Table,
    TableDefinition, WriteTransaction,
};
use tidegate::store::Seed;

const JOURNAL: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("journal");

/// The size of the engine's page cache, in bytes: small, because pieces are only read at the start.
const CACHE: usize = 8 << 20;

/// The name of the file in its folder.
const NAME: &str = "tidegate.redb";

/// The name of a new file until it has an identity, so that a crash leaves no unusable file.
const NEW: &str = "tidegate.redb.new";

/// An open file, locked against other processes until it is dropped.
#[derive(Debug)]
pub(crate) struct StoreFile {
    engine: Database,
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) next: u64,
    place: Option<FileId>,
}

#[derive(Debug)]
pub(crate) enum FileError {
    System(io::Error),
    InUse,
    Damaged(String),
    Foreign(String),
    Newer(String),
}

impl FileError {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::System(error) => error.to_string(),
            Self::InUse => "another process has the file open".to_owned(),
            Self::Damaged(what) => format!("the file is damaged: {what}"),
            Self::Foreign(what) | Self::Newer(what) => what.clone(),
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<redb::Error> for FileError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Foreign(error.to_string())
            }
            redb::Error::Io(error) => Self::System(error),
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::InUse,
            redb::Error::UpgradeRequired(version) => Self::Newer(format!("its engine's form is {version}")),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<DatabaseError> for FileError {
    fn from(error: DatabaseError) -> Self {
        redb::Error::from(error).into()
    }
}

impl From<Unknown> for FileError {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Engine(error) => error.into(),
            Unknown::Missing => Self::Foreign("it does not say whose it is".to_owned()),
            Unknown::Newer(form) => Self::Newer(format!("its form is {form}")),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Journal<'w> {
    table: Table<'w, u64, &'static [u8]>,
    pub(crate) next: u64,
    pub(crate) bytes: u64,
}

impl Journal<'_> {
    pub(crate) fn add(&mut self, piece: &[u8]) -> Result<(), redb::Error> {
        self.table.insert(self.next, piece)?;
        self.next += 1;
        self.bytes += piece.len() as u64;
        Ok(())
    }

    pub(crate) fn forget_before(&mut self, number: u64) -> Result<(), redb::Error> {
        Ok(self.table.retain_in(..number, |_, _| false)?)
    }
}

impl StoreFile {
    pub(crate) fn path_in(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Opens the file of a folder; `None` if there is none.
    pub(crate) fn open(folder: &Path) -> Result<Option<Self>, FileError> {
        let path = Self::path_in(folder);
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if is_link(&error) => {
                let what = "it is a symbolic link, which is not followed; name the folder that it leads to";
                return Err(FileError::Foreign(what.to_owned()));
            }
            opened => opened?,
        };
        if file.metadata()?.len() == 0 {
            // No crash leaves such a file: it gets its name after its first write is on disk, see `make`.
            return Err(FileError::Damaged("it is empty, so it was cut, or made by hand".to_owned()));
        }
        let place = place_of(&file);
        let engine = engine(file)?;
        let identity = Identity::read(&engine)?;
        // A file that was named by mistake keeps its mode.
        make_private(&path, place);
        let mut file = Self { engine, path, identity, next: 0, place };
        file.next = file.last()?.map_or(0, |last| last + 1);
        Ok(Some(file))
    }

    /// Makes the file of a folder that has none. If another process does so at the same time, one or both get
    /// [`FileError::InUse`].
    pub(crate) fn make(folder: &Path, identity: Identity) -> Result<Self, FileError> {
        let (path, new) = (Self::path_in(folder), folder.join(NEW));
        match open(&new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_link(&error) => std::fs::remove_file(&new)?,
            // Left by a process that died while it made the file, or still in use.
            opened => remove_unused(&new, &opened?)?,
        }
        let file = match create(&new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(FileError::InUse),
            made => made?,
        };
        let place = place_of(&file);
        let mut file = Self { engine: engine(file)?, path, identity, next: 0, place };
        file.write(|_| Ok(()))?;
        let named = give_name(&new, &file.path);
        if place_at(&new) == place {
            let _ = std::fs::remove_file(&new);
        }
        named?;
        if !file.is_in_place() {
            // The other process has taken over the temporary name under which this one made its file.
            return Err(FileError::InUse);
        }
        // Makes the file's name durable too, on systems that need it.
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
        Ok(file)
    }

    /// Returns whether the file is still there under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        self.place.is_none() || place_at(&self.path) == self.place
    }

    /// Writes to the journal atomically, together with the identity. Returns the bytes of the added pieces, after they
    /// are on disk.
    pub(crate) fn write(
        &mut self,
        then: impl FnOnce(&mut Journal<'_>) -> Result<(), redb::Error>,
    ) -> Result<u64, FileError> {
        let written = || -> Result<(u64, u64), redb::Error> {
            let mut writing = self.engine.begin_write()?;
            writing.set_durability(Durability::Immediate)?;
            self.identity.write(&writing)?;
            let mut journal = Journal { table: writing.open_table(JOURNAL)?, next: self.next, bytes: 0 };
            then(&mut journal)?;
            let (next, bytes) = (journal.next, journal.bytes);
            drop(journal);
            writing.commit()?;
            Ok((next, bytes))
        };
        let (next, bytes) = written()?;
        self.next = next;
        Ok(bytes)
    }

    /// Reads all pieces, latest first.
    pub(crate) fn read<E: From<FileError>>(
        &self,
        mut then: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let engine = |error: redb::Error| E::from(FileError::from(error));
        let reading = self.engine.begin_read().map_err(|error| engine(error.into()))?;
        let table = match reading.open_table(JOURNAL) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            opened => opened.map_err(|error| engine(error.into()))?,
        };
        for piece in table.iter().map_err(|error| engine(error.into()))?.rev() {
            let (_, piece) = piece.map_err(|error| engine(error.into()))?;
            then(piece.value())?;
        }
        Ok(())
    }

    fn last(&self) -> Result<Option<u64>, FileError> {
        let last = || -> Result<Option<u64>, redb::Error> {
            let reading = self.engine.begin_read()?;
            let table = match reading.open_table(JOURNAL) {
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
                opened => opened?,
            };
            Ok(table.last()?.map(|(last, _)| last.value()))
        };
        Ok(last()?)
    }

    pub(crate) fn close(self) -> Result<(), FileError> {
        Ok(self.engine.close()?)
    }
}

/// Removes a file that no process has open: an engine locks its whole file.
fn remove_unused(path: &Path, file: &File) -> Result<(), FileError> {
    let place = place_of(file);
    // On a file system without locks the engine has none either, so the file counts as unused.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return Err(FileError::InUse);
    }
    // Another process may have removed it, and made its own under the name.
    if place_at(path) == place {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn give_name(new: &Path, path: &Path) -> Result<(), FileError> {
    match std::fs::hard_link(new, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(FileError::InUse),
        // Without hard links, two processes that start at the same moment do not notice each other.
        Err(_) => Ok(std::fs::rename(new, path)?),
        Ok(()) => Ok(()),
    }
}

/// Opens the engine over a file. The whole file is read and checked now, or altered pages would only be found when
/// they are needed.
fn engine(file: File) -> Result<Database, FileError> {
    let open = || -> Result<Database, DatabaseError> {
        let backend = FileBackend::new(file)?;
        Database::builder()
            .set_cache_size(CACHE)
            .set_check_integrity_on_open(true)
            .create_with_backend(backend)
    };
    guarded(|| open().map_err(FileError::from))
}

/// Calls engine code that reads a possibly damaged file: a panic counts as damage.
pub(crate) fn guarded<T>(then: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    catch_unwind(AssertUnwindSafe(then))
        .unwrap_or_else(|_| Err(FileError::Damaged("its engine cannot read it".to_owned())))
}

impl From<StorageError> for FileError {
    fn from(error: StorageError) -> Self {
        redb::Error::from(error).into()
    }
}

// The identity of a file: which store it belongs to, and how its pieces are to be read.

/// The format version that this build writes, and the newest that it reads.
pub(crate) const FORM: u64 = 1;

const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("store");

#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) seed: Seed,
    /// Distinguishes this store from others, for tickets that are settled after a restart.
    pub(crate) store: u64,
    /// The capacity in keys: pieces name slots of a table of that size.
    pub(crate) keys: u64,
    pub(crate) full_keys: bool,
    /// A check value: a build that computes another one hashes keys differently from the build that made the file.
    pub(crate) probe: u64,
    /// How often the file was opened: a process that lost it briefly detects that another one has used it.
    pub(crate) openings: u64,
}

#[derive(Debug)]
pub(crate) enum Unknown {
    Engine(redb::Error),
    /// The identity, or a part of it, is missing.
    Missing,
    /// It is in a newer format.
    Newer(u64),
}

impl<E: Into<redb::Error>> From<E> for Unknown {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Identity {
    pub(crate) fn new(keys: u64, full_keys: bool, seed: Seed, probe: u64) -> Self {
        // Two stores have the same number with a probability of 2^-64.
        let store = RandomState::new().hash_one(0);
        Self { seed, store, keys, full_keys, probe, openings: 0 }
    }

    pub(crate) fn read(engine: &impl ReadableDatabase) -> Result<Self, Unknown> {
        let reading = engine.begin_read()?;
        let table = match reading.open_table(TABLE) {
            Err(redb::TableError::Storage(error)) => return Err(error.into()),
            Err(_) => return Err(Unknown::Missing),
            Ok(table) => table,
        };
        let number = |name: &str| -> Result<u64, Unknown> {
            let bytes = table.get(name)?.ok_or(Unknown::Missing)?;
            Ok(u64::from_le_bytes(bytes.value().try_into().map_err(|_| Unknown::Missing)?))
        };
        let form = number("form")?;
        if form > FORM {
            return Err(Unknown::Newer(form));
        }
        let seed = table.get("seed")?.ok_or(Unknown::Missing)?;
        let seed = Seed::from_bytes(seed.value().try_into().map_err(|_| Unknown::Missing)?);
        Ok(Self {
            seed,
            store: number("store")?,
            keys: number("keys")?,
            full_keys: number("full-keys")? != 0,
            probe: number("probe")?,
            openings: number("openings")?,
        })
    }

    pub(crate) fn write(&self, writing: &WriteTransaction) -> Result<(), redb::Error> {
        let mut table = writing.open_table(TABLE)?;
        let numbers = [
            ("form", FORM),
            ("store", self.store),
            ("keys", self.keys),
            ("full-keys", u64::from(self.full_keys)),
            ("probe", self.probe),
            ("openings", self.openings),
        ];
        for (name, number) in numbers {
            table.insert(name, &number.to_le_bytes()[..])?;
        }
        table.insert("seed", &self.seed.expose()[..])?;
        Ok(())
    }
}

// File operations that do not follow links, create only new files, and identify a file by device and inode.
//
// Otherwise a user who may write in the folder could put a link where this process reads or writes.

/// Device and inode.
pub(crate) type FileId = (u64, u64);

/// Opens an existing file; a symbolic link is an error, see [`is_link`].
pub(crate) fn open(path: &Path) -> io::Result<File> {
    no_links(OpenOptions::new().read(true).write(true)).open(path)
}

/// Creates a file that must not exist, readable and writable by this user alone.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    no_links(OpenOptions::new().read(true).write(true).create_new(true)).open(path)
}

#[cfg(unix)]
fn no_links(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW)
}

#[cfg(not(unix))]
fn no_links(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
pub(crate) fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

#[cfg(not(unix))]
pub(crate) fn is_link(_: &io::Error) -> bool {
    false
}

/// Removes other users' access, if this user may change that.
#[cfg(unix)]
pub(crate) fn make_private(path: &Path, place: Option<FileId>) {
    use std::os::unix::fs::PermissionsExt as _;
    // The engine owns the first handle; `place` verifies that it is the same file.
    let Ok(file) = open(path) else { return };
    let others = file.metadata().is_ok_and(|known| known.permissions().mode() & 0o077 != 0);
    if others && place_of(&file) == place {
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o600));
    }
}

#[cfg(not(unix))]
pub(crate) fn make_private(_: &Path, _: Option<FileId>) {}

/// Refuses a folder that every user may write in.
#[cfg(unix)]
pub(crate) fn check_folder(known: &std::fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = known.permissions().mode() & 0o7777;
    if mode & 0o002 == 0 {
        return Ok(());
    }
    let reason = format!(
        "its mode is {mode:04o}, so every user may put files in it; `chmod o-w` it, or name a folder in it that is not there yet"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

#[cfg(not(unix))]
pub(crate) fn check_folder(_: &std::fs::Metadata) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
pub(crate) fn place_of(file: &File) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().ok().map(|known| (known.dev(), known.ino()))
}

#[cfg(unix)]
pub(crate) fn place_at(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).ok().map(|known| (known.dev(), known.ino()))
}

#[cfg(not(unix))]
pub(crate) fn place_of(_: &File) -> Option<FileId> {
    None
}

#[cfg(not(unix))]
pub(crate) fn place_at(_: &Path) -> Option<FileId> {
    None
}

#[cfg(test)]
mod tests {
    use tidegate::store::Seed;

    use super::*;

    fn identity() -> Identity {
        Identity::new(10, false, Seed::random(), 1)
    }

    /// Two processes that start at the same moment both see no file. The second one used to rename its file over that
    /// of the first, which went on writing to a file without a name.
    #[test]
    fn of_two_that_make_the_file_at_once_one_is_told_that_it_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        assert!(StoreFile::open(folder.path()).unwrap().is_none());
        let first = StoreFile::make(folder.path(), identity()).unwrap();
        let second = StoreFile::make(folder.path(), identity());
        assert!(matches!(second, Err(FileError::InUse)), "{second:?}");
        assert!(first.is_in_place());
        assert!(!folder.path().join(NEW).exists(), "nothing is left behind");
    }

    /// The second process begins while the first is not done.
    #[test]
    fn a_file_that_another_process_is_making_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let other = engine(create(&folder.path().join(NEW)).unwrap()).unwrap();
        let made = StoreFile::make(folder.path(), identity());
        assert!(matches!(made, Err(FileError::InUse)), "{made:?}");
        drop(other);
        // The first process has died in the meantime.
        assert!(StoreFile::make(folder.path(), identity()).unwrap().is_in_place());
    }

    /// Another user with write access to the folder has put a link, or a file that others may read, under the temporary
    /// name.
    #[cfg(unix)]
    #[test]
    fn what_lies_where_a_new_file_is_made_is_not_written_to() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (new, target) = (folder.path().join(NEW), folder.path().join("target"));
        std::fs::write(&target, b"").unwrap();
        std::os::unix::fs::symlink(&target, &new).unwrap();
        drop(StoreFile::make(folder.path(), identity()).unwrap());
        assert_eq!(std::fs::read(&target).unwrap(), b"", "the link is not followed");
        std::fs::remove_file(StoreFile::path_in(folder.path())).unwrap();
        std::fs::write(&new, b"").unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o666)).unwrap();
        let file = StoreFile::make(folder.path(), identity()).unwrap();
        let mode = std::fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
