//! Coordination through ZooKeeper: members by their sessions, and documents.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::cluster::{Coordinator, CoordinatorError, Document, Member};
use tidegate::store::Later;
use zookeeper_client::{Client, Error, EventType, MultiReadResult, SessionState, Stat};

use crate::connect::{Failed, Session, ZooKeeper};

/// The size limit of a document: by default ZooKeeper accepts requests of up to a megabyte.
const LARGEST: usize = 900 << 10;

const AT_ONCE: usize = 128;

/// A clone is the same member.
#[derive(Clone)]
struct ZooKeeperCoordinator {
    zookeeper: ZooKeeper,
    keeps: Duration,
    mine: Arc<Mutex<Option<Membership>>>,
}

#[derive(Clone)]
struct Membership {
    session: Session,
    path: String,
    name: String,
    joined: u64,
}

impl fmt::Debug for ZooKeeperCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperCoordinator")
            .field("zookeeper", &self.zookeeper)
            .field("keeps", &self.keeps)
            .finish_non_exhaustive()
    }
}

impl ZooKeeper {
    /// Returns a coordinator that drops members which were not heard of for `keeps`. It has a session of its own, with
    /// `keeps` as its timeout. By default ensembles grant 2 to 20 of their ticks (4 s to 40 s).
    ///
    /// A member is an ephemeral node under that session, and named by it. A node that restarts is a new member; its
    /// predecessor stays until its session ends, because it may still be running. So does one whose join was not
    /// answered, for `keeps` at most. [`Member::joined`] is the transaction that made the node, and a document's
    /// version is the transaction of its last write. Transaction numbers only grow.
    #[must_use]
    pub fn coordinator(&self, keeps: Duration) -> Arc<dyn Coordinator> {
        Arc::new(ZooKeeperCoordinator { zookeeper: self.clone(), keeps, mine: Arc::default() })
    }
}

impl ZooKeeperCoordinator {
    const fn forgotten(&self) -> CoordinatorError {
        CoordinatorError::Forgotten(self.keeps)
    }

    async fn join_as(self, name: String, report: Vec<u8>) -> Result<u64, CoordinatorError> {
        let held = self.mine.lock().clone();
        if let Some(held) = held {
            match self.clone().renew_as(report.clone()).await {
                Ok(()) => return Ok(held.joined),
                // The old membership has ended; the node joins anew.
                Err(CoordinatorError::Forgotten(_)) => {}
                Err(why) => return Err(why),
            }
        }
        let session = self.zookeeper.session(self.keeps).await?;
        let client = &session.client;
        if client.session_timeout() < self.keeps {
            // This node would be dropped earlier than others are told.
            let reason = format!(
                "ZooKeeper: it keeps sessions for {:?} at most, and {:?} are wanted; raise its maxSessionTimeout",
                client.session_timeout(),
                self.keeps
            );
            return Err(CoordinatorError::Unavailable { reason });
        }
        let path = self.zookeeper.paths().member(client.session_id().0);
        let made = self.zookeeper.ask(client.create(
            &path,
            &Member::encode(&name, &report),
            &self.zookeeper.ephemeral(),
        ));
        let joined = transaction(made.await?.0.czxid);
        *self.mine.lock() = Some(Membership { session, path, name, joined });
        Ok(joined)
    }

    async fn renew_as(self, report: Vec<u8>) -> Result<(), CoordinatorError> {
        let Some(mut held) = self.mine.lock().clone() else { return Err(self.forgotten()) };
        let renewed = match self.write_report(&mut held, &report).await {
            Ok(()) => Ok(()),
            Err(Failed::Engine(Error::NoNode)) => Err(self.forgotten()),
            Err(failed) if failed.is_over() => Err(self.forgotten()),
            Err(failed) => Err(failed.into()),
        };
        let mut mine = self.mine.lock();
        if mine.as_ref().is_some_and(|mine| mine.joined == held.joined) {
            *mine = Some(held).filter(|_| !matches!(renewed, Err(CoordinatorError::Forgotten(_))));
        }
        renewed
    }

    async fn write_report(&self, held: &mut Membership, report: &[u8]) -> Result<(), Failed> {
        if held.session.client.state().is_terminated() {
            return Err(Error::SessionExpired.into());
        }
        // Its node may have been given to the login of now.
        self.zookeeper.log_in_anew(&mut held.session).await?;
        let bytes = Member::encode(&held.name, report);
        self.zookeeper.ask(held.session.client.set_data(&held.path, &bytes, None)).await?;
        Ok(())
    }

