//! Files by careless and hostile authors: each is refused with the place of the error, in bounded time and memory, or
//! it takes effect; and a running server keeps the configuration it has.

use crate::attack::raw::JSON;
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, ended};

/// The most CPU time for reading a file, in seconds, enforced by the system: about ten times what the most expensive
/// file takes without optimisation. It does not depend on how busy the machine is.
const WORK: usize = 20;

/// The most memory for reading a file, in KiB of address space: the program itself takes a tenth of it.
const MEMORY: usize = 1 << 20;

const GOOD: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: witness
    by: [attack.witness]
    limit: { rate: 1000000/s }
";

/// Lets a verb read a file, with limits of memory and CPU time. Returns its exit code and all its output.
#[track_caller]
fn read(file: &str, text: &[u8], verb: &str) -> (Option<i32>, String) {
    let desk = Desk::with("");
    std::fs::write(desk.path(file), text).unwrap();
    let output =
        ended(desk.shell(&format!("ulimit -v {MEMORY}; ulimit -t {WORK}; exec \"$0\" {verb} {file}")));
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let shown = said.chars().all(|letter| letter == '\n' || !letter.is_control());
    assert!(shown, "control characters reach the terminal: {said:?}");
    assert!(said.len() < 200_000, "{} bytes are said of a file", said.len());
    (output.status.code(), said)
}

/// Requires that a file is refused with this message.
#[track_caller]
fn refused(file: &str, text: &[u8], words: &str) {
    let (code, said) = read(file, text, "config check");
    assert_eq!(code, Some(2), "{words}: {said:.500}");
    assert!(said.contains(words), "{words}: {said:.2000}");
}

fn policy(line: &str) -> String {
    format!("version: 1\npolicies:\n  - name: p\n    limit: {{ rate: 100/s }}\n    {line}\n")
}

