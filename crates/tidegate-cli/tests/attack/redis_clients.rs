//! A stranger at the door for Redis clients: every input is answered or closed, and does not use up the limits of
//! others.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tidegate_testkit::free_port;

use crate::attack::raw::connect;
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving};
use crate::attack::waiting::{PATIENCE, within};

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [] }
store: { kind: memory, keys: 1000 }
policies:
  - name: per-user
    by: [user.id]
    limit: { rate: 5/day }
  - name: jobs
    match: { attributes: { kind: job } }
    limit: { algorithm: concurrency, max: 1, ttl: 1h }
  - name: witness
    by: [attack.witness]
    limit: { rate: 1000000/s }
";

/// Valid commands, to be cut, changed and mixed.
const COMMANDS: [&[u8]; 10] = [
    b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n9\r\n$1\r\n1\r\n$2\r\n60\r\n",
    b"CL.THROTTLE k 1152921504606846975 1 1152921504606846976 1152921504606846976\r\n",
    b"*4\r\n$8\r\nTG.CHECK\r\n$1\r\n*\r\n$7\r\nuser.id\r\n$1\r\n7\r\n",
    b"TG.CHECK * user.id 7 COST 18446744073709551615 PRIORITY sheddable/127 PEEK TICKET\r\n",
    b"TG.CHECK jobs kind job\r\n",
    b"TG.SETTLE AQEBAQEB COST 18446744073709551615 FAILED\r\n",
    b"TG.RESET per-user user.id 7\r\n",
    b"HELLO 3 AUTH default guess SETNAME x\r\n",
    b"AUTH guess\r\n",
    b"*-9223372036854775808\r\n*1\r\n$-1\r\n",
];

/// Starts a server with a door for Redis clients. Returns it with the door's address.
fn serve(desk: &Desk, more: &[&str]) -> (Serving, SocketAddr) {
    let resp = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let serving = desk.serve(&[&["--resp", &resp.to_string()], more].concat());
    (serving, resp)
}

/// Sends bytes, closes the sending side, and reads until the server closes.
pub(crate) fn said(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(to);
    let mut reading = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // A reset after the last reply does not invalidate it.
        let _ = reading.read_to_end(&mut said);
        said
    });
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    reader.join().unwrap()
}

/// Requires that replies follow the protocol: each begins with a known type.
fn are_replies(said: &[u8]) {
    for line in said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(1) {
        assert!(b"+-:$*_%".contains(&line[0]), "{}", said.escape_ascii());
    }
}

#[test]
fn whatever_bytes_are_sent_are_answered_or_closed() {
    let desk = Desk::with(FILE);
    let (mut serving, resp) = serve(&desk, &[]);
    let mut seed = Seed::printed("redis_bytes");
    for _ in 0..rounds(300, 30_000) {
        let mut bytes = Vec::new();
        for _ in 0..=seed.below(4) {
            let mut command = seed.one_of(&COMMANDS).to_vec();
            match seed.below(4) {
                0 => {}
                1 => command.truncate(seed.below(command.len())),
                2 => {
                    let at = seed.below(command.len());
                    command[at] = seed.bytes(1)[0];
                }
                _ => {
                    let length = seed.below(200);
                    command = seed.bytes(length);
                }
            }
            bytes.extend_from_slice(&command);
        }
        are_replies(&said(resp, &bytes));
    }
    for long in [
        vec![b'x'; 1 << 20],
        b"*1\r\n".repeat(1 << 16),
        b"\r\n".repeat(1 << 16),
        b"*140\r\n$0\r\n\r\n".to_vec(),
    ] {
        are_replies(&said(resp, &long));
    }
    serving.is_well();
    assert!(said(resp, b"PING\r\n").starts_with(b"+PONG\r\n"));
}

#[test]
fn whoever_leaves_in_the_middle_of_a_command_leaves_nothing_behind() {
    let desk = Desk::with(FILE);
    let (mut serving, resp) = serve(&desk, &["--connections", "8"]);
    let whole = COMMANDS[2];
    for cut in 1..whole.len() {
        let mut stream = connect(resp);
        stream.write_all(&whole[..cut]).unwrap();
        drop(stream);
    }
    assert!(said(resp, b"PING\r\n").starts_with(b"+PONG\r\n"));
    serving.is_well();
}

