//! The pages under `/ui/`: what happens at the server, for people with a browser.
//!
//! Each page is complete without a script and asks only the server's own paths, as the caller. Nothing is loaded from
//! elsewhere, and no script or style stands in a page: a browser refuses both (`Content-Security-Policy`).
//!
//! Where the server needs tokens, a caller logs in with one ([`session`]); the cookie counts only here. Where it needs
//! none, the server itself has refused other origins and foreign host names. A change is a form that carries a secret of
//! its page and comes from it (`Sec-Fetch-Site`, else `Origin`). A `GET` changes nothing.

mod alerts;
mod answers;
mod changes;
mod context;
mod frame;
mod guards;
mod key;
mod keys;
mod lab;
mod now;
mod picture;
mod policy;
mod request;
mod session;
#[cfg(test)]
mod tests;
mod why;
mod words;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use maud::{Markup, html};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tidegate::Tick;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate_server::WatchedServer;
use tokio::sync::Semaphore;

use self::answers::{answer, asset, page, text, to, with_cookie, with_status};
use self::context::{Caller, Context, KnownPolicies, PageError, ask};
use self::frame::{Frame, PAGES, without_theme};
use self::request::{PageRequest, THEME_COOKIE, theme};
use self::session::{Holder, Sessions};
use self::words::{Mark, cut, mark, name, url};

const STYLE: &str = include_str!("pages/ui.css");
const SCRIPT: &str = include_str!("pages/live.js");

/// How many pages are made at once: with thousands of policies one takes a hundred mebibytes while it is made.
const AT_ONCE: usize = 4;

/// The words of scopes, as the server writes them in refusals.
const SCOPES: [&str; 5] = ["check", "read", "admin", "keys", "metrics"];

/// Answers everything below `/ui/`.
#[derive(Debug)]
pub(crate) struct Pages {
    sessions: Sessions,
    /// What forms carry before a login, and where none is needed; `None`: the system has no random bits, and no form
    /// works.
    form: Option<String>,
    known: KnownPolicies,
    /// Of callers who may see pages; others find nothing that takes long.
    turns: Semaphore,
}

/// Now, in seconds: of a clock that does not step back, and since 1970.
#[derive(Clone, Copy, Debug)]
struct Moment {
    steady: u64,
    wall: u64,
}

/// How the server was reached, and what it needs.
#[derive(Clone, Copy, Debug)]
struct Door<'a> {
    server: &'a dyn WatchedServer,
    tokens: bool,
    encrypted: bool,
    at: Moment,
}

/// The pages by their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Page {
    Now,
    Policies,
    Policy(String),
    Keys,
    Key(String),
    Why,
    Guards,
    Alerts,
    Changes,
    Lab(String),
}

impl Page {
    fn of(path: &str) -> Option<Self> {
        let named = |begin: &str| {
            let name = path.strip_prefix(begin).filter(|name| !name.is_empty())?;
            percent_decode_str(name).decode_utf8().ok().map(Cow::into_owned)
        };
        Some(match path.trim_end_matches('/') {
            "/ui" => Self::Now,
            "/ui/policies" => Self::Policies,
            "/ui/keys" => Self::Keys,
            "/ui/why" => Self::Why,
            "/ui/guards" => Self::Guards,
            "/ui/alerts" => Self::Alerts,
            "/ui/changes" => Self::Changes,
            _ => {
                return named("/ui/policies/")
                    .map(Self::Policy)
                    .or_else(|| named("/ui/keys/").map(Self::Key))
                    .or_else(|| named("/ui/lab/").map(Self::Lab));
            }
        })
    }

