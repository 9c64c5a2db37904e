//! The job queue on a manual clock: pace, order, results, and everything that can go wrong with a job.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::future::pending;
use std::panic::panic_any;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use tidegate::Tick;
use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::Rate;
use tidegate::limiter::queue::{Job, JobError, JobHandle, JobQueue, Refused, Worker};

const SECOND: Duration = Duration::from_secs(1);

fn queue(per_second: u64, places: usize) -> (JobQueue, Worker, ManualClock) {
    let clock = ManualClock::at(Tick::from_secs(1000));
    let rate = Rate::new(per_second, SECOND).unwrap();
    let (queue, worker) = JobQueue::with_clock(rate, places, SECOND / 100, clock.clone()).unwrap();
    (queue, worker, clock)
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the next job if one is due now.
fn due(worker: &mut Worker) -> Poll<Option<Job>> {
    poll(pin!(worker.next()))
}

fn run(mut job: Job) {
    assert!(poll(Pin::new(&mut job)).is_ready());
}

fn result<T>(handle: &mut JobHandle<T>) -> Poll<Result<T, JobError>> {
    poll(Pin::new(handle))
}

#[test]
fn jobs_start_in_order_and_at_the_rate_and_return_their_results() {
    let (queue, worker, clock) = queue(3, 100);
    let start = clock.now();
    let started = Arc::new(Mutex::new(Vec::new()));
    let mut handles: Vec<_> = (0..10u32)
        .map(|place| {
            let (started, clock) = (Arc::clone(&started), clock.clone());
            let job = async move {
                started.lock().push((place, clock.now().since(start)));
                place * place
            };
            queue.submit(job).unwrap()
        })
        .collect();
    drop(queue);
    let mut worker = pin!(worker.run());
    while poll(worker.as_mut()).is_pending() {
        assert!(clock.advance_to_next().is_some(), "a worker with jobs sleeps for the next");
    }
    let third = |place: u32| Duration::from_nanos((u64::from(place) * 1_000_000_000).div_ceil(3));
    assert_eq!(*started.lock(), (0..10).map(|place| (place, third(place))).collect::<Vec<_>>());
    for (place, handle) in (0..).zip(&mut handles) {
        assert_eq!(result(handle), Poll::Ready(Ok(place * place)));
    }
}

#[test]
fn a_full_queue_refuses_at_once() {
    let (queue, mut worker, clock) = queue(1, 2);
    let _waiting = [queue.submit(async { 1 }).unwrap(), queue.submit(async { 2 }).unwrap()];
    let refused = Refused::Full { places: 2, retry_after: Duration::ZERO };
    assert_eq!(queue.submit(async { 3 }).unwrap_err(), refused);
    let Poll::Ready(Some(first)) = due(&mut worker) else { panic!("due at once") };
    run(first);
    assert_eq!(queue.waiting(), 1);
    let _third = queue.submit(async { 3 }).unwrap();
    assert_eq!(queue.submit(async { 4 }).unwrap_err(), Refused::Full { places: 2, retry_after: SECOND });
    assert!(due(&mut worker).is_pending());
    clock.advance(SECOND);
    assert!(due(&mut worker).is_ready());
}

#[test]
fn a_job_that_would_start_too_late_is_refused_at_once() {
    let (queue, mut worker, clock) = queue(1, 100);
    let _first = queue.submit_within(async {}, Duration::ZERO).unwrap();
    assert!(due(&mut worker).is_ready());
    let second = queue.submit_within(async {}, SECOND).unwrap();
    assert_eq!(queue.submit_within(async {}, SECOND).unwrap_err(), Refused::Late { wait: 2 * SECOND });
    clock.advance(SECOND / 2);
    assert_eq!(queue.submit_within(async {}, SECOND).unwrap_err(), Refused::Late { wait: 3 * SECOND / 2 });
    drop(second);
    assert!(queue.submit_within(async {}, SECOND / 2).is_ok(), "the place of a cancelled job is free");
}

#[test]
fn a_dropped_handle_cancels_its_job_and_those_behind_move_up() {
    let (queue, mut worker, clock) = queue(1, 100);
    let mut handles: Vec<_> = (0..4).map(|place| queue.submit(async move { place }).unwrap()).collect();
    let Poll::Ready(Some(first)) = due(&mut worker) else { panic!("due at once") };
    run(first);
    drop(handles.remove(1));
    clock.advance(SECOND);
    let Poll::Ready(Some(second)) = due(&mut worker) else { panic!("due after a second") };
    run(second);
    assert_eq!(result(&mut handles[1]), Poll::Ready(Ok(2)), "took the place of the cancelled one");
    assert_eq!(queue.waiting(), 1);
}

#[test]
fn a_job_goes_on_without_its_handle_when_detached_or_started() {
    let (queue, mut worker, clock) = queue(1, 100);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let ran = Arc::clone(&ran);
        async move { ran.lock().push(what) }
    };
    queue.submit(note("detached")).unwrap().detach();
    let started = queue.submit(note("started")).unwrap();
    let Poll::Ready(Some(job)) = due(&mut worker) else { panic!("due at once") };
    run(job);
    clock.advance(SECOND);
    let Poll::Ready(Some(job)) = due(&mut worker) else { panic!("due after a second") };
    drop(started);
    run(job);
    assert_eq!(*ran.lock(), ["detached", "started"]);
}

