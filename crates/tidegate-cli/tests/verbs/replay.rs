//! What limits would have done to recorded traffic.

use std::io::Write as _;

use serde_json::Value;

use crate::verbs::{Desk, sample};

/// Replays with these arguments. Returns the JSON, without the parts that differ between ways to read the same log.
#[track_caller]
fn replayed(desk: &Desk, arguments: &[&str], input: &[u8]) -> Value {
    let all = [&["replay", "-o", "json"], arguments].concat();
    let mut value = desk.run_with(&all, input).code(0).json();
    let top = value.as_object_mut().unwrap();
    top["log"].as_object_mut().unwrap().remove("files").unwrap();
    value
}

const LIMIT: [&str; 4] = ["--rate", "5/s", "--burst", "20"];

#[track_caller]
fn with_limit(desk: &Desk, logs: &[&str], input: &[u8]) -> Value {
    replayed(desk, &[&LIMIT[..], logs].concat(), input)
}

#[test]
fn the_sample_log_has_one_who_scrapes() {
    let value = with_limit(&Desk::new(), &[&sample("access.log")], b"");
    let log = &value["log"];
    assert_eq!((&log["lines"], &log["requests"], &log["malformed"]), (&4478.into(), &4478.into(), &0.into()));
    // Slow requests are written late; each must be sorted into its place.
    assert!(log["put_in_order"].as_u64().unwrap() > 0);
    assert_eq!(log["clamped"], 0);
    let run = &value["runs"][0];
    assert_eq!(run["name"], "gcra");
    let (allowed, denied) = (run["allowed"].as_u64().unwrap(), run["denied"].as_u64().unwrap());
    assert_eq!(allowed + denied, 4478);
    assert_eq!(denied, 485);
    let policy = &run["policies"][0];
    assert_eq!(
        (&policy["matched"], &policy["denied"], &policy["keys_hit"]),
        (&4478.into(), &485.into(), &1.into())
    );
    assert_eq!(policy["worst"]["key"], "203.0.113.9");
}

/// A zstd frame with raw blocks: valid for a reader, and no compressor is needed.
fn zstd(plain: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 1 << 16;
    // The magic number; no flags, so a window byte follows: 2^(10 + 13) bytes fit any block.
    let mut packed = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 13 << 3];
    let blocks = plain.chunks(BLOCK);
    let last = blocks.len() - 1;
    for (at, block) in blocks.enumerate() {
        let header = (block.len() as u32) << 3 | u32::from(at == last);
        packed.extend_from_slice(&header.to_le_bytes()[..3]);
        packed.extend_from_slice(block);
    }
    packed
}

#[test]
fn packed_logs_and_pipes_give_the_same() {
    let desk = Desk::new();
    let plain = std::fs::read(sample("access.log")).unwrap();
    let expected = with_limit(&desk, &[&sample("access.log")], b"");

    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&plain).unwrap();
    let gz = gz.finish().unwrap();
    desk.write("access.log.gz", &gz);
    desk.write("access.log.zst", zstd(&plain));
    assert_eq!(with_limit(&desk, &["access.log.gz"], b""), expected);
    assert_eq!(with_limit(&desk, &["access.log.zst"], b""), expected);
    assert_eq!(with_limit(&desk, &[], &plain), expected);
    assert_eq!(with_limit(&desk, &["-"], &plain), expected);
    assert_eq!(with_limit(&desk, &["-"], &gz), expected);
}

/// Shells list rotated logs newest first: `access.log access.log.1`.
#[test]
fn the_pieces_of_a_log_are_one_log_in_whatever_order() {
    let desk = Desk::new();
    let plain = std::fs::read_to_string(sample("access.log")).unwrap();
    let lines: Vec<&str> = plain.split_inclusive('\n').collect();
    let (old, new) = lines.split_at(2000);
    desk.write("access.log.1", old.concat());
    desk.write("access.log", new.concat());
    let expected = with_limit(&desk, &[&sample("access.log")], b"");
    for order in [["access.log.1", "access.log"], ["access.log", "access.log.1"]] {
        let value = with_limit(&desk, &order, b"");
        assert_eq!(value["runs"], expected["runs"], "{order:?}");
        assert_eq!(value["log"]["requests"], 4478);
    }
}

