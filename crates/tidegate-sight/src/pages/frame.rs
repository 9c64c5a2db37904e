//! What all pages share: what a page knows of its request, and the frame around it.
//!
//! A page returns the contents of `main`, beginning with its `h1`; the router puts the frame around it. Values come from
//! the server's own paths, as JSON. Names and texts in them are hostile: maud escapes, and [`name`] cuts what is long
//! and shows what is invisible.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use maud::{DOCTYPE, Markup, html};
use parking_lot::Mutex;
use serde_json::Value;
use tidegate_server::Inside;

pub(crate) use super::picture::{chart, sparkline};
pub(crate) use super::words::{
    Mark, ago, columns, command, count, cut, limit_of, limit_words, list, mark, moment, name, nanos, num,
    number, percent, policy_path, seconds_of, segment, span, stale, text, url,
};

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
    caller: Caller<'a>,
    /// Where the caller reached the server: `http://127.0.0.1:8081`.
    address: &'a str,
    inside: &'a dyn Inside,
    known: &'a KnownPolicies,
    /// What the frame shows of the server, from the last overview that was asked for.
    state: Mutex<Option<State>>,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a str,
    pub(crate) query: &'a [(String, String)],
    pub(crate) fields: &'a [(String, String)],
    pub(crate) now: u64,
    pub(crate) address: &'a str,
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

/// The words of all policies, by name, and the number of the configuration that they are of.
pub(crate) type KnownPolicies = Mutex<(Option<u64>, Arc<HashMap<String, PolicyWords>>)>;

