//! For a person on call: which keys a running server refuses, and resetting, blocking and unblocking one of them.

use serde_json::{Value, json};

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::Serving;

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: fixed-window, rate: 2/day }
  - name: top
    by: [tenant, region]
    match: { attributes: { tenant: '*' } }
    limit: { algorithm: fixed-window, rate: 5/day }
  - name: all
    limit: { algorithm: fixed-window, rate: 1000000/day }
  - name: trial
    mode: shadow
    limit: { rate: 1000000/day }
";

/// A server with these policies, and its command line.
struct Stand {
    desk: Desk,
    serving: Serving,
}

impl Stand {
    fn new() -> Self {
        let desk = Desk::new();
        desk.write("p.yaml", FILE);
        let serving = Serving::start(&desk, &["-c", "p.yaml"]);
        Self { desk, serving }
    }

    /// Runs a verb. Its words must not contain blanks.
    fn run(&self, words: &str) -> crate::verbs::Ran {
        let words: Vec<&str> = words.split(' ').chain(["--server", self.serving.url()]).collect();
        self.desk.run(&words)
    }

    /// Runs a verb, whose JSON must match the schema of the verb's document.
    fn json(&self, words: &str) -> Value {
        let document = words.split(' ').next().unwrap();
        let value = self.run(&format!("{words} -o json")).json();
        holds(&schema(&self.desk, document), &value, words);
        value
    }
}

#[test]
fn the_keys_that_are_refused_most_are_listed_golden() {
    let stand = Stand::new();
    assert_eq!(stand.run("top").code(0).out, "no key was refused\n");
    assert_eq!(stand.serving.statuses("203.0.113.9", 5), [200, 200, 429, 429, 429]);
    assert_eq!(stand.serving.statuses("203.0.113.8", 3), [200, 200, 429]);
    assert_eq!(
        stand.run("top --reveal").code(0).out,
        "POLICY   KEY                     DENIED      %\n\
         per-ip   client.ip=203.0.113.9        3   75.0\n\
         per-ip   client.ip=203.0.113.8        1   25.0\n"
    );
    let first = stand.run("top -n 1 -o wide").code(0).out;
    assert!(!first.contains("203.0.113") && first.contains("at most 0"), "digests, all columns: {first}");
    assert_eq!(first.lines().count(), 2, "{first}");
    let near = stand.run("top --by near --policy per-ip --reveal").code(0).out;
    assert!(near.starts_with("POLICY   KEY                     NEAR      %\n"), "{near}");
    assert!(near.contains("client.ip=203.0.113.8      1   50.0"), "{near}");
    assert_eq!(stand.run("top --policy all").code(0).out, "no key was refused\n");
    let said = stand.json("top --reveal");
    assert_eq!((&said["counted"], &said["keys"][0]["count"]), (&json!(4), &json!(3)));

    for (words, code, says) in [
        ("top --policy per-pi", 1, "did you mean \"per-ip\"?"),
        ("top -n 513", 2, "`513` is not a number of keys to list; use 1 to 512"),
        ("top --by rate", 2, "possible values: denied, near"),
        ("top -w --every 1ms", 2, "use 1s to 1h"),
        ("top -w --times 0", 2, "use 1 or more"),
        ("top --every 5s", 2, "--watch"),
        ("top -w -o json", 2, "write -o jsonl"),
        ("top -w -o yaml", 2, "write -o jsonl"),
    ] {
        let wrong = stand.run(words).code(code);
        assert!(wrong.err.contains(says) && wrong.out.is_empty(), "{words}: {wrong:?}");
    }
    assert_eq!(stand.serving.stop(), Some(0));
}

