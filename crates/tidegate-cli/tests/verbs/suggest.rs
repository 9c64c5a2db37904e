//! Limits proposed from a log.

use crate::{Desk, sample};

#[test]
fn what_is_proposed_passes_the_check_and_keeps_what_it_says() {
    let desk = Desk::new();
    let log = sample("access.log");
    let told = desk.run(&["suggest", &log, "--by", "client.ip", "--keep", "99%"]).code(0).out;
    let at = told.find("  - name: suggested").unwrap_or_else(|| panic!("{told}"));
    let file = format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{}", &told[at..]);
    desk.write("suggested.yaml", &file);
    assert_eq!(desk.run(&["config", "check", "suggested.yaml"]).code(0).out, "The file is fine\n", "{file}");

    // Replayed, it refuses as many as the evidence says: in shadow, as proposed.
    let evidence =
        desk.run(&["suggest", &log, "--by", "client.ip", "--keep", "99%", "-o", "json"]).code(0).json();
    assert_eq!(evidence["keeps"], true);
    assert!(evidence["half"]["denied"].as_u64() >= evidence["proposed"]["denied"].as_u64());
    let replayed = desk.run(&["replay", &log, "-c", "suggested.yaml", "-o", "json"]).code(0).json();
    let policy = &replayed["runs"][0]["policies"][0];
    assert_eq!(policy["shadow_denied"], evidence["proposed"]["denied"], "{file}");
    assert_eq!(policy["keys_hit"], evidence["proposed"]["keys_hit"]);
}

/// 99.9 / 100 is a little more than 0.999: with exactly one key of a thousand to spare, it was not spared.
#[test]
fn the_usual_share_is_printed_as_it_was_given() {
    let told = Desk::new().run(&["suggest", &sample("access.log")]).code(0).out;
    assert!(told.contains(" 99.9 % of the keys"), "{told}");
}

#[test]
fn what_cannot_be_answered_says_why() {
    let desk = Desk::new();
    let log = sample("access.log");
    assert!(desk.run(&["suggest"]).code(2).err.contains("no log named"));
    let unknown = desk.run(&["suggest", &log, "--by", "cliet.ip"]).code(2);
    assert!(unknown.err.contains("cliet.ip") && unknown.err.contains("client.ip"), "{unknown:?}");
    assert!(desk.run(&["suggest", &log, "--keep", "140%"]).code(2).err.contains("140%"));
    assert!(desk.run(&["suggest", "gone.log"]).code(1).err.contains("gone.log"));
    desk.write("empty.log", "");
    assert!(desk.run(&["suggest", "empty.log"]).code(2).err.contains("no requests"));
}
