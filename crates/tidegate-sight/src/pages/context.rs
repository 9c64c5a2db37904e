//! What a page knows of its request, how it asks the server, and why it cannot be shown.
//!
//! Values come from the server's own paths, as JSON. Names and texts in them are hostile: maud escapes, and
//! [`name`](super::words::name) cuts what is long and shows what is invisible.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use maud::{Markup, html};
use parking_lot::Mutex;
use serde_json::Value;
use tidegate_server::WatchedServer;

use super::words::{Mark, cut, limit_words, list, mark, text};

/// What a page knows of its request, and how it asks the server.
///
/// ```text
/// pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError>;      // contents of `main`, with the h1
/// pub(crate) async fn post(ctx: &Context<'_>) -> Result<String, PageError>;      // where to go on: "/ui/…"
/// ```
///
/// A form is `form method="post" action=(ctx.path) { (ctx.form_field()) … }`; its fields are read by [`Context::field`].
/// What protects against other sites' forms is checked before `post` is called.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The path of the page, as it was asked for.
    pub(crate) path: &'a str,
    /// The parameters of the URL, decoded.
    pub(crate) query: &'a [(String, String)],
    /// The fields of the form that was sent, decoded; empty for a page.
    pub(crate) fields: &'a [(String, String)],
    /// Now, in seconds since 1970.
    pub(crate) now: u64,
    pub(crate) caller: Caller<'a>,
    /// Where the caller reached the server: `http://127.0.0.1:8081`.
    pub(crate) address: &'a str,
    pub(crate) server: &'a dyn WatchedServer,
    pub(crate) known: &'a KnownPolicies,
    /// From the last overview that was asked for.
    pub(crate) head: Mutex<Option<Head>>,
}

/// Who asks for a page. `Debug` shows no secret.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The token; `None`: the server needs none.
    pub(crate) token: Option<&'a str>,
    /// The name of the token, if it is known.
    pub(crate) name: &'a str,
    /// The words of its scopes; `None`: all.
    pub(crate) scopes: Option<&'a [&'static str]>,
    /// The secret that its forms carry.
    pub(crate) form_token: &'a str,
}

impl fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// What is known of a policy as long as a configuration is in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyWords {
    /// `enforce`, `shadow` or `off`.
    pub(crate) mode: String,
    /// Its limits in the words of the file.
    pub(crate) limit: String,
}

/// The words of all policies as of one configuration.
pub(crate) type KnownPolicies = Mutex<WordsOfAll>;

#[derive(Debug, Default)]
pub(crate) struct WordsOfAll {
    configuration: Option<u64>,
    by_name: Arc<HashMap<String, PolicyWords>>,
}

/// What the head of a page shows of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub(crate) configuration: Option<u64>,
    pub(crate) store: String,
    pub(crate) away: Option<String>,
}

impl<'a> Context<'a> {
    /// Whether the server needs tokens.
    pub(crate) fn needs_token(&self) -> bool {
        self.caller.token.is_some()
    }