/// Two servers behind one balancer each write every other line. If the logs were read one after the other, all
/// requests of the second would be clamped to the end of the first, and 15 clients would be denied instead of one.
#[test]
fn the_logs_of_two_servers_are_one_log() {
    let desk = Desk::new();
    let plain = std::fs::read_to_string(sample("access.log")).unwrap();
    for server in 0..2 {
        let lines: Vec<&str> = plain.split_inclusive('\n').skip(server).step_by(2).collect();
        desk.write(&format!("server{server}.log"), lines.concat());
    }
    let value = with_limit(&desk, &["server0.log", "server1.log"], b"");
    let run = &value["runs"][0];
    assert_eq!((&run["denied"], &run["policies"][0]["keys_hit"]), (&485.into(), &1.into()));
    assert_eq!(value["log"]["clamped"], 0);
}

#[test]
fn tokens_of_a_table_are_a_cost() {
    let desk = Desk::new();
    let log = sample("llm-calls.csv");
    let with_cost = |cost: &str| {
        let arguments = ["--rate", "20000/min", "--by", "tenant", "--cost", cost, &log];
        replayed(&desk, &arguments, b"")["runs"][0].clone()
    };
    let (calls, tokens) = (with_cost("1"), with_cost("int(total_tokens)"));
    assert_eq!((&calls["requests"], &calls["denied"]), (&1486.into(), &0.into()));
    assert!(tokens["denied"].as_u64().unwrap() > 0, "{tokens}");
    assert_eq!(tokens["policies"][0]["keys"], 5);
    // The total is the sum of its columns; at a higher cost, more is denied.
    assert_eq!(with_cost("int(context_tokens) + int(generated_tokens)"), tokens);
    let dearer = with_cost("int(context_tokens) + 3 * int(generated_tokens)");
    assert!(dearer["denied"].as_u64() > tokens["denied"].as_u64());
    let wrong = desk.run(&["replay", &log, "--rate", "1/s", "--cost", "total +"]).code(2);
    assert!(wrong.err.contains("cost"), "{wrong:?}");
}

#[test]
fn json_lines_and_named_columns() {
    let desk = Desk::new();
    let line = |second: u32| {
        format!(
            "{{\"time\":\"2026-03-02T09:00:{second:02}Z\",\"host\":\"203.0.113.{}\",\"path\":\"/\"}}\n",
            second % 2
        )
    };
    desk.write("log.jsonl", (0..20).map(line).collect::<String>());
    let arguments = ["--rate", "1/min", "--burst", "3", "--column", "client.ip=host", "log.jsonl"];
    let value = replayed(&desk, &arguments, b"");
    assert_eq!(value["log"]["requests"], 20);
    let run = &value["runs"][0];
    assert_eq!(
        (&run["allowed"], &run["denied"]),
        (&6.into(), &14.into()),
        "three each of two callers: {run}"
    );
}

#[test]
fn algorithms_side_by_side() {
    let desk = Desk::new();
    let log = sample("access.log");
    let arguments = ["--rate", "100/min", "--compare", "fixed-window,sliding-log,sliding-counter", &log];
    let value = replayed(&desk, &arguments, b"");
    let runs = value["runs"].as_array().unwrap();
    let names: Vec<_> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gcra", "fixed-window", "sliding-log", "sliding-counter"]);
    for run in runs {
        assert_eq!(run["requests"], 4478);
        assert!(run["denied"].as_u64().unwrap() > 0, "{run}");
        // Each compared limit must give the same result as that limit alone.
        let alone =
            replayed(&desk, &["--rate", "100/min", "--algorithm", run["name"].as_str().unwrap(), &log], b"");
        assert_eq!(&alone["runs"][0], run);
    }
    let table = desk.run(&["replay", "--rate", "100/min", "--compare", "sliding-log", &log]).code(0).out;
    assert!(table.contains("RUN") && table.contains("sliding-log"), "{table}");
    desk.write("p.yaml", "version: 1\npolicies:\n  - { name: a, limit: { rate: 1/s } }\n");
    desk.run(&["replay", &log, "-c", "p.yaml", "--compare", "gcra"]).code(2);
    desk.run(&["replay", &log, "--rate", "1/s", "--compare", "gcro"]).code(2);
}

