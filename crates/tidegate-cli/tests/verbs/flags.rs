//! Errors about the value of a flag name the flag and valid values.

use crate::verbs::{Desk, sample};

/// Mistakes in `--rate` and similar flags must name the flag, not a generated policy file, as in
/// `policy "gcra": rate: ..`. A wrong column must be reported.
#[test]
fn a_mistake_begins_with_its_flag() {
    let desk = Desk::new();
    let (log, csv) = (sample("access.log"), sample("llm-calls.csv"));
    desk.write("p.yaml", "version: 1\npolicies: []\n");
    for (words, says) in [
        ("--rate 10rps", "--rate: \"10rps\" is not how a rate is written here; write 10/s"),
        ("--rate 0", "--rate: \"0\" lets nothing pass; use 1 or more, or access.deny to refuse everyone"),
        ("--rate 5", "--rate: \"5\" does not say per what; write 5/s, 5/min or 5/day"),
        ("--rate 5/fortnight", "--rate: unknown unit \"fortnight\"; use ns, us, ms, s, min, h,"),
        ("--rate -1/s", "--rate: \"-1\" is not a whole number from 1 to 2^60"),
        ("--rate 5/s --burst 0", "--burst: 0 is out of range; use 1 to 2^60"),
        ("--rate 5/s --algorithm gcro", "--algorithm: unknown word \"gcro\"; did you mean \"gcra\"?"),
        ("--algorithm concurrency", "--algorithm: concurrency needs max"),
        ("--limit {rate:5/s", "--limit: line 1 column 1: unclosed bracket"),
        ("--limit [5/s]", "--limit: it has no keys; write '{algorithm: gcra, rate: 100/s}'"),
        ("--limit {\"rate\":5}", "--limit: rate: \"5\" does not say per what"),
        (
            "--limit {\"rate\":\"5/s\",\"bust\":3}",
            "--limit: unknown key \"bust\" in limit; did you mean \"burst\"?",
        ),
        ("--rate 5/s --set bust=3", "--set bust: unknown key \"bust\" in limit; did you mean \"burst\"?"),
        ("--rate 5/s --set buckets=3", "--set buckets: buckets does not belong to gcra"),
        (
            "--rate 5/s --set max_wait=5 --algorithm leaky-bucket",
            "--set max_wait: \"5\" has no unit; write 5ms,",
        ),
        ("--rate 5/0s", "--rate: \"5/0s\" has a period of 0; write 5/s, or 5/10s for ten of those"),
        ("--rate 5/s --by clientip", "--by: no request has \"clientip\"; write client.ip"),
        ("--rate 5/s --by tenant", "--by tenant: nothing matched: "),
        ("--rate 5/s --cost tokens", "--cost: \"tokens\" is one word"),
        ("--rate 5/s --cost 0", "--cost: 0 is not a whole number of 1 or more"),
        ("--rate 5/s --cost -1", "--cost: "),
        (
            "--rate 5/s --compare sliding",
            "--compare sliding: algorithm: unknown word \"sliding\"; possible are",
        ),
        ("--rate 5/s --compare warm-up", "--compare warm-up: warm-up needs warm_up"),
        ("-c p.yaml --compare gcra", "--compare needs a limit spelled out"),
        (
            "-c p.yaml --by user.id",
            "--by needs a limit given by flags, such as --rate 10/s; the policies of p.yaml have their own `by`",
        ),
        (
            "-c p.yaml --cost 2",
            "--cost needs a limit given by flags, such as --rate 10/s; the policies of p.yaml",
        ),
        ("--rate 5/s --column user.id=uid", "--column user.id=uid: no line has a column uid"),
        (
            "--rate 5/s --fail-if denid>1",
            "--fail-if, column 1: `denid` is not a measure; did you mean `denied`?",
        ),
        ("--rate 5/s --fail-if denied{policy=x}>1", "--fail-if: there is no policy \"x\"; there are gcra"),
        ("--rate 5/s --plot p.yaml", "--plot: cannot make p.yaml: "),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let told = desk.run(&[&["replay", &log, "-q"], &words[..]].concat());
        assert!(told.code > 0 && told.err.starts_with(&format!("error: {says}")), "{told:?}");
        assert!(told.out.is_empty() || says.starts_with("--plot"), "{told:?}");
    }
    let told = desk.run(&["replay", &csv, "--by", "tenant", "--rate", "5/s", "--column", "tenant=who", "-q"]);
    assert!(
        told.clone().code(2).err.starts_with("error: --column tenant=who: no line has a column who"),
        "{told:?}"
    );
    let told = desk.run(&["suggest", &log, "--column", "user.id=uid", "-q"]);
    assert!(
        told.clone().code(2).err.starts_with("error: --column user.id=uid: no line has a column uid"),
        "{told:?}"
    );
    for (words, says) in [
        (
            "--rate 5/s --traffic stedy",
            "--traffic, column 1: `stedy` is not a kind of traffic; did you mean `steady`?",
        ),
        (
            "--rate 5/s --traffic idle~5x",
            "--traffic, column 6: unknown unit \"x\"; use ns, us, ms, s, min, h,",
        ),
        ("--rate 5/s --trace gone", "--trace: cannot open gone: "),
        ("--rate 5rpm --traffic burst~1", "--rate: \"5rpm\" is not how a rate is written here; write 5/min"),
        (
            "--rate 5/s --traffic burst~1 --plot gone/x.svg",
            "--plot: cannot write gone/x.svg: there is no folder gone; make it first",
        ),
    ] {
        let words: Vec<String> = words.split(' ').map(|word| word.replace('~', " ")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = desk.run(&[&["simulate", "-q"], &words[..]].concat());
        assert!(told.code > 0 && told.err.starts_with(&format!("error: {says}")), "{told:?}");
        assert!(told.out.is_empty(), "refused before the run: {told:?}");
    }
}

/// Invalid values of a flag are refused before anything is read.
#[test]
fn a_value_that_cannot_be_is_refused_with_its_flag() {
    let desk = Desk::new();
    for (words, flag, says) in [
        ("replay --reorder 5", "--reorder <TIME>", "\"5\" has no unit; write 5ms, 5s or 5min"),
        ("replay --reorder 5M", "--reorder <TIME>", "\"M\" could be minute or month; write min or month"),
        ("replay --reorder -5s", "--reorder <TIME>", "is not a span of time; write 200ms, 10s or 1h30min"),
        ("replay --hold 5x", "--hold <TIME>", "unknown unit \"x\"; use ns, us, ms, s, min, h, day"),
        ("replay --hold 0s", "--hold <TIME>", "`0s` is not a span to simulate; use 1ns to 366d"),
        ("simulate --hold 0s", "--hold <TIME>", "`0s` is not a span to simulate; use 1ns to 366d"),
        ("replay --speed fast", "--speed <SPEED>", "write max, 1x or 60x"),
        ("replay --keys -1", "--keys <N>", "use 1 to 1000000000"),
        ("replay --burst -1", "--burst <N>", "`-1` is not a whole number; write one as 20"),
        ("replay --column host", "--column <NAME=COLUMN>", "write NAME=VALUE"),
        ("replay --set buckets", "--set <KEY=VALUE>", "write NAME=VALUE"),
        ("replay --max-late 200%", "--max-late <SHARE>", "write 99.9% or 0.999"),
        ("simulate --seed x", "--seed <N>", "`x` is not a whole number; write one as 20"),
        ("explain --attr x", "--attr <NAME=VALUE>", "write NAME=VALUE"),
        ("explain --cost x", "--cost <N>", "`x` is not a whole number; write one as 20"),
        ("serve --drain 10", "--drain <TIME>", "\"10\" has no unit; write 10ms, 10s or 10min"),
        ("serve --http :8080", "--http <ADDR>", "write 8080 for this machine alone, or 0.0.0.0:8080"),
        ("serve --connections -5", "--connections <N>", "use 1 to 1000000"),
    ] {
        let told = desk.run(&words.split(' ').collect::<Vec<_>>()).code(2);
        assert!(told.err.starts_with("error: invalid value") && told.err.contains(flag), "{told:?}");
        assert!(told.err.contains(says) && told.out.is_empty(), "{told:?}");
    }
}

/// One grammar: files, flags and traffic accept the same spans.
#[test]
fn a_span_is_the_same_wherever_it_is_written() {
    let desk = Desk::new();
    let log = sample("access.log");
    for (span, works) in [
        ("90s", true),
        ("1m30s", true),
        ("1min 30s", true),
        ("1.5min", true),
        ("90000ms", true),
        ("90000000us", true),
        ("1M", false),
        ("90", false),
        ("1 fortnight", false),
        ("", false),
    ] {
        let code = if works { 0 } else { 2 };
        let file = format!(
            "version: 1\npolicies:\n  - name: a\n    limit: {{ algorithm: leaky-bucket, rate: 5/s, max_wait: '{span}' }}\n"
        );
        desk.write("p.yaml", file);
        let in_file = desk.run(&["config", "check", "p.yaml"]).code(code);
        let in_flag = desk.run(&["replay", &log, "--rate", "5/s", "-q", "--reorder", span]).code(code);
        let in_limit = ["--algorithm", "leaky-bucket", "--set", &format!("max_wait={span}")];
        let in_limit =
            desk.run(&[&["replay", &log, "--rate", "5/s", "-q"], &in_limit[..]].concat()).code(code);
        // Traffic consists of words separated by blanks.
        let traffic = format!("idle {}, burst 1", span.replace(' ', ""));
        let in_traffic = (!span.is_empty())
            .then(|| desk.run(&["simulate", "--rate", "5/s", "-q", "--traffic", &traffic]).code(code));
        let outputs = [Some(in_file), Some(in_flag), Some(in_limit), in_traffic];
        let told: Vec<String> = outputs.into_iter().flatten().map(|ran| ran.out + &ran.err).collect();
        // The advice must be the same too.
        for advice in
            ["has no unit; write", "could be minute or month", "unknown unit", "is not a span of time"]
        {
            let given = told.iter().filter(|told| told.contains(advice)).count();
            assert!(given == 0 || given == told.len() && !works, "{told:#?}");
        }
    }
}

/// Logs belong under "Reading", and traffic under "Options".
#[test]
fn help_has_each_word_under_its_heading() {
    let desk = Desk::new();
    for verb in ["replay", "suggest"] {
        let help = desk.run(&[verb, "-h"]).code(0).out;
        assert!(help.contains("\nArguments:\n  [LOG]...  "), "{help}");
        // A suggestion reads its log several times, and standard input can be read only once.
        assert_eq!(help.contains("reads standard input"), verb == "replay", "{help}");
        let (options, reading) = help.split_once("\nReading:\n").unwrap();
        assert!(options.contains("  --by <NAMES>") && reading.contains("  --reorder <TIME>"), "{help}");
    }
    let help = desk.run(&["simulate", "-h"]).code(0).out;
    let (options, limit) = help.split_once("\nLimit:\n").unwrap();
    assert!(options.contains("  --traffic <TRAFFIC>") && limit.contains("  --burst <N>"), "{help}");
}

/// If the system lacks the memory, the error must name the flag and a value that works.
#[test]
#[cfg(target_os = "linux")]
fn room_that_there_is_no_memory_for_is_refused_by_its_word() {
    let desk = Desk::new();
    desk.write("k.yaml", "version: 1\nstore: { kind: memory, keys: 1000000000 }\npolicies: []\n");
    let log = sample("access.log");
    let limited = |words: &str| {
        let words = format!("ulimit -v 3000000; exec \"$0\" {words}");
        let mut command = std::process::Command::new("sh");
        let command =
            command.args(["-c", &words, env!("CARGO_BIN_EXE_tidegate")]).current_dir(desk.path("."));
        let output = command.env_remove("TIDEGATE_CONFIG").env_remove("TIDEGATE_KEYS").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let wants = |words: &str, word: &str, room: &str| {
        let says = format!(
            "{word} 1000000000: the system has no memory for {room} MB or more; use fewer, such as 1000000"
        );
        let (code, told) = limited(words);
        // The log of a server is JSON where nobody watches.
        assert!(code == Some(1) && told.contains(&says) && told.lines().count() == 1, "{words}: {told}");
    };
    let replay = format!("replay -q '{log}' --rate 2/s --keys 1000000000");
    wants(&replay, "--keys", "a table of so many keys, some 24,000");
    wants(&format!("{replay} --compare token-bucket"), "--keys", "2 tables of so many keys, some 48,000");
    wants("serve -q --http 127.0.0.1:0 --keys 1000000000", "--keys", "a table of so many keys, some 24,000");
    wants("serve -q --http 127.0.0.1:0 -c k.yaml", "store.keys", "a table of so many keys, some 24,000");
}

/// Each flag that takes a number refuses invalid and impossible numbers, without a panic.
#[test]
fn numbers_that_cannot_be_are_refused() {
    let desk = Desk::new();
    let log = sample("access.log");
    let replay = ["replay", &log, "-q", "--algorithm", "gcra"];
    let flags: [(&[&str], &str); 12] = [
        (&[&replay[..], &["--rate", "5/s", "--keys"]].concat(), "--keys"),
        (&[&replay[..], &["--rate", "5/s", "--hit"]].concat(), "--hit"),
        (&[&replay[..], &["--rate", "5/s", "--burst"]].concat(), "--burst"),
        (&[&replay[..], &["--rate", "5/s", "--hold"]].concat(), "--hold"),
        (&[&replay[..], &["--rate", "5/s", "--reorder"]].concat(), "--reorder"),
        (&[&replay[..], &["--rate", "5/s", "--max-malformed"]].concat(), "--max-malformed"),
        (&[&replay[..], &["--rate"]].concat(), "--rate"),
        (&["suggest", &log, "--per"], "--per"),
        (&["suggest", &log, "--keep"], "--keep"),
        (&["bench", "--connections"], "--connections"),
        (&["bench", "--rate"], "--rate"),
        (&["serve", "--http", "127.0.0.1:0", "--connections"], "--connections"),
    ];
    for bad in
        ["-1", "NaN", "inf", "", "\u{663}", "1e400", "18446744073709551616", "99999999999999999999days"]
    {
        for (words, flag) in &flags {
            let told = desk.run(&[words, &[bad][..]].concat()).code(2);
            assert!(told.err.starts_with("error: ") && told.err.contains(flag), "{bad}: {told:?}");
            assert!(!told.err.contains("panicked"), "{told:?}");
        }
    }
    let told = desk.run(&["explain", "--cost", "18446744073709551616"]).code(2);
    assert!(told.err.contains("is too large; use 18446744073709551615 at most"), "{told:?}");
    let told =
        desk.run(&[&replay[..], &["--rate", "5/s", "--burst", "9223372036854775807"]].concat()).code(2);
    assert!(told.err.contains("--burst: \"9223372036854775807\" is out of range; use 1 to 2^60"), "{told:?}");
}

/// Options and verbs of other servers are answered with the words that work here.
#[test]
fn words_of_other_servers_are_answered_with_those_that_work() {
    let desk = Desk::new();
    desk.write("p.yaml", "version: 1\npolicies: [{ name: all, limit: { rate: 9/s } }]\n");
    for (words, says) in [
        ("serve --port 8080", "write --http 127.0.0.1:8080"),
        ("serve --listen :8080", "write --http 127.0.0.1:8080"),
        ("serve --port 9999", "write --http 127.0.0.1:9999"),
        ("serve -p 80", "write --http 127.0.0.1:80"),
        ("serve --listen 10.0.0.1:9000", "write --http 10.0.0.1:9000"),
        ("serve --bind=0.0.0.0:9000", "write --http 0.0.0.0:9000"),
        (
            "serve --redis redis://cache:7000",
            "write store: { kind: redis, url: redis://cache:7000, nodes: 2 } in",
        ),
        ("serve --grpc-port 9191", "write --grpc 127.0.0.1:9191"),
        ("serve --metrics :9090", "write --admin 127.0.0.1:9090"),
        ("serve --port $(x)", "write --http 127.0.0.1:8080"),
        ("top --limit 5", "write -n 5"),
        (
            "serve --http 18080 --admin 18080",
            "127.0.0.1:18080: --http and --admin are the same address (flags, variables or the file's server); give each its own, or leave --admin out",
        ),
        ("key block 8.8.8.8 --for 1h", "8.8.8.8 is an address and no policy; write client.ip=8.8.8.8"),
        ("serve --config-file p.yaml", "write -c p.yaml"),
        ("serve --metrics-port 9090", "write --admin 127.0.0.1:9090"),
        ("serve --log-level debug", "write -v"),
        ("serve --dry-run", "write defaults: { mode: shadow } in the file"),
        ("serve --http :8080", "write 8080 for this machine alone, or 0.0.0.0:8080 for everyone"),
        ("serve p.yaml -c p.yaml", "the policy file is named twice"),
        ("serve --store memory", "write store: { kind: memory } in the file"),
        ("serve --store=disk", "write store: { kind: disk } in the file"),
        ("serve --memory", "write store: { kind: memory } in the file"),
        ("serve --domain shop", "write match: { attributes: { rls.domain: shop } } in the file"),
        ("serve --envoy rl.yaml", "write --from-envoy rl.yaml"),
        (
            "serve --rate 10/s",
            "write policies: [{ name: api, by: [client.ip], limit: { rate: 10/s } }] in the file",
        ),
        ("top --token secret", "set the environment variable TIDEGATE_TOKEN"),
        ("serve --no-wach", "a similar argument exists: '--no-watch'"),
        ("replay -f combined a.log", "write --format combined"),
        ("replay -f pol.yaml a.log", "write -c pol.yaml"),
        ("replay --format nginx a.log", "a similar value exists: 'combined'"),
        ("replay --log a.log", "write a.log without an option, as in tidegate replay a.log"),
        ("replay --policy p.yaml a.log", "write -c p.yaml"),
        ("suggest a.log -c p.yaml", "suggest reads no policy file: it proposes a limit from the log alone"),
        (
            "config check --strict p.yaml",
            "config check exits 2 if there is any error and 0 if there are only",
        ),
        ("explain client.ip=1.2.3.4", "write --attr client.ip=1.2.3.4"),
        ("explain --client.ip 1.2.3.4", "write --attr client.ip=1.2.3.4"),
        ("explain GET /api/x", "write --attr request.method=GET --attr request.path=/api/x"),
        ("explain 1.2.3.4", "write --attr client.ip=1.2.3.4"),
        ("explain --attr user.id:ann", "write user.id=ann"),
        ("key block client.ip 203.0.113.5 --for 1h", "write client.ip=203.0.113.5"),
        ("key reset client.ip 203.0.113.5", "write POLICY --key client.ip=203.0.113.5"),
        ("key reset client.ip=203.0.113.5", "write tidegate key reset POLICY --key client.ip=203.0.113.5"),
        ("key get per-ip client.ip=203.0.113.5", "write --key client.ip=203.0.113.5"),
        ("key show client.ip=203.0.113.5", "'key get'"),
        (
            "reload",
            "reads its policy file again when it changes, on SIGHUP (kill -HUP PID) and on POST /v1/reload",
        ),
        ("start", "'serve'"),
        ("check p.yaml", "'config check'"),
        ("validate p.yaml", "'config check'"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let told = desk.run(&words).code(2);
        assert!(told.err.contains(says), "{words:?}: {}", told.err);
    }
    // No tip is better than a wrong one.
    for words in ["serve --workers 4", "serve --upstream http://127.0.0.1:9000", "serve --acces-log x"] {
        let told = desk.run(&words.split(' ').collect::<Vec<_>>()).code(2);
        assert!(told.err.contains("unexpected argument") && !told.err.contains("tip:"), "{}", told.err);
    }
    assert_eq!(desk.run(&["serve", "p.yaml", "--check"]).code(0).out.trim(), "The file is fine");
}

/// Such a file was called fine, and limited nothing.
#[test]
fn a_file_that_refuses_nothing_is_told() {
    let desk = Desk::new();
    let file = |head: &str, policy: &str| {
        desk.write(
            "p.yaml",
            format!("version: 1\n{head}policies:\n  - {{ name: p, {policy}, limit: {{ rate: 1/s }} }}\n"),
        );
        desk.run(&["config", "check", "p.yaml"]).code(0).out
    };
    let (envoys, http) = ("match: { attributes: { rls.domain: shop } }", "server: { http: 8080 }\n");
    let told = file(http, envoys);
    assert!(
        told.starts_with("p.yaml:4:5  warn   policy \"p\" reads rls.domain, which only Envoy's calls have, but no gRPC door is open, so it limits nothing; write server: { grpc: 127.0.0.1:8081 }, or start with --grpc 127.0.0.1:8081\n"),
        "{told}"
    );
    assert!(file(http, "by: generic_key").contains("reads generic_key, which only Envoy's calls have"));
    for (head, policy) in [("", envoys), ("server: { grpc: 8081 }\n", envoys), (http, "by: user.id")] {
        assert_eq!(file(head, policy).trim(), "The file is fine", "{head}{policy}");
    }
    let told = file("", "mode: shadow");
    assert!(
        told.starts_with("p.yaml  warn   nothing is enforced: all policies are in shadow mode; write mode: enforce for those that are to refuse\n"),
        "{told}"
    );
    desk.write("p.yaml", "version: 1\npolicies: []\n");
    let told = desk.run(&["config", "check", "p.yaml"]).code(0).out;
    assert!(told.starts_with("p.yaml  warn   no policy: nothing is limited; write policies: [{ "), "{told}");
    for elsewhere in [
        "store: { kind: etcd, url: 'http://127.0.0.1:2379', nodes: 3, policies: cluster }",
        "access: { deny: [203.0.113.0/24] }",
        "switches: { previews: { off_when: cpu above 80% } }",
    ] {
        desk.write("p.yaml", format!("version: 1\n{elsewhere}\npolicies: []\n"));
        let told = desk.run(&["config", "check", "p.yaml"]).code(0).out;
        assert!(!told.contains("no policy"), "{elsewhere}: {told}");
    }
}
