//! Real nginx and real Caddy in front of a small site, with the blocks that the manual prints, asking a running server about
//! each request.
//!
//! Needs the Debian packages `nginx` and `caddy`. Where one is missing its test says so and skips, unless
//! `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(unix)]

mod running;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::{Method, StatusCode};
use running::{Answer, Running, send, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

const FILE: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.1] }
access: { deny: [127.0.0.66] }
policies:
  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { rate: 2/min }
";

/// A proxy that is stopped when the test ends, however it ends.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        // SIGTERM by its own id, so that a master takes its workers along; killing it would leave them.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Says whether a program is there; says so when it is not.
fn there(program: &str) -> bool {
    let version = if program == "caddy" { "version" } else { "-v" };
    let asked = Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = asked.is_ok();
    if !found {
        let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{program} is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install {program}"
        );
        eprintln!("SKIPPED: {program} is not installed; apt-get install {program}");
    }
    found
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Returns the first code block of the manual that begins with these words, with this stand's addresses in place of its own.
#[track_caller]
fn manual(begins: &str, words: &[(&str, String)]) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-api.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut blocks = page.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let block = blocks.find(|(_, text)| text.starts_with(begins));
    let (_, text) = block.unwrap_or_else(|| panic!("the manual has no block that begins with `{begins}`"));
    words.iter().fold(text.to_owned(), |text, (manuals, ours)| {
        assert!(text.contains(manuals), "the manual's block no longer says `{manuals}`:\n{text}");
        text.replace(manuals, ours)
    })
}

/// The policies, for a server that this proxy asks.
fn asked_by(proxy: &str) -> String {
    FILE.replacen("version: 1\n", &format!("version: 1\nforward_auth: {{ proxy: {proxy} }}\n"), 1)
}

async fn up(port: u16) -> SocketAddr {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    running::until("the proxy listens", async || tokio::net::TcpStream::connect(addr).await.is_ok()).await;
    addr
}

fn site(dir: &Path) {
    std::fs::create_dir_all(dir.join("site/api")).unwrap();
    std::fs::write(dir.join("site/index.html"), "the front page").unwrap();
    std::fs::write(dir.join("site/api/thing"), "a thing").unwrap();
}

/// Asks from another address of this machine, with these bytes as `X-Forwarded-For`; returns the status.
async fn status_from(client: [u8; 4], proxy: SocketAddr, forwarded: &[u8]) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((client, 0))).unwrap();
    let mut stream = socket.connect(proxy).await.unwrap();
    let head = b"GET /api/thing HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\nX-Forwarded-For: ";
    stream.write_all(&[head, forwarded, b"\r\n\r\n"].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).into_owned();
    status.parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&answer)))
}

/// A caller who writes into `X-Forwarded-For` was taken for the proxy: off every deny-list, under nobody's limit.
async fn nobody_is_taken_for_the_proxy(proxy: SocketAddr, barred: u16) {
    let written: [&[u8]; 9] = [
        b"",
        b"\xff",
        b"\xff, 9.9.9.9",
        b"unknown",
        b",,,",
        b"127.0.0.1",
        b"9.9.9.9, 127.0.0.1",
        b"\"9.9.9.9",
        &[b','; 4000],
    ];
    for forwarded in written {
        let status = status_from([127, 0, 0, 66], proxy, forwarded).await;
        assert_eq!(status, barred, "{}", forwarded.escape_ascii());
    }
    for (at, forwarded) in written.into_iter().enumerate() {
        let status = status_from([127, 0, 0, 7], proxy, forwarded).await;
        assert_eq!(status, if at < 2 { 200 } else { 429 }, "{}", forwarded.escape_ascii());
    }
    assert_eq!(status_from([127, 0, 0, 8], proxy, b"127.0.0.7").await, 200, "nobody spends another's limit");
}

async fn get(addr: SocketAddr, path: &str) -> Answer {
    send(addr, Method::GET, path, &[("host", "example.org")], "").await
}

