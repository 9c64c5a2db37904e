//! Lab: what another limit would have done to the requests of the last hour, and to whom.

use std::fmt::Write as _;

use http::{Method, StatusCode};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::{Context, PageError};
use super::keys::{THE_ONE, key_path, names_in, pairs_in};
use super::words::{
    Mark, columns, command, count, cut, fitting, lab_path, limit_words, list, mark, name, num, number,
    percent, policy_path, segment, span, text, url,
};

/// Keys that are shown.
const KEYS: usize = 50;
const MOST_KEY_BYTES: usize = 64 << 10;

/// The width and height of the chart, in its own units.
const CHART: (f64, f64) = (720.0, 140.0);

/// Algorithms with a burst of their own.
const WITH_BURST: [&str; 4] = ["gcra", "token-bucket", "leaky-bucket", "x-time"];

/// As in the URL, for people after "in the last", and in seconds.
const WINDOWS: [(&str, &str, u64); 4] = [
    ("5m", "5 minutes", 300),
    ("15m", "15 minutes", 900),
    ("30m", "30 minutes", 1_800),
    ("1h", "hour", 3_600),
];

/// Shows the form, today's limit and the one that is tried.
pub(crate) async fn page(ctx: &Context<'_>, policy: &str) -> Result<Markup, PageError> {
    let words = ctx.get(&format!("/v1/policies/{}", segment(policy))).await?;
    let window = ctx.param("w").unwrap_or("30m");
    let wrong = || PageError::bad(format!("w {} is not possible; use 5m, 15m, 30m or 1h", cut(window, 40)));
    let window = WINDOWS.into_iter().find(|(word, ..)| *word == window).ok_or_else(wrong)?;
    let Some(today) = Written::of(&words) else {
        return Ok(html! {
            h1 { "Lab: " (name(policy)) }
            p { "The first limit of this policy is no rate that is the same for all keys, so no other can be tried in its place here." }
            p { a href=(policy_path(policy)) { "The policy" } }
        });
    };
    let limit = today.with(ctx)?;
    let path = if ctx.may("keys") { "/v1/lab?reveal=true" } else { "/v1/lab" };
    let body = json!({ "policy": policy, "limit": limit.json(), "w": window.0 });
    let tried = match ctx.send(Method::POST, path, &body).await {
        Err(error) if matches!(error.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(error);
        }
        tried => tried,
    };
    Ok(html! {
        h1 { "Lab: " (name(policy)) }
        p { "Another limit, tried on the requests of the last " (window.1) " by the arithmetic that enforces it. Nothing is changed." }
        (form(policy, &limit, window.0))
        @match &tried {
            Ok(tried) if num(&tried["requests"]) > 0.0 => {
                (counts(&words, tried, window.2))
                (curve(tried))
                (newly(ctx, policy, &words, tried))
                @if ctx.param("rate").is_some() {
                    h2 { "To measure it on all requests" }
                    p { "Beside the limit of this policy" @if let Some(place) = words["place"].as_str() { ", at " code { (cut(place, 200)) } }
                        ", a limit that only measures:" }
                    (command(&format!("shadow_limit: {}", limit.yaml())))
                    @if !words["shadow_limit"].is_null() { p class="quiet" { "It has one already, which this would replace." } }
                }
            },
            Ok(_) => p { "The policy decided about no request in the last " (window.1) ", or no key's requests are there as a whole. What was before the start of the server is not kept." },
            Err(error) => p role="alert" { (mark(Mark::Trouble)) " " (cut(error.detail(), 1_000)) "." },
        }
        p { a href=(policy_path(policy)) { "The policy" } " · " a href=(url("/ui/keys", &[("policy", policy), ("by", "rate")])) { "Its busiest keys" } }
    })
}

/// A limit in the words of the file, in their order.
#[derive(Debug)]
struct Written {
    algorithm: String,
    rate: String,
    /// Further words with their values.
    more: Vec<(String, Value)>,
}