#[test]
fn a_panicking_job_ends_alone() {
    let (queue, worker, clock) = queue(1, 100);
    let mut said = queue.submit(async { panic!("no {}", "luck") }).unwrap();
    let mut silent = queue.submit(async { panic_any(7) }).unwrap();
    let mut fine = queue.submit(async { 42 }).unwrap();
    drop(queue);
    let mut worker = pin!(worker.run());
    while poll(worker.as_mut()).is_pending() {
        assert!(clock.advance_to_next().is_some());
    }
    assert_eq!(result(&mut said), Poll::Ready(Err(JobError::Panicked { message: "no luck".into() })));
    assert!(matches!(result(&mut silent), Poll::Ready(Err(JobError::Panicked { .. }))));
    assert_eq!(result(&mut fine), Poll::Ready(Ok(42)));
}

/// A worker that was held up for a minute finds sixty jobs overdue. Starting them all at once would be the very burst
/// that the queue prevents.
#[test]
fn a_worker_that_was_late_does_not_make_up_for_it_with_a_burst() {
    let (queue, mut worker, clock) = queue(1, 100);
    let _handles: Vec<_> = (0..60).map(|_| queue.submit(async {}).unwrap()).collect();
    clock.advance(60 * SECOND);
    for _ in 0..10 {
        assert!(due(&mut worker).is_ready());
        assert!(due(&mut worker).is_pending());
        clock.advance(SECOND);
    }
}

/// A timer that is always late by 400 µs must not slow 1000 jobs per second down to 700.
#[test]
fn timers_that_are_always_late_do_not_lower_the_rate() {
    let (queue, mut worker, clock) = queue(1000, 2000);
    let _handles: Vec<_> = (0..1001).map(|_| queue.submit(async {}).unwrap()).collect();
    let start = clock.now();
    let mut ran = 0;
    while ran < 1001 {
        match due(&mut worker) {
            Poll::Ready(_) => ran += 1,
            Poll::Pending => {
                clock.advance_to_next();
                clock.advance(Duration::from_micros(400));
            }
        }
    }
    let took = clock.now().since(start);
    assert!(took >= SECOND && took <= SECOND + Duration::from_millis(1), "{took:?}");
}

#[test]
fn idle_time_is_not_saved_up() {
    let (queue, mut worker, clock) = queue(1, 100);
    clock.advance(3600 * SECOND);
    let _handles = [queue.submit(async {}).unwrap(), queue.submit(async {}).unwrap()];
    assert!(due(&mut worker).is_ready());
    assert!(due(&mut worker).is_pending());
}

#[test]
fn closing_drains_and_aborting_does_not() {
    let (queue, mut worker, _) = queue(1, 100);
    let mut kept = queue.submit(async { 1 }).unwrap();
    queue.close();
    assert_eq!(queue.submit(async { 2 }).unwrap_err(), Refused::Closed);
    let Poll::Ready(Some(job)) = due(&mut worker) else { panic!("due at once") };
    run(job);
    assert_eq!(result(&mut kept), Poll::Ready(Ok(1)));
    assert!(matches!(due(&mut worker), Poll::Ready(None)));

    let (queue, mut worker, _) = self::queue(1, 100);
    let mut dropped = queue.submit(async { 1 }).unwrap();
    queue.abort();
    assert_eq!(result(&mut dropped), Poll::Ready(Err(JobError::Aborted)));
    assert!(matches!(due(&mut worker), Poll::Ready(None)));
    assert_eq!(queue.submit(async { 2 }).unwrap_err(), Refused::Closed);
}

