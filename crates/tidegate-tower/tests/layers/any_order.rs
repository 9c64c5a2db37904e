//! Futures of a whole stack, made, polled, answered and dropped in random orders: never more calls inside than allowed,
//! and everything is given back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use proptest::prelude::*;
use tidegate::breaker::CircuitBreaker;
use tidegate::clock::ManualClock;
use tidegate::gate::Check;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::{Breaker, Bulkhead, Gate, Limiter, Quota};
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, GateLayer, LoadShedLayer, RateLimitLayer,
};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_layer::Layer;
use tower_service::Service;

use crate::layers::service::{call, poll, status};

const PLACES: u64 = 2;
const CALLS: usize = 6;

/// Calls in flight, answered by the test.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<HashMap<usize, Option<u16>>>>);

/// One call in flight.
struct Work {
    number: usize,
    held: Held,
}

impl Future for Work {
    type Output = Result<Response<String>, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.held.0.lock().unwrap()[&self.number] {
            Some(code) => Poll::Ready(Ok(status(code))),
            None => Poll::Pending,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.held.0.lock().unwrap().remove(&self.number);
    }
}

impl Service<Request<String>> for Held {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Work;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Work {
        let number = request.body().parse().unwrap();
        let mut held = self.0.lock().unwrap();
        assert!(held.insert(number, None).is_none());
        assert!(held.len() as u64 <= PLACES, "more are at work than there are places");
        Work { number, held: self.clone() }
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
enum Step {
    Call(usize),
    Poll(usize),
    Answer(usize, u16),
    Drop(usize),
    /// A tenth of a second passes.
    Wait,
    /// The service used for calls is replaced by its clone, as for a new connection.
    Clone,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..CALLS, 0..12, prop::sample::select(vec![200_u16, 404, 500, 503])).prop_map(
        |(number, kind, code)| match kind {
            0..4 => Step::Call(number),
            4..7 => Step::Poll(number),
            7..9 => Step::Answer(number, code),
            9 => Step::Drop(number),
            10 => Step::Wait,
            _ => Step::Clone,
        },
    );
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn everything_that_was_taken_comes_back(steps in steps(), order in any::<[bool; 2]>()) {
        let clock = ManualClock::default();
        let places = Bulkhead::new(PLACES).unwrap().with_room(3).with_clock(clock.clone());
        let law = CircuitBreaker::builder().consecutive(3).jitter(0.0);
        let breaker = Breaker::new(law).unwrap().with_clock(clock.clone());
        let limiter = Limiter::new(Quota::per_second(20).burst(5)).unwrap().with_clock(clock.clone());
        let seats = Quota::concurrency(4, Duration::from_secs(3600)).unwrap();
        let seats = PolicySet::new(vec![Policy::new("seats", Limit::new(seats, "4"))]).unwrap();
        let gate = Arc::new(Gate::in_memory(seats, 10).unwrap().with_clock(clock.clone()));
        let semaphore = Arc::new(tokio::sync::Semaphore::new(CALLS));
        let second = Duration::from_secs(1);

        let inner = Held::default();
        let within = GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&semaphore)).layer(inner.clone());
        let limit = RateLimitLayer::all("rate", limiter.clone());
        let stack = ClientStack::new()
            .breaker(BreakerLayer::new("breaker", breaker.clone()))
            .concurrency(ConcurrencyLayer::new("places", places.clone()))
            .rate_limit(if order[0] { limit.waiting(second / 2) } else { limit })
            .deadline(DeadlineLayer::within(second, second).unwrap().with_clock(clock.clone()));
        let stacked = LoadShedLayer::new().layer(stack.layer(within));
        let describe = |_: &Request<String>| Descriptor::new();
        let mut service = GateLayer::new(Arc::clone(&gate), describe).layer(stacked);

        let mut under_way: HashMap<usize, Pin<Box<_>>> = HashMap::new();
        for step in steps {
            match step {
                Step::Call(number) => {
                    under_way
                        .entry(number)
                        .or_insert_with(|| Box::pin(call(&mut service, Request::new(number.to_string()))));
                }
                Step::Poll(number) => {
                    let ended = under_way.get_mut(&number).is_some_and(|future| poll(future.as_mut()).is_ready());
                    if ended {
                        under_way.remove(&number);
                    }
                }
                Step::Answer(number, code) => {
                    if let Some(answer) = inner.0.lock().unwrap().get_mut(&number) {
                        *answer = Some(code);
                    }
                }
                Step::Drop(number) => drop(under_way.remove(&number)),
                Step::Wait => clock.advance(second / 10),
                Step::Clone => service = service.clone(),
            }
            let inside = inner.0.lock().unwrap().len() as u64;
            let taken = PLACES - places.standing().remaining;
            prop_assert!(inside <= taken && taken <= PLACES, "{inside} are at work in {taken} places");
        }
        drop((under_way, service));
        prop_assert_eq!(inner.0.lock().unwrap().len(), 0);
        prop_assert_eq!((places.standing().remaining, places.waiting()), (PLACES, 0));
        prop_assert_eq!(semaphore.available_permits(), CALLS);
        let limits = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
        prop_assert_eq!(limits[0].decision.standing.remaining, 4);
        // No probe's place is lost: after an open time a call is let through, and the last of the steps closes the
        // breaker.
        clock.advance(Duration::from_secs(3600));
        for _ in 0..100 {
            let entered = breaker.try_enter();
            prop_assert!(entered.is_ok(), "{:?}", breaker.state());
            entered.unwrap().leave(tidegate::Outcome::Success);
        }
    }
}
