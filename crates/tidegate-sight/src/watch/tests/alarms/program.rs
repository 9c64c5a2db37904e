//! The real program under the traffic of a shop: for 330 seconds a scraper uses up the limit of a tenant, a bank fails
//! for 50 seconds, and somebody guesses passwords all the time. Receivers must be told of the tenant and the bank, and
//! not of the login.
//!
//! A server that has just begun knows neither what is usual nor who is a customer, and would tell of the bank alone. So
//! the program first serves calm traffic for three minutes. What it counted in the last whole minute is then the mean
//! of each minute of the four days before, which are written into its file by the history itself: the test is here
//! because no other crate can. After a start nobody is known to have passed a thousand times, so the tenant is told as
//! a policy that refuses more than usual.
//!
//! With `TIDEGATE_ALARMS=long`. Needs the program, built before: `cargo build --release -p tidegate-cli`.

#![allow(clippy::disallowed_methods, reason = "the real program is asked in real time")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_testkit::{built, folder, free_address, within};
use ureq::Agent;

use super::{TOLD_WITHIN, is_long, keep};
use crate::board::mixed;
use crate::history::{DAY, History, Step};
use crate::numbers::{Counts, Series, ServerCounts, ServerSeries, Span};
use crate::usual::tests::Random;
use crate::watch::now_ms;

/// How long calm traffic runs, so that a whole minute lies after the first failures of the login.
const CALM: Duration = Duration::from_secs(185);

/// How long the scenario runs, and how long after its end messages are waited for: a group waits for ten seconds.
const SCENARIO: Duration = Duration::from_secs(330);
const MORE: Duration = Duration::from_secs(30);

/// From when to when the scraper asks, and the bank fails, in seconds.
const SCRAPES: (f64, f64) = (20.0, 200.0);
const FAILS: (f64, f64) = (60.0, 110.0);

/// Days of the past.
const PAST: u64 = 4 * DAY;

const NAMES: [&str; 7] = ["everyone", "per-ip", "per-tenant", "login", "search", "reports", "bank"];

const POLICIES: &str = r"version: 1
server:
  http: HTTP
  admin: ADMIN
  sight: { alerts: { to: [{ alertmanager: 'http://TOLD' }, { webhook: 'http://TOLD/hook', secret_file: secret }] } }
