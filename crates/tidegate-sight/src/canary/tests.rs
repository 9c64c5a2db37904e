//! Tests of what the guard does: time is an argument, and the server is a list of what it was told.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tidegate_server::{Seen, Verdict, Vitals};

use super::*;
use crate::feed::Ended;

/// 2027-01-15T08:00:00Z.
const NOW: u64 = 1_800_000_000;

const POLICY: u16 = 3;

/// A canary with 5 % of the keys for two hours, and the usual bounds.
pub(super) fn canary(policy: &str) -> Canary {
    Canary {
        policy: policy.to_owned(),
        text: "limit: 6/s burst 12, share: 5%".to_owned(),
        limit: "gcra 6/s burst 12".to_owned(),
        share: 0.05,
        in_force: 0.05,
        lasts: Duration::from_secs(7_200),
        denied: 0.01,
        keys_refused: 20,
        failures: 0.02,
        enforce: false,
    }
}

/// A server whose policy has a canary of one text.
#[derive(Debug, Default)]
struct Server(Mutex<Vec<f64>>);

impl WatchedServer for Server {
    fn vitals(&self) -> Vitals {
        Vitals::default()
    }

    fn set_canary_share(&self, policy: &str, text: &str, share: f64) -> bool {
        let is_one = policy == "per-ip" && text == canary(policy).text;
        if is_one {
            self.0.lock().push(share);
        }
        is_one
    }

    fn ask(&self, _: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(async { Response::new(Bytes::new()) })
    }
}

fn history() -> Arc<History> {
    Arc::new(History::open(None, NOW).0)
}

/// A guard that follows the limit of `per-ip`.
fn guard(history: &Arc<History>) -> Canaries {
    let guard = Canaries::new(Arc::clone(history));
    let limit = json!({ "rate": "10/s", "burst": 20 });
    let canary = json!({ "limit": { "rate": "6/s", "burst": 12 }, "share": "5%" });
    let policies = json!([{ "name": "per-ip", "by": ["client.ip"], "limit": limit, "canary": canary }]);
    guard.configured(&json!({ "file": { "version": 1, "policies": policies }, "api": {} }).to_string());
    assert_eq!(guard.state.lock().old.len(), 1, "its limit is read");
    guard
}

/// So many requests of each of 30 keys of the canary, which pass or not, and of 60 others, which pass.
fn requests(guard: &Canaries, at: u64, of_each: u64, denied: bool) {
    let mut events = Vec::new();
    for number in 0..of_each {
        for key in 0..90 {
            let canary = key < 30;
            let verdict = if canary && denied { Verdict::Denied } else { Verdict::Allowed };
            let at = Tick::from_secs(at + number);
            let seen = Seen { policy: POLICY, verdict, near: false, canary, key, cost: 1, at };
            guard.keep(&mut events, Event::Seen(seen));
            guard.keep(&mut events, Event::Ended(Ended { policy: POLICY, key, canary, failed: false }));
        }
    }
    guard.follow(&mut events);
    assert!(events.is_empty());
}

/// Ends seconds from one on and before another. Returns what the server was told in them.
fn seconds(guard: &Canaries, from: u64, to: u64, canary: &Canary) -> Vec<Order> {
    (from..to).flat_map(|now| guard.second(now, &[(POLICY, canary.clone())])).collect()
}

fn state(guard: &Canaries) -> String {
    guard.shown().0[0]["state"].as_str().unwrap().to_owned()
}

/// Runs a canary that refuses most of its keys, until it is stopped.
fn rolled_back(guard: &Canaries, from: u64) -> Vec<Order> {
    let mut orders = seconds(guard, from, from + 11, &canary("per-ip"));
    requests(guard, from + 11, 3, true);
    orders.extend(seconds(guard, from + 11, from + 21, &canary("per-ip")));
    orders
}

fn stop(change: Option<&str>) -> Order {
    let Canary { policy, text, .. } = canary("per-ip");
    Order { policy, text, share: 0.0, change: change.map(str::to_owned) }
}

