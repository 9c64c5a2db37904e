//! The settings of tickets: the keys of the deployment, the lifetime of a ticket, and the name of this node.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::{ReadError, TicketSettings, read_text};
use tidegate::gate::ticket::{KeyError, Ticket, TicketKeys};

use crate::file_mode;

/// The most bytes of a file that holds ticket keys. A larger file is probably a different one.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// The settings of a server's tickets. Read only at the start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TicketOptions {
    /// The keys. `None`: a random one, so that tickets become invalid when the process ends, like the counters in its
    /// memory.
    pub keys: Option<TicketKeys>,
    /// How long a ticket can be settled, 1 ns to 30 days. 10 minutes by default: calls of language models and logins
    /// end within that. Settled tickets are remembered for as long, each under one key of the store.
    pub ttl: Duration,
    /// The name of this node, shown to callers who hand its tickets to another node. `None`: the address that it
    /// listens on.
    pub issuer: Option<String>,
    /// Warnings about the keys; the server logs them when it starts.
    pub warnings: Vec<String>,
}

/// The keys that were read.
struct Found {
    keys: TicketKeys,
    warnings: Vec<String>,
}

impl Default for TicketOptions {
    fn default() -> Self {
        Self { keys: None, ttl: Self::TTL, issuer: None, warnings: Vec::new() }
    }
}

/// Why ticket keys cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketKeyError {
    /// The file cannot be read.
    #[error("the ticket key's file {} {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<ReadError>,
    },
    /// What was read is not a key.
    #[error("{from}: {why}")]
    Key {
        /// Where it was read from.
        from: String,
        /// Why.
        why: KeyError,
    },
    /// A variable holds bytes that are not UTF-8. Treating it as unset would make tickets that no other node can
    /// settle.
    #[error("{variable} is set to bytes that are not UTF-8 text; set it to a key, or unset it")]
    NotText {
        /// The name of the variable.
        variable: &'static str,
    },
    /// Both variables are set.
    #[error("TIDEGATE_TICKET_KEY and TIDEGATE_TICKET_KEY_FILE are both set; keep one")]
    Both,
}

impl TicketOptions {
    const TTL: Duration = Duration::from_secs(600);

    /// Takes the ticket settings from a config file. The keys come from the environment, otherwise from the file that
    /// the config file names.
    ///
    /// # Errors
    /// [`TicketKeyError`] if the keys cannot be read.
    pub fn of(said: &TicketSettings) -> Result<Self, TicketKeyError> {
        let found = match (from_variables(|name| std::env::var_os(name))?, &said.key_file) {
            (Some(found), _) => Some(found),
            (None, Some(path)) => Some(from_file(path)?),
            (None, None) => None,
        };
        let (keys, warnings) = match found {
            Some(Found { keys, warnings }) => (Some(keys), warnings),
            None => (None, Vec::new()),
        };
        let ttl = said.ttl.unwrap_or(Self::TTL).clamp(Duration::from_nanos(1), Ticket::MAX_TTL);
        Ok(Self { keys, ttl, issuer: said.issuer.clone(), warnings })
    }

    /// Reads keys from a regular file of at most 64 KiB, one key a line, the current one first.
    ///
    /// # Errors
    /// [`TicketKeyError`] if it cannot be read or holds no key.
    pub fn keys_from_file(path: &Path) -> Result<TicketKeys, TicketKeyError> {
        from_file(path).map(|found| found.keys)
    }

    /// Reads keys from the environment: from `TIDEGATE_TICKET_KEY`, or from the file that `TIDEGATE_TICKET_KEY_FILE`
    /// names. `None` if neither is set.
    ///
    /// # Errors
    /// As [`TicketOptions::keys_from_file`]; also if both are set, or a variable is not UTF-8.
    pub fn keys_from_env() -> Result<Option<TicketKeys>, TicketKeyError> {
        Ok(from_variables(|name| std::env::var_os(name))?.map(|found| found.keys))
    }
}

