//! The signals that the server handles: stop and reload.

use std::io;

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Stop; holds the name of the signal.
    Stop(&'static str),
    /// Read the configuration again.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix has a signal for it"))]
    Reload,
}

#[cfg(unix)]
pub(crate) use unix::Signals;

#[cfg(unix)]
mod unix {
    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    use super::{Signal, io};

    /// Receives `SIGHUP`, `SIGTERM` and `SIGINT`, from the moment that it is made.
    #[derive(Debug)]
    pub(crate) struct Signals {
        hangup: Stream,
        terminate: Stream,
        interrupt: Stream,
    }

    impl Signals {
        pub(crate) fn listen() -> io::Result<Self> {
            Ok(Self {
                hangup: signal(SignalKind::hangup())?,
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            })
        }

        /// Waits for the next signal. Cancel safe.
        pub(crate) async fn next(&mut self) -> Signal {
            tokio::select! {
                _ = self.terminate.recv() => Signal::Stop("SIGTERM"),
                _ = self.interrupt.recv() => Signal::Stop("SIGINT"),
                _ = self.hangup.recv() => Signal::Reload,
            }
        }
    }
}

/// Receives Ctrl-C.
#[cfg(not(unix))]
#[derive(Debug)]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Signal::Stop("Ctrl-C"),
            Err(_) => std::future::pending().await,
        }
    }
}
