//! The HTTP door: JSON checks, sub-requests of forward-auth, and operations.
//!
//! [`routes`] lists the paths and their scopes. They are matched by hand, the most frequent first: a check passes no
//! router, and its future is small.

mod answer;
mod breakers;
mod check;
mod events;
mod explain;
mod forward_auth;
mod inside;
mod keys;
mod lab;
mod openapi;
mod operations;
mod pages;
mod policies;
mod policy_keys;
mod request_body;
mod routes;
mod settle;
mod switches;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use http::{Method, Request, Uri};
use serde_json::json;
use tidegate::visible;

#[cfg(feature = "grpc")]
pub(crate) use self::answer::mode;
pub(crate) use self::inside::InsideDoor;
pub use self::policies::describe_policy;
pub(crate) use self::routes::Serves;
use self::routes::{Query, Route};
use crate::app::App;
use crate::auth::Scope;
use crate::body::{Body, Response};
use crate::connections::{Handler, grpc_at_http, is_grpc};
use crate::decider::Want;
use crate::metrics::{CutReason, Transport};
use crate::otlp::CallEnd;
use crate::problem::{Delayed, Problem, WRONG_TOKEN};
use crate::uncovered_requests::Misdirected;

/// The HTTP door of one server.
#[derive(Debug)]
pub(crate) struct HttpDoor {
    app: Arc<App>,
    serves: Serves,
    /// Whether its connections are encrypted; then browsers have verified the server's name.
    encrypted: bool,
}

impl HttpDoor {
    pub(crate) fn new(app: Arc<App>, serves: Serves, encrypted: bool) -> Self {
        Self { app, serves, encrypted }
    }
}

impl Handler for HttpDoor {
    async fn answer(&self, request: Request<Body>, peer: SocketAddr) -> Response {
        let _in_flight = self.app.begin_request(Transport::http);
        let span = self.app.spans.as_ref().and_then(|spans| spans.http(&request));
        let mut answering = pin!(route(self, request, peer));
        let answered = match span {
            None => answering.await,
            Some(span) => span.around(answering.as_mut(), ended).await,
        };
        answered.unwrap_or_else(Problem::into_response)
    }

    /// The paths of health, metrics and reload are.
    fn is_operational(path: &str) -> bool {
        matches!(path, "/livez" | "/readyz" | "/healthz" | "/metrics" | "/v1/reload")
    }

    fn misdirected(&self) {
        self.app.decider.telemetry.misdirected(&Misdirected::GrpcAtHttp);
    }

    fn connection_cut(&self, reason: CutReason) {
        self.app.decider.metrics.connection_cut(reason);
    }
}

/// Returns how a request was answered, for its tracing span.
fn ended(answered: &Result<Response, Problem>) -> CallEnd {
    CallEnd::Http(answered.as_ref().map_or_else(Problem::status, Response::status).as_u16())
}

async fn route(door: &HttpDoor, mut request: Request<Body>, peer: SocketAddr) -> Result<Response, Problem> {
    let app = &door.app;
    let found = Route::of(request.method(), request.uri().path());
    if found.is_err() && pages::are_meant(app, door.serves, &request) {
        return Ok(pages::redirect());
    }
    if found.is_err() && is_grpc(&request) {
        app.decider.telemetry.misdirected(&Misdirected::GrpcAtHttp);
        return Ok(grpc_at_http());
    }
    match &found {
        Ok(Route { required_scope: None, .. }) => {}
        // Nothing is there to be protected from a web page, and a proxy's sub-request may have any `Host`.
        Err(_) if !app.access.needs_token() => {}
        found => authorize(door, &request, found.as_ref().ok().copied())?,
    }
    let found = match found {
        Ok(found) => found,
        Err(problem) if is_sub_request(app, &request) => {
            app.decider.telemetry.misdirected(&Misdirected::SubRequestElsewhere);
            let detail = format!("{}; sub-requests of a proxy go to /v1/forward-auth", problem.detail());
            return Err(problem.saying(detail));
        }
        Err(problem) => return Err(problem),
    };
    door.serves.has(found).inspect_err(|_| {
        // nginx makes a 500 of the 404, and its log does not say why.
        if found.path == "/v1/forward-auth" && is_sub_request(app, &request) {
            app.decider.telemetry.misdirected(&Misdirected::SubRequestAtAdmin);
        }
    })?;
    if request.uri().query().is_some() && found.reads_the_body_alone() {
        Query::none(request.uri())?;
    }
    match found.path {
        "/v1/check" => check::check(app, request, Want::Take).await,
        "/v1/forward-auth" => forward_auth::forward_auth(app, request, peer).await,
        // Boxed: otherwise a check would reserve space for it, and the future of each request is moved several
        // times.
        _ => {
            if found.path == routes::UI {
                let from = app.decider.live().proxy.caller_of(request.headers(), peer.ip());
                request.extensions_mut().insert(SocketAddr::new(from, peer.port()));
            }
            Box::pin(async {
                let change = Change::of(app, found, &request);
                let answered = seldom(door, found, request).await;
                if let Some(change) = change {
                    change.tell(app, &answered);
                }
                answered
            })
            .await
        }
    }
}

