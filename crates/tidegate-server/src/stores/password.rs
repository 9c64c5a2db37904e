//! Reads the files that an engine's settings name.

use std::path::Path;

use tidegate::config::{EngineSettings, read_file, read_text};

use super::opened::OpenStoreError;

/// The most bytes of a file with a password or certificates: more is another file.
const MOST: u64 = 1 << 20;

/// Reads the password: the first line of its file.
pub(super) fn password(engine: &EngineSettings) -> Result<Option<String>, OpenStoreError> {
    let Some(path) = &engine.password_file else { return Ok(None) };
    let text = read_text(path, MOST).map_err(failed("store.password_file", path))?;
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

/// Reads the certificates by which the engine is known.
#[cfg(any(feature = "redis", feature = "etcd"))]
pub(super) fn certificates(engine: &EngineSettings) -> Result<Option<Vec<u8>>, OpenStoreError> {
    let Some(path) = &engine.ca_file else { return Ok(None) };
    read_file(path, MOST).map(Some).map_err(failed("store.ca_file", path))
}

fn failed(key: &'static str, path: &Path) -> impl FnOnce(tidegate::config::ReadError) -> OpenStoreError {
    let path = path.to_owned();
    move |source| OpenStoreError::File { key, path, source }
}
