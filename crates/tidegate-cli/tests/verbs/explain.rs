//! Why a request would be allowed or denied, without a server.

use crate::Desk;

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
fn wrong_words_are_mistakes() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    desk.run(&["explain", "-c", "p.yaml", "--cost", "0"]).code(2);
    desk.run(&["explain", "-c", "p.yaml", "--attr", "nothing"]).code(2);
    // The file was asked about the first of the two, the server about the last.
    let twice = desk.run(&["explain", "-c", "p.yaml", "--attr", "user.id=1", "--attr", "user.id=2"]).code(2);
    assert!(twice.err.contains("user.id is given twice"), "{twice:?}");
    desk.run(&["explain", "-c", "gone.yaml"]).code(2);
}

#[test]
fn without_file_and_server_it_says_what_to_do() {
    let told = Desk::new().run(&["explain", "--server", "http://127.0.0.1:1"]).code(1);
    assert!(told.err.contains("http://127.0.0.1:1") && told.err.contains("tidegate serve"), "{told:?}");
}
