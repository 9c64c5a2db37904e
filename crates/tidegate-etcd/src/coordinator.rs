//! Coordination through etcd: members under leases, and documents.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use parking_lot::Mutex;
use tidegate::cluster::{Coordinator, CoordinatorError, Document, Member};
use tidegate::store::Later;

use crate::connect::{Etcd, Failed};
use crate::map::execute;

/// The size limit of a document: by default etcd accepts requests of up to 1.5 MiB.
const LARGEST: usize = 1 << 20;

/// A clone is the same member.
#[derive(Clone)]
struct EtcdCoordinator {
    etcd: Etcd,
    keeps: Duration,
    mine: Arc<Mutex<Option<Membership>>>,
}

#[derive(Clone, Debug)]
struct Membership {
    lease: i64,
    joined: i64,
    name: String,
    report: Vec<u8>,
}

impl fmt::Debug for EtcdCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdCoordinator")
            .field("etcd", &self.etcd)
            .field("keeps", &self.keeps)
            .finish_non_exhaustive()
    }
}

impl Etcd {
    /// Returns a coordinator that drops members which were not renewed for `keeps`. `keeps` is rounded up to whole
    /// seconds, and is at least 2.
    ///
    /// A member is a key under a lease, and named by it. A node that restarts is a new member; its predecessor stays
    /// until its lease ends, because it may still be running. [`Member::joined`] is the revision at which the key was
    /// made, and a document's version is the revision of its last write. Revisions only grow.
    #[must_use]
    pub fn coordinator(&self, keeps: Duration) -> Arc<dyn Coordinator> {
        // Rounded up; 2 is the least that etcd grants by default.
        let seconds = (keeps.as_secs() + u64::from(keeps.subsec_nanos() > 0)).max(2);
        let keeps = Duration::from_secs(seconds);
        Arc::new(EtcdCoordinator { etcd: self.clone(), keeps, mine: Arc::default() })
    }
}

impl EtcdCoordinator {
    fn member_key(&self, lease: i64) -> Vec<u8> {
        self.etcd.key(&format!("members/{lease:016x}"))
    }

    fn document_key(&self, document: &str) -> Vec<u8> {
        self.etcd.key(&format!("documents/{document}"))
    }

    const fn forgotten(&self) -> CoordinatorError {
        CoordinatorError::Forgotten(self.keeps)
    }

