//! Leases that many cells share, so that not each write makes one.
//!
//! A cell that has to be kept for some time gets a lease that ends with a stretch of time. Stretches are powers of two of seconds, at most an
//! eighth of that time: so a cell is kept up to an eighth longer than it must be, two seconds at least, and about ten stretches of each length are in
//! use at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::{Clock as _, SystemClock, Tick};
use tokio::sync::watch;

use crate::connect::Etcd;
use crate::error::Failed;

/// A cell is kept for ten years at most: longer than any state lasts that somebody waits for, and within what etcd takes.
const LONGEST: u64 = 10 * 366 * 86_400;

/// Each of a time's stretches is at most so small a part of it.
const PART: u64 = 8;

/// How long a stretch is, in seconds, and the number of the one with whose end a lease ends.
type Stretch = (u64, u64);

/// The lease of a stretch, once it is granted; why it was not, where it was refused.
pub(crate) type Granted = watch::Receiver<Option<Result<i64, String>>>;

#[derive(Clone, Debug)]
pub(crate) struct Leases {
    etcd: Etcd,
    clock: SystemClock,
    held: Arc<Mutex<HashMap<Stretch, Granted>>>,
}

impl Leases {
    pub(crate) fn new(etcd: Etcd) -> Self {
        Self { etcd, clock: SystemClock::new(), held: Arc::default() }
    }

    /// Returns a lease that lasts for some time at least, or that will: [`lease`] waits for it.
    ///
    /// It is asked for once for all who want it, by a task of its own: who gives up waiting takes no lease along that etcd has granted.
    pub(crate) fn for_at_least(&self, keep: Duration) -> Granted {
        let now = self.clock.now();
        let stretch = stretch(keep, now);
        let mut held = self.held.lock();
        // Those that have ended are of no use any more, nor are those that were refused; there are few, and a look at each is a small part
        // of a write.
        held.retain(|(length, number), granted| {
            number.saturating_mul(*length) > seconds(now) && !matches!(&*granted.borrow(), Some(Err(_)))
        });
        let ask = || {
            // Counted from before it is asked for, so that it ends after its stretch. One second more, because `now` is cut to a second.
            let lasts = (stretch.0 * stretch.1).saturating_sub(seconds(now)).saturating_add(1);
            let (told, granted) = watch::channel(None);
            let etcd = self.etcd.clone();
            self.etcd.runtime().spawn(async move {
                let mut client = etcd.client();
                let lasts = i64::try_from(lasts).unwrap_or(i64::MAX);
                let granted = etcd.ask(client.lease_grant(lasts, None)).await;
                let _ =
                    told.send(Some(granted.map(|granted| granted.id()).map_err(|failed| failed.reason())));
            });
            granted
        };
        held.entry(stretch).or_insert_with(ask).clone()
    }

    /// Forgets all leases: one of them is gone, because somebody has revoked it or etcd was restored from a copy.
    pub(crate) fn forget(&self) {
        self.held.lock().clear();
    }
}

/// Waits for a lease, for as long as one exchange may take at most.
pub(crate) async fn lease(mut granted: Granted) -> Result<i64, Failed> {
    match granted.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ok(lease))) => Ok(*lease),
        Ok(Some(Err(reason))) => Err(Failed::NoLease(reason.clone())),
        // The task is gone without an answer: so is its runtime.
        Ok(None) | Err(_) => Err(Failed::NoLease("etcd: the runtime of the connection has ended".to_owned())),
    }
}

fn seconds(tick: Tick) -> u64 {
    tick.as_nanos() / 1_000_000_000
}

/// Returns the stretch with whose end a time is over that begins now.
fn stretch(keep: Duration, now: Tick) -> Stretch {
    let keep = keep.as_secs().saturating_add(1).min(LONGEST);
    let length = 1 << (keep / PART).max(1).ilog2();
    let over = seconds(now).saturating_add(1).saturating_add(keep);
    (length, over.div_ceil(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_after_the_time_and_not_much_later() {
        for keep in [1, 2, 7, 8, 60, 3600, 86_400, 31 * 86_400] {
            for now in [0, 1, 999, 86_399, 1_000_003] {
                let (length, number) = stretch(Duration::from_secs(keep), Tick::from_secs(now));
                let ends = length * number;
                assert!(ends >= now + keep, "{keep} s from {now}: ends at {ends}");
                assert!(ends <= now + keep + keep / 8 + 4, "{keep} s from {now}: ends at {ends}");
            }
        }
    }

    #[test]
    fn few_leases_are_in_use_at_once() {
        let mut held = std::collections::HashSet::new();
        for keep in 1..20_000 {
            held.insert(stretch(Duration::from_secs(keep), Tick::from_secs(1_000_000)));
        }
        assert!(held.len() < 120, "{}", held.len());
    }
}