#[test]
fn pictures_are_pictures() {
    let desk = Desk::new();
    let log = sample("access.log");
    for (folder, more) in [("one", &[][..]), ("two", &["--compare", "fixed-window"][..])] {
        let arguments = [&["replay", &log, "--plot", folder][..], &LIMIT[..], more].concat();
        let ran = desk.run(&arguments).code(0);
        let page = desk.read(&format!("{folder}/report.html"));
        assert!(page.trim_start().to_ascii_lowercase().starts_with("<!doctype html>"));
        assert!(page.contains("203.0.113.9"));
        let mut pictures = 0;
        for entry in desk.path(folder).read_dir().unwrap() {
            let path = entry.unwrap().path();
            assert!(ran.err.contains(path.file_name().unwrap().to_str().unwrap()), "{ran:?}");
            if path.extension().is_some_and(|extension| extension == "svg") {
                pictures += 1;
                let svg = std::fs::read_to_string(&path).unwrap();
                assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{}", path.display());
                assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
                assert!(!svg.contains("NaN") && !svg.contains("inf,"), "{}", path.display());
            }
        }
        assert!(pictures > 0);
    }
}

/// The report of a fixed window must say that a gcra stands in for it.
#[test]
fn a_report_says_which_limit_stands_in_for_another() {
    let desk = Desk::new();
    let log = sample("access.log");
    let page = |algorithm: &str| {
        let limit = ["--rate", "20/min", "--algorithm", algorithm, "--plot", "out", "-q"];
        desk.run(&[&["replay", &log][..], &limit].concat()).code(0);
        desk.read("out/report.html")
    };
    let window = page("fixed-window");
    for words in [
        "The limit replayed, fixed-window 20/min, is not gcra. The line begins at the nearest gcra to fixed-window 20/min, which is gcra 20/min burst 20",
        "gcra 20/min burst 20 (nearest to fixed-window 20/min)",
        "Back to the nearest gcra",
    ] {
        assert!(window.contains(words), "{words}\n{window}");
    }
    assert!(!window.contains("(replayed)") && !window.contains("Back to the limit replayed"), "{window}");
    let gcra = page("gcra");
    assert!(gcra.contains("gcra 20/min burst 20 (replayed)") && !gcra.contains("nearest gcra"), "{gcra}");
}

/// The message must not end with "Nothing was changed.", since a replay changes nothing.
#[test]
fn a_bad_policy_file_ends_a_replay_with_its_mistakes() {
    let desk = Desk::new();
    desk.write("bad.yaml", "version: 1\npolicies:\n  - { name: a, limit: { rate: 5/0s } }\n");
    let told = desk.run(&["replay", &sample("access.log"), "-c", "bad.yaml"]).code(2);
    let mistake = "bad.yaml:3:31  error  policy \"a\": rate: \"5/0s\" has a period of 0; write 5/s, or 5/10s for ten of those";
    assert_eq!(told.err, format!("{mistake}\n1 problem (1 error).\n"));
}

#[test]
fn a_threshold_decides_the_exit_code() {
    let desk = Desk::new();
    let log = sample("access.log");
    let run = |conditions: &[&str]| {
        let conditions = conditions.iter().flat_map(|condition| ["--fail-if", condition]);
        let arguments: Vec<&str> = ["replay", &log].into_iter().chain(LIMIT).chain(conditions).collect();
        desk.run(&arguments)
    };
    let failed = run(&["denied > 1%"]).code(3);
    assert!(failed.out.contains("FAILED  fail if denied > 1%: measured 10.831 %"), "{failed:?}");
    let passed = run(&["denied{policy=gcra} > 50%", "keys_hit > 1"]).code(0);
    assert_eq!(passed.out.matches("passed  fail if").count(), 2, "{passed:?}");
    run(&["denied{policy=gcra} > 50%", "denied > 484"]).code(3);
    for (above, all) in [("denied > 5000", "only 4,478 requests"), ("keys_hit > 500", "only 122 keys")] {
        let never = run(&[above]).code(2);
        assert!(never.err.contains(all), "{never:?}");
    }
    let unknown = run(&["denied{policy=gcr} > 50%"]).code(2);
    assert!(unknown.err.contains("no policy \"gcr\"; there are gcra"), "{unknown:?}");
    let word = run(&["denid > 1%"]).code(2);
    assert!(word.err.contains("column 1") && word.err.contains("did you mean `denied`?"), "{word:?}");
    let told =
        desk.run(&["replay", &log, "--rate", "5/s", "--fail-if", "denied > 1%", "-o", "json"]).code(3).json();
    assert_eq!(told["thresholds"][0]["holds"], true);
}