fn many(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn large_deep_and_costly_files_are_refused_in_bounded_time_and_memory() {
    let long = "z".repeat(1 << 20);
    let zone = policy(&format!("limit: [{{ algorithm: fixed-window, rate: 1/day, calendar: {long} }}]"));
    let name = format!("version: 1\npolicies:\n  - {{ name: {long}, limit: {{ rate: 1/s }} }}\n");
    let bomb: String = (1..20)
        .map(|level| format!("x-{level}: &x{level} [{}]\n", vec![format!("*x{}", level - 1); 20].join(", ")))
        .collect();
    let merges: String =
        (1..2000).map(|at| format!("x-{at}: &m{at} {{ <<: *m{}, k{at}: 1 }}\n", at - 1)).collect();
    let loops = |deep: usize| {
        (0..deep).fold("1".to_owned(), |inner, at| format!("[1,2,3].map(x{at}, {inner}).size()"))
    };
    let braces = format!("/{}", "{a,b,c,d,e,f,g,h}".repeat(40));
    for (text, words) in [
        (zone, "use at most 64"),
        (name, "use at most 128"),
        (policy(&format!("by: [{long}]")), "use at most 256"),
        (policy(&format!("match: {{ path: /{long} }}")), "use at most 1024"),
        (
            policy(&format!("match: {{ path: [{}] }}", many(20_000, |at| format!("/{at}")))),
            "at most 10000 are possible",
        ),
        (policy(&format!("match: {{ path: '{braces}' }}")), "multiply out to more than 64"),
        (
            policy(&format!("match: {{ path: [{}] }}", many(900, |at| format!("/**/a/a/a/a{at}/**/b")))),
            "steps for each byte",
        ),
        (policy(&format!("cost: '{}'", loops(8))), "an expression has no loops"),
        (policy(&format!("cost: '{}1'", "1+".repeat(900))), "parts; at most 200"),
        (policy(&format!("cost: '{}1{}'", "(".repeat(500), ")".repeat(500))), "nested too deep"),
        (
            policy(&format!("limit: [{}]", many(5_000, |_| "{ rate: 1/s }".to_owned()))),
            "at most 16 are possible",
        ),
        (
            format!(
                "version: 1\npolicies: [{}]\n",
                many(30_000, |at| format!("{{ name: p{at}, limit: {{ rate: 1/s }} }}"))
            ),
            "at most 10000 are possible",
        ),
        (format!("version: 1\nx-0: &x0 [a]\n{bomb}policies: []\n"), "cannot be read as YAML"),
        (format!("version: 1\nx-0: &m0 {{ a: 1 }}\n{merges}policies: []\n"), "cannot be read as YAML"),
        ("[".repeat(1 << 20), "cannot be read as YAML"),
        (
            format!("version: 1\nx-a: [{}]\npolicies: []\n", "1,".repeat(1_900_000)),
            "too large or nested too deep",
        ),
        (
            format!("version: 1\npolicies: []\n{}", many(9_000, |at| format!("\nk{at}: 1"))),
            "more errors are not shown",
        ),
        ("#".repeat(15 << 20), "the file is longer than 4 MiB"),
    ] {
        refused("p.yaml", text.as_bytes(), words);
    }
    let wide = format!("version = 1\npolicies = []\nx-a = [{}]\n", "1,".repeat(1_900_000));
    let deep = format!("version = 1\npolicies = []\nx-a = {}", "[".repeat(1 << 20));
    for (text, words) in [(wide, "more than 1000000 commas"), (deep, "cannot be read as TOML")] {
        refused("p.toml", text.as_bytes(), words);
    }
}

#[test]
fn what_can_never_hold_is_refused_with_the_right_word() {
    for (line, words) in [
        ("by: [request.header.X-Api-Key]", "write request.header.x-api-key"),
        ("by: [client.IP]", "write client.ip"),
        ("by: ['request.headers.*']", "write request.header.<name>"),
        ("access: { deny: [request.header.X-Key=a] }", "write request.header.x-key"),
        ("access: { deny: [Client.IP=203.0.113.9] }", "write client.ip"),
        ("cost: { by: Request.Method, values: { POST: 2 }, otherwise: 1 }", "write request.method"),
        ("cost: { by: request.method, values: { Post: 2 }, otherwise: 1 }", "write POST"),
        ("cost: 'client.IP == \"203.0.113.9\" ? 2 : 1'", "write client.ip"),
        ("match: { path: /%6Cogin }", "write /login"),
        ("match: { path: /a/../login }", "write /login"),
        ("match: { path: '/login?q=*' }", "write /login"),
        ("match: { method: '*' }", "leave method out"),
        ("match: { host: 'example.com:443' }", "write example.com"),
        ("match: { not: {} }", "excludes everything that the rest"),
        (
            "shadow_limit: { rate: { by: USER.Tier, values: { a: 1/s }, otherwise: 1/s }, overrides: [{ key: { client.IP: a }, rate: 1/s }] }",
            "write client.ip",
        ),
    ] {
        refused("p.yaml", policy(line).as_bytes(), words);
    }
}

/// The manual states the largest log: each check reads and copies all that it keeps.
#[test]
fn a_log_that_each_check_would_have_to_copy_is_refused_with_what_to_use() {
    let log = |count| policy("").replace("rate: 100/s", &format!("algorithm: sliding-log, rate: {count}/h"));
    let (code, said) = read("p.yaml", log(16_384).as_bytes(), "config check");
    assert_eq!(code, Some(0), "{said}");
    refused("p.yaml", log(16_385).as_bytes(), "use at most 16384, or `sliding-window`");
}

#[test]
fn a_path_that_is_longer_than_any_gets_a_sentence() {
    let desk = Desk::with(GOOD);
    for path in ["a".repeat(70_000), "a/".repeat(35_000), "a\n".repeat(35_000)] {
        for verb in [
            &["serve", "--http", "127.0.0.1:0", "-c"][..],
            &["config", "check"],
            &["config", "show"],
            &["explain", "-c"],
            &["replay", "p.yaml", "-c"],
            &["replay", "-c", "p.yaml"],
            &["suggest"],
            &["simulate", "--traffic", "steady 1/s 1s", "-c"],
        ] {
            let output = ended(desk.command(&[verb, &[path.as_str()]].concat()));
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(matches!(output.status.code(), Some(1 | 2)), "{verb:?}: {:?} {said:.500}", output.status);
            assert!(!said.contains("panicked"), "{verb:?}: {said:.500}");
        }
    }
}

#[test]
fn what_would_break_a_header_or_a_terminal_is_refused() {
    for line in [
        r#"by: ["a\r\nx"]"#,
        r#"deny: { problem: "/a\r\nset-cookie: b" }"#,
        r#"match: { header: { "x\r\ny": true } }"#,
        r#"match: { header: { x: "\x1b]0;title\x07" } }"#,
        r#"access: { deny: ["user.id=\x1b[31m"] }"#,
        r#"cost: "\x1b[2J""#,
        r#"mode: "\x1b[2J""#,
        r#""\x1b[2J": 1"#,
    ] {
        refused("p.yaml", policy(line).as_bytes(), "error");
    }
    refused(
        "p.yaml",
        b"version: 1\npolicies: [{ name: \"a\\x1b[2Jb\", limit: { rate: 1/s } }]\n",
        "control character",
    );
    refused(
        "p.yaml",
        b"version: 1\nclient_ip: { header: \"x\\r\\ny\" }\npolicies: []\n",
        "control character",
    );
    refused("p.yaml", b"version: 1\nx-a: \x1b[2J\npolicies: [\n", "cannot be read");
    refused("p.toml", b"version = 1\n\"\\u001b[2J\" = 1\npolicies = []\n", "unknown key");
    for bytes in [&b"\xff\xfe"[..], b"version: 1\npolicies: [\xff]\n", b"\0\0\0\0", b""] {
        refused("p.yaml", bytes, "error");
    }
}

#[test]
fn files_with_bytes_changed_are_read_or_refused_and_never_break_the_program() {
    let mut seed = Seed::printed("files_with_bytes_changed");
    let pieces = [
        "*",
        "&a",
        "<<: *a",
        "{",
        "}",
        "[",
        "]",
        "\n",
        "  - ",
        ": ",
        "'",
        "\"",
        "!!binary ",
        "%",
        "?",
        "\u{202e}",
        "1e999",
        "~",
        "/**/",
        "request.header.",
        "\t",
        "|",
        ">",
        "---\n",
        "0x",
        "{a,b}",
        "\u{0}",
    ];
    let base = "version: 1\naccess: { deny: [10.0.0.0/8] }\npolicies:\n  - name: a\n    match: { path: /a/**, header: { x: true } }\n    by: [client.ip, user.id]\n    limit: { rate: { by: user.tier, values: { a: 1/s }, otherwise: 2/s } }\n    cost: 'int(a.b) + 1'\n";
    for _ in 0..rounds(40, 4000) {
        let mut text = base.as_bytes().to_vec();
        for _ in 0..1 + seed.below(6) {
            let at = seed.below(text.len());
            let end = (at + seed.below(8)).min(text.len());
            let with = seed.one_of(&pieces).as_bytes().to_vec();
            text.splice(at..end, with);
        }
        let file = if seed.below(4) == 0 { "p.toml" } else { "p.yaml" };
        let (code, said) = read(file, &text, "config check");
        assert!(matches!(code, Some(0 | 2)), "{code:?} {said}\n{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn a_server_does_not_start_with_such_a_file_and_keeps_what_it_has_when_one_comes() {
    let hostile = [
        policy(&format!(
            "limit: [{{ algorithm: fixed-window, rate: 1/day, calendar: {} }}]",
            "z".repeat(1 << 20)
        )),
        policy(&format!("match: {{ path: [{}] }}", many(20_000, |at| format!("/{at}")))),
        policy("by: [request.header.X-Api-Key]"),
        policy("cost: '[1,2,3].map(x, [1,2,3].map(y, x * y)).size()'"),
        policy("deny: { problem: \"/a\\r\\nset-cookie: b\" }"),
    ];
    for text in &hostile {
        let (code, said) = read("p.yaml", text.as_bytes(), "serve --http 127.0.0.1:0 -c");
        assert!(matches!(code, Some(2)) && said.contains("error"), "{code:?} {said:.1000}");
    }
    let desk = Desk::with(GOOD);
    let mut serving = desk.serve(&[]);
    for text in &hostile {
        std::fs::write(desk.path("p.yaml"), text).unwrap();
        let answer = serving.ask("POST", "/v1/reload", &[], "");
        assert!((400..500).contains(&answer.status) && answer.body.len() < 200_000, "{answer:?}");
        serving.is_well();
        assert!(serving.get("/v1/policies").body.contains("witness"));
    }
}

/// A check that names its policies must take only a lookup for each name, not a compilation of all policies.
#[test]
fn a_check_may_name_hundreds_of_policies() {
    let policies: String = (0..2000)
        .map(|at| {
            format!(
                "  - {{ name: p{at}, match: {{ attributes: {{ n: v{at} }} }}, limit: {{ rate: 3/day }} }}\n"
            )
        })
        .collect();
    let desk = Desk::with(&format!("{GOOD}{policies}"));
    let mut serving = desk.serve(&[]);
    let ask = |names: &[String], value: &str| {
        let body = serde_json::json!({ "attributes": { "n": value }, "policies": names });
        serving.ask("POST", "/v1/check", &[JSON], &body.to_string())
    };
    let names: Vec<String> = (0..256).map(|at| format!("p{at}")).collect();
    let statuses: Vec<u16> = (0..rounds(50, 2000)).map(|_| ask(&names, "v7").status).collect();
    assert_eq!(statuses[..4], [200, 200, 200, 429]);
    assert_eq!(ask(&names, "v300").json()["policies"], serde_json::json!([]), "named are only the first 256");
    let too_many: Vec<String> = (0..257).map(|at| format!("p{at}")).collect();
    assert_eq!(ask(&too_many, "v7").status, 400);
    assert_eq!(ask(&["z".repeat(60_000)], "v7").status, 400);
    serving.is_well();
}

/// Whatever the name of a policy, the policy can be found and its keys can be reset.
#[test]
fn every_name_that_is_accepted_can_be_shown_and_reset() {
    let names =
        ["top", "a/b", "a%2Fb", "a?b", "a#b", "a+b", "...", "a b", "a\"b\\c", "länge", "%", "a&b=c", "keys"];
    let policies: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, name)| serde_json::json!({ "name": name, "match": { "attributes": { "n": format!("v{at}") } }, "by": "user.id", "limit": { "rate": "1/day" } }))
        .collect();
    let desk = Desk::with(&serde_json::json!({ "version": 1, "policies": policies }).to_string());
    let serving = desk.serve(&[]);
    for (at, name) in names.iter().enumerate() {
        let escaped: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let check = || {
            let body = serde_json::json!({ "attributes": { "n": format!("v{at}"), "user.id": "u" } });
            serving.ask("POST", "/v1/check", &[JSON], &body.to_string()).status
        };
        assert_eq!([check(), check()], [200, 429], "{name}");
        assert_eq!(serving.get(&format!("/v1/policies/{escaped}")).json()["name"], *name);
        let reset = serving.ask("DELETE", &format!("/v1/keys/{escaped}?user.id=u"), &[], "");
        assert_eq!(reset.status, 200, "{name}: {reset:?}");
        assert_eq!(check(), 200, "{name} was reset");
    }
    assert_eq!(serving.ask("DELETE", "/v1/keys/top?user.id=u", &[], "").json()["policy"], "top");
    assert!(serving.get("/v1/keys/top").json()["keys"].is_array());
    assert_eq!(serving.ask("DELETE", "/v1/keys/a+b?user.id=u", &[], "").json()["policy"], "a+b");
}

/// `request.path` in a key, a list or a price is the path as it is matched: a query or another spelling does not make
/// another path.
#[test]
fn a_disguised_path_is_no_other_key_price_or_exception() {
    let desk = Desk::with(
        "version: 1
policies:
  - name: per-path
    by: [request.path]
    limit: { rate: 3/day }
  - name: export
    match: { attributes: { user.id: u } }
    cost: { by: request.path, values: { /export: 10 }, otherwise: 1 }
    limit: { rate: 10/day }
access: { deny: [request.path=/admin] }
",
    );
    let serving = desk.serve(&[]);
    let check = |path: &str, user: &str| {
        let body = serde_json::json!({ "attributes": { "request.path": path, "user.id": user } });
        serving.ask("POST", "/v1/check", &[JSON], &body.to_string()).status
    };
    let disguises = [
        "/login",
        "/login?a",
        "//login",
        "/%6Cogin",
        "/./login/",
        "/x/../login",
        "/login;a=1",
        "/x%2f..%2flogin",
    ];
    let statuses: Vec<u16> = disguises.iter().map(|path| check(path, "other")).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429]);
    assert_eq!(
        [check("//export?a", "u"), check("/other", "u")],
        [200, 429],
        "a disguised export costs ten as well"
    );
    for path in ["/admin", "/admin?x", "//admin", "/%61dmin/", "/admin;x"] {
        assert_eq!(check(path, "other"), 403, "{path}");
    }
}
