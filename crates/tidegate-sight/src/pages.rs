//! The pages under `/ui/`: what happens at the server, for people with a browser.
//!
//! Each page is complete without a script and asks only the server's own paths, as the caller. Nothing is loaded from
//! elsewhere, and no script or style stands in a page: a browser refuses both (`Content-Security-Policy`).
//!
//! Where the server needs tokens, a caller logs in with one ([`session`]); the cookie counts only here. Where it needs
//! none, only addresses of this machine are answered, as the server itself does. A change is a form that carries a secret
//! of its page and comes from it (`Sec-Fetch-Site`, else `Origin`). A `GET` changes nothing.

mod alerts;
mod changes;
mod frame;
mod guards;
mod key;
mod keys;
mod now;
mod picture;
mod policy;
mod session;
#[cfg(test)]
mod tests;
mod why;
mod words;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, ETAG, HOST, HeaderMap, HeaderName,
    HeaderValue, IF_NONE_MATCH, LOCATION, ORIGIN, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use maud::{Markup, html};
use percent_encoding::percent_decode_str;
use tidegate::Tick;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate_server::Inside;

use self::frame::{Caller, Context, Frame, KnownPolicies, PAGES, PageError, cut, url};
use self::session::{Holder, Sessions};

const STYLE: &str = include_str!("pages/ui.css");
const SCRIPT: &str = include_str!("pages/live.js");

/// The longest form, in bytes: the box of Why takes a whole problem body.
const LONGEST_FORM: usize = 64 << 10;

/// The most parameters of a URL or a form.
const MOST_PAIRS: usize = 64;

/// A page that would be larger is not sent. With usual names all pages stay below half of it.
const LARGEST_PAGE: usize = 256 << 10;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The cookie that remembers the colours.
const THEME_COOKIE: &str = "tidegate_theme";

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
    inside: &'a dyn Inside,
    tokens: bool,
    encrypted: bool,
    at: Moment,
}

/// A request, read.
#[derive(Debug)]
struct Asked {
    path: String,
    query: Vec<(String, String)>,
    fields: Vec<(String, String)>,
    headers: HeaderMap,
    /// Who it was sent to: `Host`, or the authority of the URL.
    host: String,
    /// The same as a URL, for commands to copy.
    address: String,
    is_post: bool,
}

