//! The rules of Sentinel as policies: one test for each row of `docs/protection/rules.md`, from a file to decisions, on
//! a manual clock.
#![cfg(feature = "config")]

mod gateway;
mod system;

use gateway::{Gateway, READ, WRITE, descriptor};
use tidegate::gate::Entry;

#[test]
fn flow_by_requests_per_second() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    limit: { algorithm: sliding-window, rate: 20/s, buckets: 2 }
",
    );
    assert_eq!(gateway.passing(30, READ), 20);
    assert_eq!(gateway.passing(5, WRITE), 5, "another resource");
    gateway.wait(1500);
    assert_eq!(gateway.passing(30, READ), 20);
}

#[test]
fn flow_by_threads() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    limit: { algorithm: concurrency, max: 2 }
",
    );
    let read = descriptor(READ);
    let inside: Vec<_> =
        (0..2).map(|_| gateway.gate.admit(&read).now().unwrap().admitted().unwrap()).collect();
    assert!(matches!(gateway.gate.admit(&read).now().unwrap(), Entry::Refused(_)));
    drop(inside);
    assert!(matches!(gateway.gate.admit(&read).now().unwrap(), Entry::Admitted(_)));
}

#[test]
fn flow_of_one_caller_and_of_the_others() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    by: origin
    absent: charge
    limit: { algorithm: fixed-window, rate: { by: origin, values: { app-a: 5/s }, otherwise: 2/s } }
",
    );
    let from = |origin| [("resource", "read"), ("origin", origin)];
    assert_eq!(gateway.passing(10, &from("app-a")), 5);
    assert_eq!(gateway.passing(10, &from("app-b")), 2);
}

#[test]
fn flow_by_relation_limits_reads_while_writes_are_busy() {
    let gateway = Gateway::of(
        "
  - name: writes
    match: { attributes: { resource: write } }
    limit: { algorithm: sliding-window, rate: 100/s }
  - name: reads give way
    match: { attributes: { resource: read } }
    when: policy writes above 80%, until 50%
    limit: { algorithm: fixed-window, rate: 10/s }
",
    );
    assert_eq!(gateway.passing(50, READ), 50, "nobody writes");
    assert!(gateway.why(READ, 1).contains("holds while policy writes above 80%, until 50%: last read as 0%"));
    assert_eq!(gateway.passing(90, WRITE), 90);
    gateway.wait(100);
    assert_eq!(gateway.passing(50, READ), 10);
    // A second later the window of writes has room again.
    gateway.wait(1100);
    assert_eq!(gateway.passing(50, READ), 50);
}

/// A policy in force under a condition stays in force through a reload, from the first check on; a set may also replace
/// itself.
#[test]
fn what_was_sensed_goes_on_through_a_reload() {
    let policies = "
  - name: writes
    match: { attributes: { resource: write } }
    limit: { algorithm: sliding-window, rate: 100/s }
  - name: reads give way
    match: { attributes: { resource: read } }
    when: policy writes above 80%, until 50%
    limit: { algorithm: fixed-window, rate: 10/s }
";
    let gateway = Gateway::of(policies);
    assert_eq!(gateway.passing(90, WRITE), 90);
    gateway.wait(100);
    assert_eq!(gateway.passing(5, READ), 5);
    gateway.gate.replace(gateway.gate.policies());
    gateway.gate.replace(Gateway::of(policies).gate.policies());
    assert_eq!(gateway.passing(50, READ), 5, "no reading is due yet, and ten were granted");
}

#[test]
fn flow_by_chain_limits_what_one_entry_calls() {
    let gateway = Gateway::of(
        "
  - name: search from the feed
    match: { attributes: { resource: search, call.entry: feed } }
    limit: { algorithm: fixed-window, rate: 3/s }
",
    );
    let from = |entry| [("resource", "search"), ("call.entry", entry)];
    assert_eq!(gateway.passing(10, &from("feed")), 3);
    assert_eq!(gateway.passing(10, &from("checkout")), 10);
}

#[test]
fn flow_by_chain_gives_each_entry_its_own() {
    let gateway = Gateway::of(
        "
  - name: search
    match: { attributes: { resource: search } }
    by: call.entry
    limit: { algorithm: fixed-window, rate: 3/s }
",
    );
    let from = |entry| [("resource", "search"), ("call.entry", entry)];
    assert_eq!([gateway.passing(10, &from("feed")), gateway.passing(10, &from("checkout"))], [3, 3]);
}

#[test]
fn flow_in_a_queue_of_even_steps() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    limit: { algorithm: leaky-bucket, rate: 10/s, queue: 5, max_wait: 500ms }
",
    );
    let waits: Vec<_> =
        (0..6).map(|_| gateway.gate.check(&descriptor(READ)).now().unwrap().wait.as_millis()).collect();
    assert_eq!(waits, [0, 100, 200, 300, 400, 500]);
    assert!(!gateway.allows(READ));
}

#[test]
fn flow_that_warms_up() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    limit: { algorithm: warm-up, rate: 30/s, burst: 1, warm_up: 10s }
",
    );
    // Asked every millisecond, so as much passes as the limit allows: a third of the rate at first.
    let second = || {
        let passed = (0..1000).filter(|_| {
            gateway.wait(1);
            gateway.allows(READ)
        });
        passed.count()
    };
    let first = second();
    let later = (0..20).fold(first, |_, _| second());
    assert!((8..=13).contains(&first), "{first}");
    assert!((29..=31).contains(&later), "{later}");
}

#[test]
fn hot_parameters_have_a_limit_each_and_some_one_of_their_own() {
    let gateway = Gateway::of(
        "
  - name: each product
    by: product.id
    limit:
      algorithm: fixed-window
      rate: 5/s
      overrides:
        - { key: { product.id: bestseller }, rate: 50/s }
",
    );
    assert_eq!(gateway.passing(100, &[("product.id", "one")]), 5);
    assert_eq!(gateway.passing(100, &[("product.id", "another")]), 5);
    assert_eq!(gateway.passing(100, &[("product.id", "bestseller")]), 50);
    assert_eq!(gateway.passing(100, READ), 100, "a request without the parameter");
}

#[test]
fn hot_parameters_by_threads() {
    let gateway = Gateway::of(
        "
  - name: each product
    by: product.id
    limit: { algorithm: concurrency, max: 1 }
",
    );
    let one = descriptor(&[("product.id", "one")]);
    let _inside = gateway.gate.admit(&one).now().unwrap().admitted().unwrap();
    assert!(!gateway.allows(&[("product.id", "one")]) && gateway.allows(&[("product.id", "another")]));
}