impl Written {
    /// Reads the first limit of a policy from its description; `None` if it is not one rate for all keys.
    fn of(policy: &Value) -> Option<Self> {
        let limit = list(&policy["limits"]).first()?;
        if !limit["tiers"].is_null() || num(&limit["overrides"]) > 0.0 {
            return None;
        }
        let mut words = text(&limit["limit"]).split(' ');
        let (algorithm, rate) = (words.next()?.to_owned(), words.next()?.to_owned());
        if !rate.contains('/') {
            return None;
        }
        let mut more = Vec::new();
        while let (Some(word), Some(value)) = (words.next(), words.next()) {
            let value = value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number));
            more.push((word.to_owned(), value));
        }
        if let Some(wait) = limit["max_wait_ms"].as_u64().filter(|wait| *wait > 0) {
            more.push(("max_wait".to_owned(), json!(format!("{wait}ms"))));
        }
        Some(Self { algorithm, rate, more })
    }

    /// The same with the rate and the burst of the URL. A form without a burst means none.
    fn with(mut self, ctx: &Context<'_>) -> Result<Self, PageError> {
        let Some(rate) = ctx.param("rate") else { return Ok(self) };
        self.rate = rate.to_owned();
        self.more.retain(|(word, _)| word != "burst");
        if let Some(burst) = ctx.param("burst").filter(|_| self.has_burst()) {
            let wrong = |_| PageError::bad(format!("burst {} is not a whole number", cut(burst, 40)));
            self.more.insert(0, ("burst".to_owned(), json!(burst.parse::<u64>().map_err(wrong)?)));
        }
        Ok(self)
    }

    fn has_burst(&self) -> bool {
        WITH_BURST.contains(&&*self.algorithm) && !self.more.iter().any(|(word, _)| word == "queue")
    }

    fn burst(&self) -> Option<u64> {
        self.more.iter().find(|(word, _)| word == "burst").and_then(|(_, value)| value.as_u64())
    }

    fn json(&self) -> Value {
        let mut limit = json!({ "algorithm": self.algorithm, "rate": self.rate });
        for (word, value) in &self.more {
            limit[word.as_str()] = value.clone();
        }
        limit
    }

    fn yaml(&self) -> String {
        let mut out = format!("{{ algorithm: {}, rate: {}", plain(&self.algorithm), plain(&self.rate));
        for (word, value) in &self.more {
            let value = value.as_str().map_or_else(|| value.to_string(), plain);
            // Writing to a string does not fail.
            let _ = write!(out, ", {word}: {value}");
        }
        out + " }"
    }
}

/// Writes a text as a value in YAML, quoted if it has more than the letters of rates and times.
fn plain(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.');
    if text.bytes().all(is_plain) { text.to_owned() } else { json!(text).to_string() }
}

fn form(policy: &str, limit: &Written, window: &str) -> Markup {
    html! {
        form method="get" action=(lab_path(policy)) {
            label { (cut(&limit.algorithm, 40)) " with the rate " input name="rate" required maxlength="40" size="10" value=(cut(&limit.rate, 40)); } " "
            @if limit.has_burst() {
                label { "and the burst " input name="burst" inputmode="numeric" maxlength="20" size="8" value=[limit.burst()] placeholder="as the rate"; } " "
            }
            label { "in the last " select name="w" { @for (word, words, _) in WINDOWS {
                option value=(word) selected[word == window] { (words) }
            } } } " "
            button { "Try" }
        }
    }
}

/// Today's limit beside the one that is tried.
fn counts(words: &Value, tried: &Value, seconds: u64) -> Markup {
    let of = |field: &str| tried[field].as_u64().unwrap_or(0);
    let (requests, keys) = (of("requests"), of("keys"));
    let part = |field: &str, whole: u64| {
        let amount = of(field);
        html! { td class="n" { (count(amount)) " (" (percent(amount as f64 / whole.max(1) as f64)) ")" } }
    };
    let (share, had) = (num(&tried["share_of_keys"]), num(&tried["seconds"]));
    html! {
        h2 { "What it would have done" }
        div class="wide" { table {
            caption {
                (count(requests)) @if requests == 1 { " request of " } @else { " requests of " }
                @if share >= 1.0 { "all keys" } @else { "1 of " (count((1.0 / share.max(1e-9)).round() as u64)) " keys and the busiest" }
                " in the last " (span(had.round() as u64))
            }
            thead { tr {
                th scope="col" { "Decision" }
                th scope="col" class="n" { "Today: " (limit_words(words)) }
                th scope="col" class="n" { "Tried: " (cut(text(&tried["limit"]), 200)) }
            } }
            tbody {
                tr { th scope="row" { "Requests refused" } (part("denied_then", requests)) (part("denied_now", requests)) }
                tr { th scope="row" { "Keys refused, of " (count(keys)) } (part("keys_denied_then", keys)) (part("keys_denied_now", keys)) }
                tr { th scope="row" { "Keys newly refused" } td class="n" { "–" } td class="n" { (count(of("newly_keys"))) } }
                tr { th scope="row" { "Keys no longer refused" } td class="n" { "–" } td class="n" { (count(of("no_longer_keys"))) } }
            }
        } }
        @if share < 1.0 {
            p { (mark(Mark::Unusual)) " An hour of all requests does not fit, so whole keys are left out, and these are the counts of those that are there." }
        }
        @if had < seconds as f64 * 0.95 {
            p class="quiet" { "The server has kept requests for " (span(had.round() as u64)) " so far." }
        }
        p class="quiet" { "Each key begins with a full limit, and costs are those of the check. Refusals by lists, blocks and other policies are not counted." }
    }
}

