//! Rules that depend on the machine, on the gate or on a number that the user reports; and access lists.

use tidegate::Outcome;

use crate::sentinel_rules::gateway::{Gateway, READ, WRITE, descriptor};

#[test]
fn system_by_processor_holds_until_it_has_cooled_down() {
    let gateway = Gateway::of(
        "
  - name: spare the processor
    when: cpu above 80%, until 70%
    limit: { algorithm: fixed-window, rate: 10/s }
",
    );
    assert_eq!(gateway.passing(50, READ), 50);
    assert!(gateway.why(READ, 0).contains("cpu above 80%, until 70%: it is not known"));
    for (cpu, passing) in [(800, 50), (810, 10), (750, 10), (700, 50), (750, 50)] {
        gateway.machine(|reading| reading.cpu = Some(cpu));
        gateway.wait(1000);
        assert_eq!(gateway.passing(50, READ), passing, "{cpu}");
    }
}

#[test]
fn system_by_load() {
    let gateway = Gateway::of(
        "
  - name: spare the machine
    when: load above 8, until 6
    limit: { algorithm: fixed-window, rate: 10/s }
",
    );
    gateway.machine(|reading| reading.load = Some(801));
    assert_eq!(gateway.passing(50, READ), 10);
    gateway.machine(|reading| reading.load = Some(600));
    assert_eq!(gateway.passing(50, READ), 50);
}

#[test]
fn system_by_mean_latency() {
    let gateway = Gateway::of(
        "
  - name: too slow
    when: latency above 200ms, until 150ms
    limit: { algorithm: fixed-window, rate: 1/s }
",
    );
    let serve = |millis| {
        let served = gateway.gate.admit(&descriptor(READ)).now().unwrap().admitted().unwrap();
        gateway.wait(millis);
        served.finish(Outcome::Success).now().unwrap();
    };
    serve(100);
    assert_eq!(gateway.passing(5, READ), 5);
    serve(900);
    gateway.wait(200);
    // The mean of both is 500 ms.
    assert_eq!(gateway.passing(5, READ), 1);
    // Cancelled work does not show how long work takes.
    gateway.wait(1000);
    let cancelled = gateway.gate.admit(&descriptor(READ)).now().unwrap().admitted().unwrap();
    gateway.wait(9000);
    cancelled.cancel().now().unwrap();
    gateway.wait(5000);
    assert_eq!(
        gateway.passing(5, READ),
        5,
        "nothing finished for longer than ten seconds: the latency is absent"
    );
}

#[test]
fn system_by_requests_in_flight() {
    let gateway = Gateway::of(
        "
  - name: crowded
    match: { attributes: { resource: read } }
    when: in-flight above 3, until 1
    limit: { algorithm: fixed-window, rate: 1/s }
",
    );
    let write = descriptor(WRITE);
    let mut inside: Vec<_> =
        (0..4).map(|_| gateway.gate.admit(&write).now().unwrap().admitted().unwrap()).collect();
    gateway.wait(100);
    assert_eq!(gateway.passing(5, READ), 1);
    inside.truncate(2);
    gateway.wait(1000);
    assert_eq!(gateway.passing(5, READ), 1, "two are inside: still above where it ends");
    inside.truncate(1);
    gateway.wait(1000);
    assert_eq!(gateway.passing(5, READ), 5);
}

#[test]
fn system_by_total_rate() {
    let gateway = Gateway::of(
        "
  - name: everything
    limit: { algorithm: fixed-window, rate: 100/s }
",
    );
    assert_eq!(gateway.passing(80, READ) + gateway.passing(80, WRITE), 100);
}

#[test]
fn system_by_total_rate_spares_what_matters_less_first() {
    let gateway = Gateway::of(
        "
  - name: previews
    match: { attributes: { resource: preview } }
    when: rate above 100/s, until 50/s
    limit: { algorithm: fixed-window, rate: 1/s }
",
    );
    let preview: &[_] = &[("resource", "preview")];
    assert_eq!(gateway.passing(5, preview), 5);
    gateway.wait(100);
    assert_eq!(gateway.passing(200, READ), 200);
    gateway.wait(900);
    assert_eq!(gateway.passing(5, preview), 1);
    gateway.wait(2000);
    assert_eq!(gateway.passing(5, preview), 5);
}

