//! A sight that records what it is told.

use std::pin::Pin;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::Bytes;
use parking_lot::Mutex;
use tidegate_server::{Changed, Inside, Pulse, Seen, Sight, Verdict};
use tokio::sync::watch;

/// Records what it is told, and answers in its own words.
#[derive(Debug)]
pub(crate) struct RecordedSight {
    pub(crate) told: Mutex<Told>,
    live: watch::Sender<Arc<str>>,
}

/// What a sight was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The names of policies by their numbers, and the rates that were told last.
    pub(crate) policies: Vec<(String, Option<f64>)>,
    pub(crate) seen: Vec<Seen>,
    /// Policy, key, name, digest.
    pub(crate) named: Vec<(u16, u64, String, String)>,
    pub(crate) changes: Vec<Changed>,
    pub(crate) began: Option<(Arc<dyn Pulse>, Arc<dyn Inside>)>,
}

impl Default for RecordedSight {
    fn default() -> Self {
        Self { told: Mutex::default(), live: watch::Sender::new("".into()) }
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

    pub(crate) fn pulse(&self) -> Arc<dyn Pulse> {
        Arc::clone(&self.told.lock().began.as_ref().unwrap().0)
    }

    pub(crate) fn inside(&self) -> Arc<dyn Inside> {
        Arc::clone(&self.told.lock().began.as_ref().unwrap().1)
    }
}

impl Sight for RecordedSight {
    fn begin(&self, pulse: Arc<dyn Pulse>, inside: Arc<dyn Inside>) {
        let before = self.told.lock().began.replace((pulse, inside));
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

    fn named(&self, policy: u16, key: u64, name: &str, digest: &str) {
        self.told.lock().named.push((policy, key, name.to_owned(), digest.to_owned()));
    }

    fn changed(&self, changed: Changed) {
        self.told.lock().changes.push(changed);
    }

    fn live(&self) -> watch::Receiver<Arc<str>> {
        self.live.subscribe()
    }

    fn read(&self, path: &str, query: &str, reveal: bool) -> Result<String, (u16, String)> {
        match query {
            "limit=0" => Err((400, "limit `0` is not possible; use 1 to 200".to_owned())),
            _ => Ok(serde_json::json!({ "path": path, "query": query, "reveal": reveal }).to_string()),
        }
    }

    fn act(&self, path: &str, body: &[u8], who: &str) -> Result<String, (u16, String)> {
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
            let text = format!("{method} {path} {bytes} tokens:{tokens} encrypted:{encrypted}");
            let mut page = Response::new(Bytes::from(text));
            page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            page
        })
    }
}
