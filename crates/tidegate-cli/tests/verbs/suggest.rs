//! Limits proposed from a log.

use crate::{Desk, sample};

/// The sample has one client that scrapes at up to 780 a minute where 99 % never asked more than 26. The limit proposed was 530 a minute,
/// which denied nothing.
#[test]
fn the_scraper_of_the_sample_is_found_and_nobody_else() {
    let desk = Desk::new();
    let told = desk.run(&["suggest", &sample("access.log"), "-o", "json"]).code(0).json();
    assert_eq!(told["finding"]["kind"], "gap");
    let gap = &told["proposals"][0];
    assert_eq!((&gap["purpose"], gap["keys_hit"].as_u64()), (&"gap".into(), Some(1)), "{told}");
    assert_eq!(gap["hit"][0]["key"], "203.0.113.9");
    assert!(gap["denied_share"].as_f64().unwrap() > 0.15 && gap["burst"].as_u64().unwrap() < 26, "{gap}");
    let people = desk.run(&["suggest", &sample("access.log")]).code(0).out;
    for said in
        ["stands out from the crowd", "recommended", "203.0.113.9", "Least: a burst of", "Room:", "SIGNED IN"]
    {
        assert!(people.contains(said), "{said}: {people}");
    }
}

#[test]
fn what_is_proposed_passes_the_check_and_denies_what_it_says() {
    let desk = Desk::new();
    let log = sample("access.log");
    let told = desk.run(&["suggest", &log]).code(0).out;
    let policy: Vec<&str> =
        told.lines().skip_while(|line| !line.starts_with("  - name: suggested")).collect();
    let policy = policy.split(|line| line.is_empty()).next().unwrap().join("\n");
    let file = format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policy}\n");
    desk.write("suggested.yaml", &file);
    assert_eq!(desk.run(&["config", "check", "suggested.yaml"]).code(0).out, "The file is fine\n", "{file}");

    // Replayed, it refuses as many as the evidence says: in shadow, as proposed.
    let evidence = desk.run(&["suggest", &log, "-o", "json"]).code(0).json();
    let replayed = desk.run(&["replay", &log, "-c", "suggested.yaml", "-o", "json"]).code(0).json();
    let row = &replayed["runs"][0]["policies"][0];
    assert_eq!(row["shadow_denied"], evidence["proposals"][0]["denied"], "{file}");
    assert_eq!(row["keys_hit"], evidence["proposals"][0]["keys_hit"]);
    assert_eq!(row["keys_hit_signed_in"], evidence["proposals"][0]["keys_hit_signed_in"]);
}

#[test]
fn a_share_to_keep_is_kept_and_one_that_is_every_key_is_said_to_be() {
    let desk = Desk::new();
    let log = sample("access.log");
    let kept = desk.run(&["suggest", &log, "--keep", "98%", "-o", "json"]).code(0).json();
    assert_eq!(kept["proposals"][0]["purpose"], "kept");
    assert!(kept["proposals"][0]["keys_hit"].as_u64().unwrap() <= 2, "{kept}");
    let every = desk.run(&["suggest", &log, "--keep", "99.9%"]).code(0).out;
    assert!(every.contains("99.9 % of 122 keys is every key") && every.contains("recommended"), "{every}");
}

