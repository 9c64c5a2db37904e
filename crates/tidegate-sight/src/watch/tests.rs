//! Tests of the watch. The time is an argument, and the server is a list of counts.

mod alarms;

use std::fs;

use tidegate::Quota;
use tidegate_server::{Canary, Verdict};

use super::*;

/// 2027-01-15T08:00:00Z.
const NOW: u64 = 1_800_000_000;

/// A server with counts that are given, and empty answers.
#[derive(Debug, Default)]
struct MadeUp(Mutex<Vitals>, Mutex<Vec<OpenBreaker>>, Mutex<Vec<Canary>>);

impl WatchedServer for MadeUp {
    fn vitals(&self) -> Vitals {
        self.0.lock().clone()
    }

    fn open_breakers(&self) -> Vec<OpenBreaker> {
        self.1.lock().clone()
    }

    fn canaries(&self) -> Vec<Canary> {
        self.2.lock().clone()
    }

    fn set_canary_share(&self, policy: &str, text: &str, share: f64) -> bool {
        let mut canaries = self.2.lock();
        let found = canaries.iter_mut().find(|one| one.policy == policy && one.text == text);
        found.map(|canary| canary.in_force = share).is_some()
    }

    fn ask(&self, _: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(async { Response::new(Bytes::new()) })
    }
}

fn made() -> Watch {
    let delivery = Delivery::new(&AlertSettings::default()).unwrap();
    Watch::new(None, delivery, NOW, mpsc::sync_channel(1).0)
}

fn begun() -> (Watch, Arc<MadeUp>) {
    let (watch, server) = (made(), Arc::new(MadeUp::default()));
    watch.begin(Arc::<MadeUp>::clone(&server));
    (watch, server)
}

fn seen(policy: u16, verdict: Verdict, key: u64) -> Seen {
    Seen { policy, verdict, near: false, canary: false, key, cost: 1, at: Tick::EPOCH }
}

fn saw(watch: &Watch, policy: u16, verdict: Verdict, key: u64) -> bool {
    watch.saw(seen(policy, verdict, key))
}