impl Asked {
    fn of(parts: Parts, body: &Bytes, encrypted: bool) -> Self {
        let Parts { method, uri, headers, .. } = parts;
        let is_post = method == Method::POST;
        let host = only(&headers, &HOST).map(str::to_owned);
        let host = host.or_else(|| uri.authority().map(|authority| authority.as_str().to_owned()));
        let host = host.unwrap_or_default();
        let is_plain =
            |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | ':' | '-' | '_' | '[' | ']');
        // What stands in a command must not end it.
        let at = if !host.is_empty() && host.len() <= 255 && host.chars().all(is_plain) {
            &*host
        } else {
            "127.0.0.1:8080"
        };
        let scheme = if encrypted { "https" } else { "http" };
        Self {
            path: uri.path().to_owned(),
            query: pairs(uri.query().unwrap_or_default().as_bytes()),
            fields: if is_post { pairs(body) } else { Vec::new() },
            address: format!("{scheme}://{at}"),
            host,
            headers,
            is_post,
        }
    }

    /// The value of a cookie, if it came once.
    fn cookie(&self, name: &str) -> Option<&str> {
        let lines = self.headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let cookies =
            lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        let mut values = cookies.filter(|(have, _)| *have == name).map(|(_, value)| value);
        match (values.next(), values.next()) {
            (Some(value), None) => Some(value),
            _ => None,
        }
    }

    fn theme(&self) -> Option<&'static str> {
        self.cookie(THEME_COOKIE).and_then(theme)
    }

    fn is_of(&self, site: &str) -> bool {
        self.headers.get(&FETCH_SITE).is_some_and(|value| value.as_bytes() == site.as_bytes())
    }

    /// Whether `Origin`, if there is one, is where the request was sent to; `None` without one.
    fn is_same_origin(&self) -> Option<bool> {
        let mut lines = self.headers.get_all(ORIGIN).iter();
        let first = lines.next()?;
        let authority = first.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, at)| at);
        Some(lines.next().is_none() && !self.host.is_empty() && authority == Some(self.host.as_str()))
    }

    /// Refuses what the server itself refuses where it needs no token: the requests of other sites' pages, and host
    /// names that are not this machine's.
    fn refuse_foreign(&self, encrypted: bool) -> Result<(), PageError> {
        let of_a_page = self.is_of("cross-site") || self.is_of("same-site");
        let is_visited =
            self.headers.get(&FETCH_DEST).is_some_and(|value| value.as_bytes() == b"document".as_slice());
        let hosts = self.headers.get_all(HOST).iter().count();
        if (of_a_page && !is_visited) || self.is_same_origin() == Some(false) {
            let detail = "a web page of another origin may not use this server; open /ui/ itself";
            return Err(PageError::new(StatusCode::FORBIDDEN, detail));
        }
        if hosts > 1 || (!encrypted && !self.host.is_empty() && !names_this_machine(&self.host)) {
            let detail = "without a token, the server answers only requests for a loopback address or localhost; use \
                          127.0.0.1 or localhost in the URL, or set a token";
            return Err(PageError::new(StatusCode::FORBIDDEN, detail));
        }
        Ok(())
    }

    /// Checks that a form was sent by its own page. Browsers say where it comes from (`Sec-Fetch-Site`); older ones
    /// send its `Origin`.
    fn refuse_foreign_form(&self, secret: &str) -> Result<(), PageError> {
        let site = self.headers.get_all(&FETCH_SITE).iter().count();
        let is_own = match site {
            0 => self.is_same_origin() == Some(true),
            1 => self.is_of("same-origin") && self.is_same_origin() != Some(false),
            _ => false,
        };
        if !is_own {
            let detail = "the form does not come from this server's own page, so nothing was done; open the page itself";
            return Err(PageError::new(StatusCode::FORBIDDEN, detail));
        }
        let mut sent = self.fields.iter().filter(|(name, _)| name == "form").map(|(_, value)| value);
        let is_right = match (sent.next(), sent.next()) {
            (Some(sent), None) => !secret.is_empty() && session::is_same(sent, secret),
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        let detail = "the form is of an earlier login or start of the server, so nothing was done; go back, read the page \
                      again, and send it again";
        Err(PageError::new(StatusCode::FORBIDDEN, detail))
    }
}

/// Returns the value of a header that may come once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => line.to_str().ok(),
        _ => None,
    }
}

fn pairs(text: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(text)
        .take(MOST_PAIRS)
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect()
}

fn theme(word: &str) -> Option<&'static str> {
    ["dark", "light"].into_iter().find(|theme| *theme == word)
}

