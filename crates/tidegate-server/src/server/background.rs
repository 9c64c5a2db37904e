//! The background work of a server: signals, watched files and periodic tasks.

use std::convert::Infallible;
#[cfg(not(unix))]
use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use tidegate::config::{Address, DoorName, TlsSettings};
use tokio::sync::Notify;

#[cfg(unix)]
pub(crate) use self::unix::Signals;
use super::{ServeError, ServerHandle};
use crate::connections::Listener;
use crate::decider::{LEASES_EVERY, REPORTS_EVERY, WATCHED_EVERY};
use crate::files::FileWatch;
use crate::options::ServerOptions;
use crate::systemd;
use crate::tls::TlsError;

/// Signals and file watches, from the moment that a server is bound.
#[derive(Debug)]
pub(super) struct Background {
    signals: Option<Signals>,
    /// The config file.
    config: Option<FileWatch>,
    secrets: Vec<FileWatch>,
}

impl Background {
    /// Begins to watch. A file that cannot be watched is logged: signals and requests can reload too.
    pub(super) async fn new(
        signals: Option<Signals>,
        config: Option<&Path>,
        secrets: impl IntoIterator<Item = &Path>,
    ) -> Self {
        let config = match config {
            Some(file) => watch(file).await,
            None => None,
        };
        let mut watches = Vec::new();
        for file in secrets {
            watches.extend(watch(file).await);
        }
        Self { signals, config, secrets: watches }
    }

    /// Follows signals, watched files and published policies, returns leases and ended reservations, and tells of
    /// conditions, switches and breakers, as long as the server runs. A stop takes effect whatever a reload waits
    /// for, since all of it runs concurrently. Reloads that are requested during another one are merged.
    pub(super) async fn run(self, handle: &ServerHandle) -> Infallible {
        let Self { signals, config, secrets } = self;
        let (by_signal, by_file, renewed) = (Notify::new(), Notify::new(), Notify::new());
        let signals = async {
            let Some(mut signals) = signals else { return std::future::pending().await };
            loop {
                match signals.next().await {
                    Signal::Stop(name) => {
                        tracing::info!(signal = name, "stopping");
                        handle.stop();
                    }
                    Signal::Reload => by_signal.notify_one(),
                }
            }
        };
        let config = async {
            let Some(mut config) = config else { return std::future::pending().await };
            loop {
                config.changed().await;
                tracing::info!("the config file changed");
                by_file.notify_one();
            }
        };
        let secrets = async {
            // Each file has its own loop: cancelling a wait may lose a change.
            let each = secrets.into_iter().map(async |mut file| -> Infallible {
                loop {
                    file.changed().await;
                    renewed.notify_one();
                }
            });
            join_all(each).await;
            std::future::pending().await
        };
        let renewals = async {
            loop {
                renewed.notified().await;
                handle.app.renew_secrets().await;
            }
        };
        let reloads = async {
            loop {
                let who = tokio::select! {
                    () = by_signal.notified() => "signal",
                    () = by_file.notified() => "file",
                };
                // The reload logs its own result.
                let _ = handle.app.read_again(who).await;
            }
        };
        let leases = async {
            let mut every = tokio::time::interval(LEASES_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                handle.app.drain.go_on(&handle.app.decider);
                handle.app.decider.storage.tell_membership();
                handle.app.decider.storage.tidy_leases().await;
            }
        };
        let reports = async {
            let Some(nodes) = handle.app.decider.storage.nodes() else { return std::future::pending().await };
            let mut every = tokio::time::interval(REPORTS_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let (set, number) = {
                    let live = handle.app.decider.live();
                    (Arc::clone(&live.set), live.number)
                };
                nodes.look(&set, number).await;
            }
        };
        let conditions = async {
            let mut every = tokio::time::interval(WATCHED_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                handle.app.decider.conditions.tell();
                handle.app.decider.breakers.note_refusers().await;
                // A slow engine must not hold up the conditions; what is left is read in the next turn.
                let looking = handle.app.decider.breakers.look_again();
                let _ = tokio::time::timeout(WATCHED_EVERY, looking).await;
            }
        };
        #[cfg(feature = "grpc")]
        let reservations = async {
            loop {
                let next = handle.app.decider.tickets.give_back_reservations().await;
                tokio::time::sleep(next).await;
            }
        };
        #[cfg(not(feature = "grpc"))]
        let reservations = std::future::pending();
        tokio::select! {
            never = reservations => never,
            never = handle.app.reload.follow_cluster(&handle.app.decider) => never,
            never = signals => never,
            never = leases => never,
            never = reports => never,
            never = conditions => never,
            never = config => never,
            never = secrets => never,
            never = renewals => never,
            never = reloads => never,
            never = systemd::watchdog() => never,
        }
    }
}