    /// Returns a parameter of the URL. An empty one counts as absent.
    pub(crate) fn param(&self, name: &str) -> Option<&'a str> {
        first(self.query, name)
    }

    /// Returns a field of the form that was sent, without blanks around it. An empty one counts as absent.
    pub(crate) fn field(&self, name: &str) -> Option<&'a str> {
        first(self.fields, name)
    }

    /// Returns whether the caller's token has a scope (`read`, `keys`, `admin`), so that its links and forms are worth
    /// showing. The server decides again.
    pub(crate) fn may(&self, scope: &str) -> bool {
        self.caller.scopes.is_none_or(|scopes| scopes.contains(&scope))
    }

    /// The parameter that asks for names of keys, if the caller may see them.
    pub(crate) fn reveal(&self) -> Option<(&'static str, &'static str)> {
        self.may("keys").then_some(("reveal", "true"))
    }

    /// The hidden field that each form begins with.
    pub(crate) fn form_field(&self) -> Markup {
        html! { input type="hidden" name="form" value=(self.caller.form_token); }
    }

    /// Asks the server (`/v1/…`) with the caller's token.
    ///
    /// # Errors
    /// [`PageError`] of the server's problem, or if the answer is not JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, PageError> {
        let value = self.ask(Method::GET, path, Bytes::new()).await?;
        if path.starts_with("/v1/overview") {
            *self.head.lock() = Some(Head::of(&value));
        }
        Ok(value)
    }

    /// Sends a change to the server with the caller's token. A body of `null` sends none. An answer without a body is
    /// `null`.
    ///
    /// # Errors
    /// [`PageError`] of the server's problem, or if the answer is not JSON.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, PageError> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.ask(method, path, body).await
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Value, PageError> {
        ask(self.server, self.caller.token, method, path, body).await
    }

    /// Returns the words of all policies. They are asked for once for each configuration.
    ///
    /// # Errors
    /// As [`Context::get`].
    pub(crate) async fn policies(
        &self,
        configuration: Option<u64>,
    ) -> Result<Arc<HashMap<String, PolicyWords>>, PageError> {
        {
            let known = self.known.lock();
            if configuration.is_some() && known.configuration == configuration {
                return Ok(Arc::clone(&known.by_name));
            }
        }
        let listed = self.get("/v1/policies").await?;
        let words = |policy: &Value| {
            let words = PolicyWords { mode: text(&policy["mode"]).to_owned(), limit: limit_words(policy) };
            (text(&policy["name"]).to_owned(), words)
        };
        let by_name: Arc<HashMap<_, _>> = Arc::new(list(&listed["policies"]).iter().map(words).collect());
        let configuration = listed["config"]["number"].as_u64();
        *self.known.lock() = WordsOfAll { configuration, by_name: Arc::clone(&by_name) };
        Ok(by_name)
    }

    /// Learns what the head of a page shows, unless the page has asked already.
    pub(crate) async fn learn_head(&self) {
        if self.head.lock().is_none() {
            // The page is shown without it too.
            let _ = self.get("/v1/overview?w=1m").await;
        }
    }
}

