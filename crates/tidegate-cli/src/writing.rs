//! Writes files completely or not at all.
//!
//! A new file is written beside the old one, under a random name that must not exist yet, synced to disk, and then
//! renamed over it. So a full disk or a power cut leaves the old file intact, a server that watches it never reads half
//! a file, and a name planted in the folder by someone else is neither followed nor overwritten.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;

use crate::exit::Mistake;

/// Creates a file that must not exist yet, with the permissions of the process's umask.
///
/// # Errors
/// Of the kind `AlreadyExists` if the name exists, even as a dangling symlink.
pub(crate) fn create(path: &Path, text: &str) -> io::Result<()> {
    let new = beside(path, text.as_bytes(), None)?;
    new.persist_noclobber(path).map_err(|error| error.error)?;
    settle(path);
    Ok(())
}

/// Permissions, owner and group stay. A symlink stays, and its target is replaced. Other hard links to the file keep
/// the old content.
///
/// # Errors
/// If it is not a regular file, its owner cannot be kept, or the system reports an error. The file then stays as it
/// was.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let name = path.display();
    let target = path.canonicalize().with_context(|| format!("cannot find {name}"))?;
    let old = target.metadata().with_context(|| format!("cannot read {name}"))?;
    if !old.is_file() {
        return Err(Mistake(format!("{name} is not a regular file, and only such are replaced")).into());
    }
    let replaced = || {
        let new = beside(&target, text.as_bytes(), Some(&old))?;
        new.persist(&target).map_err(|error| error.error)?;
        settle(&target);
        io::Result::Ok(())
    };
    replaced().with_context(|| format!("cannot replace {name}; it is left as it was"))
}

/// Writes a file that can be generated again. A symlink is replaced, not followed; a device or a pipe is written to.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let put = || match path.metadata() {
        Ok(there) if !there.is_file() && !there.is_dir() => {
            File::options().write(true).open(path)?.write_all(bytes)
        }
        _ => {
            beside(path, bytes, None)?.persist(path).map_err(|error| error.error)?;
            settle(path);
            Ok(())
        }
    };
    put().with_context(|| format!("cannot write {}", path.display()))
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Writes a temporary file beside `path`, with the permissions and the owner of an old one. Dropping it deletes it.
fn beside(path: &Path, bytes: &[u8], old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tidegate-");
    #[cfg(unix)]
    if old.is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        // As for any new file. A file that replaces another is readable by its owner only until it gets the other's
        // permissions.
        builder.permissions(Permissions::from_mode(0o666));
    }
    let mut new = builder.tempfile_in(folder(path)).map_err(|error| {
        // Without the random name that was tried.
        io::Error::from(error.kind())
    })?;
    if let Some(old) = old {
        like(new.as_file(), old)?;
    }
    new.write_all(bytes)?;
    new.as_file().sync_all()?;
    Ok(new)
}

#[cfg(unix)]
fn like(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid())).map_err(|error| {
            io::Error::new(error.kind(), format!("its owner cannot be kept ({error}); be its owner"))
        })?;
    }
    // Changing the owner clears some bits.
    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
}

#[cfg(not(unix))]
fn like(file: &File, old: &Metadata) -> io::Result<()> {
    let permissions: Permissions = old.permissions();
    file.set_permissions(permissions)
}

/// Syncs a rename to disk, where folders can be synced.
fn settle(path: &Path) {
    // Both files are complete, and this only decides which one exists after a power cut.
    let _ = File::open(folder(path)).and_then(|folder| folder.sync_all());
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Replacing a secret must not widen its permissions to what the umask allows.
    #[test]
    fn replacing_keeps_permissions_owner_and_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        let gone = create(&dir.path().join("gone/file"), "x").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert!(!gone.to_string().contains("gone"), "{gone}");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        // Only root may give files away; for other users the owner stays the same either way.
        let given = std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).is_ok();
        symlink("file", &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!((text(&file).as_str(), text(&link).as_str()), ("new", "new"));
        assert!(link.is_symlink());
        let about = file.metadata().unwrap();
        assert_eq!(about.mode() & 0o7777, 0o640);
        assert!(!given || (about.uid(), about.gid()) == (65_534, 65_534));
        assert_eq!(names(dir.path()), ["file", "link"]);
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        assert!(replace(Path::new("/dev/null"), "x").unwrap_err().is::<Mistake>());
        let dir = tempfile::tempdir().unwrap();
        assert!(replace(dir.path(), "x").unwrap_err().is::<Mistake>());
        symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(replace(&dir.path().join("link"), "x").is_err());
    }

    #[test]
    fn a_name_that_is_taken_is_not_overwritten_nor_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, planted) = (dir.path().join("victim"), dir.path().join("planted"));
        for target in ["victim", "nowhere"] {
            let _ = std::fs::remove_file(&planted);
            std::fs::write(&victim, "kept").unwrap();
            symlink(target, &planted).unwrap();
            assert_eq!(create(&planted, "x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            put(&planted, b"picture").unwrap();
            assert_eq!((text(&victim).as_str(), text(&planted).as_str()), ("kept", "picture"));
            assert!(!planted.is_symlink());
        }
        put(Path::new("/dev/null"), b"x").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
