//! The router against a server that is made up: who gets in, what forms need, what every answer carries.

use std::pin::Pin;

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, LOCATION, REFERRER_POLICY, RETRY_AFTER,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use serde_json::{Value, json};
use tidegate_server::Vitals;

use super::answers::{OPENER_POLICY, POLICY};
use super::*;

const READER: &str = "0123456789abcdef";
const ADMIN: &str = "fedcba9876543210";

/// A server with two tokens, which answers with hostile names.
#[derive(Debug)]
struct Fake {
    tokens: Mutex<Vec<(&'static str, &'static str, &'static str)>>,
    needs_token: bool,
    asked: Mutex<Vec<String>>,
    policies: usize,
    /// Whether it refuses to be asked for now.
    is_busy: bool,
}

impl Fake {
    fn new(needs_token: bool) -> Self {
        let tokens = vec![(READER, "dash", "read"), (ADMIN, "ops", "check,read,admin,keys,metrics")];
        Self { tokens: Mutex::new(tokens), needs_token, asked: Mutex::default(), policies: 3, is_busy: false }
    }

    fn answer(&self, request: &Request<Bytes>) -> (u16, Value) {
        let (method, path) = (request.method(), request.uri().path());
        self.asked.lock().push(format!("{method} {}", request.uri()));
        if self.needs_token {
            let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
            let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
            let tokens = self.tokens.lock();
            let Some((_, name, scopes)) = tokens.iter().find(|(token, ..)| Some(*token) == shown) else {
                return (401, json!({ "detail": "the token is wrong" }));
            };
            let reveals = request.uri().query().is_some_and(|query| query.contains("reveal=true"));
            let needed = match *method {
                Method::GET if reveals => "keys",
                Method::GET => "read",
                _ => "admin",
            };
            if !scopes.split(',').any(|scope| scope == needed) {
                let detail = format!(
                    "the token {name} has the scope {scopes}, and this needs {needed}; send a token with that scope"
                );
                return (403, json!({ "detail": detail, "scope": needed }));
            }
        }
        match path {
            _ if self.is_busy => (503, json!({ "detail": "too many pages are being made" })),
            "/v1/overview" => (200, overview(self.policies)),
            "/v1/policies" => {
                (200, json!({ "config": { "number": 18 }, "policies": [described("per-ip<b>0")] }))
            }
            "/v1/breakers" => {
                let one = json!({ "policy": "bank", "key": "(all)", "state": "open", "since": "2027-01-15T07:00:00Z",
                    "limit": "breaker", "mode": "enforce", "calls": { "ended": 38, "failed": 19, "slow": 0 } });
                (200, json!({ "breakers": [one] }))
            }
            "/v1/changes" => {
                let one = json!({ "number": 7, "at": "2027-01-15T07:59:00Z", "what": "policies", "who": "<i>me</i>",
                    "reason": "", "text": "<script>alert(2)</script>", "configuration": 18, "effect": null });
                (200, json!({ "changes": [one] }))
            }
            "/v1/alerts" => {
                let one = json!({ "number": 1, "rule": "customer-cut", "severity": "warning", "policy": "<i>p</i>",
                    "key": "#1", "since": "2027-01-15T07:59:00Z", "fired": "2027-01-15T07:59:00Z", "resolved": null,
                    "silenced": false, "text": "<script>alert(3)</script>", "path": "/ui/keys" });
                (200, json!({ "firing": 1, "alerts": [one], "silences": [], "receivers": [] }))
            }
            "/v1/busiest" => (200, json!({ "by": "denied", "window_s": 900, "keys": [] })),
            "/v1/switches" => (200, json!({ "switches": [] })),
            _ => (404, json!({ "detail": "there is nothing" })),
        }
    }
}

impl WatchedServer for Fake {
    fn vitals(&self) -> Vitals {
        Vitals::default()
    }

