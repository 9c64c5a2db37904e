//! Words of other rate limiters are answered with one line that works.

use tidegate::config::{Config, Format};

use super::{policy, yaml};

/// The lines of a policy, and what the answer must have, up to its end.
const POLICIES: [(&[&str], &str); 45] = [
    (&["limit: 10r/s"], "limit is a map, found a text; write { rate: 10/s }"),
    (&["limit: 100 per minute"], "; write { rate: 100/min }"),
    (&["limit: 100"], "; write { rate: 100/s } or { rate: 100/min }"),
    // nginx
    (&["limit: rate=10r/s burst=20 nodelay"], "; write { rate: 10/s, burst: 20 }"),
    (&["limit: { rate: 10/s, nodelay: true }"], "; leave it out: without max_wait no request is delayed"),
    (
        &["by: $binary_remote_addr", "limit: { rate: 10/s }"],
        "by: no request has \"$binary_remote_addr\"; write client.ip",
    ),
    (&["by: [$http_x_api_key]", "limit: { rate: 10/s }"], "; write request.header.x-api-key"),
    (&["limit: { rate: 10/s }", "status: 429"], "; write deny: { status: 429 }"),
    // Envoy
    (&["limit: { unit: second, requests_per_unit: 10 }"], "; write limit: { rate: 10/s }"),
    (
        &["limit: { token_bucket: { max_tokens: 100, tokens_per_fill: 10, fill_interval: 1s } }"],
        "; write limit: { rate: 10/s, burst: 100 }",
    ),
    (&["rate_limit: { unit: minute, requests_per_unit: 10 }"], "; write limit: { rate: 10/min }"),
    // Kong
    (&["limit: { minute: 5, policy: local }"], "; write limit: { rate: 5/min }"),
    // Traefik
    (&["limit: { average: 100, burst: 50, period: 1m }"], "; write limit: { rate: 100/min, burst: 50 }"),
    (&["rateLimit: { average: 100, burst: 50 }"], "; write limit: { rate: 100/s, burst: 50 }"),
    // Resilience4j, Spring, bucket4j
    (
        &["limit: { limitForPeriod: 10, limitRefreshPeriod: 1s, timeoutDuration: 500ms }"],
        "; write limit: { rate: 10/s }",
    ),
    (&["limit: { rate: 10/s, timeoutDuration: 500ms }"], "; write max_wait: 500ms"),
    (&["limit: { replenishRate: 10, burstCapacity: 20 }"], "; write limit: { rate: 10/s, burst: 20 }"),
    (&["limit: { capacity: 10, time: 1, unit: minutes }"], "; write limit: { rate: 10/min }"),
    (&["limit: { capacity: 10, period: PT1H }"], "; write limit: { rate: 10/h }"),
    // Express, Django, HAProxy
    (&["limit: { max: 100, windowMs: 60000 }"], "; write limit: { rate: 100/min }"),
    (&["limit: { requests: 100, per: 1m }"], "; write limit: { rate: 100/min }"),
    (&["limit: { rate: 100, window: 1m }"], "; the time stands in the rate; write limit: { rate: 100/min }"),
    (
        &["limit: { rate: 100/min, window: 1m }"],
        "; the time stands in the rate; leave window out and write rate: 100/min",
    ),
    (&["limit: { max_connections: 10 }"], "; write limit: { algorithm: concurrency, max: 10 }"),
    (
        &["limit: { tiers: { gold: 100/s } }"],
        "; write limit: { rate: { by: user.tier, values: { gold: 100/s }, otherwise: 1/s } }",
    ),
    (
        &["limit: { rate: 1/s, overrides: { 192.0.2.1: 9/s } }"],
        "; write [{ key: { client.ip: 192.0.2.1 }, rate: 9/s }]",
    ),
    (
        &["limit: { rate: 1/s }", "overrides: [{ key: { user.id: vip }, rate: 9/s }]"],
        "; it belongs to the limit: write limit: { rate: 10/s, overrides: [{ key: { user.id: vip }, rate: 9/s }] }",
    ),
    (&["rate: 10/s", "burst: 20"], "; write limit: { rate: 10/s, burst: 20 }"),
    (
        &["algorithm: token-bucket", "limit: { rate: 9/s }"],
        "write limit: { rate: 9/s, algorithm: token-bucket }",
    ),
    (&["key: client.ip", "limit: { rate: 10/s }"], "unknown key \"key\" in policy; write by: [client.ip]"),
    (&["key: $http_authorization", "limit: { rate: 10/s }"], "; write by: [request.header.authorization]"),
    (&["by: { header: X-Api-Key }", "limit: { rate: 10/s }"], "; write by: [request.header.x-api-key]"),
    (&["path: /api/**", "limit: { rate: 10/s }"], "; write match: { path: /api/** }"),
    (&["methods: [GET, POST]", "limit: { rate: 10/s }"], "; write match: { method: [GET, POST] }"),
    (&["match: /api/**", "limit: { rate: 10/s }"], "; write { path: /api/** }"),
    (
        &["match: { headers: { x-api-key: \"*\" } }", "limit: { rate: 10/s }"],
        "; write header: { x-api-key: \"*\" }",
    ),
    (
        &["match: { headers: { x-api-key: k-1 } }", "limit: { rate: 10/s }"],
        "; write header: { x-api-key: k-1 }",
    ),
    (
        &["match: { domain: [\"*.example.com\", a.example] }", "limit: { rate: 10/s }"],
        "; write host: [\"*.example.com\", a.example]",
    ),
    (&["match: [{ path: /api }]", "limit: { rate: 10/s }"], "; write { path: [/api] }"),
    (&["limit: { rate: 10/s }", "deny: 429"], "; write { status: 429 }"),
    (&["limit: { rate: 10/s }", "deny: { status_code: 420 }"], "; write status: 420"),
    (&["limit: { rate: 10/s }", "dry_run: true"], "; write mode: shadow"),
    (&["limit: { rate: 10/s }", "enabled: false"], "; write mode: off"),
    (&["limit: { rate: 10/s }", "whitelist: [10.0.0.0/8]"], "; write access: { allow: [10.0.0.0/8] }"),
    (&["limit: { rate: \"1,000/min\" }"], "; write 1000/min"),
];