/// The burst that each key needs at this rate, the largest first, and the line of the limit.
fn curve(tried: &Value) -> Markup {
    let point = |point: &Value| (num(&point[0]).max(1.0), num(&point[1]).max(0.0));
    let points: Vec<(f64, f64)> = list(&tried["peaks"]).iter().take(200).map(point).collect();
    let (Some((_, highest)), Some((last, _))) = (points.first().copied(), points.last().copied()) else {
        return html! {};
    };
    let (at_once, (width, height)) = (num(&tried["at_once"]), CHART);
    // Both axes are logarithmic.
    let top = (highest.max(at_once).max(1.0) * 1.2).ln();
    let x = |rank: f64| rank.ln() / (last + 1.0).ln() * width;
    let y = |value: f64| height - value.max(1.0).ln() / top * (height - 1.0);
    let mut area = format!("M0 {height}");
    for (at, (rank, peak)) in points.iter().enumerate() {
        let next = points.get(at + 1).map_or(last + 1.0, |(next, _)| *next);
        // Writing to a string does not fail.
        let _ = write!(area, "L{:.1} {:.1}L{:.1} {:.1}", x(*rank), y(*peak), x(next), y(*peak));
    }
    let _ = write!(area, "L{width} {height}Z");
    let line = format!("M0 {:.1}L{width} {:.1}", y(at_once), y(at_once));
    let title = format!(
        "The burst that each of {} keys needs at this rate: the first {}, the last {}. The line is the limit, {}.",
        number(last),
        number(highest),
        number(points.last().map_or(0.0, |(_, peak)| *peak)),
        number(at_once),
    );
    html! {
        h2 { "Keys by what they ask for" }
        figure {
            svg class="chart" viewBox={ "0 0 " (width) " " (height) } preserveAspectRatio="none" role="img" {
                title { (title) }
                path class="all" d=(area) {}
                path class="refused" d=(line) {}
            }
            figcaption class="quiet" { (title) " Keys above the line are refused something. Both axes are logarithmic." }
            details {
                summary { "As a table" }
                div class="wide" { table {
                    caption { "The burst that a key needs at this rate, by rank" }
                    (columns(&[("Rank", true), ("Needs at once", true), ("Above the limit", false)]))
                    tbody { @for (rank, peak) in &points {
                        tr { td class="n" { (number(*rank)) } td class="n" { (number(*peak)) } td { @if *peak > at_once { "yes" } @else { "no" } } }
                    } }
                } }
            }
        }
    }
}

