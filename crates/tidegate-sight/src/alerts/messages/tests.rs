//! Tests of what receivers are told. The time is a number.

use super::*;

const NOW: u64 = 1_800_000_000;

fn alert(rule: Rule, policy: &str, key: &str) -> Alert {
    Alert {
        rule,
        policy: policy.to_owned(),
        key: key.to_owned(),
        since: NOW - 120,
        fired: NOW,
        resolved: None,
        text: format!("{} of {policy}", rule.word()),
        path: "/ui/guards".to_owned(),
    }
}

fn outbox(kind: Kind) -> Outbox {
    Outbox::new(&[kind], Some("https://gate.example".into()))
}

/// Runs the seconds from `from` on and before `to`. Returns the messages with their times.
fn run(outbox: &mut Outbox, alerts: &[Alert], from: u64, to: u64) -> Vec<(u64, Value)> {
    let standing: Vec<Standing<'_>> =
        alerts.iter().map(|alert| Standing { alert, is_silenced: false, was_told: false }).collect();
    let mut told = Vec::new();
    for at in from..to {
        for message in outbox.second(NOW + at, &standing) {
            told.push((at, serde_json::from_str(&message.body).unwrap()));
        }
    }
    told
}

fn times(told: &[(u64, Value)]) -> Vec<u64> {
    told.iter().map(|(at, _)| *at).collect()
}

#[test]
fn alertmanager_hears_of_all_each_minute_and_at_each_change() {
    let mut outbox = outbox(Kind::Alertmanager);
    assert!(run(&mut outbox, &[], 0, 10).is_empty());
    let one = alert(Rule::CustomerCut, "per-tenant", "#1");
    let two = alert(Rule::StoreAway, "", "");
    let told = run(&mut outbox, std::slice::from_ref(&one), 10, 135);
    assert_eq!(times(&told), [10, 70, 130]);
    let first = &told[0].1[0];
    assert_eq!(
        first["labels"],
        json!({ "alertname": "TidegateCustomerCut", "rule": "customer-cut", "severity": "warning",
            "policy": "per-tenant", "key": "#1" })
    );
    assert_eq!(first["startsAt"], "2027-01-15T07:58:00Z");
    assert_eq!(first["endsAt"], "2027-01-15T08:04:10Z", "four minutes after it was told");
    assert_eq!(first["generatorURL"], "https://gate.example/ui/guards");
    let told = run(&mut outbox, &[one.clone(), two.clone()], 135, 190);
    assert_eq!(times(&told), [135]);
    assert_eq!((told[0].1.as_array().unwrap().len(), &told[0].1[1]["labels"].get("policy")), (2, &None));
    let told = run(&mut outbox, &[two], 190, 200);
    assert_eq!((times(&told), &told[0].1[1]["endsAt"]), (vec![190], &json!("2027-01-15T08:03:10Z")));
    let told = run(&mut outbox, &[], 200, 900);
    assert_eq!(times(&told).first(), Some(&200));
    assert!(times(&told).last().is_some_and(|last| *last <= 500), "what is over is told for five minutes");
}

#[test]
fn a_webhook_hears_of_a_group_after_its_wait_and_of_news_after_its_pause() {
    let mut outbox = outbox(Kind::Webhook);
    let keys: Vec<Alert> = (0..5).map(|key| alert(Rule::CustomerCut, "p", &format!("#{key}"))).collect();
    let told = run(&mut outbox, &keys, 0, 100);
    assert_eq!(times(&told), [10]);
    let message = &told[0].1;
    assert_eq!(
        (&message["version"], &message["status"], &message["truncatedAlerts"], &message["receiver"]),
        (&json!("4"), &json!("firing"), &json!(2), &json!("tidegate"))
    );
    assert_eq!(message["groupKey"], "{}:{rule=\"customer-cut\", policy=\"p\"}");
    assert_eq!(message["groupLabels"], json!({ "rule": "customer-cut", "policy": "p" }));
    assert_eq!(message["commonLabels"].get("key"), None);
    assert_eq!(message["commonAnnotations"], json!({ "summary": "customer-cut of p" }));
    let alerts = message["alerts"].as_array().unwrap();
    assert_eq!((alerts.len(), &alerts[0]["endsAt"]), (3, &json!("0001-01-01T00:00:00Z")));
    assert_ne!(alerts[0]["fingerprint"], alerts[1]["fingerprint"]);
    // One of them ends, which is no news, and another begins, which is told five minutes after the last message. Then
    // nothing changes for hours.
    assert!(run(&mut outbox, &keys[1..], 100, 600).is_empty());
    let mut keys = keys;
    keys[0] = alert(Rule::CustomerCut, "p", "#5");
    let told = run(&mut outbox, &keys, 600, 20_000);
    assert_eq!(times(&told), [600, 600 + 4 * 3_600]);
    let over = told[0].1["alerts"].as_array().unwrap().iter().filter(|one| one["status"] == "resolved");
    assert_eq!((over.count(), &told[0].1["truncatedAlerts"]), (0, &json!(3)), "those that fire come first");
    let told = run(&mut outbox, &[], 20_000, 20_400);
    assert_eq!((times(&told), &told[0].1["status"]), (vec![20_000], &json!("resolved")));
    assert_eq!(told[0].1["alerts"][0]["endsAt"], json!(rfc3339(NOW + 20_000)));
}

