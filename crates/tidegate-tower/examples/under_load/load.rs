//! The load: users that arrive at a constant rate whatever the service does, and what they see.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use tidegate::Breaker;
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;

use super::service::{self, PATIENCE, Phases};

/// Users per second. A healthy dependency answers 500 per second.
pub(crate) const USERS: u32 = 200;
/// How often a user without an answer tries.
const TRIES: u32 = 3;

/// The users' results, second by second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Requests that were sent.
    pub(crate) tries: Vec<u32>,
    /// Answers that came in time, by the second of their arrival.
    pub(crate) good: Vec<u32>,
    /// The stand-ins among these answers.
    pub(crate) stand_ins: Vec<u32>,
    /// The breaker's state at the end of each second.
    pub(crate) breaker: Vec<&'static str>,
}

/// Runs the load through a service, on a virtual clock that skips idle time.
pub(crate) fn run(phases: Phases, protected: bool) -> Seen {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(drive(phases, protected))
}

#[allow(clippy::disallowed_methods, reason = "where the virtual clock begins")]
async fn drive(phases: Phases, protected: bool) -> Seen {
    let start = Instant::now();
    let (service, breaker) = service::make(phases, protected, start);
    let seconds = usize::try_from(phases.ends).unwrap();
    let seen = Seen {
        tries: vec![0; seconds],
        good: vec![0; seconds],
        stand_ins: vec![0; seconds],
        breaker: Vec::new(),
    };
    let seen = Arc::new(Mutex::new(seen));
    tokio::spawn(watch(breaker, start, seconds, Arc::clone(&seen)));
    for number in 0..USERS * u32::try_from(phases.ends).unwrap() {
        sleep_until(start + Duration::from_secs(1) * number / USERS).await;
        tokio::spawn(user(service.clone(), start, Arc::clone(&seen)));
    }
    sleep_until(start + Duration::from_secs(phases.ends + 1)).await;
    std::mem::take(&mut *seen.lock().unwrap())
}

/// Records the breaker's state each second.
async fn watch(breaker: Option<Breaker>, start: Instant, seconds: usize, seen: Arc<Mutex<Seen>>) {
    for second in 0..seconds {
        sleep_until(start + Duration::from_secs(second as u64 + 1)).await;
        let state = breaker.as_ref().map_or("none", |breaker| breaker.state().as_str());
        seen.lock().unwrap().breaker.push(state);
    }
}

/// One user: asks, and asks again if there is no good answer in time.
async fn user(service: Router, start: Instant, seen: Arc<Mutex<Seen>>) {
    let add = |lane: fn(&mut Seen) -> &mut Vec<u32>| {
        let second = usize::try_from(start.elapsed().as_secs()).unwrap();
        if let Some(count) = lane(&mut seen.lock().unwrap()).get_mut(second) {
            *count += 1;
        }
    };
    for _ in 0..TRIES {
        add(|seen| &mut seen.tries);
        let asked = service.clone().oneshot(Request::new(Body::empty()));
        if let Ok(Ok(answer)) = timeout(PATIENCE, asked).await
            && answer.status() == StatusCode::OK
        {
            add(|seen| &mut seen.good);
            if answer.headers().contains_key("x-stand-in") {
                add(|seen| &mut seen.stand_ins);
            }
            return;
        }
    }
}
