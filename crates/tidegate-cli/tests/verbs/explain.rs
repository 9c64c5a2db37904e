//! Explains without a server why a request would be allowed or denied.

use crate::verbs::Desk;

const FILE: &str = "version: 1
policies:
  - name: all
    limit: { rate: 10/min, burst: 3 }
  - name: search
    match: { path: /api/search }
    by: [user.id]
    limit: { algorithm: fixed-window, rate: 2/h }
";

#[test]
fn an_allowed_request_ends_well() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    let told =
        desk.run(&["explain", "-c", "p.yaml", "--attr", "request.path=/", "--attr", "user.id=42"]).code(0);
    assert!(told.out.starts_with("ALLOWED"), "{told:?}");
    assert!(told.out.contains("needs 1, has 3 of 3"), "{told:?}");
}

#[test]
fn a_cost_above_the_burst_never_passes() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    let told = desk.run(&["explain", "-c", "p.yaml", "--cost", "4"]).code(1);
    assert!(told.out.starts_with("DENIED by all"), "{told:?}");
    assert!(told.out.contains("burst >= 4") && told.out.contains("cost <= 3"), "{told:?}");
    let told = desk.run(&["explain", "-c", "p.yaml", "--cost", "4", "-o", "json"]).code(1).json();
    assert_eq!((told["decision"].as_str(), told["policy"].as_str()), (Some("denied"), Some("all")));
    assert!(told["retry_after_ms"].is_null(), "never at this cost");
}

#[test]
fn the_policy_that_binds_is_named() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    let search = ["explain", "-c", "p.yaml", "--attr", "request.path=/api/search", "--attr", "user.id=42"];
    let told = desk.run(&[&search[..], &["--cost", "3", "-o", "json"]].concat()).code(1).json();
    assert_eq!(told["policy"], "search");
    let told = desk.run(&[&search[..], &["-o", "json"]].concat()).code(0).json();
    assert_eq!(told["reasons"].as_array().unwrap().len(), 2);
}

#[test]
fn a_queue_names_the_longest_wait_that_would_do() {
    let desk = Desk::new();
    desk.write(
        "p.yaml",
        "version: 1
policies:
  - name: reports
    limit: { algorithm: leaky-bucket, rate: 1/s, queue: 5, max_wait: 1s }
",
    );
    let of = |cost: &str| desk.run(&["explain", "-c", "p.yaml", "--cost", cost, "-o", "json"]);
    assert_eq!(of("2").code(0).json()["decision"], "delayed");
    let told = desk.run(&["explain", "-c", "p.yaml", "--cost", "4"]).code(1);
    assert!(told.out.contains("would be allowed with   cost <= 1   or   max_wait >= 3000ms\n"), "{told:?}");
    let with = |cost: &str| of(cost).code(1).json()["reasons"][0]["limits"][0]["allowed_with"].clone();
    assert_eq!(with("4")["max_wait_at_least_ms"], 3000);
    assert!(with("7")["max_wait_at_least_ms"].is_null(), "five wait at most, however long they may");
}

#[test]
fn a_priority_that_is_shed_says_how_much_of_it_is_admitted() {
    let desk = Desk::new();
    desk.write(
        "p.yaml",
        "version: 1
policies:
  - name: work
    limit: { algorithm: adaptive, start: 10, keep_for: { critical: 100% } }
",
    );
    let told = desk.run(&["explain", "-c", "p.yaml", "--priority", "sheddable"]).code(1);
    let says = "0 of 10 places in use, keeps 10 for higher priority and sheds sheddable: none of it is admitted now; key";
    assert!(told.out.contains(says), "{told:?}");
    let share = |priority: &str, code| {
        let told = desk.run(&["explain", "-c", "p.yaml", "--priority", priority, "-o", "json"]).code(code);
        told.json()["reasons"][0]["limits"][0]["admitted_share"].clone()
    };
    assert_eq!(share("sheddable", 1), 0.0);
    assert!(share("critical", 0).is_null());
}