client_ip: { trusted_proxies: [127.0.0.0/8] }
store: { kind: disk, path: data, keys: 100000 }
defaults: { mode: enforce, near_limit: 80% }
policies:
  - name: everyone
    limit: { algorithm: token-bucket, rate: 500/s, burst: 500 }
    deny: { status: 503 }
  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/s, burst: 20 }
    shadow_limit: { rate: 6/s }
  - name: per-tenant
    by: [tenant.id]
    limit: { algorithm: sliding-window, rate: { by: tenant.plan, values: { free: 120/min, pro: 600/min }, otherwise: 120/min } }
  - name: login
    match: { method: POST, path: /login }
    by: [client.ip, form.username]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
    deny: { problem: abnormal-usage-detected }
  - name: search
    match: { path: /api/search }
    limit: { algorithm: concurrency, max: 8, ttl: 5s }
  - name: reports
    mode: shadow
    match: { path: /api/report/** }
    by: [tenant.id]
    limit: { algorithm: gcra, rate: 1/s, burst: 5 }
  - name: bank
    match: { attributes: { upstream.name: bank } }
    by: [upstream.name]
    limit: { algorithm: breaker, failures: 50%, window: 10s, min_calls: 10, open_for: 5s }
";

/// The running program. Killed when dropped.
struct Program(Child);

impl Program {
    fn start(folder: &Path, addresses: [SocketAddr; 2]) -> Self {
        let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let mut command = Command::new(built("tidegate"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command.current_dir(folder).args(["serve", "-c", "shop.yaml", "--no-watch"]);
        let program = Self(command.stderr(log).spawn().unwrap());
        for address in addresses {
            within("tidegate serve listens", || TcpStream::connect(address).is_ok());
        }
        program
    }

    /// Stops it, and waits until it has written everything.
    fn stop(mut self) {
        let sent = Command::new("kill").args(["-s", "TERM", &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success() && self.0.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // After a successful test it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a receiver was sent.
#[derive(Debug)]
struct Sent {
    at: Duration,
    head: String,
    body: Value,
}

/// Takes what receivers are sent, and answers 200.
fn receiver(begun: Instant) -> (SocketAddr, Arc<Mutex<Vec<Sent>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let all = Arc::clone(&sent);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Some((head, body)) = read_request(stream) {
                all.lock().push(Sent { at: begun.elapsed(), head, body });
            }
        }
    });
    (address, sent)
}

/// Reads a request with a JSON body, and answers it. `None`: there was none.
fn read_request(mut stream: TcpStream) -> Option<(String, Value)> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let mut body = vec![0; length.trim().parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Visitor,
    Scraper,
    LargeTenant,
    Guesser,
    Bank,
    Search,
}

/// Who asks, and how often a second.
const SENDERS: [(Kind, f64); 9] = [
    (Kind::Visitor, 50.0),
    (Kind::Scraper, 25.0),
    (Kind::LargeTenant, 8.5),
    (Kind::Guesser, 0.5),
    (Kind::Bank, 5.0),
    (Kind::Search, 3.0),
    (Kind::Search, 3.0),
    (Kind::Search, 3.0),
    (Kind::Search, 3.0),
];

/// The traffic. It ends when it is dropped.
struct Traffic {
    ends: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

/// What a sender knows.
struct Sender {
    http: SocketAddr,
    begun: Instant,
    ends: Arc<AtomicBool>,
    /// Nothing goes wrong.
    is_calm: bool,
}

impl Traffic {
    fn start(http: SocketAddr, is_calm: bool) -> (Self, Instant) {
        let (begun, ends) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let send = |(seed, (kind, rate)): (u64, (Kind, f64))| {
            let sender = Sender { http, begun, ends: Arc::clone(&ends), is_calm };
            thread::spawn(move || sender.send_all(kind, rate, &mut Random(mixed(seed))))
        };
        let senders = (1..).zip(SENDERS).map(send).collect();
        (Self { ends, senders }, begun)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.senders.drain(..).for_each(|sender| drop(sender.join()));
    }
}

impl Sender {
    fn is_now(&self, (from, to): (f64, f64)) -> bool {
        !self.is_calm && (from..to).contains(&self.begun.elapsed().as_secs_f64())
    }

    fn send_all(&self, kind: Kind, rate: f64, random: &mut Random) {
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(5)));
        let agent: Agent = config.build().into();
        let mut next = self.begun.elapsed();
        while !self.ends.load(Ordering::Relaxed) {
            if kind == Kind::Scraper && !self.is_now(SCRAPES) {
                thread::park_timeout(Duration::from_millis(50));
                next = self.begun.elapsed();
                continue;
            }
            self.ask(&agent, kind, random);
            let pause = if rate < 50.0 { -(1.0 - random.unit()).ln() / rate } else { 1.0 / rate };
            next += Duration::from_secs_f64(pause);
            wait_until(self.begun, next);
        }
    }

    fn ask(&self, agent: &Agent, kind: Kind, random: &mut Random) {
        let body = json!({ "attributes": kind.attributes(random) });
        let Some((200, answer)) = self.post(agent, "/v1/check", &body) else { return };
        let Some(ticket) = answer["ticket"].as_str() else { return };
        let status = match kind {
            Kind::Guesser => 401,
            Kind::Bank if self.is_now(FAILS) => 502,
            Kind::Bank => 200,
            Kind::Search => {
                thread::park_timeout(Duration::from_millis(20 + random.below(80)));
                200
            }
            Kind::Visitor | Kind::Scraper | Kind::LargeTenant => return,
        };
        self.post(agent, "/v1/settle", &json!({ "ticket": ticket, "status": status }));
    }

    fn post(&self, agent: &Agent, path: &str, body: &Value) -> Option<(u16, Value)> {
        let ask =
            agent.post(format!("http://{}{path}", self.http)).header("content-type", "application/json");
        let mut answer = ask.send(body.to_string()).ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or_default()))
    }
}

impl Kind {
    fn attributes(self, random: &mut Random) -> Value {
        let ip = format!("198.51.100.{}", 1 + random.below(199));
        let number = 1 + random.below(39);
        let plan = if number.is_multiple_of(5) { "pro" } else { "free" };
        let get = |ip: &str, path: &str, tenant: &str, plan: &str| {
            json!({
                "client.ip": ip, "request.path": path, "request.method": "GET", "tenant.id": tenant,
                "tenant.plan": plan,
            })
        };
        let tenant = format!("t{number}");
        match self {
            Self::Visitor => {
                let paths = ["/api/items", "/api/cart", "/api/report/day", "/"];
                get(&ip, paths[random.below(4) as usize], &tenant, plan)
            }
            Self::Scraper => get("203.0.113.9", "/api/items", "t1", "free"),
            Self::LargeTenant => get(&ip, "/api/items", "t5", "pro"),
            Self::Search => get(&ip, "/api/search", &tenant, "free"),
            Self::Guesser => {
                let user = ["bob", "alice", "root"][random.below(3) as usize];
                json!({
                    "client.ip": "192.0.2.66", "request.path": "/login", "request.method": "POST",
                    "form.username": user,
                })
            }
            Self::Bank => {
                json!({ "upstream.name": "bank", "client.ip": "198.51.100.3", "request.path": "/pay" })
            }
        }
    }
}

fn wait_until(begun: Instant, at: Duration) {
    while let Some(left) = at.checked_sub(begun.elapsed()) {
        thread::park_timeout(left);
    }
}

/// Writes four days before the last whole minute into the history of a program that has ended: each minute as the last
/// whole one, but for chance.
fn write_past(data: &Path) {
    let now = now_ms() / 1_000;
    let (history, why) = History::open(Some(data), now);
    assert_eq!(why, None);
    let last = now - now % 60 - 60;
    let server = history.server(Step::Minute, last, last + 60).first().unwrap().1;
    let names: Vec<Arc<str>> = NAMES.into_iter().map(Arc::from).collect();
    let of_policy = |name: &Arc<str>| {
        let minutes = history.policy(name, Step::Minute, last, last + 60);
        minutes.first().map_or_else(Counts::default, |(_, counts)| *counts)
    };
    let policies: Vec<(u16, Counts)> = (0..).zip(names.iter().map(of_policy)).collect();
    println!("a calm minute: {server:?} {policies:?}");
    let mut random = Random(mixed(1));
    for at in (last - PAST..last).step_by(60) {
        let span = Span {
            at,
            server: by_chance_of_server(server, &mut random),
            policies: policies
                .iter()
                .map(|(number, counts)| (*number, by_chance(*counts, &mut random)))
                .collect(),
        };
        history.push(&span, &|number: u16| names.get(usize::from(number)).cloned());
    }
}

fn by_chance(mut counts: Counts, random: &mut Random) -> Counts {
    for series in [Series::Allowed, Series::Delayed, Series::Denied, Series::Over] {
        let count = &mut counts.0[series as usize];
        *count = random.poisson(*count as f64);
    }
    counts
}

fn by_chance_of_server(mut counts: ServerCounts, random: &mut Random) -> ServerCounts {
    for series in [ServerSeries::Allowed, ServerSeries::Delayed, ServerSeries::Denied] {
        let count = &mut counts.0[series as usize];
        *count = random.poisson(*count as f64);
    }
    counts
}

/// Returns the rules and policies of an alert that fires, as a receiver is told them.
fn alarms(sent: &Sent) -> Vec<(String, String)> {
    let list = sent.body["alerts"].as_array().or_else(|| sent.body.as_array());
    let word = |alert: &Value, label: &str| alert["labels"][label].as_str().unwrap_or_default().to_owned();
    let fires = |alert: &&Value| alert["status"] != "resolved";
    let all = list.into_iter().flatten().filter(fires);
    all.map(|alert| (word(alert, "rule"), word(alert, "policy"))).collect()
}

#[test]
fn alarms_of_the_real_program_tell_of_the_tenant_and_the_bank_and_not_of_the_login() {
    if !is_long() {
        eprintln!("SKIPPED: it takes nine minutes; TIDEGATE_ALARMS=long plays it");
        return;
    }
    let (folder, addresses) = (folder(), [free_address(), free_address()]);
    let listens = Instant::now();
    let (to, sent) = receiver(listens);
    let [http, admin] = addresses.map(|address| address.to_string());
    let policies = POLICIES.replace("HTTP", &http).replace("ADMIN", &admin).replace("TOLD", &to.to_string());
    std::fs::write(folder.path().join("shop.yaml"), policies).unwrap();
    std::fs::write(folder.path().join("secret"), "0123456789abcdef0123").unwrap();

    let program = Program::start(folder.path(), addresses);
    let (traffic, begun) = Traffic::start(addresses[0], true);
    wait_until(begun, CALM);
    drop(traffic);
    program.stop();
    let first: Vec<_> = sent.lock().drain(..).collect();
    assert!(first.is_empty(), "calm traffic: {first:?}");
    write_past(&folder.path().join("data"));

    let program = Program::start(folder.path(), addresses);
    let offset = listens.elapsed();
    let (traffic, begun_again) = Traffic::start(addresses[0], false);
    wait_until(begun_again, SCENARIO + MORE);
    drop(traffic);
    program.stop();

    let all = std::mem::take(&mut *sent.lock());
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let mut rows = Vec::new();
    for is_hook in [false, true] {
        let own = all.iter().filter(|sent| sent.head.starts_with("post /hook") == is_hook);
        let mut told: Vec<((String, String), f64)> = Vec::new();
        for one in own {
            assert!(!is_hook || one.head.contains("\r\nx-tidegate-signature: t="), "{}", one.head);
            assert!(!one.body.to_string().contains("tenant.id"), "no names of keys: {one:?}");
            let at = one.at.saturating_sub(offset).as_secs_f64();
            for alarm in alarms(one) {
                if !told.iter().any(|(known, _)| *known == alarm) {
                    told.push((alarm, at));
                }
            }
        }
        let policies: BTreeSet<&str> = told.iter().map(|((_, policy), _)| &**policy).collect();
        assert_eq!(policies, BTreeSet::from(["bank", "per-tenant"]), "{told:?}\n{log}");
        for ((rule, policy), at) in &told {
            let began = if policy == "bank" { FAILS.0 } else { SCRAPES.0 };
            let receiver = if is_hook { "webhook" } else { "Alertmanager" };
            rows.push(format!("{receiver}\t{rule}\t{policy}\t{at:.0}\t{:.0}", at - began));
        }
        let first = |rules: &[&str], policy: &str| {
            let one = told.iter().find(|((rule, of), _)| of == policy && rules.contains(&&**rule));
            one.unwrap_or_else(|| panic!("{rules:?} of {policy}: {told:?}\n{log}")).1
        };
        let bank = first(&["breaker-trips"], "bank") - FAILS.0;
        let tenant = first(&["customer-cut", "denied-unusual"], "per-tenant") - SCRAPES.0;
        assert!(bank.max(tenant) <= TOLD_WITHIN as f64, "after {bank} s and {tenant} s");
    }
    keep(
        "The shop",
        "The real program: a scraper from second 20 to 200, a bank that fails from 60 to 110, guessing all the time.",
        "receiver\trule\tpolicy\tat second\tafter, s",
        &rows,
    );
}
