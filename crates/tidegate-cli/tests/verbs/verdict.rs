//! When a replay gives a verdict, and about what.

use crate::verbs::{Desk, sample};

/// A misspelt name, an empty log and an unreadable log must not exit with 0 and "passed" thresholds.
#[test]
fn a_replay_of_nothing_is_no_pass() {
    let desk = Desk::new();
    let log = sample("access.log");
    desk.write("empty.log", "");
    desk.write("bad.log", "rubbish\nmore of it\n");
    desk.write("header.csv", "time,client.ip\n");
    desk.write(
        "p.yaml",
        "version: 1\npolicies:\n  - { name: a, match: { path: /gone }, limit: { rate: 1/s } }\n",
    );
    let limit = ["--rate", "1/s", "--fail-if", "denied > 1%"];
    for (arguments, told) in [
        (&["empty.log"][..], "no request in empty.log, which is empty"),
        (&["bad.log"], "bad.log: "),
        (
            &["bad.log", "--format", "combined"],
            "no request in bad.log: malformed lines 2, the first is bad.log:1: no readable time: rubbish",
        ),
        (&[&log, "--format", "json"], "; leave --format out: the lines are read as combined"),
        (
            &[&log, "--log-format", "$remote_addr [$time_local] \"$request\" $status"],
            "; leave --log-format out: the lines are read as combined",
        ),
        (&["header.csv"], "no request in header.csv, which has only blank lines, comments or a header"),
        (
            &[&log, "--by", "user"],
            "--by user: nothing matched: no policy matches any of the 4,478 requests; no request has user (did you mean user.id?); the log has ",
        ),
        (
            &[&log, "--by", "tennant"],
            "nothing matched: no policy matches any of the 4,478 requests; no request has tennant; the log has request.method, ",
        ),
    ] {
        for quiet in [&[][..], &["-q"], &["-q", "-o", "json"]] {
            let ran = desk.run(&[&["replay"], arguments, &limit, quiet].concat()).code(2);
            assert!(ran.err.contains(told) && ran.out.is_empty(), "{ran:?}");
        }
    }
    let nowhere = desk.run(&["replay", &log, "-c", "p.yaml", "-q"]).code(2);
    let why = "requests; match of policy \"a\" does not fit the first request, which has request.path \"/";
    assert!(nowhere.err.contains("nothing matched") && nowhere.err.contains(why), "{nowhere:?}");
    let host = "version: 1\npolicies:\n  - { name: a, match: { host: a.example }, limit: { rate: 1/s } }\n";
    desk.write("p.yaml", host);
    let nowhere = desk.run(&["replay", &log, "-c", "p.yaml", "-q"]).code(2);
    assert!(nowhere.err.contains("the first request, which has no request.host"), "{nowhere:?}");
    let off = "version: 1\npolicies:\n  - { name: a, direction: outbound, by: [client.ip], limit: { rate: 1/s } }\n";
    desk.write("p.yaml", off);
    let nowhere = desk.run(&["replay", &log, "-c", "p.yaml", "-q"]).code(2);
    assert!(nowhere.err.contains("look at match"), "{nowhere:?}");
    let partly = desk.run(&["replay", &log, "--rate", "1/s", "--by", "client.ip,team"]).code(0);
    assert!(partly.err.contains("no request has team; the log has"), "{partly:?}");
}

/// A policy that met nothing must not look tested because another one passed.
#[test]
fn a_policy_that_matched_nothing_is_named_beside_the_thresholds_of_all() {
    let desk = Desk::new();
    let log = sample("access.log");
    desk.write(
        "p.yaml",
        "version: 1\npolicies:\n  - { name: all, limit: { rate: 9000/s, burst: 9000 } }\n  - { name: gone, match: { path: /gone }, limit: { rate: 1/s } }\n",
    );
    let judged = |threshold: &str| desk.run(&["replay", &log, "-c", "p.yaml", "-q", "--fail-if", threshold]);
    let ran = judged("denied > 1%").code(0);
    assert!(
        ran.err.contains("no request of the log matches gone: --fail-if without a policy says nothing"),
        "{ran:?}"
    );
    assert_eq!(judged("denied{policy=all} > 1%").code(0).err, "");
}

/// One request a minute, the latest first: beyond the window they cannot be sorted.
fn backwards() -> String {
    let line = |minute: u32| {
        format!("203.0.113.9 - - [17/May/2015:10:{minute:02}:00 +0000] \"GET / HTTP/1.1\" 200 5\n")
    };
    (0..60).rev().map(line).collect()
}

