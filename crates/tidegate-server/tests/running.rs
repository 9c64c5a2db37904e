//! A real server on a free loopback port, with a clock that the test controls, and a client that uses real sockets.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod engine;
pub(crate) mod sight;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate::Tick;
use tidegate::clock::ManualClock;
use tidegate::config::{Config, Format};
use tidegate_server::{OpenStore, Server, ServerHandle, ServerOptions, Source, Stopped, open_store};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Midday of 15 January 2027, UTC.
pub(crate) const NOON: Tick = Tick::from_secs(1_800_014_400);

/// Two policies that refuse, each with its own answer, and one in shadow.
pub(crate) const TWO: &str = "
version: 1
policies:
  - name: shield
    limit: { rate: 10/min }
    deny: { status: 503 }
  - name: per-user
    by: [user.id]
    limit: { rate: 3/min }
  - name: trial
    mode: shadow
    by: [user.id]
    limit: { rate: 1/min }
";

/// A running server.
pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    pub(crate) clock: ManualClock,
    pub(crate) handle: ServerHandle,
    pub(crate) file: PathBuf,
    task: JoinHandle<Stopped>,
    _dir: tempfile::TempDir,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the ticket of an allowed check.
    pub(crate) fn ticket(&self) -> String {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        self.json()["ticket"].as_str().unwrap_or_else(|| panic!("no ticket: {self:?}")).to_owned()
    }

    pub(crate) fn detail(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        self.json()["detail"].as_str().unwrap().to_owned()
    }
}

/// Starts a server with this text as its policy file.
pub(crate) async fn start(yaml: &str) -> Running {
    start_with(yaml, |options| options).await
}

/// Starts a server with other options.
pub(crate) async fn start_with(yaml: &str, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, yaml).unwrap();
    let clock = ManualClock::at(NOON);
    let mut options = ServerOptions::default();
    options.http = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    options.clock = Arc::new(clock.clone());
    options.signals = false;
    let server = Server::bind(change(options), Source::file(&file)).await.unwrap();
    let (addr, handle) = (server.local_addr(), server.handle());
    let task = tokio::spawn(server.run());
    Running { addr, clock, handle, file, task, _dir: dir }
}

impl Running {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.addr, Method::GET, path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        send(self.addr, Method::POST, path, &[], body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &str) -> Answer {
        send(self.addr, Method::PUT, path, &[], body).await
    }

    pub(crate) async fn check(&self, ip: &str) -> Answer {
        self.post("/v1/check", &format!(r#"{{"attributes": {{"client.ip": "{ip}"}}}}"#)).await
    }

    pub(crate) fn write(&self, yaml: &str) {
        let beside = self.file.with_extension("new");
        std::fs::write(&beside, yaml).unwrap();
        std::fs::rename(beside, &self.file).unwrap();
    }

    pub(crate) async fn stopped(self) -> Stopped {
        tokio::time::timeout(Duration::from_secs(30), self.task).await.expect("the server stops").unwrap()
    }
}

/// A connection that is kept open.
pub(crate) struct Client {
    sender: hyper::client::conn::http1::SendRequest<Body>,
    authority: String,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, authority: addr.to_string() }
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> hyper::Result<Answer> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", &self.authority);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        let response = self.sender.send_request(request.body(body).unwrap()).await?;
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Ok(Answer { status: parts.status, headers: parts.headers, text })
    }
}

/// Sends one request on its own connection.
pub(crate) async fn send(
    addr: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut client = Client::connect(addr).await;
    client.send(method, path, headers, Body::from(body.to_owned())).await.unwrap()
}

/// Repeats until `holds` returns true; fails after half a minute.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Opens a store on disk in a folder.
pub(crate) async fn on_disk(folder: &Path) -> OpenStore {
    let file = format!("version: 1\nstore: {{ kind: disk, path: {} }}\npolicies: []\n", folder.display());
    let (config, _) = Config::parse(&file, "tidegate.yaml", Format::Yaml).unwrap();
    let clock = Arc::new(ManualClock::at(NOON));
    let http = ServerOptions::default().http;
    open_store(&config.store, None, &http, clock, Duration::from_secs(10)).await.unwrap()
}
