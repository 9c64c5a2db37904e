//! Degrade switches of a running server, turned by a person on call.

use serde_json::json;

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::Serving;

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: no previews
    when: switch previews off
    access: { deny: [0.0.0.0/0] }
    limit: { rate: 1000000/day }
  - name: no search
    when: switch search off
    limit: { rate: 1000000/day }
";

#[test]
fn switches_are_listed_and_turned_golden() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let switch = |words: &[&str]| desk.run(&[&["switch"], words, &["--server", serving.url()]].concat());
    assert_eq!(
        switch(&["list"]).code(0).out,
        "SWITCH     STATE   BY   PRIORITIES   UNTIL   WHY\n\
         previews   on      -    -            -       -\n\
         search     on      -    -            -       -\n"
    );
    assert_eq!(serving.statuses("203.0.113.9", 1), [200]);
    let off = switch(&["off", "previews", "--below", "critical-plus", "--reason", "an upgrade"]).code(0).out;
    assert_eq!(
        off,
        "SWITCH     STATE   BY     PRIORITIES            UNTIL   WHY\n\
         previews   off     hand   below critical-plus   -       an upgrade\n"
    );
    assert_eq!(serving.statuses("203.0.113.9", 1), [403], "a policy follows the switch");
    let off = switch(&["off", "previews", "--for", "1h", "-o", "json"]).code(0).json();
    holds(&schema(&desk, "switch"), &off, "switch off");
    let by_hand = &off["switches"][0]["by_hand"];
    assert_eq!((&by_hand["below"], &by_hand["reason"]), (&json!(null), &json!("")));
    assert!(by_hand["until"].as_str().is_some_and(|until| until.ends_with('Z')), "{off}");
    let on = switch(&["on", "previews"]).code(0);
    assert!(
        on.out.ends_with("previews   on      -    -            -       -\n") && on.err.is_empty(),
        "{on:?}"
    );
    assert_eq!(serving.statuses("203.0.113.9", 1), [200]);
    let listed = switch(&["list", "-o", "json"]).code(0).json();
    holds(&schema(&desk, "switch"), &listed, "switch list");
    assert_eq!(listed["switches"].as_array().unwrap().len(), 2);

    // A person cannot turn on what a signal turned off; a script must notice.
    serving.put("/v1/switches/search", r#"{"state": "off", "by": "signal", "for": "1h", "reason": "slow"}"#);
    switch(&["off", "search"]).code(0);
    let both = switch(&["list"]).code(0).out;
    assert_eq!(both.matches("search     off").count(), 2, "a row for each cause: {both}");
    let still = switch(&["on", "search"]).code(1);
    assert!(
        still.out.contains("signal") && still.err.contains("a signal keeps this switch off"),
        "{still:?}"
    );

    let kept = ["on", "search", "--for", "1h", "--reason", "a demonstration", "-o", "json"];
    let kept = switch(&kept).code(0).json();
    holds(&schema(&desk, "switch"), &kept, "switch on");
    let row = switch(&["list"]).code(0).out;
    assert!(row.contains("search     on      hand     none") && row.contains("a demonstration"), "{row}");
    switch(&["on", "search"]).code(1);

    for (words, code, says) in [
        (&["off", "preveiws"][..], 1, "did you mean \"previews\"?"),
        (&["on", "zzz"], 1, "there are previews, search"),
        (
            &["off", "previews", "--for", "31d"],
            1,
            "`31d` is not a time for a switch to be off; use up to 30d",
        ),
        (&["off", "previews", "--for", "5"], 2, "--for"),
        (&["off", "previews", "--below", "urgent"], 2, "`urgent`"),
        (&["on", "previews", "--reason", "x"], 2, "--for"),
        (&["auto", "previews"], 2, "unrecognized subcommand"),
    ] {
        let wrong = switch(words).code(code);
        assert!(wrong.err.contains(says), "{words:?}: {wrong:?}");
    }
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn without_switches_the_list_says_so() {
    let desk = Desk::new();
    let serving = Serving::start(&desk, &[]);
    let listed = desk.run(&["switch", "list", "--server", serving.url()]).code(0);
    assert_eq!(listed.out, "the policy file names no switch\n");
    assert_eq!(serving.stop(), Some(0));
}
