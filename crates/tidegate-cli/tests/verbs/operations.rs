//! For operators: whether a server is ready, which denials are logged, and metrics under other names.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::Value;

use crate::verbs::Desk;
use crate::verbs::schemas::{holds, schema};
use crate::verbs::serve::Serving;

/// A Redis server, for one, which answers in its own words.
#[test]
fn an_address_that_speaks_no_http_is_told_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let redis = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let read = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(b"-ERR unknown command 'GET'\r\n").unwrap();
        read
    });
    let told = Desk::new().run(&["top", "--server", &url]).code(1);
    let says = format!("what answers at {url} does not speak HTTP; name the address of the server's --http");
    assert!(told.err.contains(&says), "{told:?}");
    assert!(redis.join().unwrap() > 0);
}

const ONE: &str = "version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: shop.per-ip
    by: [client.ip]
    limit: { rate: 1/day }
";

#[test]
fn a_script_hears_whether_a_server_is_ready() {
    let desk = Desk::new();
    let nobody = desk.run(&["ready", "--server", "http://127.0.0.1:1"]).code(1);
    assert!(nobody.err.contains("no server answers at http://127.0.0.1:1"), "{nobody:?}");
    let serving = Serving::start(&desk, &[]);
    let ready = desk.run(&["ready", "--server", serving.url()]).code(0);
    assert_eq!(ready.out, "ready\n");
    let said = desk.run(&["ready", "--server", serving.url(), "-o", "json"]).code(0).json();
    holds(&schema(&desk, "ready"), &said, "ready");
    assert_eq!(said["ready"], true);
    assert_eq!(serving.stop(), Some(0));
}

/// A flood of denials is logged as five lines, none with a key, and each decision can be explained by its id.
#[test]
fn the_log_tells_of_denials_and_not_of_all() {
    let desk = Desk::new();
    desk.write("p.yaml", ONE);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    let (ip, mut ids) = ("203.0.113.9", Vec::new());
    assert_eq!(serving.statuses(ip, 1), [200]);
    for _ in 0..20 {
        let mut refused = serving.check(ip);
        let body: Value = serde_json::from_str(&refused.body_mut().read_to_string().unwrap()).unwrap();
        ids.push(body["tidegate-decision-id"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned());
    }
    let top = serving.text("/v1/keys/top?policy=shop.per-ip&by=denied");
    for id in &ids[..5] {
        let line = serving.hears("tidegate_server::denials");
        let told: Value = serde_json::from_str(&line).unwrap();
        let fields = &told["fields"];
        assert_eq!(
            (&fields["policy"], &fields["decision_id"]),
            (&"shop.per-ip".into(), &id.as_str().into()),
            "{line}"
        );
        assert!(!line.contains(ip) && top.contains(fields["key"].as_str().unwrap()), "{line} {top}");
        assert!(fields["retry_after_ms"].as_u64().is_some_and(|wait| wait > 80_000_000), "{line}");
    }
    let asked = desk.run(&["explain", "--id", &ids[0], "--server", serving.url()]);
    assert!(asked.out.contains("shop.per-ip"), "{asked:?}");
    // There must be no sixth line: the next line is about the end.
    serving.signal("TERM");
    let next = serving.hears("");
    assert!(!next.contains("denials"), "{next}");
}

/// Regression: a refusal by the list of the whole file had no line, and no line told a list, a block and a limit apart.
#[test]
fn the_log_says_what_refused() {
    let desk = Desk::new();
    desk.write("p.yaml", REFUSERS);
    let serving = Serving::start(&desk, &["-c", "p.yaml"]);
    serving.put("/v1/keys/per-ip?client.ip=203.0.113.7", r#"{"block": {"for": "10min"}}"#);
    for (ip, user, policy, by) in [
        ("198.51.100.1", "a", "(access.deny)", "list"),
        ("203.0.113.1", "eve", "per-ip", "list"),
        ("203.0.113.7", "a", "per-ip", "block"),
        ("203.0.113.8", "a", "per-ip", "limit"),
        ("203.0.113.9", "held", "places", "concurrency"),
    ] {
        let body = serde_json::json!({ "attributes": { "client.ip": ip, "user.id": user } });
        // A limit and a place are taken by the first request, and refuse the second one.
        (0..2).for_each(|_| drop(serving.ask("/v1/check", Some(&body))));
        let line = serving.hears("tidegate_server::denials");
        let told: Value = serde_json::from_str(&line).unwrap();
        let fields = &told["fields"];
        assert_eq!((&fields["policy"], &fields["refused_by"]), (&policy.into(), &by.into()), "{line}");
        assert!(!line.contains(ip) && fields["decision_id"].is_string(), "{line}");
        if by == "list" || by == "block" {
            serving.hears("tidegate_server::denials");
        }
    }
    assert_eq!(serving.stop(), Some(0));
}

const REFUSERS: &str = "version: 1
client_ip: { trusted_proxies: [] }
access: { deny: [198.51.100.0/24] }
policies:
  - name: places
    match: { attributes: { user.id: held } }
    by: [client.ip]
    limit: { algorithm: concurrency, max: 1 }
  - name: per-ip
    match: { not: { attributes: { user.id: held } } }
    by: [client.ip]
    access: { deny: [user.id=eve] }
    limit: { rate: 1/day }
";

#[test]
fn metrics_have_the_names_of_another_rate_limiter_where_that_is_wanted() {
    let desk = Desk::new();
    desk.write("p.yaml", ONE);
    for (names, lines) in [
        (
            "envoy",
            &["ratelimit_service_rate_limit_over_limit{domain=\"shop\",key1=\"per-ip\",key2=\"\"} 1\n"][..],
        ),
        ("limitador", &["limitador_up 1\n", "datastore_partitioned 0\n"]),
    ] {
        let serving =
            Serving::start(&desk, &["-c", "p.yaml", "--metrics-names", names, "--store-path", names]);
        assert_eq!(serving.statuses("203.0.113.9", 2), [200, 429]);
        let metrics = serving.text("/metrics");
        for line in lines {
            assert!(metrics.contains(line), "{line}{metrics}");
        }
        assert!(metrics.contains("tidegate_decisions_total{policy=\"shop.per-ip\""), "{metrics}");
        assert_eq!(serving.stop(), Some(0));
    }
    let wrong = desk.run(&["serve", "--metrics-names", "nginx"]).code(2);
    assert!(wrong.err.contains("envoy, limitador"), "{wrong:?}");
}
