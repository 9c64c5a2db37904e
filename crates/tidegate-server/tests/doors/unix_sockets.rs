//! Doors on Unix sockets: permissions, stale sockets, and requests.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tidegate::config::Address;
use tidegate_server::{ServeError, Server, ServerHandle, ServerOptions, Source, Stopped};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

const FILE: &str = "
version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: p
    by: [client.ip]
    limit: { rate: 2/min }
";

/// A folder with a policy file, and with room for sockets.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        std::fs::write(desk.path("tidegate.yaml"), FILE).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self, name: &str) -> Address {
        format!("unix:{}", self.path(name).display()).parse().unwrap()
    }

    async fn bind(&self, options: ServerOptions) -> Result<Server, ServeError> {
        Server::bind(options, Source::file(self.path("tidegate.yaml"))).await
    }
}

fn options(http: Address) -> ServerOptions {
    let mut options = ServerOptions::default();
    (options.http, options.signals) = (http, false);
    options
}

fn run(server: Server) -> (ServerHandle, JoinHandle<Stopped>) {
    (server.handle(), tokio::spawn(server.run()))
}

/// Sends bytes, and reads until these words arrive.
async fn said(socket: &Path, bytes: &[u8], words: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while !text.contains(words) {
        let read = stream.read(&mut piece).await.unwrap();
        assert_ne!(read, 0, "closed after {text:?}");
        text += &String::from_utf8_lossy(&piece[..read]);
    }
    text
}

#[tokio::test]
async fn every_door_may_be_a_socket_and_its_file_goes_with_the_server() {
    let desk = Desk::new();
    let (http, resp) = (desk.path("http"), desk.path("resp"));
    let mut options = options(format!("unix:{},mode=660", http.display()).parse().unwrap());
    options.resp = Some(desk.socket("resp"));
    options.check_addresses().unwrap();
    assert!(!http.exists(), "looking leaves nothing behind");
    let (handle, task) = run(desk.bind(options).await.unwrap());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&http), mode(&resp)), (0o660, 0o600));

    let check = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 41\r\n\r\n{\"attributes\": {\"client.ip\": \"10.0.0.1\"}}";
    assert!(said(&http, check, "\"policies\"").await.starts_with("HTTP/1.1 200 OK\r\n"));
    // A proxy behind a socket is on this machine, so it is trusted like one at 127.0.0.1.
    let asked = b"GET /v1/forward-auth HTTP/1.1\r\nhost: t\r\nx-original-method: GET\r\nx-original-uri: /\r\nx-original-host: a\r\nx-forwarded-for: 10.0.0.2\r\n\r\n";
    for expected in ["HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 403"] {
        assert!(said(&http, asked, "\r\n\r\n").await.starts_with(expected), "{expected}");
    }
    assert!(said(&resp, b"TG.CHECK p client.ip 10.0.0.3\r\n", "*8").await.starts_with('*'));
    assert!(said(&resp, b"PING\r\n", "\r\n").await.starts_with("+PONG"));

    handle.stop();
    task.await.unwrap();
    assert!(!http.exists() && !resp.exists());
}

#[tokio::test]
async fn only_what_nobody_listens_on_is_taken_away() {
    let desk = Desk::new();
    let path = desk.path("s");
    // A killed program leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.metadata().unwrap().file_type().is_socket());
    let (handle, task) = run(desk.bind(options(desk.socket("s"))).await.unwrap());
    let health = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert!(said(&path, health, "ok\n").await.starts_with("HTTP/1.1 200"));

    // Another server listens there.
    let second = options(desk.socket("s"));
    let refused = second.check_addresses().unwrap_err();
    assert!(
        matches!(&refused, ServeError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse)
    );
    assert!(desk.bind(second).await.is_err());
    assert!(said(&path, health, "ok\n").await.starts_with("HTTP/1.1 200"), "it is served as before");

    // Another program has put a new socket in its place, which must not be removed.
    std::fs::remove_file(&path).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    handle.stop();
    task.await.unwrap();
    assert!(path.exists());
    drop(other);

    // A file that is not a socket stays, and so does the target of a link.
    let file = desk.path("tidegate.yaml");
    assert!(desk.bind(options(desk.socket("tidegate.yaml"))).await.is_err());
    std::os::unix::fs::symlink(&file, desk.path("link")).unwrap();
    assert!(desk.bind(options(desk.socket("link"))).await.is_err());
    assert!(std::fs::read_to_string(&file).unwrap().contains("version: 1"));
    assert!(desk.bind(options(desk.socket("no/such/folder"))).await.is_err());
}