    /// The title, and the section of the navigation.
    fn title(&self) -> (String, &'static str) {
        match self {
            Self::Now => ("Now".to_owned(), "/ui/"),
            Self::Policies => ("Policies".to_owned(), "/ui/policies"),
            Self::Policy(name) => (format!("{} · Policies", cut(name, 60)), "/ui/policies"),
            Self::Keys => ("Keys".to_owned(), "/ui/keys"),
            Self::Key(policy) => (format!("A key of {} · Keys", cut(policy, 60)), "/ui/keys"),
            Self::Why => ("Why".to_owned(), "/ui/why"),
            Self::Guards => ("Guards".to_owned(), "/ui/guards"),
            Self::Alerts => ("Alerts".to_owned(), "/ui/alerts"),
            Self::Changes => ("Changes".to_owned(), "/ui/changes"),
            Self::Lab(policy) => (format!("{} · Lab", cut(policy, 60)), "/ui/policies"),
        }
    }

    /// Not the guards and the alerts: a page that reads itself again empties its forms.
    const fn renews(&self) -> bool {
        matches!(self, Self::Now | Self::Keys)
    }

    async fn show(&self, ctx: &Context<'_>) -> Result<Markup, PageError> {
        match self {
            Self::Now => now::page(ctx).await,
            Self::Policies => policy::all(ctx).await,
            Self::Policy(name) => policy::page(ctx, name).await,
            Self::Keys => keys::page(ctx).await,
            Self::Key(policy) => key::page(ctx, policy).await,
            Self::Why => why::page(ctx).await,
            Self::Guards => guards::page(ctx).await,
            Self::Alerts => alerts::page(ctx).await,
            Self::Changes => changes::page(ctx).await,
            Self::Lab(policy) => lab::page(ctx, policy).await,
        }
    }

    /// Does what a form says. Returns where to go on.
    async fn take(&self, ctx: &Context<'_>) -> Result<String, PageError> {
        match self {
            Self::Policy(name) => policy::post(ctx, name).await,
            Self::Key(policy) => key::post(ctx, policy).await,
            Self::Why => why::post(ctx).await,
            Self::Guards => guards::post(ctx).await,
            Self::Alerts => alerts::post(ctx).await,
            _ => Err(PageError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this page has no form that changes anything",
            )),
        }
    }
}

