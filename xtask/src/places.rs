//! The workspace's folders.

use std::path::{Path, PathBuf};

/// Returns the workspace root, wherever xtask was started.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace root")
}

/// Returns the path of a build product of the main workspace; `file` is named by profile and program.
pub(crate) fn built(file: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join(file)
}
