//! Answers that are streamed: what layers hold and how they judge until the body has ended.

mod gate;
mod served;
mod timed;

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use proptest::prelude::*;
use tidegate::breaker::CircuitBreaker;
use tidegate::clock::ManualClock;
use tidegate::concurrency::{Law, Sample};
use tidegate::deadline::carried;
use tidegate::observer::{LayerDid, LayerEvent, Observer};
use tidegate::{Breaker, Bulkhead, Outcome, Tick};
use tidegate_tower::body::{HeldBody, TimedBody};
use tidegate_tower::{
    BreakerLayer, ConcurrencyLayer, DeadlineLayer, Errors, FallbackLayer, RefusalCause, Refused, ServerStack,
};
use tower::{BoxError, Layer, service_fn};
use tower_service::Service;

const SECOND: Duration = Duration::from_secs(1);

/// One poll of a body.
#[derive(Clone, Debug)]
enum Says {
    Data(&'static [u8]),
    Trailers(Option<&'static str>),
    Fails,
    Refuses(RefusalCause),
    Waits,
    /// Data, and what the task carries.
    Finds(Arc<Mutex<Option<tidegate::deadline::Deadline>>>),
}

/// A body that says what the test has prepared, and then ends.
#[derive(Debug, Default)]
struct Script {
    says: VecDeque<Says>,
    /// Whether it knows after its last frame that it has ended, and how long it is.
    knows: bool,
}

impl Script {
    fn of(says: impl IntoIterator<Item = Says>) -> Self {
        Self { says: says.into_iter().collect(), knows: false }
    }
}

impl From<String> for Script {
    fn from(_: String) -> Self {
        Self::default()
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if matches!(self.says.front(), Some(Says::Waits)) {
            return Poll::Pending;
        }
        let Some(says) = self.says.pop_front() else { return Poll::Ready(None) };
        Poll::Ready(Some(match says {
            Says::Data(data) => Ok(Frame::data(Bytes::from_static(data))),
            Says::Trailers(status) => {
                let mut trailers = HeaderMap::new();
                if let Some(status) = status {
                    trailers.insert("grpc-status", status.parse().unwrap());
                }
                Ok(Frame::trailers(trailers))
            }
            Says::Fails => Err("it broke off".into()),
            Says::Refuses(cause) => Err(Refused::new(cause, "within").into()),
            Says::Waits => unreachable!("looked at before"),
            Says::Finds(found) => {
                *found.lock().unwrap() = carried();
                Ok(Frame::data(Bytes::from_static(b"found")))
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.knows && self.says.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.says.iter().map(|says| if let Says::Data(data) = says { data.len() } else { 0 });
        if self.knows { SizeHint::with_exact(data.sum::<usize>() as u64) } else { SizeHint::default() }
    }
}

/// Answers once with a response.
fn answers(
    response: Response<Script>,
) -> impl Service<Request<String>, Response = Response<Script>, Error = BoxError, Future: Send> + Clone {
    let response = Arc::new(Mutex::new(Some(response)));
    service_fn(move |_: Request<String>| {
        std::future::ready(Ok::<_, BoxError>(response.lock().unwrap().take().expect("one call")))
    })
}

fn call<S: Service<Request<String>, Error: std::fmt::Debug>>(mut service: S) -> S::Response {
    let Poll::Ready(result) = poll(pin!(service.call(Request::default()))) else { panic!("no head") };
    result.unwrap()
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

type Polled<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

fn frame<B: Body + Unpin>(body: &mut B) -> Polled<B> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

/// Records how calls ended.
#[derive(Clone, Debug, Default)]
struct Ends(Arc<Mutex<Vec<Outcome>>>);

impl Observer for Ends {
    fn on_layer(&self, event: &LayerEvent<'_>) {
        if let LayerDid::Ended { outcome } = event.did {
            self.0.lock().unwrap().push(outcome);
        }
    }
}

impl Ends {
    fn all(&self) -> Vec<Outcome> {
        self.0.lock().unwrap().clone()
    }
}

/// What a test does after the head, and the outcome that it has to have.
type Case = (Response<Script>, usize, Outcome);

fn cases() -> Vec<Case> {
    use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};
    let data = Says::Data(b"12345");
    let answer = |says: &[Says]| Response::new(Script::of(says.to_vec()));
    let of_length = |says: &[Says]| {
        let mut response = answer(says);
        response.headers_mut().insert("content-length", "10".parse().unwrap());
        response
    };
    let unavailable = |says: &[Says]| {
        let mut response = answer(says);
        *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        response
    };
    let knows = |says: &[Says]| Response::new(Script { knows: true, ..Script::of(says.to_vec()) });
    vec![
        // Read to its end: one more poll than it has frames.
        (answer(&[data.clone(), data.clone()]), 3, Success),
        // Its end is known with the last frame.
        (knows(&[data.clone(), data.clone()]), 2, Success),
        // Servers drop a body that has its whole length.
        (of_length(&[data.clone(), data.clone(), Says::Waits]), 2, Success),
        (of_length(&[data.clone(), data.clone(), Says::Waits]), 1, Ignored),
        (answer(&[data.clone(), data.clone()]), 2, Ignored),
        (answer(&[data.clone(), Says::Fails]), 2, Failure),
        (answer(&[data.clone(), Says::Fails]), 1, Ignored),
        (answer(&[data.clone(), Says::Trailers(None)]), 2, Success),
        (answer(&[data.clone(), Says::Trailers(Some("0"))]), 2, Success),
        (answer(&[data.clone(), Says::Trailers(Some("5"))]), 2, CallersFault),
        (answer(&[data.clone(), Says::Trailers(Some("13"))]), 2, Failure),
        (answer(&[data.clone(), Says::Trailers(Some("14"))]), 2, Overloaded),
        (answer(&[data.clone(), Says::Refuses(RefusalCause::TimedOut)]), 2, Failure),
        (answer(&[data.clone(), Says::Refuses(RefusalCause::CutShort)]), 2, Ignored),
        // The head has told already.
        (unavailable(std::slice::from_ref(&data)), 2, Overloaded),
        (unavailable(&[data.clone(), Says::Fails]), 2, Overloaded),
        (unavailable(std::slice::from_ref(&data)), 0, Overloaded),
    ]
}

#[test]
fn a_place_is_held_until_the_body_ends_and_learns_how() {
    for (number, (response, polls, outcome)) in cases().into_iter().enumerate() {
        let (places, ends) = (Bulkhead::new(1).unwrap(), Ends::default());
        let layer = ConcurrencyLayer::new("streams", places.clone()).with_observer(ends.clone());
        let mut body = call(layer.until_body_ends().layer(answers(response))).into_body();
        for _ in 0..polls {
            assert_eq!((places.standing().remaining, ends.all()), (0, vec![]), "case {number}");
            assert!(frame(&mut body).is_ready());
        }
        drop(body);
        assert_eq!((places.standing().remaining, ends.all()), (1, vec![outcome]), "case {number}");
    }
}

/// A stream that breaks off is a failure of the service, which the head did not tell.
#[test]
fn a_breaker_judges_the_body_too() {
    for (number, (response, polls, outcome)) in cases().into_iter().enumerate() {
        let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
        let layer = BreakerLayer::new("model", breaker.clone()).answering(Errors).until_body_ends();
        let mut body = call(layer.layer(answers(response))).into_body();
        for _ in 0..polls {
            assert_eq!(breaker.state().as_str(), "closed", "case {number}");
            assert!(frame(&mut body).is_ready());
        }
        drop(body);
        let opens = matches!(outcome, Outcome::Failure | Outcome::Overloaded);
        assert_eq!(breaker.state().as_str() == "open", opens, "case {number}");
        let counted = if outcome == Outcome::Ignored || opens { 0 } else { 1 };
        assert_eq!(breaker.totals().calls, counted, "case {number}");
    }
}

#[test]
fn an_answer_without_a_body_and_an_error_end_at_once() {
    let ends = Ends::default();
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let layer =
        || ConcurrencyLayer::new("streams", places.clone()).answering(Errors).with_observer(ends.clone());
    let empty = Response::new(Script { knows: true, ..Script::default() });
    let answered = call(layer().until_body_ends().layer(answers(empty)));
    assert_eq!((places.standing().remaining, ends.all()), (1, vec![Outcome::Success]));
    let fails = service_fn(async |_: Request<String>| Err::<Response<Script>, BoxError>("it is gone".into()));
    let mut failing = layer().until_body_ends().layer(fails);
    let Poll::Ready(Err(_)) = poll(pin!(failing.call(Request::default()))) else { panic!("it fails") };
    assert_eq!((places.standing().remaining, ends.all().len()), (1, 2));
    drop(answered);
    assert_eq!(ends.all(), [Outcome::Success, Outcome::Failure], "nothing is given back twice");
}

#[test]
fn a_panic_returns_the_place_and_says_nothing_of_the_service() {
    let (places, ends) = (Bulkhead::new(1).unwrap(), Ends::default());
    let layer = ConcurrencyLayer::new("streams", places.clone()).with_observer(ends.clone());
    let body = call(layer.until_body_ends().layer(answers(Response::new(Script::of([Says::Waits])))));
    let panics = std::panic::AssertUnwindSafe(move || {
        let _body = body;
        panic!("in the reader");
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!((places.standing().remaining, ends.all()), (1, vec![]));
}

/// A law that keeps its samples.
#[derive(Clone, Debug, Default)]
struct Keeps(Arc<Mutex<Vec<Sample>>>);

impl Law for Keeps {
    type State = ();

    fn start(&self, _: Tick) {}

    fn limit(&self, (): &()) -> u64 {
        1
    }

    fn learn(&self, (): &mut (), sample: &Sample) {
        self.0.lock().unwrap().push(*sample);
    }
}

#[test]
fn a_law_learns_the_time_to_the_head_and_the_time_in_the_place() {
    let (law, clock) = (Keeps::default(), ManualClock::default());
    let places = Bulkhead::adaptive(law.clone()).with_clock(clock.clone());
    let inner = service_fn(async |_: Request<String>| {
        clock.advance(SECOND);
        Ok::<_, BoxError>(Response::new(Script::of([Says::Data(b"1")])))
    });
    // A service for one call, so that it may borrow the clock.
    let layer = ConcurrencyLayer::new("streams", places).answering(Errors).until_body_ends();
    let mut body = call(layer.layer(inner)).into_body();
    clock.advance(20 * SECOND);
    assert!(law.0.lock().unwrap().is_empty(), "the outcome is not known");
    while let Poll::Ready(Some(_)) = frame(&mut body) {}
    let (latency, held, outcome) = (SECOND, 21 * SECOND, Outcome::Success);
    let sample =
        Sample { at: Tick::from_secs(21), latency, held, in_flight: 1, places: 1, time_left: None, outcome };
    assert_eq!(*law.0.lock().unwrap(), [sample]);
}

#[test]
fn a_body_that_holds_something_passes_on_all_that_the_body_within_says() {
    let layer = || ConcurrencyLayer::new("streams", Bulkhead::new(1).unwrap()).until_body_ends();
    let deadline = || DeadlineLayer::within(SECOND, SECOND).unwrap().until_body_ends();
    let script = || Script { knows: true, ..Script::of([Says::Data(b"123"), Says::Trailers(Some("0"))]) };
    let mut body = call(deadline().layer(layer().layer(answers(Response::new(script()))))).into_body();
    assert_eq!((body.is_end_stream(), body.size_hint().exact()), (false, Some(3)));
    let Poll::Ready(Some(Ok(data))) = frame(&mut body) else { panic!("data comes first") };
    assert_eq!(data.into_data().unwrap(), "123");
    assert_eq!((body.is_end_stream(), body.size_hint().exact()), (false, Some(0)));
    let Poll::Ready(Some(Ok(trailers))) = frame(&mut body) else { panic!("trailers come next") };
    assert_eq!(trailers.into_trailers().unwrap()["grpc-status"], "0");
    assert!(body.is_end_stream() && matches!(frame(&mut body), Poll::Ready(None)));
}

/// Refusals of outer layers and answers of a fallback have the type of the body within, and hold nothing.
#[test]
fn refusals_and_fallbacks_hold_nothing() {
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let fallback = |result: Result<Response<TimedBody<HeldBody<Script>>>, BoxError>| {
        result.map(|response| match response.status().as_u16() {
            503 => Response::new(TimedBody::free(HeldBody::free(Script::of([Says::Data(b"later")])))),
            _ => response,
        })
    };
    let stack = ServerStack::new()
        .fallback(FallbackLayer::new(fallback))
        .deadline(DeadlineLayer::within(SECOND, SECOND).unwrap().until_body_ends())
        .concurrency(ConcurrencyLayer::new("streams", places.clone()).until_body_ends());
    let _permit = places.try_enter().unwrap();
    let mut body = call(stack.layer(answers(Response::default()))).into_body();
    let Poll::Ready(Some(Ok(data))) = frame(&mut body) else { panic!("an answer at hand") };
    assert_eq!(data.into_data().unwrap(), "later");
    drop(body);
    assert_eq!(places.standing().remaining, 0, "the place of another");
}

fn says() -> impl Strategy<Value = Says> {
    let status = prop::sample::select(vec![None, Some("0"), Some("1"), Some("5"), Some("14")]);
    prop_oneof![
        5 => Just(Says::Data(b"12345")),
        1 => Just(Says::Fails),
        1 => Just(Says::Waits),
        1 => Just(Says::Refuses(RefusalCause::Open)),
        1 => status.prop_map(Says::Trailers),
    ]
}

proptest! {
    /// Bodies of several answers are polled and dropped in any order, beside futures that wait for a place: each holds its
    /// place until its own end, no more than there are, and gives it back once.
    #[test]
    fn no_order_of_polls_and_drops_loses_or_doubles_a_place(
        scripts in prop::collection::vec((prop::collection::vec(says(), 0..5), any::<bool>()), 1..6),
        steps in prop::collection::vec((0usize..6, any::<bool>()), 0..60),
    ) {
        let (ends, places) = (Ends::default(), Bulkhead::new(2).unwrap());
        let layer = ConcurrencyLayer::new("streams", places.clone()).with_observer(ends.clone()).until_body_ends();
        let count = scripts.len();
        // A slot has a future, then a body, then nothing.
        let mut slots: Vec<_> = scripts
            .into_iter()
            .map(|(says, knows)| {
                let script = Script { knows, ..Script::of(says) };
                let future = Box::pin(layer.layer(answers(Response::new(script))).call(Request::default()));
                (Some(future), None)
            })
            .collect();
        for (slot, drops) in steps {
            let Some((future, body)) = slots.get_mut(slot) else { continue };
            if drops {
                (*future, *body) = (None, None);
            } else if let Some(waits) = future {
                if let Poll::Ready(result) = poll(waits.as_mut()) {
                    (*future, *body) = (None, Some(result.unwrap().into_body()));
                }
            } else if let Some(body) = body {
                let _ = frame(body);
            }
            prop_assert!(places.standing().remaining <= 2 && places.standing().debt == 0);
        }
        drop(slots);
        prop_assert_eq!((places.standing().remaining, places.waiting()), (2, 0));
        prop_assert!(ends.all().len() <= count, "no call ends twice");
    }
}

/// Bodies are as `Send` and `Sync` as the bodies within.
#[test]
fn bodies_may_go_where_the_bodies_within_may_go() {
    fn goes<T: Send + Sync>() {}
    goes::<HeldBody<Script>>();
    goes::<HeldBody<Script, tidegate::breaker::Call>>();
    goes::<TimedBody<HeldBody<Script>>>();
}
