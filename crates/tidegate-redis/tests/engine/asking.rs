//! Helpers that make requests to a store.

use std::sync::Arc;

use tidegate::store::{Answer, Charge, Op, Step, StepClock, Store};
use tidegate_core::{Cost, Quota, Tick};
use tidegate_redis::RedisStore;

/// Takes units by the server's clock.
pub(crate) fn take(store: &RedisStore, key: &[u8], quota: &Arc<Quota>, units: u64) -> Answer {
    ask(store, Op::Take, &[Charge::new(key, quota, Cost::new(units).unwrap())])
}

/// Runs an operation by the server's clock.
pub(crate) fn ask(store: &RedisStore, op: Op<'_>, charges: &[Charge<'_>]) -> Answer {
    let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, op, charges) };
    store.blocking_settle(&step)
}

/// Returns a key's remaining units.
pub(crate) fn left(store: &RedisStore, key: &[u8], quota: &Arc<Quota>) -> u64 {
    let peeked = ask(store, Op::Peek, &[Charge::new(key, quota, Cost::ONE)]).unwrap();
    peeked.lines[0].decision.standing.remaining
}

/// Returns how many of `takes` takes of one unit are allowed, sent in batches.
pub(crate) fn allowed(store: &RedisStore, key: &[u8], quota: &Arc<Quota>, takes: usize) -> usize {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, &charges) };
    let mut allowed = 0;
    for from in (0..takes).step_by(100) {
        let steps = vec![step; (takes - from).min(100)];
        let answers = blocking_each(store, &steps);
        allowed +=
            answers.iter().filter(|answer| answer.as_ref().is_ok_and(|settled| settled.allowed)).count();
    }
    allowed
}

pub(crate) fn blocking_each(store: &RedisStore, steps: &[Step<'_>]) -> Vec<Answer> {
    let later = store.settle_each(steps, &mut Vec::new()).expect("an engine answers later");
    wait(later)
}

/// Awaits a future on this thread, without a runtime.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Thread(std::thread::current())).into();
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
