use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::{MethodRouter, get as on_get};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::policy::{Descriptor, KeepFor, Kept, Limit, Over, Policy, PolicySet};
use tidegate::priority::header::{TIDEGATE_PRIORITY, read_priority};
use tidegate::priority::{Criticality, Priority, carried, carry};
use tidegate::{Bulkhead, Gate, Quota};
use tidegate_tower::parameter::{Describe, priority_of};
use tidegate_tower::{
    ClientStack, ConcurrencyLayer, ForwardPriorityLayer, GateLayer, PriorityLayer, ServerStack,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::{Service, ServiceExt};
use tower_layer::Layer;

use crate::layers::over_the_wire::ask;
use crate::layers::service::{Finds, ScriptedService, answer, get, with};

const FINDS: Finds = Finds(|| carried().map_or_else(|| "nothing".to_owned(), |found| found.to_string()));

fn saying(values: &[&[u8]]) -> Request<String> {
    let mut request = get();
    for value in values {
        request.headers_mut().append(TIDEGATE_PRIORITY, HeaderValue::from_bytes(value).unwrap());
    }
    request
}

/// The values of a request's priority header, one per line.
fn said(request: &Request<String>) -> Vec<&str> {
    let lines = request.headers().get_all(TIDEGATE_PRIORITY).iter();
    lines.map(|line| line.to_str().unwrap_or("bytes")).collect()
}

#[test]
fn a_request_has_the_priority_that_it_names_and_no_more_than_the_ceiling() {
    let critical = PriorityLayer::default();
    let believing = PriorityLayer::new(Criticality::SheddablePlus, Criticality::CriticalPlus);
    let huge = vec![b'x'; 65_536];
    for (values, at_the_edge, inside) in [
        (&[][..], "critical", "sheddable-plus"),
        (&[b"sheddable/17"], "sheddable/17", "sheddable/17"),
        (&[b"critical/3"], "critical/3", "critical/3"),
        (&[b"critical-plus/127"], "critical", "critical-plus/127"),
        (&[b"critical-plus"], "critical", "critical-plus"),
        (&[b"CRITICAL-PLUS"], "critical", "sheddable-plus"),
        (&[b"critical-plus, sheddable/3 ,urgent"], "sheddable/3", "sheddable/3"),
        (&[b"critical/128"], "critical", "sheddable-plus"),
        (&[b""], "critical", "sheddable-plus"),
        (&[b"sheddable\xff"], "critical", "sheddable-plus"),
        (&[&huge], "critical", "sheddable-plus"),
        (&[b"sheddable", b"critical-plus"], "sheddable", "sheddable"),
        (&[b"critical-plus", b"critical-plus"], "critical", "critical-plus"),
        (&[b"urgent", b"sheddable"], "sheddable", "sheddable"),
        (&[b"urgent", b"later"], "critical", "sheddable-plus"),
    ] as [(&[&[u8]], _, _); 15]
    {
        let found = |layer: PriorityLayer| {
            let inner = ScriptedService::default();
            answer(&mut layer.layer(inner.clone()), saying(values)).unwrap();
            let found = answer(&mut layer.layer(FINDS), saying(values)).unwrap().into_body();
            let last = inner.last();
            assert!(
                values.is_empty() || said(&last) == [&found],
                "the header says so too: {:?}",
                said(&last)
            );
            found
        };
        let shown = values.first().map(|value| String::from_utf8_lossy(&value[..value.len().min(30)]));
        assert_eq!(found(critical.clone()), at_the_edge, "{shown:?}");
        assert_eq!(found(believing.clone()), inside, "{shown:?}");
    }
    assert_eq!(carried(), None);
}

/// An inner layer used to give each request without a header its own default, so that what an outer layer had made
/// sheddable was critical again.
#[test]
fn a_request_without_the_header_keeps_the_priority_that_its_task_carries() {
    let outer = || PriorityLayer::new(Criticality::Sheddable, Criticality::Sheddable);
    let found = |layer: PriorityLayer, request| {
        answer(&mut outer().layer(layer.layer(FINDS)), request).unwrap().into_body()
    };
    assert_eq!(found(PriorityLayer::default(), get()), "sheddable");
    assert_eq!(found(PriorityLayer::default(), saying(&[b"urgent"])), "sheddable");
    assert_eq!(
        found(PriorityLayer::default(), saying(&[b"critical"])),
        "sheddable",
        "the outer one rewrote it"
    );
    // No priority is above the ceiling, also one that is carried.
    let raised = carry(Priority::of(Criticality::CriticalPlus), || {
        answer(&mut PriorityLayer::default().layer(FINDS), get()).unwrap().into_body()
    });
    assert_eq!(raised, "critical");
}

#[test]
fn the_ceiling_may_be_each_requests_own() {
    #[derive(Clone)]
    struct SignedIn;
    let layer = PriorityLayer::default().ceiling_of(|request: &Request<String>| {
        let is_known = request.extensions().get::<SignedIn>().is_some();
        Priority::of(if is_known { Criticality::CriticalPlus } else { Criticality::Sheddable })
    });
    let mut service = layer.layer(FINDS);
    let mut known = saying(&[b"critical-plus"]);
    known.extensions_mut().insert(SignedIn);
    assert_eq!(answer(&mut service, known).unwrap().body(), "critical-plus");
    assert_eq!(answer(&mut service, saying(&[b"critical-plus"])).unwrap().body(), "sheddable");
    assert_eq!(answer(&mut service, get()).unwrap().body(), "sheddable", "the default is no more either");
}

#[test]
fn a_client_tells_what_is_carried_and_only_lowers_it() {
    let of = |text: &str| text.parse::<Priority>().unwrap();
    let inner = ScriptedService::default();
    let told = |layer: ForwardPriorityLayer, carried: Option<&str>, values: &[&[u8]]| {
        let mut client = layer.layer(inner.clone());
        let mut call = || answer(&mut client, saying(values)).unwrap();
        match carried {
            Some(carried) => carry(of(carried), call),
            None => call(),
        };
        said(&inner.last()).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let plain = ForwardPriorityLayer::new();
    let sheds = plain.clone().by_default(Criticality::Sheddable);
    for (carried, values, by_plain, by_sheds) in [
        (Some("sheddable/17"), &[][..], &["sheddable/17"][..], &["sheddable/17"][..]),
        (Some("critical-plus"), &[b"sheddable"], &["sheddable"], &["sheddable"]),
        (Some("sheddable"), &[b"critical-plus"], &["sheddable"], &["sheddable"]),
        (Some("critical"), &[b"urgent"], &["critical"], &["critical"]),
        (Some("critical"), &[b"sheddable", b"sheddable"], &["sheddable"], &["sheddable"]),
        (None, &[], &[], &["sheddable"]),
        (None, &[b"critical-plus/5"], &["critical-plus/5"], &["critical-plus/5"]),
        (None, &[b"urgent"], &[], &["sheddable"]),
        (None, &[b"critical", b"critical-plus, critical"], &["critical"], &["critical"]),
    ] as [(_, &[&[u8]], _, _); 9]
    {
        assert_eq!(told(plain.clone(), carried, values), by_plain, "{carried:?} {values:?}");
        assert_eq!(told(sheds.clone(), carried, values), by_sheds, "{carried:?} {values:?}");
    }
}

/// As the manual says: the layer reads the carried priority when it is called, and the innermost one counts.
#[test]
fn a_priority_is_raised_on_purpose_by_carrying_it() {
    let inner = ScriptedService::default();
    let mut client = ForwardPriorityLayer::new().layer(inner.clone());
    carry(Criticality::Sheddable, || {
        carry(Criticality::CriticalPlus, || answer(&mut client, get())).unwrap();
        assert_eq!(said(&inner.last()), ["critical-plus"]);
        answer(&mut client, get()).unwrap();
        assert_eq!(said(&inner.last()), ["sheddable"]);
    });
}

fn priorities() -> impl Strategy<Value = Priority> {
    (0..4_usize, 0..128_u8)
        .prop_map(|(level, cohort)| Priority::of(Criticality::ALL[level]).in_cohort(cohort).unwrap())
}

/// Header values: priorities, near misses, and any bytes that a header may have.
fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let line = prop_oneof![
        priorities().prop_map(|priority| priority.to_string().into_bytes()),
        "(critical|sheddable)(-plus)?(/[0-9]{0,5})?".prop_map(String::into_bytes),
        proptest::collection::vec(0x20..=0xfe_u8, 0..40).prop_map(|mut bytes| {
            bytes.retain(|byte| *byte != 0x7f);
            bytes
        }),
    ];
    proptest::collection::vec(line, 0..3)
}

proptest! {
    /// For any input: no request has more than its ceiling; and the carried priority, the header and the priority told
    /// to the next service are equal.
    #[test]
    fn nobody_has_more_than_the_ceiling(lines in lines(), default in priorities(), ceiling in priorities()) {
        let values: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        let parts = values.iter().flat_map(|line| line.split(|byte| *byte == b','));
        let named = parts.filter_map(|part| read_priority(part.trim_ascii())).min();
        let inner = ScriptedService::default();
        let stack = ClientStack::new().priority(ForwardPriorityLayer::new());
        let mut service = PriorityLayer::new(default, ceiling).layer(stack.layer(inner.clone()));
        answer(&mut service, saying(&values)).unwrap();
        let told = priority_of(inner.last().headers(), TIDEGATE_PRIORITY);
        prop_assert_eq!(told, Some(named.unwrap_or(default).min(ceiling)));
    }

    /// A client sends at most one value. It can be read, and is neither above the carried priority nor above the one
    /// the request named.
    #[test]
    fn no_client_raises_a_priority(lines in lines(), carrying in proptest::option::of(priorities())) {
        let values: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        let request = saying(&values);
        let named = priority_of(request.headers(), TIDEGATE_PRIORITY);
        let inner = ScriptedService::default();
        let mut client = ForwardPriorityLayer::new().layer(inner.clone());
        match carrying {
            Some(carrying) => carry(carrying, || answer(&mut client, request)).unwrap(),
            None => answer(&mut client, request).unwrap(),
        };
        let told = priority_of(inner.last().headers(), TIDEGATE_PRIORITY);
        prop_assert_eq!(said(&inner.last()).len(), usize::from(told.is_some()));
        prop_assert_eq!(told, named.into_iter().chain(carrying).min());
    }
}

/// The header's name can be chosen: reading, lowering by a policy and telling all use the chosen name.
#[test]
fn the_header_is_chosen() {
    let name = HeaderName::from_static("x-request-priority");
    let inner = ScriptedService::default();
    let demotes = GateLayer::new(gate(demoting(1)), |_: &Request<String>| Descriptor::new())
        .telling_priority_in(name.clone());
    let client = ForwardPriorityLayer::new().in_header(name.clone()).layer(inner.clone());
    let read = PriorityLayer::new(Criticality::Critical, Criticality::CriticalPlus)
        .in_header(name.clone())
        .ceiling_of(|_: &Request<String>| Priority::of(Criticality::CriticalPlus));
    let mut service = ServerStack::new().priority(read).rate_limit(demotes).layer(client);
    let mut told = |says: &'static str| {
        let mut request = with("x-request-priority", says);
        request.headers_mut().insert(TIDEGATE_PRIORITY, HeaderValue::from_static("sheddable"));
        answer(&mut service, request).unwrap();
        let last = inner.last();
        let told = last.headers()["x-request-priority"].to_str().unwrap().to_owned();
        assert_eq!(
            last.headers()[TIDEGATE_PRIORITY],
            "sheddable",
            "another header, of which nothing is known"
        );
        told
    };
    assert_eq!(told("critical-plus"), "critical-plus");
    assert_eq!(told("critical-plus"), "critical", "over its limit");
    assert_eq!(told("sheddable/9"), "sheddable/9");
}

