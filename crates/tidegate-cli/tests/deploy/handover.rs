//! The socket that is kept while the program is started anew: nobody behind a real nginx notices.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::proxy::Proxy;
use crate::raw::ask;
use crate::serving::{Desk, Serving, end_of, signal};
use crate::waiting::{PATIENCE, within};

const POLICIES: &str = "version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 1000000/s }
";
/// Restarts under load, and how many answers come between two of them.
const RESTARTS: usize = 5;
const BETWEEN: usize = 100;
const CLIENTS: usize = 4;

/// The program as the service manager starts it: with the socket as its file 3, and its own process named.
fn handing_over(desk: &Desk, socket: OwnedFd, http: &str) -> Command {
    let hand_over =
        "exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" serve --http \"$1\" -c p.yaml";
    let mut command = desk.shell(hand_over);
    command.arg(http).stdin(Stdio::from(socket));
    command
}

fn start(desk: &Desk, socket: OwnedFd, http: &str) -> Serving {
    Serving::start(handing_over(desk, socket, http))
}

/// Stops it as the service manager does, and waits until it has answered what it had begun.
fn stop(serving: &mut Serving) {
    serving.signal("TERM");
    let ended = end_of(&mut serving.child);
    assert!(ended.success(), "{ended:?}");
}

#[test]
fn nobody_behind_nginx_notices_that_the_program_is_started_anew() {
    let desk = Desk::with(POLICIES);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let handed = || socket.try_clone().unwrap().into();
    let mut serving = start(&desk, handed(), &addr.to_string());
    let Some(nginx) = Proxy::nginx(addr) else { return };
    let (over, answered, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let load = || {
        while !over.load(Ordering::Relaxed) {
            let answer = ask(nginx.addr, "GET", "/api/thing", &[("host", "example.org")], b"");
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
            // Nobody accepts now, and nobody is refused.
            assert!(TcpStream::connect(addr).is_ok());
            serving = start(&desk, handed(), &addr.to_string());
        }
        more_answers(answered.load(Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
    });
    let (answered, failed) = (answered.into_inner(), failed.into_inner());
    assert_eq!(failed, 0, "of {answered}");
    assert!(answered >= RESTARTS * BETWEEN);
    stop(&mut serving);
}

#[test]
fn a_socket_in_the_file_system_stays_for_whoever_bound_it() {
    let desk = Desk::with(POLICIES);
    let path = desk.path("http");
    let socket = UnixListener::bind(&path).unwrap();
    let http = format!("unix:{}", path.display());
    for _ in 0..2 {
        stop(&mut start(&desk, socket.try_clone().unwrap().into(), &http));
        assert!(path.exists(), "it is not the program's");
    }
}

#[test]
fn a_socket_that_is_nobodys_is_told_and_the_door_binds_its_own() {
    let desk = Desk::with(POLICIES);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let log = desk.path("log");
    let mut command = handing_over(&desk, socket.into(), "127.0.0.1:0");
    let mut child = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    within(PATIENCE, "the greeting", || said().contains("tidegate serves"));
    signal(&child, "TERM");
    assert!(end_of(&mut child).success());
    let said = said();
    assert!(said.contains("no door is configured for") && said.contains(&addr.to_string()), "{said}");
    assert!(!said.contains(&format!("on http://{addr}")), "{said}");
}