/// If denials are unreliable, thresholds must not be judged, even with `-q`.
#[test]
fn a_log_that_is_much_amiss_gives_no_verdict() {
    let desk = Desk::new();
    desk.write("back.log", backwards());
    let back = ["replay", "back.log", "--rate", "1/min", "-q", "--fail-if", "denied > 1%"];
    let late = desk.run(&back).code(2);
    assert!(late.out.contains("NO VERDICT  53 of 60 requests (88.3 %) came too late"), "{late:?}");
    assert!(late.out.contains("no verdict  fail if denied > 1%"), "{late:?}");
    assert!(
        late.err.contains("; --reorder 60min puts them in order; --max-late 89% gives a verdict"),
        "{late:?}"
    );
    desk.run(&[&back[..], &["--reorder", "1h"]].concat()).code(0);
    desk.run(&[&back[..], &["--max-late", "90%"]].concat()).code(3);
    let clamped = desk.run(&[&back[..], &["--order", "clamp"]].concat()).code(2);
    assert!(clamped.err.contains("--order sort --reorder 60min"), "{clamped:?}");
    let value = desk.run(&[&back[..], &["-o", "json"]].concat()).code(2).json();
    assert!(value["no_verdict"][0].as_str().unwrap().starts_with("53 of 60 requests"), "{value}");
    assert!(value["thresholds"][0]["holds"].is_null(), "{value}");
    desk.run(&[&back[..], &["--plot", "out"]].concat()).code(2);
    assert!(desk.read("out/report.html").contains("No verdict: 53 of 60 requests"));

    let plain = std::fs::read_to_string(sample("access.log")).unwrap();
    let lines: Vec<&str> = plain.lines().take(18).chain(["-- MARK --"]).collect();
    desk.write("marked.log", lines.join("\n"));
    let marked = ["replay", "marked.log", "--rate", "100/s", "-q"];
    let malformed = desk.run(&marked).code(2);
    assert!(
        malformed.out.contains("NO VERDICT  1 of 19 lines (5.26 %) are malformed, more than 5.00 %"),
        "{malformed:?}"
    );
    assert!(malformed.err.contains("--max-malformed 6% gives a verdict"), "{malformed:?}");
    let sound = desk.run(&[&marked[..], &["--max-malformed", "6%", "-o", "json"]].concat()).code(0).json();
    assert_eq!(sound["no_verdict"], serde_json::json!([]));
    assert!(desk.run(&[&marked[..], &["--max-late", "2"]].concat()).code(2).err.contains("is not a share"));
}

#[test]
fn malformed_and_late_are_words_of_conditions() {
    let desk = Desk::new();
    let plain = std::fs::read_to_string(sample("access.log")).unwrap();
    let lines: Vec<&str> = plain.lines().take(49).chain(["-- MARK --"]).collect();
    desk.write("marked.log", lines.join("\n"));
    desk.write("back.log", backwards());
    let run = |log: &str, condition: &str| {
        desk.run(&["replay", log, "--rate", "100/s", "--max-late", "100%", "-q", "--fail-if", condition])
    };
    let failed = run("marked.log", "malformed > 1%").code(3);
    assert!(failed.out.contains("FAILED  fail if malformed > 1%: measured 2.000 %"), "{failed:?}");
    run("marked.log", "malformed > 1").code(0);
    run("marked.log", "late > 0").code(0);
    let late = run("back.log", "late > 52").code(3);
    assert!(late.out.contains("measured 53"), "{late:?}");
    run("back.log", "late > 90%").code(0);
    assert!(run("back.log", "late{policy=gcra} > 1").code(2).err.contains("is about the whole log"));
}

/// A shadow limit of `2/min` must not affect the results of a sound `10/s`: it would hit 112 of 122 clients and fail
/// a threshold.
#[test]
fn a_shadow_limit_leaves_the_verdict_on_the_limit_alone() {
    let desk = Desk::new();
    let log = sample("access.log");
    let limit = "version: 1\npolicies:\n  - name: per-ip\n    by: [client.ip]\n    limit: { rate: 10/s, burst: 20 }\n";
    desk.write("alone.yaml", limit);
    desk.write("tried.yaml", format!("{limit}    shadow_limit: {{ rate: 2/min, burst: 2 }}\n"));
    let condition = ["--fail-if", "keys_hit{policy=per-ip} > 3", "--fail-if", "keys_hit > 3"];
    let value = |file: &str| {
        let arguments = [&["replay", &log, "-c", file, "-q", "-o", "json"][..], &condition].concat();
        desk.run(&arguments).code(0).json()["runs"][0].clone()
    };
    let (alone, tried) = (value("alone.yaml"), value("tried.yaml"));
    assert_eq!(alone["policies"][0], tried["policies"][0]);
    assert_eq!((&alone["denied"], &tried["denied"]), (&271.into(), &271.into()));
    assert_eq!(
        (&tried["policies"][0]["denied"], &tried["policies"][0]["keys_hit"]),
        (&271.into(), &1.into())
    );
    let shadow = &tried["policies"][1];
    assert_eq!(
        (&shadow["name"], &shadow["shadow_limit_of"], &shadow["mode"]),
        (&"per-ip (shadow_limit)".into(), &"per-ip".into(), &"shadow".into())
    );
    assert_eq!(
        (&shadow["matched"], &shadow["denied"], &shadow["keys_hit"]),
        (&4478.into(), &0.into(), &112.into())
    );
    assert_eq!(shadow["limits"], serde_json::json!(["gcra 2/min burst 2"]));

    let of_shadow = ["replay", &log, "-c", "tried.yaml", "-q", "--plot", "out", "--fail-if"];
    let ran = desk.run(&[&of_shadow[..], &["keys_hit{policy=per-ip (shadow_limit)} > 111"]].concat()).code(3);
    let row = |name: &str| ran.out.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("per-ip  ").contains("271    6.05") && !row("per-ip  ").contains("112"), "{ran:?}");
    assert!(row("per-ip (shadow_limit)").contains("112"), "{ran:?}");
    let page = desk.read("out/report.html");
    assert!(page.contains("<td>per-ip</td><td>enforce</td><td>gcra 10/s burst 20</td>"), "{page}");
    assert!(
        page.contains("<td>per-ip (shadow_limit)</td><td>shadow</td><td>gcra 2/min burst 2</td>"),
        "{page}"
    );
    let unsaid = desk.run(&[&of_shadow[..], &["denied{policy=per-ip (shadow_limit)} > 1"]].concat()).code(2);
    assert!(unsaid.err.contains("use shadow_denied"), "{unsaid:?}");
    let unknown =
        desk.run(&[&of_shadow[..], &["keys_hit{policy=per-ipp (shadow_limit)} > 1"]].concat()).code(2);
    assert!(unknown.err.contains("there are per-ip, per-ip (shadow_limit)"), "{unknown:?}");
}
