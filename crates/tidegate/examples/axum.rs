//! An axum layer that answers clients that ask too often with 429, headers and a problem.
//!
//! ```sh
//! cargo run -p tidegate --features http --example axum                      # asks itself three times
//! cargo run -p tidegate --features http --example axum -- 127.0.0.1:3000    # serves: curl -i http://127.0.0.1:3000/
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tidegate::http_answer::NamedLimit;
use tidegate::{KeyedLimiter, Quota, QuotaError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The state of the layer: the limiter, and how its answers are told. Cheap to clone.
#[derive(Clone)]
struct Limits {
    limiter: KeyedLimiter,
    told: Arc<NamedLimit>,
}

impl Limits {
    fn new() -> Result<Self, QuotaError> {
        let quota = Quota::per_minute(2);
        let limiter = KeyedLimiter::new(quota, 100_000)?; // room for 100,000 live clients
        Ok(Self { limiter, told: Arc::new(NamedLimit::new("per-client", quota)?) })
    }
}

/// Asks the limiter before the handler runs, and adds the limit's state to either answer.
async fn limit(
    State(limits): State<Limits>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    // Behind a proxy all clients have the proxy's address: see `tidegate::policy::ClientIp`. A client with one IPv6
    // address has 2^64 of them: see `tidegate::policy::keyed_network`.
    let answer = limits.limiter.allow(client.ip());
    let told = limits.told.answer(&answer);
    if let Some(refusal) = told.refusal() {
        return refusal;
    }
    let mut response = next.run(request).await;
    told.write_headers(response.headers_mut());
    response
}

async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let app = Router::new()
        .route("/", get(async || "the page\n"))
        .layer(middleware::from_fn_with_state(Limits::new()?, limit));
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}

/// Requests a server's page, and returns the raw response.
async fn ask(server: SocketAddr) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut connection = TcpStream::connect(server).await?;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Serves on a free port, asks three times, and returns the answers.
pub(crate) async fn demonstrate() -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(serve(listener));
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(ask(server).await?);
    }
    serving.abort();
    Ok(answers)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    if let Some(address) = std::env::args().nth(1) {
        return serve(TcpListener::bind(address).await?).await;
    }
    for answer in demonstrate().await? {
        println!("{answer}\n");
    }
    Ok(())
}
