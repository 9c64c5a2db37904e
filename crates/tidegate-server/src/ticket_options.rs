//! The settings of tickets: the keys, the lifetime, and the name of this node.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::{ReadError, TicketSettings, read_text};
use tidegate::gate::ticket::{KeyError, Ticket, TicketKeys};
use tidegate::policy::{Limit, Policy, PolicySet};

use crate::files;

/// The most bytes of a file that holds ticket keys. A larger file is probably a different one.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// The file beside the counters with the key of a server without configured ones.
const KEPT_KEY: &str = "ticket-key";

/// The settings of a server's tickets. Read only at the start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TicketOptions {
    /// The keys. `None`: a random one. With a store on disk that a config file opened it is kept in its folder, so
    /// that tickets survive a restart like the counters; otherwise it ends with the process.
    pub keys: Option<TicketKeys>,
    /// How long a ticket can be settled, 1 ns to 30 days. 10 minutes by default: calls to language models and logins
    /// end within that. Settled tickets are remembered for as long, each under one key of the store.
    pub ttl: Duration,
    /// The name of this node, for callers who hand its tickets to another. `None`: the address that it listens on.
    pub issuer: Option<String>,
    /// Warnings about the keys; the server logs them when it starts.
    pub warnings: Vec<String>,
}

/// The keys that were read.
struct ReadKeys {
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
    /// The key that was drawn cannot be kept beside the counters.
    #[error("the ticket key's file {} cannot be written: {why}; name a file in tickets.key_file", path.display())]
    Keep {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: Arc<io::Error>,
    },
    /// The text that was read is not a key.
    #[error("{from}: {why}")]
    Key {
        /// Where it was read from.
        from: String,
        /// Why.
        why: KeyError,
    },
    /// A variable is not UTF-8. Taken for unset, it would make tickets that no other node can settle.
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

    /// Takes the ticket settings from a config file. The keys come from `TIDEGATE_TICKET_KEY`, or the file that
    /// `TIDEGATE_TICKET_KEY_FILE` names, otherwise from the file that the config file names: a regular file of at
    /// most 64 KiB, one key a line, the current one first. A lifetime out of range becomes the nearest in it.
    ///
    /// # Errors
    /// [`TicketKeyError`] if the keys cannot be read, or both variables are set.
    pub fn of(said: &TicketSettings) -> Result<Self, TicketKeyError> {
        let found = match (from_variables(|name| std::env::var_os(name))?, &said.key_file) {
            (Some(found), _) => Some(found),
            (None, Some(path)) => Some(from_file(path)?),
            (None, None) => None,
        };
        let (keys, warnings) = found.map(|found| (found.keys, found.warnings)).unzip();
        let warnings = warnings.unwrap_or_default();
        let ttl = said.ttl.unwrap_or(Self::TTL).clamp(Duration::from_nanos(1), Ticket::MAX_TTL);
        Ok(Self { keys, ttl, issuer: said.issuer.clone(), warnings })
    }

    /// Warns if the server draws its own key while nodes may share the counters of work that is reported: of
    /// guards, of settled costs, and of failures that are charged.
    pub(crate) fn beside_shared_counters(mut self, policies: &PolicySet) -> Self {
        let is_reported = |policy: &&Policy| {
            let is_guarded = policy.limits.iter().any(Limit::is_guard);
            is_guarded || policy.settle.is_some() || policy.charges_failures()
        };
        if let (None, Some(policy)) = (&self.keys, policies.policies().iter().find(is_reported)) {
            self.warnings.push(format!(
                "policy {:?} needs to be told how work ends, by tickets, and its counters are shared by nodes; without a ticket key \
                 (tickets.key_file) a ticket is accepted only by the node that issued it, until it restarts",
                policy.name
            ));
        }
        self
    }

    /// Without configured keys, takes the key in this folder, or draws one and keeps it there, readable only by its
    /// owner. When it returns, the file is on disk.
    ///
    /// # Errors
    /// [`TicketKeyError`] if the file cannot be read or written, or holds no key.
    pub(crate) async fn keep_key_in(mut self, folder: PathBuf) -> Result<Self, TicketKeyError> {
        if self.keys.is_some() {
            return Ok(self);
        }
        let reading = tokio::task::spawn_blocking(move || kept_in(&folder));
        let found =
            reading.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
        self.keys = Some(found.keys);
        self.warnings.extend(found.warnings);
        Ok(self)
    }
}

