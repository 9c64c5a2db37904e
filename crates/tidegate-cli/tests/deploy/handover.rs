//! Restarts of the program with its socket kept open: clients behind a real nginx or a real Envoy must not notice.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::deploy::envoy::Envoy;
use crate::deploy::proxy::Proxy;
use crate::deploy::raw::ask;
use crate::deploy::serving::{Desk, Serving, end_of, signal};
use crate::deploy::waiting::{PATIENCE, within};

const POLICIES: &str = "version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 1000000/s }
";
/// The number of restarts under load, and of answers between two of them.
const RESTARTS: usize = 5;
const BETWEEN: usize = 100;
const CLIENTS: usize = 4;

/// Returns the program as the service manager starts it: with the socket as file descriptor 3, and its own process
/// id.
fn handing_over(desk: &Desk, socket: OwnedFd, doors: &[&str]) -> Command {
    let hand_over =
        "exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" serve \"$@\" -c p.yaml";
    let mut command = desk.shell(hand_over);
    command.args(doors).stdin(Stdio::from(socket));
    command
}

fn start(desk: &Desk, socket: OwnedFd, doors: &[&str]) -> Serving {
    Serving::start(handing_over(desk, socket, doors))
}

/// Stops the program as the service manager does. Waits until it has answered all requests in progress.
fn stop(serving: &mut Serving) {
    serving.signal("TERM");
    let ended = end_of(&mut serving.child);
    assert!(ended.success(), "{ended:?}");
}

/// Restarts the program under load: four clients request `path` from a proxy that uses the door at the socket. All
/// must be answered. Returns the last server.
fn restarted_under_load(
    desk: &Desk,
    mut serving: Serving,
    socket: &TcpListener,
    doors: &[&str],
    proxy: SocketAddr,
    path: &str,
) -> Serving {
    let (over, answered, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let load = || {
        while !over.load(Ordering::Relaxed) {
            let answer = ask(proxy, "GET", path, &[("host", "example.org")], b"");
            let counted = if answer.status == 200 { &answered } else { &failed };
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let more_answers = |since: usize| {
        within(PATIENCE, "answers", || {
            answered.load(Ordering::Relaxed) + failed.load(Ordering::Relaxed) >= since + BETWEEN
        });
    };
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(load);
        }
        for _ in 0..RESTARTS {
            more_answers(answered.load(Ordering::Relaxed));
            stop(&mut serving);
            // No process accepts now, but connections are not refused.
            assert!(TcpStream::connect(socket.local_addr().unwrap()).is_ok());
            serving = start(desk, socket.try_clone().unwrap().into(), doors);
        }
        more_answers(answered.load(Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
    });
    let (answered, failed) = (answered.into_inner(), failed.into_inner());
    assert_eq!(failed, 0, "of {answered}");
    assert!(answered >= RESTARTS * BETWEEN);
    serving
}

#[test]
fn nobody_behind_nginx_notices_that_the_program_is_started_anew() {
    let desk = Desk::with(POLICIES);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let http = addr.to_string();
    let doors = ["--http", &http];
    let serving = start(&desk, socket.try_clone().unwrap().into(), &doors);
    let Some(nginx) = Proxy::nginx(addr) else { return };
    stop(&mut restarted_under_load(&desk, serving, &socket, &doors, nginx.addr, "/api/thing"));
}

/// Envoy answers 500 to each call without a decision: its filter is configured so (`failure_mode_deny`).
#[test]
fn nobody_behind_envoy_notices_that_the_program_is_started_anew() {
    let desk = Desk::with(POLICIES);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let grpc = socket.local_addr().unwrap();
    let addr = grpc.to_string();
    let doors = ["--http", "127.0.0.1:0", "--grpc", &addr];
    let app = desk.serve(&[]);
    let Some(envoy) = Envoy::start(grpc, app.addr) else { return };
    let serving = start(&desk, socket.try_clone().unwrap().into(), &doors);
    let mut last = restarted_under_load(&desk, serving, &socket, &doors, envoy.addr, "/livez");
    let metrics = last.get("/metrics").body;
    let asked = "tidegate_decision_duration_seconds_count{transport=\"grpc\"} ";
    let asked: usize = metrics.lines().find_map(|line| line.strip_prefix(asked)).unwrap().parse().unwrap();
    assert!(asked >= BETWEEN, "Envoy has asked {asked} times");
    stop(&mut last);
}

#[test]
fn a_socket_in_the_file_system_stays_for_whoever_bound_it() {
    let desk = Desk::with(POLICIES);
    let path = desk.path("http");
    let socket = UnixListener::bind(&path).unwrap();
    let http = format!("unix:{}", path.display());
    for _ in 0..2 {
        stop(&mut start(&desk, socket.try_clone().unwrap().into(), &["--http", &http]));
        assert!(path.exists(), "it is not the program's");
    }
}

#[test]
fn a_socket_that_is_nobodys_is_told_and_the_door_binds_its_own() {
    let desk = Desk::with(POLICIES);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let log = desk.path("log");
    let mut command = handing_over(&desk, socket.into(), &["--http", "127.0.0.1:0"]);
    let mut child = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    within(PATIENCE, "the greeting", || said().contains("tidegate serves"));
    signal(&child, "TERM");
    assert!(end_of(&mut child).success());
    let said = said();
    assert!(said.contains("no door is configured for") && said.contains(&addr.to_string()), "{said}");
    assert!(!said.contains(&format!("on http://{addr}")), "{said}");
}