/// Characters that a terminal interprets come from callers, in keys, and must not come out of any format.
#[test]
fn keys_of_strangers_draw_nothing_golden() {
    let stand = Stand::new();
    let name = "a\u{1b}[2J\u{9b}\u{202e}b\nFORGED";
    let body = json!({ "attributes": { "tenant": name, "region": "eu" } });
    let refused: Vec<u16> =
        (0..6).map(|_| stand.serving.ask("/v1/check", Some(&body)).status().as_u16()).collect();
    assert_eq!(refused, [200, 200, 200, 200, 200, 429]);
    let shown = r"tenant=a\u{1b}[2J\u{9b}\u{202e}b\nFORGED, region=eu";
    for words in ["top --reveal", "key list top --reveal"] {
        let table = stand.run(words).code(0).out;
        assert!(table.contains(shown), "{words}: {table:?}");
        for form in ["table", "wide", "json", "jsonl", "yaml"] {
            let out = stand.run(&format!("{words} -o {form}")).code(0).out;
            let hostile =
                |char: char| char.is_control() && char != '\n' || ('\u{202a}'..='\u{202e}').contains(&char);
            assert!(!out.contains(hostile) && !out.contains("\nFORGED"), "{words} -o {form}: {out:?}");
        }
    }
    let tenant = format!("tenant={name}");
    let words = ["key", "block", "top", "--key", &tenant, "--key", "region=eu", "--for", "1h"];
    let blocked = stand.desk.run(&[&words[..], &["--server", stand.serving.url()]].concat()).code(0);
    assert!(blocked.out.starts_with(&format!("{shown} of policy \"top\" is blocked until ")), "{blocked:?}");
}

#[test]
fn a_key_is_blocked_shown_unblocked_and_reset_golden() {
    let stand = Stand::new();
    let key = "per-ip --key client.ip=203.0.113.9";
    let fresh = stand.run(&format!("key get {key}")).code(0).out;
    assert_eq!(
        fresh,
        "KEY                     LEFT     FULL IN   DENIED   NEAR   BLOCKED UNTIL   WHY\n\
         client.ip=203.0.113.9   2 of 2   -              0      0   -               -\n"
    );
    assert_eq!(
        stand.run("key list per-ip").code(0).out,
        "no key is blocked, was refused or came near its limit\n"
    );
    assert_eq!(stand.serving.statuses("203.0.113.9", 3), [200, 200, 429]);
    let spent = stand.run(&format!("key get {key}")).code(0).out;
    assert!(spent.contains("0 of 2") && spent.contains("23 h 59 min"), "{spent}");

    let blocked = stand.run(&format!("key block {key} --for 1h --reason scraper")).code(0).out;
    assert!(
        blocked.starts_with("client.ip=203.0.113.9 of policy \"per-ip\" is blocked until 2")
            && blocked.ends_with("Z\n"),
        "{blocked}"
    );
    assert_eq!(stand.serving.statuses("203.0.113.9", 1), [403]);
    let listed = stand.run("key list per-ip --reveal").code(0).out;
    let row = listed.lines().nth(1).unwrap();
    assert!(row.starts_with("client.ip=203.0.113.9") && row.ends_with("scraper"), "{listed}");
    assert!(!stand.run("key list per-ip").code(0).out.contains("203.0.113.9"), "digests");

    let freed = stand.run(&format!("key unblock {key}")).code(0).out;
    assert_eq!(freed, "client.ip=203.0.113.9 of policy \"per-ip\" is no longer blocked\n");
    assert_eq!(stand.serving.statuses("203.0.113.9", 1), [429], "what was spent stays spent");
    let again = stand.run(&format!("key unblock {key}")).code(1).out;
    assert!(again.ends_with(" is not blocked; nothing was changed\n"), "{again}");

    stand.run(&format!("key block {key} --for 1h")).code(0);
    let reset = stand.run(&format!("key reset {key}")).code(0).out;
    assert_eq!(
        reset,
        "the units that client.ip=203.0.113.9 of policy \"per-ip\" has spent are forgotten, and its block is ended\n"
    );
    // Regression: "the units … are forgotten" was said of a key never seen.
    let nothing = stand.run("key reset per-ip --key client.ip=192.0.2.77").code(1).out;
    assert_eq!(nothing, "policy \"per-ip\" has nothing of client.ip=192.0.2.77: nothing was changed\n");
    assert_eq!(stand.serving.statuses("203.0.113.9", 1), [200]);
    assert!(!stand.run(&format!("key reset {key}")).code(0).out.contains("block"), "it was not blocked");
}