/// Bulkheads and policies within the task use the carried priority, unless another one is named.
#[test]
fn guards_go_by_what_is_carried() {
    let kept = KeepFor::default().with(Criticality::Critical, Kept::Percent(50));
    let places = Bulkhead::new(2).unwrap().with_room(0).with_keep_for(kept).unwrap();
    let _permit = places.try_enter().unwrap();
    let stack = ServerStack::new()
        .concurrency(ConcurrencyLayer::new("places", places.clone()))
        .priority(PriorityLayer::default());
    let mut service = stack.layer(FINDS);
    assert_eq!(answer(&mut service, with(TIDEGATE_PRIORITY, "sheddable")).unwrap().status(), 503);
    assert_eq!(answer(&mut service, get()).unwrap().body(), "critical");
    let names =
        |entry: tidegate::bulkhead::Enter, _: &Request<String>| entry.priority(Criticality::CriticalPlus);
    let stack = stack.concurrency(ConcurrencyLayer::new("places", places).entering(names));
    assert_eq!(answer(&mut stack.layer(FINDS), with(TIDEGATE_PRIORITY, "sheddable")).unwrap().status(), 200);

    let mut policy = Policy::new("all", Limit::new(Quota::per_minute(2).gcra().unwrap(), "2/min"));
    policy.limits[0].keep_for = kept;
    let (mut service, _) = behind_gate(policy, |_: &Request<String>| Descriptor::new());
    assert_eq!(answer(&mut service, with(TIDEGATE_PRIORITY, "sheddable")).unwrap().body(), "sheddable");
    assert_eq!(answer(&mut service, with(TIDEGATE_PRIORITY, "sheddable")).unwrap().status(), 429);
    assert_eq!(answer(&mut service, get()).unwrap().body(), "critical");
}

