use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tidegate::clock::ManualClock;
use tidegate::gate::Check;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, SettleBy, SettleRule, Usage};
use tidegate::store::{Executed, Execution, Occupancy, Step, Store, StoreError};
use tidegate::{Cost, Gate, Quota};
use tidegate_tower::parameter::{Describe, WhenUndecided};
use tidegate_tower::{DeadlineLayer, GateLayer, RefusalCause, Refused, ServerStack, Spent};
use tower_layer::Layer;

use crate::layers::breaker::Heard;
use crate::layers::service::{ScriptedService, answer, call, get, poll, status, with};

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, Limit::new(quota, name))
}

fn gate(policies: Vec<Policy>) -> (Arc<Gate>, ManualClock) {
    let clock = ManualClock::default();
    let gate = Gate::in_memory(PolicySet::new(policies).unwrap(), 1000).unwrap();
    (Arc::new(gate.with_clock(clock.clone())), clock)
}

fn per_minute(name: &str, count: u64) -> Policy {
    policy(name, Quota::per_minute(count).gcra().unwrap())
}

fn places(max: u64) -> Policy {
    policy("places", Quota::concurrency(max, Duration::from_secs(60)).unwrap())
}

fn anybody(_: &Request<String>) -> Descriptor<'static> {
    Descriptor::new()
}

fn left(gate: &Gate) -> Vec<u64> {
    let limits = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
    limits.iter().map(|limit| limit.decision.standing.remaining).collect()
}

