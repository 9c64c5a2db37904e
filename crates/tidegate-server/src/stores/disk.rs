//! The store on disk.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Clock;
use tidegate::config::{DiskSettings, StoreSettings};
use tidegate_disk::{Change, DiskOptions, DiskStore, OpenError};

use super::folder;
use super::opened::{Kept, OpenStore, OpenStoreError};

/// Opens the store; where the file says nothing of one and there is no folder for it, one in memory does.
pub(super) async fn open(
    settings: &StoreSettings,
    disk: &DiskSettings,
    keys: Option<usize>,
    http: SocketAddr,
    clock: Arc<dyn Clock>,
) -> Result<OpenStore, OpenStoreError> {
    let path = match &disk.path {
        Some(path) => path.clone(),
        None => match folder::of(http, |name| std::env::var_os(name)) {
            Ok(path) => path,
            Err(why) if disk.stated => return Err(OpenStoreError::NoFolder(why)),
            Err(why) => return in_memory(settings, keys, &why),
        },
    };
    let mut options = DiskOptions::new(&path)
        .keys(keys.unwrap_or(settings.keys))
        .full_keys(settings.full_keys)
        .clock(clock)
        .on_change(tell);
    if let Some(flush) = disk.flush {
        options = options.interval(flush);
    }
    let chosen = disk.stated || disk.path.is_some();
    match open_file(options, path, !chosen).await {
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
            let kept: Arc<dyn Kept> = Arc::new(store.clone());
            Ok(OpenStore { store: Arc::new(store), kind: "disk", sharing: None, kept: Some(kept), warnings })
        }
        Err(error) if chosen => Err(error.into()),
        Err(error) => in_memory(settings, keys, &error.to_string()),
    }
}

fn in_memory(settings: &StoreSettings, keys: Option<usize>, why: &str) -> Result<OpenStore, OpenStoreError> {
    let warning = format!(
        "counters are kept in memory and are gone when this process ends: {why}; write store.path, or store.kind: memory to say that it is meant"
    );
    Ok(OpenStore::in_memory(settings, keys, vec![warning])?)
}

/// Opens the file on a thread that may wait for the disk. A folder that nobody chose is made with those that it lies in.
async fn open_file(options: DiskOptions, path: PathBuf, make: bool) -> Result<DiskStore, OpenError> {
    let open = move || {
        if make && let Some(above) = path.parent() {
            // What is wrong with it is told when the folder itself is made.
            let _ = std::fs::create_dir_all(above);
        }
        DiskStore::open(options)
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(opened) => opened,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

fn tell(change: &Change) {
    let (reason, after_ms) = (&*change.reason, change.after.as_millis());
    if change.up {
        tracing::info!(store = "disk", reason, after_ms, "counters can be written again");
    } else {
        tracing::warn!(store = "disk", reason, "counters cannot be written; they go on in memory");
    }
}

impl Kept for DiskStore {
    fn trouble(&self) -> Option<(String, Duration)> {
        let health = self.health();
        Some((health.error?, health.since))
    }

    fn close(&self) -> Result<(), String> {
        Self::close(self).map_err(|error| error.to_string())
    }
}