/// A request that needs the scope `admin`: it changes something for others.
struct Change {
    /// The name of the caller's token, if one is needed.
    token: Option<Box<str>>,
    method: Method,
    path: String,
}

impl Change {
    fn of(app: &App, found: &Route, request: &Request<Body>) -> Option<Self> {
        if found.required_scope != Some(Scope::Admin) {
            return None;
        }
        // Without the query, which has callers' keys.
        let path = request.uri().path().to_owned();
        Some(Self { token: app.access.name_of(request.headers()), method: request.method().clone(), path })
    }

    /// Tells the log and the listeners of events who asked for a change, and whether it was made.
    fn tell(&self, app: &App, answered: &Result<Response, Problem>) {
        let Self { token, method, path } = self;
        let status = answered.as_ref().map_or_else(Problem::status, Response::status).as_u16();
        let (token, path) = (token.as_deref(), visible::line(path));
        tracing::info!(token, %method, path = &*path, status, "a change through the API");
        app.decider.events.publish(
            "change",
            || json!({ "token": token, "method": method.as_str(), "path": path, "status": status }),
        );
    }
}

async fn seldom(door: &HttpDoor, found: &Route, request: Request<Body>) -> Result<Response, Problem> {
    let HttpDoor { app, serves, encrypted } = door;
    let uri = request.uri().clone();
    let method = request.method().clone();
    let path = uri.path();
    // Pages that take long to make; those that ask an engine take no turn, since it may be slow.
    let _turn = match found.path {
        "/metrics" | "/v1/policies" | "/v1/keys/top" => app.first_long_turn().await?,
        _ => None,
    };
    match found.path {
        "/v1/settle" => settle::settle(app, request).await,
        "/v1/check/batch" => check::batch(app, request).await,
        "/v1/peek" => check::check(app, request, Want::Peek).await,
        "/v1/extend" => settle::extend(app, request).await,
        "/livez" => Ok(operations::livez()),
        "/readyz" | "/healthz" => {
            let mut guessed = false;
            let may_read = || *serves != Serves::Decisions && reads(app, &request, *encrypted, &mut guessed);
            let mut answer = operations::readyz(app, &uri, may_read)?;
            if guessed {
                answer.extensions_mut().insert(Delayed(WRONG_TOKEN));
            }
            Ok(answer)
        }
        "/metrics" => Ok(operations::metrics(app, request.headers())),
        "/v1/explain" => explain::explain(app, request).await,
        "/v1/policies" => Ok(policies::list(app, &request)),
        "/v1/dry-run" => check::dry_run(app, request).await,
        "/v1/policies/{name}" if matches!(method, Method::PUT | Method::DELETE) => {
            policies::change(app, request, named(path)).await
        }
        "/v1/policies/{name}" => policies::one(app, &request, named(path)),
        "/v1/canaries/{name}" => policies::set_canary(app, request, named(path)).await,
        "/v1/breakers" => breakers::list(app, &uri).await,
        "/v1/breakers/{name}" if method == Method::PUT => breakers::put(app, request, named(path)).await,
        "/v1/breakers/{name}" => breakers::one(app, &uri, named(path)).await,
        "/v1/keys" if method == Method::PUT => policy_keys::block_everywhere(app, request).await,
        "/v1/keys" => policy_keys::list_everywhere(app, &uri),
        "/v1/keys/top" => keys::top(app, &request),
        "/v1/keys/{name}" if method == Method::DELETE => {
            let token = app.access.name_of(request.headers()).unwrap_or_default();
            keys::reset(app, &uri, &token, named(path)).await
        }
        "/v1/keys/{name}" if method == Method::PUT => policy_keys::block(app, request, named(path)).await,
        "/v1/keys/{name}" => policy_keys::list(app, &uri, named(path)).await,
        "/v1/events" => events::listen(app, request, found.required_scope, *encrypted),
        "/v1/live" => events::live(app, request, found.required_scope, *encrypted),
        "/v1/alerts" if method == Method::POST => pages::act(app, request).await,
        "/v1/overview" | "/v1/history" | "/v1/changes" | "/v1/busiest" | "/v1/alerts" => {
            pages::read(app, &uri).await
        }
        "/v1/lab" => lab::try_limit(app, request).await,
        routes::UI => pages::page(app, request, *encrypted).await,
        "/v1/signals" => Ok(switches::list_signals(app)),
        "/v1/signals/{name}" => switches::report(app, request).await,
        "/v1/switches" => Ok(switches::list(app)),
        "/v1/switches/{name}" => switches::put(app, request, named(path)).await,
        "/v1/drain" => Ok(operations::drain(app, &method, request.headers())),
        "/v1/reload" => operations::reload(app, request.headers()).await,
        "/v1/backup" => operations::back_up(app).await,
        "/version" => Ok(operations::version()),
        "/config.schema.json" => Ok(operations::schema()),
        "/openapi.json" => Ok(openapi::openapi()),
        path => Err(Problem::not_found(format!("{path} is planned but does not exist yet"))),
    }
}

