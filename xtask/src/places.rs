//! The workspace's folders.

use std::path::{Path, PathBuf};

/// The workspace root, wherever xtask is started from.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace root")
}

/// Where cargo puts what it builds for the main workspace: a file named by profile and program.
pub(crate) fn built(file: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join(file)
}
