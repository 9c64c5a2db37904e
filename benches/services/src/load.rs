//! The callers: they arrive at random times whatever the service does, and give up when their patience ends.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate::deadline::Timeouts;
use tidegate::observer::RefusalCause;
use tidegate_tower::{ClientStack, ConcurrencyLayer, Errors, ForwardDeadlineLayer, Refused};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::load_shed::error::Overloaded;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer as _, ServiceBuilder, ServiceExt as _};

use crate::rows::Row;
use crate::service::Protection;

/// The header in which a caller says how long it waits, in milliseconds.
pub(crate) const TIME_LEFT: &str = "x-envoy-expected-rq-timeout-ms";

pub(crate) type Caller = BoxCloneSyncService<Request<Empty<Bytes>>, Response<Incoming>, BoxError>;

/// One request, and when it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) is_odd: bool,
}

/// The arrivals of a row, at random times (a Poisson process).
pub(crate) fn arrivals(row: &Row, seed: u64) -> Vec<Arrival> {
    let mut random = Random(seed);
    let mut at = 0.0;
    let mut all = Vec::new();
    loop {
        at -= (1.0 - random.unit()).ln() / row.rate;
        if at >= row.seconds as f64 {
            return all;
        }
        let is_drawn = row.odd > 0 && random.unit() * (row.odd as f64) < 1.0;
        let is_odd = is_drawn && at >= row.odd_from.as_secs_f64();
        all.push(Arrival { at: Duration::from_secs_f64(at), is_odd });
    }
}

/// Steele, Lea and Flood's splitmix64.
struct Random(u64);

impl Random {
    /// At least zero and below one.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How a request ended for its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// Answered, this long after its arrival.
    Answered(Duration),
    Refused,
    /// Not answered in its caller's patience, or with an error.
    Lost,
}

/// What callers do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// When they hang up, counted from their arrival.
    pub(crate) patience: Duration,
    /// They say so in a header.
    pub(crate) told: bool,
    /// How long after the last arrival the run ends.
    pub(crate) rest: Duration,
}

/// A client of hyper, with its pool of connections.
pub(crate) fn plain() -> Caller {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
    BoxCloneSyncService::new(client.map_err(BoxError::from))
}

/// The same behind a protection of its own.
pub(crate) fn protected(protection: Protection, patience: Duration) -> Result<Caller> {
    let places = || ConcurrencyLayer::self_tuning("remote").answering(Errors);
    Ok(match protection {
        Protection::None => plain(),
        Protection::Tower(most) => BoxCloneSyncService::new(
            ServiceBuilder::new()
                .layer(LoadShedLayer::new())
                .layer(GlobalConcurrencyLimitLayer::new(most))
                .service(plain()),
        ),
        Protection::Tidegate => {
            BoxCloneSyncService::new(ClientStack::new().concurrency(places()).layer(plain()))
        }
        Protection::TidegateAndDeadline => {
            let deadline = ForwardDeadlineLayer::new(Timeouts::new(patience, patience)?);
            BoxCloneSyncService::new(
                ClientStack::new().concurrency(places()).deadline(deadline).layer(plain()),
            )
        }
    })
}

/// Sends each request at its time, and returns how each ended. Those without an end when the run ends are lost.
pub(crate) async fn drive(
    caller: &Caller,
    address: SocketAddr,
    arrivals: &[Arrival],
    manners: Manners,
) -> Vec<How> {
    let start = Instant::now() + Duration::from_millis(50);
    let mut asked = JoinSet::new();
    for (number, arrival) in arrivals.iter().enumerate() {
        sleep_until(start + arrival.at).await;
        let (caller, arrival) = (caller.clone(), *arrival);
        asked.spawn(async move { (number, ask(caller, address, arrival, start, manners).await) });
    }
    let mut ended = vec![How::Lost; arrivals.len()];
    let last = arrivals.last().map_or(Duration::ZERO, |arrival| arrival.at);
    while let Ok(Some(one)) = timeout_at(start + last + manners.rest, asked.join_next()).await {
        if let Ok((number, how)) = one {
            ended[number] = how;
        }
    }
    asked.abort_all();
    ended
}

async fn ask(caller: Caller, address: SocketAddr, arrival: Arrival, start: Instant, manners: Manners) -> How {
    let due = start + arrival.at;
    let uri = format!("http://{address}/{}", if arrival.is_odd { "?odd" } else { "" });
    let mut request = Request::get(uri);
    if manners.told {
        request = request.header(TIME_LEFT, manners.patience.as_millis().to_string());
    }
    let Ok(request) = request.body(Empty::new()) else { return How::Lost };
    let answered = async {
        let response = caller.oneshot(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        Ok::<_, BoxError>(status)
    };
    match timeout_at(due + manners.patience, answered).await {
        Ok(Ok(StatusCode::OK)) => How::Answered(due.elapsed()),
        Ok(Ok(StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)) => How::Refused,
        Ok(Err(error)) if is_refusal(&error) => How::Refused,
        _ => How::Lost,
    }
}

/// Says whether a layer of the client refused the call without making it.
fn is_refusal(error: &BoxError) -> bool {
    error.is::<Overloaded>()
        || Refused::of_error(error)
            .is_some_and(|refused| matches!(refused.cause, RefusalCause::Concurrency(_)))
}