#[test]
fn a_rate_that_follows_memory() {
    let gateway = Gateway::of(
        "
  - name: everything
    limit: { algorithm: fixed-window, rate: 100/s, follows: memory 70%..90% to 20/s }
",
    );
    assert_eq!(gateway.passing(200, READ), 100);
    // Readings are smoothed, so the rate falls over several of them.
    for _ in 0..20 {
        gateway.machine(|reading| reading.memory = Some(900));
        gateway.passing(1, READ);
    }
    gateway.wait(1000);
    assert_eq!(gateway.passing(200, READ), 20);
    // It rises again within ten seconds, in steps.
    let mut rates = Vec::new();
    for _ in 0..15 {
        gateway.machine(|reading| reading.memory = Some(500));
        gateway.wait(900);
        rates.push(gateway.passing(200, READ));
    }
    assert!(rates.is_sorted() && rates.first() < rates.last(), "{rates:?}");
    assert_eq!(rates.last(), Some(&100));
}

#[test]
fn a_signal_that_nobody_refreshes_is_absent() {
    let gateway = Gateway::of(
        "
  - name: long queue
    when: signal queue-length above 1000, until 800, stale after 30s
    limit: { algorithm: fixed-window, rate: 1/s }
",
    );
    assert_eq!(gateway.passing(5, READ), 5);
    gateway.gate.signals().report("queue-length", 1001.0).unwrap();
    assert_eq!(gateway.passing(5, READ), 1);
    gateway.wait(29_900);
    assert_eq!(gateway.passing(5, READ), 1);
    gateway.wait(1000);
    assert_eq!(gateway.passing(5, READ), 5);
    let unknown = gateway.gate.signals().report("queue-lenght", 1.0).unwrap_err().to_string();
    assert_eq!(unknown, "no policy and no switch uses a signal \"queue-lenght\"; they use queue-length");
    assert!(gateway.gate.signals().report("queue-length", f64::NAN).is_err());
}

#[test]
fn authority_refuses_those_on_the_black_list() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    access: { deny: [origin=app-b] }
    limit: { rate: unlimited }
",
    );
    assert!(gateway.allows(&[("resource", "read"), ("origin", "app-a")]));
    assert!(!gateway.allows(&[("resource", "read"), ("origin", "app-b")]));
}

/// The policy leaves out the white list, and refuses every other request that it matches.
#[test]
fn authority_refuses_those_who_are_not_on_the_white_list() {
    let gateway = Gateway::of(
        "
  - name: read is for a and c
    match:
      attributes: { resource: read }
      not: { attributes: { origin: [app-a, app-c] } }
    access: { deny: [resource=read] }
    limit: { rate: unlimited }
  - name: read
    match: { attributes: { resource: read } }
    limit: { algorithm: fixed-window, rate: 1/s }
",
    );
    let from = |resource, origin| [("resource", resource), ("origin", origin)];
    assert!(!gateway.allows(&from("read", "app-b")));
    assert!(!gateway.allows(&from("read", "app-a2")), "names are compared whole");
    assert!(!gateway.allows(&from("read", "")));
    assert!(!gateway.allows(READ), "who names no origin is nobody of the list");
    assert!(gateway.allows(&from("write", "app-b")), "another resource");
    assert!(gateway.allows(&from("read", "app-c")), "and those who were refused have spent nothing");
    assert!(!gateway.allows(&from("read", "app-a")), "the list spares nobody the limit");
    assert_eq!(gateway.why(&from("read", "app-b"), 0), "refused: resource=read is on a deny-list");
}

/// Sentinel admits requests without an origin, whichever list is used.
#[test]
fn authority_may_let_pass_who_names_no_origin() {
    let gateway = Gateway::of(
        "
  - name: read is for a and c
    match:
      attributes: { resource: read, origin: true }
      not: { attributes: { origin: [app-a, app-c] } }
    access: { deny: [resource=read] }
    limit: { rate: unlimited }
",
    );
    let from = |origin| [("resource", "read"), ("origin", origin)];
    assert!(gateway.allows(READ) && gateway.allows(&from("app-a")));
    assert!(!gateway.allows(&from("app-b")));
}
