//! Reads the files that an engine's settings name.

use std::path::Path;

use tidegate::config::{EngineSettings, read_file, read_text};

use super::opened::OpenStoreError;

/// The most bytes of a file with a password or certificates. A larger file is probably a different one.
const MOST: u64 = 1 << 20;

/// Reads the password: the first line of its file.
pub(super) fn password(engine: &EngineSettings) -> Result<Option<String>, OpenStoreError> {
    const KEY: &str = "store.password_file";
    let Some(path) = &engine.password_file else { return Ok(None) };
    let text = read_text(path, MOST).map_err(failed(KEY, path))?;
    match text.lines().next().unwrap_or_default() {
        "" => Err(content(KEY, path, "has an empty first line; write the password there")),
        password => Ok(Some(password.to_owned())),
    }
}

#[cfg(any(feature = "redis", feature = "etcd"))]
pub(super) fn certificates(engine: &EngineSettings) -> Result<Option<Vec<u8>>, OpenStoreError> {
    engine.ca_file.as_ref().map(|path| certificate("store.ca_file", path)).transpose()
}

/// A certificate and its private key, in PEM.
#[cfg(any(feature = "redis", feature = "etcd"))]
type Identity = (Vec<u8>, Vec<u8>);

#[cfg(any(feature = "redis", feature = "etcd"))]
pub(super) fn identity(engine: &EngineSettings) -> Result<Option<Identity>, OpenStoreError> {
    let Some((cert, key)) = &engine.identity_files else { return Ok(None) };
    Ok(Some((certificate("store.cert_file", cert)?, private_key("store.key_file", key)?)))
}

/// Reads a file with certificates. It must contain some: with none, a client trusts nobody, and only reports that
/// the engine's issuer is unknown.
#[cfg(any(feature = "redis", feature = "etcd"))]
fn certificate(key: &'static str, path: &Path) -> Result<Vec<u8>, OpenStoreError> {
    let text = read_file(path, MOST).map_err(failed(key, path))?;
    if has(&text, "-----BEGIN CERTIFICATE-----") {
        return Ok(text);
    }
    let why = "holds no certificate in PEM; one begins with the line -----BEGIN CERTIFICATE-----";
    Err(content(key, path, why))
}

#[cfg(any(feature = "redis", feature = "etcd"))]
fn private_key(key: &'static str, path: &Path) -> Result<Vec<u8>, OpenStoreError> {
    let text = read_file(path, MOST).map_err(failed(key, path))?;
    let why = if has(&text, "ENCRYPTED") {
        "holds an encrypted key, and a server has nobody to type its passphrase; write it without one: openssl pkey -in FILE -out NEW"
    } else if has(&text, "PRIVATE KEY-----") {
        return Ok(text);
    } else {
        "holds no private key in PEM; one begins with the line -----BEGIN PRIVATE KEY-----"
    };
    Err(content(key, path, why))
}

#[cfg(any(feature = "redis", feature = "etcd"))]
fn has(text: &[u8], words: &str) -> bool {
    text.windows(words.len()).any(|part| part == words.as_bytes())
}

fn content(key: &'static str, path: &Path, why: &'static str) -> OpenStoreError {
    OpenStoreError::Content { key, path: path.to_owned(), why }
}

fn failed(key: &'static str, path: &Path) -> impl FnOnce(tidegate::config::ReadError) -> OpenStoreError {
    let path = path.to_owned();
    move |why| OpenStoreError::File { key, path, why }
}