#[test]
fn dropping_the_worker_or_a_running_job_aborts() {
    let (queue, mut worker, _) = queue(1, 100);
    let mut running = queue.submit(pending::<()>()).unwrap();
    let mut waiting = queue.submit(async {}).unwrap();
    let Poll::Ready(Some(mut job)) = due(&mut worker) else { panic!("due at once") };
    assert!(poll(Pin::new(&mut job)).is_pending());
    drop(worker);
    assert_eq!(result(&mut waiting), Poll::Ready(Err(JobError::Aborted)));
    assert_eq!(queue.submit(async {}).unwrap_err(), Refused::Closed);
    assert!(result(&mut running).is_pending());
    drop(job);
    assert_eq!(result(&mut running), Poll::Ready(Err(JobError::Aborted)));
}

#[test]
fn a_thread_runs_jobs_that_others_wait_for() {
    let (queue, worker, clock) = queue(1, 100);
    let thread = thread::spawn(|| worker.run_blocking());
    let (first, second) = (queue.submit(async { 1 }).unwrap(), queue.submit(async { 2 }).unwrap());
    assert_eq!(first.join(), Ok(1));
    while clock.sleepers() == 0 {
        thread::yield_now();
    }
    clock.advance(SECOND);
    assert_eq!(second.join(), Ok(2));
    drop(queue);
    thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_handed_to_a_runtime_overlap() {
    let (queue, worker, clock) = queue(1, 100);
    let worker = tokio::spawn(worker.run_with(|job| {
        tokio::spawn(job);
    }));
    let (open, gate) = tokio::sync::oneshot::channel();
    let slow = queue.submit(async { gate.await.unwrap() }).unwrap();
    let quick = queue.submit(async { 2 }).unwrap();
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(SECOND);
    assert_eq!(quick.await, Ok(2), "while the first is still at work");
    open.send(1).unwrap();
    assert_eq!(slow.await, Ok(1));
    drop(queue);
    worker.await.unwrap();
}

#[derive(Clone, Debug)]
enum Act {
    Submit,
    Drop(usize),
    Run,
    Advance(u64),
}

proptest! {
    /// However jobs are submitted, cancelled or left waiting, no span has more starts than one + rate × (span + slack).
    #[test]
    fn jobs_never_start_faster_than_the_rate(
        rate in 1..50u64,
        acts in prop::collection::vec(
            prop_oneof![
                3 => Just(Act::Submit),
                1 => (0..8usize).prop_map(Act::Drop),
                4 => Just(Act::Run),
                2 => (0..400u64).prop_map(Act::Advance),
            ],
            1..200,
        ),
    ) {
        let (queue, mut worker, clock) = queue(rate, 1000);
        let (mut handles, mut started) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                Act::Submit => handles.push(queue.submit(async {}).unwrap()),
                Act::Drop(which) if !handles.is_empty() => drop(handles.remove(which % handles.len())),
                Act::Drop(_) => {}
                Act::Run => {
                    if let Poll::Ready(Some(job)) = due(&mut worker) {
                        started.push(clock.now());
                        run(job);
                    }
                }
                Act::Advance(ms) => clock.advance(Duration::from_millis(ms)),
            }
        }
        let slack = Duration::from_millis(10).as_nanos();
        for (first, from) in started.iter().enumerate() {
            for (more, to) in (1u128..).zip(&started[first + 1..]) {
                let span = to.since(*from).as_nanos() + slack;
                prop_assert!(more * 1_000_000_000 <= u128::from(rate) * span, "{} jobs in {span} ns", more + 1);
            }
        }
    }
}

/// At one job an hour, a worker sleeps for most of the hour. Regression: it ended only after the sleep, and held up its
/// `join`, although the queue was closed and its last job cancelled.
#[test]
fn a_worker_ends_when_the_last_job_of_a_closed_queue_is_called_off() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let (queue, mut worker, _clock) = queue(1, 10);
    queue.submit(async {}).unwrap().detach();
    let waiting = queue.submit(async {}).unwrap();
    let Poll::Ready(Some(first)) = due(&mut worker) else { panic!("the first starts at once") };
    run(first);
    queue.close();

    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    assert!(pin!(worker.next()).poll(&mut cx).is_pending());
    drop(waiting);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(matches!(due(&mut worker), Poll::Ready(None)));
}
