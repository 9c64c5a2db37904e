//! The file that keeps policies put through the API across restarts: `api-policies.json`, beside the counters of the
//! disk store.
//!
//! Its content is JSON, `{"version": 1, "policies": {NAME: TEXT}}`. It is replaced as a whole by a rename, so after a
//! power cut either the old or the new file is there. The store's own lock keeps other processes out of the folder.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tidegate::config::{ReadError, read_text};

use super::ApiPolicies;

/// The most bytes of the file: all texts with every character escaped, and the syntax between them.
const MAX_BYTES: u64 = 32 << 20;
const NAME: &str = "api-policies.json";
const VERSION: u32 = 1;

/// The folder and the file where policies are kept.
#[derive(Clone, Debug)]
pub(crate) struct SavedPolicies {
    path: PathBuf,
}

impl fmt::Display for SavedPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    version: u32,
    policies: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    version: u32,
    policies: BTreeMap<&'a str, &'a str>,
}

impl SavedPolicies {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join(NAME) }
    }

    /// Reads the kept policies; none if there is no file yet. Blocks the thread.
    ///
    /// # Errors
    /// What is wrong with the file, and how to repair it.
    pub(crate) fn read(&self) -> Result<ApiPolicies, String> {
        let path = self.path.display();
        let text = match read_text(&self.path, MAX_BYTES) {
            Ok(text) => text,
            Err(ReadError::System(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(ApiPolicies::default());
            }
            Err(error) => return Err(format!("{path}: {error}")),
        };
        let help =
            "repair it, or move it away to continue without the policies that were put through the API";
        let read: Read = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}; {help}"))?;
        if read.version != VERSION {
            let found = read.version;
            return Err(format!("{path}: has version {found}, and this program knows {VERSION}; {help}"));
        }
        let mut policies = ApiPolicies::default();
        for (name, text) in read.policies {
            policies = policies.with(&name, &text).map_err(|error| format!("{path}: {error}; {help}"))?;
        }
        Ok(policies)
    }

    /// Replaces the kept policies, unless `given_up` is true once everything is written. When it returns, the new file
    /// is on disk. Blocks the thread.
    ///
    /// # Errors
    /// The system's error. The file is unchanged then.
    pub(crate) fn write(&self, policies: &ApiPolicies, given_up: &AtomicBool) -> Result<(), String> {
        let write = || -> io::Result<()> {
            let folder = self.path.parent().unwrap_or(Path::new("."));
            let mut new = tempfile::Builder::new().prefix(".api-policies-").tempfile_in(folder)?;
            let written = Written { version: VERSION, policies: policies.each().collect() };
            serde_json::to_writer_pretty(&mut new, &written)?;
            new.write_all(b"\n")?;
            new.as_file().sync_all()?;
            // A caller that gave up on a slow disk was told that nothing has changed.
            if given_up.load(Ordering::Acquire) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            new.persist(&self.path).map_err(|error| error.error)?;
            // Syncs the folder too, so that the rename survives a power cut. On systems where a folder cannot be opened
            // as a file, the system does this itself.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
            Ok(())
        };
        write().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let saved = SavedPolicies::in_folder(folder.path());
        assert!(saved.read().unwrap().is_empty(), "no file yet");
        let policies = ApiPolicies::default().with("a/b", "limit: { rate: 1/s }\n# \"é\"\n").unwrap();
        saved.write(&policies, &AtomicBool::new(false)).unwrap();
        assert_eq!(saved.read().unwrap(), policies);
        assert!(saved.write(&policies.without("a/b"), &AtomicBool::new(true)).is_err());
        assert_eq!(saved.read().unwrap(), policies, "given up, it changes nothing");
        saved.write(&policies.without("a/b"), &AtomicBool::new(false)).unwrap();
        assert!(saved.read().unwrap().is_empty());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        for (text, words) in
            [("{", "EOF"), ("{\"version\": 2, \"policies\": {}}", "has version 2"), ("[]", "repair it")]
        {
            std::fs::write(folder.path().join(NAME), text).unwrap();
            let error = saved.read().unwrap_err();
            assert!(error.contains(words) && error.contains("move it away"), "{error}");
        }
    }
}
