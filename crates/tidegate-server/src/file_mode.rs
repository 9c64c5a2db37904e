//! Checks who may read a file that holds a secret.

use std::path::Path;

/// Returns the permissions of a file that all users of this machine can read; `None` for other files, and on systems
/// without permissions.
#[cfg(unix)]
pub(crate) fn readable_by_everybody(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = path.metadata().ok()?.permissions().mode();
    (mode & 0o004 != 0).then_some(mode & 0o7777)
}

#[cfg(not(unix))]
pub(crate) fn readable_by_everybody(_: &Path) -> Option<u32> {
    None
}