#[test]
fn what_cannot_be_read_is_named() {
    let desk = Desk::new();
    let log = sample("access.log");
    let gone = desk.run(&["replay", "gone.log", "--rate", "1/s"]).code(1);
    assert!(gone.err.contains("gone.log") && gone.out.is_empty(), "{gone:?}");
    desk.write("photo.jpg", [0xFF, 0xD8, 0xFF, 0xE0, 0, 16, b'J', b'F', b'I', b'F', 0, b'\n', 7, 200, b'\n']);
    let photo = desk.run(&["replay", "photo.jpg", "--rate", "1/s"]).code(2);
    assert!(
        photo.err.contains("photo.jpg: the format cannot be told") && photo.err.contains("--format"),
        "{photo:?}"
    );
    desk.write("letter.txt", "Dear all,\nthe log is in the other mail.\n");
    let letter = desk.run(&["replay", "letter.txt", "--rate", "1/s"]).code(2);
    assert!(letter.err.contains("letter.txt") && letter.err.contains("Dear all"), "{letter:?}");
    desk.write("torn.gz", [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3, 99]);
    let torn = desk.run(&["replay", "torn.gz", "--rate", "1/s"]).code(1);
    assert!(torn.err.contains("torn.gz"), "{torn:?}");
    let none = desk.run(&["replay", &log]).code(2);
    assert!(none.err.contains("no policies to replay"), "{none:?}");
    assert!(desk.run(&["replay", &log, "--burst", "3"]).code(2).err.contains("--rate"));
    assert!(desk.run(&["replay", &log, "--rate", "5/M"]).code(2).err.contains("minute or month"));
}

#[test]
fn lines_that_are_no_request_are_counted_and_shown() {
    let desk = Desk::new();
    let plain = std::fs::read_to_string(sample("access.log")).unwrap();
    let mut lines: Vec<&str> = plain.lines().take(50).collect();
    lines.insert(20, "-- MARK --");
    desk.write("marked.log", lines.join("\n"));
    let ran = desk.run(&["replay", "marked.log", "--rate", "1/s", "-o", "json"]).code(0);
    let value = ran.json();
    assert_eq!((&value["log"]["requests"], &value["log"]["malformed"]), (&50.into(), &1.into()));
    assert!(ran.err.contains("marked.log:21: ") && ran.err.contains("-- MARK --"), "{ran:?}");
    assert!(desk.run(&["replay", "marked.log", "--rate", "1/s", "-q"]).code(0).err.is_empty());
}

/// `int(total_token)` names no column: formerly each request was charged 1, and the limit seemed to deny nothing.
#[test]
fn a_cost_that_cannot_be_computed_is_told() {
    let desk = Desk::new();
    let log = sample("llm-calls.csv");
    let with_cost = |cost: &str| {
        desk.run(&["replay", &log, "--rate", "1000/min", "--by", "tenant", "--cost", cost, "-o", "json"])
    };
    let ran = with_cost("int(total_token)").code(2);
    let told = "no verdict: gcra has no cost for any of its 1,486 requests: the request has no total_token; \
                the first request of the log has ";
    assert!(ran.err.contains(told), "{ran:?}");
    // What has no cost is no number of units, and counts in no peak.
    desk.write(
        "some.csv",
        "time,client.ip,tokens\n1772442840,192.0.2.1,5\n1772442841,192.0.2.1,\n1772442842,192.0.2.1,7\n",
    );
    let some = [
        "replay",
        "some.csv",
        "--rate",
        "1000/min",
        "--by",
        "client.ip",
        "--cost",
        "int(tokens)",
        "-o",
        "json",
    ];
    let ran = desk.run(&some).code(0);
    assert!(ran.err.contains("1 requests have no cost that gcra can compute"), "{ran:?}");
    assert_eq!(ran.json()["costs_unknown"]["gcra"], 1);
    let worst = &ran.json()["runs"][0]["policies"][0]["worst"];
    assert_eq!((&worst["peak"], &worst["total"]), (&12.into(), &12.into()), "{worst}");
    let ran = with_cost("total_tokens").code(2);
    assert!(ran.err.contains("'int(total_tokens)'"), "{ran:?}");
    let ran =
        desk.run(&["replay", &log, "--rate", "1/s", "--by", "tenant", "--cost", "int(total_tokens)"]).code(0);
    assert!(!ran.err.contains("no cost"), "{ran:?}");
}

/// Three requests of 1.5 s each, one second apart.
const SLOW: &str = r#"{"time": "2026-01-01T00:00:00Z", "request_time": "1.500", "remote_addr": "203.0.113.9", "status": 200}
{"time": "2026-01-01T00:00:01Z", "request_time": "1.500", "remote_addr": "203.0.113.9", "status": 200}
{"time": "2026-01-01T00:00:02Z", "request_time": "1.500", "remote_addr": "203.0.113.9", "status": 200}
"#;

