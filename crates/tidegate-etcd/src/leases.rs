//! Leases that many cells share, so that not every write has to make one.
//!
//! Time is divided into stretches whose length is a power of two in seconds, at most an eighth of the time that a cell
//! has to be kept. The cell gets a lease that ends with a stretch. So it is kept at least two seconds and up to about
//! an eighth longer than necessary, and about ten stretches of each length are in use at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::{Clock as _, SystemClock, Tick};
use tokio::sync::watch;

use crate::connect::Etcd;
use crate::error::Failed;

/// The longest time for which a cell is kept, ten years: longer than any state matters, and accepted by etcd.
const LONGEST: u64 = 10 * 366 * 86_400;

/// A stretch is at most the time to keep divided by this.
const PART: u64 = 8;

/// The length of a stretch in seconds, and the number of the stretch with which a lease ends.
type Stretch = (u64, u64);

/// The lease of a stretch once it is granted, or why it was refused.
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

    /// Returns a lease that lasts for `keep` at least. It may still be requested: [`lease`] waits for it.
    ///
    /// A task of its own requests it once for all callers, so a caller that stops waiting does not lose a lease that
    /// etcd has granted.
    pub(crate) fn for_at_least(&self, keep: Duration) -> Granted {
        let now = self.clock.now();
        let stretch = stretch(keep, now);
        let mut held = self.held.lock();
        // Drops ended and refused leases. There are few, so the scan is a small part of the cost of a write.
        held.retain(|(length, number), granted| {
            number.saturating_mul(*length) > seconds(now) && !matches!(&*granted.borrow(), Some(Err(_)))
        });
        let ask = || {
            // Counted from before the request, so that the lease ends after its stretch. One second more, because `now`
            // is cut to whole seconds.
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

    /// Forgets all leases. Called when one of them is gone, because it was revoked or etcd was restored from a copy.
    pub(crate) fn forget(&self) {
        self.held.lock().clear();
    }
}

/// Waits for a lease, at most as long as one exchange may take.
pub(crate) async fn lease(mut granted: Granted) -> Result<i64, Failed> {
    match granted.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ok(lease))) => Ok(*lease),
        Ok(Some(Err(reason))) => Err(Failed::NoLease(reason.clone())),
        // The task has ended without an answer, so its runtime has ended.
        Ok(None) | Err(_) => Err(Failed::NoLease("etcd: the runtime of the connection has ended".to_owned())),
    }
}

fn seconds(tick: Tick) -> u64 {
    tick.as_nanos() / 1_000_000_000
}

/// Returns the first stretch that ends at least `keep` after `now`.
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