/// What the head of a page shows of the server.
#[derive(Clone, Debug, Default)]
struct State {
    configuration: Option<u64>,
    store: String,
    away: Option<String>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        asked: Asked<'a>,
        caller: Caller<'a>,
        inside: &'a dyn Inside,
        known: &'a KnownPolicies,
    ) -> Self {
        let Asked { path, query, fields, now, address } = asked;
        Self { path, query, fields, now, caller, address, inside, known, state: Mutex::new(None) }
    }

    /// Where the caller reached the server: `http://127.0.0.1:8081`.
    pub(crate) fn address(&self) -> &'a str {
        self.address
    }

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

    /// Returns what forms carry in the field `form`.
    pub(crate) fn form_token(&self) -> &'a str {
        self.caller.form_token
    }

    /// The hidden field that each form begins with.
    pub(crate) fn form_field(&self) -> Markup {
        html! { input type="hidden" name="form" value=(self.form_token()); }
    }

    /// Asks the server (`/v1/…`) with the caller's token.
    ///
    /// # Errors
    /// [`PageError`] of the server's problem, or if the answer is not JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, PageError> {
        let value = self.ask(Method::GET, path, Bytes::new()).await?;
        if path.starts_with("/v1/overview") {
            *self.state.lock() = Some(State::of(&value));
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
        ask(self.inside, self.caller.token, method, path, body).await
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
            if configuration.is_some() && known.0 == configuration {
                return Ok(Arc::clone(&known.1));
            }
        }
        let listed = self.get("/v1/policies").await?;
        let words = |policy: &Value| {
            let words = PolicyWords { mode: text(&policy["mode"]).to_owned(), limit: limit_words(policy) };
            (text(&policy["name"]).to_owned(), words)
        };
        let policies: Arc<HashMap<_, _>> = Arc::new(list(&listed["policies"]).iter().map(words).collect());
        *self.known.lock() = (listed["config"]["number"].as_u64(), Arc::clone(&policies));
        Ok(policies)
    }

    /// Learns what the head of a page shows, unless the page has asked already.
    pub(crate) async fn learn_state(&self) {
        if self.state.lock().is_none() {
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
    inside: &dyn Inside,
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
    let (parts, body) = inside.ask(request).await.into_parts();
    let value = serde_json::from_slice::<Value>(&body);
    if !parts.status.is_success() {
        return Err(PageError::of(parts.status, &value.unwrap_or_default()));
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

impl State {
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
}

impl PageError {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self(Box::new(ErrorParts { status, detail, scope: None, lines: Vec::new() }))
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
        }))
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What happened and what to do, as the contents of `main`.
    pub(crate) fn markup(&self) -> Markup {
        let ErrorParts { status, detail, scope, lines } = &*self.0;
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

/// The pages in the navigation: path, word, and the key behind `g`.
pub(crate) const PAGES: [(&str, &str, &str); 7] = [
    ("/ui/", "Now", "n"),
    ("/ui/policies", "Policies", "p"),
    ("/ui/keys", "Keys", "k"),
    ("/ui/why", "Why", "w"),
    ("/ui/guards", "Guards", "u"),
    ("/ui/alerts", "Alerts", "a"),
    ("/ui/changes", "Changes", "c"),
];

/// How a page is framed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    /// The path in the navigation that the page belongs to.
    pub(crate) section: &'a str,
    /// Whether the page reads itself again every ten seconds where scripts are off.
    pub(crate) renews: bool,
    /// `dark` or `light`; `None`: as the system says.
    pub(crate) theme: Option<&'a str>,
    /// Whether the navigation is shown: not before a login.
    pub(crate) navigates: bool,
}

impl Context<'_> {
    /// Puts the frame around the contents of `main`.
    pub(crate) fn page(&self, frame: Frame<'_>, main: &Markup) -> String {
        let state = self.state.lock().clone();
        let markup = html! {
            (DOCTYPE)
            html lang="en" data-theme=[frame.theme] {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    meta name="color-scheme" content="light dark";
                    title { (frame.title) " · tidegate" }
                    link rel="stylesheet" href="/ui/ui.css";
                    @if frame.navigates { script type="module" src="/ui/live.js" {} }
                    @if frame.renews { noscript { meta http-equiv="refresh" content="10"; } }
                }
                body {
                    a class="skip" href="#main" { "Skip to the contents" }
                    header {
                        a class="brand" href="/ui/" { "tidegate" }
                        @if frame.navigates {
                            nav aria-label="Pages" { ul {
                                @for (path, word, key) in PAGES {
                                    li { a href=(path) data-key=(key) aria-current=[(path == frame.section).then_some("page")] { (word) } }
                                }
                            } }
                        }
                        (self.head(frame, state.as_ref()))
                    }
                    main id="main" tabindex="-1" { (main) }
                    @if frame.navigates {
                        footer tabindex="-1" {
                            p class="quiet" { "Times are UTC. Keys: " kbd { "g" } " then "
                                @for (at, (_, word, key)) in PAGES.iter().enumerate() {
                                    @if at > 0 { ", " } kbd { (key) } " " (word)
                                }
                                "; " kbd { "/" } " search; " kbd { "?" } " this line." }
                        }
                    }
                }
            }
        };
        markup.into_string()
    }

    fn head(&self, frame: Frame<'_>, state: Option<&State>) -> Markup {
        let (other, word) = if frame.theme == Some("dark") { ("light", "light") } else { ("dark", "dark") };
        html! {
            ul class="state" {
                @if let Some(State { configuration, store, away }) = state {
                    @if let Some(number) = configuration { li { a href="/ui/changes" { "config #" (number) } } }
                    li data-live="store" {
                        @match away {
                            None => { (mark(Mark::Usual)) " store " (cut(store, 40)) " ok" },
                            Some(why) => strong class="bad" title=(cut(why, 500)) {
                                (mark(Mark::Trouble)) " store " (cut(store, 40)) " away"
                            },
                        }
                    }
                }
                @if frame.navigates {
                    li id="fresh" class="quiet" { "as of " (moment(self.now, self.now)) }
                    @if self.caller.token.is_some() {
                        li {
                            form method="post" action="/ui/logout" class="inline" {
                                (self.form_field())
                                @if self.caller.name.is_empty() { "logged in " } @else { (cut(self.caller.name, 64)) " " }
                                button { "Log out" }
                            }
                        }
                    } @else { li { "no login needed" } }
                }
                li { a href=(with_theme(self.path, self.query, other)) rel="nofollow" { (word) " theme" } }
            }
        }
    }
}

fn with_theme(path: &str, query: &[(String, String)], theme: &str) -> String {
    let kept = query.iter().filter(|(name, _)| name != "theme");
    let mut pairs: Vec<(&str, &str)> = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    pairs.push(("theme", theme));
    url(path, &pairs)
}

/// A server with answers that are given, for tests of pages.
#[cfg(test)]
pub(crate) mod canned {
    use std::pin::Pin;

    use http::Response;

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

        /// A context for a page, for a caller that may do everything.
        pub(crate) fn context<'a>(
            &'a self,
            path: &'a str,
            query: &'a [(String, String)],
            fields: &'a [(String, String)],
        ) -> Context<'a> {
            let caller = Caller { token: None, name: "", scopes: None, form_token: "form-secret" };
            let asked = Asked { path, query, fields, now: NOW, address: "http://127.0.0.1:8081" };
            Context::new(asked, caller, self, &self.known)
        }
    }

    /// 2027-01-15 08:00:00 UTC.
    pub(crate) const NOW: u64 = 1_800_000_000;

    impl Inside for Canned {
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