    fn ask(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        let (status, value) = self.answer(&request);
        let mut response = Response::new(Bytes::from(value.to_string()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        if status == 503 {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("3"));
        }
        Box::pin(async move { response })
    }
}

fn described(name: &str) -> Value {
    json!({ "name": name, "mode": "enforce", "by": ["client.ip"], "owner": "file", "limits": [{ "limit": "10/s burst 20" }] })
}

fn overview(policies: usize) -> Value {
    let line: Vec<_> = (0..90).map(|at| json!([f64::from(at) * 1.7, f64::from(at % 5) * 3.3])).collect();
    let of = |at: usize| {
        json!({
            "name": format!("per-ip<b>{at}"), "denied_share": 0.17, "unusual": at == 1, "keys_refused": 3,
            "per_second": { "allowed": 61.0, "delayed": 0.0, "denied": 12.3, "over": 0.0, "near": 0.1, "would_deny": 0.2, "errors": 0.0 },
            "usual": { "low": 0.004, "high": 0.012, "days": 9 },
            "hottest": { "key": "client.ip=<script>alert(1)</script>\u{202e}", "per_second": 25.0, "of_rate": 2.5 }, "line": line,
        })
    };
    json!({
        "at": "2027-01-15T08:00:00Z", "started": "2027-01-14T08:00:00Z", "configuration": { "number": 18, "since": "2027-01-15T07:59:00Z" },
        "store": { "kind": "disk", "away": null }, "history": { "on_disk": true, "up": true, "from": "2027-01-14T08:00:00Z" },
        "dropped": 0, "window_s": 900,
        "requests": {
            "per_second": { "allowed": 73.0, "delayed": 0.0, "denied": 15.0, "unmatched": 0.0, "failed": 0.0 },
            "refused_share": 0.171, "usual": null, "unusual": true, "line": line,
        },
        "deciding": { "p50_ns": 2_000, "p99_ns": 9_000, "in_flight": 3 },
        "verdict": { "level": "unusual", "text": "17.1 % of requests refused" },
        "policies": (0..policies).map(of).collect::<Vec<_>>(), "quiet": 12,
    })
}

const AT: Moment = Moment { steady: 1_000, wall: 1_800_000_000 };

/// A browser: its cookies, and what it sends.
#[derive(Debug)]
struct Browser<'a> {
    pages: &'a Pages,
    server: &'a Fake,
    cookie: String,
    at: Moment,
    encrypted: bool,
}

impl<'a> Browser<'a> {
    fn new(pages: &'a Pages, server: &'a Fake) -> Self {
        Self { pages, server, cookie: String::new(), at: AT, encrypted: false }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Bytes> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:8081");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !self.cookie.is_empty() {
            request = request.header("cookie", &self.cookie);
        }
        let request = request.body(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let door = Door {
            server: self.server,
            tokens: self.server.needs_token,
            encrypted: self.encrypted,
            at: self.at,
        };
        self.pages.answer_at(request, door).await
    }

    async fn get(&self, path: &str) -> Response<Bytes> {
        self.send(Method::GET, path, &[("sec-fetch-site", "none")], "").await
    }

    async fn post(&self, path: &str, pairs: &[(&str, &str)]) -> Response<Bytes> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        self.send(Method::POST, path, &[("sec-fetch-site", "same-origin")], &body).await
    }

    /// Logs in with a token, by the form of the page. Takes the cookie.
    async fn log_in(&mut self, token: &str) -> Response<Bytes> {
        let form = form_of(&self.get("/ui/login?to=/ui/keys").await);
        let answer = self.post("/ui/login", &[("form", &form), ("to", "/ui/keys"), ("token", token)]).await;
        if let Some(cookie) = answer.headers().get(SET_COOKIE) {
            self.cookie = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
        }
        answer
    }
}

fn text_of(answer: &Response<Bytes>) -> &str {
    std::str::from_utf8(answer.body()).unwrap()
}

/// The secret in the first form of a page.
fn form_of(answer: &Response<Bytes>) -> String {
    let (_, after) = text_of(answer).split_once("name=\"form\" value=\"").expect("a form");
    after.split('"').next().unwrap().to_owned()
}

fn next(answer: &Response<Bytes>) -> &str {
    assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{}", text_of(answer));
    answer.headers()[LOCATION].to_str().unwrap()
}

fn is_guarded(answer: &Response<Bytes>) -> bool {
    let headers = answer.headers();
    headers[CONTENT_SECURITY_POLICY] == POLICY
        && headers[X_CONTENT_TYPE_OPTIONS] == "nosniff"
        && headers[OPENER_POLICY] == "same-origin"
        && headers.contains_key(REFERRER_POLICY)
        && headers.contains_key(CACHE_CONTROL)
        && headers.contains_key(CONTENT_TYPE)
}