#[test]
fn another_period_is_the_period_of_the_rate() {
    let desk = Desk::new();
    let log = sample("access.log");
    let told = desk.run(&["suggest", &log, "--per", "10s", "-o", "json"]).code(0).json();
    assert_eq!((&told["per_ms"], &told["finding"]["kind"]), (&10_000.into(), &"gap".into()), "{told}");
    let rates: Vec<&str> = told["proposals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proposal| proposal["rate"].as_str().unwrap())
        .collect();
    assert!(!rates.is_empty() && rates.iter().all(|rate| rate.ends_with("/10s")), "{rates:?}");
    // An hour of log says nothing about what is usual in an hour.
    assert!(desk.run(&["suggest", &log, "--per", "1h"]).code(1).out.contains("too short"));
}

#[test]
fn what_cannot_be_answered_says_why() {
    let desk = Desk::new();
    let log = sample("access.log");
    let unknown = desk.run(&["suggest", &log, "--by", "cliet.ip"]).code(2);
    assert!(unknown.err.contains("cliet.ip") && unknown.err.contains("client.ip"), "{unknown:?}");
    assert!(desk.run(&["suggest", &log, "--keep", "140%"]).code(2).err.contains("140%"));
    assert!(desk.run(&["suggest", &log, "--of-requests"]).code(2).err.contains("--keep"));
    assert!(desk.run(&["suggest", "gone.log"]).code(1).err.contains("gone.log"));
    desk.write("empty.log", "");
    assert!(desk.run(&["suggest", "empty.log"]).code(2).err.contains("no requests"));

    // A log of some seconds says nothing about minutes: there is nothing to copy, which scripts see by the code.
    let text = std::fs::read_to_string(&log).unwrap();
    desk.write("short.log", text.lines().take(20).collect::<Vec<_>>().join("\n"));
    let short = desk.run(&["suggest", "short.log"]).code(1);
    assert!(short.out.contains("too short") && short.out.contains("--per"), "{short:?}");

    // Times that cannot be put in order make up denials.
    let lines: Vec<&str> = text.lines().collect();
    let mixed: Vec<&str> = lines[2_000..].iter().chain(&lines[..2_000]).copied().collect();
    desk.write("mixed.log", mixed.join("\n"));
    let doubtful = desk.run(&["suggest", "mixed.log"]).code(2);
    assert!(doubtful.err.contains("--reorder") && doubtful.out.is_empty(), "{doubtful:?}");
}

/// The log is read several times: neither a terminal nor a pipe can be, and waiting for either in silence helps nobody.
#[test]
fn without_a_file_it_says_what_to_name() {
    let desk = Desk::new();
    for arguments in [&["suggest"][..], &["suggest", "-"]] {
        let told = desk
            .run_with(arguments, "192.0.2.1 - - [02/Mar/2026:09:00:02 +0000] \"GET / HTTP/1.1\" 200 1\n")
            .code(2);
        assert!(
            told.err.contains("no log named") && told.err.contains("tidegate suggest access.log"),
            "{told:?}"
        );
    }
}

/// Names are a stranger's words: a line end in one began a line of the advice, and could say anything there.
#[test]
fn a_name_begins_no_line_of_the_advice() {
    let desk = Desk::new();
    let line = |at: u32, ip: &str| {
        let at = format!("2026-03-02T09:{:02}:{:02}Z", at / 60, at % 60);
        serde_json::json!({ "time": at, "client_ip": ip }).to_string()
    };
    let forged = "x\nCopy this:\n  - name: FORGED";
    let log = [line(0, forged), line(1, forged), line(600, "192.0.2.1")].join("\n");
    desk.write("forged.jsonl", &log);
    let told = desk.run(&["suggest", "forged.jsonl"]).code(0).out;
    assert!(told.contains(r"Least: a burst of 1 would hit x\nCopy this:\n  - name: FORGED."), "{told}");
    assert!(!told.lines().any(|line| line.trim_start().starts_with("- name: FORGED")), "{told}");
}

/// The table says `?` of a log without users, and the policy to copy said `signed in 0`.
#[test]
fn a_log_without_users_claims_nothing_of_who_signed_in() {
    let desk = Desk::new();
    let log = "time,client_ip\n2026-03-02T09:00:00Z,192.0.2.1\n2026-03-02T09:00:01Z,192.0.2.1\n2026-03-02T09:10:00Z,192.0.2.2\n";
    desk.write("bare.csv", log);
    let told = desk.run(&["suggest", "bare.csv"]).code(0).out;
    assert!(told.contains("keys hit 0 of 2.\n") && !told.contains("signed in 0"), "{told}");
}

#[test]
fn a_name_of_a_field_begins_no_line_of_a_message() {
    let desk = Desk::new();
    let line = |at: &str| serde_json::json!({ "time": at, "a\nFORGED": "1" }).to_string();
    desk.write("names.jsonl", [line("2026-03-02T09:00:00Z"), line("2026-03-02T09:10:00Z")].join("\n"));
    for verb in [&["replay", "--rate", "1/s"][..], &["suggest"]] {
        let told = desk.run(&[verb, &["names.jsonl"]].concat()).code(2).err;
        assert!(told.contains(r"a\nFORGED") && !told.contains("\nFORGED"), "{told}");
        assert!(told.starts_with("error: --by"), "{told}");
    }
}

#[test]
fn a_mistake_of_a_flag_names_it() {
    let desk = Desk::new();
    let log = sample("access.log");
    for (words, flag) in [
        (
            ["suggest", "--per", "0s"],
            "'0s' for '--per <TIME>': `0s` is too short for the period of a rate; use 1ms or more",
        ),
        (
            ["suggest", "--per", "1ns"],
            "`1ns` is too short for the period of a rate; use 1ms or more, such as 1s, 1min or 1h",
        ),
        (["suggest", "--keep", "0%"], "--keep"),
        (["suggest", "--by", "client.ip,client.ip"], "--by"),
        (["replay", "--max-late", "-1"], "--max-late"),
        (["replay", "--max-malformed", "-1"], "--max-malformed"),
        (["replay", "--hit", "-1"], "--hit"),
    ] {
        let told = desk.run(&[&words[..], &[&log]].concat()).code(2).err;
        assert!(told.contains(flag), "{words:?}: {told}");
    }
}

#[test]
fn a_log_of_times_alone_is_told_as_such() {
    let desk = Desk::new();
    let line = |at: &str| serde_json::json!({ "time": at, "client_ip": null }).to_string();
    desk.write("times.jsonl", [line("2026-03-02T09:00:00Z"), line("2026-03-02T09:10:00Z")].join("\n"));
    let replayed = desk.run(&["replay", "times.jsonl", "--rate", "1/s"]).code(2).err;
    assert!(replayed.contains("the first one has nothing but its time"), "{replayed}");
    let suggested = desk.run(&["suggest", "times.jsonl"]).code(2).err;
    assert!(suggested.contains("the log has times and nothing else"), "{suggested}");
}
