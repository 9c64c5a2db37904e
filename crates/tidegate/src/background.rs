//! What has to be done although nobody waits for it.

use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::block_on::block_on;
use crate::store::Later;

/// How many may wait for the thread. Beyond that they are dropped: what they would have given back stays charged until time returns it.
const MOST_WAITING: usize = 1024;

type Run = dyn Fn(Later<()>) + Send + Sync;

/// Runs futures that nobody waits for.
#[derive(Clone)]
pub(crate) struct Background(Arc<Run>);

impl Background {
    pub(crate) fn new(run: impl Fn(Later<()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    pub(crate) fn run(&self, later: Later<()>) {
        (self.0)(later);
    }
}

impl Default for Background {
    fn default() -> Self {
        let sender: OnceLock<SyncSender<Later<()>>> = OnceLock::new();
        Self::new(move |later| {
            // Full or, where no thread could be had, without a reader: then it is dropped.
            let _ = sender.get_or_init(one_thread).try_send(later);
        })
    }
}

/// Starts a thread that runs one future after the other, and ends with the last sender.
fn one_thread() -> SyncSender<Later<()>> {
    let (sender, receiver) = sync_channel::<Later<()>>(MOST_WAITING);
    // A system without threads to spare has lost the receiver: see above.
    let _ = thread::Builder::new().name("tidegate-later".to_owned()).spawn(move || {
        for later in receiver {
            block_on(later);
        }
    });
    sender
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}