/// Begins to watch a file.
async fn watch(file: &Path) -> Option<FileWatch> {
    let watch = FileWatch::new(file).await;
    watch.inspect_err(|error| tracing::warn!(%error, path = %file.display(), "the file is not watched")).ok()
}

// The addresses of a server, and checks on them.

impl ServerOptions {
    /// Checks whether the server could listen on its addresses. Call it before opening a store, which takes time, and
    /// which a server at the same address may be using. [`Server::bind`](crate::Server::bind) detects an address that is taken
    /// later.
    ///
    /// # Errors
    /// [`ServeError::Open`], [`ServeError::Listen`], and [`ServeError::Tls`] for a plain door without an address.
    pub fn check_addresses(&self) -> Result<(), ServeError> {
        self.check_token()?;
        self.check_plain_doors()?;
        self.addresses().try_for_each(|addr| {
            Listener::check(addr).map_err(|source| ServeError::Listen { addr: addr.clone(), source })
        })
    }

    /// Checks that strangers are kept out: by loopback addresses, a token, or client certificates.
    pub(super) fn check_token(&self) -> Result<(), ServeError> {
        if self.token.is_some() || self.tokens_file.is_some() {
            return Ok(());
        }
        let shows_certificates =
            |door| self.tls_of(door).is_some_and(|settings| settings.client_ca.is_some());
        let open = self.doors().filter(|(door, addr)| !addr.is_local() && !shows_certificates(*door));
        let open = open.map(|(_, addr)| addr).find_map(Address::tcp);
        open.map_or(Ok(()), |addr| Err(ServeError::Open { addr }))
    }

    pub(super) fn check_plain_doors(&self) -> Result<(), TlsError> {
        let plain = self.tls.iter().flat_map(|settings| settings.plain.iter());
        let mut absent = plain.filter(|door| self.doors().all(|(there, _)| there != **door));
        absent.next().map_or(Ok(()), |door| Err(TlsError::NoDoor { door: *door }))
    }

    /// Returns the TLS settings of a door; `None` for a Unix socket, which is never encrypted.
    pub(super) fn tls_of(&self, door: DoorName) -> Option<&TlsSettings> {
        let is_tcp = self.doors().any(|(there, addr)| there == door && addr.tcp().is_some());
        self.tls.as_ref().filter(|settings| is_tcp && !settings.plain.contains(&door))
    }

    /// Returns the doors that are encrypted.
    pub(super) fn encrypted(&self) -> Vec<DoorName> {
        self.doors().map(|(door, _)| door).filter(|door| self.tls_of(*door).is_some()).collect()
    }

    /// Returns the addresses of all doors.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.doors().map(|(_, addr)| addr)
    }

    fn doors(&self) -> impl Iterator<Item = (DoorName, &Address)> {
        let of = |door, addr| Option::map(addr, |addr| (door, addr));
        let doors = [
            of(DoorName::Http, Some(&self.http)),
            of(DoorName::Admin, self.admin.as_ref()),
            of(DoorName::Grpc, self.grpc.as_ref()),
            of(DoorName::Resp, self.resp.as_ref()),
        ];
        doors.into_iter().flatten()
    }
}

// The signals that the server handles: stop and reload.

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
mod unix {
    use std::io;

    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    use super::Signal;

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