/// What both proxies must do: let two through, refuse the third with a time, leave other paths alone.
async fn limits(server: &Running, addr: SocketAddr, refused: StatusCode) {
    for _ in 0..2 {
        let passed = get(addr, "/api/thing?q=1").await;
        assert_eq!((passed.status, passed.text.as_str()), (StatusCode::OK, "a thing"));
    }
    let denied = get(addr, "/api/thing").await;
    assert_eq!(denied.status, refused, "{denied:?}");
    assert_eq!(denied.header("retry-after"), "30", "{denied:?}");
    assert!(!denied.text.contains("a thing"));
    assert_eq!(get(addr, "/api/%74hing").await.status, refused, "another spelling of the path");
    assert_eq!(get(addr, "/index.html").await.text, "the front page");
    let top = server.get("/v1/keys/top?reveal=true").await.json();
    assert_eq!(top["keys"][0]["key"], "client.ip=127.0.0.1");
    server.clock.advance(std::time::Duration::from_secs(30));
    assert_eq!(get(addr, "/api/thing").await.status, StatusCode::OK, "after the time told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_asks_and_obeys() {
    if !there("nginx") {
        return;
    }
    let server = start(&asked_by("nginx")).await;
    let dir = tempfile::tempdir().unwrap();
    site(dir.path());
    std::fs::create_dir(dir.path().join("logs")).unwrap();
    let port = free_port();
    let (prefix, tidegate) = (dir.path().display(), server.addr);
    let block = manual(
        "http {",
        &[
            ("server 127.0.0.1:8080;", format!("server {tidegate};")),
            ("listen 80;", format!("listen 127.0.0.1:{port};")),
            ("root /srv/site;", format!("root {prefix}/site;")),
        ],
    );
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {prefix}/{kind};"))
        .join(" ");
    let block = block.replacen(
        "http {",
        &format!("http {{ access_log off; types {{ }} default_type text/plain; {folders}"),
        1,
    );
    let config = format!(
        "daemon off; master_process off; pid {prefix}/nginx.pid; error_log {prefix}/logs/error.log;\n\
         events {{ worker_connections 64; }}\n{block}"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let nginx =
        Command::new("nginx").arg("-p").arg(dir.path()).arg("-c").arg(&file).stderr(Stdio::null()).spawn();
    let _nginx = Proxy(nginx.unwrap());
    let addr = up(port).await;
    limits(&server, addr, StatusCode::TOO_MANY_REQUESTS).await;
    assert!(get(addr, "/api/thing").await.header("ratelimit").starts_with("\"per-ip\";r=0;t="));
    // The block's `error_page` makes 429 of every 403.
    nobody_is_taken_for_the_proxy(addr, 429).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_asks_and_obeys() {
    if !there("caddy") {
        return;
    }
    let server = start(&asked_by("caddy")).await;
    let dir = tempfile::tempdir().unwrap();
    site(dir.path());
    let port = free_port();
    let block = manual(
        "example.org {",
        &[
            ("example.org {", format!("http://example.org:{port} {{\n  bind 127.0.0.1")),
            ("127.0.0.1:8080", server.addr.to_string()),
            ("/srv/site", dir.path().join("site").display().to_string()),
        ],
    );
    let home = dir.path().join("caddy");
    let config =
        format!("{{\n  admin off\n  auto_https off\n  storage file_system {}\n}}\n{block}", home.display());
    let file = dir.path().join("Caddyfile");
    std::fs::write(&file, config).unwrap();
    let mut caddy = Command::new("caddy");
    caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file).env("HOME", dir.path());
    caddy.env("XDG_DATA_HOME", dir.path()).env("XDG_CONFIG_HOME", dir.path());
    let _caddy = Proxy(caddy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let addr = up(port).await;
    limits(&server, addr, StatusCode::TOO_MANY_REQUESTS).await;
    let denied = get(addr, "/api/thing").await;
    assert_eq!(denied.header("ratelimit"), "\"per-ip\";r=0;t=30");
    assert_eq!(denied.json()["violated-policies"][0], "per-ip", "the caller gets the whole answer");
    nobody_is_taken_for_the_proxy(addr, 403).await;
}