#[test]
fn the_documents_of_keys_match_their_schema() {
    let stand = Stand::new();
    let key = "per-ip --key client.ip=203.0.113.9";
    assert_eq!(stand.json(&format!("key block {key} --for 1h --reason x"))["block"]["reason"], "x");
    assert_eq!(stand.json(&format!("key get {key}"))["block"]["reason"], "x");
    assert_eq!(stand.json("key list per-ip --reveal")["keys"][0]["key"], "client.ip=203.0.113.9");
    assert_eq!(stand.json(&format!("key unblock {key}"))["unblocked"], true);
    assert_eq!(stand.json(&format!("key reset {key}"))["unblocked"], false);
}

#[test]
fn pages_of_keys_follow_each_other() {
    let stand = Stand::new();
    for last in 1..=3 {
        stand.run(&format!("key block per-ip --key client.ip=203.0.113.{last} --for 1h")).code(0);
    }
    let first = stand.run("key list per-ip -n 2 --reveal").code(0);
    assert_eq!(first.err, "3 keys are known; --from 2 lists the next ones\n");
    let second = stand.run("key list per-ip -n 2 --from 2 --reveal").code(0);
    assert!(second.err.is_empty(), "{second:?}");
    let both = first.out + &second.out;
    assert!((1..=3).all(|last| both.matches(&format!("203.0.113.{last}")).count() == 1), "{both}");
    assert_eq!(stand.run("key list per-ip --from 3").code(0).out, "no more keys: 3 are known\n");
    assert!(stand.run("key list per-ip -n 2 -q").code(0).err.is_empty());
}

/// A policy without `by` has one key, which has no name to write; and `/v1/keys/top` is a list, not a policy's keys.
#[test]
fn the_keys_of_policies_of_every_form_are_found() {
    let stand = Stand::new();
    stand.serving.statuses("203.0.113.9", 1);
    for words in ["key get all", "key list all"] {
        let shown = stand.run(words).code(0).out;
        assert!(shown.contains("(all)   999,999 of 1,000,000"), "{words}: {shown}");
    }
    assert_eq!(stand.json("key get all")["key"], "(all)");
    stand.run("key block all --for 1h").code(0);
    assert_eq!(stand.serving.statuses("203.0.113.9", 1), [403]);
    let freed = stand.run("key unblock all").code(0).out;
    assert_eq!(freed, "(all) of policy \"all\" is no longer blocked\n");

    let two = "top --key tenant=a --key region=b&c";
    assert!(stand.run(&format!("key get {two}")).code(0).out.contains("tenant=a, region=b&c"));
    stand.run(&format!("key block {two} --for 1h")).code(0);
    assert_eq!(stand.json("key list top --reveal")["keys"][0]["key"], "tenant=a, region=b&c");
}

