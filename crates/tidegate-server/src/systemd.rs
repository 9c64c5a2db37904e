//! Tells the service manager where the server stands.
//!
//! Does nothing outside systemd: without `NOTIFY_SOCKET` there is nobody to tell. For `Type=notify-reload` a reload is
//! announced with the monotonic time; without it `systemctl reload` cannot tell this reload from an earlier one.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;

pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot tell systemd of the reload: no monotonic clock"),
    }
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Pets the watchdog as often as the service manager wants, if it does; never returns.
pub(crate) async fn watchdog() -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    // Half the period, as sd_watchdog_enabled(3) advises.
    let mut due = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
    loop {
        due.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
