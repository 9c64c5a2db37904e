//! What the sight asks the server: its counts, and the paths for operators without a connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Weak;

use http::header::{COOKIE, HOST, HeaderName, HeaderValue, ORIGIN};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use tidegate::policy::Portion;

use super::{HttpDoor, Serves, route};
use crate::app::App;
use crate::body;
use crate::problem::{Delayed, Problem};
use crate::sight::{Canary, OpenBreaker, Vitals, WatchedServer};

/// The most bytes of an answer, more than any other path answers: a page of metrics with 10,000 policies.
const LONGEST: usize = 32 << 20;

/// What only a browser sends. The page has judged it.
const OF_A_BROWSER: [HeaderName; 4] =
    [COOKIE, ORIGIN, HeaderName::from_static("sec-fetch-site"), HeaderName::from_static("sec-fetch-dest")];

/// The address for operators, without a connection. The server holds the sight, so this does not hold the server.
#[derive(Debug)]
pub(crate) struct InsideDoor {
    app: Weak<App>,
    serves: Serves,
}

impl InsideDoor {
    pub(crate) fn new(app: Weak<App>, serves: Serves) -> Self {
        Self { app, serves }
    }

    async fn answer(&self, mut request: Request<Bytes>) -> Response<Bytes> {
        let path = request.uri().path();
        if matches!(path, "/v1/events" | "/v1/live") {
            let detail = "a stream is not answered as a whole; ask for /v1/overview";
            return whole(Problem::new(StatusCode::NOT_ACCEPTABLE, detail).into_response()).await;
        }
        if path.starts_with("/ui/") {
            return whole(Problem::not_found("a page does not ask for pages").into_response()).await;
        }
        let Some(app) = self.app.upgrade() else {
            return whole(Problem::unavailable("the server has stopped").into_response()).await;
        };
        let headers = request.headers_mut();
        for name in OF_A_BROWSER {
            headers.remove(name);
        }
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let door = HttpDoor::new(app, self.serves, false);
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let answered = route(&door, request.map(body::whole), here).await;
        let response = answered.unwrap_or_else(Problem::into_response);
        let delayed = response.extensions().get::<Delayed>().copied();
        if let Some(Delayed(time)) = delayed {
            tokio::time::sleep(time).await;
        }
        whole(response).await
    }
}

impl WatchedServer for InsideDoor {
    fn vitals(&self) -> Vitals {
        let Some(app) = self.app.upgrade() else { return Vitals::default() };
        let refused = app.reload.last();
        let first = refused.map(|refused| refused.diagnostics.first().cloned().unwrap_or_default());
        Vitals { refused: first, ..app.decider.vitals() }
    }

    fn open_breakers(&self) -> Vec<OpenBreaker> {
        self.app.upgrade().map(|app| app.decider.breakers.standing_open()).unwrap_or_default()
    }

    fn canaries(&self) -> Vec<Canary> {
        self.app.upgrade().map(|app| app.decider.canaries()).unwrap_or_default()
    }

    fn set_canary_share(&self, policy: &str, text: &str, share: f64) -> bool {
        let Some(app) = self.app.upgrade() else { return false };
        app.decider.live().set.set_canary_share(policy, text, Portion::of(share))
    }

    fn ask(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(self.answer(request))
    }
}

/// Reads the whole body of an answer.
async fn whole(response: body::Response) -> Response<Bytes> {
    let (parts, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let error = match frame.as_ref().map(|frame| frame.data_ref()) {
            Ok(Some(data)) if bytes.len() + data.len() <= LONGEST => {
                bytes.extend_from_slice(data);
                continue;
            }
            Ok(None) => continue,
            Ok(Some(_)) => format!("it has more than {LONGEST} bytes"),
            Err(error) => error.to_string(),
        };
        let mut failed = Response::new(Bytes::from(format!("the answer could not be read: {error}\n")));
        *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return failed;
    }
    Response::from_parts(parts, bytes.into())
}
