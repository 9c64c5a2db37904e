//! A real etcd server for tests.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Process, folder, program};
use crate::waiting::{free_port, within};

/// An etcd of one member on a port of loopback.
#[derive(Debug)]
pub struct EtcdServer {
    process: Process,
    addr: SocketAddr,
    url: String,
}

impl EtcdServer {
    /// Starts a server with command-line options; `None` to skip the test, because etcd is not installed.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(options: &[&str]) -> Option<Self> {
        Self::started("http", folder(), options)
    }

    /// Starts a server that speaks TLS with a self-signed certificate, and returns the certificate too, in PEM.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_secure() -> Option<(Self, Vec<u8>)> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a name");
        let folder = folder();
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).expect("the folder is the test's own");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("the folder is the test's own");
        let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
        let options = ["--cert-file", &*certificate, "--key-file", &*key];
        let server = Self::started("https", folder, &options)?;
        Some((server, made.cert.pem().into_bytes()))
    }

    fn started(scheme: &str, folder: TempDir, options: &[&str]) -> Option<Self> {
        let program = program("etcd", "etcd-server")?;
        let addr: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let (url, peers) = (format!("{scheme}://{addr}"), format!("http://127.0.0.1:{}", free_port()));
        let mut command = Command::new(program);
        command
            .args(["--name", "one", "--initial-cluster", &format!("one={peers}"), "--data-dir"])
            .arg(folder.path().join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(options)
            .env_remove("ETCD_DATA_DIR");
        let server = Self { process: Process::start(command, folder), addr, url };
        server.until_up();
        Some(server)
    }

    fn until_up(&self) {
        within("etcd listens", || TcpStream::connect(self.addr).is_ok());
    }

    /// Starts it again after [`EtcdServer::kill`], with its data on disk.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.until_up();
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns its address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns its URL for clients.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the output of `etcdctl`.
    ///
    /// # Panics
    /// If the command fails.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url]).args(arguments);
        let output = command.output().expect("etcdctl comes with etcd: apt-get install etcd-client");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends it a signal; see [`Process::signal`].
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }
}