#[test]
fn several_protections_are_taken_all_or_none() {
    let (gate, _) = gate(vec![per_minute("all", 100), places(2), per_minute("few", 1)]);
    let layer = GateLayer::new(Arc::clone(&gate), anybody);
    let mut hanging = layer.layer(ScriptedService::hanging());
    let mut called = Box::pin(call(&mut hanging, get()));
    assert!(poll(called.as_mut()).is_pending());
    assert_eq!(left(&gate), [99, 1, 0]);

    let inner = ScriptedService::default();
    let refused = answer(&mut layer.layer(inner.clone()), get()).unwrap();
    assert_eq!((refused.status().as_u16(), inner.calls()), (429, 0));
    assert_eq!(refused.headers()["retry-after"], "60");
    assert!(refused.body().contains(r#""violated-policies":["few"]"#), "{}", refused.body());
    let why = Refused::of_response(&refused).unwrap();
    assert_eq!((why.cause, &*why.by), (RefusalCause::Policy, "few"));
    assert_eq!(left(&gate), [99, 1, 0], "a refused request costs nothing anywhere");

    drop(called);
    assert_eq!(left(&gate), [99, 2, 0], "the place is left; the units may have been used");
}

#[test]
fn what_comes_too_late_for_a_policy_is_refused_as_the_policy_says() {
    let mut late = per_minute("late", 100);
    late.deadline = Some(Duration::from_secs(1));
    let (gate, _) = gate(vec![late]);
    let describe = |_: &Request<String>| Descriptor::new().with("request.header.grpc-timeout", "999m");
    let layer = GateLayer::new(Arc::clone(&gate), describe);
    let refused = answer(&mut layer.layer(ScriptedService::default()), get()).unwrap();
    assert_eq!(refused.status(), 503);
    let why = Refused::of_response(&refused).unwrap();
    assert_eq!((why.cause, &*why.by), (RefusalCause::NoTimeLeft, "late"));
    assert_eq!(left(&gate), [100]);
    #[cfg(feature = "grpc")]
    {
        let layer = layer.answering(tidegate_tower::GrpcStatuses);
        let refused = answer(&mut layer.layer(ScriptedService::default()), get()).unwrap();
        assert_eq!(refused.headers()["grpc-status"], "4", "DEADLINE_EXCEEDED");
    }
}

/// What the layer outside knows of the caller's time need not be described once more.
#[test]
fn a_policy_goes_by_the_deadline_that_the_task_carries() {
    let mut late = per_minute("late", 100);
    late.deadline = Some(Duration::from_millis(200));
    let (gate, clock) = gate(vec![late]);
    let deadline = DeadlineLayer::within(Duration::from_secs(1), Duration::from_secs(9)).unwrap();
    let stack = ServerStack::new()
        .rate_limit(GateLayer::new(Arc::clone(&gate), anybody))
        .deadline(deadline.with_clock(clock));
    let mut service = stack.layer(ScriptedService::default());
    let mut status = |timeout| answer(&mut service, with("grpc-timeout", timeout)).unwrap().status().as_u16();
    assert_eq!(["100m", "199999u", "200m", "5S"].map(&mut status), [503, 503, 200, 200]);
    assert_eq!(left(&gate), [98]);
}

#[test]
fn a_queue_holds_nobody_back_for_longer_than_his_header_says_that_he_waits() {
    let mut queue = policy("queue", Quota::per_second(1).leaky_queue(9).unwrap());
    queue.limits[0].max_wait = Duration::from_secs(2);
    let (gate, _) = gate(vec![queue]);
    let describe = |request: &Request<String>| match request.headers().get("grpc-timeout") {
        Some(timeout) => {
            Descriptor::new().with("request.header.grpc-timeout", timeout.to_str().unwrap().to_owned())
        }
        None => Descriptor::new(),
    };
    let mut service = GateLayer::new(gate, describe).layer(ScriptedService::default());
    assert_eq!(answer(&mut service, get()).unwrap().status(), 200);
    assert_eq!(
        answer(&mut service, with("grpc-timeout", "100m")).unwrap().status(),
        429,
        "its turn is in 1 s"
    );
}

#[test]
fn a_future_that_was_never_polled_has_spent_nothing() {
    let (gate, _) = gate(vec![per_minute("all", 100), places(2)]);
    let mut service = GateLayer::new(Arc::clone(&gate), anybody).layer(ScriptedService::default());
    drop(call(&mut service, get()));
    assert_eq!(left(&gate), [100, 2]);
}

#[test]
fn whoever_goes_while_a_queue_delays_it_has_spent_nothing() {
    let mut queue = policy("queue", Quota::per_second(1).leaky_queue(9).unwrap());
    queue.limits[0].max_wait = Duration::from_secs(9);
    let (gate, clock) = gate(vec![places(2), queue]);
    let inner = ScriptedService::default();
    let mut service = GateLayer::new(Arc::clone(&gate), anybody).layer(inner.clone());
    answer(&mut service, get()).unwrap();
    let mut gone = Box::pin(call(&mut service, get()));
    let mut waits = Box::pin(call(&mut service, get()));
    assert!(poll(gone.as_mut()).is_pending());
    drop(gone);
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!((inner.calls(), left(&gate)[0]), (1, 1));
    clock.advance(Duration::from_secs(1));
    assert!(poll(waits.as_mut()).is_ready());
    assert_eq!((inner.calls(), left(&gate)[0]), (2, 2));
}

#[test]
fn a_policy_that_charges_failures_learns_how_it_went() {
    let mut logins = per_minute("logins", 2);
    logins.charge = tidegate::policy::ChargeOn::Failure;
    let (gate, _) = gate(vec![logins]);
    let mut service = GateLayer::new(Arc::clone(&gate), anybody)
        .layer(ScriptedService::answering([status(200), status(401)]));
    answer(&mut service, get()).unwrap();
    assert_eq!(left(&gate), [2]);
    let told = answer(&mut service, get()).unwrap();
    assert_eq!(left(&gate), [1]);
    assert!(told.headers().contains_key("ratelimit"), "{:?}", told.headers());
}

/// Describes a call of a language model: its cost is estimated by its length.
#[derive(Clone)]
struct Calls;

impl Describe<Request<String>> for Calls {
    fn describe(&self, _: &Request<String>) -> Descriptor<'static> {
        Descriptor::new()
    }

    fn cost(&self, request: &Request<String>) -> Option<Cost> {
        Cost::try_from(request.body().len()).ok()
    }
}

/// A service that reports how much it spent.
fn spends(
    usage: Usage<'static>,
) -> impl tower_service::Service<
    Request<String>,
    Response = http::Response<String>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone
+ Send {
    tower::service_fn(move |request: Request<String>| {
        assert!(request.extensions().get::<Spent>().unwrap().settle_by(usage.clone()));
        std::future::ready(Ok(status(200)))
    })
}

#[test]
fn what_was_really_spent_is_settled_by_the_policies_that_go_by_it() {
    let mut tokens = per_minute("tokens", 1000);
    tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    let mut costs = per_minute("costs", 1000);
    costs.settle = Some(SettleRule::new(SettleBy::Cost));
    let (gate, _) = gate(vec![tokens, costs]);
    let layer = GateLayer::new(Arc::clone(&gate), Calls).settling();
    let ask = |length: usize| Request::new("x".repeat(length));
    answer(&mut layer.layer(spends(Usage::default().with("llm.output", 300))), ask(800)).unwrap();
    assert_eq!(left(&gate), [700, 200]);
    answer(&mut layer.layer(spends(Usage::cost(50))), ask(100)).unwrap();
    assert_eq!(left(&gate), [600, 150]);
}

/// A store that cannot decide.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
        Execution::Done(Err(StoreError::Unavailable { reason: "it is gone".to_owned() }))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }
}

