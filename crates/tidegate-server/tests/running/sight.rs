//! A sight that records what it is told.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::Bytes;
use parking_lot::Mutex;
use tidegate::Tick;
use tidegate_server::{Changed, Recalled, RefusalRecord, Seen, Sight, Trial, Verdict, WatchedServer};
use tokio::sync::watch;

/// Records what it is told, and answers in its own words.
#[derive(Debug)]
pub(crate) struct RecordedSight {
    pub(crate) told: Mutex<Told>,
    /// What the next reading waits for, as for a disk.
    pub(crate) disk: Mutex<Option<mpsc::Receiver<()>>>,
    live: watch::Sender<Arc<str>>,
}

/// What a sight was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The names of policies by their numbers, and the rates that were told last.
    pub(crate) policies: Vec<(String, Option<f64>)>,
    pub(crate) seen: Vec<Seen>,
    /// Policy, key, whether by the canary, whether it failed.
    pub(crate) ended: Vec<(u16, u64, bool, bool)>,
    /// Policy, key, name, digest.
    pub(crate) named: Vec<(u16, u64, String, String)>,
    pub(crate) changes: Vec<Changed>,
    /// The numbers of configurations, and their policies.
    pub(crate) configured: Vec<(u64, String)>,
    /// Whether refusals are wanted, of whom it was asked, and those that were given.
    pub(crate) wants_refusals: bool,
    pub(crate) asked_refusals: Vec<(Option<u16>, u64)>,
    pub(crate) refusals: Vec<RefusalRecord>,
    pub(crate) began: Option<Arc<dyn WatchedServer>>,
}

impl Default for RecordedSight {
    fn default() -> Self {
        Self { told: Mutex::default(), disk: Mutex::default(), live: watch::Sender::new("".into()) }
    }
}

impl RecordedSight {
    /// Sends this to the listeners.
    pub(crate) fn tell(&self, live: &str) {
        self.live.send_replace(live.into());
    }

    /// Returns the verdicts of one policy, in order.
    pub(crate) fn verdicts(&self, policy: &str) -> Vec<Verdict> {
        let told = self.told.lock();
        let number = told.policies.iter().position(|(name, _)| name == policy).unwrap();
        let own = told.seen.iter().filter(|seen| usize::from(seen.policy) == number);
        own.map(|seen| seen.verdict).collect()
    }

    /// Returns who changed what, in the words for people, and forgets it.
    pub(crate) fn changes(&self) -> Vec<(&'static str, String, String, String)> {
        let changes = std::mem::take(&mut self.told.lock().changes);
        changes.into_iter().map(|one| (one.what, one.who, one.reason, one.text)).collect()
    }

    pub(crate) fn server(&self) -> Arc<dyn WatchedServer> {
        Arc::clone(self.told.lock().began.as_ref().unwrap())
    }
}

impl Sight for RecordedSight {
    fn begin(&self, server: Arc<dyn WatchedServer>) {
        let before = self.told.lock().began.replace(server);
        assert!(before.is_none(), "it begins once");
    }

    fn policy(&self, name: &str, per_second: Option<f64>) -> u16 {
        let mut told = self.told.lock();
        let at = told.policies.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            told.policies.push((name.to_owned(), None));
            told.policies.len() - 1
        });
        told.policies[at].1 = per_second;
        at.try_into().unwrap()
    }

    fn saw(&self, seen: Seen) -> bool {
        self.told.lock().seen.push(seen);
        true
    }

    fn ended(&self, policy: u16, key: u64, canary: bool, failed: bool) {
        self.told.lock().ended.push((policy, key, canary, failed));
    }

    fn named(&self, policy: u16, key: u64, name: &str, digest: &str) {
        self.told.lock().named.push((policy, key, name.to_owned(), digest.to_owned()));
    }

    fn changed(&self, changed: Changed) {
        self.told.lock().changes.push(changed);
    }

    fn configured(&self, number: u64, policies: &str) {
        self.told.lock().configured.push((number, policies.to_owned()));
    }

    fn wants_refusal(&self, policy: Option<u16>, key: u64, _: Tick) -> bool {
        let mut told = self.told.lock();
        told.asked_refusals.push((policy, key));
        told.wants_refusals
    }

    fn refused(&self, record: RefusalRecord) {
        self.told.lock().refusals.push(record);
    }

    fn recall(&self, id: u128, key: Option<&str>) -> Option<Recalled> {
        let told = self.told.lock();
        if let Some(found) = told.refusals.iter().find(|record| record.id == id) {
            let policies = told.configured.iter().find(|(number, _)| *number == found.configuration);
            let policies = policies.map(|(_, policies)| policies.clone());
            return Some(Recalled::Found { text: found.text.clone(), policies });
        }
        let nearest = told.refusals.iter().find(|record| Some(record.key.as_str()) == key);
        let nearest = nearest.map(|record| record.id);
        Some(Recalled::Missing { why: "the queue was full".to_owned(), nearest })
    }

    fn live(&self) -> watch::Receiver<Arc<str>> {
        self.live.subscribe()
    }

    fn read(&self, path: &str, query: &str, reveal: bool) -> Result<String, (u16, String)> {
        let disk = self.disk.lock().take();
        if disk.is_some_and(|disk| disk.recv_timeout(Duration::from_secs(10)).is_err()) {
            return Err((500, "the disk hangs".to_owned()));
        }
        match query {
            "limit=0" => Err((400, "limit `0` is not possible; use 1 to 200".to_owned())),
            _ => Ok(serde_json::json!({ "path": path, "query": query, "reveal": reveal }).to_string()),
        }
    }

    fn try_limit(&self, trial: &Trial) -> Result<String, (u16, String)> {
        let Trial { policy, limit, max_wait, per_second, window, reveal, .. } = trial;
        match &**policy {
            "busy" => Err((429, "another limit is being tried".to_owned())),
            _ => Ok(serde_json::json!({
                "policy": policy,
                "limit": limit,
                "max_wait_ms": max_wait.as_millis() as u64,
                "per_second": per_second,
                "window_s": window.as_secs(),
                "reveal": reveal,
            })
            .to_string()),
        }
    }

    fn act(&self, path: &str, body: &[u8], who: &str) -> Result<String, (u16, String)> {
        // Like the sight itself, it takes no body that it does not understand. The server has read that of a canary.
        if !path.starts_with("/v1/canaries/")
            && serde_json::from_slice::<serde_json::Value>(body).ok()
                != Some(serde_json::json!({ "do": "test" }))
        {
            return Err((400, "the body is not {\"do\": \"test\"}".to_owned()));
        }
        Ok(serde_json::json!({ "path": path, "bytes": body.len(), "who": who }).to_string())
    }

    fn page(
        &self,
        request: Request<Bytes>,
        tokens: bool,
        encrypted: bool,
    ) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(async move {
            let (method, path, bytes) = (request.method(), request.uri().path(), request.body().len());
            let mut text = format!("{method} {path} {bytes} tokens:{tokens} encrypted:{encrypted}");
            let from = request.extensions().get::<SocketAddr>().map(SocketAddr::ip);
            if let Some(from) = from.filter(|from| !from.is_loopback()) {
                text += &format!(" from:{from}");
            }
            let mut page = Response::new(Bytes::from(text));
            page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            page
        })
    }
}
