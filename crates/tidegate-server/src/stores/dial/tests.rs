//! Starting a node while its engine is away.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::store::{Charge, Op, PlainStore};
use tidegate::{Cost, Quota, Tick};

use super::*;

/// A dial that fails this many times, each time for this reason, and then succeeds.
fn dial(failures: usize, reason: fn() -> Failed) -> (Dial, Arc<AtomicUsize>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let made = Arc::clone(&attempts);
    let attempt = move || -> Attempt {
        let reached = made.fetch_add(1, Ordering::Relaxed) >= failures;
        let store = Arc::new(PlainStore::default());
        let dialled = Dialled { store, coordinator: None, warnings: Vec::new() };
        Box::pin(async move { if reached { Ok(dialled) } else { Err(reason()) } })
    };
    let caps = PlainStore::default().caps();
    (Dial { caps, coordinates: false, attempt: Box::new(attempt) }, attempts)
}

/// Advances the time, and lets background tasks run that are due.
async fn passes(time: Duration) {
    let step = Duration::from_millis(100);
    for _ in 0..time.as_millis() / step.as_millis() {
        tokio::time::advance(step).await;
        tokio::task::yield_now().await;
    }
}

/// Regression: nodes did not start while their engine was away, so an outage of the engine became one of their callers.
#[tokio::test(start_paused = true)]
async fn an_engine_that_is_away_is_dialled_until_it_answers() {
    let (dial, attempts) = dial(3, || Failed::Away("nobody is there".to_owned()));
    let (dialled, away) = first("redis", dial).await.unwrap();
    assert!(away && dialled.warnings[0].contains("nobody is there"), "{:?}", dialled.warnings);
    let quota = Arc::new(Quota::per_minute(10).gcra().unwrap());
    let charges = [Charge::new(b"key", &quota, Cost::ONE)];
    let asked = || dialled.store.blocking_settle(&Step::new(Tick::from_secs(1), Op::Take, &charges));
    let away = StoreError::Unavailable { reason: "nobody is there".to_owned() };
    assert_eq!(asked().unwrap_err(), away);
    passes(EVERY * 2 + EVERY / 2).await;
    assert_eq!(asked().unwrap_err(), away, "three attempts failed");
    passes(EVERY).await;
    assert!(asked().unwrap().allowed);
    passes(EVERY * 10).await;
    assert_eq!(attempts.load(Ordering::Relaxed), 4, "nobody dials an engine that was reached");
}

#[tokio::test(start_paused = true)]
async fn nobody_dials_for_a_server_that_is_gone() {
    let (dial, attempts) = dial(usize::MAX, || Failed::Away("nobody is there".to_owned()));
    drop(first("redis", dial).await.unwrap());
    passes(EVERY * 10).await;
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn what_no_waiting_mends_is_refused_at_once() {
    let wrong =
        || Failed::ForGood(OpenStoreError::Engine { kind: "redis", reason: "wrong password".to_owned() });
    let (dial, attempts) = dial(1, wrong);
    let refused = first("redis", dial).await.err().unwrap();
    assert_eq!(refused.to_string(), "store.kind: redis: wrong password");
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
}
