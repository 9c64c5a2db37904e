//! Bodies that end at a deadline.

use tidegate::deadline::{Timeouts, carry};
use tidegate_tower::{ClientStack, ForwardDeadlineLayer};

use super::*;

/// In a server: the deadline is outside, and the work inside learns that it took too long.
#[test]
fn a_body_ends_at_the_deadline_of_its_request() {
    let found = Arc::new(Mutex::new(None));
    for (given, outcome) in [(10, Outcome::Failure), (4, Outcome::Ignored)] {
        let (clock, ends) = (ManualClock::default(), Ends::default());
        let places = Bulkhead::new(1).unwrap();
        let stack = ServerStack::new()
            .deadline(
                DeadlineLayer::within(10 * SECOND, 10 * SECOND)
                    .unwrap()
                    .with_clock(clock.clone())
                    .until_body_ends(),
            )
            .concurrency(
                ConcurrencyLayer::new("streams", places.clone())
                    .with_observer(ends.clone())
                    .until_body_ends(),
            );
        let says = [Says::Finds(Arc::clone(&found)), Says::Waits];
        let mut service = stack.layer(answers(Response::new(Script::of(says))));
        let mut request = Request::<String>::default();
        request.headers_mut().insert("grpc-timeout", format!("{given}S").parse().unwrap());
        let Poll::Ready(Ok(response)) = poll(pin!(service.call(request))) else { panic!("no head") };
        let mut body = response.into_body();
        assert!(matches!(frame(&mut body), Poll::Ready(Some(Ok(_)))));
        assert_eq!(
            found.lock().unwrap().take(),
            Some(Tick::from_secs(given).into()),
            "a call within finds it"
        );
        assert!(frame(&mut body).is_pending());
        clock.advance(given as u32 * SECOND);
        let Poll::Ready(Some(Err(error))) = frame(&mut body) else { panic!("the time is up") };
        let refused = Refused::of_error(&error).unwrap();
        assert_eq!((refused.cause, &*refused.by), (RefusalCause::TimedOut, "deadline"));
        assert_eq!((places.standing().remaining, ends.all()), (1, vec![outcome]), "the work is dropped");
        assert!(body.is_end_stream() && matches!(frame(&mut body), Poll::Ready(None)));
    }
}

/// A body that is always ready runs no timer, and is ended all the same.
#[test]
fn a_body_that_never_waits_ends_at_the_deadline_too() {
    let clock = ManualClock::default();
    let layer = DeadlineLayer::within(SECOND, SECOND).unwrap().with_clock(clock.clone()).until_body_ends();
    let data = vec![Says::Data(b"1"); 3];
    let mut body = call(layer.layer(answers(Response::new(Script::of(data))))).into_body();
    assert!(matches!(frame(&mut body), Poll::Ready(Some(Ok(_)))));
    clock.advance(SECOND);
    assert!(matches!(frame(&mut body), Poll::Ready(Some(Err(_)))));
}

/// A client: the deadline is inside, and the breaker outside judges its error. A breaker takes the timeout for a failure
/// unless less than half of the usual time was left, and any other refusal for none.
#[test]
fn the_body_of_a_clients_answer_ends_at_the_deadline_of_the_call() {
    for (left, cause) in [(10, RefusalCause::TimedOut), (4, RefusalCause::CutShort)] {
        for says in [Says::Waits, Says::Fails] {
            let clock = ManualClock::default();
            let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
            let timeouts = Timeouts::new(10 * SECOND, 10 * SECOND).unwrap();
            let stack = ClientStack::new()
                .breaker(BreakerLayer::new("model", breaker.clone()).answering(Errors).until_body_ends())
                .deadline(ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()).until_body_ends());
            let waits = matches!(says, Says::Waits);
            let service = stack.layer(answers(Response::new(Script::of([Says::Data(b"1"), says]))));
            let until = Tick::from_secs(left);
            let mut body = carry(until, || call(service)).into_body();
            assert!(matches!(frame(&mut body), Poll::Ready(Some(Ok(_)))));
            if waits {
                assert!(frame(&mut body).is_pending());
            }
            // A channel of tonic ends the call itself, a moment earlier.
            let early = if waits { Duration::ZERO } else { Duration::from_millis(1) };
            clock.advance(left as u32 * SECOND - early);
            let Poll::Ready(Some(Err(error))) = frame(&mut body) else { panic!("the time is up") };
            assert_eq!(Refused::of_error(&error).map(|refused| refused.cause), Some(cause));
            assert_eq!(breaker.state().as_str() == "open", cause == RefusalCause::TimedOut, "{left} s");
        }
    }
}

/// A refusal in a body stays what it is, also after the time told to the service is over.
#[test]
fn a_refusal_in_a_body_is_no_timeout() {
    let clock = ManualClock::default();
    let timeouts = Timeouts::new(SECOND, SECOND).unwrap();
    let layer = ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()).until_body_ends();
    let says = Says::Refuses(RefusalCause::Open);
    let mut body = call(layer.layer(answers(Response::new(Script::of([says]))))).into_body();
    clock.advance(SECOND - Duration::from_nanos(1));
    let Poll::Ready(Some(Err(error))) = frame(&mut body) else { panic!("it is refused") };
    assert_eq!(Refused::of_error(&error).unwrap().cause, RefusalCause::Open);
}

/// A stream of gRPC ends with the status that its short time was up, in the trailers. A breaker counted a failure, so callers
/// who left little time opened it for everybody.
#[test]
fn trailers_that_say_the_short_time_was_up_are_no_failure() {
    let timeouts = Timeouts::new(2 * SECOND, 30 * SECOND).unwrap();
    for (millis, status, outcome) in [
        (999, "4", Outcome::Ignored),
        (1000, "4", Outcome::Failure),
        (999, "13", Outcome::Failure),
        (999, "0", Outcome::Success),
    ] {
        let (clock, ends) = (ManualClock::default(), Ends::default());
        let forward = ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone());
        let breaker = Breaker::new(CircuitBreaker::builder()).unwrap().with_clock(clock);
        let breaker = BreakerLayer::new("model", breaker).answering(Errors).with_observer(ends.clone());
        let stack = ClientStack::new().breaker(breaker.until_body_ends());
        let says = [Says::Data(b"1"), Says::Trailers(Some(status))];
        let mut client = stack.deadline(forward).layer(answers(Response::new(Script::of(says))));
        let request =
            Request::builder().header("content-type", "application/grpc").body(String::new()).unwrap();
        let until = Tick::EPOCH.after(Duration::from_millis(millis));
        let called = carry(until, || poll(pin!(client.call(request))));
        let Poll::Ready(Ok(response)) = called else { panic!("no head") };
        let mut body = response.into_body();
        while matches!(frame(&mut body), Poll::Ready(Some(Ok(_)))) {}
        assert_eq!(ends.all(), [outcome], "{millis} ms, {status}");
    }
}