    async fn leave_now(self) -> Result<(), CoordinatorError> {
        let Some(held) = self.mine.lock().take() else { return Ok(()) };
        match self.zookeeper.ask(held.session.client.delete(&held.path, None)).await {
            Ok(()) | Err(Failed::Engine(Error::NoNode)) => Ok(()),
            Err(failed) if failed.is_over() => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn all_members(self) -> Result<Vec<Member>, CoordinatorError> {
        let client = self.client().await?;
        let below = &self.zookeeper.paths().members;
        let names = self.zookeeper.ask(client.list_children(below)).await?;
        let mut members = Vec::with_capacity(names.len());
        for some in names.chunks(AT_ONCE) {
            let mut reader = client.new_multi_reader();
            for name in some {
                reader.add_get_data(&format!("{below}/{name}")).map_err(Failed::from)?;
            }
            for result in self.zookeeper.ask(reader.commit()).await? {
                // One that has left since is skipped.
                if let MultiReadResult::Data { data, stat } = result
                    && let Some(member) = Member::decode(transaction(stat.czxid), &data)
                {
                    members.push(member);
                }
            }
        }
        members.sort_by_key(|member| member.joined);
        Ok(members)
    }

    /// Returns the client over whose session this node is a member, so that it sees everything written before it last
    /// renewed; if it is none, the shared client. An error if its session has ended: another might read older data.
    async fn client(&self) -> Result<Client, CoordinatorError> {
        let mine = self.mine.lock().as_ref().map(|mine| mine.session.client.clone());
        match mine {
            Some(client) if client.state() == SessionState::SyncConnected => Ok(client),
            Some(client) if client.state().is_terminated() => Err(self.forgotten()),
            Some(_) => Err(Failed::Disconnected.into()),
            None => Ok(self.zookeeper.client().await?),
        }
    }

    async fn read_now(self, path: String) -> Result<Document, CoordinatorError> {
        let client = self.client().await?;
        match self.zookeeper.ask(client.get_data(&path)).await {
            Ok((data, stat)) => Ok(document(data, &stat)),
            Err(Failed::Engine(Error::NoNode)) => Ok(Document::default()),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn replace_at(
        self,
        name: String,
        version: u64,
        bytes: Vec<u8>,
    ) -> Result<Option<u64>, CoordinatorError> {
        if bytes.len() > LARGEST {
            return Err(CoordinatorError::TooLarge { document: name, bytes: bytes.len(), most: LARGEST });
        }
        let path = self.zookeeper.paths().document(&name);
        let client = self.client().await?;
        let held = self.zookeeper.ask(client.check_stat(&path)).await?;
        let written = match held {
            None if version == 0 => {
                let made = self.zookeeper.ask(client.create(&path, &bytes, &self.zookeeper.persistent()));
                made.await.map(|(stat, _)| stat)
            }
            // From here the number of writes stands for the transaction. A node that was deleted, made again and
            // written equally often would not be noticed, but documents are never deleted here.
            Some(stat) if transaction(stat.mzxid) == version => {
                self.zookeeper.ask(client.set_data(&path, &bytes, Some(stat.version))).await
            }
            _ => return Ok(None),
        };
        match written {
            Ok(stat) => Ok(Some(transaction(stat.mzxid))),
            Err(Failed::Engine(Error::BadVersion | Error::NodeExists | Error::NoNode)) => Ok(None),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn wait_for_change(self, path: String, seen: u64) -> Result<Document, CoordinatorError> {
        loop {
            let client = self.client().await?;
            // The watch is set with the read, so that no change is missed.
            let (read, watch) = match self.zookeeper.ask(client.get_and_watch_data(&path)).await {
                Ok((data, stat, watch)) => (document(data, &stat), watch),
                Err(Failed::Engine(Error::NoNode)) => {
                    match self.zookeeper.ask(client.check_and_watch_stat(&path)).await? {
                        (None, watch) => (Document::default(), watch),
                        // It was made in between, and is read again.
                        (Some(_), _) => continue,
                    }
                }
                Err(failed) => return Err(failed.into()),
            };
            if read.version != seen {
                return Ok(read);
            }
            let event = watch.changed().await;
            if event.event_type == EventType::Session && event.session_state.is_terminated() {
                let reason = "ZooKeeper: the session ended while waiting".to_owned();
                return Err(CoordinatorError::Unavailable { reason });
            }
        }
    }
}

impl Coordinator for ZooKeeperCoordinator {
    fn keeps(&self) -> Duration {
        self.keeps
    }

    fn join(&self, name: &str, report: &[u8]) -> Later<Result<u64, CoordinatorError>> {
        let (name, report) = (name.to_owned(), report.to_vec());
        self.zookeeper.later(self.clone().join_as(name, report))
    }

    fn renew(&self, report: &[u8]) -> Later<Result<(), CoordinatorError>> {
        let report = report.to_vec();
        self.zookeeper.later(self.clone().renew_as(report))
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        self.zookeeper.later(self.clone().leave_now())
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.zookeeper.later(self.clone().all_members())
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        let path = self.zookeeper.paths().document(document);
        self.zookeeper.later(self.clone().read_now(path))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        self.zookeeper.later(self.clone().replace_at(document.to_owned(), version, bytes))
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        let path = self.zookeeper.paths().document(document);
        self.zookeeper.later(self.clone().wait_for_change(path, seen))
    }
}

/// Converts a transaction number; they are positive.
fn transaction(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn document(data: Vec<u8>, stat: &Stat) -> Document {
    Document { bytes: Some(data), version: transaction(stat.mzxid) }
}