#[test]
fn mistakes_about_keys_say_what_to_write() {
    let stand = Stand::new();
    let no_key = "write --key client.ip=...\n";
    for (words, code, says) in [
        ("key get per-ip", 1, no_key),
        ("key reset per-ip", 1, no_key),
        ("key block per-ip --for 1h", 1, no_key),
        ("key unblock per-ip", 1, no_key),
        ("key get top --key tenant=a", 1, "write --key tenant=... --key region=...\n"),
        (
            "key get per-ip --key limit=1",
            1,
            "a key of policy \"per-ip\" is made of `client.ip`; write --key client.ip=...\n",
        ),
        (
            "key get all --key client.ip=1",
            1,
            "policy \"all\" has one key for all requests; leave out --key\n",
        ),
        ("key get per-pi", 1, "did you mean \"per-ip\"?"),
        ("key get per-ip --key client.ip=203.0.113.1 --key client.ip=203.0.113.2", 1, "twice"),
        ("key get per-ip --key 203.0.113.9", 2, "write NAME=VALUE"),
        ("key list per-pi", 1, "did you mean \"per-ip\"?"),
        ("key list per-ip -n 101", 2, "use 1 to 100"),
        ("key list per-ip --from x", 2, "`x` is not a whole number"),
        ("key block per-ip --key client.ip=1", 2, "--for"),
        ("key block per-ip --key client.ip=1 --for 5", 2, "--for"),
        (
            "key block per-ip --key client.ip=1 --for 31d",
            1,
            "`31d` is not a time to block a key for; use up to 30d",
        ),
        ("key block trial --for 1h", 1, "not enforced"),
        ("key frob", 2, "unrecognized subcommand"),
    ] {
        let wrong = stand.run(words).code(code);
        assert!(wrong.err.contains(says) && wrong.out.is_empty(), "{words}: {wrong:?}");
    }
    let nobody = stand.desk.run(&["top", "-w", "--server", "http://127.0.0.1:1"]).code(1);
    assert!(nobody.err.contains("no server answers at http://127.0.0.1:1"), "{nobody:?}");
}

#[test]
fn one_command_blocks_a_caller_under_all_policies() {
    let stand = Stand::new();
    assert_eq!(stand.run("key list").code(0).out, "no caller is blocked for all policies\n");
    let done = stand.run("key block client.ip=203.0.113.9 --for 1h --reason scraper").code(0);
    assert!(done.out.starts_with("client.ip=203.0.113.9, for all policies, is blocked until "), "{done:?}");
    assert_eq!(stand.serving.statuses("203.0.113.9", 1), [403]);
    let got = stand.json("key get client.ip=203.0.113.9");
    assert_eq!(got["block"]["reason"], "scraper", "{got}");
    let listed = stand.run("key list --reveal").code(0);
    assert!(listed.out.contains("client.ip=203.0.113.9") && listed.out.contains("scraper"), "{listed:?}");
    assert!(stand.run("key get per-ip --key client.ip=203.0.113.9").code(0).out.contains("scraper"));
    stand.json("key list");
    assert!(stand.run("top --reveal").code(0).out.contains("(blocked)"));
    stand.run("key unblock client.ip=203.0.113.9").code(0);
    stand.run("key unblock client.ip=203.0.113.9").code(1);
    assert_eq!(stand.serving.statuses("203.0.113.9", 1), [200]);
    let wrong = stand.run("key block user.id=7 --for 1h").code(1);
    assert!(wrong.err.contains("no policy reads the attribute `user.id`"), "{wrong:?}");
}

#[test]
fn a_block_says_what_it_is_of() {
    let stand = Stand::new();
    let wrong = stand.run("key block per-ip --key client.ip=9.9.9.0/24 --for 1h").code(1);
    assert!(wrong.err.contains("for a network write `tidegate key block client.ip=9.9.9.0/24`"), "{wrong:?}");
    let v6 = stand.run("key block per-ip --key client.ip=2001:db8::1 --for 1h").code(0).out;
    assert!(v6.ends_with(", and so is all of 2001:db8::/64, which shares its key\n"), "{v6}");
    let v6 = stand.run("key block client.ip=2001:db8::1 --for 1h").code(0).out;
    assert!(v6.ends_with(", and so is all of 2001:db8::/64, which shares its key\n"), "{v6}");
    let pattern = stand.run("key block tenant=bob* --for 1h").code(0);
    assert!(
        pattern.err.contains("\"bob*\" is taken literally: only this one value is blocked"),
        "{pattern:?}"
    );
}