/// Half commands and idle clients take all places, from one address or many: a newcomer must be served all the same.
#[test]
fn clients_that_only_wait_keep_nobody_out() {
    let desk = Desk::with(FILE);
    let (mut serving, resp) = serve(&desk, &["--connections", "16"]);
    let waiting: Vec<TcpStream> = (0..rounds(60, 2000))
        .map(|at| {
            let mut stream = connect(resp);
            let begin: &[u8] = if at % 2 == 0 { b"*3\r\n$8\r\nTG.CH" } else { b"PING\r\n" };
            // Earlier connections may have been closed by now.
            let _ = stream.write_all(begin);
            stream
        })
        .collect();
    within(PATIENCE, "a newcomer is served", || said(resp, b"PING\r\n").starts_with(b"+PONG\r\n"));
    serving.is_well();
    drop(waiting);
}

/// If a client does not read its replies, they are bounded, and so is what is read from it.
#[test]
fn a_client_that_never_reads_costs_no_memory() {
    let desk = Desk::with(FILE);
    let (mut serving, resp) = serve(&desk, &[]);
    said(resp, b"PING\r\n");
    let before = serving.resident();
    let line = format!("ECHO {}\r\n", "x".repeat(60_000));
    let deaf: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = connect(resp);
            stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            while stream.write_all(line.as_bytes()).is_ok() {}
            stream
        })
        .collect();
    let more = serving.resident().saturating_sub(before);
    assert!(more < 8 * 1024, "{more} KiB for {} clients", deaf.len());
    serving.is_well();
}

/// A capacity of a thousand keys, and a caller who brings limits for ever new keys: the debtors of policies must be
/// kept.
#[test]
fn limits_that_a_caller_brings_free_no_debtor_of_a_policy() {
    let desk = Desk::with(FILE);
    let (mut serving, resp) = serve(&desk, &[]);
    let users: Vec<String> = (0..10).map(|user| format!("user-{user}")).collect();
    for user in &users {
        let statuses: Vec<u16> = (0..6).map(|_| serving.check("user.id", user).status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    }
    let keys = rounds(20_000, 200_000);
    let flood: String = (0..keys).map(|key| format!("CL.THROTTLE key-{key} 0 1 86400\r\n")).collect();
    let replies = said(resp, flood.as_bytes());
    let answered = replies.split(|byte| *byte == b'\n').filter(|line| line == b"*5\r").count();
    assert_eq!(answered, keys, "each is answered");
    let free = users.iter().filter(|user| serving.check("user.id", user).status != 429);
    assert_eq!(free.count(), 0, "debtors that the flood set free");
    serving.is_well();
}

/// A caller without the token learns nothing and changes nothing.
#[test]
fn without_the_token_nothing_is_decided() {
    let desk = Desk::with(FILE);
    std::fs::write(desk.path("token"), "a-token-nobody-guesses\n").unwrap();
    let (mut serving, resp) = serve(&desk, &["--token-file", "token"]);
    let mut seed = Seed::printed("redis_token");
    for _ in 0..rounds(20, 5000) {
        let guess: String =
            (0..=seed.below(30)).map(|_| *seed.one_of(&['a', '-', 't', 'k', 'n', 'o', 'e'])).collect();
        let ask = format!(
            "AUTH {guess}\r\nHELLO 3 AUTH default {guess}\r\nTG.CHECK per-user user.id 1\r\nINFO\r\n"
        );
        let said = String::from_utf8(said(resp, ask.as_bytes())).unwrap();
        assert!(
            said.lines().all(|line| line.starts_with("-WRONGPASS") || line.starts_with("-NOAUTH")),
            "{guess}: {said}"
        );
    }
    assert_eq!(serving.child.try_wait().unwrap(), None);
    let asked = said(resp, b"AUTH a-token-nobody-guesses\r\nTG.CHECK per-user user.id 1\r\n");
    assert!(asked.starts_with(b"+OK\r\n*8\r\n:1\r\n$8\r\nper-user\r\n:4\r\n"), "{}", asked.escape_ascii());
}