#[test]
fn a_breach_stops_the_canary_at_once_and_until_its_text_changes() {
    let history = history();
    let first = guard(&history);
    assert!(first.guarded().is_empty());
    let orders = rolled_back(&first, NOW);
    assert_eq!(first.guarded(), [POLICY]);
    assert_eq!(orders, [stop(Some("canary of per-ip rolled back: 30 keys refused > 20"))]);
    assert_eq!(state(&first), "rolled back 08:00: 30 keys refused > 20");
    let alert = &first.rolled_back()[0];
    assert_eq!((&*alert.policy, alert.since, &*alert.why), ("per-ip", NOW + 20, "30 keys refused > 20"));
    let stopped = Canary { in_force: 0.0, ..canary("per-ip") };
    assert!(seconds(&first, NOW + 21, NOW + 60, &stopped).is_empty());
    assert_eq!(first.shown().0[0]["keys_refused"]["canary"], 30, "what was found stays to be seen");

    // The server begins with the share of the file.
    let second = guard(&history);
    assert_eq!(seconds(&second, NOW + 90, NOW + 91, &canary("per-ip")), [stop(None)]);
    assert!(seconds(&second, NOW + 91, NOW + 95, &stopped).is_empty());
    assert_eq!(state(&second), "rolled back 08:00: 30 keys refused > 20");
    assert!(second.second(NOW + 95, &[]).is_empty() && second.rolled_back().is_empty());

    let other = Canary { text: "limit: 8/s".to_owned(), ..canary("per-ip") };
    assert!(seconds(&second, NOW + 96, NOW + 130, &other).is_empty());
    assert_eq!((state(&second).as_str(), second.rolled_back().len()), ("waits for data", 0));
}

#[test]
fn the_time_of_a_canary_goes_on_after_a_restart_and_then_it_holds() {
    let history = history();
    let hour = 3_600;
    let first = guard(&history);
    requests(&first, NOW, 1, false);
    assert!(seconds(&first, NOW, NOW + hour, &canary("per-ip")).is_empty());
    let second = guard(&history);
    assert!(seconds(&second, NOW + hour, NOW + hour + 20, &canary("per-ip")).is_empty());
    requests(&second, NOW + hour + 20, 1, false);
    assert!(seconds(&second, NOW + hour + 20, NOW + 2 * hour, &canary("per-ip")).is_empty());
    let elapsed = second.shown().0[0]["elapsed_s"].as_u64().unwrap();
    assert!((7_130..7_200).contains(&elapsed), "less than a minute is lost: {elapsed}");
    assert_eq!(state(&second), "runs");
    // A clock that is set ahead ends nothing.
    assert!(second.second(NOW + 90 * hour, &[(POLICY, canary("per-ip"))]).is_empty());
    assert_eq!(second.shown().0[0]["elapsed_s"].as_u64(), Some(elapsed + LONGEST_STEP));
    assert!(seconds(&second, NOW + 91 * hour, NOW + 92 * hour, &canary("per-ip")).is_empty());
    assert_eq!(state(&second), "holds: its time is over");
    assert_eq!(second.shown().0[0]["then"], "hold");
}

#[test]
fn a_limit_is_put_in_force_for_all_keys_if_there_was_enough_to_judge_by() {
    let canary = Canary { enforce: true, lasts: Duration::from_secs(60), ..canary("per-ip") };
    let guard = guard(&history());
    assert!(seconds(&guard, NOW, NOW + 100, &canary).is_empty(), "no data, no promotion");
    assert_eq!(state(&guard), "waits for data");
    requests(&guard, NOW + 100, 20, false);
    assert!(seconds(&guard, NOW + 100, NOW + 120, &canary).is_empty(), "600 requests of the canary");
    requests(&guard, NOW + 120, 20, false);
    let orders = seconds(&guard, NOW + 120, NOW + 121, &canary);
    assert_eq!((orders.len(), orders[0].share), (1, 1.0));
    assert_eq!(orders[0].change.as_deref(), Some("canary of per-ip enforced for all keys"));
    let enforced = Canary { in_force: 1.0, ..canary };
    assert!(seconds(&guard, NOW + 121, NOW + 200, &enforced).is_empty());
    assert_eq!(state(&guard), "enforced for all keys 08:02");
}

#[test]
fn a_person_has_the_last_word_and_what_a_person_enforces_is_not_touched() {
    let (history, server) = (history(), Server::default());
    let first = guard(&history);
    rolled_back(&first, NOW);
    let act = |guard: &Canaries, share: f64, at: u64| {
        let body = json!({ "share": share, "reason": "once more" }).to_string();
        guard.act("per-ip", body.as_bytes(), "ann", at, &server).map(|done| (done.text, done.reason))
    };
    let (text, reason) = act(&first, 0.1, NOW + 60).unwrap();
    assert_eq!((&*text, &*reason), ("canary of per-ip decides for 10 % of the keys", "once more"));
    assert!(first.rolled_back().is_empty());
    assert_eq!(first.shown().0[0]["elapsed_s"], 0, "it begins anew");

    // Also after a restart; and it is guarded.
    let second = guard(&history);
    let order = &seconds(&second, NOW + 61, NOW + 62, &canary("per-ip"))[0];
    assert_eq!((order.share, &order.change), (0.1, &None));
    let tenth = Canary { in_force: 0.1, ..canary("per-ip") };
    assert!(seconds(&second, NOW + 62, NOW + 80, &tenth).is_empty());
    assert_eq!(state(&second), "waits for data; 10 % of the keys since 08:01 by ann: once more");
    requests(&second, NOW + 80, 3, true);
    assert_eq!(seconds(&second, NOW + 80, NOW + 83, &tenth).len(), 1, "it is stopped again");

    assert_eq!(act(&second, 1.0, NOW + 100).unwrap().0, "canary of per-ip enforced for all keys");
    let all = Canary { in_force: 1.0, ..canary("per-ip") };
    requests(&second, NOW + 100, 3, true);
    assert!(seconds(&second, NOW + 100, NOW + 200, &all).is_empty());
    assert_eq!(state(&second), "enforced for all keys 08:01 by ann: once more");
    assert_eq!(act(&second, 0.0, NOW + 200).unwrap().0, "canary of per-ip stopped");
    assert_eq!(*server.0.lock(), [0.1, 1.0, 0.0]);
    let stopped = Canary { in_force: 0.0, ..canary("per-ip") };
    assert!(seconds(&second, NOW + 200, NOW + 210, &stopped).is_empty());
    assert_eq!(state(&second), "stopped 08:03 by ann: once more");
    assert!(second.rolled_back().is_empty(), "no alert tells a person what that person did");
}