#[test]
fn a_policy_in_the_words_of_another_system() {
    for (lines, answer) in POLICIES {
        let found = policy(lines);
        assert!(found.iter().any(|one| one.contains(answer)), "{lines:?}: {found:#?}");
        // The line works.
        let Some((_, line)) = answer.split_once("write ") else { continue };
        let line = line.trim_start_matches("limit: { rate: 10/s, overrides: limit:");
        let line = match line {
            map if map.starts_with("{ rate") => format!("limit: {}", map.split(" or ").next().unwrap()),
            map if map.starts_with("{ path") => format!("match: {map}\nlimit: {{ rate: 1/s }}"),
            map if map.starts_with("{ status") => format!("deny: {map}\nlimit: {{ rate: 1/s }}"),
            list if list.starts_with("[{") => {
                format!("by: client.ip\nlimit: {{ rate: 1/s, overrides: {list} }}")
            }
            name if !name.contains(": ") => {
                format!("by: {name}\nlimit: {{ rate: 1/s }}").replace("by: 1", "x-: 1")
            }
            limit if limit.contains("overrides") => format!("by: user.id\n{limit}"),
            key if key.starts_with("limit:") => key.to_owned(),
            key if key.starts_with("rate:") => format!("limit: {{ {key} }}"),
            key if key.starts_with("max_wait:") => format!("limit: {{ rate: 1/s, {key} }}"),
            key if key.starts_with("header:") || key.starts_with("host:") => {
                format!("match: {{ {key} }}\nlimit: {{ rate: 1/s }}")
            }
            key if key.starts_with("status:") => format!("deny: {{ {key} }}\nlimit: {{ rate: 1/s }}"),
            key => format!("{key}\nlimit: {{ rate: 1/s }}"),
        };
        if line.contains("x-: 1") {
            continue;
        }
        let lines: Vec<&str> = line.lines().collect();
        let errors: Vec<_> = policy(&lines).into_iter().filter(|one| one.contains("error")).collect();
        assert!(errors.is_empty(), "{line}: {errors:?}");
    }
}

