//! Sends messages to receivers, each from a task and a queue of its own.
//!
//! A receiver that is away is tried again after a second, two, four, up to five minutes; its queue has 256 messages, with
//! the one that is being sent, of which the oldest goes if it is full. One that refuses a message (4xx, or a redirect,
//! which is not followed) does not get it again. All of it is counted.
//!
//! What a webhook gets is signed with the time at which it is sent, so that whoever has seen an old message cannot send it
//! again later.
//!
//! Addresses come from the policy file alone, and are shown without their paths, which may be secrets.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::uri::Authority;
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::Sha256;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::config::{AlertReceiver, AlertSettings, read_file};
use tidegate::visible;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::messages::{Kind, Message};
use super::rfc3339;

/// Messages that wait for a receiver, with the one that is being sent.
const QUEUE: usize = 256;

/// The first pause after a failure, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How long a connection may take, and a whole exchange, with the look-up of the name.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The shortest secret, and the largest file of one, in bytes.
const SHORTEST_SECRET: usize = 16;
const LARGEST_SECRET: u64 = 4_096;

/// The header with the time of sending and the HMAC.
const SIGNATURE: &str = "x-tidegate-signature";

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// The receivers, and their queues.
#[derive(Debug)]
pub(crate) struct Delivery {
    receivers: Vec<Arc<Receiver>>,
    link: Option<Arc<str>>,
    connector: Option<Hidden>,
}

/// The messages of a receiver that wait.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Message>,
    /// Whether one, which is not among those, is being sent.
    is_sending: bool,
    /// Whether there is a task that sends.
    has_begun: bool,
    /// Nobody can put anything into it any more.
    is_closed: bool,
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.is_sending)
    }
}

/// How long a receiver is waited for.
#[derive(Clone, Copy, Debug)]
struct Patience {
    first_pause: Duration,
    answers_within: Duration,
}

/// The connector, without `Debug`.
struct Hidden(Connector);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

/// Whom messages are sent to.
struct Receiver {
    kind: Kind,
    url: Uri,
    /// The address without its path.
    shown: String,
    secret: Option<Vec<u8>>,
    patience: Patience,
    queue: Mutex<Queue>,
    /// Told of each message, and of the end.
    news: Notify,
    fares: Fares,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("kind", &self.kind)
            .field("shown", &self.shown)
            .finish_non_exhaustive()
    }
}

/// How messages fare.
#[derive(Debug, Default)]
struct Fares {
    sent: AtomicU64,
    /// Attempts that failed, and are repeated.
    failed: AtomicU64,
    /// Messages that the receiver did not want.
    refused: AtomicU64,
    /// Messages that went because the queue was full.
    dropped: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Clone, Debug, Default)]
struct Last {
    /// In seconds since 1970.
    sent: Option<u64>,
    /// Why the last attempt failed; `None`: it did not.
    error: Option<String>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    Taken,
    Refused(String),
    Failed(String),
}

/// Why a receiver cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ReceiverError(String);

impl Delivery {
    /// Makes the queues. Reads the files of secrets.
    ///
    /// # Errors
    /// [`ReceiverError`] if a secret cannot be read, or an address cannot be used by this build.
    pub(crate) fn new(settings: &AlertSettings) -> Result<Self, ReceiverError> {
        Self::with(settings, Patience { first_pause: FIRST_PAUSE, answers_within: ANSWERS_WITHIN })
    }

    fn with(settings: &AlertSettings, patience: Patience) -> Result<Self, ReceiverError> {
        let receivers = settings.to.iter().map(|to| Receiver::new(to, patience).map(Arc::new));
        let receivers = receivers.collect::<Result<Vec<_>, _>>()?;
        let is_encrypted = receivers.iter().any(|receiver| receiver.url.scheme_str() == Some("https"));
        let connector = if receivers.is_empty() { None } else { Some(Hidden(connector(is_encrypted)?)) };
        let link = settings.link.as_deref().map(|link| Arc::from(link.trim_end_matches('/')));
        Ok(Self { receivers, link, connector })
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.receivers.iter().map(|receiver| receiver.kind).collect()
    }

    /// What paths of pages are appended to.
    pub(crate) fn link(&self) -> Option<Arc<str>> {
        self.link.clone()
    }

