//! Generated traffic on a virtual clock.

use crate::verbs::readme::words;
use crate::verbs::{Desk, repository};

#[test]
fn a_seed_makes_the_same_traffic_again() {
    let desk = Desk::new();
    let run = |seed: &str| {
        let traffic = "poisson 80/s 20s, burst 50, ramp 10/s 200/s 10s";
        let arguments = ["simulate", "--rate", "50/s", "--traffic", traffic, "--seed", seed, "-o", "json"];
        let mut value = desk.run(&arguments).code(0).json();
        value["runs"].take()
    };
    let seven = run("7");
    assert_eq!(seven, run("7"));
    assert_ne!(seven, run("8"));
    assert!(seven[0]["denied"].as_u64().unwrap() > 0);
}

/// Ten a second for ten seconds against five a second and a burst of five: 5 + 5 × 9.9 s, rounded down.
#[test]
fn steady_traffic_is_admitted_at_the_rate() {
    let arguments = ["simulate", "--rate", "5/s", "--traffic", "steady 10/s 10s", "-o", "json"];
    let value = Desk::new().run(&arguments).code(0).json();
    let run = &value["runs"][0];
    assert_eq!((&run["requests"], &run["allowed"]), (&100.into(), &54.into()));
}

#[test]
fn algorithms_see_the_same_requests() {
    let desk = Desk::new();
    let algorithms = "token-bucket,leaky-bucket,fixed-window,sliding-window,sliding-counter,sliding-log";
    let arguments = [
        "simulate",
        "--rate",
        "100/s",
        "--burst",
        "100",
        "--traffic",
        "steady 80/s 10s, burst 500, steady 150/s 10s",
        "--compare",
        algorithms,
    ];
    let value = desk.run(&[&arguments[..], &["-o", "json"]].concat()).code(0).json();
    let runs = value["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 7);
    for run in runs {
        assert_eq!(run["requests"], runs[0]["requests"]);
        assert!(run["denied"].as_u64().unwrap() >= 400, "a burst of 500 has no room in a hundred: {run}");
    }
    assert_eq!(runs[0]["allowed"], runs[1]["allowed"], "gcra and token bucket are one law");
    let drawn = desk.run(&[&arguments[..], &["--plot", "out.svg"]].concat()).code(0);
    assert!(drawn.out.contains("sliding-log") && drawn.err.contains("wrote out.svg"), "{drawn:?}");
    assert!(desk.read("out.svg").starts_with("<svg "));
}

/// Compared guards are drawn with one curve for each run.
#[test]
fn guards_are_compared_beside_one_another() {
    let desk = Desk::new();
    let arguments = [
        "simulate",
        "--limit",
        "{algorithm: concurrency, max: 10}",
        "--traffic",
        "poisson 100/s 10s taking 50ms..150ms, poisson 100/s 10s taking 500ms failing 50%",
        "--compare",
        "{algorithm: adaptive, law: vegas},{algorithm: breaker}",
        "--compare",
        "{algorithm: concurrency, max: 40}",
    ];
    let value = desk.run(&[&arguments[..], &["-o", "json"]].concat()).code(0).json();
    let runs = value["runs"].as_array().unwrap();
    let of = |run: &serde_json::Value| {
        let guard = &run["policies"][0]["guards"][0];
        (run["name"].as_str().unwrap().to_owned(), guard["most_in_flight"].as_u64().unwrap())
    };
    let runs: Vec<_> = runs.iter().map(of).collect();
    let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    let wanted = ["concurrency", "adaptive, law vegas", "breaker", "concurrency, max 40"];
    assert_eq!(names, wanted);
    assert_eq!((runs[0].1, runs[3].1), (10, 40), "{runs:?}");
    desk.run(&[&arguments[..], &["--plot", "out.svg"]].concat()).code(0);
    let svg = desk.read("out.svg");
    for shown in wanted.iter().chain(&[
        "denied per second",
        "limit of requests in flight",
        "breaker: breaker",
        "half-open",
    ]) {
        assert!(svg.contains(shown), "{shown}");
    }
    assert!(svg.contains("in ms at p99"));
    desk.run(&[
        "simulate",
        "--rate",
        "1/s",
        "--traffic",
        "burst 3",
        "--compare",
        "{algorithm: concurrency, max: 2}",
    ])
    .code(2);
}

#[test]
fn counts_of_tables_have_a_comma_at_each_thousand() {
    let desk = Desk::new();
    let table = desk.run(&["simulate", "--rate", "5/s", "--traffic", "burst 12500"]).code(0).out;
    assert!(table.contains("12,500") && table.contains("12,500/s") && !table.contains("12500"), "{table}");
}

#[test]
fn traffic_that_is_not_understood_is_pointed_at() {
    let desk = Desk::new();
    let wrong = desk.run(&["simulate", "--rate", "1/s", "--traffic", "steady 80/s 1m, bust 500"]).code(2);
    assert!(wrong.err.contains("column 17") && wrong.err.contains("did you mean `burst`?"), "{wrong:?}");
    assert!(desk.run(&["simulate", "--rate", "1/s"]).code(2).err.contains("no traffic"));
    assert!(desk.run(&["simulate", "--traffic", "burst 5"]).code(2).err.contains("no limit"));
    let algorithm =
        desk.run(&["simulate", "--algorithm", "gcro", "--rate", "1/s", "--traffic", "burst 5"]).code(2);
    assert!(algorithm.err.contains("did you mean \"gcra\"?"), "{algorithm:?}");
    let both = ["simulate", "--rate", "1/s", "--traffic", "burst 5", "--trace", "-"];
    desk.run(&both).code(2);
}

/// `--rate` must not silently win over the rate in `--limit`.
#[test]
fn a_limit_that_is_said_twice_is_a_mistake() {
    let desk = Desk::new();
    let run = |limit: &[&str]| desk.run(&[&["simulate", "--traffic", "burst 5", "-q"], limit].concat());
    for (limit, names) in [
        (
            &["--limit", "{rate: 5/s}", "--rate", "10/s"][..],
            "--limit says rate 5/s and --rate says rate 10/s; say it in one of them",
        ),
        (
            &["--limit", "{rate: 5/s, burst: 3}", "--burst", "7"],
            "--limit says burst 3 and --burst says burst 7",
        ),
        (
            &["--rate", "5/s", "--set", "buckets=3", "--set", "buckets=4"],
            "--set says buckets 3 and --set says buckets 4",
        ),
    ] {
        let told = run(limit).code(2);
        assert!(told.err.contains(names), "{told:?}");
    }
    run(&["--limit", "{rate: 5/s}", "--burst", "7"]).code(0);
    for (rate, write) in [("10rps", "write 10/s"), ("10r/s", "write 10/s"), ("0.5/s", "write 1/2s")] {
        let told = run(&["--rate", rate]).code(2);
        assert!(told.err.starts_with("error: --rate: ") && told.err.contains(write), "{told:?}");
    }
}

/// A file beside a limit on the command line must not look as if it were used.
#[test]
fn a_file_that_is_not_used_is_remarked_on() {
    let desk = Desk::new();
    desk.write("p.yaml", "version: 1\npolicies: []\n");
    desk.write("trace.jsonl", "{\"t\":0,\"key\":\"a\"}\n");
    for input in [["--traffic", "burst 1"], ["--trace", "trace.jsonl"]] {
        let told = desk.run(&[&["simulate", "-c", "p.yaml", "--rate", "5/s"], &input[..]].concat()).code(0);
        assert!(told.err.contains("p.yaml is not used: the limit is given by flags"), "{told:?}");
    }
}

#[test]
fn equal_limits_are_told_apart_by_a_number() {
    let names = |rest: &[&str]| -> Vec<String> {
        let run = ["simulate", "--rate", "5/s", "--traffic", "burst 9", "-o", "json"];
        let value = Desk::new().run(&[&run[..], rest].concat()).code(0).json();
        value["runs"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap().into()).collect()
    };
    assert_eq!(
        names(&["--compare", "gcra,sliding-log,gcra", "--compare", "sliding-log"]),
        ["gcra", "gcra (2)", "sliding-log", "gcra (3)", "sliding-log (2)"]
    );
}

/// What a run does not know must be told, since the policy looks as if it had nothing to do.
#[test]
fn a_condition_on_an_unknown_number_is_remarked_on() {
    let desk = Desk::new();
    let policy = |name, when| format!("  - {{ name: {name}, when: {when}, limit: {{ rate: 1/s }} }}\n");
    let policies = policy("busy", "cpu above 80%") + &policy("full", "in-flight above 20");
    desk.write("p.yaml", format!("version: 1\npolicies:\n{policies}"));
    desk.write("trace.jsonl", "{\"t\":0,\"key\":\"a\"}\n");
    let run = |rest: &[&str]| desk.run(&[&["simulate", "-c", "p.yaml"], rest].concat()).code(0);
    let (busy, full) = (
        "does not say what `cpu` was: the condition `cpu above 80%, until 72%` of policy busy never held\n",
        "the traffic does not say how long requests took: the condition `in-flight above 20, until 18` of policy full never held; --hold says how long\n",
    );
    let silent = run(&["--traffic", "steady 100/s 3s"]);
    assert!(silent.err.contains(busy) && silent.err.contains(full), "{silent:?}");
    let held = run(&["--traffic", "steady 100/s 3s", "--hold", "300ms", "-o", "json"]);
    assert!(held.err.contains(busy) && !held.err.contains(full), "{held:?}");
    let matched = |policy: usize| held.json()["runs"][0]["policies"][policy]["matched"].as_u64();
    assert!(matched(0) == Some(0) && matched(1) > Some(100), "{held:?}");
    let traced = run(&["--trace", "trace.jsonl"]);
    assert!(traced.err.contains("a trace does not say what `in-flight` is"), "{traced:?}");
    // A log tells as much as its columns do.
    let line = |request: u32| format!("2026-01-01T00:00:{:02}Z,1.5\n", request / 40);
    desk.write("log.csv", format!("time,request_time\n{}", (0..400).map(line).collect::<String>()));
    let replay = desk.run(&["replay", "-c", "p.yaml", "log.csv"]).code(0);
    assert!(
        replay.err.contains(&format!("the log {busy}")) && !replay.err.contains("policy full"),
        "{replay:?}"
    );
}

#[test]
fn one_policy_of_a_file() {
    let desk = Desk::new();
    desk.run(&["init", "--preset", "all", "p.yaml"]).code(0);
    let run = |policy: &[&str]| {
        desk.run(&[&["simulate", "-c", "p.yaml", "--traffic", "burst 300", "-o", "json"], policy].concat())
    };
    let value = run(&["per-ip"]).code(0).json();
    let policies = value["runs"][0]["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["per-ip", "per-ip (shadow_limit)"]);
    assert_eq!(value["runs"][0]["allowed"], 200, "burst 200");
    run(&[]).code(0);
    let unknown = run(&["per-ipp"]).code(2);
    assert!(unknown.err.contains("\"per-ipp\"") && unknown.err.contains("per-ip,"), "{unknown:?}");
    desk.write("none.yaml", "version: 1\npolicies: []\n");
    let none = desk.run(&["simulate", "-c", "none.yaml", "--traffic", "burst 1"]).code(2);
    assert!(none.err.contains("none.yaml") && !none.err.contains("\"\""), "{none:?}");
}

/// Ten a second, each inside for half a second: five are inside at once if there is room.
#[test]
fn places_are_held_for_as_long_as_requests_take() {
    let desk = Desk::new();
    let run = |max: &str, hold: &[&str]| {
        let limit = format!("{{algorithm: concurrency, max: {max}}}");
        let arguments = ["simulate", "--limit", &limit, "--traffic", "steady 10/s 10s", "-o", "json"];
        desk.run(&[&arguments[..], hold].concat())
    };
    let roomy = run("5", &["--hold", "500ms"]).code(0).json();
    assert_eq!(roomy["runs"][0]["denied"], 0);
    assert_eq!(roomy["runs"][0]["policies"][0]["most_in_use"], 5);
    let narrow = run("2", &["--hold", "500ms"]).code(0).json();
    assert_eq!(narrow["runs"][0]["allowed"], 40, "two of every five");
    let silent = run("2", &[]).code(2);
    assert!(silent.err.contains("in segment 1") && silent.err.contains("or with --hold"), "{silent:?}");
}

/// The policies and commands of a page generate its pictures; changing one without the others fails.
#[test]
fn the_pictures_of_the_pages_are_made_by_their_commands() {
    let desk = Desk::new();
    let pages = [
        ("docs/command-line.md", "name: checkout", "guards.yaml", &["guards.svg", "guards-compared.svg"][..]),
        ("docs/protection/breakers.md", "name: search", "sheds.yaml", &["breaker-sheds.svg"]),
    ];
    for (path, policy, file, pictures) in pages {
        let page = std::fs::read_to_string(repository(path)).unwrap();
        let policies = page.split("```yaml\n").find(|block| block.contains(policy)).unwrap();
        desk.write(file, policies.split("```").next().unwrap());
        for name in pictures {
            let command = page.lines().find(|line| line.contains(&format!("--plot {name}"))).unwrap();
            let words = words(command.trim_start_matches("$ ").trim_start_matches("tidegate "));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            desk.run(&words).code(0);
            let kept = std::fs::read_to_string(repository("docs/images").join(name)).unwrap_or_default();
            assert!(desk.read(name) == kept, "draw docs/images/{name} again by the command of {path}");
        }
    }
    let traffic = "steady 20/s 2s taking 1s";
    desk.run(&["simulate", "-c", "guards.yaml", "--traffic", traffic, "--plot", "guards.png", "-q"]).code(0);
}

/// A breaker on the command line must not be refused with `a limit needs --rate`.
#[test]
fn a_breaker_is_spelled_out_as_any_limit_is() {
    let desk = Desk::new();
    let limit = "{algorithm: breaker, profile: sentinel, consecutive: 5, open_for: 2s}";
    let traffic = "steady 50/s 3s taking 20ms failing 80%, steady 50/s 20s taking 20ms";
    let spelled = ["simulate", "--limit", limit, "--traffic", traffic];
    let value = desk.run(&[&spelled[..], &["-o", "json"]].concat()).code(0).json();
    desk.write(
        "p.yaml",
        format!("version: 1\npolicies:\n  - name: breaker\n    by: [key]\n    limit: {limit}\n"),
    );
    let file = ["simulate", "-c", "p.yaml", "--traffic", traffic, "-o", "json"];
    let named = desk.run(&file).code(0).json();
    let of = |value: &serde_json::Value| {
        let run = &value["runs"][0];
        (run["allowed"].clone(), run["denied"].clone(), run["policies"][0]["guards"].clone())
    };
    assert_eq!(of(&value), of(&named), "as a file says it");
    assert!(value["runs"][0]["denied"].as_u64() > Some(50), "{value}");
    let table = desk.run(&spelled).code(0).out;
    assert!(table.contains("GUARD") && table.contains("breaker"), "{table}");

    let flags = ["simulate", "--algorithm", "breaker", "--set", "consecutive=5", "--traffic", traffic];
    desk.run(&flags).code(0);
    let mistake =
        desk.run(&["simulate", "--limit", "{algorithm: sliding-log}", "--traffic", traffic]).code(2);
    assert!(mistake.err.contains("--limit: it needs a rate, such as --rate 100/s"), "{mistake:?}");
}

/// `--compare` must show the figures of guards in the terminal too, not only in JSON and in pictures.
#[test]
fn guards_are_compared_in_the_terminal() {
    let desk = Desk::new();
    let breaker = "{algorithm: breaker, profile: sentinel, consecutive: 5, open_for: 2s}";
    let others = format!("{{algorithm: concurrency, max: 2}},{breaker}");
    let traffic = "steady 50/s 3s taking 100ms failing 80%, steady 50/s 20s taking 100ms";
    let limit = "{algorithm: concurrency, max: 20}";
    let compare = ["simulate", "--limit", limit, "--compare", &others, "--traffic", traffic];
    let shown = desk.run(&compare).code(0).out;
    let json = desk.run(&[&compare[..], &["-o", "json"]].concat()).code(0).json();
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .skip_while(|line| !line.starts_with("RUN") || !line.contains("GUARD"))
        .skip(1)
        .take(3)
        .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let mut expected = Vec::new();
    for run in json["runs"].as_array().unwrap() {
        for policy in run["policies"].as_array().unwrap() {
            let guard = &policy["guards"][0];
            let word = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            expected.push([word(&run["name"]), word(&guard["limit"]), word(&policy["name"])]);
        }
    }
    assert_eq!(rows.iter().map(|row| row[..3].to_vec()).collect::<Vec<_>>(), expected, "{shown}");
    assert!(
        shown.contains("RUN") && shown.contains("BREAKER") && shown.contains("calls in a row failed"),
        "{shown}"
    );
    let served = shown.lines().filter(|line| line.contains(" in the median, ")).count();
    assert_eq!(served, 3, "{shown}");
}
