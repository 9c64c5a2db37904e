//! The HTTP door for its fuzz target: answers requests without a connection.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use axum::body::Body;
use http::{Request, StatusCode};
use tokio::runtime::Runtime;

pub use super::forward_auth::fuzzing::{ForwardAuthDoor, MAX_ATTRIBUTES};
use super::{HttpDoor, Serves};
use crate::connections::Handler as _;
use crate::fuzzed_app;
use crate::options::ServerOptions;

/// The most bytes read from an answer, more than any answer to a fuzzed request has.
const LONGEST: usize = 16 << 20;

/// An HTTP door without connections.
pub struct ApiDoor {
    runtime: Runtime,
    door: HttpDoor,
}

impl fmt::Debug for ApiDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiDoor").finish_non_exhaustive()
    }
}

/// An answer of the door.
#[derive(Clone, Debug)]
pub struct ApiAnswer {
    /// Its status.
    pub status: StatusCode,
    /// Its `content-type`; empty if it has none.
    pub content_type: String,
    /// Its body.
    pub body: Vec<u8>,
}

impl ApiDoor {
    /// Makes a door with the policies of this file.
    ///
    /// # Panics
    /// If the file has errors.
    #[must_use]
    pub fn new(policies: &str) -> Self {
        let runtime = fuzzed_app::runtime();
        let app = runtime.block_on(fuzzed_app::app(policies, ServerOptions::default().clock));
        Self { runtime, door: HttpDoor::new(app, Serves::All, false) }
    }

    /// Answers a request as if it came from this machine. Answers that never end are not waited for: `/v1/events` has
    /// an empty body here.
    ///
    /// # Panics
    /// If the body of the answer cannot be read.
    #[must_use]
    pub fn answer(&self, request: Request<Vec<u8>>) -> ApiAnswer {
        let endless = request.uri().path() == "/v1/events";
        let (request, here) = (request.map(Body::from), SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        self.runtime.block_on(async {
            let (parts, body) = self.door.answer(request, here).await.into_parts();
            let body = match endless && parts.status == StatusCode::OK {
                true => Vec::new(),
                false => {
                    axum::body::to_bytes(body, LONGEST).await.expect("an answer has its bounds").to_vec()
                }
            };
            let content_type = parts.headers.get(http::header::CONTENT_TYPE);
            let content_type =
                content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            ApiAnswer { status: parts.status, content_type, body }
        })
    }
}