/// A limit that refuses nearly half was a message each five minutes: customers were cut in turns.
#[test]
fn what_comes_and_goes_for_long_is_seldom_told() {
    let mut outbox = outbox(Kind::Webhook);
    let cut = |keys: std::ops::Range<u64>| -> Vec<Alert> {
        keys.map(|key| alert(Rule::CustomerCut, "p", &format!("#{key}"))).collect()
    };
    let mut all = Vec::new();
    for turn in 0..10 {
        all.extend(run(&mut outbox, &cut(turn..turn + 2), turn * 300, (turn + 1) * 300));
    }
    assert_eq!(times(&all), [10, 310]);
    assert_eq!(times(&run(&mut outbox, &cut(10..12), 3_000, 4_000)), [3_910], "an hour later");
    assert_eq!(times(&run(&mut outbox, &cut(10..18), 4_000, 5_000)), [4_210], "four times as many");
    assert_eq!(times(&run(&mut outbox, &[], 5_000, 6_000)), [5_000], "all is over");
    assert_eq!(times(&run(&mut outbox, &cut(1..2), 6_000, 6_100)), [6_010], "and begins anew");
}

#[test]
fn what_comes_and_goes_within_the_wait_is_not_told() {
    let mut outbox = outbox(Kind::Webhook);
    let one = [alert(Rule::BreakerTrips, "bank", "")];
    assert!(run(&mut outbox, &one, 0, 10).is_empty());
    assert!(run(&mut outbox, &[], 10, 1_000).is_empty());
}

#[test]
fn a_webhook_has_twelve_messages_an_hour_and_hears_how_many_were_left_out() {
    let mut outbox = outbox(Kind::Webhook);
    let many: Vec<Alert> = (0..20).map(|one| alert(Rule::DeniedUnusual, &format!("p{one}"), "")).collect();
    let told = run(&mut outbox, &many, 0, 4_000);
    assert_eq!(times(&told[..10]), [10; 10], "two are kept for what is critical");
    let late = &told[10..];
    assert!(late.iter().all(|(at, _)| *at >= 3_610), "{:?}", times(&told));
    assert_eq!(late.len(), 10, "each of the others is told when there is room");
    let left_out = late[0].1["commonAnnotations"]["left_out"].as_str().unwrap();
    assert_eq!(left_out, "+120 left out", "ten, each five minutes");
    assert_eq!(late[1].1["commonAnnotations"].get("left_out"), None);
}

#[test]
fn many_messages_take_no_room_of_what_is_critical() {
    let mut outbox = outbox(Kind::Webhook);
    let mut all: Vec<Alert> = (0..20).map(|one| alert(Rule::DeniedUnusual, &format!("p{one}"), "")).collect();
    run(&mut outbox, &all, 0, 100);
    all.push(alert(Rule::StoreAway, "", ""));
    let told = run(&mut outbox, &all, 100, 1_000);
    assert_eq!(times(&told), [110]);
    assert_eq!(told[0].1["groupLabels"]["rule"], "store-away");
}

#[test]
fn what_is_silenced_is_not_told_until_the_silence_ends() {
    let one = alert(Rule::TenantNear, "p", "#1");
    for kind in [Kind::Webhook, Kind::Alertmanager] {
        let mut outbox = outbox(kind);
        let silenced = [Standing { alert: &one, is_silenced: true, was_told: false }];
        assert!((0..500).all(|at| outbox.second(NOW + at, &silenced).is_empty()), "{kind:?}");
        assert!(!run(&mut outbox, std::slice::from_ref(&one), 500, 540).is_empty(), "{kind:?}");
        assert!((540..1_000).all(|at| outbox.second(NOW + at, &silenced).is_empty()), "{kind:?}");
    }
}

#[test]
fn a_test_goes_to_each_receiver_in_its_own_form() {
    let mut outbox = Outbox::new(&[Kind::Alertmanager, Kind::Webhook], None);
    let told = outbox.test(NOW);
    assert_eq!(told.iter().map(|one| one.receiver).collect::<Vec<_>>(), [0, 1]);
    let bodies: Vec<Value> = told.iter().map(|one| serde_json::from_str(&one.body).unwrap()).collect();
    assert_eq!(bodies[0][0]["labels"]["alertname"], "TidegateTest");
    assert_eq!(bodies[1]["alerts"][0]["labels"]["alertname"], "TidegateTest");
    assert_eq!((&bodies[1]["status"], &bodies[1]["externalURL"]), (&json!("firing"), &json!("")));
}

