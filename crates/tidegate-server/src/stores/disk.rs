//! Opens the store on disk.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::Tick;
use tidegate::clock::Clock;
use tidegate::config::{Address, DiskSettings, StoreSettings};
use tidegate_disk::{Change, DiskOptions, DiskStore, OpenError};

use super::opened::{OpenStore, OpenStoreError, PersistentCounters};

/// The time between two attempts to open a folder that is in use.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Opens the store, or one in memory if the file does not ask for a disk and there is no folder.
pub(super) async fn open(
    settings: &StoreSettings,
    disk: &DiskSettings,
    keys: Option<usize>,
    http: &Address,
    clock: Arc<dyn Clock>,
    patience: Duration,
) -> Result<OpenStore, OpenStoreError> {
    let in_memory = |why: String| in_memory(settings, keys, why, &clock);
    let path = match &disk.path {
        Some(path) => path.clone(),
        None => match of(http, |name| std::env::var_os(name)) {
            Ok(path) => path,
            Err(why) if disk.stated => return Err(OpenStoreError::NoFolder(why)),
            Err(why) => return in_memory(why),
        },
    };
    let options = || {
        DiskOptions::new(&path)
            .keys(keys.unwrap_or(settings.keys))
            .full_keys(settings.full_keys)
            .clock(Arc::clone(&clock))
            .on_change(log_change)
    };
    let chosen = disk.stated || disk.path.is_some();
    // A folder that nobody chose is created with its parent.
    let make = if chosen { None } else { path.parent() };
    match open_patiently(options, make, patience).await {
        Ok(store) => {
            let opened = store.opened();
            tracing::info!(path = %store.path().display(), keys = opened.keys, "counters are kept on disk");
            let mut warnings = Vec::new();
            if let Some(ahead) = opened.clock_was_ahead {
                warnings.push(format!(
                    "{}: was written by a clock that was {ahead:?} ahead of this one; time stands still until this one has caught up, at most five minutes",
                    store.path().display()
                ));
            }
            let folder = store.path().parent().map(Path::to_owned);
            let kept: Arc<dyn PersistentCounters> = Arc::new(store.clone());
            let opened = OpenStore::new(Arc::new(store), "disk");
            Ok(OpenStore { kept: Some(kept), folder, warnings, ..opened })
        }
        // The file does not ask for a disk, and none is available. Other errors concern existing counters, which
        // memory would forget silently.
        Err(error @ (OpenError::Folder { .. } | OpenError::File { .. })) if !chosen => {
            in_memory(error.to_string())
        }
        Err(error) => Err(error.into()),
    }
}

fn in_memory(
    settings: &StoreSettings,
    keys: Option<usize>,
    why: String,
    clock: &Arc<dyn Clock>,
) -> Result<OpenStore, OpenStoreError> {
    let warning = format!(
        "counters are kept in memory and are gone when this process ends: {why}; write store.path, or store.kind: memory to say that it is meant"
    );
    let kept = NotPersisted { why, since: clock.now(), clock: Arc::clone(clock) };
    let opened = OpenStore::in_memory(settings, keys)?;
    Ok(OpenStore { kept: Some(Arc::new(kept)), warnings: vec![warning], ..opened })
}

/// Opens the file. Waits for another process: this server's predecessor may still answer its last requests.
async fn open_patiently(
    options: impl Fn() -> DiskOptions,
    make: Option<&Path>,
    patience: Duration,
) -> Result<DiskStore, OpenError> {
    let opening = || open_file(options(), make.map(ToOwned::to_owned));
    let first = opening().await;
    let Err(in_use @ OpenError::InUse { .. }) = first else { return first };
    tracing::warn!("{in_use}; waiting {} s for it to end", patience.as_secs());
    let looking = async {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            match opening().await {
                Err(OpenError::InUse { .. }) => {}
                opened => return opened,
            }
        }
    };
    tokio::time::timeout(patience, looking).await.unwrap_or(Err(in_use))
}

