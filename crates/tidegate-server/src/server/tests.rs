//! Stopping a server whose disk hangs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::config::StoreSettings;
use tidegate::policy::PolicySet;
use tokio::sync::Notify;

use super::*;
use crate::settings::Settings;
use crate::stores::{OpenStore, PersistentCounters};

/// Counters on a disk that hangs until it is released.
#[derive(Debug)]
struct Hanging {
    closing: Notify,
    hangs: Mutex<Receiver<()>>,
}

impl PersistentCounters for Hanging {
    fn trouble(&self) -> Option<(String, Duration)> {
        None
    }

    fn close(&self) -> Result<(), String> {
        self.closing.notify_one();
        // Ends when the test drops the other side.
        let _ = self.hangs.lock().recv();
        Ok(())
    }
}

async fn serving() -> (Server, Arc<Hanging>, Sender<()>) {
    let (let_go, hangs) = channel();
    let kept = Arc::new(Hanging { closing: Notify::new(), hangs: Mutex::new(hangs) });
    let http = "127.0.0.1:0".parse().unwrap();
    let mut options = ServerOptions { http, signals: false, ..ServerOptions::default() };
    let store = OpenStore::in_memory(&StoreSettings::default(), Some(100)).unwrap();
    options.store = Some(OpenStore { kept: Some(Arc::clone(&kept) as Arc<dyn PersistentCounters>), ..store });
    let source = Source::new(|| Ok(Settings::new(PolicySet::new(Vec::new())?)));
    (Server::bind(options, source).await.unwrap(), kept, let_go)
}

/// Regression: a second signal did nothing once connections were closed, and the end had no time limit, so only a kill
/// helped.
#[tokio::test]
async fn a_second_stop_leaves_although_the_disk_hangs() {
    let (server, kept, _let_go) = serving().await;
    let handle = server.handle();
    let running = tokio::spawn(server.run());
    handle.stop();
    kept.closing.notified().await;
    handle.stop();
    let stopped = tokio::time::timeout(Duration::from_secs(5), running).await.expect("at once");
    assert_eq!(stopped.unwrap(), Stopped::Drained);
}
