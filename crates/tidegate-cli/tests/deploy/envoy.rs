//! A real Envoy with the manual's configuration, including its advice on restarts.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use tidegate_testkit::{free_port, python_program};

use crate::deploy::waiting::{PATIENCE, within};

/// Envoy in front of a program. Killed when dropped, so that a failed test does not leave it behind.
pub(crate) struct Envoy {
    child: Child,
    pub(crate) addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the manual's configuration with the lines from its section on restarts.
fn configuration() -> String {
    let page = include_str!("../../../../docs/envoy.md");
    let block = |begin: &str| page[page.find(begin).unwrap()..].split("```").next().unwrap();
    let mut text = block("# envoy.yaml").to_owned();
    for line in block("# in place of the filter's own").lines().skip(1) {
        let key = line.split_inclusive(':').next().unwrap();
        let from =
            text.find(&format!(" {key} ")).unwrap_or_else(|| panic!("{key} is not in the configuration")) + 1;
        let to = from + text[from..].find('\n').unwrap();
        text.replace_range(from..to, line);
    }
    text
}

impl Envoy {
    /// Starts Envoy in front of `app`, with `grpc` as its rate limit service. `None` if it is not installed.
    pub(crate) fn start(grpc: SocketAddr, app: SocketAddr) -> Option<Self> {
        let program = python_program("envoy")?;
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut text = configuration();
        for (of, to) in [(10_000, addr), (8081, grpc), (3000, app)] {
            let from = format!("port_value: {of} ");
            assert!(text.contains(&from), "{of}");
            text = text.replace(&from, &format!("port_value: {} ", to.port()));
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("envoy.yaml");
        std::fs::write(&file, text).unwrap();
        let child = Command::new(program)
            .args(["--concurrency", "1", "--log-level", "warn", "--use-dynamic-base-id", "-c"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let envoy = Self { child, addr, _dir: dir };
        within(PATIENCE, "Envoy listens", || TcpStream::connect(addr).is_ok());
        Some(envoy)
    }
}
