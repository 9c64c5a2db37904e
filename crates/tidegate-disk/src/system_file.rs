//! File operations that do not follow links, create only new files, and identify a file by device and inode.
//!
//! Otherwise a user who may write in the folder could put a link or a file of their own where this process is about to
//! read or write.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Identifies a file: its device and inode.
pub(crate) type FileId = (u64, u64);

/// Opens an existing file. A symbolic link is an error, see [`is_link`].
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

/// Returns whether opening a file failed because a symbolic link has its name.
#[cfg(unix)]
pub(crate) fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

#[cfg(not(unix))]
pub(crate) fn is_link(_: &io::Error) -> bool {
    false
}

/// Removes other users' access to a file. Does nothing if this user may not change that.
#[cfg(unix)]
pub(crate) fn make_private(path: &Path, place: Option<FileId>) {
    use std::os::unix::fs::PermissionsExt as _;
    // Opened once more, because the engine owns the first handle. `place` verifies that it is the same file.
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

/// Returns the identity of the file with this name; a link is not followed.
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
