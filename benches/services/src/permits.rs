//! Whether all places come back, whatever requests do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::Router;
use axum::routing::get;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use tidegate::Bulkhead;
use tidegate_tower::{ConcurrencyLayer, ServerStack};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{BoxError, ServiceExt as _};

use crate::load::{self, Caller, TIME_LEFT};
use crate::service::Server;

const REQUESTS: u64 = 100_000;

/// Requests at the same time.
const CALLERS: usize = 48;

/// What one caller does, and how often in twenty requests.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Ok,
    Error,
    HangsUp,
    Deadline,
    Panic,
}

const KINDS: [Kind; 20] = {
    let mut kinds = [Kind::Ok; 20];
    (kinds[1], kinds[6], kinds[11]) = (Kind::Error, Kind::Error, Kind::Error);
    (kinds[3], kinds[13]) = (Kind::HangsUp, Kind::HangsUp);
    (kinds[8], kinds[18]) = (Kind::Deadline, Kind::Deadline);
    (kinds[5], kinds[15]) = (Kind::Panic, Kind::Panic);
    kinds
};

/// How requests ended.
#[derive(Debug, Default)]
struct Seen {
    good: AtomicU64,
    errors: AtomicU64,
    hung_up: AtomicU64,
    deadlines: AtomicU64,
    broken_off: AtomicU64,
    refused: AtomicU64,
}

async fn page(uri: Uri) -> StatusCode {
    match uri.path() {
        "/error" => StatusCode::INTERNAL_SERVER_ERROR,
        "/slow" => {
            sleep(Duration::from_millis(40)).await;
            StatusCode::OK
        }
        "/panic" => panic!("asked to"),
        _ => {
            sleep(Duration::from_millis(1)).await;
            StatusCode::OK
        }
    }
}

/// Sends a hundred thousand requests through the server stack: good ones, errors, callers that hang up, deadlines that
/// pass, panics. Returns a line about them.
///
/// # Errors
/// If a place is taken in the end, or somebody waits for one.
pub(crate) fn whole() -> Result<String> {
    // The same as the default's, kept here so that its places can be counted.
    let places = Bulkhead::self_tuning();
    let stack = ServerStack::self_tuning("pages").concurrency(ConcurrencyLayer::new("pages", places.clone()));
    let routes = ["/", "/error", "/slow", "/panic"]
        .into_iter()
        .fold(Router::new(), |routes, path| routes.route(path, get(page)));
    let server = Server::of(routes.layer(stack))?;
    let seen = Arc::new(Seen::default());
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let taken = runtime.block_on(async {
        let caller = load::plain();
        let next = Arc::new(AtomicU64::new(0));
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (caller, next, seen) = (caller.clone(), Arc::clone(&next), Arc::clone(&seen));
            let address = server.address;
            callers.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= REQUESTS {
                        return;
                    }
                    ask(&caller, address, KINDS[number as usize % KINDS.len()], &seen).await;
                }
            });
        }
        while callers.join_next().await.is_some() {}
        // The server notices the last callers that hung up.
        sleep(Duration::from_millis(500)).await;
        let standing = places.standing();
        standing.limit.saturating_sub(standing.remaining) + standing.debt + places.waiting() as u64
    });
    std::panic::set_hook(usual);
    let [good, errors, hung_up, deadlines, broken_off, refused] =
        [&seen.good, &seen.errors, &seen.hung_up, &seen.deadlines, &seen.broken_off, &seen.refused]
            .map(|count| count.load(Ordering::Relaxed));
    ensure!(taken == 0, "{taken} places are in use after all requests: {seen:?}");
    ensure!(
        [good, errors, hung_up, deadlines, broken_off].iter().all(|count| *count >= 1000),
        "too few requests of one kind came as far as the service: {seen:?}"
    );
    Ok(format!(
        "Places in use after {REQUESTS} requests: {taken}\n{good} good, {errors} errors, {hung_up} hung up, \
         {deadlines} past their deadline, {broken_off} broken off by a panic, {refused} refused\n"
    ))
}

async fn ask(caller: &Caller, address: SocketAddr, kind: Kind, seen: &Seen) {
    let path = match kind {
        Kind::Ok => "",
        Kind::Error => "error",
        Kind::HangsUp | Kind::Deadline => "slow",
        Kind::Panic => "panic",
    };
    let mut request = Request::get(format!("http://{address}/{path}"));
    if let Kind::Deadline = kind {
        request = request.header(TIME_LEFT, "8");
    }
    let Ok(request) = request.body(Empty::new()) else { return };
    let patience = Duration::from_millis(if let Kind::HangsUp = kind { 8 } else { 20_000 });
    let answered = async {
        let response = caller.clone().oneshot(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        Ok::<_, BoxError>(status)
    };
    let count = match timeout(patience, answered).await {
        Ok(Ok(StatusCode::OK)) => &seen.good,
        Ok(Ok(StatusCode::SERVICE_UNAVAILABLE)) => &seen.refused,
        Ok(Ok(StatusCode::GATEWAY_TIMEOUT)) => &seen.deadlines,
        Ok(Ok(_)) => &seen.errors,
        Ok(Err(_)) => &seen.broken_off,
        Err(_) => &seen.hung_up,
    };
    count.fetch_add(1, Ordering::Relaxed);
}