fn behind_gate<D>(
    policy: Policy,
    describe: D,
) -> (
    impl Service<Request<String>, Response = http::Response<String>, Error = std::convert::Infallible>,
    Arc<Gate>,
)
where
    D: Describe<Request<String>> + Send + Sync + 'static,
{
    let gate = gate(policy);
    let stack = ServerStack::new()
        .rate_limit(GateLayer::new(Arc::clone(&gate), describe))
        .priority(PriorityLayer::default());
    (stack.layer(FINDS), gate)
}

fn gate(policy: Policy) -> Arc<Gate> {
    let gate = Gate::in_memory(PolicySet::new(vec![policy]).unwrap(), 1000).unwrap();
    Arc::new(gate.with_clock(ManualClock::default()))
}

/// A policy that demotes requests beyond `count` per minute.
fn demoting(count: u64) -> Policy {
    let mut policy = Policy::new("heavy", Limit::new(Quota::per_minute(count).gcra().unwrap(), "heavy"));
    policy.over = Over::Demote { to: None };
    policy
}

/// The service carries the priority that a policy has lowered, or that a description names.
#[test]
fn what_a_gate_has_decided_is_carried_from_there() {
    let (mut service, _) = behind_gate(demoting(1), |_: &Request<String>| Descriptor::new());
    assert_eq!(answer(&mut service, get()).unwrap().body(), "critical");
    assert_eq!(answer(&mut service, get()).unwrap().body(), "sheddable-plus");
    assert_eq!(answer(&mut service, with(TIDEGATE_PRIORITY, "sheddable/9")).unwrap().body(), "sheddable/9");

    struct Paying;
    impl Describe<Request<String>> for Paying {
        fn describe(&self, _: &Request<String>) -> Descriptor<'static> {
            Descriptor::new()
        }
        fn priority(&self, _: &Request<String>) -> Priority {
            Priority::of(Criticality::CriticalPlus)
        }
    }
    let (mut service, _) = behind_gate(demoting(1), Paying);
    assert_eq!(answer(&mut service, get()).unwrap().body(), "critical-plus");
    assert_eq!(answer(&mut service, get()).unwrap().body(), "critical");

    let nobody = GateLayer::new(gate(demoting(9)), |_: &Request<String>| Descriptor::new());
    assert_eq!(answer(&mut nobody.layer(FINDS), get()).unwrap().body(), "nothing", "nobody has named any");
}

