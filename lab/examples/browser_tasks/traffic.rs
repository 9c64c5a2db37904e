//! The traffic of a shop, about a hundred requests a second: visitors, a scraper, a large tenant, somebody who guesses
//! passwords, searches, and a bank that fails for a while. What each was answered is kept: it is what pages are judged by.

#![allow(clippy::disallowed_methods, reason = "real programs are asked in real time")]

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use ureq::Agent;

use super::stand::SHOP;

/// Who the requests come from, with how many a second.
const KINDS: [(Kind, f64); 9] = [
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

/// The paths that visitors ask for.
const PATHS: [&str; 4] = ["/api/items", "/api/cart", "/api/report/day", "/"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Visitor,
    Scraper,
    LargeTenant,
    Guesser,
    Bank,
    Search,
}

/// A request with its answer.
#[derive(Clone)]
pub(crate) struct Asked {
    /// The time of the answer, since the beginning.
    at: Duration,
    attributes: Value,
    status: u16,
    /// The policy that refused it; empty if it passed.
    policy: String,
    id: String,
}

/// A refusal to ask about.
#[derive(Clone)]
pub(crate) struct Refusal {
    pub(crate) id: String,
    pub(crate) policy: String,
    pub(crate) at: Duration,
}

/// A key that was refused, under its policy, as pages show it.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct RefusedKey {
    pub(crate) policy: String,
    pub(crate) key: String,
}

/// What all senders share.
struct Shared {
    address: SocketAddr,
    begun: Instant,
    begun_at: SystemTime,
    stopped: AtomicBool,
    scrapes: AtomicBool,
    bank_fails: AtomicBool,
    asked: Mutex<Vec<Asked>>,
}

/// Traffic that goes on until it is stopped.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    senders: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Begins, without the scraper.
    pub(crate) fn start(address: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            address,
            begun: Instant::now(),
            begun_at: SystemTime::now(),
            stopped: AtomicBool::new(false),
            scrapes: AtomicBool::new(false),
            bank_fails: AtomicBool::new(false),
            asked: Mutex::default(),
        });
        let sender = |(seed, (kind, rate)): (u64, (Kind, f64))| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.send_all(kind, rate, Dice(seed)))
        };
        let senders = (1..).zip(KINDS).map(sender).collect();
        Self { shared, senders }
    }

    pub(crate) fn scrape(&self) {
        self.shared.scrapes.store(true, Ordering::Relaxed);
    }

    pub(crate) fn let_bank_fail(&self, fails: bool) {
        self.shared.bank_fails.store(fails, Ordering::Relaxed);
    }

    /// Since the beginning.
    pub(crate) fn now(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Waits until so long after the beginning.
    pub(crate) fn wait_until(&self, at: Duration) {
        wait_until(self.shared.begun, at);
    }

    /// Stops, and waits for the answers to what is under way.
    pub(crate) fn stop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for sender in self.senders.drain(..) {
            sender.join().unwrap();
        }
    }

    fn last(&self, span: Duration) -> Vec<Asked> {
        let from = self.now().saturating_sub(span);
        self.shared.asked.lock().unwrap().iter().filter(|asked| asked.at >= from).cloned().collect()
    }

    /// The share of the requests of the last minute that was refused, in percent.
    pub(crate) fn refused_percent(&self) -> f64 {
        let all = self.last(Duration::from_secs(60));
        let refused = all.iter().filter(|asked| asked.is_refused()).count();
        100.0 * refused as f64 / all.len().max(1) as f64
    }

    /// The key that was refused most in the last minutes.
    pub(crate) fn most_refused(&self, span: Duration) -> RefusedKey {
        let mut times: HashMap<RefusedKey, u64> = HashMap::new();
        for asked in self.last(span).into_iter().filter(Asked::is_refused) {
            let key = asked.key();
            *times.entry(RefusedKey { policy: asked.policy, key }).or_default() += 1;
        }
        let most = times.into_iter().max_by_key(|(_, times)| *times);
        most.expect("the traffic is more than the limits let pass").0
    }

    /// All refusals so far, the oldest first.
    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        let asked = self.shared.asked.lock().unwrap();
        let refused = asked.iter().filter(|asked| asked.is_refused() && !asked.id.is_empty());
        refused
            .map(|asked| Refusal { id: asked.id.clone(), policy: asked.policy.clone(), at: asked.at })
            .collect()
    }

    /// The last refusal that is recorded by now, which happens once a tenth of a second.
    pub(crate) fn recorded_refusal(&self) -> Refusal {
        let settled = self.now().saturating_sub(Duration::from_secs(5));
        let refusal = self.refusals().into_iter().rfind(|one| one.at < settled);
        refusal.expect("something was refused by then")
    }

    /// How often the breaker opened, and when last, in seconds of the day in UTC. Its calls come one after the other, so
    /// that each time it opens is a row of refusals.
    pub(crate) fn openings(&self) -> (usize, Option<u64>) {
        let asked = self.shared.asked.lock().unwrap();
        let (mut times, mut last, mut was_open) = (0, None, false);
        for one in asked.iter().filter(|one| one.attribute("upstream.name") == "bank") {
            let is_open = one.policy == "bank";
            if is_open && !was_open {
                (times, last) = (times + 1, Some(one.at));
            }
            was_open = is_open;
        }
        let begun = self.shared.begun_at.duration_since(UNIX_EPOCH).expect("the clock is right");
        (times, last.map(|at| (begun + at).as_secs() % 86_400))
    }

    /// How many addresses the policy per-ip would have refused something under another limit and has not, by a plain
    /// computation over all requests that the policy is about and no other refused.
    pub(crate) fn newly_refused(&self, per_second: f64, burst: f64) -> usize {
        let asked = self.shared.asked.lock().unwrap();
        let is_its = |asked: &&Asked| !asked.is_refused() || asked.policy == "per-ip";
        let of_api =
            asked.iter().filter(|asked| asked.attribute("request.path").starts_with("/api/")).filter(is_its);
        let mut full_at: HashMap<&str, f64> = HashMap::new();
        let (mut then, mut tried) = (HashSet::new(), HashSet::new());
        for one in of_api {
            let (ip, now) = (one.attribute("client.ip"), one.at.as_secs_f64());
            if one.policy == "per-ip" {
                then.insert(ip);
            }
            let full = full_at.entry(ip).or_insert(0.0);
            let next = (*full).max(now) + 1.0 / per_second;
            if next - now <= burst / per_second + 1e-9 {
                *full = next;
            } else {
                tried.insert(ip);
            }
        }
        tried.difference(&then).count()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }
}