#[test]
fn a_file_in_the_words_of_another_system() {
    const POLICY: &str = "policies: [{ name: p, limit: { rate: 1/s } }]\n";
    for (line, answer) in [
        ("port: 9000", "; write server: { http: 9000 }"),
        ("listen: ':9000'", "; write server: { http: 9000 }"),
        ("server: { port: 9000 }", "; write http: 9000"),
        (
            "server: { http: ':9000' }",
            "write 0.0.0.0:9000 for all addresses of this machine, or 127.0.0.1:9000",
        ),
        ("redis: redis://db:6379", "; write store: { kind: redis, url: \"redis://db:6379\", nodes: 2 }"),
        ("store: redis://db:6379", "; write { kind: redis, url: \"redis://db:6379\", nodes: 2 }"),
        ("deny: [203.0.113.9]", "; write access: { deny: [203.0.113.9] }"),
        ("blacklist: 203.0.113.9", "; write access: { deny: [203.0.113.9] }"),
        (
            "access: { deny: [10.1.2.*] }",
            "error  access.deny: \"10.1.2.*\" is not a network; write 10.1.2.0/24",
        ),
        (
            "client_ip: { trusted_proxies: [localhost] }",
            "client_ip.trusted_proxies: \"localhost\" is not a network; write 127.0.0.0/8",
        ),
        (
            "client_ip: { trusted_proxies: 10.0.0.0/8 }",
            "client_ip.trusted_proxies is a list, found a text; write [10.0.0.0/8]",
        ),
        ("store: redis", "; write { kind: redis, url: redis://127.0.0.1:6379, nodes: 2 }"),
        ("store: memory", "; write { kind: memory }"),
        ("store: { type: memory }", "unknown key \"type\" in store; write kind: memory"),
        ("trusted_proxies: [10.0.0.0/8]", "; write client_ip: { trusted_proxies: [10.0.0.0/8] }"),
        ("rules: []", "; write policies:, a list of - { name: api, limit: { rate: 10/s } }"),
        ("access: { whitelist: [10.0.0.0/8] }", "; write allow: [10.0.0.0/8]"),
    ] {
        let found = yaml(&format!("version: 1\n{line}\n{POLICY}"));
        assert!(
            found.iter().any(|one| one.starts_with("t:2:") && one.contains(answer)),
            "{line}: {found:#?}"
        );
    }
    let found = yaml("version: 1\npolicies:\n  api:\n    limit: { rate: 1/s }\n");
    assert!(
        found[0].ends_with("policies is a list, found a map; begin each entry with its name, as - name: api"),
        "{found:?}"
    );
    for (entry, name) in [("name: x\n  limit: { rate: 1/s }", "x"), ("limit: { rate: 1/s }", "api")] {
        let found = yaml(&format!("version: 1\npolicies:\n  {entry}\n"));
        assert!(
            found[0].ends_with(&format!("begin each entry with its name, as - name: {name}")),
            "{found:?}"
        );
    }
    for (matching, methods) in [("GET,POST", "GET, POST"), ("GET, HEAD, POST", "GET, HEAD, POST")] {
        let policy = format!("{{ name: x, match: {{ method: {matching} }}, limit: {{ rate: 1/s }} }}");
        let found = yaml(&format!("version: 1\npolicies:\n  - {policy}\n"));
        assert!(found[0].ends_with(&format!("in match; write method: [{methods}]")), "{found:?}");
    }
}