/// Each start had twelve messages, and a server that crashes starts each minute.
#[test]
fn restarts_bring_no_more_messages_and_tests_count() {
    let many: Vec<Alert> = (0..20).map(|one| alert(Rule::DeniedUnusual, &format!("p{one}"), "")).collect();
    let mut before = outbox(Kind::Webhook);
    assert_eq!(run(&mut before, &many, 0, 100).len(), 10);
    assert_eq!(before.left_out(), [10]);
    let mut after = outbox(Kind::Webhook);
    after.remember(&before.sent(), NOW + 100);
    assert!(after.test(NOW + 100).is_empty(), "ten are sent");
    assert_eq!(times(&run(&mut after, &many, 100, 4_000)), [3_710; 10], "an hour after the others");
    let mut outbox = outbox(Kind::Webhook);
    let tests = (0..20).map(|_| outbox.test(NOW).len()).sum::<usize>();
    assert_eq!((tests, outbox.test(NOW + 3_600).len()), (10, 1));
}

#[test]
fn what_the_process_before_has_told_is_no_news_but_its_end_is() {
    let mut outbox = outbox(Kind::Webhook);
    let one = alert(Rule::StoreAway, "", "");
    let carried = [Standing { alert: &one, is_silenced: false, was_told: true }];
    assert!((0..3_600).all(|at| outbox.second(NOW + at, &carried).is_empty()));
    let told = run(&mut outbox, &[], 3_600, 4_000);
    assert_eq!((times(&told), &told[0].1["status"]), (vec![3_600], &json!("resolved")));
}

/// Callers choose how many keys are near their rates.
#[test]
fn information_takes_no_room_of_warnings() {
    let mut outbox = outbox(Kind::Webhook);
    let mut all: Vec<Alert> = (0..20).map(|one| alert(Rule::TenantNear, &format!("p{one}"), "#1")).collect();
    assert_eq!(times(&run(&mut outbox, &all, 0, 100)), [10; 4]);
    all.push(alert(Rule::CustomerCut, "p", "#2"));
    let told = run(&mut outbox, &all, 100, 1_000);
    assert_eq!(times(&told), [110]);
    assert_eq!(told[0].1["groupLabels"]["rule"], "customer-cut");
    assert_eq!(told[0].1["commonAnnotations"]["left_out"], "+16 left out");
}

/// What was over a minute ago was said to end in an hour, and an Alertmanager believed it.
#[test]
fn after_a_step_of_the_clock_nothing_ends_in_the_future() {
    let one = [alert(Rule::StoreAway, "", "")];
    for by in [-3_600_i64, 3_600] {
        let mut outbox = outbox(Kind::Alertmanager);
        run(&mut outbox, &one, 10_000, 10_040);
        assert_eq!(times(&run(&mut outbox, &[], 10_040, 10_100)), [10_040]);
        outbox.follow_step(by);
        let at = 10_100_u64.saturating_add_signed(by);
        let told = run(&mut outbox, &[], at, at + 900);
        assert_eq!(times(&told), [0, 60, 120, 180, 240].map(|after| at + after));
        let over = json!(rfc3339(NOW + at - 60));
        assert!(told.iter().all(|(_, list)| list[0]["endsAt"] == over), "{told:?}");
    }
    let mut outbox = outbox(Kind::Webhook);
    run(&mut outbox, &one, 10_000, 10_100);
    outbox.follow_step(-3_600);
    let told = run(&mut outbox, &[], 6_500, 7_000);
    assert_eq!(times(&told), [6_710], "five minutes after its last message");
}

/// Callers choose keys: each second another one is near its rate, and no longer the second after.
#[test]
fn alerts_that_are_over_wait_in_a_bounded_number() {
    let mut outbox = outbox(Kind::Webhook);
    let first = alert(Rule::TenantNear, "per-tenant", "#first");
    run(&mut outbox, std::slice::from_ref(&first), 0, 700);
    for at in 0..3 * MOST_OVER as u64 {
        let one = alert(Rule::TenantNear, "per-tenant", &format!("#{at}"));
        let carried = [
            Standing { alert: &first, is_silenced: false, was_told: true },
            Standing { alert: &one, is_silenced: false, was_told: true },
        ];
        outbox.second(NOW + 700, &carried);
    }
    let Receiver::Webhook(hook) = &outbox.receivers[0] else { panic!("a webhook") };
    let members = hook.groups.values().map(|group| group.members.len()).max();
    assert_eq!(members, Some(MOST_OVER + 2));
}