    async fn join_as(self, name: String, report: Vec<u8>) -> Result<u64, CoordinatorError> {
        let held = self.mine.lock().clone();
        if let Some(held) = held {
            match self.clone().renew_as(report.clone()).await {
                Ok(()) => return Ok(number(held.joined)),
                // The old membership has ended; the node joins anew.
                Err(CoordinatorError::Forgotten(_)) => {}
                Err(why) => return Err(why),
            }
        }
        let seconds = i64::try_from(self.keeps.as_secs()).unwrap_or(i64::MAX);
        // Executed twice, it leaves one behind that nobody uses.
        let lease =
            self.etcd.ask(async |mut client: Client| client.lease_grant(seconds, None).await).await?.id();
        let (key, value) = (self.member_key(lease), Member::encode(&name, &report));
        let options = PutOptions::new().with_lease(lease);
        // Executed twice, the key keeps the revision at which it was made, which is read with it.
        let put = Txn::new().and_then([TxnOp::put(key.clone(), value, Some(options)), TxnOp::get(key, None)]);
        let put = self.etcd.ask(|client| execute(client, put.clone())).await?;
        let made = put.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(got) => got.kvs().first().map(KeyValue::create_revision),
            _ => None,
        });
        let joined = made.unwrap_or(0);
        *self.mine.lock() = Some(Membership { lease, joined, name, report });
        Ok(number(joined))
    }

    async fn renew_as(self, report: Vec<u8>) -> Result<(), CoordinatorError> {
        let Some(held) = self.mine.lock().clone() else { return Err(self.forgotten()) };
        let renewed = self.try_to_renew(&held, &report).await;
        let mut mine = self.mine.lock();
        if mine.as_ref().is_some_and(|mine| mine.lease == held.lease) {
            match &renewed {
                Ok(()) => *mine = Some(Membership { report, ..held }),
                Err(CoordinatorError::Forgotten(_)) => *mine = None,
                Err(_) => {}
            }
        }
        renewed
    }

    async fn try_to_renew(&self, held: &Membership, report: &[u8]) -> Result<(), CoordinatorError> {
        // A new stream each time, so that an answer is not taken for a later one's.
        let renew = async |mut client: Client| client.lease_keep_alive(held.lease).await;
        match self.etcd.ask(renew).await {
            Ok(_) => {}
            Err(failed) if failed.is_lease_gone() => return Err(self.forgotten()),
            Err(failed) => return Err(failed.into()),
        }
        // If another client has deleted the key, the lease lives on, but the others see no member.
        let key = self.member_key(held.lease);
        let there = Compare::create_revision(key.clone(), CompareOp::Equal, held.joined);
        let mut renewal = Txn::new().when([there]);
        if held.report != report {
            let options = PutOptions::new().with_lease(held.lease);
            renewal = renewal.and_then([TxnOp::put(key, Member::encode(&held.name, report), Some(options))]);
        }
        match self.etcd.ask(|client| execute(client, renewal.clone())).await {
            Ok(answer) if answer.succeeded() => Ok(()),
            // Another client has deleted the key.
            Ok(_) => Err(self.forgotten()),
            Err(failed) if failed.is_lease_gone() => Err(self.forgotten()),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn leave_now(self) -> Result<(), CoordinatorError> {
        let Some(held) = self.mine.lock().take() else { return Ok(()) };
        let revoke = async |mut client: Client| client.lease_revoke(held.lease).await;
        match self.etcd.ask(revoke).await {
            Ok(_) => Ok(()),
            Err(failed) if failed.is_lease_gone() => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn all_members(self) -> Result<Vec<Member>, CoordinatorError> {
        let (key, options) = (self.etcd.key("members/"), GetOptions::new().with_prefix());
        let get = async |mut client: Client| client.get(key.as_slice(), Some(options.clone())).await;
        let mut got = self.etcd.ask(get).await?;
        let mut members: Vec<Member> = got
            .take_kvs()
            .into_iter()
            .filter_map(|held| {
                let joined = number(held.create_revision());
                Member::decode(joined, &held.into_key_value().1)
            })
            .collect();
        members.sort_by_key(|member| member.joined);
        Ok(members)
    }

    async fn read_at(&self, key: Vec<u8>) -> Result<(Document, i64), Failed> {
        let get = async |mut client: Client| client.get(key.as_slice(), None).await;
        let mut got = self.etcd.ask(get).await?;
        let at = got.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok((got.take_kvs().pop().map_or_else(Document::default, document), at))
    }

    async fn read_now(self, key: Vec<u8>) -> Result<Document, CoordinatorError> {
        Ok(self.read_at(key).await?.0)
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
        let key = self.document_key(&name);
        let version = i64::try_from(version).unwrap_or(i64::MAX);
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, version);
        let put = TxnOp::put(key, bytes, None);
        let txn = Txn::new().when([unchanged]).and_then([put]);
        // Executed twice, it would lose against itself.
        let answer = self.etcd.ask_once(|client| execute(client, txn.clone())).await?;
        let written = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(answer.succeeded().then_some(number(written)))
    }

    async fn wait_for_change(self, key: Vec<u8>, seen: u64) -> Result<Document, CoordinatorError> {
        let (read, at) = self.read_at(key.clone()).await?;
        if read.version != seen {
            return Ok(read);
        }
        // From the revision after the one read, so that no change is missed.
        let options = WatchOptions::new().with_start_revision(at + 1);
        let members = self.etcd.members();
        let used = members.used();
        let begin = async |mut client: Client| client.watch(key.as_slice(), Some(options.clone())).await;
        let mut watch = self.etcd.ask(begin).await?;
        loop {
            let told = tokio::select! {
                told = watch.message() => told.map_err(Failed::Engine)?,
                // Its watch may be as silent as the member.
                () = members.left(used) => None,
            };
            let Some(told) = told else {
                let reason = "etcd: the watch has ended".to_owned();
                return Err(CoordinatorError::Unavailable { reason });
            };
            if told.canceled() {
                let reason = format!("etcd: the watch was ended: {}", told.cancel_reason());
                return Err(CoordinatorError::Unavailable { reason });
            }
            if let Some(last) = told.events().last() {
                let held = last.kv().filter(|held| held.create_revision() != 0);
                return Ok(held.cloned().map_or_else(Document::default, document));
            }
        }
    }
}

impl Coordinator for EtcdCoordinator {
    fn keeps(&self) -> Duration {
        self.keeps
    }

    fn join(&self, name: &str, report: &[u8]) -> Later<Result<u64, CoordinatorError>> {
        let (name, report) = (name.to_owned(), report.to_vec());
        self.etcd.later(self.clone().join_as(name, report))
    }

    fn renew(&self, report: &[u8]) -> Later<Result<(), CoordinatorError>> {
        let report = report.to_vec();
        self.etcd.later(self.clone().renew_as(report))
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        self.etcd.later(self.clone().leave_now())
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.etcd.later(self.clone().all_members())
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        self.etcd.later(self.clone().read_now(self.document_key(document)))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        self.etcd.later(self.clone().replace_at(document.to_owned(), version, bytes))
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        self.etcd.later(self.clone().wait_for_change(self.document_key(document), seen))
    }
}

/// Revisions are positive.
fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn document(held: KeyValue) -> Document {
    let version = number(held.mod_revision());
    Document { bytes: Some(held.into_key_value().1), version }
}