impl Asked {
    fn is_refused(&self) -> bool {
        !self.policy.is_empty() && self.status != 200
    }

    fn attribute(&self, name: &str) -> &str {
        self.attributes[name].as_str().unwrap_or_default()
    }

    /// The key under the policy that refused it, as pages show it.
    fn key(&self) -> String {
        let by: &[&str] = match self.policy.as_str() {
            "per-ip" => &["client.ip"],
            "per-tenant" | "reports" => &["tenant.id"],
            "login" => &["client.ip", "form.username"],
            "bank" => &["upstream.name"],
            _ => return "(all)".to_owned(),
        };
        let pairs: Vec<String> = by.iter().map(|name| format!("{name}={}", self.attribute(name))).collect();
        pairs.join(", ")
    }
}

impl Shared {
    /// Sends the requests of one kind until the end.
    fn send_all(&self, kind: Kind, rate: f64, mut dice: Dice) {
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(5)));
        let agent: Agent = config.build().into();
        let mut next = self.begun.elapsed();
        while !self.stopped.load(Ordering::Relaxed) {
            if kind == Kind::Scraper && !self.scrapes.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(50));
                next = self.begun.elapsed();
                continue;
            }
            self.ask(&agent, kind, &mut dice);
            next += Duration::from_secs_f64(if rate < 50.0 { dice.pause(rate) } else { 1.0 / rate });
            wait_until(self.begun, next);
        }
    }

    fn ask(&self, agent: &Agent, kind: Kind, dice: &mut Dice) {
        let attributes = kind.attributes(dice);
        let Some((status, answer)) = self.post(agent, "/v1/check", &json!({ "attributes": attributes }))
        else {
            return;
        };
        let word = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let policy = if status == 200 { String::new() } else { word("policy") };
        let at = self.begun.elapsed();
        let asked = Asked { at, attributes, status, policy, id: word("decision_id") };
        self.asked.lock().unwrap().push(asked);
        let Some(ticket) = answer["ticket"].as_str().filter(|_| status == 200) else { return };
        let ended = match kind {
            Kind::Guesser => 401,
            Kind::Bank if self.bank_fails.load(Ordering::Relaxed) => 502,
            Kind::Bank => 200,
            Kind::Search => {
                std::thread::park_timeout(Duration::from_millis(20 + dice.below(80)));
                200
            }
            Kind::Visitor | Kind::Scraper | Kind::LargeTenant => return,
        };
        self.post(agent, "/v1/settle", &json!({ "ticket": ticket, "status": ended }));
    }

    fn post(&self, agent: &Agent, path: &str, body: &Value) -> Option<(u16, Value)> {
        let ask = agent
            .post(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {SHOP}"));
        let mut answer = ask.send(body.to_string()).ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or_default()))
    }
}

impl Kind {
    fn attributes(self, dice: &mut Dice) -> Value {
        let ip = format!("198.51.100.{}", 1 + dice.below(199));
        let number = 1 + dice.below(39);
        let tenant = format!("t{number}");
        let plan = if number.is_multiple_of(5) { "pro" } else { "free" };
        match self {
            Self::Visitor => {
                let path = PATHS[usize::try_from(dice.below(4)).unwrap()];
                json!({ "client.ip": ip, "request.path": path, "request.method": "GET", "tenant.id": tenant, "tenant.plan": plan })
            }
            Self::Scraper => {
                json!({ "client.ip": "203.0.113.9", "request.path": "/api/items", "request.method": "GET", "tenant.id": "t1", "tenant.plan": "free" })
            }
            Self::LargeTenant => {
                json!({ "client.ip": ip, "request.path": "/api/items", "request.method": "GET", "tenant.id": "t5", "tenant.plan": "pro" })
            }
            Self::Guesser => {
                let user = ["bob", "alice", "root"][usize::try_from(dice.below(3)).unwrap()];
                json!({ "client.ip": "192.0.2.66", "request.path": "/login", "request.method": "POST", "form.username": user })
            }
            Self::Bank => {
                json!({ "upstream.name": "bank", "client.ip": "198.51.100.3", "request.path": "/pay" })
            }
            Self::Search => {
                json!({ "client.ip": ip, "request.path": "/api/search", "request.method": "GET", "tenant.id": tenant, "tenant.plan": "free" })
            }
        }
    }
}

/// Numbers that look random, the same in every run (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.roll() % most
    }

    /// Seconds until the next of so many a second, as they come from many people.
    fn pause(&mut self, rate: f64) -> f64 {
        let share = ((self.roll() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -share.ln() / rate
    }
}

fn wait_until(begun: Instant, at: Duration) {
    while let Some(left) = at.checked_sub(begun.elapsed()) {
        std::thread::park_timeout(left);
    }
}
