//! `replay --hit`: the keys that were hit, and their most requested paths.

use crate::verbs::{Desk, sample};

#[test]
fn the_keys_hit_are_listed_denied_most_first() {
    let desk = Desk::new();
    let log = sample("access.log");
    let run = |more: &[&str]| desk.run(&[&["replay", &log, "--rate", "2/min", "-q"], more].concat()).code(0);
    let value = run(&["--hit", "3", "-o", "json"]).json();
    let policy = &value["runs"][0]["policies"][0];
    let [list] = &value["hit"].as_array().unwrap()[..] else { panic!("{value}") };
    assert_eq!((&list["policy"], &list["keys_hit"]), (&"gcra".into(), &policy["keys_hit"]));
    assert_eq!((&list["keys_may_be_missing"], &list["peak_window_ms"]), (&false.into(), &60_000.into()));
    let keys = list["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &keys[0]["key"]), (3, &"203.0.113.9".into()));
    assert_eq!(keys[0]["denied"], policy["worst"]["denied"]);
    assert_eq!((&keys[0]["requests"], &keys[0]["counts_are_floor"]), (&931.into(), &false.into()));
    assert_eq!(
        keys[0]["paths"][0],
        serde_json::json!({ "path": "/api/items", "requests": 931, "requests_are_floor": false })
    );
    assert!(keys.is_sorted_by_key(|key| std::cmp::Reverse(key["denied"].as_u64().unwrap())), "{keys:#?}");

    let all = run(&["--hit", "1000", "-o", "json"]).json();
    let all = all["hit"][0]["keys"].as_array().unwrap();
    assert_eq!(all.len() as u64, policy["keys_hit"].as_u64().unwrap());
    let denied: u64 = all.iter().map(|key| key["denied"].as_u64().unwrap()).sum();
    assert_eq!(denied, policy["denied"].as_u64().unwrap(), "no denial is anybody else's");
    let signed_in = all.iter().filter(|key| key["signed_in"] == true).count() as u64;
    assert_eq!(signed_in, policy["keys_hit_signed_in"].as_u64().unwrap());

    let table = run(&["--hit"]).out;
    assert!(
        table.contains("gcra hit 112 keys; the 20 with the most denied requests are shown\nKEY "),
        "{table}"
    );
    assert!(table.contains("SIGNED IN   FIRST DENY            PATHS"), "{table}");
    assert!(
        table.lines().any(|line| line.starts_with("203.0.113.9 ") && line.ends_with("/api/items 931")),
        "{table}"
    );
    assert!(!run(&[]).out.contains("SIGNED IN") && run(&["-o", "json"]).json().get("hit").is_none());
}

/// If the log does not tell who signed in, keys must not be reported as not signed in.
#[test]
fn a_log_without_users_says_of_nobody_that_he_did_not_sign_in() {
    let desk = Desk::new();
    let lines: String = (0..30)
        .map(|second| format!("{{\"time\":{},\"client_ip\":\"10.0.0.1\"}}\n", 1_700_000_000 + second))
        .collect();
    desk.write("calls.json", lines);
    let run = |more: &[&str]| {
        let words = ["replay", "calls.json", "--rate", "2/min", "-q", "--hit", "--plot", "out"];
        desk.run(&[&words[..], more].concat()).code(0)
    };
    assert!(run(&["-o", "json"]).json()["hit"][0]["keys"][0]["signed_in"].is_null());
    let table = run(&[]).out;
    let row = table.lines().find(|line| line.starts_with("10.0.0.1 ")).unwrap();
    assert!(row.split_whitespace().any(|word| word == "?") && !row.contains(" no "), "{table}");
    let page = desk.read("out/report.html");
    assert!(page.contains("the log names no users") && !page.contains("none of them signed in"));
}

/// A key of 5,000 characters must not widen every row of the tables.
#[test]
fn a_long_key_is_cut_for_people_and_whole_in_json() {
    let desk = Desk::new();
    let key = "k".repeat(5_000);
    let lines: String =
        (0..90).map(|at| format!("{{\"time\":{},\"client_ip\":\"{key}\"}}\n", 1_700_000_000 + at)).collect();
    desk.write("calls.json", lines);
    let words = ["calls.json", "--by", "client.ip", "-q"];
    let run = |verb: &str, more: &[&str]| desk.run(&[&[verb], &words[..], more].concat());
    let hit = ["--rate", "2/min", "--hit", "--plot", "out"];
    assert_eq!(run("replay", &[&hit[..], &["-o", "json"]].concat()).json()["hit"][0]["keys"][0]["key"], key);
    for told in [run("replay", &hit).out, run("suggest", &[]).out, desk.read("out/report.html")] {
        assert!(!told.contains(&key[..81]), "{told:.2000}");
    }
}

#[test]
fn each_run_and_each_shadow_limit_has_a_list_of_its_own() {
    let desk = Desk::new();
    let log = sample("access.log");
    let limit = ["--rate", "60/min", "--burst", "20", "--compare", "sliding-log", "--hit", "5"];
    let table = desk.run(&[&["replay", &log, "-q"], &limit[..]].concat()).code(0).out;
    assert!(
        table.contains("\ngcra: gcra hit 1 key\n")
            && table.contains("\nsliding-log: sliding-log hit 1 key\n"),
        "{table}"
    );
    desk.write(
        "p.yaml",
        "version: 1\npolicies:\n  - { name: per-ip, by: [client.ip], limit: { rate: 100/s, burst: 900 }, \
         shadow_limit: { rate: 2/min, burst: 2 } }\n  - { name: all, limit: { rate: 100/s } }\n",
    );
    let value = desk.run(&["replay", &log, "-c", "p.yaml", "--hit", "-o", "json", "-q"]).code(0).json();
    let lists = value["hit"].as_array().unwrap().iter();
    let lists: Vec<_> =
        lists.map(|list| (list["policy"].as_str().unwrap(), list["keys_hit"].as_u64().unwrap())).collect();
    assert_eq!(lists, [("per-ip", 0), ("per-ip (shadow_limit)", 112)], "whoever has no key is in no list");
    let table = desk.run(&["replay", &log, "-c", "p.yaml", "--hit", "-q"]).code(0).out;
    assert!(table.contains("\nper-ip hit no key\n"), "{table}");
}

#[test]
fn a_log_behind_the_option_is_told_where_to_stand() {
    let desk = Desk::new();
    let told = desk.run(&["replay", "--rate", "2/min", "--hit", "access.log"]).code(2);
    assert!(told.err.contains("`access.log` is not a number of keys to list"), "{told:?}");
    assert!(told.err.contains("write the option after the log"), "{told:?}");
    desk.run(&["replay", "--rate", "2/min", "--hit=0", &sample("access.log")]).code(2);
}

/// Returns the width and height in the header of a PNG.
fn size_of_png(bytes: &[u8]) -> (u32, u32) {
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{:?}", &bytes[..16]);
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

/// `.png` must not contain an SVG, and `.svg` must not become a folder.
#[test]
fn pictures_have_the_form_that_their_name_says() {
    let desk = Desk::new();
    let png = |path: &str| size_of_png(&std::fs::read(desk.path(path)).unwrap());
    let simulate =
        |plot: &str| desk.run(&["simulate", "--rate", "5/s", "--traffic", "burst 9", "--plot", plot]);
    simulate("x.svg").code(0);
    assert!(desk.read("x.svg").starts_with("<svg "));
    let told = simulate("x.PNG").code(0);
    assert!(told.err.contains("wrote x.PNG"), "{told:?}");
    assert_eq!(png("x.PNG"), (1_800, 720));
    let told = simulate("x.jpg").code(2);
    assert!(told.err.contains("x.jpg: pictures are drawn as SVG or PNG; write --plot x.png"), "{told:?}");
    assert!(told.err.contains("magick x.png x.jpg") && !desk.path("x.jpg").exists(), "{told:?}");

    let log = sample("access.log");
    let replay = |more: &[&str]| desk.run(&[&["replay", &log, "--rate", "5/s"][..], more].concat());
    for (file, more) in [("load.png", &[][..]), ("compare.png", &["--compare", "fixed-window"][..])] {
        let told = replay(&[&["--plot", file][..], more].concat()).code(0);
        assert!(told.err.contains(&format!("wrote {file}")) && !told.err.contains("report.html"), "{told:?}");
        assert_eq!(png(file).0, 1_800);
    }
    replay(&["--plot", "one.svg"]).code(0);
    assert!(desk.read("one.svg").starts_with("<svg "));
    let told = replay(&["--plot", "out", "--png"]).code(0);
    assert!(told.err.contains("wrote out/report.html"), "{told:?}");
    assert!(desk.read("out/report.html").contains("<svg "), "the page keeps its own pictures");
    assert!(!desk.path("out/load.svg").exists());
    assert_eq!((png("out/load.png"), png("out/peaks-gcra.png")), ((1_800, 720), (1_800, 720)));

    for (plot, says) in [
        (
            &["--plot", "out.html"][..],
            "out.html: the report is written into a folder, as report.html; name the folder, such as --plot out",
        ),
        (
            &["--plot", "a.svg", "--png"],
            "a.svg: --png is for a folder of pictures; for one as PNG write --plot a.png",
        ),
        (&["--plot", "a.webp"], "write --plot a.png, and then convert it: magick a.png a.webp"),
        (
            &["--plot", "gone/a.png"],
            "--plot: cannot write gone/a.png: there is no folder gone; make it first",
        ),
        (&["--png"], "--plot"),
    ] {
        let told = replay(plot);
        assert!(told.code > 0 && told.err.contains(says) && told.out.is_empty(), "{told:?}");
    }
}
