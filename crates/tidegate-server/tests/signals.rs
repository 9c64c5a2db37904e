//! Signals and the service manager. The server runs in its own process: the test binary starts itself again.

#![cfg(unix)]

use crate::running;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use tidegate_server::{Server, ServerOptions, Source};

const FILE: &str = "
version: 1
policies:
  - name: all
    limit: { rate: 10/min }
";
/// Set in the server's process: the path of the policy file.
const SERVE: &str = "TIDEGATE_TEST_SERVE";

/// Also set there if every read after the first is to hang forever.
const HANG: &str = "TIDEGATE_TEST_HANG";

/// A source that reads a file once and never returns from its second read, as on a file system whose server is gone.
fn hanging(file: &Path) -> Source {
    let file = file.to_owned();
    let first = AtomicBool::new(true);
    Source::new(move || {
        if !first.swap(false, Ordering::Relaxed) {
            println!("\nhanging");
            loop {
                std::thread::park();
            }
        }
        let (config, _) = tidegate::config::Config::read(&file).unwrap();
        Ok(config.into())
    })
}

/// Not a test of its own: runs the server when the test binary is started as one.
#[test]
fn server_process() {
    let Some(file) = std::env::var_os(SERVE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let stopped = runtime.block_on(async {
        let mut options = ServerOptions::default();
        options.http = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        options.drain = Duration::from_secs(3600);
        let file = Path::new(&file);
        let source = if std::env::var_os(HANG).is_some() { hanging(file) } else { Source::file(file) };
        let server = Server::bind(options, source).await.unwrap();
        println!("\nlistening {}", server.local_addr());
        server.run().await
    });
    println!("\n{stopped:?}");
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    addr: SocketAddr,
}

fn start(file: &Path, notify: Option<&Path>) -> Process {
    start_with(file, notify, false)
}

fn start_with(file: &Path, notify: Option<&Path>, hang: bool) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "signals::server_process", "--nocapture"])
        .env(SERVE, file)
        .stdout(Stdio::piped());
    command.env_remove("NOTIFY_SOCKET").env_remove(HANG);
    if hang {
        command.env(HANG, "1");
    }
    if let Some(socket) = notify {
        command.env("NOTIFY_SOCKET", socket);
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let addr = loop {
        let line = lines.next().expect("the server says where it listens").unwrap();
        if let Some(addr) = line.strip_prefix("listening ") {
            break addr.parse().unwrap();
        }
    };
    Process { child, lines, addr }
}

impl Process {
    fn says(&mut self, words: &str) {
        let line = self.lines.find(|line| line.as_ref().is_ok_and(|line| line == words));
        assert!(line.is_some(), "the server says `{words}`");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn end(mut self) -> String {
        let rest: Vec<_> = self.lines.map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        rest.join("\n")
    }
}

#[tokio::test]
async fn hangup_reloads_and_terminate_stops_as_systemd_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("tidegate.yaml"), dir.path().join("notify"));
    std::fs::write(&file, FILE).unwrap();
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let told = || {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    let server = start(&file, Some(&socket));
    assert_eq!(told(), "READY=1");
    server.signal("HUP");
    let reloading = told();
    let (state, time) = reloading.split_once('\n').unwrap();
    assert_eq!(state, "RELOADING=1");
    assert!(time.strip_prefix("MONOTONIC_USEC=").unwrap().parse::<u64>().unwrap() > 0, "{time}");
    assert_eq!(told(), "READY=1");
    let policies = running::send(server.addr, Method::GET, "/v1/policies", &[], "").await.json();
    assert_eq!(policies["config"]["number"], 2);
    server.signal("TERM");
    assert_eq!(told(), "STOPPING=1");
    assert!(server.end().contains("Drained"));
}

#[tokio::test]
async fn a_second_signal_leaves_at_once() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, FILE).unwrap();
    let server = start(&file, None);
    let mut hanging = std::net::TcpStream::connect(server.addr).unwrap();
    hanging.write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{").unwrap();
    running::until("the head has arrived", async || {
        let ready = running::send(server.addr, Method::GET, "/readyz?verbose", &[], "").await;
        ready.text.contains("[+] 1 requests in flight")
    })
    .await;
    server.signal("INT");
    running::until("it drains", async || tokio::net::TcpStream::connect(server.addr).await.is_err()).await;
    server.signal("INT");
    assert!(server.end().contains("Cut { connections: "));
}

/// Regression: a hanging reload blocked signals, so the server could be stopped only by killing it.
#[tokio::test]
async fn a_reload_that_hangs_keeps_no_signal_from_being_heard() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, FILE).unwrap();
    let mut server = start_with(&file, None, true);
    server.signal("HUP");
    server.says("hanging");
    // Further reloads do not wait.
    server.signal("HUP");
    let answer = running::send(server.addr, Method::POST, "/v1/check", &[], "{\"attributes\": {}}").await;
    assert_eq!(answer.status, http::StatusCode::OK);
    server.signal("TERM");
    running::until("it drains", async || tokio::net::TcpStream::connect(server.addr).await.is_err()).await;
    server.signal("TERM");
    assert!(!server.end().is_empty());
}

/// Regression: a hanging service manager kept the server from starting, since its queue was full.
#[tokio::test]
async fn a_service_manager_that_hangs_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("tidegate.yaml"), dir.path().join("notify"));
    std::fs::write(&file, FILE).unwrap();
    let _manager = UnixDatagram::bind(&socket).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send_to(b"x", &socket).is_ok() {}
    let server = start(&file, Some(&socket));
    let answer = running::send(server.addr, Method::POST, "/v1/reload", &[], "").await;
    assert_eq!(answer.status, http::StatusCode::OK);
    server.signal("TERM");
    assert!(server.end().contains("Drained"));
}
