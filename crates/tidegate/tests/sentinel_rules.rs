//! The rules of Sentinel, said as policies: one test for each row of `docs/protection/rules.md`, from a file to decisions, on a clock that is
//! moved by hand.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::config::{Config, Format};
use tidegate::gate::Entry;
use tidegate::signals::Reading;
use tidegate::{Descriptor, Gate, ManualClock, Outcome, Tick};

/// A gate of a file, with a clock and a machine that a test moves.
struct Gateway {
    gate: Gate,
    clock: ManualClock,
    machine: Arc<Mutex<Reading>>,
}

impl Gateway {
    fn of(policies: &str) -> Self {
        let text = format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policies}");
        let (config, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let clock = ManualClock::at(Tick::from_secs(1000));
        let machine = Arc::new(Mutex::new(Reading::default()));
        let read = Arc::clone(&machine);
        let gate = Gate::in_memory(config.policies, 1000).unwrap().with_clock(clock.clone());
        Self { gate: gate.with_machine(move || *read.lock().unwrap()), clock, machine }
    }

    fn allows(&self, request: &[(&str, &str)]) -> bool {
        self.gate.check(&descriptor(request)).unwrap().allowed
    }

    /// How many of so many requests pass at once.
    fn passing(&self, of: usize, request: &[(&str, &str)]) -> usize {
        (0..of).filter(|_| self.allows(request)).count()
    }

    /// The machine stands at these thousandths, and the next check reads it.
    fn machine(&self, set: impl FnOnce(&mut Reading)) {
        set(&mut self.machine.lock().unwrap());
        self.wait(100);
    }

    fn wait(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn why(&self, request: &[(&str, &str)], policy: usize) -> String {
        self.gate.explain(&descriptor(request)).unwrap().reasons[policy].why.clone()
    }
}

fn descriptor<'a>(request: &[(&'a str, &'a str)]) -> Descriptor<'a> {
    request.iter().fold(Descriptor::new(), |descriptor, (name, value)| descriptor.with(*name, *value))
}

const READ: &[(&str, &str)] = &[("resource", "read")];
const WRITE: &[(&str, &str)] = &[("resource", "write")];

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
    let inside: Vec<_> = (0..2).map(|_| gateway.gate.admit(&read).unwrap().admitted().unwrap()).collect();
    assert!(matches!(gateway.gate.admit(&read).unwrap(), Entry::Refused(_)));
    drop(inside);
    assert!(matches!(gateway.gate.admit(&read).unwrap(), Entry::Admitted(_)));
}

#[test]
fn flow_of_one_caller_and_of_the_others() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    by: origin
    absent: charge
    limit: { algorithm: fixed-window, rate_by: origin, rates: { app-a: 5/s }, otherwise: 2/s }
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
        (0..6).map(|_| gateway.gate.check(&descriptor(READ)).unwrap().wait.as_millis()).collect();
    assert_eq!(waits, [0, 100, 200, 300, 400, 500]);
    assert!(!gateway.allows(READ));
}

#[test]
fn flow_that_warms_up() {
    let gateway = Gateway::of(
        "
  - name: read
    match: { attributes: { resource: read } }
    limit: { algorithm: warm-up, rate: 30/s, burst: 1, warm_up: 10s, cold_factor: 3 }
",
    );
    // Asked every millisecond, as much passes as may: a third of the rate at first.
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
    let _inside = gateway.gate.admit(&one).unwrap().admitted().unwrap();
    assert!(!gateway.allows(&[("product.id", "one")]) && gateway.allows(&[("product.id", "another")]));
}

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
        let served = gateway.gate.admit(&descriptor(READ)).unwrap().admitted().unwrap();
        gateway.wait(millis);
        served.finish(Outcome::Success).unwrap();
    };
    serve(100);
    assert_eq!(gateway.passing(5, READ), 5);
    serve(900);
    gateway.wait(200);
    // The mean of both is 500 ms.
    assert_eq!(gateway.passing(5, READ), 1);
    // Cancelled work says nothing of how long work takes.
    gateway.wait(1000);
    let cancelled = gateway.gate.admit(&descriptor(READ)).unwrap().admitted().unwrap();
    gateway.wait(9000);
    cancelled.cancel().unwrap();
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
        (0..4).map(|_| gateway.gate.admit(&write).unwrap().admitted().unwrap()).collect();
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
    limit: { algorithm: fixed-window, rate: 100/s, floor: 20/s, follows: memory, between: 70%..90% }
",
    );
    assert_eq!(gateway.passing(200, READ), 100);
    // Readings are smoothed, so that the rate falls within some of them.
    for _ in 0..20 {
        gateway.machine(|reading| reading.memory = Some(900));
        gateway.passing(1, READ);
    }
    gateway.wait(1000);
    assert_eq!(gateway.passing(200, READ), 20);
    // It climbs back within ten seconds, in steps.
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
    gateway.gate.report_signal("queue-length", 1001.0).unwrap();
    assert_eq!(gateway.passing(5, READ), 1);
    gateway.wait(29_900);
    assert_eq!(gateway.passing(5, READ), 1);
    gateway.wait(1000);
    assert_eq!(gateway.passing(5, READ), 5);
    let unknown = gateway.gate.report_signal("queue-lenght", 1.0).unwrap_err().to_string();
    assert_eq!(unknown, "no policy goes by a signal \"queue-lenght\"; they go by queue-length");
    assert!(gateway.gate.report_signal("queue-length", f64::NAN).is_err());
}

#[test]
fn authority_refuses_those_on_the_list() {
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