/// The keys that would be refused and were not.
fn newly(ctx: &Context<'_>, policy: &str, words: &Value, tried: &Value) -> Markup {
    let rows = list(&tried["newly"]);
    let all = tried["newly_keys"].as_u64().unwrap_or(0);
    let by = names_in(&words["by"]);
    // Values of other attributes may look like one.
    let names_users = by.iter().any(|attribute| attribute == "user.id");
    let key = |row: &Value| {
        let key = text(&row["key"]).to_owned();
        let pairs = if key == THE_ONE { Some(Vec::new()) } else { pairs_in(&by, &key) };
        html! { @match pairs.filter(|_| ctx.may("keys")) {
            Some(pairs) => a href=(key_path(policy, &pairs)) { (name(&key)) },
            None => (name(&key)),
        } }
    };
    let line = |row: &Value| {
        html! { tr {
            td { (key(row)) }
            td class="n" { (count(row["denied"].as_u64().unwrap_or(0))) }
            td class="n" { (count(row["requests"].as_u64().unwrap_or(0))) }
            td { @match row["signed_in"].as_bool() {
                _ if !names_users => "no user.id",
                Some(true) => strong class="warn" { (mark(Mark::Unusual)) " yes" },
                Some(false) => "no user.id",
                None => span class="quiet" { "not known yet" },
            } }
        } }
    };
    let lines = fitting(rows.iter().take(KEYS).map(line), MOST_KEY_BYTES);
    html! {
        h2 { "Newly refused" }
        @if rows.is_empty() { p { (mark(Mark::Usual)) " No key would be refused that was not." } } @else {
            div class="wide" { table {
                caption {
                    (count(all)) @if all == 1 { " key" } @else { " keys" } " would be refused and was not"
                    @if lines.len() < usize::try_from(all).unwrap_or(usize::MAX) { ", the first " (lines.len()) }
                }
                (columns(&[("Key", false), ("Refused", true), ("Of requests", true), ("A signed-in user", false)]))
                tbody { @for line in &lines { (line) } }
            } }
            @if !ctx.may("keys") {
                p class="quiet" { "Keys are shown as digests; a token with the scope " code { "keys" } " sees their names." }
            } @else {
                p class="quiet" { "A key with " code { "~" } " gets its name with its next request." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::canned::{Canned, pairs};
    use super::*;

    fn policy() -> Value {
        json!({
            "name": "per-ip", "mode": "enforce", "by": ["user.id"], "place": "shop.yaml:8", "shadow_limit": null,
            "limits": [{ "limit": "gcra 10/s burst 20", "tiers": null, "overrides": 0, "max_wait_ms": 0 }],
        })
    }

    fn tried() -> Value {
        json!({
            "policy": "per-ip", "limit": "gcra 6/s burst 12", "at_once": 12, "window_s": 1_800, "seconds": 1_800.0,
            "share_of_keys": 1.0, "requests": 12_000, "denied_then": 30, "denied_now": 600, "keys": 400,
            "keys_denied_then": 1, "keys_denied_now": 4, "newly_keys": 3, "no_longer_keys": 0,
            "newly": [
                { "key": "user.id=ann", "denied": 500, "requests": 900, "signed_in": true },
                { "key": "user.id=<script>alert(1)</script>\u{202e}", "denied": 9, "requests": 10, "signed_in": true },
                { "key": "~0000000000000008", "denied": 1, "requests": 9, "signed_in": null },
            ],
            "peaks": [[1, 130.0], [2, 14.5], [3, 3.0], [400, 1.0]],
        })
    }

    async fn shown(server: &Canned, query: &[(&str, &str)]) -> Result<String, PageError> {
        let query = pairs(query);
        let page = page(&server.context("/ui/lab/per-ip", &query, &[]), "per-ip").await?.into_string();
        assert!(!page.contains("<script") && !page.contains('\u{202e}') && page.len() < 128 << 10, "{page}");
        Ok(page)
    }

    fn server(status: u16, answer: Value) -> Canned {
        Canned::new(vec![("/v1/policies/per-ip", 200, policy()), ("/v1/lab", status, answer)])
    }

    #[tokio::test]
    async fn another_limit_is_shown_beside_todays() {
        let server = server(200, tried());
        let page = shown(&server, &[("rate", "6/s"), ("burst", "12"), ("w", "30m")]).await.unwrap();
        for part in [
            "gcra 10/s burst 20",
            "gcra 6/s burst 12",
            "12,000 requests of all keys in the last 30 min",
            "600 (5.0 %)",
            "/ui/keys/per-ip?user.id=ann",
            "▲</span> yes",
            "not known yet",
            "value=\"6/s\"",
            "shadow_limit: { algorithm: gcra, rate: 6/s, burst: 12 }",
            "shop.yaml:8",
            "<title>The burst that each of 400 keys needs at this rate: the first 130, the last 1.0.",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        let asked = server.asked.lock();
        let (method, path, body) = asked.last().unwrap();
        assert_eq!((method, path.as_str()), (&Method::POST, "/v1/lab?reveal=true"));
        let limit = json!({ "algorithm": "gcra", "rate": "6/s", "burst": 12 });
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body, json!({ "policy": "per-ip", "limit": limit, "w": "30m" }));
    }

    #[tokio::test]
    async fn without_a_limit_in_the_url_todays_is_tried() {
        let server = server(200, tried());
        let page = shown(&server, &[]).await.unwrap();
        assert!(!page.contains("shadow_limit:"), "there is nothing to measure: {page}");
        let body: Value = serde_json::from_str(&server.asked.lock().last().unwrap().2).unwrap();
        assert_eq!(body["limit"], json!({ "algorithm": "gcra", "rate": "10/s", "burst": 20 }));
        // A form whose burst is empty means the burst of the rate, not today's.
        shown(&server, &[("rate", "6/s"), ("burst", "")]).await.unwrap();
        let body: Value = serde_json::from_str(&server.asked.lock().last().unwrap().2).unwrap();
        assert_eq!(body["limit"], json!({ "algorithm": "gcra", "rate": "6/s" }));
    }

    #[tokio::test]
    async fn a_key_without_a_user_is_none_whatever_its_name() {
        let mut policy = policy();
        policy["by"] = json!(["header.x"]);
        let mut answer = tried();
        answer["newly"][0]["key"] = json!("header.x=a, user.id=ann");
        let server = Canned::new(vec![("/v1/policies/per-ip", 200, policy), ("/v1/lab", 200, answer)]);
        let page = shown(&server, &[]).await.unwrap();
        assert!(page.contains("no user.id") && !page.contains("▲</span> yes"), "{page}");
    }

    #[tokio::test]
    async fn a_share_of_the_keys_is_said() {
        let mut answer = tried();
        (answer["share_of_keys"], answer["seconds"]) = (json!(0.0625), json!(300.0));
        let page = shown(&server(200, answer), &[]).await.unwrap();
        for part in ["1 of 16 keys and the busiest", "whole keys are left out", "for 5 min so far"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_tried_says_why_and_keeps_the_form() {
        let nothing = json!({ "requests": 0, "peaks": [], "newly": [] });
        let page = shown(&server(200, nothing), &[]).await.unwrap();
        assert!(page.contains("decided about no request") && page.contains("<form"), "{page}");
        // An answer that is nothing like one.
        let odd =
            json!({ "requests": 1, "peaks": [[0, -1], ["a", null], [1e308, 1e308]], "newly": [7, null] });
        let page = shown(&server(200, odd), &[]).await.unwrap();
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        for (status, detail) in
            [(422, "rate: <b>6/M</b> could be minute"), (429, "another limit is being tried")]
        {
            let answer = json!({ "detail": detail });
            let query = [("rate", "<script>\"6/M"), ("burst", "3")];
            let page = shown(&server(status, answer), &query).await.unwrap();
            assert!(
                page.contains("role=\"alert\"") && page.contains("<form") && !page.contains("<b>"),
                "{page}"
            );
        }
        let refused = shown(&server(403, json!({ "detail": "no" })), &[]).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        for query in [[("w", "2h"), ("rate", "6/s")], [("rate", "6/s"), ("burst", "-1<i>")]] {
            let wrong = shown(&server(200, tried()), &query).await.unwrap_err();
            assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
        }
        let mut guard = policy();
        guard["limits"] = json!([{ "limit": "breaker consecutive 5", "tiers": null }]);
        let guarded = Canned::new(vec![("/v1/policies/per-ip", 200, guard)]);
        assert!(shown(&guarded, &[]).await.unwrap().contains("no rate"));
        assert_eq!(shown(&Canned::new(vec![]), &[]).await.unwrap_err().status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_limit_keeps_its_other_words() {
        let mut words = policy();
        words["limits"][0] =
            json!({ "limit": "token-bucket 6/s burst 9 refill interval", "max_wait_ms": 250 });
        let written = Written::of(&words).unwrap();
        let yaml = "{ algorithm: token-bucket, rate: 6/s, burst: 9, refill: interval, max_wait: 250ms }";
        assert_eq!(written.yaml(), yaml);
        assert_eq!([plain("6/s"), plain("1,000/s }")], ["6/s", "\"1,000/s }\""]);
        words["limits"][0]["tiers"] = json!({ "by": "plan" });
        assert!(Written::of(&words).is_none());
    }
}
