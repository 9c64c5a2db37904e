//! What an engine that several nodes share asks for beside decisions: leases that are tidied, a membership, an orderly end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::cluster::shares::Status;

use super::Engine;

/// How often what leases hold is looked at: a few times in the second that units may be held.
pub(crate) const LEASES_EVERY: Duration = Duration::from_millis(250);

/// How long a node that stops waits until it is no member any more.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

impl Engine {
    /// Counts a request of this node, where nodes divide limits by their demand.
    #[inline]
    pub(super) fn note_demand(&self, requests: u64) {
        if let Some(member) = self.shared.as_ref().and_then(|shared| shared.member.as_ref()) {
            member.demand.fetch_add(requests, Ordering::Relaxed);
        }
    }

    /// Gives back what leases held too long. Called every [`LEASES_EVERY`].
    pub(crate) async fn tidy_leases(&self) {
        let Some(shared) = &self.shared else { return };
        if let Some(returned) = shared.leased.tick(self.now()) {
            returned.await;
        }
    }

    /// Gives back what leases hold, ends this node's membership, and has counters kept for the last time. Called when no request comes any
    /// more.
    pub(crate) async fn close_stores(&self) {
        if let Some(shared) = &self.shared {
            shared.leased.close().await;
            let leaving = shared.member.as_ref().and_then(|member| member.leaves.lock().take());
            if let Some((leaves, task)) = leaving {
                let _ = leaves.send(());
                // Others find out by themselves, if the engine does not answer now.
                let _ = tokio::time::timeout(LEAVES_WITHIN, task).await;
            }
        }
        let Some(kept) = self.kept.clone() else { return };
        match tokio::task::spawn_blocking(move || kept.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the last counters were not written"),
            Err(error) => tracing::error!(%error, "the store could not be closed"),
        }
    }

    /// Returns why counters cannot be kept at present, and for how long that has been so.
    pub(crate) fn trouble(&self) -> Option<(String, Duration)> {
        self.kept.as_ref()?.trouble()
    }

    /// Returns how this node stands among the others, where they agree on their parts.
    pub(crate) fn membership(&self) -> Option<Status> {
        let member = self.shared.as_ref()?.member.as_ref()?;
        Some((member.status)())
    }

    /// Sets what metrics tell of stores that are looked at when they are read.
    pub(super) fn show_store(&self) {
        if self.kept.is_some() {
            self.metrics.store_is(self.store_kind, self.trouble().is_none());
        }
        if let Some(shared) = &self.shared {
            self.metrics.leases.show(&shared.leased.health());
        }
        if let Some(status) = self.membership() {
            self.metrics.leases.show_part(&status);
        }
    }
}