fn names_this_machine(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inside, port)) if port.is_empty() || port.starts_with(':') => inside,
            _ => return false,
        },
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    let name = host.trim_end_matches('.');
    host.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
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
                    .or_else(|| named("/ui/keys/").map(Self::Key));
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
        }
    }

    /// Does what a form says. Returns where to go on.
    async fn take(&self, ctx: &Context<'_>) -> Result<String, PageError> {
        match self {
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
        Self { sessions: Sessions::default(), form: session::random(), known: KnownPolicies::default() }
    }

    /// Answers a request. `tokens`: whether the server needs tokens; `encrypted`: whether the connection is.
    pub(crate) async fn answer(
        &self,
        request: Request<Bytes>,
        inside: &dyn Inside,
        tokens: bool,
        encrypted: bool,
    ) -> Response<Bytes> {
        let tick = SystemClock::new().now();
        let seconds = |tick: Tick| tick.as_nanos() / 1_000_000_000;
        let at = Moment { steady: seconds(tick), wall: seconds(SystemClock::wall_time(tick)) };
        self.answer_at(request, Door { inside, tokens, encrypted, at }).await
    }

    async fn answer_at(&self, request: Request<Bytes>, door: Door<'_>) -> Response<Bytes> {
        let (parts, body) = request.into_parts();
        let (is_get, path) = (matches!(parts.method, Method::GET | Method::HEAD), parts.uri.path());
        match path {
            "/ui/ui.css" if is_get => return asset(STYLE, "text/css; charset=utf-8", &parts.headers),
            "/ui/live.js" if is_get => {
                return asset(SCRIPT, "text/javascript; charset=utf-8", &parts.headers);
            }
            "/ui" if is_get => return to("/ui/"),
            _ => {}
        }
        if !is_get && parts.method != Method::POST {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            return answer;
        }
        if body.len() > LONGEST_FORM {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "a form has at most 64 KiB\n");
        }
        let asked = Asked::of(parts, &body, door.encrypted);
        if !door.tokens
            && let Err(refused) = asked.refuse_foreign(door.encrypted)
        {
            return self.alone(&asked, door, refused.status(), "Not allowed", &refused.markup());
        }
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
        asked: &Asked,
        door: Door<'_>,
        holder: Option<&Arc<Holder>>,
    ) -> Response<Bytes> {
        let ctx = self.context(asked, door, holder);
        if asked.is_post
            && let Err(refused) = asked.refuse_foreign_form(ctx.form_token())
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
        asked: &'a Asked,
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
        let of = frame::Asked {
            path: &asked.path,
            query: &asked.query,
            fields: &asked.fields,
            now: door.at.wall,
            address: &asked.address,
        };
        Context::new(of, caller, door.inside, &self.known)
    }

    /// Shows something to a caller who is not known.
    fn alone(
        &self,
        asked: &Asked,
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
    fn nobody(&self, asked: &Asked, door: Door<'_>) -> Response<Bytes> {
        if asked.path == "/ui/overview.json" {
            return text(StatusCode::UNAUTHORIZED, "log in at /ui/login\n");
        }
        if asked.is_post {
            let detail = "you are not logged in any more, so nothing was done";
            let error = PageError::new(StatusCode::UNAUTHORIZED, detail);
            return self.alone(asked, door, error.status(), "Log in", &error.markup());
        }
        let query: Vec<(&str, &str)> =
            asked.query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let back = url(&asked.path, &query);
        if back == "/ui/" { to("/ui/login") } else { to(&url("/ui/login", &[("to", &back)])) }
    }

    async fn log_in(&self, asked: &Asked, door: Door<'_>) -> Response<Bytes> {
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
                let mut answer = self.alone(asked, door, error.status(), "Log in", &main);
                if error.status() == StatusCode::TOO_MANY_REQUESTS {
                    answer.headers_mut().insert(RETRY_AFTER, session::TRIES_WITHIN.into());
                }
                answer
            }
        }
    }

    /// Opens a session for the token in a form, if the server accepts it.
    async fn try_token(&self, asked: &Asked, door: Door<'_>) -> Result<Arc<Holder>, PageError> {
        asked.refuse_foreign_form(self.form.as_deref().unwrap_or_default())?;
        self.sessions.attempt(door.at.steady).map_err(|wait| {
            let detail = format!("too many wrong tokens were tried; try again in {wait} s");
            PageError::new(StatusCode::TOO_MANY_REQUESTS, detail)
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
        let tried =
            frame::ask(door.inside, Some(token), Method::GET, "/v1/overview?w=1m", Bytes::new()).await;
        if tried.as_ref().is_err_and(|error| error.status() == StatusCode::UNAUTHORIZED) {
            return Err(wrong());
        }
        self.sessions.forgive();
        tried?;
        let (name, scopes) = holder_of(door.inside, token).await;
        let before = asked.cookie(session::cookie_name(door.encrypted));
        self.sessions.open(token, name, scopes, before, door.at.steady).ok_or_else(|| {
            let detail = "the system has no random bits for a session";
            PageError::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })
    }

    async fn log_out(
        &self,
        asked: &Asked,
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
                let answer = text(status, error.detail().to_owned());
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
    asked: &Asked,
    ctx: &Context<'_>,
    title: &str,
    section: &str,
    renews: bool,
    shown: Result<Markup, PageError>,
) -> Response<Bytes> {
    ctx.learn_state().await;
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
    page(status, ctx.page(frame, &main))
}

/// Learns the name of a token and its scopes (`None`: all) from refusals, which say both. What is asked for changes
/// nothing: there is no policy without a name.
async fn holder_of(inside: &dyn Inside, token: &str) -> (String, Option<Vec<&'static str>>) {
    // What is refused, and what the token can do at least if the refusal cannot be read.
    let questions = [
        (Method::PUT, "/v1/breakers/", vec!["read"]),
        (Method::GET, "/v1/busiest?by=denied&w=1m&limit=1&reveal=true", vec!["read", "admin"]),
    ];
    for (method, path, at_least) in questions {
        if let Err(refused) = frame::ask(inside, Some(token), method, path, Bytes::new()).await
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
            p role="alert" { (frame::mark(frame::Mark::Trouble)) " " (cut(why, 1_000)) "." }
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
        p { "There is no page at " (frame::name(path)) ". There are:" }
        ul { @for (path, word, _) in PAGES { li { a href=(path) { (word) } } } }
    }
}

/// Remembers the colours, and goes on to the same page.
fn with_theme(asked: &Asked, theme: &str, encrypted: bool) -> Response<Bytes> {
    let kept = asked.query.iter().filter(|(name, _)| name != "theme");
    let kept: Vec<(&str, &str)> = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let secure = if encrypted { "; Secure" } else { "" };
    let cookie =
        format!("{THEME_COOKIE}={theme}; Path=/ui/; Max-Age=31536000; HttpOnly; SameSite=Strict{secure}");
    with_cookie(to(&url(&asked.path, &kept)), &cookie)
}

/// The headers of every answer.
fn guarded(mut answer: Response<Bytes>, kind: &'static str, cache: &'static str) -> Response<Bytes> {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Not `no-referrer`: with it browsers send `Origin: null` with forms, and over plain HTTP to another machine no
    // `Sec-Fetch-Site`, so nobody could log in there. No other site learns anything by either.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    answer
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    with_status(guarded(Response::new(body.into()), kind, "no-store"), status)
}

fn page(status: StatusCode, page: String) -> Response<Bytes> {
    if page.len() > LARGEST_PAGE {
        let why =
            "this page would be too large: its names are very long; choose one policy, or use the API\n";
        return text(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    answer(status, "text/html; charset=utf-8", page)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    answer(status, "text/plain; charset=utf-8", body)
}

/// Goes on to another page. What is no header goes to Now.
fn to(next: &str) -> Response<Bytes> {
    let next = HeaderValue::try_from(next).unwrap_or_else(|_| HeaderValue::from_static("/ui/"));
    let mut answer = text(StatusCode::SEE_OTHER, "");
    answer.headers_mut().insert(LOCATION, next);
    answer
}

fn with_status(mut answer: Response<Bytes>, status: StatusCode) -> Response<Bytes> {
    *answer.status_mut() = status;
    answer
}

fn with_cookie(mut answer: Response<Bytes>, cookie: &str) -> Response<Bytes> {
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    answer
}

/// Answers a file, or that the caller has it.
fn asset(text: &'static str, kind: &'static str, headers: &HeaderMap) -> Response<Bytes> {
    let tag = tag(text.as_bytes());
    let has_it = headers.get_all(IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
    let has_it =
        has_it.flat_map(|line| line.split(',')).any(|have| have.trim().trim_start_matches("W/") == tag);
    let body = if has_it { Bytes::new() } else { Bytes::from_static(text.as_bytes()) };
    let mut answer = guarded(Response::new(body), kind, "no-cache");
    if has_it {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    if let Ok(tag) = HeaderValue::try_from(tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}

/// A tag by content (FNV-1a): another text has another.
fn tag(text: &[u8]) -> String {
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("\"{hash:016x}\"")
}