/// Reads the key that is kept in a folder, or draws it. Blocks the thread.
fn kept_in(folder: &Path) -> Result<ReadKeys, TicketKeyError> {
    let path = folder.join(KEPT_KEY);
    match from_file(&path) {
        Err(TicketKeyError::File { why, .. }) if is_missing(&why) => {}
        found => return found,
    }
    let line = TicketKeys::random_line()
        .map_err(|why| TicketKeyError::Key { from: path.display().to_string(), why })?;
    // Only its owner can read the file, as any temporary file.
    files::write_whole(
        &path,
        ".ticket-key-",
        |new| writeln!(new, "{line}"),
        |new| new.persist_noclobber(&path).map(drop).map_err(|error| error.error),
    )
    .map_err(|why| TicketKeyError::Keep { path: path.clone(), why: Arc::new(why) })?;
    from_file(&path)
}

fn is_missing(why: &ReadError) -> bool {
    matches!(why, ReadError::System(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Reads keys from a regular file of at most 64 KiB, one key a line, the current one first.
fn from_file(path: &Path) -> Result<ReadKeys, TicketKeyError> {
    let text = read_text(path, MOST_FILE_BYTES)
        .map_err(|error| TicketKeyError::File { path: path.to_owned(), why: Arc::new(error) })?;
    let mut found = parse(&text, || format!("the ticket key's file {}", path.display()))?;
    if let Some(mode) = files::readable_by_everybody(path) {
        found.warnings.push(format!(
            "the ticket key's file {} can be read by every user of this machine (mode {:o}), who can then make and settle tickets; \
             remove that right: chmod o-r",
            path.display(),
            mode
        ));
    }
    Ok(found)
}

fn parse(text: &str, from: impl Fn() -> String) -> Result<ReadKeys, TicketKeyError> {
    let keys = TicketKeys::parse(text).map_err(|why| TicketKeyError::Key { from: from(), why })?;
    let mut warnings = Vec::new();
    if keys.looks_typed() {
        warnings.push(format!(
            "{}: a ticket key repeats a few bytes, so others can guess it; `openssl rand -hex 32` makes one",
            from()
        ));
    }
    Ok(ReadKeys { keys, warnings })
}

/// Reads keys from `TIDEGATE_TICKET_KEY`, or from the file that `TIDEGATE_TICKET_KEY_FILE` names; `None` if neither
/// is set.
fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<ReadKeys>, TicketKeyError> {
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
    use crate::files;

    #[test]
    fn nodes_that_share_counters_are_told_to_share_a_key() {
        let places = tidegate::concurrency::Concurrency::new(3).unwrap();
        let places = Policy::new("uploads", Limit::new(tidegate::Quota::from(places), "concurrency"));
        let rate = Policy::new("rate", Limit::new(tidegate::Quota::per_second(3).gcra().unwrap(), "rate"));
        let warnings = |options: TicketOptions, policies: Vec<Policy>| {
            options.beside_shared_counters(&PolicySet::new(policies).unwrap()).warnings
        };
        assert!(warnings(TicketOptions::default(), vec![rate.clone()]).is_empty());
        let told = warnings(TicketOptions::default(), vec![rate, places.clone()]);
        assert!(told[0].contains("policy \"uploads\"") && told[0].contains("tickets.key_file"), "{told:?}");
        let keys = TicketKeys::parse(&TicketKeys::random_line().unwrap()).unwrap();
        assert!(
            warnings(TicketOptions { keys: Some(keys), ..TicketOptions::default() }, vec![places]).is_empty()
        );
    }

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
    fn a_key_that_was_drawn_is_kept_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join(KEPT_KEY);
        let text = || std::fs::read_to_string(&kept).unwrap();
        let first = kept_in(dir.path()).unwrap();
        assert!(first.warnings.is_empty(), "{:?}", first.warnings);
        assert!(files::readable_by_everybody(&kept).is_none());
        let drawn = text();
        kept_in(dir.path()).unwrap();
        assert_eq!(text(), drawn);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
        std::fs::write(&kept, "short").unwrap();
        let error = kept_in(dir.path()).err().unwrap().to_string();
        assert!(error.contains("ticket-key: line 1 is not a ticket key"), "{error}");
        let error = kept_in(&dir.path().join("missing")).err().unwrap().to_string();
        assert!(error.contains("missing/ticket-key cannot be written: "), "{error}");
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
