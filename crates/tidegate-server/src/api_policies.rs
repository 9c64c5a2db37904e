//! Policies that were put through the API, each in its own text, in force after those of the file.
//!
//! Each name has one owner, the file or the API: with two, a reload would undo a request, or the other way round.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tidegate::config::{ReadError, read_text};

use crate::files;

/// The most policies that the API may have.
pub(crate) const MOST: usize = 1000;

/// The longest text of a policy, in bytes. Most policies have a few hundred, those with long lists more.
pub(crate) const MAX_TEXT: usize = 64 << 10;

/// The most bytes of all texts together, as many as a file may have.
const MAX_TEXTS: usize = 4 << 20;

/// The texts by name, in the order of the names. Immutable: a change makes a new value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiPolicies(BTreeMap<Arc<str>, Arc<str>>);

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error(
        "{MOST} policies were put through the API, which is the largest number possible; delete one first"
    )]
    Policies,
    #[error("the policies put through the API would have {0} bytes together; at most {MAX_TEXTS} are kept")]
    Bytes(usize),
}

impl ApiPolicies {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of a policy.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|text| &**text)
    }

    /// Adds a policy, or replaces it.
    ///
    /// # Errors
    /// [`NoRoom`] if there are too many policies, or their texts are too long together.
    pub(crate) fn with(&self, name: &str, text: &str) -> Result<Self, NoRoom> {
        let mut texts = self.0.clone();
        texts.insert(name.into(), text.into());
        if texts.len() > MOST {
            return Err(NoRoom::Policies);
        }
        let bytes: usize = texts.iter().map(|(name, text)| name.len() + text.len()).sum();
        if bytes > MAX_TEXTS { Err(NoRoom::Bytes(bytes)) } else { Ok(Self(texts)) }
    }

    /// Returns the policies without this one.
    pub(crate) fn without(&self, name: &str) -> Self {
        let mut texts = self.0.clone();
        texts.remove(name);
        Self(texts)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (&**name, &**text))
    }
}

// The file that keeps policies put through the API across restarts: `api-policies.json`, beside the counters of the
// disk store, with `{"version": 1, "policies": {NAME: TEXT}}`. It is replaced as a whole by a rename, so after a
// power cut either the old or the new file is there. The store's lock keeps other processes out of the folder.

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

    /// Reads the kept policies, if any. Blocks the thread.
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

    /// Replaces the kept policies, unless `given_up` once all is written. When it returns, the file is on disk.
    /// Blocks the thread.
    ///
    /// # Errors
    /// The system's error. The file is unchanged then.
    pub(crate) fn write(&self, policies: &ApiPolicies, given_up: &AtomicBool) -> Result<(), String> {
        let written = Written { version: VERSION, policies: policies.each().collect() };
        files::write_whole(
            &self.path,
            ".api-policies-",
            |new| {
                serde_json::to_writer_pretty(&mut *new, &written)?;
                new.write_all(b"\n")
            },
            |new| {
                // A caller that gave up on a slow disk was told that nothing has changed.
                if given_up.load(Ordering::Acquire) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                new.persist(&self.path).map(drop).map_err(|error| error.error)
            },
        )
        .map_err(|error| format!("{}: {error}", self.path.display()))
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