impl Pages {
    pub(crate) fn new() -> Self {
        Self {
            sessions: Sessions::default(),
            form: session::random(),
            known: KnownPolicies::default(),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Answers a request. `tokens`: whether the server needs tokens; `encrypted`: whether the connection is.
    pub(crate) async fn answer(
        &self,
        request: Request<Bytes>,
        server: &dyn WatchedServer,
        tokens: bool,
        encrypted: bool,
    ) -> Response<Bytes> {
        let tick = SystemClock::new().now();
        let seconds = |tick: Tick| tick.as_nanos() / 1_000_000_000;
        let at = Moment { steady: seconds(tick), wall: seconds(SystemClock::wall_time(tick)) };
        self.answer_at(request, Door { server, tokens, encrypted, at }).await
    }

    async fn answer_at(&self, request: Request<Bytes>, door: Door<'_>) -> Response<Bytes> {
        let (parts, body) = request.into_parts();
        let (is_get, path) = (matches!(parts.method, Method::GET | Method::HEAD), parts.uri.path());
        match path {
            "/ui/ui.css" if is_get => return asset(STYLE, "text/css; charset=utf-8", &parts.headers),
            "/ui/live.js" if is_get => {
                return asset(SCRIPT, "text/javascript; charset=utf-8", &parts.headers);
            }
            _ => {}
        }
        if !is_get && parts.method != Method::POST {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            return answer;
        }
        let asked = PageRequest::of(parts, &body, door.encrypted);
        if is_get
            && let Some(theme) =
                asked.query.iter().find(|(name, _)| name == "theme").and_then(|(_, of)| theme(of))
        {
            return with_theme(&asked, theme, door.encrypted);
        }
        if asked.path == "/ui/login" {
            return self.log_in(&asked, door).await;
        }
        let id = asked.cookie(session::cookie_name(door.encrypted)).filter(|_| door.tokens);
        let holder = id.and_then(|id| self.sessions.find(id, door.at.steady));
        if door.tokens && holder.is_none() {
            return self.nobody(&asked, door);
        }
        self.answer_known(&asked, door, holder.as_ref()).await
    }

    /// Answers who may see pages.
    async fn answer_known(
        &self,
        asked: &PageRequest,
        door: Door<'_>,
        holder: Option<&Arc<Holder>>,
    ) -> Response<Bytes> {
        // Never closed, so there is always a turn. What a form asks for is small, and must not wait for pages.
        let _turn = if asked.is_post { None } else { self.turns.acquire().await.ok() };
        let ctx = self.context(asked, door, holder);
        if asked.is_post
            && let Err(refused) = asked.refuse_foreign_form(ctx.caller.form_token)
        {
            return framed(asked, &ctx, "Not allowed", "", false, Err(refused)).await;
        }
        if asked.path == "/ui/logout" {
            return self.log_out(asked, &ctx, door, holder).await;
        }
        if asked.path == "/ui/overview.json" {
            return self.overview(&ctx, door, holder).await;
        }
        let Some(page) = Page::of(&asked.path) else {
            let answer = framed(asked, &ctx, "Not found", "", false, Ok(nothing(&asked.path))).await;
            return with_status(answer, StatusCode::NOT_FOUND);
        };
        let (title, section) = page.title();
        let shown = if asked.is_post {
            match page.take(&ctx).await {
                Ok(next) => return to(if next.starts_with("/ui/") { &next } else { "/ui/" }),
                Err(error) => Err(error),
            }
        } else {
            page.show(&ctx).await
        };
        if let Err(error) = &shown
            && error.status() == StatusCode::UNAUTHORIZED
            && let Some(holder) = holder
        {
            self.sessions.end(&holder.id);
            return with_cookie(self.nobody(asked, door), &session::cookie(None, door.encrypted));
        }
        framed(asked, &ctx, &title, section, page.renews(), shown).await
    }

    fn context<'a>(
        &'a self,
        asked: &'a PageRequest,
        door: Door<'a>,
        holder: Option<&'a Arc<Holder>>,
    ) -> Context<'a> {
        let caller = match holder {
            Some(holder) => Caller {
                token: Some(&holder.token),
                name: &holder.name,
                scopes: holder.scopes.as_deref(),
                form_token: &holder.form,
            },
            None => Caller {
                token: None,
                name: "",
                scopes: if door.tokens { Some(&[]) } else { None },
                form_token: self.form.as_deref().unwrap_or_default(),
            },
        };
        Context {
            path: &asked.path,
            query: &asked.query,
            fields: &asked.fields,
            now: door.at.wall,
            caller,
            address: &asked.address,
            server: door.server,
            known: &self.known,
            head: Mutex::default(),
        }
    }

    /// Shows something to a caller who is not known.
    fn alone(
        &self,
        asked: &PageRequest,
        door: Door<'_>,
        status: StatusCode,
        title: &str,
        main: &Markup,
    ) -> Response<Bytes> {
        let ctx = self.context(asked, door, None);
        let frame = Frame { title, section: "", renews: false, theme: asked.theme(), navigates: false };
        page(status, ctx.page(frame, main))
    }

    /// Answers a caller who has to log in first.
    fn nobody(&self, asked: &PageRequest, door: Door<'_>) -> Response<Bytes> {
        if asked.path == "/ui/overview.json" {
            return text(StatusCode::UNAUTHORIZED, "log in at /ui/login\n");
        }
        if asked.is_post {
            let detail = "you are not logged in any more, so nothing was done";
            let error = PageError::new(StatusCode::UNAUTHORIZED, detail);
            return self.alone(asked, door, error.status(), "Log in", &error.markup());
        }
        let back = url(&asked.path, &asked.query);
        if back == "/ui/" { to("/ui/login") } else { to(&url("/ui/login", &[("to", &back)])) }
    }

