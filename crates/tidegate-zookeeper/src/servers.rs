//! The servers of an ensemble, and which of them this process asks for cells.
//!
//! A session names one server, and lasts as long as that one answers: nothing in ZooKeeper depends on it. A server that
//! fails, or is silent for [`SILENCE`], makes this process look for another: all are probed at once, and the first that
//! serves gets a new session. So a dead address costs requests nothing, wherever it stands in the list, and nobody
//! tries it while another server answers. The client library's own list would wait four seconds for a silent server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::clock::{Clock as _, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zookeeper_client::SessionState;

use crate::connect::{Failed, Probed, Session, judged, probe_one};
use crate::options::{ConnectError, ZooKeeperOptions};

/// The timeout of the session for cells. No ephemeral node depends on it.
const SESSION: Duration = Duration::from_secs(10);

/// How long an exchange lasts before other servers are looked at. Less than half of the time that a step has by
/// default, so that it can still ask another.
const SILENCE: Duration = Duration::from_millis(100);

/// How long a step waits for a session: as long as it has by default. It fails sooner if nobody serves.
const WAIT: Duration = Duration::from_millis(250);

/// How much longer the server in use may take than another before it is left.
const GRACE: Duration = Duration::from_millis(20);

/// The pause after a search that found nobody.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Servers {
    options: ZooKeeperOptions,
    used: watch::Sender<Used>,
    search: Mutex<Search>,
    clock: SystemClock,
    runtime: Handle,
}

/// A session, with the place of its server in the list.
#[derive(Clone)]
pub(crate) struct Used {
    at: usize,
    /// Counts sessions.
    pub(crate) turn: u64,
    pub(crate) session: Session,
}

#[derive(Default)]
struct Search {
    /// The one under way, if any, and whether it has found a server.
    under_way: Option<watch::Receiver<Option<bool>>>,
    /// Until when none begins.
    pause: Tick,
}

impl Servers {
    /// Makes a session with the first server that serves.
    ///
    /// # Errors
    /// If none serves, what is wrong with them; or why there is no session.
    pub(crate) async fn connect(
        options: &ZooKeeperOptions,
        runtime: Handle,
    ) -> Result<Arc<Self>, ConnectError> {
        let mut probes = probes(options);
        let (mut wrong, mut silent) = (None, Vec::new());
        while let Some(probed) = probes.join_next().await {
            match probed {
                Ok((at, Ok(()))) => {
                    let session = Session::begin(options, &options.addresses[at..=at], SESSION).await;
                    let session = session.map_err(|failed| judged(&failed, options))?;
                    return Ok(Arc::new(Self {
                        options: options.clone(),
                        used: watch::channel(Used { at, turn: 0, session }).0,
                        search: Mutex::default(),
                        clock: SystemClock::new(),
                        runtime,
                    }));
                }
                Ok((at, Err(Probed::Silent(reason)))) => {
                    silent.push(format!("{} ({reason})", options.addresses[at]));
                }
                Ok((_, Err(Probed::Wrong(error)))) => wrong = Some(error),
                // It has panicked, which the others need not.
                Err(_) => {}
            }
        }
        Err(wrong.unwrap_or_else(|| ConnectError::Unreachable { tried: silent.join(", ") }))
    }

    pub(crate) fn len(&self) -> usize {
        self.options.addresses.len()
    }

    /// Returns a connected session. If there is none, waits for one for [`WAIT`]: a disconnected one would queue requests
    /// without bound.
    pub(crate) async fn used(self: &Arc<Self>) -> Result<Used, Failed> {
        for look in [true, false] {
            let used = self.used.borrow().clone();
            if used.session.client.state() == SessionState::SyncConnected {
                return Ok(used);
            }
            if look && !timeout(WAIT, self.look()).await.unwrap_or_default() {
                break;
            }
        }
        Err(self.options.login().map_or_else(Failed::Renewal, |_| Failed::Disconnected))
    }