#[test]
fn a_file_says_that_it_does_not_know_the_state_of_guards() {
    let desk = Desk::new();
    desk.write(
        "p.yaml",
        "version: 1
policies:
  - name: calls
    limit: { algorithm: breaker, failures: 30%, window: 20s }
  - name: work
    limit: { algorithm: concurrency, max: 5 }
",
    );
    let told = desk.run(&["explain", "-c", "p.yaml"]).code(0);
    for says in [
        "    only a running server knows the state of the breaker of calls, here it is new and closed; ask by tidegate explain",
        "    only a running server knows how many places of work are in use, here all are free; ask by tidegate explain",
    ] {
        assert!(told.out.contains(says), "{told:?}");
    }
    let told = desk.run(&["explain", "-c", "p.yaml", "-o", "json"]).code(0).json();
    assert_eq!(told["remarks"].as_array().map(Vec::len), Some(2), "{told}");
    desk.write("p.yaml", FILE);
    let told = desk.run(&["explain", "-c", "p.yaml", "-o", "json"]).code(0).json();
    assert_eq!(told["remarks"].as_array().map(Vec::len), Some(0), "{told}");
}

#[test]
fn wrong_words_are_mistakes() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    desk.run(&["explain", "-c", "p.yaml", "--cost", "0"]).code(2);
    desk.run(&["explain", "-c", "p.yaml", "--attr", "nothing"]).code(2);
    // Given twice, a file would use the first value and a server the last.
    let twice = desk.run(&["explain", "-c", "p.yaml", "--attr", "user.id=1", "--attr", "user.id=2"]).code(2);
    assert!(twice.err.contains("user.id is given twice"), "{twice:?}");
    desk.run(&["explain", "-c", "gone.yaml"]).code(2);
}

#[test]
fn without_file_and_server_it_says_what_to_do() {
    let told = Desk::new().run(&["explain", "--server", "http://127.0.0.1:1"]).code(1);
    assert!(told.err.contains("http://127.0.0.1:1") && told.err.contains("tidegate serve"), "{told:?}");
}

/// `ftp://x` must be reported as a mistake, not as a server that does not answer.
#[test]
fn what_is_no_url_of_a_server_is_a_mistake() {
    let desk = Desk::new();
    for (url, says) in [
        ("ftp://x", "write one as http://127.0.0.1:8080"),
        ("localhost:8080", "write http://localhost:8080"),
        ("https://tidegate.example", "TLS"),
        ("http://", "write one as http://127.0.0.1:8080"),
        ("", "write http://127.0.0.1:8080"),
    ] {
        let told = desk.run(&["explain", "--server", url]).code(2);
        assert!(told.err.contains(&format!("`{url}`")) && told.err.contains(says), "{told:?}");
    }
}

#[test]
fn the_answer_says_that_the_file_was_asked() {
    let desk = Desk::new();
    desk.write("tidegate.yaml", FILE);
    let told = desk.run(&["explain"]).code(0);
    assert!(
        told.out.ends_with("  asked: tidegate.yaml, how it would be decided with nothing spent yet\n"),
        "{told:?}"
    );
    assert_eq!(desk.run(&["explain", "-o", "json"]).code(0).json()["asked"]["file"], "tidegate.yaml");
    let both = desk.run(&["explain", "--server", "http://127.0.0.1:1", "-c", "tidegate.yaml"]).code(2);
    assert!(both.err.contains("--server") && both.err.contains("--config"), "{both:?}");
}

/// The server refuses such a question; a file answered it, with ALLOWED.
#[test]
fn an_attribute_that_no_policy_can_read_is_a_mistake() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    for (attribute, says) in [
        ("request.paht=/api/search", "--attr request.paht: no policy reads it; write request.path"),
        (
            "request.path=http://a.example/api/search",
            "request.path is a URL: \"http://a.example/api/search\"; send /api/search",
        ),
        (
            "client.ip=1.2.3.4, 10.0.0.1",
            "client.ip is not an address: \"1.2.3.4, 10.0.0.1\"; send the last address alone",
        ),
    ] {
        let told = desk.run(&["explain", "-c", "p.yaml", "--attr", attribute]).code(2);
        assert!(told.err.contains(says) && told.out.is_empty(), "{told:?}");
    }
}