    async fn log_in(&self, asked: &PageRequest, door: Door<'_>) -> Response<Bytes> {
        if !door.tokens {
            return to("/ui/");
        }
        let pairs = if asked.is_post { &asked.fields } else { &asked.query };
        let back = pairs.iter().find(|(name, _)| name == "to").map_or("/ui/", |(_, back)| back.as_str());
        let back = if back.starts_with("/ui/") { back } else { "/ui/" };
        let form = self.form.as_deref().unwrap_or_default();
        if !asked.is_post {
            return self.alone(asked, door, StatusCode::OK, "Log in", &login_form(form, back, None));
        }
        match self.try_token(asked, door).await {
            Ok(holder) => with_cookie(to(back), &session::cookie(Some(&holder.id), door.encrypted)),
            Err(error) => {
                let main = login_form(form, back, Some(error.detail()));
                error.on(self.alone(asked, door, error.status(), "Log in", &main))
            }
        }
    }

    /// Opens a session for the token in a form, if the server accepts it.
    async fn try_token(&self, asked: &PageRequest, door: Door<'_>) -> Result<Arc<Holder>, PageError> {
        asked.refuse_foreign_form(self.form.as_deref().unwrap_or_default())?;
        self.sessions.attempt(asked.source, door.at.steady).map_err(|wait| {
            let detail = format!("too many wrong tokens were tried; try again in {wait} s");
            PageError::new(StatusCode::TOO_MANY_REQUESTS, detail).after(wait)
        })?;
        let wrong = || PageError::new(StatusCode::UNAUTHORIZED, "this token is not valid here");
        let token = asked.fields.iter().find(|(name, _)| name == "token");
        let token = token.map_or("", |(_, token)| token.trim());
        let is_one = !token.is_empty()
            && token.len() <= session::LONGEST_TOKEN
            && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_one {
            return Err(wrong());
        }
        // The server lets the answer to a wrong token wait.
        let tried = ask(door.server, Some(token), Method::GET, "/v1/overview?w=1m", Bytes::new()).await;
        if tried.as_ref().is_err_and(|error| error.status() == StatusCode::UNAUTHORIZED) {
            return Err(wrong());
        }
        self.sessions.forgive(asked.source);
        tried?;
        let (name, scopes) = holder_of(door.server, token).await;
        let before = asked.cookie(session::cookie_name(door.encrypted));
        self.sessions.open(token, name, scopes, before, door.at.steady).ok_or_else(|| {
            let detail = "the system has no random bits for a session";
            PageError::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })
    }

    async fn log_out(
        &self,
        asked: &PageRequest,
        ctx: &Context<'_>,
        door: Door<'_>,
        holder: Option<&Arc<Holder>>,
    ) -> Response<Bytes> {
        if !asked.is_post {
            let detail = "log out by the button at the top of each page";
            let error = PageError::new(StatusCode::METHOD_NOT_ALLOWED, detail);
            return framed(asked, ctx, "Log out", "", false, Err(error)).await;
        }
        if let Some(holder) = holder {
            self.sessions.end(&holder.id);
        }
        let next = if door.tokens { "/ui/login" } else { "/ui/" };
        with_cookie(to(next), &session::cookie(None, door.encrypted))
    }

    /// What `live.js` asks for.
    async fn overview(
        &self,
        ctx: &Context<'_>,
        door: Door<'_>,
        holder: Option<&Arc<Holder>>,
    ) -> Response<Bytes> {
        match now::live(ctx).await {
            Ok(value) => answer(StatusCode::OK, "application/json", value.to_string()),
            Err(error) => {
                let status = error.status();
                let answer = error.on(text(status, error.detail().to_owned()));
                match holder.filter(|_| status == StatusCode::UNAUTHORIZED) {
                    Some(holder) => {
                        self.sessions.end(&holder.id);
                        with_cookie(answer, &session::cookie(None, door.encrypted))
                    }
                    None => answer,
                }
            }
        }
    }
}

