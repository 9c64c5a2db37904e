//! Admissions of a gate that bodies hold.

use tidegate::gate::Check;
use tidegate::policy::{ChargeOn, Descriptor, Limit, Policy, PolicySet, SettleBy, SettleRule};
use tidegate::{Gate, Quota};
use tidegate_tower::{GateLayer, Spent};

use super::*;

/// What is left of: tokens that settle by what was spent, failures, and places.
fn gate() -> (Arc<Gate>, ManualClock) {
    let (clock, quota) = (ManualClock::default(), |count| Quota::per_day(count).gcra().unwrap());
    let mut tokens = Policy::new("tokens", Limit::new(quota(1000), "1000/day"));
    tokens.settle = Some(SettleRule::new(SettleBy::Cost));
    let mut failures = Policy::new("failures", Limit::new(quota(10), "10/day"));
    failures.charge = ChargeOn::Failure;
    let places = Policy::new("places", Limit::new(Quota::concurrency(3, 60 * SECOND).unwrap(), "3"));
    let set = PolicySet::new(vec![tokens, failures, places]).unwrap();
    (Arc::new(Gate::in_memory(set, 1000).unwrap().with_clock(clock.clone())), clock)
}

fn left(gate: &Gate) -> Vec<u64> {
    let limits = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
    limits.iter().map(|limit| limit.decision.standing.remaining).collect()
}

/// Answers with a body, and hands over the charge of the request.
fn handing_over(
    says: Vec<Says>,
    charge: &Arc<Mutex<Option<Spent>>>,
) -> impl Service<Request<String>, Response = Response<Script>, Error = BoxError, Future: Send>
+ Clone
+ Send
+ 'static {
    let charge = Arc::clone(charge);
    service_fn(move |request: Request<String>| {
        *charge.lock().unwrap() = request.extensions().get::<Spent>().cloned();
        std::future::ready(Ok::<_, BoxError>(Response::new(Script::of(says.clone()))))
    })
}

/// A gate used to settle at the head, and ignored what a stream reported at its end.
#[test]
fn a_gate_settles_and_returns_its_places_when_the_body_ends() {
    for (says, ended, after) in [
        (vec![Says::Data(b"1"), Says::Data(b"2")], Outcome::Success, [700, 10, 3]),
        (vec![Says::Data(b"1"), Says::Trailers(Some("0"))], Outcome::Success, [700, 10, 3]),
        (vec![Says::Data(b"1"), Says::Trailers(Some("16"))], Outcome::CallersFault, [700, 9, 3]),
        (vec![Says::Data(b"1"), Says::Fails], Outcome::Failure, [700, 10, 3]),
    ] {
        let ((gate, _), charge, ends) = (gate(), Arc::default(), Ends::default());
        let layer = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new())
            .settling()
            .until_body_ends()
            .answering(Errors)
            .with_observer(ends.clone());
        let mut body = call(layer.layer(handing_over(says.clone(), &charge))).into_body();
        assert_eq!((left(&gate), ends.all()), (vec![999, 9, 2], vec![]), "the body goes on");
        assert!(frame(&mut body).is_ready());
        assert_eq!(left(&gate), [999, 9, 2]);
        assert!(charge.lock().unwrap().take().unwrap().settle(300));
        while matches!(frame(&mut body), Poll::Ready(Some(Ok(_)))) {}
        assert_eq!((left(&gate), ends.all()), (after.to_vec(), vec![ended]), "{says:?}");
        drop(body);
        assert_eq!((left(&gate), ends.all()), (after.to_vec(), vec![ended]), "once");
    }
}

/// A client behind a gate: the program that reads the answer settles the charge of its call.
#[test]
fn a_program_settles_its_call_before_the_body_ends() {
    let ((gate, _), spent) = (gate(), Spent::new());
    let layer = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new())
        .settling()
        .until_body_ends()
        .answering(Errors);
    let handler = handing_over(vec![Says::Data(b"1"), Says::Data(b"2")], &Arc::default());
    let request = Request::builder().extension(spent.clone()).body(String::new()).unwrap();
    let mut called = Box::pin(layer.layer(handler).call(request));
    let Poll::Ready(Ok(response)) = poll(called.as_mut()) else { panic!("it answers at once") };
    let mut body = response.into_body();
    assert!(frame(&mut body).is_ready());
    assert!(spent.settle(300));
    while matches!(frame(&mut body), Poll::Ready(Some(Ok(_)))) {}
    assert_eq!(left(&gate), [700, 10, 3]);
    assert!(!spent.settle(1));
}

/// A reader that hangs up cannot undo what failures cost, and pays for what was sent to it.
#[test]
fn a_reader_that_goes_away_leaves_its_place_and_keeps_its_charges() {
    for (reported, tokens) in [(Some(300), 700), (None, 999)] {
        let ((gate, _), charge) = (gate(), Arc::default());
        let layer = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new())
            .settling()
            .until_body_ends()
            .answering(Errors);
        let mut body =
            call(layer.layer(handing_over(vec![Says::Data(b"1"), Says::Waits], &charge))).into_body();
        assert!(frame(&mut body).is_ready());
        if let Some(units) = reported {
            charge.lock().unwrap().take().unwrap().settle(units);
        }
        drop(body);
        assert_eq!(left(&gate), [tokens, 9, 3]);
    }
}

/// A stream whose reader hangs up reports in its drop what it has spent.
#[test]
fn what_a_stream_reports_when_it_is_dropped_is_settled() {
    struct Reports(Spent);
    impl Drop for Reports {
        fn drop(&mut self) {
            self.0.settle(300);
        }
    }
    impl Body for Reports {
        type Data = Bytes;
        type Error = BoxError;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"token")))))
        }
    }
    let (gate, _) = gate();
    let layer = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new());
    let service = service_fn(|request: Request<String>| {
        let spent = request.extensions().get::<Spent>().unwrap().clone();
        std::future::ready(Ok::<_, BoxError>(Response::new(Reports(spent))))
    });
    let layer = layer.settling().until_body_ends().answering(Errors);
    let mut body = call(layer.layer(service)).into_body();
    assert!(frame(&mut body).is_ready());
    drop(body);
    assert_eq!(left(&gate), [700, 9, 3]);
}

/// Over a real connection of axum, within a stack: the tokens of a language model are counted while they are sent.
#[tokio::test]
async fn a_streamed_answer_of_axum_reports_its_tokens_at_its_end() {
    use axum::Router;
    use axum::body::Body as AxumBody;
    use axum::extract::Request as AxumRequest;
    use axum::routing::get;
    use tokio::net::TcpListener;

    struct Tokens(u64, Spent);
    impl Body for Tokens {
        type Data = Bytes;
        type Error = BoxError;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            self.0 += 1;
            if self.0 > 40 {
                self.1.settle(40);
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"token ")))))
        }
    }
    let ((gate, _), ends) = (gate(), Ends::default());
    let layer = GateLayer::new(Arc::clone(&gate), |_: &AxumRequest| Descriptor::new());
    let layer = layer.settling().until_body_ends().with_observer(ends.clone());
    let complete = async |axum::Extension(spent): axum::Extension<Spent>| AxumBody::new(Tokens(0, spent));
    let app: Router = Router::new().route("/", get(complete)).layer(ServerStack::new().rate_limit(layer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let answer = crate::layers::over_the_wire::ask(server, "/", "").await;
    assert!(answer.contains("token "), "{answer}");
    while ends.all().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!((left(&gate), ends.all()), (vec![960, 10, 3], vec![Outcome::Success]));
    serving.abort();
}
