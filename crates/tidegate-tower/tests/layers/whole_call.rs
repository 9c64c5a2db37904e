//! The bound of a client's whole call.

use std::convert::Infallible;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate::bulkhead::NoPlace;
use tidegate::clock::{Clock as _, ManualClock};
use tidegate::deadline::{Timeouts, carry};
use tidegate::retries::{Retrier, Retries, RetryBudget, SharedBudget};
use tidegate::{Bulkhead, Limiter, Quota, Tick};
use tidegate_tower::{
    ClientStack, ConcurrencyLayer, ForwardDeadlineLayer, Problems, RateLimitLayer, RefusalCause, Refused,
    RetryLayer,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::layers::service::{Finds, ScriptedService, answer, call, get, poll, status};

const SECOND: Duration = Duration::from_secs(1);

/// One second for a try, ten for the whole call.
fn deadline(clock: &ManualClock) -> ForwardDeadlineLayer<Problems> {
    let timeouts = Timeouts::new(SECOND, 10 * SECOND).unwrap();
    ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()).answering(Problems)
}

fn retries(clock: &ManualClock, rules: Retries) -> RetryLayer {
    RetryLayer::new(Retrier::new(rules, SharedBudget::with_clock(RetryBudget::default(), clock.clone())))
}

fn cause(response: &Response<String>) -> Option<RefusalCause> {
    Refused::of_response(response).map(|refused| refused.cause)
}

/// A service that named a wait of 50 s twice used to keep a caller for more than 100 s, although the client's ceiling was
/// ten.
#[test]
fn a_wait_between_tries_that_ends_after_the_call_is_not_begun() {
    let clock = ManualClock::default();
    let later = || Response::builder().status(503).header("retry-after", "50").body(String::new()).unwrap();
    let inner = ScriptedService::answering([later(), later()]);
    let stack = ClientStack::new().retry(retries(&clock, Retries::default())).deadline(deadline(&clock));
    let answered = answer(&mut stack.layer(inner.clone()), get()).unwrap();
    assert_eq!((answered.status().as_u16(), inner.calls()), (503, 1));
}

/// Each try keeps the default time, and the third one only what the whole call leaves.
#[test]
fn tries_have_the_default_time_each_and_the_ceiling_together() {
    let clock = ManualClock::default();
    let rules = Retries::new(100, 4 * SECOND, 4 * SECOND).unwrap();
    let inner = ScriptedService::hanging();
    let hangs = |response: &Result<Response<String>, Infallible>| {
        let failed = response.as_ref().is_ok_and(|response| response.status() == 504);
        if failed { tidegate::Outcome::Failure.into() } else { tidegate::Outcome::Success.into() }
    };
    let stack = ClientStack::new().retry(retries(&clock, rules).judging(hangs)).deadline(deadline(&clock));
    let mut client = stack.layer(inner.clone());
    let mut called = Box::pin(call(&mut client, get()));
    let mut ended = None;
    for step in 0..200 {
        if let Poll::Ready(result) = poll(called.as_mut()) {
            ended = Some((step, result.unwrap()));
            break;
        }
        let told = &inner.last().headers()["x-envoy-expected-rq-timeout-ms"].clone();
        assert!(told.to_str().unwrap().parse::<u64>().unwrap() <= 1000, "a try has the default time");
        clock.advance(SECOND / 10);
    }
    let (step, answered) = ended.expect("it ends");
    assert_eq!(answered.status(), 504);
    assert!(step <= 100, "{step} tenths of a second");
    assert!(inner.calls() >= 2, "{}", inner.calls());
}

/// Regression: behind a deadline that the task carries, the first try got all that was left, so a service that hung once
/// was never tried again. A try has the smaller of its own time and of what is left.
#[test]
fn behind_a_deadline_a_try_that_hangs_leaves_time_for_another() {
    for (left, own) in [(5 * SECOND, SECOND), (SECOND / 2, SECOND / 2)] {
        let clock = ManualClock::default();
        let rules = Retries::new(2, Duration::ZERO, Duration::ZERO).unwrap();
        let inner = ScriptedService::hanging();
        let hangs = |response: &Result<Response<String>, Infallible>| {
            let failed = response.as_ref().is_ok_and(|response| response.status() == 504);
            if failed { tidegate::Outcome::Failure.into() } else { tidegate::Outcome::Success.into() }
        };
        let stack =
            ClientStack::new().retry(retries(&clock, rules).judging(hangs)).deadline(deadline(&clock));
        let mut client = stack.layer(inner.clone());
        let until = Tick::EPOCH.after(left);
        let mut called = Box::pin(carry(until, || call(&mut client, get())));
        assert!(poll(called.as_mut()).is_pending());
        let told = inner.last().headers()["x-envoy-expected-rq-timeout-ms"].to_str().unwrap().to_owned();
        assert_eq!(told.parse::<u128>().unwrap(), own.as_millis(), "of {left:?} left");
        clock.advance(own);
        let ended = poll(called.as_mut());
        let (tries, is_over) = if left == own { (1, true) } else { (2, false) };
        assert_eq!((inner.calls(), ended.is_ready()), (tries, is_over), "of {left:?} left");
    }
}