#[tokio::test]
async fn a_token_opens_a_session_and_the_session_the_pages() {
    let (pages, server) = (Pages::new(), Fake::new(true));
    let mut browser = Browser::new(&pages, &server);
    assert_eq!(next(&browser.get("/ui/").await), "/ui/login");
    assert_eq!(
        next(&browser.get("/ui/keys?by=near&q=%3C").await),
        "/ui/login?to=%2Fui%2Fkeys%3Fby%3Dnear%26q%3D%253C"
    );
    assert_eq!(browser.get("/ui/overview.json").await.status(), StatusCode::UNAUTHORIZED);

    assert_eq!(browser.log_in("0123456789abcdeX").await.status(), StatusCode::UNAUTHORIZED);
    assert!(browser.cookie.is_empty());
    assert_eq!(next(&browser.log_in(READER).await), "/ui/keys");
    assert!(!browser.cookie.contains(READER));
    let page = browser.get("/ui/").await;
    assert_eq!(page.status(), StatusCode::OK);
    assert!(text_of(&page).contains("dash") && !text_of(&page).contains(READER), "the name, not the token");
    let seen = browser.get("/ui/overview.json?w=1h").await;
    let seen: Value = serde_json::from_slice(seen.body()).unwrap();
    assert!(seen["policies"][0]["hottest"]["key"].as_str().unwrap().ends_with(r"\u{202e}"), "{seen}");
    let asked = server.asked.lock().clone();
    assert!(
        !asked.iter().any(|path| path.contains("overview") && path.contains("reveal")),
        "no scope for names: {asked:?}"
    );

    // A token that is no longer valid ends its session.
    server.tokens.lock().remove(0);
    assert_eq!(next(&browser.get("/ui/").await), "/ui/login");
    server.tokens.lock().insert(0, (READER, "dash", "read"));
    assert_eq!(next(&browser.get("/ui/").await), "/ui/login", "ended is ended");
}