fn read(watch: &Watch, path: &str, query: &str) -> Value {
    let answer = watch.read(path, query, false).unwrap_or_else(|wrong| panic!("{path}?{query}: {wrong:?}"));
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn a_second_of_events_is_seen_in_the_overview_and_in_the_history() {
    let (watch, server) = begun();
    let (policy, quiet) = (watch.policy("per-ip", Some(10.0)), watch.policy("login", None));
    assert_ne!(policy, quiet);
    for number in 0..40 {
        saw(&watch, policy, if number < 30 { Verdict::Denied } else { Verdict::Allowed }, 7);
    }
    *server.0.lock() = Vitals {
        requests: [10, 0, 30, 5, 1, 2, 2],
        in_flight: 3,
        durations: vec![(1_000, 50), (2_000, 50), (u64::MAX, 0)],
        store: "disk",
        fleet: "2 of 3 nodes".to_owned(),
        configuration: (18, Tick::from_secs(NOW - 60)),
        ..Vitals::default()
    };
    assert_eq!(watch.turn(NOW * 1_000 + 999), PAUSE);
    assert_eq!(read(&watch, "/v1/overview", "")["policies"], json!([]), "the second is not over");
    watch.turn(NOW * 1_000 + 1_001);
    let overview = read(&watch, "/v1/overview", "w=1m");
    assert_eq!(overview["at"], "2027-01-15T08:00:01Z");
    assert_eq!(overview["configuration"]["number"], 18);
    assert_eq!(overview["store"], json!({ "kind": "disk", "away": null, "fleet": "2 of 3 nodes" }));
    let requests = &overview["requests"];
    assert_eq!(
        requests["per_second"],
        json!({ "allowed": 10.0, "delayed": 0.0, "denied": 30.0, "unmatched": 5.0, "failed": 5.0 })
    );
    assert_eq!((&requests["refused_share"], &requests["usual"]), (&json!(0.6), &Value::Null));
    assert_eq!(requests["line"].as_array().unwrap().len(), 60);
    assert_eq!(requests["line"][59], json!([10.0, 30.0]));
    assert_eq!(overview["deciding"], json!({ "p50_ns": 1_000, "p99_ns": 1_980, "in_flight": 3 }));
    assert_eq!((&overview["quiet"], &overview["dropped"]), (&json!(1), &json!(0)));
    let row = &overview["policies"][0];
    assert_eq!((&row["name"], &row["denied_share"]), (&json!("per-ip"), &json!(0.75)));
    assert_eq!((&row["per_second"]["denied"], &row["keys_refused"]), (&json!(30.0), &json!(1)));
    assert_eq!(row["line"][59], json!([10.0, 30.0]));

    let history = read(&watch, "/v1/history", "policy=per-ip&series=denied&step=1s");
    assert_eq!(history["step"], 1);
    assert!(history["series"]["denied"].as_array().unwrap().contains(&json!([NOW, 30])), "{history}");
    let busiest = read(&watch, "/v1/busiest", "policy=per-ip&by=denied&w=1m&limit=5");
    assert_eq!(busiest["keys"][0]["count"], 30);
    assert_eq!(read(&watch, "/v1/changes", "limit=5"), json!({ "changes": [] }));

    // Two minutes later the rates are those of then.
    (2..122).for_each(|second| _ = watch.turn((NOW + second) * 1_000));
    let overview = read(&watch, "/v1/overview", "");
    assert_eq!(overview["requests"]["per_second"]["denied"], 0.0);
    assert_eq!(overview["requests"]["refused_share"], Value::Null);
    assert_eq!(overview["policies"][0]["denied_share"], Value::Null);
    assert_eq!(read(&watch, "/v1/overview", "w=1m")["quiet"], 2);

    // Lines of minutes are kept until the minute is over.
    let hour = |place: usize| read(&watch, "/v1/overview", "w=1h")["requests"]["line"][place].clone();
    assert_eq!((hour(58), hour(58)), (json!([0.167, 0.5]), json!([0.167, 0.5])));
    (122..185).for_each(|second| _ = watch.turn((NOW + second) * 1_000));
    assert_eq!((hour(57), hour(58)), (json!([0.167, 0.5]), json!([0.0, 0.0])));
}

#[test]
fn the_verdict_names_the_policy_and_the_key_that_is_refused_more_than_usual() {
    let (watch, server) = begun();
    let policy = watch.policy("per-ip", None);
    let verdict = |watch: &Watch| {
        let overview = read(watch, "/v1/overview", "");
        let verdict = &overview["verdict"];
        (verdict["level"].as_str().unwrap().to_owned(), verdict["text"].as_str().unwrap().to_owned())
    };
    assert_eq!(verdict(&watch).1, "no requests in the last minute; no baseline yet");
    let minute = |from: u64, denied: u64| {
        for second in from..from + 70 {
            for number in 0..100 {
                let verdict = if number < denied { Verdict::Denied } else { Verdict::Allowed };
                saw(&watch, policy, verdict, 7);
            }
            {
                let mut vitals = server.0.lock();
                vitals.requests[0] += 100 - denied;
                vitals.requests[2] += denied;
            }
            watch.turn((NOW + second) * 1_000);
        }
    };
    let usual = |low: f64, high: f64| Judged {
        usual: Some(Usual {
            low,
            middle: low,
            high,
            middle_a_second: 0.0,
            high_a_second: 0.1,
            together: 1.0,
            days: 9,
            from_last_day: false,
        }),
        asked: Some(NOW),
        ..Judged::default()
    };
    minute(1, 20);
    let unknown = "20 % of requests refused; no baseline yet";
    assert_eq!(verdict(&watch), ("unknown".to_owned(), unknown.to_owned()));
    {
        let judged = &mut watch.state.lock().judged;
        judged.insert(None, usual(0.004, 0.012));
        judged.insert(Some(policy), usual(0.0, 0.002));
    }
    minute(71, 20);
    let (level, text) = verdict(&watch);
    assert_eq!(level, "unusual");
    assert_eq!(
        text,
        "20 % of requests refused; usual at this hour 0.4 to 1.2 %; since 08:01 UTC; `per-ip` refused 20 % \
         (usual at this hour 0 to 0.2 %), 100 % of it to one key, ~0000000000000007"
    );
    server.0.lock().store_away = Some("connection refused".to_owned());
    minute(141, 0);
    let (level, text) = verdict(&watch);
    assert_eq!(level, "trouble");
    let as_usual = "0 % of requests refused; usual at this hour 0.4 to 1.2 %";
    assert_eq!(text, format!("the store cannot be asked: connection refused; {as_usual}"));
    server.0.lock().store_away = None;
    minute(211, 0);
    assert_eq!(verdict(&watch), ("usual".to_owned(), as_usual.to_owned()));
}

/// Said a minute late, the front page and `stat` called a third of all requests refused usual.
#[test]
fn a_clear_rise_is_said_within_ten_seconds_and_noise_is_not() {
    let (watch, server) = begun();
    let policy = watch.policy("per-ip", None);
    let usual = Usual {
        low: 0.005,
        middle: 0.01,
        high: 0.02,
        middle_a_second: 1.0,
        high_a_second: 2.0,
        together: 1.0,
        days: 9,
        from_last_day: false,
    };
    for of in [None, Some(policy)] {
        let judged = Judged { usual: Some(usual), asked: Some(NOW), ..Judged::default() };
        watch.state.lock().judged.insert(of, judged);
    }
    let mut second = 0;
    let mut level = |denied: u64| {
        for number in 0..100 {
            saw(&watch, policy, if number < denied { Verdict::Denied } else { Verdict::Allowed }, 7);
        }
        {
            let mut vitals = server.0.lock();
            vitals.requests[0] += 100 - denied;
            vitals.requests[2] += denied;
        }
        second += 1;
        watch.turn((NOW + second) * 1_000);
        read(&watch, "/v1/overview", "")["verdict"]["level"].as_str().unwrap().to_owned()
    };
    for number in 0..70 {
        assert_eq!(level(number % 3), "usual", "{number}");
    }
    // Two seconds of it are noise.
    for denied in [30, 0, 0, 1, 1, 30, 0, 1] {
        assert_eq!(level(denied), "usual");
    }
    (0..70).for_each(|_| _ = level(1));
    let after = (1..=60).find(|_| level(30) == "unusual");
    assert!(after.is_some_and(|after| (2..=10).contains(&after)), "after {after:?} s");
    for _ in 0..60 {
        assert_eq!(level(30), "unusual");
    }
    // As long as it is in the share that is shown, of the last minute.
    let after = (1..=120).find(|_| level(1) == "usual");
    assert!(after.is_some_and(|after| (30..=60).contains(&after)), "over after {after:?} s");
}

#[test]
fn names_are_learned_when_they_are_wanted_and_shown_to_whoever_may_see_them() {
    let (watch, _) = begun();
    let policy = watch.policy("per-ip", None);
    assert!(saw(&watch, policy, Verdict::Denied, 7), "who is refused may not come again");
    watch.turn((NOW + 1) * 1_000);
    let key = |reveal: bool| {
        let answer: Value = serde_json::from_str(&watch.read("/v1/busiest", "", reveal).unwrap()).unwrap();
        answer["keys"][0]["key"].clone()
    };
    assert_eq!(key(true), "~0000000000000007");
    assert!(saw(&watch, policy, Verdict::Denied, 7), "the name is wanted");
    watch.named(policy, 7, "client.ip=203.0.113.9", "#0123456789abcdef");
    assert!(!saw(&watch, policy, Verdict::Denied, 7));
    watch.turn((NOW + 2) * 1_000);
    assert_eq!((key(false), key(true)), (json!("#0123456789abcdef"), json!("client.ip=203.0.113.9")));
    let live = watch.live();
    assert!(!live.borrow().contains("203.0.113.9"));
}

/// An end in good order loses nothing; after `kill -9` the file is what the last minute left.
#[test]
fn the_keys_of_the_night_are_listed_after_a_restart_and_a_kill() {
    let [folder, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let open = |folder: &Path, now: u64| {
        let delivery = Delivery::new(&AlertSettings::default()).unwrap();
        let watch = Watch::new(Some(folder), delivery, now, mpsc::sync_channel(1).0);
        watch.begin(Arc::new(MadeUp::default()));
        watch
    };
    let keys = |watch: &Watch, query: &str, reveal: bool| {
        let answer = watch.read("/v1/busiest", query, reveal).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let keys = answer["keys"].as_array().unwrap();
        keys.iter().map(|key| (key["key"].clone(), key["count"].clone())).collect::<Vec<_>>()
    };
    let night = open(folder.path(), NOW);
    let policy = night.policy("per-ip", None);
    night.named(policy, 7, "client.ip=203.0.113.9", "#0123456789abcdef");
    for second in 0..90 {
        saw(&night, policy, Verdict::Denied, 7);
        saw(&night, policy, Verdict::Allowed, 7);
        night.turn((NOW + second + 1) * 1_000);
        if second == 70 {
            night.history.flush();
            fs::copy(folder.path().join("history.redb"), killed.path().join("history.redb")).unwrap();
        }
    }
    drop(night);
    let morning = NOW + 8 * 3_600;
    for (folder, count) in [(&folder, 90), (&killed, 60)] {
        // The second start finds what the first wrote again.
        for start in [morning, morning + 600] {
            let watch = open(folder.path(), start);
            let (digest, name) = (json!("#0123456789abcdef"), json!("client.ip=203.0.113.9"));
            for by in ["denied", "rate"] {
                let query = format!("w=24h&by={by}");
                assert_eq!(keys(&watch, &query, false), [(digest.clone(), json!(count))]);
                assert_eq!(keys(&watch, &query, true), [(name.clone(), json!(count))]);
            }
            assert!(keys(&watch, "w=15m", true).is_empty());
            assert_eq!(keys(&watch, "w=24h&policy=per-ip", true).len(), 1, "it is not in force");
            (1..62).for_each(|second| _ = watch.turn((start + second) * 1_000));
            watch.history.flush();
        }
        let next_day = open(folder.path(), NOW + 90_000);
        assert!(keys(&next_day, "w=24h", true).is_empty());
    }
}

#[test]
fn a_limit_is_tried_on_what_was_seen() {
    let (watch, server) = begun();
    let policy = watch.policy("per-ip", Some(10.0));
    let saw = |key: u64, second: u64| {
        let at = Tick::from_secs(NOW + second);
        watch.saw(Seen { policy, verdict: Verdict::Allowed, near: false, canary: false, key, cost: 1, at })
    };
    for number in 0..20 {
        saw(7, number / 10);
    }
    (0..6).for_each(|_| _ = saw(8, 2));
    watch.named(policy, 7, "client.ip=203.0.113.9, user.id=ann", "#0123456789abcdef");
    watch.turn((NOW + 1) * 1_000);
    server.0.lock().now = Tick::from_secs(NOW + 60);
    let trial = Trial {
        policy: "per-ip".to_owned(),
        quota: Arc::new(Quota::per_second(1).burst(5).gcra().unwrap()),
        limit: "gcra 1/s burst 5".to_owned(),
        max_wait: Duration::ZERO,
        per_second: Some(1.0),
        window: Duration::from_secs(3_600),
        reveal: true,
        cancelled: Arc::default(),
    };
    let told: Value = serde_json::from_str(&watch.try_limit(&trial).unwrap()).unwrap();
    let expected = json!({
        "policy": "per-ip", "limit": "gcra 1/s burst 5", "at_once": 5, "window_s": 3_600, "seconds": 60.0,
        "share_of_keys": 1.0, "requests": 26, "denied_then": 0, "denied_now": 15, "keys": 2, "keys_denied_then": 0,
        "keys_denied_now": 2, "newly_keys": 2, "no_longer_keys": 0, "peaks": [[1, 19.0], [2, 6.0]],
        "newly": [
            { "key": "client.ip=203.0.113.9, user.id=ann", "denied": 14, "requests": 20, "signed_in": true },
            { "key": "~0000000000000008", "denied": 1, "requests": 6, "signed_in": null },
        ],
    });
    assert_eq!(told, expected);
    assert!(saw(8, 61) && !saw(7, 61), "the name that is not known is wanted");

    let hidden = watch.try_limit(&Trial { reveal: false, ..trial.clone() }).unwrap();
    assert!(!hidden.contains("203.0.113.9") && hidden.contains("#0123456789abcdef"), "{hidden}");
    let minute = watch.try_limit(&Trial { window: Duration::from_secs(59), ..trial.clone() }).unwrap();
    assert!(minute.contains("\"requests\":16"), "{minute}");
    let status = |trial: &Trial| watch.try_limit(trial).unwrap_err().0;
    assert_eq!(status(&Trial { policy: "per-op".to_owned(), ..trial.clone() }), 404);
    let turn = watch.trial.lock();
    assert_eq!(status(&trial), 429);
    drop(turn);
    trial.cancelled.store(true, Ordering::Relaxed);
    assert_eq!(status(&trial), 503);
}

#[test]
fn listeners_share_one_text_a_second_without_lines() {
    let (watch, server) = begun();
    server.0.lock().store_away = Some("refused \u{202e}\u{9b}2J".to_owned());
    watch.turn((NOW + 1) * 1_000);
    let (mut one, two) = (watch.live(), watch.live());
    assert!(one.borrow_and_update().contains("08:00:01Z"), "the first text is not an old one");
    watch.turn((NOW + 1) * 1_000 + 500);
    assert!(!one.has_changed().unwrap());
    watch.turn((NOW + 2) * 1_000);
    assert!(one.has_changed().unwrap() && Arc::ptr_eq(&one.borrow(), &two.borrow()));
    let text: Value = serde_json::from_str(&one.borrow()).unwrap();
    assert_eq!((&text["at"], text["requests"].get("line")), (&json!("2027-01-15T08:00:02Z"), None));
    assert_eq!(text["store"]["away"], "refused \u{202e}\u{9b}2J");
    assert!(!one.borrow().chars().any(tidegate::visible::is_acted_on), "{text}");
}

/// Whatever the clock does, there is one span a second at most, and what is kept stays bounded.
#[test]
fn a_clock_that_jumps_does_no_harm() {
    let (watch, _) = begun();
    let policy = watch.policy("per-ip", Some(1.0));
    let second = || watch.state.lock().second;
    watch.turn((NOW + 1) * 1_000);
    watch.turn((NOW - 9) * 1_000);
    assert_eq!(second(), NOW + 1, "it stands still for ten seconds");
    for now in [NOW - 3_600, NOW + 86_400 * 400, 0, u64::MAX / 1_000, NOW] {
        saw(&watch, policy, Verdict::Denied, 7);
        watch.turn(now.saturating_mul(1_000));
        watch.turn((now + 1).saturating_mul(1_000));
        assert!(second() >= now);
        read(&watch, "/v1/overview", "w=90d");
        read(&watch, "/v1/busiest", "w=24h");
        read(&watch, "/v1/history", "from=0&to=18446744073709551615");
    }
}

/// What lasts goes on to last: an hour is one also when the wall clock says that it took none, or two.
#[test]
fn a_step_of_an_hour_moves_silences_and_what_is_unusual() {
    for by in [3_600_i64, -3_600] {
        let (watch, _) = begun();
        let policy = watch.policy("per-ip", None);
        let at = |second: u64, by: i64| {
            for number in 0..100 {
                let verdict = if number < 50 { Verdict::Denied } else { Verdict::Allowed };
                saw(&watch, policy, verdict, 7);
            }
            let now = (NOW + second).saturating_add_signed(by);
            {
                let mut state = watch.state.lock();
                let judged = state.judged.entry(Some(policy)).or_default();
                judged.usual = Some(Usual {
                    low: 0.0,
                    middle: 0.0,
                    high: 0.002,
                    middle_a_second: 0.0,
                    high_a_second: 0.1,
                    together: 1.0,
                    days: 9,
                    from_last_day: false,
                });
                judged.asked = Some(now);
            }
            watch.turn_at(now * 1_000, second * 1_000);
        };
        (1..=60).for_each(|second| at(second, 0));
        let silence = br#"{"do": "silence", "for": "1h", "reason": "the sale"}"#;
        watch.act("/v1/alerts", silence, "ann").unwrap();
        let ends = |watch: &Watch| read(watch, "/v1/alerts", "")["silences"][0]["until"].clone();
        assert_eq!(ends(&watch), "2027-01-15T09:01:00Z");
        let fires = |watch: &Watch| read(watch, "/v1/alerts", "")["firing"].clone();
        (61..=110).for_each(|second| at(second, by));
        assert_eq!((fires(&watch), ends(&watch)), (json!(0), json!(rfc3339_of(NOW + 3_660, by))));
        (111..=130).for_each(|second| at(second, by));
        assert_eq!(fires(&watch), 1, "two minutes are over");
        let alert = read(&watch, "/v1/alerts", "")["alerts"][0].clone();
        assert_eq!((&alert["rule"], &alert["silenced"]), (&json!("denied-unusual"), &json!(true)));
        at(3_659, by);
        assert_ne!(ends(&watch), Value::Null);
        at(3_661, by);
        assert_eq!(ends(&watch), Value::Null);
    }
}

fn rfc3339_of(second: u64, by: i64) -> String {
    let second = i64::try_from(second).unwrap() + by;
    jiff::Timestamp::from_second(second).unwrap().to_string()
}

#[test]
fn a_wrong_query_is_told_what_works() {
    let (watch, _) = begun();
    for (path, query, status, part) in [
        ("/v1/overview", "w=15x", 400, "parameter `w`: `15x` cannot be used; use 1m, 15m, 24h"),
        ("/v1/overview", "w=1s", 400, "`w`"),
        ("/v1/overview", "w=18446744073709551615d", 400, "`w`"),
        ("/v1/busiest", "w=90d", 400, "use 1m, 15m or 24h"),
        ("/v1/busiest", "by=size", 400, "use denied, near or rate"),
        ("/v1/busiest", "limit=0", 400, "use 1 to 500"),
        ("/v1/busiest", "policy=nope", 404, "/v1/policies"),
        ("/v1/history", "policy=nope", 404, "/v1/policies"),
        ("/v1/history", "series=allowed,size", 400, "`size` is not counted; use allowed, delayed"),
        ("/v1/history", "from=9&to=8", 400, "`from` is 9, which is not before `to`, 8"),
        ("/v1/history", "from=now", 400, "use seconds since 1970"),
        ("/v1/history", "step=5m", 400, "use 1s, 1m or 1h"),
        ("/v1/changes", "limit=201", 400, "use 1 to 200"),
        ("/v1/alerts", "limit=1001", 400, "use 1 to 1000"),
        ("/v1/other", "", 404, "nothing"),
    ] {
        let (told, detail) = watch.read(path, query, false).unwrap_err();
        assert!(told == status && detail.contains(part), "{path}?{query}: {told} {detail}");
    }
}

/// A tenant passes once a second for an hour, and is then refused; a bank's breaker opens.
#[test]
fn alerts_follow_from_what_the_doors_tell() {
    let (watch, server) = begun();
    let policy = watch.policy("per-tenant", Some(1.25));
    let mut second = 0;
    let mut seconds = |count: u64, allowed: u64, denied: u64| {
        for _ in 0..count {
            (0..allowed).for_each(|_| _ = saw(&watch, policy, Verdict::Allowed, 7));
            (0..denied).for_each(|_| _ = saw(&watch, policy, Verdict::Denied, 7));
            second += 1;
            watch.turn((NOW + second) * 1_000);
        }
    };
    let firing = || {
        let alerts = read(&watch, "/v1/alerts", "");
        let all = alerts["alerts"].as_array().unwrap().clone();
        let firing = all.iter().filter(|one| one["resolved"].is_null());
        let word = |one: &Value| one["rule"].as_str().unwrap().to_owned();
        let mut firing: Vec<String> = firing.map(word).collect();
        firing.sort();
        firing
    };
    watch.named(policy, 7, "tenant.id=t1", "#00000000000000t1");
    seconds(3_900, 1, 0);
    assert_eq!(firing(), ["tenant-near"], "80 % of its rate");
    seconds(120, 1, 9);
    assert_eq!(firing(), ["customer-cut", "tenant-near"]);
    let shown = read(&watch, "/v1/alerts", "limit=1")["alerts"][0].clone();
    assert_eq!((&shown["key"], &shown["policy"]), (&json!("#00000000000000t1"), &json!("per-tenant")));
    assert!(!shown.to_string().contains("tenant.id"), "{shown}");
    let since = Some(Tick::from_secs(NOW));
    let bank = OpenBreaker {
        policy: "bank".to_owned(),
        key: "(all)".to_owned(),
        since,
        why: "19 of 38 calls failed".to_owned(),
        probes: false,
    };
    server.1.lock().push(bank);
    server.0.lock().refused = Some("p.yaml:3: unknown key".to_owned());
    seconds(62, 0, 0);
    assert_eq!(firing(), ["breaker-trips", "config-refused", "customer-cut", "tenant-near"]);
    server.1.lock().clear();
    server.0.lock().refused = None;
    seconds(600, 0, 0);
    assert_eq!(firing(), [""; 0]);
    let all = read(&watch, "/v1/alerts", "");
    assert_eq!((all["alerts"].as_array().unwrap().len(), &all["firing"]), (4, &json!(0)));

    let silence = br#"{"do": "silence", "rule": "tenant-near", "for": "2h", "reason": "the sale"}"#;
    let done = watch.act("/v1/alerts", silence, "ann").unwrap();
    assert!(done.contains("alerts of tenant-near are silenced for 120 min"), "{done}");
    assert_eq!(read(&watch, "/v1/alerts", "")["silences"][0]["who"], "ann");
    let change = read(&watch, "/v1/changes", "limit=1")["changes"][0].clone();
    assert_eq!(
        (&change["what"], &change["who"], &change["reason"]),
        (&json!("alert"), &json!("ann"), &json!("the sale"))
    );
    let end = br#"{"do": "end-silence", "rule": "tenant-near"}"#;
    assert!(watch.act("/v1/alerts", end, "ann").is_ok() && watch.act("/v1/alerts", end, "ann").is_err());
    assert_eq!(watch.act("/v1/other", end, "ann").unwrap_err().0, 404);
}

/// Keys that are refused more often than a customer took his place among those that were judged; and what others asked
/// for in the last minute was taken for what he had asked for all day.
#[test]
fn a_flood_beside_a_customer_hides_him_not() {
    let (watch, _) = begun();
    let policy = watch.policy("per-tenant", None);
    let cost_of = |key: u64, verdict: Verdict, cost: u32| {
        watch.saw(Seen { cost, ..seen(policy, verdict, key) });
    };
    let mut second = 0;
    let mut seconds = |count: u64, each: &dyn Fn()| {
        for _ in 0..count {
            each();
            second += 1;
            watch.turn((NOW + second) * 1_000);
        }
    };
    seconds(3_900, &|| cost_of(7, Verdict::Allowed, 1));
    seconds(240, &|| {
        (0..3).for_each(|_| cost_of(7, Verdict::Denied, 1));
        cost_of(7, Verdict::Allowed, 1);
        for other in 100..200 {
            (0..4).for_each(|_| cost_of(other, Verdict::Denied, 1));
            cost_of(other, Verdict::Allowed, 1_000_000);
        }
    });
    let alerts = read(&watch, "/v1/alerts", "");
    assert_eq!(alerts["alerts"][0]["rule"], "customer-cut", "{alerts}");
    assert_eq!(alerts["firing"], 1);
}

/// A canary refuses keys that its policy would let pass; somebody starts it again.
#[test]
fn a_canary_is_stopped_told_of_and_started_again() {
    let (watch, server) = begun();
    let policy = watch.policy("per ip", Some(10.0));
    let limit = json!({ "rate": "10/s", "burst": 20 });
    let policies = json!([{ "name": "per ip", "limit": limit, "canary": { "limit": { "rate": "1/s" } } }]);
    watch.configured(1, &json!({ "file": { "version": 1, "policies": policies }, "api": {} }).to_string());
    let canary = Canary {
        policy: "per ip".to_owned(),
        text: "limit: 1/s".to_owned(),
        limit: "gcra 1/s".to_owned(),
        share: 0.2,
        in_force: 0.2,
        lasts: Duration::from_secs(3_600),
        denied: 0.01,
        keys_refused: 5,
        failures: 0.02,
        enforce: false,
    };
    server.2.lock().push(canary);
    let share = || server.2.lock()[0].in_force;
    let mut second = 0;
    let mut seconds = |count: u64| {
        for _ in 0..count {
            second += 1;
            for key in 0..50 {
                let (canary, at) = (key < 10 && share() > 0.0, Tick::from_secs(NOW + second));
                let verdict = if canary { Verdict::Denied } else { Verdict::Allowed };
                watch.saw(Seen { policy, verdict, near: false, canary, key, cost: 1, at });
                watch.ended(policy, key, canary, false);
            }
            watch.turn((NOW + second) * 1_000);
        }
    };
    seconds(12);
    let shown = read(&watch, "/v1/overview", "w=1m")["canaries"][0].clone();
    assert_eq!((&shown["policy"], &shown["state"]), (&json!("per ip"), &json!("waits for data")));
    seconds(20);
    assert!(share() <= 0.0, "{shown}");
    let shown = read(&watch, "/v1/overview", "w=1m")["canaries"][0].clone();
    assert_eq!(shown["state"], "rolled back 08:00: 10 keys refused > 5");
    let (denied, failed) = (&shown["denied_share"], &shown["failed_share"]);
    assert_eq!(
        (&denied["canary"], &denied["others"], &failed["canary"]),
        (&json!(1.0), &json!(0.0), &json!(0.0))
    );
    let change = read(&watch, "/v1/changes", "limit=1")["changes"][0].clone();
    let told = ["what", "who", "text"].map(|field| change[field].as_str().unwrap().to_owned());
    assert_eq!(told, ["canary", "guard", "canary of per ip rolled back: 10 keys refused > 5"]);
    let alert = read(&watch, "/v1/alerts", "")["alerts"][0].clone();
    assert_eq!((&alert["rule"], &alert["resolved"]), (&json!("canary-rolled-back"), &Value::Null));
    let refused = read(&watch, "/v1/history", "policy=per%20ip&series=canary_denied,denied&step=1m");
    let sum = |series: &str| {
        let points = refused["series"][series].as_array().unwrap().iter();
        points.map(|point| point[1].as_u64().unwrap()).sum::<u64>()
    };
    assert!(sum("canary_denied") > 0 && sum("canary_denied") == sum("denied"), "{refused}");

    let body = br#"{"share": 0.1, "reason": "once more"}"#;
    let done = watch.act("/v1/canaries/per%20ip", body, "ann").unwrap();
    assert!(done.contains("canary of per ip decides for 10 % of the keys"), "{done}");
    assert!((share() - 0.1).abs() < 1e-9);
    let change = read(&watch, "/v1/changes", "limit=1")["changes"][0].clone();
    assert_eq!((&change["who"], &change["reason"]), (&json!("ann"), &json!("once more")));
    seconds(2);
    assert_eq!(read(&watch, "/v1/alerts", "")["firing"], 0);
    for (path, status) in [("/v1/canaries/login", 404), ("/v1/canaries/%ff", 404), ("/v1/canaries", 404)] {
        assert_eq!(watch.act(path, body, "ann").unwrap_err().0, status, "{path}");
    }
}

#[test]
fn quantiles_are_between_bounds() {
    assert_eq!(quantile(&[], 0.5), None);
    assert_eq!(quantile(&[(1_000, 0), (u64::MAX, 0)], 0.5), None);
    assert_eq!(quantile(&[(1_000, 0), (2_000, 4), (u64::MAX, 0)], 0.5), Some(1_500));
    assert_eq!(quantile(&[(1_000, 1), (2_000, 0), (u64::MAX, 9)], 0.5), Some(2_000));
    assert_eq!(more_durations(&[(1, 5), (2, 3)], &[(1, 4), (2, 4)]), [(1, 1), (2, 0)]);
    assert_eq!(more_durations(&[(1, 5)], &[]), [(1, 5)]);
}

/// Panics once when it is asked.
#[derive(Debug)]
struct Broken(Mutex<bool>);

impl WatchedServer for Broken {
    fn vitals(&self) -> Vitals {
        assert!(!std::mem::take(&mut *self.0.lock()), "it is broken");
        Vitals::default()
    }

    fn ask(&self, _: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(async { Response::new(Bytes::new()) })
    }
}

#[test]
fn a_panic_loses_a_turn_and_no_more() {
    let (watch, server) = (made(), Arc::new(Broken(Mutex::new(false))));
    watch.begin(Arc::<Broken>::clone(&server));
    let policy = watch.policy("per-ip", None);
    *server.0.lock() = true;
    assert_eq!(watch.turn_at_any_rate((NOW + 1) * 1_000, 0), PAUSE);
    assert!(!*server.0.lock(), "it was asked");
    saw(&watch, policy, Verdict::Denied, 7);
    watch.turn_at_any_rate((NOW + 2) * 1_000, 1_000);
    let overview = read(&watch, "/v1/overview", "");
    assert_eq!(
        (&overview["at"], &overview["policies"][0]["name"]),
        (&json!("2027-01-15T08:00:02Z"), &json!("per-ip"))
    );
}

#[test]
fn the_thread_ends_with_the_watch() {
    let (begin, begins) = mpsc::sync_channel(2);
    // The first begins; the second is the end of the first pause.
    (0..2).for_each(|_| begin.send(()).unwrap());
    run(&Weak::new(), &begins);
    drop(begin);
    run(&Weak::new(), &begins);
}
