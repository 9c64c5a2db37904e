//! The members of a cluster, and which of them this process asks.
//!
//! A process asks one member as long as that one answers. One that fails, or is silent for [`SILENCE`], makes this
//! process look for another: all members are asked for their status at once, and the first that knows a leader is used
//! from then on. So a dead address costs requests nothing, wherever it stands in the list, and nobody tries it while
//! another member answers.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::connect::{Address, Failed, wanted};
use crate::options::EtcdOptions;

/// How long an exchange lasts before other members are looked at. Less than half of the time that a step has by
/// default, so that it can still ask another.
const SILENCE: Duration = Duration::from_millis(100);

/// How long a member may take to tell its status, the time for connecting included.
const STATUS: Duration = Duration::from_secs(2);

/// How much longer the member in use may take than another before it is left.
const GRACE: Duration = Duration::from_millis(20);

pub(crate) struct Members {
    all: Vec<Arc<Member>>,
    used: watch::Sender<usize>,
    /// The search under way, if any.
    search: parking_lot::Mutex<Option<watch::Receiver<Option<bool>>>>,
    runtime: Handle,
}

/// One address. Its client is made when it is first used: making one with a user takes an answer.
pub(crate) struct Member {
    pub(crate) address: Address,
    options: Arc<EtcdOptions>,
    made: Mutex<Option<Made>>,
}

/// A client, and the user and the password that it logs in with.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) client: Client,
    login: Option<(String, String)>,
}

impl Member {
    pub(crate) fn new(address: Address, options: Arc<EtcdOptions>) -> Self {
        Self { address, options, made: Mutex::default() }
    }

    /// Returns the client, which one caller makes for all: etcd takes long for each login.
    pub(crate) async fn client(&self) -> Result<Made, Failed> {
        let mut made = self.made.lock().await;
        if let Some(made) = &*made {
            return Ok(made.clone());
        }
        let options = self.options.anew().map_err(Failed::Renewal)?;
        let client = Client::connect([&self.address.shown], Some(wanted(&options, &self.address))).await;
        Ok(made.insert(Made { client: client.map_err(Failed::Engine)?, login: options.user }).clone())
    }

    /// Forgets a client whose login etcd has refused. Returns whether there is another login by now.
    ///
    /// # Errors
    /// If the login cannot be read.
    pub(crate) async fn has_other_login(&self, refused: &Made) -> Result<bool, Failed> {
        let has_other = self.options.anew().map_err(Failed::Renewal)?.user != refused.login;
        if has_other {
            self.made.lock().await.take_if(|made| made.login == refused.login);
        }
        Ok(has_other)
    }

    /// Returns whether it answers and knows a leader.
    async fn is_well(&self) -> bool {
        let status = async { self.client().await?.client.status().await.map_err(Failed::Engine) };
        let is_well =
            timeout(STATUS, status).await.is_ok_and(|status| status.is_ok_and(|status| status.leader() != 0));
        if !is_well {
            // The next one is made with the certificates of then.
            *self.made.lock().await = None;
        }
        is_well
    }
}

impl Members {
    /// `used` is the place of a member that answers.
    pub(crate) fn new(all: Vec<Arc<Member>>, used: usize, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { all, used: watch::channel(used).0, search: parking_lot::Mutex::default(), runtime })
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the place of the member in use.
    pub(crate) fn used(&self) -> usize {
        *self.used.borrow()
    }

    pub(crate) fn member(&self, at: usize) -> &Member {
        &self.all[at]
    }

    /// Completes when a member is no longer in use.
    pub(crate) async fn left(&self, member: usize) {
        // No error: the sender is in `self`.
        let _ = self.used.subscribe().wait_for(|used| *used != member).await;
    }

    /// Completes when another member is in use because this one is silent; looks for one every [`SILENCE`].
    pub(crate) async fn silent(self: &Arc<Self>, member: usize) {
        let looks = async {
            loop {
                sleep(SILENCE).await;
                self.look().await;
            }
        };
        tokio::select! {
            () = self.left(member) => {}
            () = looks => {}
        }
    }

    /// Looks at all members; from then on one that is well is in use, if there is any. Returns whether there is. There
    /// is one search at a time, which goes on if the caller stops waiting for it.
    pub(crate) fn look(self: &Arc<Self>) -> impl Future<Output = bool> + use<> {
        let begin = || {
            let (told, search) = watch::channel(None);
            let members = Arc::clone(self);
            self.runtime.spawn(async move {
                let found = members.search().await;
                if let Some(found) = found {
                    members.used.send_if_modified(|used| std::mem::replace(used, found) != found);
                }
                *members.search.lock() = None;
                let _ = told.send(Some(found.is_some()));
            });
            search
        };
        let mut search = self.search.lock().get_or_insert_with(begin).clone();
        async move { search.wait_for(Option::is_some).await.is_ok_and(|found| *found == Some(true)) }
    }

    /// Returns the member in use if it is well, else the first that is.
    async fn search(&self) -> Option<usize> {
        let used = *self.used.borrow();
        let mut asked = JoinSet::new();
        for (at, member) in self.all.iter().enumerate() {
            let member = Arc::clone(member);
            asked.spawn(async move { (at, member.is_well().await) });
        }
        let mut other = None;
        loop {
            let answer = match other {
                None => asked.join_next().await,
                Some(_) => timeout(GRACE, asked.join_next()).await.unwrap_or_default(),
            };
            match answer {
                Some(Ok((at, true))) if at == used => return Some(used),
                Some(Ok((at, true))) => other = other.or(Some(at)),
                Some(Ok((at, false))) if at == used && other.is_some() => return other,
                Some(_) => {}
                None => return other,
            }
        }
    }
}