/// A service that calls the next one, with the same client for all requests, and passes on its answer.
fn asking(next: String) -> MethodRouter {
    let hyper = Client::builder(TokioExecutor::new()).build_http::<String>();
    let client = ClientStack::new().priority(ForwardPriorityLayer::new()).layer(hyper);
    on_get(move || {
        let (mut client, request) = (client.clone(), Request::get(&next).body(String::new()).unwrap());
        async move {
            let answer = client.ready().await.unwrap().call(request).await.unwrap();
            to_bytes(Body::new(answer.into_body()), 1000).await.unwrap()
        }
    })
}

async fn serve(app: Router) -> (std::net::SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

/// Three axum services: an edge that strangers reach, one whose policy demotes frequent requests, and one that answers
/// with what it is told.
#[tokio::test]
async fn a_priority_arrives_at_the_third_service() {
    let inside = PriorityLayer::new(Criticality::Critical, Criticality::CriticalPlus);
    let says = on_get(async |headers: HeaderMap| {
        let header = headers.get(TIDEGATE_PRIORITY).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header, carried().map(|found| found.to_string()));
        header.unwrap()
    });
    let (third, last) =
        serve(Router::new().route("/", says).layer(ServerStack::new().priority(inside.clone()))).await;

    let demotes = GateLayer::new(gate(demoting(6)), |_: &axum::extract::Request| Descriptor::new());
    let stack = ServerStack::new().rate_limit(demotes).priority(inside);
    let app = Router::new().route("/", asking(format!("http://{third}/"))).layer(stack);
    let (second, middle) = serve(app).await;

    let edge = PriorityLayer::default().ceiling_of(|request: &axum::extract::Request| {
        // Stands for real authentication: do not do this in production.
        let is_ours = request.headers().get("authorization").is_some_and(|value| value == "Bearer ours");
        Priority::of(if is_ours { Criticality::CriticalPlus } else { Criticality::Critical })
    });
    let app = Router::new()
        .route("/", asking(format!("http://{second}/")))
        .layer(ServerStack::new().priority(edge));
    let (first, edge) = serve(app).await;

    for (headers, arrives) in [
        ("", "critical"),
        ("x-tidegate-priority: sheddable/17\r\n", "sheddable/17"),
        ("x-tidegate-priority: critical-plus\r\n", "critical"),
        ("authorization: Bearer ours\r\nx-tidegate-priority: critical-plus\r\n", "critical-plus"),
        ("x-tidegate-priority: sheddable\r\nx-tidegate-priority: critical-plus\r\n", "sheddable"),
        ("x-tidegate-priority: urgent\r\n", "critical"),
        // The seventh request in a minute, on a stopped clock.
        ("authorization: Bearer ours\r\nx-tidegate-priority: critical-plus\r\n", "critical"),
        ("", "sheddable-plus"),
    ] {
        let answer = ask(first, "/", headers).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with(&format!("\r\n\r\n{arrives}")),
            "{headers} {answer}"
        );
    }
    for serving in [last, middle, edge] {
        serving.abort();
    }
}