/// A call that waits in the queue of a service that hangs used to wait for all calls before it.
#[test]
fn a_call_waits_in_the_queue_no_longer_than_the_whole_call_may_take() {
    let clock = ManualClock::default();
    let places = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let held = places.try_enter().unwrap();
    let stack = ClientStack::new()
        .concurrency(ConcurrencyLayer::new("calls", places.clone()))
        .deadline(deadline(&clock));
    let mut client = stack.layer(ScriptedService::default());
    let mut called = Box::pin(call(&mut client, get()));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(10 * SECOND - Duration::from_nanos(1));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(Duration::from_nanos(1));
    let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("the whole call is over") };
    assert!(matches!(cause(&refused), Some(RefusalCause::Concurrency(_))), "{:?}", cause(&refused));
    assert_ne!(cause(&refused), Some(RefusalCause::Concurrency(NoPlace::QueueFull)));
    drop(held);

    // A rate limit with a longer wait than is left refuses at once.
    let slow = Limiter::new(Quota::per_minute(1)).unwrap().with_clock(clock.clone());
    let rate = RateLimitLayer::all("rate", slow).waiting(120 * SECOND);
    let mut client =
        ClientStack::new().rate_limit(rate).deadline(deadline(&clock)).layer(ScriptedService::default());
    assert_eq!(answer(&mut client, get()).unwrap().status(), 200);
    assert_eq!(cause(&answer(&mut client, get()).unwrap()), Some(RefusalCause::RateLimit));
}

/// A service whose clones are never ready, so that a second try waits for ever.
struct ReadyOnce(bool);

impl Clone for ReadyOnce {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl Service<Request<String>> for ReadyOnce {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        std::future::ready(Ok(status(503)))
    }
}

#[test]
fn a_call_whose_service_is_never_ready_is_given_up() {
    let clock = ManualClock::default();
    let rules = Retries::new(3, Duration::ZERO, Duration::ZERO).unwrap();
    let stack = ClientStack::new().retry(retries(&clock, rules)).deadline(deadline(&clock));
    let mut client = stack.layer(ReadyOnce(true));
    let mut called = Box::pin(call(&mut client, get()));
    assert!(poll(called.as_mut()).is_pending(), "the second try waits until the service is ready");
    clock.advance(10 * SECOND);
    let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("the whole call is over") };
    assert_eq!((refused.status().as_u16(), cause(&refused)), (504, Some(RefusalCause::TimedOut)));
}

#[test]
fn a_call_that_comes_too_late_takes_nothing() {
    let (clock, inner) = (ManualClock::default(), ScriptedService::default());
    let limiter = Limiter::new(Quota::per_minute(5)).unwrap().with_clock(clock.clone());
    let stack = ClientStack::new()
        .rate_limit(RateLimitLayer::all("rate", limiter.clone()))
        .deadline(deadline(&clock));
    let refused = carry(clock.now(), || answer(&mut stack.layer(inner.clone()), get())).unwrap();
    assert_eq!((cause(&refused), inner.calls()), (Some(RefusalCause::NoTimeLeft), 0));
    assert_eq!(limiter.standing().remaining, 5);
}

/// A try has the default, however much more time the task carries: the rest is for the next try.
#[test]
fn a_deadline_that_somebody_has_set_gives_a_try_no_more_than_the_default() {
    let clock = ManualClock::default();
    let finds = Finds(|| format!("{:?}", tidegate::deadline::carried()));
    let told = |carried: Option<u64>| {
        let inner = ScriptedService::default();
        let mut client = ClientStack::new().deadline(deadline(&clock)).layer(inner.clone());
        match carried {
            Some(secs) => carry(Tick::from_secs(secs), || answer(&mut client, get())),
            None => answer(&mut client, get()),
        }
        .unwrap();
        inner.last().headers()["x-envoy-expected-rq-timeout-ms"].to_str().unwrap().to_owned()
    };
    assert_eq!([None, Some(5), Some(99)].map(told), ["1000", "1000", "1000"]);
    // A stack around another one is no caller that has set a deadline.
    let both = ClientStack::new().deadline(deadline(&clock));
    let inner = ScriptedService::default();
    let twice = deadline(&clock);
    answer(&mut both.layer(ClientStack::new().deadline(twice).layer(inner.clone())), get()).unwrap();
    assert_eq!(inner.last().headers()["x-envoy-expected-rq-timeout-ms"], "1000");
    // Nothing is left behind on the thread.
    answer(&mut ClientStack::new().deadline(deadline(&clock)).layer(finds), get()).unwrap();
    assert_eq!(tidegate::deadline::carried(), None);
}