#[test]
fn a_body_that_says_nothing_changes_nothing() {
    let (guard, server) = (guard(&history()), Server::default());
    let act = |policy: &str, body: &str| guard.act(policy, body.as_bytes(), "", NOW, &server).unwrap_err();
    let good = r#"{"share": 0.5, "reason": "x"}"#;
    assert_eq!(act("per-ip", good).0, 404, "none is in force");
    seconds(&guard, NOW, NOW + 1, &canary("per-ip"));
    let long = json!({ "share": 0.5, "reason": "x".repeat(300) }).to_string();
    for (body, part) in [
        ("", "the body"),
        (r#"{"share": "5%", "reason": "x"}"#, "the body"),
        (r#"{"share": 1.5, "reason": "x"}"#, "`share`"),
        (r#"{"share": -0.5, "reason": "x"}"#, "`share`"),
        (r#"{"share": 0.5, "reason": "x", "policy": "y"}"#, "the body"),
        (long.as_str(), "`reason`"),
    ] {
        let (status, detail) = act("per-ip", body);
        assert!(status == 400 && detail.contains(part), "{body}: {status} {detail}");
    }
    assert_eq!(act("login", good).0, 404);
    seconds(&guard, NOW + 1, NOW + 2, &Canary { text: "another".to_owned(), ..canary("per-ip") });
    assert_eq!(act("per-ip", good).0, 409);
    assert!(server.0.lock().is_empty());
    seconds(&guard, NOW + 2, NOW + 3, &canary("per-ip"));
    let done = guard.act("per-ip", br#"{"share": 0}"#, "", NOW, &server).unwrap();
    assert_eq!((&*done.text, &*done.reason), ("canary of per-ip stopped", ""));
    assert_eq!(state(&guard), "stopped 08:00");
}

#[test]
fn canaries_beyond_the_bounds_are_told_and_take_no_room() {
    let history = history();
    let guard = Canaries::new(Arc::clone(&history));
    for round in 0..20_u64 {
        let many = |at: u16| (at, canary(&format!("policy {round} {at:03}")));
        let mut canaries: Vec<(u16, Canary)> = (0..40).map(many).collect();
        canaries.push((OTHERS, canary("of others")));
        assert!(guard.second(NOW + round * 100, &canaries).is_empty());
        let (shown, unguarded) = guard.shown();
        assert_eq!((shown.len(), unguarded), (MOST_GUARDED, 9));
        assert_eq!(shown[0]["policy"], format!("policy {round} 000"));
    }
    assert!(guard.state.lock().known.len() <= MOST_CANARIES);
    assert!(history.canaries().len() <= MOST_CANARIES);
}

#[test]
fn requests_of_several_threads_are_followed_in_their_order() {
    let guard = guard(&history());
    seconds(&guard, NOW, NOW + 11, &canary("per-ip"));
    let seen = |at: u64, verdict: Verdict| {
        let at = Tick::from_secs(at);
        Event::Seen(Seen { policy: POLICY, verdict, near: false, canary: true, key: 7, cost: 1, at })
    };
    // One thread lets pass all that there is, and more a minute later; another refuses at the same time as the first.
    let mut events = vec![seen(NOW + 20, Verdict::Allowed); 20];
    events.push(seen(NOW + 80, Verdict::Allowed));
    events.push(seen(NOW + 20, Verdict::Denied));
    guard.follow(&mut events);
    seconds(&guard, NOW + 11, NOW + 31, &canary("per-ip"));
    assert_eq!(guard.shown().0[0]["keys_refused"]["canary"], 0, "its policy would have refused the same");
}
