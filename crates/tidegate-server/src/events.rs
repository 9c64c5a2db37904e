//! Sends events to the listeners of `/v1/events` as they happen.
//!
//! Nothing is stored. A listener that is too slow misses the oldest, and is told how many. While nobody listens,
//! sending costs one relaxed load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate::Tick;
use tokio::sync::broadcast::{self, Receiver, Sender};

/// The most listeners. They are people and their tools, each with its own connection.
pub(crate) const MOST_LISTENERS: usize = 16;
/// The most listeners of `/v1/live`: pages, each of which holds one connection.
pub(crate) const MOST_LIVE: usize = 32;
/// How many events are kept for the slowest listener, shared by all: a few hundred KiB.
const WAITING: usize = 512;
/// How many denials are sent in one second. Further ones are only counted.
const DENIALS_A_SECOND: u32 = 50;

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    /// The kind: `denied`, `policies`, `breaker`, `condition`, `switch`, `store`, `key`.
    pub(crate) name: &'static str,
    pub(crate) data: Value,
}

/// Sends events to all listeners.
#[derive(Debug)]
pub(crate) struct Events {
    sender: Sender<Arc<Event>>,
    listeners: AtomicUsize,
    denials: Mutex<Denials>,
}

/// The denials that were sent in the present second.
#[derive(Debug, Default)]
struct Denials {
    second: u64,
    sent: u32,
    withheld: u64,
}

/// A listener; it stops listening when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    events: Arc<Events>,
    pub(crate) receiver: Receiver<Arc<Event>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.events.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Events {
    fn default() -> Self {
        let (sender, _) = broadcast::channel(WAITING);
        Self { sender, listeners: AtomicUsize::new(0), denials: Mutex::default() }
    }
}

impl Events {
    /// Listens from now on; `None` if there are [`MOST_LISTENERS`] already.
    pub(crate) fn listen(self: &Arc<Self>) -> Option<Listener> {
        // Relaxed: the number orders nothing else; the channel has its own ordering.
        let more = |listeners| (listeners < MOST_LISTENERS).then_some(listeners + 1);
        self.listeners.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Listener { events: Arc::clone(self), receiver: self.sender.subscribe() })
    }

    /// Returns whether anybody listens.
    pub(crate) fn any(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Sends an event. `data` is computed only if somebody listens.
    pub(crate) fn publish(&self, name: &'static str, data: impl FnOnce() -> Value) {
        if self.any() {
            // An error means that the last listener has just gone.
            let _ = self.sender.send(Arc::new(Event { name, data: data() }));
        }
    }

    /// Sends a denial, but [`DENIALS_A_SECOND`] at most, with the number left out since the last one sent.
    pub(crate) fn denied(&self, at: Tick, data: impl FnOnce() -> Value) {
        if !self.any() {
            return;
        }
        let withheld = {
            let second = at.as_nanos() / 1_000_000_000;
            let mut denials = self.denials.lock();
            if denials.second != second {
                (denials.second, denials.sent) = (second, 0);
            }
            if denials.sent >= DENIALS_A_SECOND {
                denials.withheld = denials.withheld.saturating_add(1);
                return;
            }
            denials.sent += 1;
            std::mem::take(&mut denials.withheld)
        };
        self.publish("denied", || {
            let mut data = data();
            data["untold"] = json!(withheld);
            data
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_denials_is_told_in_part_and_counted() {
        let events = Arc::new(Events::default());
        events.denied(Tick::from_secs(1), || unreachable!("nobody listens"));
        let mut listener = events.listen().unwrap();
        for _ in 0..1000 {
            events.denied(Tick::from_secs(2), || json!({}));
        }
        events.denied(Tick::from_secs(3), || json!({}));
        let told: Vec<_> = std::iter::from_fn(|| listener.receiver.try_recv().ok()).collect();
        assert_eq!(told.len(), 51);
        assert_eq!((&told[0].data["untold"], &told[50].data["untold"]), (&json!(0), &json!(950)));
    }

    #[test]
    fn so_many_listen_and_no_more() {
        let events = Arc::new(Events::default());
        let mut listeners: Vec<_> = (0..MOST_LISTENERS).map(|_| events.listen().unwrap()).collect();
        assert!(events.listen().is_none());
        listeners.pop();
        assert!(events.listen().is_some());
        listeners.clear();
        assert!(!events.any());
    }
}