/// Asks one of the server's own paths.
///
/// # Errors
/// [`PageError`] of the server's problem, or if the answer is not JSON.
pub(crate) async fn ask(
    server: &dyn WatchedServer,
    token: Option<&str>,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Value, PageError> {
    let mut request = Request::builder().method(method).uri(path);
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(body).map_err(|_| PageError::bad("this address cannot be read"))?;
    let (parts, body) = server.ask(request).await.into_parts();
    let value = serde_json::from_slice::<Value>(&body);
    if !parts.status.is_success() {
        let mut error = PageError::of(parts.status, &value.unwrap_or_default());
        error.0.retry_after = parts.headers.get(RETRY_AFTER).cloned();
        return Err(error);
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    value.map_err(|_| PageError::new(StatusCode::BAD_GATEWAY, "the server's answer could not be read"))
}

fn first<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let (_, value) = pairs.iter().find(|(have, _)| have == name)?;
    let value = value.trim();
    (!value.is_empty()).then_some(value)
}

impl Head {
    fn of(overview: &Value) -> Self {
        Self {
            configuration: overview["configuration"]["number"].as_u64(),
            store: text(&overview["store"]["kind"]).to_owned(),
            away: overview["store"]["away"].as_str().map(str::to_owned),
        }
    }
}

/// Why a page cannot be shown, or a form had no effect.
#[derive(Clone, Debug)]
pub(crate) struct PageError(Box<ErrorParts>);

#[derive(Clone, Debug)]
struct ErrorParts {
    status: StatusCode,
    detail: String,
    scope: Option<String>,
    lines: Vec<String>,
    retry_after: Option<HeaderValue>,
}

impl PageError {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self(Box::new(ErrorParts { status, detail, scope: None, lines: Vec::new(), retry_after: None }))
    }

    /// 400: the URL or the form says something that is not possible.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Reads a problem of the server (RFC 9457).
    fn of(status: StatusCode, problem: &Value) -> Self {
        let detail =
            problem["detail"].as_str().unwrap_or_else(|| status.canonical_reason().unwrap_or("error"));
        let lines = problem["diagnostics"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self(Box::new(ErrorParts {
            status,
            detail: detail.to_owned(),
            scope: problem["scope"].as_str().map(str::to_owned),
            lines: lines.iter().filter_map(Value::as_str).map(str::to_owned).take(50).collect(),
            retry_after: None,
        }))
    }

    /// The same, with the seconds after which it is worth to try again.
    pub(crate) fn after(mut self, seconds: u64) -> Self {
        self.0.retry_after = Some(seconds.into());
        self
    }

    /// Puts into the headers of an answer when it is worth to try again, if that is known.
    pub(crate) fn on<B>(&self, mut answer: Response<B>) -> Response<B> {
        if let Some(retry_after) = &self.0.retry_after {
            answer.headers_mut().insert(RETRY_AFTER, retry_after.clone());
        }
        answer
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What happened and what to do, as the contents of `main`.
    pub(crate) fn markup(&self) -> Markup {
        let ErrorParts { status, detail, scope, lines, .. } = &*self.0;
        let heading = match *status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::UNAUTHORIZED => "Please log in",
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "Something else changed it",
            status if status.is_client_error() => "That does not work",
            _ => "The server could not answer",
        };
        html! {
            h1 { (heading) }
            p role="alert" { (mark(Mark::Trouble)) " " (cut(detail, 2_000)) "." }
            @if !lines.is_empty() { ul { @for line in lines { li { code { (cut(line, 500)) } } } } }
            @if let Some(scope) = scope {
                p {
                    "This needs a token with the scope " strong { (scope) } ". "
                    a href="/ui/login" { "Log in with another token" } ", or ask whoever keeps the file of tokens."
                }
            } @else if *status == StatusCode::UNAUTHORIZED {
                p { a href="/ui/login" { "Log in" } }
            } @else if status.is_server_error() {
                p { "Nothing is known to have changed. Try again in a moment; the log of the server may say more." }
            }
            p { a href="/ui/" { "Now" } }
        }
    }
}

/// A server with answers that are given, for tests of pages.
#[cfg(test)]
pub(crate) mod canned {
    use std::pin::Pin;

    use http::Response;
    use tidegate_server::Vitals;

    use super::*;

    /// Answers a path by the first of these that it begins with: path, status, body. Others are 404.
    #[derive(Debug)]
    pub(crate) struct Canned {
        answers: Vec<(&'static str, u16, Value)>,
        /// Method, path and body of each question.
        pub(crate) asked: Mutex<Vec<(Method, String, String)>>,
        known: KnownPolicies,
    }

    impl Canned {
        pub(crate) fn new(answers: Vec<(&'static str, u16, Value)>) -> Self {
            Self { answers, asked: Mutex::default(), known: Mutex::default() }
        }

        /// A context for a page, for a caller that may only read.
        pub(crate) fn reader<'a>(&'a self, path: &'a str, query: &'a [(String, String)]) -> Context<'a> {
            let caller = Caller { token: Some("t"), name: "board", scopes: Some(&["read"]), form_token: "f" };
            Context { caller, ..self.context(path, query, &[]) }
        }

        /// A context for a page, for a caller that may do everything.
        pub(crate) fn context<'a>(
            &'a self,
            path: &'a str,
            query: &'a [(String, String)],
            fields: &'a [(String, String)],
        ) -> Context<'a> {
            let caller = Caller { token: None, name: "", scopes: None, form_token: "form-secret" };
            Context {
                path,
                query,
                fields,
                now: NOW,
                caller,
                address: "http://127.0.0.1:8081",
                server: self,
                known: &self.known,
                head: Mutex::default(),
            }
        }
    }

    /// 2027-01-15 08:00:00 UTC.
    pub(crate) const NOW: u64 = 1_800_000_000;

    impl WatchedServer for Canned {
        fn vitals(&self) -> Vitals {
            Vitals::default()
        }

        fn ask(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
            let found = self.answers.iter().find(|(begins, ..)| path.starts_with(begins));
            let (status, value) = found.map_or_else(
                || (404, serde_json::json!({ "detail": "there is nothing" })),
                |(_, status, value)| (*status, value.clone()),
            );
            let body = String::from_utf8_lossy(&body).into_owned();
            self.asked.lock().push((parts.method, path, body));
            let mut response = Response::new(Bytes::from(value.to_string()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Box::pin(async move { response })
        }
    }

    /// Pairs of a query or a form.
    pub(crate) fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}
