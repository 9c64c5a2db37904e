//! The services, each an axum server on a runtime of its own, and what protects them.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::State;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use http::{StatusCode, Uri};
use tidegate_tower::ServerStack;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{BoxError, ServiceBuilder};

/// What a service does for a request. Some requests are odd: the caller says which.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Holds one of `places` for `takes`, and an odd request for `odd`, as with a pool of connections to a database.
    Pool { places: usize, takes: Duration, odd: Duration },
    /// Waits for `takes`; an odd request blocks the thread of the server for `blocks` before that.
    Blocks { takes: Duration, blocks: Duration },
    /// Computes in a thread of its own, which goes on when the caller has gone.
    Computes { turns: u64 },
}

/// What stands before a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    None,
    /// tower's `LoadShedLayer` around its concurrency limit, with this number.
    Tower(usize),
    /// Tidegate's default, without any setting.
    Tidegate,
    /// The same with a deadline layer in the client; for clients alone.
    TidegateAndDeadline,
}

/// How long healthy work took, without the wait for it.
#[derive(Debug, Default)]
pub(crate) struct Held {
    nanoseconds: AtomicU64,
    times: AtomicU64,
}

impl Held {
    fn add(&self, took: Duration) {
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        self.times.fetch_add(1, Ordering::Relaxed);
    }

    /// The mean in seconds.
    pub(crate) fn mean(&self) -> f64 {
        let times = self.times.load(Ordering::Relaxed).max(1);
        self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9 / times as f64
    }
}

/// A running server. It stops when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) held: Arc<Held>,
    runtimes: Vec<Runtime>,
}

impl Server {
    /// Starts a service behind its protection, with a thread for each of the machine's two cores.
    pub(crate) fn start(work: Work, protection: Protection) -> Result<Self> {
        let held = Arc::new(Held::default());
        let thread = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let places = if let Work::Pool { places, .. } = work { places } else { 0 };
        let serving = Serving {
            work,
            pool: Semaphore::new(places),
            thread: thread.handle().clone(),
            held: Arc::clone(&held),
        };
        let routes = Router::new().route("/", get(serve)).with_state(Arc::new(serving));
        let mut server = Self::of(protect(routes, protection))?;
        server.held = held;
        server.runtimes.push(thread);
        Ok(server)
    }

    /// Starts a server with these routes.
    pub(crate) fn of(routes: Router) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).context("listening")?;
        let address = listener.local_addr()?;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { address, held: Arc::default(), runtimes: vec![runtime] })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for runtime in self.runtimes.drain(..) {
            runtime.shutdown_background();
        }
    }
}

/// tower's concurrency limit is the `Global` one: a `ConcurrencyLimitLayer` in a router of axum gives each connection
/// a limit of its own.
fn protect(routes: Router, protection: Protection) -> Router {
    match protection {
        Protection::None => routes,
        Protection::Tower(most) => routes.layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(|_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE }))
                .layer(LoadShedLayer::new())
                .layer(GlobalConcurrencyLimitLayer::new(most)),
        ),
        Protection::Tidegate | Protection::TidegateAndDeadline => {
            routes.layer(ServerStack::self_tuning("service"))
        }
    }
}

struct Serving {
    work: Work,
    pool: Semaphore,
    thread: Handle,
    held: Arc<Held>,
}

async fn serve(State(serving): State<Arc<Serving>>, uri: Uri) -> StatusCode {
    let is_odd = uri.query().is_some();
    match serving.work {
        Work::Pool { takes, odd, .. } => {
            let Ok(_place) = serving.pool.acquire().await else { return StatusCode::INTERNAL_SERVER_ERROR };
            let began = Instant::now();
            tokio::time::sleep(if is_odd { odd } else { takes }).await;
            if !is_odd {
                serving.held.add(began.elapsed());
            }
        }
        Work::Blocks { takes, blocks } => {
            if is_odd {
                std::thread::sleep(blocks);
            }
            tokio::time::sleep(takes).await;
        }
        Work::Computes { turns } => {
            let held = Arc::clone(&serving.held);
            let computed = serving.thread.spawn(async move {
                let began = Instant::now();
                compute(turns);
                held.add(began.elapsed());
            });
            if computed.await.is_err() {
                return StatusCode::INTERNAL_SERVER_ERROR;
            }
        }
    }
    StatusCode::OK
}

fn compute(turns: u64) {
    let mut number = 1_u64;
    for _ in 0..turns {
        number = black_box(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
}

/// Returns how many turns take this time on an idle core: by the fastest of many tries.
pub(crate) fn turns_of(time: Duration) -> u64 {
    const TURNS: u64 = 200_000;
    let tries = (0..200).map(|_| {
        let began = Instant::now();
        compute(TURNS);
        began.elapsed().as_secs_f64()
    });
    let fastest = tries.fold(f64::INFINITY, f64::min);
    (TURNS as f64 * time.as_secs_f64() / fastest) as u64
}