    /// Starts a task for each receiver in the runtime that this is called in. Without one, messages wait in their
    /// queues.
    pub(crate) fn begin(&self) {
        let (Ok(runtime), Some(Hidden(connector))) = (Handle::try_current(), &self.connector) else { return };
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector.clone());
        for receiver in &self.receivers {
            if !mem::replace(&mut receiver.queue.lock().has_begun, true) {
                runtime.spawn(run(Arc::clone(receiver), client.clone()));
            }
        }
    }

    /// Puts a message into its queue. Never waits.
    pub(crate) fn send(&self, message: Message) {
        if let Some(receiver) = self.receivers.get(message.receiver) {
            receiver.push(message);
        }
    }

    /// Takes the messages that wait for receivers, if nobody has begun to send them.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> Vec<Message> {
        self.receivers.iter().flat_map(|receiver| mem::take(&mut receiver.queue.lock().waiting)).collect()
    }

    /// Returns how messages fare, by receiver.
    pub(crate) fn shown(&self) -> Vec<Value> {
        self.receivers.iter().map(|receiver| receiver.shown()).collect()
    }

    /// Returns how messages fared since the start, by receiver.
    pub(crate) fn counts(&self) -> Vec<Counts> {
        let of = |receiver: &Arc<Receiver>| {
            let Fares { sent, failed, refused, dropped, .. } = &receiver.fares;
            let [sent, failed, refused, dropped] =
                [sent, failed, refused, dropped].map(|count| count.load(Ordering::Relaxed));
            Counts { kind: receiver.kind, sent, failed, refused, dropped }
        };
        self.receivers.iter().map(of).collect()
    }
}

/// How messages to a receiver fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) kind: Kind,
    pub(crate) sent: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) dropped: u64,
}

impl Drop for Delivery {
    /// Ends the tasks, once each has tried what waits.
    fn drop(&mut self) {
        for receiver in &self.receivers {
            receiver.queue.lock().is_closed = true;
            receiver.news.notify_one();
        }
    }
}

impl Receiver {
    fn new(to: &AlertReceiver, patience: Patience) -> Result<Self, ReceiverError> {
        let (kind, url, secret) = match to {
            AlertReceiver::Alertmanager { url } => {
                (Kind::Alertmanager, format!("{}/api/v2/alerts", url.trim_end_matches('/')), None)
            }
            AlertReceiver::Webhook { url, secret_file } => {
                let wrong = |why: String| {
                    ReceiverError(format!(
                        "server.sight.alerts: secret_file {}: {why}",
                        secret_file.display()
                    ))
                };
                let bytes =
                    read_file(secret_file, LARGEST_SECRET).map_err(|error| wrong(error.to_string()))?;
                let secret = bytes.trim_ascii().to_vec();
                if secret.len() < SHORTEST_SECRET {
                    return Err(wrong(format!("a secret has at least {SHORTEST_SECRET} bytes")));
                }
                (Kind::Webhook, url.clone(), Some(secret))
            }
            _ => {
                return Err(ReceiverError(
                    "server.sight.alerts: this build does not know a receiver".to_owned(),
                ));
            }
        };
        let url = url.parse::<Uri>().map_err(|error| {
            ReceiverError(format!("server.sight.alerts: an address cannot be used: {error}"))
        })?;
        let shown = format!(
            "{}://{}",
            url.scheme_str().unwrap_or_default(),
            url.authority().map_or("", Authority::as_str)
        );
        let (queue, news, fares) = (Mutex::default(), Notify::new(), Fares::default());
        Ok(Self { kind, url, shown, secret, patience, queue, news, fares })
    }

    fn shown(&self) -> Value {
        let waiting = self.queue.lock().len();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let last = self.fares.last.lock().clone();
        json!({
            "kind": self.kind.word(),
            "address": self.shown,
            "sent": count(&self.fares.sent),
            "failed": count(&self.fares.failed),
            "refused": count(&self.fares.refused),
            "dropped": count(&self.fares.dropped),
            "waiting": waiting,
            "last_sent": last.sent.and_then(rfc3339),
            "error": last.error,
        })
    }