const ONE_PLACE: [&str; 3] = ["replay", "--limit", "{algorithm: concurrency, max: 1}"];

#[test]
fn a_place_is_held_for_as_long_as_the_log_says() {
    let desk = Desk::new();
    let value = desk.run_with(&[&ONE_PLACE[..], &["-o", "json"]].concat(), SLOW).code(0).json();
    let run = &value["runs"][0];
    assert_eq!((&run["allowed"], &run["denied"]), (&2.into(), &1.into()));
    assert_eq!(run["policies"][0]["most_in_use"], 1);
    let table = desk.run_with(&ONE_PLACE, SLOW).code(0).out;
    assert!(table.contains("MOST IN USE"), "{table}");
    let spelled = SLOW.replace("request_time", "took").replace("1.500", "500");
    let column = ["--column", "request.duration=took", "-o", "json"];
    let seconds = desk.run_with(&[&ONE_PLACE[..], &column].concat(), spelled.clone()).code(0).json();
    assert_eq!(seconds["runs"][0]["denied"], 2, "500 of an unnamed unit are seconds");
    let millis = spelled.replace("took", "took_ms");
    let millis = desk.run_with(&[&ONE_PLACE[..], &["-o", "json"]].concat(), millis).code(0).json();
    assert_eq!(millis["runs"][0]["denied"], 0);
}

#[test]
fn a_log_that_does_not_say_how_long_needs_to_be_told() {
    let desk = Desk::new();
    let silent = SLOW.replace("request_time", "weight");
    let refused = desk.run_with(&ONE_PLACE, silent.clone()).code(2);
    assert!(refused.err.contains("--hold") && refused.err.contains("request.duration"), "{refused:?}");
    let told = desk.run_with(&[&ONE_PLACE[..], &["--hold", "1500ms", "-o", "json"]].concat(), silent).code(0);
    assert_eq!(told.json()["runs"][0]["denied"], 1);
    let partly = SLOW.replacen("1.500", "-", 1);
    let partly = desk.run_with(&ONE_PLACE, partly).code(0);
    assert!(partly.err.contains("the log does not say how long 1 requests took"), "{partly:?}");
}

/// Requests that a policy marks or demotes must not be reported as requests that would be denied, as in shadow mode.
#[test]
fn what_passes_over_a_limit_has_a_column_of_its_own() {
    let desk = Desk::new();
    let policy = |name: &str, over: &str| {
        format!("  - name: {name}\n    by: [client.ip]\n    {over}\n    limit: {{ rate: 1/h, burst: 1 }}\n")
    };
    let soft = policy("soft", "over: mark");
    let heavy = policy("heavy", "over: demote");
    let file =
        |policies: &str| format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policies}");
    desk.write("soft.yaml", file(&soft));
    let table = desk.run_with(&["replay", "-c", "soft.yaml"], SLOW).code(0).out;
    assert!(table.contains("MARKED") && !table.contains("DEMOTED"), "{table}");
    desk.write("both.yaml", file(&format!("{soft}{heavy}{}", policy("hard", "mode: shadow"))));
    let value = desk.run_with(&["replay", "-c", "both.yaml", "-o", "json"], SLOW).code(0).json();
    let run = &value["runs"][0];
    assert_eq!((&run["marked"], &run["demoted"], &run["shadow_denied"]), (&2.into(), &2.into(), &2.into()));
    let [soft, heavy, hard] = [0, 1, 2].map(|at| &run["policies"][at]);
    assert_eq!((&soft["marked"], soft.get("demoted")), (&2.into(), None));
    assert_eq!((&heavy["demoted"], &heavy["shadow_denied"]), (&2.into(), &0.into()));
    assert_eq!((hard.get("marked"), &hard["shadow_denied"]), (None, &2.into()));
    let table = desk.run_with(&["replay", "-c", "both.yaml", "-q"], SLOW).code(0).out;
    let header = table.lines().find(|line| line.starts_with("POLICY")).unwrap();
    let header: Vec<&str> = header.split_whitespace().collect();
    assert!(header.join(" ").ends_with("FIRST DENY MARKED DEMOTED"), "{table}");
    desk.write("hard.yaml", file(&policy("hard", "mode: enforce")));
    let table = desk.run_with(&["replay", "-c", "hard.yaml"], SLOW).code(0).out;
    assert!(!table.contains("MARKED") && !table.contains("DEMOTED"), "{table}");
}