fn from_file(path: &Path) -> Result<Found, TicketKeyError> {
    let text = read_text(path, MOST_FILE_BYTES)
        .map_err(|error| TicketKeyError::File { path: path.to_owned(), why: Arc::new(error) })?;
    let mut found = parse(&text, || format!("the ticket key's file {}", path.display()))?;
    if let Some(mode) = file_mode::readable_by_everybody(path) {
        found.warnings.push(format!(
            "the ticket key's file {} can be read by everybody on this machine (mode {:o}), who can then make and settle tickets; take \
             that right away: chmod o-r",
            path.display(),
            mode
        ));
    }
    Ok(found)
}

fn parse(text: &str, from: impl Fn() -> String) -> Result<Found, TicketKeyError> {
    let keys = TicketKeys::parse(text).map_err(|why| TicketKeyError::Key { from: from(), why })?;
    let mut warnings = Vec::new();
    if keys.looks_typed() {
        warnings.push(format!(
            "{}: a ticket key repeats a few bytes, so others can guess it; `openssl rand -hex 32` makes one",
            from()
        ));
    }
    Ok(Found { keys, warnings })
}

fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Found>, TicketKeyError> {
    match (variable("TIDEGATE_TICKET_KEY"), variable("TIDEGATE_TICKET_KEY_FILE")) {
        (None, None) => Ok(None),
        (Some(key), None) => match key.to_str() {
            Some(key) => parse(key, || "TIDEGATE_TICKET_KEY".to_owned()).map(Some),
            None => Err(TicketKeyError::NotText { variable: "TIDEGATE_TICKET_KEY" }),
        },
        (None, Some(path)) => from_file(Path::new(&path)).map(Some),
        (Some(_), Some(_)) => Err(TicketKeyError::Both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_key_or_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        let key = "5a".repeat(32);
        std::fs::write(&file, format!("# the current one\n{key}\n{}\n", "6b".repeat(32))).unwrap();
        let path = file.display().to_string();
        let from = |key: Option<&str>, file: Option<&str>| {
            let set = |name: &str| if name == "TIDEGATE_TICKET_KEY" { key } else { file };
            from_variables(|name| set(name).map(Into::into))
        };
        assert!(from(None, None).unwrap().is_none());
        assert!(from(Some(&key), None).unwrap().is_some());
        assert!(from(None, Some(&path)).unwrap().is_some());
        assert!(matches!(from(Some(&key), Some(&path)), Err(TicketKeyError::Both)));
        let error = from(Some("short"), None).err().unwrap().to_string();
        assert!(
            error.starts_with("TIDEGATE_TICKET_KEY: line 1 is not a ticket key") && !error.contains("short"),
            "{error}"
        );
        assert!(matches!(from(Some(""), None), Err(TicketKeyError::Key { why: KeyError::Empty, .. })));
        let error = from(None, Some("/dev/zero")).err().unwrap().to_string();
        assert_eq!(error, "the ticket key's file /dev/zero is a device; only a regular file is read");
    }

    #[test]
    fn keys_that_others_know_are_warned_of_and_zeros_refused() {
        let random = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        assert!(parse(random, String::new).unwrap().warnings.is_empty());
        let typed = parse(&format!("{random}\n{}", "5a".repeat(32)), || "here".to_owned()).unwrap();
        assert!(
            typed.warnings[0].starts_with("here: a ticket key repeats a few bytes"),
            "{:?}",
            typed.warnings
        );
        for zeros in ["00".repeat(32), format!("{}=", "A".repeat(43))] {
            let error = parse(&format!("{random}\n{zeros}"), || "here".to_owned()).err().unwrap().to_string();
            assert!(error.starts_with("here: line 2 is a ticket key of zeros"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_that_everybody_can_read_is_warned_of() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        std::fs::write(&file, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f").unwrap();
        for (mode, warnings) in [(0o600, 0), (0o640, 0), (0o644, 1)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let found = from_file(&file).unwrap().warnings;
            assert_eq!(found.len(), warnings, "{found:?}");
            assert!(found.iter().all(|warning| warning.contains("(mode 644)")));
        }
    }
}
