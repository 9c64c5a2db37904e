use super::*;

/// Requests that a policy marks or demotes must not be counted as in shadow mode, where they would be denied one day.
#[test]
fn what_passes_over_a_limit_is_marked_or_demoted_and_not_refused() {
    let text = "  - { name: soft, over: mark, limit: { rate: 1/h, burst: 10 } }\n  \
        - { name: heavy, over: demote, limit: { rate: 1/h, burst: 20 }, shadow_limit: { rate: 1/h, burst: 5 } }\n  \
        - { name: all, limit: { rate: 1/h, burst: 40, keep_for: { critical: 50% } } }\n";
    let replay = run(text, "burst 50 key a");
    let outcome = &replay.outcomes()[0];
    // Of the last 30 requests, the first 20 find the part of `all` used up that is not reserved for critical
    // requests.
    assert_eq!((outcome.allowed, outcome.denied, outcome.shadow_denied), (20, 30, 45));
    assert_eq!((outcome.marked, outcome.demoted), (Some(10), Some(0)));
    let [soft, heavy, shadow, all] = &outcome.policies[..] else { panic!("{outcome:#?}") };
    assert_eq!((soft.marked, soft.demoted, soft.denied, soft.shadow_denied), (Some(40), None, 0, 0));
    assert_eq!((heavy.marked, heavy.demoted, heavy.shadow_denied), (None, Some(30), 0));
    assert_eq!((shadow.demoted, shadow.shadow_denied), (None, 45));
    assert_eq!((all.marked, all.demoted, all.denied), (None, None, 30));
    let measure = |text: &str| text.parse::<Threshold>().unwrap().measure(outcome, &Tally::default());
    for (text, measured) in [("marked > 3", 10.0), ("demoted{policy=heavy} > 3", 30.0), ("marked > 3%", 20.0)]
    {
        assert_eq!(measure(text).unwrap().measured, measured, "{text}");
    }
    for (text, says) in [
        ("shadow_denied{policy=soft} > 1", "`soft` lets through what is over its limit; use marked"),
        ("denied{policy=soft} > 1", "`soft` lets through what is over its limit; use marked"),
        ("delayed{policy=soft} < 1", "`soft` has no limit with max_wait, so it delays nobody; use marked"),
        ("demoted{policy=soft} > 1", "`soft` has another `over`"),
        ("marked{policy=all} > 1", "`all` has another `over`"),
    ] {
        assert!(measure(text).unwrap_err().ends_with(says), "{text}");
    }
    let json = serde_json::to_value(outcome).unwrap();
    assert_eq!((&json["marked"], json["policies"][3].get("marked")), (&serde_json::json!(10), None));

    let options = ReplayOptions { details: true, ..ReplayOptions::default() };
    let ladders = crate::ladder::Ladders::new(&set(text), &options);
    let report = crate::report::Report {
        title: "t",
        replay: &replay,
        log: None,
        doubts: &[],
        ladders: &ladders,
        keys: 5,
    };
    let page = crate::report::page(&report).unwrap();
    assert!(page.contains("<th class=\"n\">Marked</th>") && page.contains(", 10 marked"), "{page}");
}
