//! Sends requests at preset times, so that a slow answer does not delay other requests.

#![allow(clippy::disallowed_methods, reason = "real programs are asked in real time")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tidegate::Tick;
use tidegate_lab::fleet::Demand;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The timeout of an answer, far beyond any deadline: a node may be suspended in between.
const PATIENCE: Duration = Duration::from_secs(20);

/// The most requests in flight to one node; further requests are not sent.
const AT_ONCE: usize = 2_000;

/// A request with its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The time of the answer.
    pub(crate) at: Tick,
    /// The latency.
    pub(crate) took: Duration,
    /// How much later than planned it was sent.
    pub(crate) late: Duration,
    /// Whether it was allowed; `None` without an answer.
    pub(crate) allowed: Option<bool>,
    /// The node that was asked.
    pub(crate) node: usize,
}

/// The load on the nodes.
pub(crate) struct Load {
    pub(crate) demand: Demand,
    /// The rate, in requests per second, that `demand` is a multiple of.
    pub(crate) rate: u64,
    pub(crate) nodes: Vec<SocketAddr>,
    /// Which nodes may be asked.
    pub(crate) running: Vec<AtomicBool>,
    /// The zero of all times.
    pub(crate) begun: Instant,
    /// Whether the run is over.
    pub(crate) over: AtomicBool,
}

impl Load {
    /// Sends requests until the run is over. Returns them in the order of their answers.
    pub(crate) async fn run(self: Arc<Self>) -> Vec<Asked> {
        let mut nodes = JoinSet::new();
        for node in 0..self.nodes.len() {
            nodes.spawn(Arc::clone(&self).ask_node(node));
        }
        let mut all: Vec<Asked> = nodes.join_all().await.into_iter().flatten().collect();
        all.sort_by_key(|asked| asked.at);
        all
    }

    async fn ask_node(self: Arc<Self>, node: usize) -> Vec<Asked> {
        let caller = Arc::new(Caller { addr: self.nodes[node], idle: Mutex::default() });
        let (mut asks, mut done) = (JoinSet::new(), Vec::new());
        // Spread the nodes over different milliseconds.
        let mut due = self.begun.elapsed() + Duration::from_micros(700) * u32::try_from(node).unwrap_or(0);
        while !self.over.load(Ordering::Relaxed) {
            let times = self.demand.at(node, self.nodes.len(), due);
            let gap = match times * self.rate as f64 {
                per_second if per_second > 1.0 => Duration::from_secs_f64(1.0 / per_second),
                _ => Duration::from_millis(20),
            };
            tokio::time::sleep_until((self.begun + due).into()).await;
            let asks_now = times > 0.0 && self.running[node].load(Ordering::Relaxed);
            if asks_now && asks.len() < AT_ONCE {
                let (begun, late) = (self.begun, self.begun.elapsed().saturating_sub(due));
                let caller = Arc::clone(&caller);
                asks.spawn(async move {
                    let sent = begun.elapsed();
                    let answer = tokio::time::timeout(PATIENCE, caller.ask()).await;
                    let at = begun.elapsed();
                    let tick = Tick::from_nanos(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
                    Asked { at: tick, took: at - sent, late, allowed: answer.ok().flatten(), node }
                });
            }
            while let Some(one) = asks.try_join_next() {
                done.extend(one);
            }
            due += gap;
        }
        done.extend(asks.join_all().await);
        done
    }
}

/// Persistent connections to one node.
struct Caller {
    addr: SocketAddr,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Caller {
    /// Asks for one unit; `None` if the node does not decide.
    async fn ask(&self) -> Option<bool> {
        let kept = loop {
            let kept = self.idle.lock().pop();
            if kept.as_ref().is_none_or(|kept| !kept.is_closed()) {
                break kept;
            }
        };
        let mut sender = match kept {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(self.addr).await.ok()?;
                stream.set_nodelay(true).ok()?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
                tokio::spawn(connection);
                sender
            }
        };
        sender.ready().await.ok()?;
        let request = Request::post("/v1/check").header("host", "localhost");
        let body = Full::new(Bytes::from_static(b"{\"attributes\": {}}"));
        let answer = sender.send_request(request.body(body).ok()?).await.ok()?;
        let status = answer.status();
        answer.into_body().collect().await.ok()?;
        self.idle.lock().push(sender);
        match status {
            StatusCode::OK => Some(true),
            StatusCode::TOO_MANY_REQUESTS => Some(false),
            _ => None,
        }
    }
}