/// Returns whether a request at a wrong path or with a wrong method is probably a proxy's sub-request: it looks
/// where people look for a decision, or describes an original request.
fn is_sub_request(app: &App, request: &Request<Body>) -> bool {
    const ORIGINAL: [&str; 4] = ["x-original-uri", "x-original-url", "x-original-method", "x-forwarded-uri"];
    let (path, headers) = (request.uri().path(), request.headers());
    let of_family =
        || app.decider.live().proxy.original.iter().flatten().any(|name| headers.contains_key(name));
    request.method() != Method::POST
        && (path == "/v1/check"
            || path.contains("auth")
            || ORIGINAL.iter().any(|name| headers.contains_key(*name))
            || of_family())
}

/// Checks that the caller has the route's scope. Counts and tells callers that have not.
fn authorize(door: &HttpDoor, request: &Request<Body>, found: Option<&Route>) -> Result<(), Problem> {
    let required = found.and_then(|route| route.required_scope);
    let app = &door.app;
    // The `Host` and `Origin` of a sub-request come from the proxy's caller and prove nothing.
    if !app.access.needs_token() && request.uri().path() == "/v1/forward-auth" {
        return Ok(());
    }
    let authorized = app.access.authorize(request.headers(), required, door.encrypted).and_then(|()| {
        let reveals = required == Some(Scope::Read) && asks_to_reveal(request.uri());
        if reveals {
            app.access.authorize(request.headers(), Some(Scope::Keys), door.encrypted)
        } else {
            Ok(())
        }
    });
    if let Err(problem) = &authorized
        && app.access.needs_token()
    {
        app.decider.metrics.auth_failed(Transport::http);
        // Proxies and programs may let such a request pass, or refuse it as if it were over a limit.
        if let Some(route) = found.filter(|route| route.required_scope == Some(Scope::Check)) {
            let why = Misdirected::NoToken(route.path, problem.detail().to_owned());
            app.decider.live().unmet.note_misdirected(&why, None);
        }
    }
    authorized
}

/// Returns whether a request asks for the names of keys; also if the value of `reveal` cannot be read.
fn asks_to_reveal(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    !query.is_empty() && pairs.any(|(name, value)| name == "reveal" && !matches!(&*value, "false" | "0"))
}

/// Returns whether the caller of a path for everybody may read what is not for everybody. Counts a wrong token, and
/// sets `guessed`: at full speed the answer would tell which tokens are right.
fn reads(app: &App, request: &Request<Body>, encrypted: bool, guessed: &mut bool) -> bool {
    let authorized = app.access.authorize(request.headers(), Some(Scope::Metrics), encrypted);
    *guessed = authorized.as_ref().is_err_and(Problem::is_guess);
    if *guessed {
        app.decider.metrics.auth_failed(Transport::http);
    }
    authorized.is_ok()
}

/// Returns the `{name}` in a path of that form.
fn named(path: &str) -> &str {
    path.splitn(4, '/').nth(3).unwrap_or_default()
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    //! The HTTP door without connections, for its fuzz target.

    use std::fmt;
    use std::net::{Ipv4Addr, SocketAddr};

    use http::{Request, Response, StatusCode};
    use http_body_util::{BodyExt as _, Limited};
    use tokio::runtime::Runtime;

    pub use super::forward_auth::fuzzing::ForwardAuthDoor;
    use super::{HttpDoor, Serves};
    use crate::app::fuzzed;
    use crate::body;
    use crate::connections::Handler as _;
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

    impl ApiDoor {
        /// Makes a door with the policies of this file.
        ///
        /// # Panics
        /// If the file has errors.
        #[must_use]
        pub fn new(policies: &str) -> Self {
            let runtime = fuzzed::runtime();
            let app = runtime.block_on(fuzzed::app(policies, ServerOptions::default().clock));
            Self { runtime, door: HttpDoor::new(app, Serves::All, false) }
        }

        /// Answers a request as if it came from this machine. An endless answer (`/v1/events`, `/v1/live`) has an
        /// empty body here.
        ///
        /// # Panics
        /// If the body of the answer cannot be read.
        #[must_use]
        pub fn answer(&self, request: Request<Vec<u8>>) -> Response<Vec<u8>> {
            let endless = matches!(request.uri().path(), "/v1/events" | "/v1/live");
            let (request, here) = (request.map(body::whole), SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
            self.runtime.block_on(async {
                let (parts, body) = self.door.answer(request, here).await.into_parts();
                let body = match endless && parts.status == StatusCode::OK {
                    true => Vec::new(),
                    false => {
                        let read = Limited::new(body, LONGEST).collect().await;
                        read.expect("an answer has its bounds").to_bytes().to_vec()
                    }
                };
                Response::from_parts(parts, body)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The future of a request is moved several times before it runs. When it had space for everything that is rarely
    /// asked, it took 25 KiB, and moving it took a sixth of all instructions of a check.
    #[test]
    fn the_future_of_a_request_is_small() {
        fn size<'a, F>(_: impl Fn(&'a HttpDoor, Request<Body>, SocketAddr) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(HttpDoor::answer);
        assert!(bytes <= 4096, "{bytes}");
    }
}