/// Opens the file on a thread that may block, after the folder `make`.
async fn open_file(options: DiskOptions, make: Option<PathBuf>) -> Result<DiskStore, OpenError> {
    let open = move || {
        if let Some(above) = make {
            // An error is reported when the store's own folder is created.
            let _ = std::fs::create_dir_all(above);
        }
        DiskStore::open(options)
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(opened) => opened,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

fn log_change(change: &Change) {
    let (reason, after_ms) = (&*change.reason, change.after.as_millis());
    if change.up {
        tracing::info!(store = "disk", reason, after_ms, "counters can be written again");
    } else {
        tracing::warn!(store = "disk", reason, "counters cannot be written; they go on in memory");
    }
}

impl PersistentCounters for DiskStore {
    fn trouble(&self) -> Option<(String, Duration)> {
        let health = self.health();
        Some((health.error?, health.since))
    }

    fn back_up(&self) -> Result<PathBuf, String> {
        let folder = self.path().parent().unwrap_or(Path::new("."));
        let (backup, new) = (folder.join("backup"), folder.join("backup.new"));
        // Left by a process that has died.
        if new.exists() {
            std::fs::remove_dir_all(&new).map_err(|error| failed(&new, &error))?;
        }
        self.copy_to(&new).map_err(|error| failed(&new, &error))?;
        match std::fs::rename(&new, &backup) {
            Ok(()) => {}
            // There is one, whose file is replaced in one step.
            Err(_) => {
                let file = Path::new(self.path().file_name().unwrap_or_default());
                std::fs::rename(new.join(file), backup.join(file))
                    .map_err(|error| failed(&backup, &error))?;
                std::fs::remove_dir(&new).map_err(|error| failed(&new, &error))?;
            }
        }
        Ok(backup.join(self.path().file_name().unwrap_or_default()))
    }

    fn close(&self) -> Result<(), String> {
        Self::close(self).map_err(|error| error.to_string())
    }
}

fn failed(path: &Path, error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{}: {error}{cause}", path.display())
}

#[derive(Debug)]
struct NotPersisted {
    why: String,
    since: Tick,
    clock: Arc<dyn Clock>,
}

impl PersistentCounters for NotPersisted {
    fn trouble(&self) -> Option<(String, Duration)> {
        Some((self.why.clone(), self.clock.now().since(self.since)))
    }

    fn back_up(&self) -> Result<PathBuf, String> {
        Err(self.why.clone())
    }

    fn close(&self) -> Result<(), String> {
        Ok(())
    }
}

// Finds the default folder for counters on disk.

/// Returns this address's folder inside the system's for state, so that two servers do not share one: in the first of
/// `STATE_DIRECTORY`, else in `XDG_STATE_HOME` or `~/.local/state`.
///
/// Under systemd that is the first of `STATE_DIRECTORY`, otherwise `tidegate` in `XDG_STATE_HOME` or
/// `~/.local/state`. The policy file does not matter: at another address counters begin anew, with another file
/// they stay.
///
/// # Errors
/// Why there is no such folder.
pub(super) fn of(http: &Address, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    if http.tcp().is_some_and(|addr| addr.port() == 0) {
        return Err(
            "the system chooses the port, so nothing tells this server's folder from another's".to_owned()
        );
    }
    // Relative paths are ignored: they would mean another folder wherever the server is started.
    let said = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let first = |list: OsString| std::env::split_paths(&list).next().filter(|path| path.is_absolute());
    let state = variable("STATE_DIRECTORY")
        .and_then(first)
        .or_else(|| Some(said("XDG_STATE_HOME")?.join("tidegate")))
        .or_else(|| Some(said("HOME")?.join(".local/state/tidegate")));
    let state = state.ok_or("neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME names an absolute path")?;
    // Colons separate paths in lists. The path of a socket becomes one name here.
    Ok(state.join(http.to_string().replace([':', '/'], "_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_says_where_wins() {
        let http: Address = "127.0.0.1:8080".parse().unwrap();
        let found = |said: &[(&str, &str)]| {
            of(&http, |name| said.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let all = [("STATE_DIRECTORY", "/var/lib/tidegate:/other"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(found(&all).unwrap(), PathBuf::from("/var/lib/tidegate/127.0.0.1_8080"));
        assert_eq!(found(&all[1..]).unwrap(), PathBuf::from("/x/tidegate/127.0.0.1_8080"));
        assert_eq!(found(&all[2..]).unwrap(), PathBuf::from("/h/.local/state/tidegate/127.0.0.1_8080"));
        // A relative path must not hide the variables after it.
        let hiding = [("STATE_DIRECTORY", "state"), ("XDG_STATE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(found(&hiding).unwrap(), PathBuf::from("/h/.local/state/tidegate/127.0.0.1_8080"));
        assert!(found(&[("HOME", "relative")]).unwrap_err().contains("neither"));
        assert!(of(&"[::1]:0".parse().unwrap(), |_| None).unwrap_err().contains("the port"));
    }
}