#[test]
fn a_request_that_nobody_can_decide_is_refused_unless_it_is_to_pass() {
    let gate = Arc::new(Gate::new(PolicySet::new(vec![per_minute("all", 1)]).unwrap(), Gone));
    let heard = Heard::default();
    let layer = GateLayer::new(gate, anybody).with_observer(heard.clone());
    assert_eq!(answer(&mut layer.layer(ScriptedService::default()), get()).unwrap().status(), 503);
    assert_eq!(heard.take(), ["gate: refused, the limits could not be looked up"]);
    let passing = layer.when_undecided(WhenUndecided::Pass);
    assert_eq!(answer(&mut passing.layer(ScriptedService::default()), get()).unwrap().status(), 200);
}

#[test]
fn policies_go_by_what_the_request_is_described_as() {
    let by_user = |request: &Request<String>| {
        let user = request.headers().get("x-user").and_then(|user| user.to_str().ok()).unwrap_or_default();
        Descriptor::new().with("user.id", user.to_owned())
    };
    let mut each = per_minute("each", 1);
    each.by = vec!["user.id".into()];
    let (gate, _) = gate(vec![each]);
    let mut service = GateLayer::new(gate, by_user).layer(ScriptedService::default());
    let statuses = ["ann", "bob", "ann"]
        .map(|user| answer(&mut service, with("x-user", user)).unwrap().status().as_u16());
    assert_eq!(statuses, [200, 200, 429]);
}

/// A store that takes charges, and then fails to settle them.
#[derive(Debug)]
struct GoneLater(tidegate::store::MemoryStore);

impl Store for GoneLater {
    fn execute_into(&self, step: &Step<'_>, executed: &mut Executed) -> Execution {
        match step.op {
            tidegate::store::Op::Take | tidegate::store::Op::Peek => self.0.execute_into(step, executed),
            _ => Gone.execute_into(step, executed),
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }
}

/// A store that failed to settle used to go unnoticed: limits kept their charges, and no one was told.
#[test]
fn a_store_that_does_not_settle_is_told_to_the_observer() {
    let mut tokens = per_minute("tokens", 1000);
    tokens.settle = Some(SettleRule::new(SettleBy::Cost));
    let store = GoneLater(tidegate::store::MemoryStore::with_capacity(100).unwrap());
    let gate = Arc::new(Gate::new(PolicySet::new(vec![tokens, places(2)]).unwrap(), store));
    let heard = Heard::default();
    let layer = GateLayer::new(gate, anybody).settling().with_observer(heard.clone());
    assert_eq!(answer(&mut layer.layer(spends(Usage::cost(50))), get()).unwrap().status(), 200);
    let expected = ["gate: ended, Success", "gate: NotSettled, the store is unavailable: it is gone"];
    assert_eq!(heard.take(), expected);

    // When the time is up, the dropped request is settled too.
    let second = Duration::from_secs(1);
    let clock = ManualClock::default();
    let deadline = DeadlineLayer::within(second, second).unwrap().with_clock(clock.clone());
    let mut hanging = deadline.layer(layer.layer(ScriptedService::hanging()));
    let mut called = Box::pin(call(&mut hanging, get()));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(second);
    assert!(poll(called.as_mut()).is_ready());
    drop(called);
    let heard = heard.take();
    assert!(heard.iter().any(|line| line.starts_with("gate: NotSettled, ")), "{heard:?}");
}

#[test]
fn a_request_over_a_limit_that_lets_it_pass_tells_the_service() {
    let mut soft = per_minute("per user", 1);
    soft.over = tidegate::policy::Over::Mark;
    let mut heavy = per_minute("heavy", 1);
    heavy.over = tidegate::policy::Over::Demote { to: None };
    let (gate, _) = gate(vec![soft, heavy]);
    let inner = ScriptedService::default();
    let mut service = GateLayer::new(gate, anybody).layer(inner.clone());
    answer(&mut service, with("x-tidegate-priority", "critical-plus")).unwrap();
    assert!(inner.last().headers().is_empty(), "what its caller claims is gone");
    answer(&mut service, with("x-tidegate-priority", "critical-plus")).unwrap();
    let read = |name: &str| inner.last().headers()[name].to_str().unwrap().to_owned();
    let told = ["x-tidegate-marked", "x-tidegate-demoted", "x-tidegate-priority"].map(read);
    assert_eq!(told, ["per%20user", "heavy", "sheddable-plus"]);
}