#[tokio::test]
async fn a_session_ends_by_time_and_by_the_button() {
    let (pages, server) = (Pages::new(), Fake::new(true));
    let mut browser = Browser::new(&pages, &server);
    browser.log_in(ADMIN).await;
    let form = form_of(&browser.get("/ui/").await);
    browser.at.steady += 29 * 60;
    assert_eq!(browser.get("/ui/").await.status(), StatusCode::OK);
    let gone = browser.post("/ui/logout", &[("form", &form)]).await;
    assert_eq!(next(&gone), "/ui/login");
    assert!(gone.headers()[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(next(&browser.get("/ui/").await), "/ui/login");

    browser.log_in(ADMIN).await;
    browser.at.steady += 31 * 60;
    assert_eq!(next(&browser.get("/ui/").await), "/ui/login");
    let stale = browser.post("/ui/guards", &[("form", &form)]).await;
    assert_eq!(stale.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn cookies_of_encrypted_pages_are_secure() {
    let (pages, server) = (Pages::new(), Fake::new(true));
    let mut browser = Browser { encrypted: true, ..Browser::new(&pages, &server) };
    let answer = browser.log_in(ADMIN).await;
    let cookie = answer.headers()[SET_COOKIE].to_str().unwrap();
    assert!(
        cookie.starts_with("__Secure-tidegate_session=")
            && cookie.ends_with("; HttpOnly; SameSite=Strict; Secure"),
        "{cookie}"
    );
    assert_eq!(browser.get("/ui/").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_page_says_when_a_busy_server_is_worth_asking_again() {
    let (pages, server) = (Pages::new(), Fake { is_busy: true, ..Fake::new(false) });
    let browser = Browser::new(&pages, &server);
    for path in ["/ui/", "/ui/guards", "/ui/overview.json"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert_eq!(answer.headers()[RETRY_AFTER], "3", "{path}");
    }
}

#[tokio::test]
async fn wrong_tokens_are_refused_before_they_are_looked_at() {
    let (pages, server) = (Pages::new(), Fake::new(true));
    let mut browser = Browser::new(&pages, &server);
    for at in 0..5 {
        let token = format!("0123456789abcde{at}");
        assert_eq!(browser.log_in(&token).await.status(), StatusCode::UNAUTHORIZED);
    }
    let before = server.asked.lock().len();
    browser.at.steady += 20;
    let refused = browser.log_in(ADMIN).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()[RETRY_AFTER], "40");
    assert_eq!(server.asked.lock().len(), before, "not even asked");
    browser.at.steady += 40;
    for _ in 0..20 {
        assert_eq!(next(&browser.log_in(ADMIN).await), "/ui/keys", "right tokens do not count");
    }
    // What is no token is not asked for, and a token may not be in the URL.
    let before = server.asked.lock().len();
    assert_eq!(browser.log_in("a b\r\nx: y").await.status(), StatusCode::UNAUTHORIZED);
    browser.cookie.clear();
    assert_eq!(browser.get(&format!("/ui/login?token={ADMIN}")).await.status(), StatusCode::OK);
    assert_eq!(server.asked.lock().len(), before);
}

#[tokio::test]
async fn a_form_of_another_page_has_no_effect() {
    let (pages, server) = (Pages::new(), Fake::new(true));
    let mut browser = Browser::new(&pages, &server);
    browser.log_in(ADMIN).await;
    let form = form_of(&browser.get("/ui/").await);
    let body = format!("form={form}&switch=images");
    let status = async |headers: &[(&str, &str)], body: &str| {
        let answer = browser.send(Method::POST, "/ui/guards", headers, body).await;
        assert!(is_guarded(&answer));
        answer.status()
    };
    server.asked.lock().clear();
    let own = [("sec-fetch-site", "same-origin")];
    let foreign = format!("form={}&switch=images", pages.form.as_deref().unwrap());
    let cases: [(&[(&str, &str)], &str); 12] = [
        (&[("sec-fetch-site", "cross-site")], &body),
        (&[("sec-fetch-site", "same-site")], &body),
        (&[("sec-fetch-site", "none")], &body),
        (&[("sec-fetch-site", "same-origin"), ("origin", "http://evil.example")], &body),
        (&[], &body),
        (&[("origin", "null")], &body),
        (&[("origin", "http://evil.example")], &body),
        (&[("origin", "http://127.0.0.1:8082")], &body),
        (&own, "switch=images"),
        (&own, "form=&switch=images"),
        (&own, "form=0&form=1&switch=images"),
        (&own, &foreign),
    ];
    for (headers, body) in cases {
        assert_eq!(status(headers, body).await, StatusCode::FORBIDDEN, "{headers:?} {body}");
    }
    let asked = server.asked.lock().clone();
    assert!(asked.iter().all(|path| path.starts_with("GET ")), "nothing was changed: {asked:?}");
    for headers in [&own[..], &[("origin", "http://127.0.0.1:8081")]] {
        assert_ne!(status(headers, &body).await, StatusCode::FORBIDDEN, "{headers:?}");
    }
    // A login cannot be forced on somebody either.
    let form = pages.form.clone().unwrap();
    let login = format!("form={form}&token={ADMIN}");
    let answer = browser.send(Method::POST, "/ui/login", &[("sec-fetch-site", "cross-site")], &login).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert!(!answer.headers().contains_key(SET_COOKIE));
}

#[tokio::test]
async fn without_tokens_nobody_logs_in_and_forms_work() {
    let (pages, server) = (Pages::new(), Fake::new(false));
    let browser = Browser::new(&pages, &server);
    assert_eq!(next(&browser.get("/ui/login").await), "/ui/");
    let form = form_of(&browser.get("/ui/why").await);
    assert_eq!(Some(form), pages.form, "forms work without a login too");
}

#[tokio::test]
async fn every_answer_is_guarded_and_every_page_is_whole() {
    let (pages, server) = (Pages::new(), Fake::new(false));
    let browser = Browser::new(&pages, &server);
    for path in [
        "/ui/",
        "/ui/policies",
        "/ui/keys",
        "/ui/why",
        "/ui/guards",
        "/ui/alerts",
        "/ui/changes",
        "/ui/nothing",
        "/ui/policies/none",
        "/ui/lab/none",
    ] {
        let answer = browser.get(path).await;
        let page = text_of(&answer);
        assert!(is_guarded(&answer), "{path}");
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store", "{path}");
        assert_eq!(page.matches("<h1").count(), 1, "{path}: {page}");
        assert!(page.contains("<main") && page.contains("<nav") && page.contains("lang=\"en\""), "{path}");
        let scripts = page.matches("<script").count();
        assert_eq!(
            scripts,
            page.matches("<script type=\"module\" src=\"/ui/live.js\"></script>").count(),
            "{path}"
        );
        assert!(
            !page.contains("style=") && !page.contains("onclick") && !page.contains('\u{202e}'),
            "{path}"
        );
        assert!(!page.contains("<b>") && !page.contains("<i>"), "{path}: {page}");
        let renews = matches!(path, "/ui/" | "/ui/keys");
        assert_eq!(page.contains("http-equiv=\"refresh\""), renews, "{path}");
        assert!(page.len() < 128 << 10, "{path}: {}", page.len());
    }
    assert_eq!(browser.get("/ui/nothing").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(browser.get("/ui/policies/none").await.status(), StatusCode::NOT_FOUND);
    let method = browser.send(Method::DELETE, "/ui/", &[], "").await;
    assert_eq!(method.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(is_guarded(&method));
}

#[tokio::test]
async fn now_says_first_whether_it_is_usual_and_stays_small() {
    let (pages, mut server) = (Pages::new(), Fake::new(false));
    server.policies = 1_000;
    let browser = Browser::new(&pages, &server);
    let answer = browser.get("/ui/?w=1h").await;
    let page = text_of(&answer);
    let main = page.split_once("<main").unwrap().1;
    assert!(main.find("UNUSUAL").unwrap() < main.find("Requests").unwrap(), "{main}");
    for part in [
        "17.1 %",
        "0.4 % to 1.2 %",
        "2.0 µs",
        "10/s burst 20",
        "250 %",
        "▲ ",
        "962 more, quieter",
        "19 of 38 failed",
        "/ui/lab/per-ip%3Cb%3E1\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>"), "{page}");
    assert!(page.len() < 128 << 10, "{}", page.len());
    assert_eq!(browser.get("/ui/").await.status(), StatusCode::OK);
    assert_eq!(browser.get("/ui/?w=2h").await.status(), StatusCode::BAD_REQUEST);
    // The words of the policies are asked for once for each configuration.
    let asked = server.asked.lock().clone();
    assert_eq!(asked.iter().filter(|path| path.ends_with("/v1/policies")).count(), 1, "{asked:?}");
}

#[tokio::test]
async fn files_have_a_tag_by_content_and_colours_are_remembered() {
    let (pages, server) = (Pages::new(), Fake::new(true));
    let mut browser = Browser::new(&pages, &server);
    for path in ["/ui/ui.css", "/ui/live.js"] {
        let answer = browser.get(path).await;
        assert!(answer.status() == StatusCode::OK && is_guarded(&answer));
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-cache");
        let tag = answer.headers()[ETAG].to_str().unwrap();
        let again = browser.send(Method::GET, path, &[("if-none-match", tag)], "").await;
        assert!(again.status() == StatusCode::NOT_MODIFIED && again.body().is_empty());
    }
    for banned in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"] {
        assert!(!SCRIPT.contains(banned), "{banned}");
    }
    assert!(SCRIPT.lines().count() <= 150);
    let chosen = browser.get("/ui/login?to=%2Fui%2Fkeys&theme=dark").await;
    assert_eq!(next(&chosen), "/ui/login?to=%2Fui%2Fkeys");
    let cookie = chosen.headers()[SET_COOKIE].to_str().unwrap();
    assert!(cookie.contains("; Path=/ui/;"), "{cookie}");
    browser.cookie = cookie.split(';').next().unwrap().to_owned();
    let page = browser.get("/ui/login").await;
    assert!(text_of(&page).contains("data-theme=\"dark\"") && text_of(&page).contains("theme=light"));
}

/// A server that counts who asks it at once.
#[derive(Debug, Default)]
struct Crowded {
    now_and_most: Mutex<(usize, usize)>,
}

impl WatchedServer for Crowded {
    fn vitals(&self) -> Vitals {
        Vitals::default()
    }

    fn ask(&self, _: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(async {
            {
                let mut counts = self.now_and_most.lock();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
            }
            tokio::task::yield_now().await;
            self.now_and_most.lock().0 -= 1;
            Response::new(Bytes::from_static(b"{}"))
        })
    }
}

#[tokio::test]
async fn few_pages_are_made_at_once() {
    let (pages, server) = (Arc::new(Pages::new()), Arc::new(Crowded::default()));
    let all: Vec<_> = (0..40)
        .map(|_| {
            let (pages, server) = (Arc::clone(&pages), Arc::clone(&server));
            tokio::spawn(async move {
                let request = Request::get("/ui/policies").header("host", "localhost").body(Bytes::new());
                let door = Door { server: &*server, tokens: false, encrypted: false, at: AT };
                pages.answer_at(request.unwrap(), door).await.status()
            })
        })
        .collect();
    for one in all {
        assert_eq!(one.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(*server.now_and_most.lock(), (0, AT_ONCE));
}

#[test]
fn paths_are_pages() {
    for (path, page) in [
        ("/ui/", Some(Page::Now)),
        ("/ui/policies/", Some(Page::Policies)),
        ("/ui/policies/a%2Fb", Some(Page::Policy("a/b".to_owned()))),
        ("/ui/keys/per-ip", Some(Page::Key("per-ip".to_owned()))),
        ("/ui/lab/a%2Fb", Some(Page::Lab("a/b".to_owned()))),
        ("/ui/lab/", None),
        ("/ui/keys/%FF", None),
        ("/ui/..%2Fv1", None),
        ("/ui/keysx", None),
    ] {
        assert_eq!(Page::of(path), page, "{path}");
    }
    let refusal =
        "the token dash has the scope read,keys, and this needs admin; send a token with that scope";
    assert_eq!(read_refusal(refusal), Some(("dash".to_owned(), vec!["read", "keys"])));
    assert_eq!(read_refusal("a web page of another origin may not use this server"), None);
}