    /// Returns whether there is another login by now than a session has.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn has_other_login(&self, used: &Used) -> Result<bool, Failed> {
        self.options.login().map(|login| login != used.session.login).map_err(Failed::Renewal)
    }

    /// Completes when another session is in use because this one is silent; looks for one every [`SILENCE`].
    pub(crate) async fn silent(self: &Arc<Self>, turn: u64) {
        let looks = async {
            loop {
                sleep(SILENCE).await;
                self.look().await;
            }
        };
        let mut used = self.used.subscribe();
        tokio::select! {
            // No error: the sender is in `self`.
            _ = used.wait_for(|used| used.turn != turn) => {}
            () = looks => {}
        }
    }

    /// Looks at all servers; from then on a session with one that serves is in use, if there is any. Returns whether
    /// there is. There is one search at a time, which goes on if the caller stops waiting for it, and none shortly
    /// after one that found nobody.
    pub(crate) fn look(self: &Arc<Self>) -> impl Future<Output = bool> + use<> {
        let search = self.begin_search();
        async move {
            let Some(mut search) = search else { return false };
            search.wait_for(Option::is_some).await.is_ok_and(|found| *found == Some(true))
        }
    }

    fn begin_search(self: &Arc<Self>) -> Option<watch::Receiver<Option<bool>>> {
        let mut search = self.search.lock();
        if search.under_way.is_none() && self.clock.now() < search.pause {
            return None;
        }
        let begin = || {
            let (told, under_way) = watch::channel(None);
            let servers = Arc::clone(self);
            self.runtime.spawn(async move {
                let found = servers.search().await.is_some();
                let pause = if found { Tick::EPOCH } else { servers.clock.now().after(PAUSE) };
                *servers.search.lock() = Search { under_way: None, pause };
                let _ = told.send(Some(found));
            });
            under_way
        };
        Some(search.under_way.get_or_insert_with(begin).clone())
    }

    /// Keeps the session if its server serves and there is no other login, else makes one with the first that serves.
    async fn search(&self) -> Option<()> {
        let used = self.used.borrow().clone();
        let at = self.first_well(used.at).await?;
        let is_connected = used.session.client.state() == SessionState::SyncConnected;
        if at == used.at && is_connected && !self.has_other_login(&used).unwrap_or_default() {
            return Some(());
        }
        let session = Session::begin(&self.options, &self.options.addresses[at..=at], SESSION).await.ok()?;
        self.used.send_replace(Used { at, turn: used.turn + 1, session });
        Some(())
    }

    /// Returns the place of the preferred server if it serves, else of the first that does.
    async fn first_well(&self, preferred: usize) -> Option<usize> {
        let mut probes = probes(&self.options);
        let mut other = None;
        loop {
            let answer = match other {
                None => probes.join_next().await,
                Some(_) => timeout(GRACE, probes.join_next()).await.unwrap_or_default(),
            };
            match answer {
                Some(Ok((at, Ok(())))) if at == preferred => return Some(at),
                Some(Ok((at, Ok(())))) => other = other.or(Some(at)),
                Some(Ok((at, Err(_)))) if at == preferred && other.is_some() => return other,
                Some(_) => {}
                None => return other,
            }
        }
    }
}

/// Probes all servers at once; each answer has the place of its server.
fn probes(options: &ZooKeeperOptions) -> JoinSet<(usize, Result<(), Probed>)> {
    let mut probes = JoinSet::new();
    for (at, address) in options.addresses.iter().cloned().enumerate() {
        probes.spawn(async move { (at, probe_one(&address).await) });
    }
    probes
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::{Fault, FaultyProxy, ZooKeeperServer, runtime, within};

    use crate::ZooKeeper;

    use super::*;

    /// A caller that came while a new session was being made used to wait for it, and then made an attempt of its own:
    /// five seconds each, one after the other.
    #[test]
    fn one_session_is_made_for_all_callers_and_none_waits_long() {
        let (Some(server), Some(other)) = (ZooKeeperServer::start(), ZooKeeperServer::start()) else {
            return;
        };
        let runtime = runtime();
        let proxy = FaultyProxy::before(server.addr()).unwrap();
        let options = ZooKeeperOptions::new([proxy.addr().to_string()]);
        let zookeeper = runtime.block_on(ZooKeeper::connect(options)).unwrap();
        let servers = zookeeper.servers();
        // The other server does not know the session.
        proxy.set(Fault::Cut);
        proxy.lead_to(other.addr());
        proxy.set(Fault::None);
        within("the session is over", || servers.used.borrow().session.client.state().is_terminated());
        proxy.set(Fault::Stall);
        let made = proxy.connections();
        for _ in 0..3 {
            let told = runtime.block_on(servers.used()).map(|_| ());
            assert!(matches!(told, Err(Failed::Disconnected)), "{told:?}");
        }
        assert_eq!(proxy.connections(), made + 1, "one search for all");
        proxy.set(Fault::None);
        within("a session is made", || runtime.block_on(servers.used()).is_ok());
    }
}