/// Each correction has the author's own values.
#[test]
fn the_line_to_write_has_the_values_that_were_written() {
    for (lines, says) in [
        (&["limit: { max_value: 500, seconds: 3600 }"][..], "; write limit: { rate: 500/h }"),
        (&["limit: { count: 500, time: 3600 }"], "; write limit: { rate: 500/h }"),
        (&["limit: { capacity: 7, refill_rate: 3 }"], "; write limit: { rate: 3/s, burst: 7 }"),
        (&["limit: { capacity: 100, rate: 10/s }"], "; write limit: { rate: 10/s, burst: 100 }"),
        (&["limit: { rate: 10/s, max_burst: 100 }"], "; write limit: { rate: 10/s, burst: 100 }"),
        (&["limit: { rate: 10/s, size: 100 }"], "; write limit: { rate: 10/s, burst: 100 }"),
        (
            &["limit: { requests_per_unit: 500, unit: fortnight }"],
            "; write limit: { rate: 500/day }: \"fortnight\" is no unit; there are s, min, h, day, week, month and year",
        ),
        (&["limit: { second: 5, hour: 1000 }"], "; write limit: [{ rate: 5/s }, { rate: 1000/h }]"),
        (
            &["limit: { algorithm: concurrency, limit: 5 }"],
            "; write limit: { algorithm: concurrency, max: 5 }",
        ),
        (
            &["match: [{ path: /a }, { path: /b }, { method: POST }]", "limit: { rate: 1/s }"],
            "; write { path: [/a, /b] }, and a second policy for the other one",
        ),
        (
            &["limit: { rate: 5/day, algorithm: fixed-window, calendar: true }"],
            "calendar is a time zone, found true; write calendar: UTC, or leave it out",
        ),
        (&["max_value: 500", "seconds: 3600"], "; write limit: { rate: 500/h }"),
        (
            &["limit: { rate: 10/day, timezone: Europe/Paris }"],
            "; write limit: { rate: 10/day, algorithm: fixed-window, calendar: Europe/Paris }",
        ),
        (&["match: { user.tier: free }", "limit: { rate: 1/s }"], "; write attributes: { user.tier: free }"),
        (
            &["when: user.tier == \"free\"", "limit: { rate: 1/s }"],
            "or compare in the cost, as cost: 'user.tier == \"free\" ? 10 : 1'",
        ),
        (&["when: path == /login", "limit: { rate: 1/s }"], "; write match: { path: /login }"),
        (
            &["when: \"request.method != 'GET'\"", "limit: { rate: 1/s }"],
            "; write match: { not: { method: GET } }",
        ),
        (
            &["when: policy everyone above 80%", "limit: { rate: 1/s }"],
            "there is no policy \"everyone\"; a condition names a policy without by, and there is no other such",
        ),
        (&["limit: { rate: 300-M }"], "; write 300/min"),
        (&["limit: { rate: 5/mo }"], "; write 5/month"),
        (&["limit: { rate: 10M/min }"], "; write 10000000/min"),
        (
            &["limit: { rate: [10/s, 100/min] }"],
            "found a list; write limit: [{ rate: 10/s }, { rate: 100/min }]",
        ),
        (&["limit: [10/s, 100/min]"], "limit is a map, found a text; write { rate: 10/s }"),
        (
            &["limit: { rate_by: user.tier, rates: { a: 5/s }, otherwise: 1/s }"],
            "unknown key \"rate_by\" in limit; write rate: { by: user.tier, values: { a: 5/s }, otherwise: 1/s }",
        ),
        (&["mode: dry-run", "limit: { rate: 1/s }"], "unknown word \"dry-run\"; write shadow"),
        (&["mode: report", "limit: { rate: 1/s }"], "unknown word \"report\"; write shadow"),
        (&["rate_by: client.ip", "limit: { rate: 1/s }"], "; write by: [client.ip]"),
        // Regression: `rate_by` was told `by`, which is another limit.
        (
            &["rate_by: user.tier", "rates: { gold: 5/s }", "limit: { rate: 1/s, burst: 3 }"],
            "unknown key \"rate_by\" in policy; rate_by belongs to the limit; write limit: { rate: { by: user.tier, values: { gold: 5/s }, otherwise: 1/s }, burst: 3 }",
        ),
        (
            &["rate_by: user.tier", "rates: { gold: 5/s }", "otherwise: 2/s"],
            "unknown key \"rates\" in policy; rates belongs to the limit; write limit: { rate: { by: user.tier, values: { gold: 5/s }, otherwise: 2/s } }",
        ),
        (&["except: [10.0.0.0/8]", "limit: { rate: 1/s }"], "; write access: { allow: [10.0.0.0/8] }"),
        (&["except: /health", "limit: { rate: 1/s }"], "; write match: { not: { path: /health } }"),
        (
            &["deny: [203.0.113.9]", "limit: { rate: 1/s }"],
            "deny is a map, found a list; write access: { deny: [203.0.113.9] }",
        ),
        // Earlier keys: regression, these were told fixed examples.
        (
            &["limit: { rate: 9/s }", "cost: { estimate: learned, start: 5, quantile: 50% }"],
            "unknown key \"quantile\" in cost; write estimate: \"learned 50%\"",
        ),
        (
            &["limit: { rate: 9/s, follows: latency, between: 200 ms..1 s, floor: 3/s }"],
            "; write follows: \"latency 200ms..1s to 3/s\", with the range and the rate at its end behind the number",
        ),
        (
            &["limit: { rate: 9/s, follows: memory, between: [70%, 80%] }"],
            "; write follows: \"memory 70%..80% to 10/s\", with the range and the rate at its end behind the number",
        ),
        (
            &["limit: { algorithm: breaker, open_for: 2s, open_at_most: 30s }"],
            "; write open_for: 2s..30s, with the longest open time behind the first",
        ),
    ] {
        let found = policy(lines);
        assert!(found.iter().any(|one| one.ends_with(says)), "{lines:?}: {found:#?}");
    }
    const POLICY: &str = "policies: [{ name: p, limit: { rate: 1/s } }]\n";
    for (line, says) in [
        (
            "store: { key_form: fingerprint }",
            "unknown key \"key_form\" in store; leave it out: the store keeps fingerprints, unless its keys are in full",
        ),
        (
            "switches: { p: { off_when: load above 2, for: 2h } }",
            "unknown key \"for\" in switch; write off_when: \"load above 2, stale after 2h\"",
        ),
        (
            "store: { kind: redis, host: redis.prod, port: 6390, nodes: 2 }",
            "; write url: \"redis://redis.prod:6390\"",
        ),
        (
            "store: { kind: valkey, url: \"redis://a:6379\", nodes: 2 }",
            "unknown word \"valkey\"; write redis",
        ),
        ("forward_auth: nginx", "; write { proxy: nginx }"),
        ("forward_auth: true", "; write { proxy: nginx }"),
        (
            "forward_auth: { proxy: haproxy }",
            "unknown word \"haproxy\"; in place of proxy, write forward_auth: { method: x-original-method, path: x-original-uri, host: x-original-host }, the headers that it sets",
        ),
        (
            "forward_auth: { proxy: envoy }",
            "unknown word \"envoy\"; in place of proxy, write server: { grpc: 127.0.0.1:8081 }, where it asks",
        ),
        ("server: 9000", "; write { http: 9000 }"),
    ] {
        let found = yaml(&format!("version: 1\n{line}\n{POLICY}"));
        assert!(found.iter().any(|one| one.ends_with(says)), "{line}: {found:#?}");
    }
    assert!(yaml("version: 1\n").iter().any(|one| {
        one.ends_with("file has no policies; write policies: [{ name: api, limit: { rate: 10/s } }]")
    }));
}

/// Programs that write YAML and JSON make `5.0` of a whole number.
#[test]
fn whole_numbers_may_have_a_fraction_of_zeros() {
    let text = "version: 1.0\nserver: { http: 8080 }\npolicies: [{ name: p, cost: 2.0, limit: { rate: 10/s, burst: 5.0 } }]\n";
    let (config, _) = Config::parse(text, "t", Format::Yaml).unwrap();
    assert_eq!(config.policies.policies()[0].limits[0].terms.label, "gcra 10/s burst 5");
    assert!(
        policy(&["limit: { rate: 10/s, burst: 5.5 }"])[0].contains("burst: \"5.5\" is not a whole number")
    );
}