    /// Makes the request of a message that is sent at `at`, in seconds since 1970.
    fn request(&self, body: &str, at: u64) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")));
        if let Some(secret) = &self.secret {
            request = request.header(SIGNATURE, signature(secret, at, body.as_bytes()));
        }
        request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
    }

    async fn attempt(&self, client: &Client<Connector, Full<Bytes>>, body: &str) -> Sent {
        let request = match self.request(body, now()) {
            Ok(request) => request,
            Err(error) => return Sent::Refused(error.to_string()),
        };
        // Until the head of the answer is there; its body is not read.
        match tokio::time::timeout(self.patience.answers_within, client.request(request)).await {
            Err(_) => Sent::Failed(format!("no answer within {:?}", self.patience.answers_within)),
            Ok(Err(error)) => Sent::Failed(causes(&error)),
            Ok(Ok(answer)) => match answer.status() {
                status if status.is_success() => Sent::Taken,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                    Sent::Failed(told(answer.status()))
                }
                status if status.is_server_error() => Sent::Failed(told(status)),
                status => Sent::Refused(told(status)),
            },
        }
    }

    /// Notes how an attempt ended; changes are logged.
    fn note(&self, sent: &Sent) {
        let (count, error) = match sent {
            Sent::Taken => (&self.fares.sent, None),
            Sent::Refused(why) => (&self.fares.refused, Some(why)),
            Sent::Failed(why) => (&self.fares.failed, Some(why)),
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut last = self.fares.last.lock();
        match (error, &last.error) {
            (Some(why), None) => {
                tracing::warn!(receiver = self.shown, why = %visible::line(why), "a receiver does not take alerts");
            }
            (None, Some(_)) => tracing::info!(receiver = self.shown, "a receiver takes alerts again"),
            _ => {}
        }
        last.error = error.map(|why| visible::line(why).into_owned());
        if error.is_none() {
            last.sent = Some(now());
        }
    }

    /// Adds a message to those that wait; if there are too many, the oldest goes.
    fn push(&self, message: Message) {
        let mut queue = self.queue.lock();
        if message.replaces {
            queue.waiting.retain(|earlier| !earlier.replaces);
        }
        if queue.len() >= QUEUE && queue.waiting.pop_front().is_some() {
            self.fares.dropped.fetch_add(1, Ordering::Relaxed);
        }
        queue.waiting.push_back(message);
        drop(queue);
        self.news.notify_one();
    }

    /// Waits for a message, and takes the first; `None`: there is none, and there will be no other.
    async fn next(&self) -> Option<Message> {
        loop {
            {
                let mut queue = self.queue.lock();
                if let Some(message) = queue.waiting.pop_front() {
                    queue.is_sending = true;
                    return Some(message);
                }
                if queue.is_closed {
                    return None;
                }
            }
            self.news.notified().await;
        }
    }

    /// Puts a message that could not be sent back before the others, unless a newer one tells all of it. Returns whether
    /// it is tried again.
    fn put_back(&self, message: Message) -> bool {
        let mut queue = self.queue.lock();
        queue.is_sending = false;
        if !(message.replaces && queue.waiting.iter().any(|later| later.replaces)) {
            queue.waiting.push_front(message);
        }
        !queue.is_closed
    }
}

/// Sends what comes through a queue, in its order, until nobody can put anything into it.
async fn run(receiver: Arc<Receiver>, client: Client<Connector, Full<Bytes>>) {
    let Patience { first_pause, .. } = receiver.patience;
    let mut pause = first_pause;
    while let Some(message) = receiver.next().await {
        let sent = receiver.attempt(&client, &message.body).await;
        receiver.note(&sent);
        if !matches!(sent, Sent::Failed(_)) {
            receiver.queue.lock().is_sending = false;
            pause = first_pause;
            continue;
        }
        if !receiver.put_back(message) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Returns the wall clock's seconds since 1970.
fn now() -> u64 {
    SystemClock::wall_time(SystemClock::new().now()).as_nanos() / 1_000_000_000
}

fn told(status: StatusCode) -> String {
    format!("answered {}", status.as_u16())
}

/// Says why a request failed. The client's own words name no address.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text.chars().take(300).collect()
}

/// `t=…,v1=…`: the time, in seconds since 1970, and the HMAC-SHA256 of the time, a dot and the body, in hexadecimal. The
/// time is signed too, so a receiver that refuses old ones cannot be told again what was true once.
///
/// # Source
/// Stripe's scheme for webhooks.
fn signature(secret: &[u8], at: u64, body: &[u8]) -> String {
    format!("t={at},v1={}", hmac_sha256(secret, &[at.to_string().as_bytes(), b".", body]))
}

/// The HMAC-SHA256 of some parts, one after the other, in hexadecimal.
fn hmac_sha256(secret: &[u8], parts: &[&[u8]]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length works");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(feature = "tls")]
fn connector(is_encrypted: bool) -> Result<Connector, ReceiverError> {
    use hyper_rustls::ConfigBuilderExt as _;
    use rustls::{ClientConfig, RootCertStore};

    let wrong = |why: String| ReceiverError(format!("server.sight.alerts: no TLS to receivers: {why}"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?;
    // The system's roots are only needed if somebody is asked over TLS.
    let builder = if is_encrypted {
        builder.with_native_roots().map_err(|error| wrong(error.to_string()))?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    let mut http = plain();
    http.enforce_http(false);
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(builder.with_no_client_auth())
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Ok(https)
}

#[cfg(not(feature = "tls"))]
fn connector(is_encrypted: bool) -> Result<Connector, ReceiverError> {
    if is_encrypted {
        let why = "server.sight.alerts: this build speaks no TLS; build it with the feature `tls`, or send to a loopback address";
        return Err(ReceiverError(why.to_owned()));
    }
    Ok(plain())
}

fn plain() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.set_connect_timeout(Some(CONNECTS_WITHIN));
    http
}

#[cfg(test)]
mod tests;