/// Puts a page, or why it cannot be shown, into the frame.
async fn framed(
    asked: &PageRequest,
    ctx: &Context<'_>,
    title: &str,
    section: &str,
    renews: bool,
    shown: Result<Markup, PageError>,
) -> Response<Bytes> {
    ctx.learn_head().await;
    let failed = shown.as_ref().err().cloned();
    let (status, main) = match shown {
        Ok(main) => (StatusCode::OK, main),
        Err(error) => (error.status(), error.markup()),
    };
    let frame = Frame {
        title,
        section,
        renews: renews && status == StatusCode::OK,
        theme: asked.theme(),
        navigates: true,
    };
    let answer = page(status, ctx.page(frame, &main));
    match failed {
        Some(error) => error.on(answer),
        None => answer,
    }
}

/// Learns the name of a token and its scopes (`None`: all) from refusals, which say both. What is asked for changes
/// nothing: there is no policy without a name.
async fn holder_of(server: &dyn WatchedServer, token: &str) -> (String, Option<Vec<&'static str>>) {
    // What is refused, and what the token can do at least if the refusal cannot be read.
    let questions = [
        (Method::PUT, "/v1/breakers/", vec!["read"]),
        (Method::GET, "/v1/busiest?by=denied&w=1m&limit=1&reveal=true", vec!["read", "admin"]),
    ];
    for (method, path, at_least) in questions {
        if let Err(refused) = ask(server, Some(token), method, path, Bytes::new()).await
            && refused.status() == StatusCode::FORBIDDEN
        {
            let (name, scopes) = read_refusal(refused.detail()).unwrap_or((String::new(), at_least));
            return (name, Some(scopes));
        }
    }
    (String::new(), None)
}

/// Reads the name and the scopes in `the token NAME has the scope A,B, and this needs C`.
fn read_refusal(detail: &str) -> Option<(String, Vec<&'static str>)> {
    let (name, rest) = detail.strip_prefix("the token ")?.split_once(" has the scope ")?;
    let (words, _) = rest.split_once(", and this needs ")?;
    let scopes = SCOPES.into_iter().filter(|scope| words.split(',').any(|word| word.trim() == *scope));
    Some((cut(name, 64), scopes.collect()))
}

fn login_form(form: &str, back: &str, why: Option<&str>) -> Markup {
    html! {
        h1 { "Log in" }
        @if let Some(why) = why {
            p role="alert" { (mark(Mark::Trouble)) " " (cut(why, 1_000)) "." }
        }
        form method="post" action="/ui/login" {
            input type="hidden" name="form" value=(form);
            input type="hidden" name="to" value=(back);
            p {
                label for="token" { "Token" } " "
                input id="token" type="password" name="token" required autofocus
                    maxlength=(session::LONGEST_TOKEN) autocomplete="current-password" spellcheck="false";
                " " button { "Log in" }
            }
        }
        @if back != "/ui/" { p { a href=(back) { "Logged in already? Go on" } } }
        p class="quiet" {
            "A token with the scope " code { "read" } " sees the pages, with " code { "keys" } " the names of keys too, and with "
            code { "admin" } " it may change what runs. The session ends 30 minutes after its last use."
        }
    }
}

fn nothing(path: &str) -> Markup {
    html! {
        h1 { "Not found" }
        p { "There is no page at " (name(path)) ". There are:" }
        ul { @for (path, word, _) in PAGES { li { a href=(path) { (word) } } } }
    }
}

/// Remembers the colours, and goes on to the same page.
fn with_theme(asked: &PageRequest, theme: &str, encrypted: bool) -> Response<Bytes> {
    let secure = if encrypted { "; Secure" } else { "" };
    let cookie =
        format!("{THEME_COOKIE}={theme}; Path=/ui/; Max-Age=31536000; HttpOnly; SameSite=Strict{secure}");
    with_cookie(to(&without_theme(&asked.path, &asked.query)), &cookie)
}
