//! Reports the state of the server to the service manager; nothing without `NOTIFY_SOCKET`. A reload is announced
//! with the monotonic time, by which `systemctl reload` tells it from an earlier one.
//!
//! Sending blocks while the manager's queue is full, forever if it hangs. So messages have their own thread, and
//! are waited for only briefly. While one hangs, further ones are dropped.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use sd_notify::NotifyState;

/// The longest wait for the manager to take a message, which usually takes microseconds.
const PATIENCE: Duration = Duration::from_millis(100);

/// The message that the manager has not taken yet, if any; the channel closes once it is. One at a time, so that
/// they arrive in order.
static HANGING: Mutex<Option<Receiver<()>>> = Mutex::new(None);

/// Reports that the server is ready, or that a reload is over.
pub(crate) fn ready() {
    notify([NotifyState::Ready]);
}

/// Reports that a reload begins.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify([NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot notify systemd of the reload: no monotonic clock"),
    }
}

/// Reports that the server stops.
pub(crate) fn stopping() {
    notify([NotifyState::Stopping]);
}

/// Sends watchdog messages as often as the manager asks. Never returns.
pub(crate) async fn watchdog() -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    // Half the period, as sd_watchdog_enabled(3) advises.
    let mut due = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
    loop {
        due.tick().await;
        notify([NotifyState::Watchdog]);
    }
}

/// Blocks for at most 200 ms: 100 ms for an earlier message, 100 ms for this one.
fn notify<const N: usize>(state: [NotifyState<'static>; N]) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let Some(mut hanging) = HANGING.try_lock_for(PATIENCE) else { return };
    if hanging.as_ref().is_some_and(|hanging| hanging.try_recv() == Err(TryRecvError::Empty)) {
        return;
    }
    let (ends, ended) = sync_channel::<()>(0);
    let told = std::thread::Builder::new().spawn(move || {
        let _ends = ends;
        if let Err(error) = sd_notify::notify(&state) {
            tracing::warn!(%error, "cannot notify systemd");
        }
    });
    if let Err(error) = told {
        tracing::warn!(%error, "cannot notify systemd: no thread");
        return;
    }
    let hangs = ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
    if hangs {
        tracing::warn!("systemd does not read its notify socket; messages to it are left out until it does");
    }
    *hanging = hangs.then_some(ended);
}
