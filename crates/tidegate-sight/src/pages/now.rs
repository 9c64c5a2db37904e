//! Now: is something refused, is that usual, who is it, is the server well, what changed.

use std::collections::HashMap;

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::context::{Context, PageError, PolicyWords};
use super::picture::{chart, sparkline};
use super::words::{
    Mark, ago, columns, command, count, cut, fitting, lab_path, list, mark, mark_of, name, nanos, num,
    number, percent, policy_path, seconds_of, span, stale, text, url, whole,
};

/// The most policies that have a row.
const ROWS: usize = 50;

/// The most breakers and changes that are shown.
const BREAKERS: usize = 10;
const MOST_BREAKER_BYTES: usize = 16 << 10;
const CHANGES: usize = 5;

/// The most bytes below the verdict. Policies have what the rest leaves.
const MOST_BYTES: usize = 116 << 10;

/// The longest verdict, in characters.
const LONGEST_VERDICT: usize = 1_000;

/// A window of time that a page looks back over.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// As in the URL.
    word: &'static str,
    /// For people, after "in the last".
    words: &'static str,
    seconds: u64,
}

const WINDOWS: [Window; 3] = [
    Window { word: "15m", words: "15 minutes", seconds: 900 },
    Window { word: "1h", words: "hour", seconds: 3_600 },
    Window { word: "24h", words: "24 hours", seconds: 86_400 },
];

/// Returns the window that the URL names.
///
/// # Errors
/// 400 for another word.
fn window_of(ctx: &Context<'_>) -> Result<Window, PageError> {
    let word = ctx.param("w").unwrap_or(WINDOWS[0].word);
    let wrong = || PageError::bad(format!("w {} is not possible; use 15m, 1h or 24h", cut(word, 40)));
    WINDOWS.into_iter().find(|window| window.word == word).ok_or_else(wrong)
}

fn windows(ctx: &Context<'_>, chosen: Window) -> Markup {
    html! {
        nav class="windows" aria-label="Window" { ul { @for window in WINDOWS {
            li {
                a href=(url(ctx.path, &[("w", window.word)]))
                    aria-current=[(window.word == chosen.word).then_some("true")] { (window.words) }
            }
        } } }
    }
}

/// Asks for the overview of the window that the URL names. Keys have their names if the caller may see them.
///
/// # Errors
/// As [`Context::get`]; 400 for another window.
async fn overview(ctx: &Context<'_>) -> Result<Value, PageError> {
    let pairs = [("w", window_of(ctx)?.word)].into_iter().chain(ctx.reveal());
    ctx.get(&url("/v1/overview", pairs)).await
}

/// The overview for `live.js`: as the server says it, with the names of keys and the verdict as pages show them.
pub(super) async fn live(ctx: &Context<'_>) -> Result<Value, PageError> {
    let mut seen = overview(ctx).await?;
    let verdict = cut(text(&seen["verdict"]["text"]), LONGEST_VERDICT);
    if let Some(shown) = seen.pointer_mut("/verdict/text") {
        *shown = verdict.into();
    }
    for policy in seen.pointer_mut("/policies").and_then(Value::as_array_mut).into_iter().flatten() {
        for place in ["/hottest/key", "/most_refused"] {
            if let Some(key) = policy.pointer_mut(place).filter(|key| key.is_string()) {
                *key = shown_key(text(key)).into();
            }
        }
    }
    let cells = |canary: &Value| {
        let cells: Value = canary_cells(canary).into_iter().collect();
        (text(&canary["policy"]).to_owned(), cells)
    };
    let of_canaries: Value = list(&seen["canaries"]).iter().map(cells).collect::<Map<String, Value>>().into();
    if let Some(seen) = seen.as_object_mut() {
        seen.insert("canary_cells".to_owned(), of_canaries);
    }
    Ok(seen)
}

/// Shows the page.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let window = window_of(ctx)?;
    let seen = overview(ctx).await?;
    let words = ctx.policies(seen["configuration"]["number"].as_u64()).await.unwrap_or_default();
    let breakers = ctx.get("/v1/breakers").await;
    let changes = ctx.get(&format!("/v1/changes?limit={CHANGES}")).await;
    let at = seconds_of(text(&seen["at"]));
    let requests = requests(&seen, at.unwrap_or(ctx.now), window, ctx.now);
    let rest = html! { (health(&seen, ctx.now)) (breakers_open(breakers)) (last_changes(changes, ctx.now)) };
    let left = MOST_BYTES.saturating_sub(requests.0.len() + rest.0.len());
    Ok(html! {
        (verdict(&seen["verdict"]))
        (stale(at, ctx.now))
        (windows(ctx, window))
        div data-w=(window.word) data-at=[seen["at"].as_str()] {
            @if is_first_run(&seen) { (first_run(ctx)) } @else {
                (requests)
                (policies(&seen, &words, window.words, left))
            }
            (rest)
        }
    })
}

/// The mark and the word of a level.
fn level(word: &str) -> (Mark, &'static str) {
    match word {
        "usual" => (Mark::Usual, "Usual"),
        "unusual" => (Mark::Unusual, "UNUSUAL"),
        "trouble" => (Mark::Trouble, "TROUBLE"),
        _ => (Mark::Unknown, "Not known yet"),
    }
}

fn verdict(verdict: &Value) -> Markup {
    let (shape, word) = level(text(&verdict["level"]));
    html! {
        h1 class="verdict" data-level=(shape.class()) {
            span data-live="shape" aria-hidden="true" { (shape.shape()) } " "
            strong data-live="word" { (word) } ": "
            span data-live="verdict" { (cut(text(&verdict["text"]), LONGEST_VERDICT)) }
        }
        // What is read aloud, at most every 30 seconds.
        p id="spoken" class="unseen" aria-live="polite" {}
    }
}

fn requests(seen: &Value, at: u64, window: Window, now: u64) -> Markup {
    let requests = &seen["requests"];
    let rates = &requests["per_second"];
    let all: f64 =
        ["allowed", "delayed", "denied", "unmatched", "failed"].iter().map(|word| num(&rates[word])).sum();
    let line = list(&requests["line"]);
    let step = window.seconds as f64 / line.len().max(1) as f64;
    let begin = at.saturating_sub(window.seconds);
    let moment_of = |place: usize| begin.saturating_add((place as f64 * step) as u64);
    let points: Vec<(u64, f64, f64)> = line
        .iter()
        .enumerate()
        .map(|(place, point)| (moment_of(place), num(&point[0]), num(&point[1])))
        .collect();
    let rate = |word: &str, live: &str, title: &str, is_bad: bool| {
        html! {
            div title=(title) {
                dt { (word) "/s" }
                dd class=[is_bad.then_some("bad")] data-live={ "requests." (live) } { (number(num(&rates[live]))) }
            }
        }
    };
    html! {
        section aria-labelledby="requests" {
            h2 id="requests" { "Requests" }
            dl class="numbers" {
                div { dt { "All/s" } dd data-live="requests.all" { (number(all)) } }
                (rate("Passed", "allowed", "may pass at once", false))
                (rate("Delayed", "delayed", "may pass after a wait", false))
                (rate("Refused", "denied", "refused by a policy", num(&rates["denied"]) > 0.0))
                (rate("Unmatched", "unmatched", "no policy is about them, so they pass", false))
                (rate("Failed", "failed", "could not be read or decided", num(&rates["failed"]) > 0.0))
                div title="of the requests of the last minute" {
                    dt { "Refused share" }
                    dd data-live="requests.share" { (percent(num(&requests["refused_share"]))) }
                }
                div { dt { "Usual at this hour" } dd { (usual(&requests["usual"])) } }
            }
            (chart(&points, &format!("Requests a second in the last {}", window.words), now))
        }
    }
}

/// The usual range of the refused share.
fn usual(usual: &Value) -> String {
    if usual.is_null() {
        return "not known yet".to_owned();
    }
    format!("{} to {}", percent(num(&usual["low"])), percent(num(&usual["high"])))
}

/// The rows, the most telling first: what is unusual, then what refuses most, then what is busiest.
fn sorted(policies: &[Value]) -> Vec<&Value> {
    let rank = |policy: &Value| {
        let rates = &policy["per_second"];
        let unusual = policy["unusual"].as_bool() == Some(true);
        (unusual, num(&rates["denied"]) + num(&rates["would_deny"]), num(&rates["allowed"]))
    };
    let mut rows: Vec<&Value> = policies.iter().collect();
    rows.sort_by(|one, other| {
        let (one, other) = (rank(one), rank(other));
        let by_unusual = other.0.cmp(&one.0);
        by_unusual.then(other.1.total_cmp(&one.1)).then(other.2.total_cmp(&one.2))
    });
    rows
}

fn policies(seen: &Value, words: &HashMap<String, PolicyWords>, window: &str, most: usize) -> Markup {
    let rows = sorted(list(&seen["policies"]));
    let canary_of =
        |policy: &str| list(&seen["canaries"]).iter().find(|canary| text(&canary["policy"]) == policy);
    let row_of = |policy: &&Value| {
        let name = text(&policy["name"]);
        html! {
            (row(policy, words.get(name), window))
            @if let Some(canary) = canary_of(name) { (canary_row(canary)) }
        }
    };
    let lines = fitting(rows.iter().take(ROWS).map(row_of), most);
    let shown = lines.len();
    let counted = |word: &str| whole(&seen[word]);
    let more = counted("quiet").saturating_add(counted("more")).saturating_add((rows.len() - shown) as u64);
    html! {
        section aria-labelledby="policies" {
            h2 id="policies" { "Policies" }
            @if rows.is_empty() { p { "No policy decided anything in the last " (window) "." } } @else {
                div class="wide" { table class="policies" {
                    caption { "Policies that decided something in the last " (window) ", what is unusual first" }
                    (columns(&[
                        ("Policy", false), ("Mode", false), ("Limit", false), ("Passed/s", true), ("Refused/s", true),
                        ("Refused", true), ("Usual", false), ("Keys refused", true), ("Refused most", false), ("Hottest key", false), ("Of its rate", true),
                        (window, false), ("More", false),
                    ]))
                    tbody { @for line in &lines { (line) } }
                } }
            }
            @if more > 0 {
                p class="quiet" { (count(more)) " more, quieter: " a href="/ui/policies" { "all policies" } }
            }
        }
    }
}

fn row(policy: &Value, words: Option<&PolicyWords>, window: &str) -> Markup {
    let title = text(&policy["name"]);
    let rates = &policy["per_second"];
    let passed = num(&rates["allowed"]) + num(&rates["delayed"]) + num(&rates["over"]);
    let (denied, would) = (num(&rates["denied"]), num(&rates["would_deny"]));
    let unusual = policy["unusual"].as_bool() == Some(true);
    let points: Vec<(f64, f64)> =
        list(&policy["line"]).iter().map(|point| (num(&point[0]), num(&point[1]))).collect();
    html! {
        tr data-policy=(title) {
            th scope="row" { a href=(policy_path(title)) { (name(title)) } }
            td { (words.map_or("", |words| words.mode.as_str())) }
            td class="words" { (words.map_or("", |words| words.limit.as_str())) }
            td class="n" data-cell="passed" { (number(passed)) }
            td class={ "n" @if denied > 0.0 { " bad" } } {
                span data-cell="mark" { @if unusual { "▲ " } }
                span data-cell="denied" { (number(denied)) }
                span class="quiet" data-cell="would" title="what a limit that only measures would refuse" {
                    @if would > 0.0 { " (+" (number(would)) ")" }
                }
            }
            td class="n" data-cell="share" { (percent(num(&policy["denied_share"]))) }
            td { (usual(&policy["usual"])) }
            td class="n" data-cell="keys" { (count(whole(&policy["keys_refused"]))) }
            td { a href=(url("/ui/keys", &[("policy", title), ("by", "denied")])) {
                code data-cell="most_refused" { (policy["most_refused"].as_str().map_or_else(|| "–".to_owned(), shown_key)) }
            } }
            (hottest(title, &policy["hottest"]))
            td { (sparkline(&points, &format!("{} in the last {window}", cut(title, 60)))) }
            td {
                a href="/ui/why" { "why" }
                " · " a href=(lab_path(title)) { "lab" }
            }
        }
    }
}

/// What the row of a canary shows, by the names of its cells.
fn canary_cells(canary: &Value) -> [(&'static str, String); 7] {
    let share = |of: &str| canary["denied_share"][of].as_f64().map_or_else(|| "–".to_owned(), percent);
    let lasts = format!("{} of {}", span(whole(&canary["elapsed_s"])), span(whole(&canary["for_s"])));
    [
        ("in_force", percent(num(&canary["in_force"]))),
        ("lasts", lasts),
        ("canary", share("canary")),
        ("others", share("others")),
        ("keys", count(whole(&canary["keys_refused"]["canary"]))),
        ("shape", mark_of(text(&canary["level"])).shape().to_owned()),
        ("state", cut(text(&canary["state"]), 300)),
    ]
}

/// The row of a canary, below that of its policy.
fn canary_row(canary: &Value) -> Markup {
    let policy = text(&canary["policy"]);
    let [in_force, lasts, own, others, keys, shape, state] = canary_cells(canary).map(|(_, words)| words);
    html! {
        tr data-canary=(policy) {
            th scope="row" class="quiet" { "↳ canary" }
            td title="of the keys" data-cell="in_force" { (in_force) }
            td class="words" { (cut(text(&canary["limit"]), 200)) }
            td colspan="2" title="for how long it has run" data-cell="lasts" { (lasts) }
            td class="n" title="of its requests, per key" data-cell="canary" { (own) }
            td title="of the requests of other keys, per key" { "others " span data-cell="others" { (others) } }
            td class="n" title="of its keys, beyond what is compared with" data-cell="keys" { (keys) }
            td colspan="3" class="words" {
                span data-cell="shape" aria-hidden="true" { (shape) } " " span data-cell="state" { (state) }
            }
            td { a href={ (policy_path(policy)) "#canary" } { "set" } }
        }
    }
}

fn hottest(policy: &str, hottest: &Value) -> Markup {
    let key = text(&hottest["key"]);
    let of_rate = hottest["of_rate"].as_f64();
    html! {
        td { a href=(url("/ui/keys", &[("policy", policy), ("by", "rate")])) {
            code data-cell="hottest" { @if key.is_empty() { "–" } @else { (shown_key(key)) } }
        } }
        td class={ "n" @if of_rate.is_some_and(|share| share > 1.0) { " warn" } } data-cell="of_rate" {
            (of_rate.map_or_else(|| "–".to_owned(), percent))
        }
    }
}

/// A key in a cell of the table.
fn shown_key(key: &str) -> String {
    cut(key, 200)
}

fn health(seen: &Value, now: u64) -> Markup {
    let (deciding, history) = (&seen["deciding"], &seen["history"]);
    let dropped = whole(&seen["dropped"]);
    let since = |value: &Value| seconds_of(text(value));
    html! {
        section aria-labelledby="server" {
            h2 id="server" { "Server" }
            dl class="numbers" {
                div title="half of all decisions took at most so long" {
                    dt { "Deciding, p50" } dd data-live="deciding.p50" { (nanos(num(&deciding["p50_ns"]))) }
                }
                div title="99 of 100 decisions took at most so long" {
                    dt { "Deciding, p99" } dd data-live="deciding.p99" { (nanos(num(&deciding["p99_ns"]))) }
                }
                div { dt { "In flight" } dd data-live="deciding.in_flight" { (number(num(&deciding["in_flight"]))) } }
                div {
                    dt { "Store" }
                    dd { (cut(text(&seen["store"]["kind"]), 40)) ", " @match seen["store"]["away"].as_str() {
                        None => { (mark(Mark::Usual)) " ok" },
                        Some(why) => strong class="bad" { (mark(Mark::Trouble)) " away: " (cut(why, 500)) },
                    } @if let Some(fleet) = seen["store"]["fleet"].as_str().filter(|fleet| !fleet.is_empty()) {
                        ": " (cut(fleet, 200))
                    } }
                }
                div {
                    dt { "History" }
                    dd { @if history["on_disk"].as_bool() == Some(true) {
                        @if history["up"].as_bool() == Some(true) { "on disk" } @else {
                            strong class="bad" { (mark(Mark::Trouble)) " cannot be written" }
                        }
                    } @else { "in memory: ends with the server" } }
                }
                @if let Some(started) = since(&seen["started"]) { div { dt { "Started" } dd { (ago(started, now)) } } }
                @if let Some(since) = since(&seen["configuration"]["since"]) {
                    div { dt { "Configuration" } dd { a href="/ui/changes" { "#" (num(&seen["configuration"]["number"])) } ", " (ago(since, now)) } }
                }
            }
            @if dropped > 0 {
                p class="warn" { (mark(Mark::Unusual)) " " (count(dropped)) " decisions were not counted here, since they came faster than they could be read." }
            }
        }
    }
}

fn breakers_open(breakers: Result<Value, PageError>) -> Markup {
    let breakers = match breakers {
        Ok(breakers) => breakers,
        Err(error) => {
            return html! { p class="bad" { (mark(Mark::Trouble)) " Breakers cannot be shown: " (cut(error.detail(), 300)) "." } };
        }
    };
    let open: Vec<&Value> =
        list(&breakers["breakers"]).iter().filter(|one| text(&one["state"]) != "closed").collect();
    if open.is_empty() {
        return html! {};
    }
    let line = |one: &&Value| {
        html! { li {
            (mark(Mark::Trouble)) " " strong { (cut(text(&one["state"]), 40).to_uppercase()) } " "
            a href="/ui/guards" { (name(text(&one["policy"]))) } " " (name(text(&one["key"])))
            @if let Some(failed) = one["calls"]["failed"].as_u64() {
                ", " (count(failed)) " of " (count(whole(&one["calls"]["ended"]))) " failed"
            }
            @if let Some(why) = one["tripped_by"].as_str() { ": " (cut(why, 200)) }
        } }
    };
    let lines = fitting(open.iter().take(BREAKERS).map(line), MOST_BREAKER_BYTES);
    html! {
        section aria-labelledby="breakers" {
            h2 id="breakers" { "Breakers not closed" }
            ul { @for line in &lines { (line) } }
            @if open.len() > lines.len() {
                p class="quiet" { a href="/ui/guards" { (count((open.len() - lines.len()) as u64)) " more" } }
            }
        }
    }
}

fn last_changes(changes: Result<Value, PageError>, now: u64) -> Markup {
    let changes = changes.unwrap_or_default();
    let rows = list(&changes["changes"]);
    html! {
        section aria-labelledby="changes" {
            h2 id="changes" { "Last changes" }
            @if rows.is_empty() { p { "Nothing has changed since the server started." } } @else {
                ul { @for change in rows.iter().take(CHANGES) { li {
                    @if let Some(at) = seconds_of(text(&change["at"])) { (ago(at, now)) ": " }
                    a href="/ui/changes" { (cut(text(&change["text"]), 200)) }
                    @match text(&change["who"]) { "" => "", who => { ", by " (cut(who, 64)) } }
                } } }
            }
        }
    }
}

fn is_first_run(seen: &Value) -> bool {
    let rates = seen["requests"]["per_second"].as_object();
    let is_idle = rates.is_none_or(|rates| rates.values().all(|rate| num(rate) == 0.0));
    let had_any = list(&seen["requests"]["line"]).iter().any(|point| num(&point[0]) + num(&point[1]) > 0.0);
    is_idle && !had_any && list(&seen["policies"]).is_empty()
}

fn first_run(ctx: &Context<'_>) -> Markup {
    html! {
        section aria-labelledby="begin" {
            h2 id="begin" { "No request yet" }
            p { "Ask for a decision, where decisions are served (" code { "server.http" } "; 127.0.0.1:8080 unless the file says otherwise):" }
            (command("curl -i localhost:8080/v1/check -d '{\"attributes\": {\"client.ip\": \"203.0.113.9\", \"request.path\": \"/\"}}'"))
            p { "Watch refusals as they happen:" }
            (command(&format!("curl -N {}/v1/events", ctx.address)))
            p { "The same in a terminal:" }
            (command(&format!("tidegate top --server {}", ctx.address)))
            @if ctx.needs_token() {
                p class="quiet" { "These need a token: " code { "-H \"authorization: Bearer $TIDEGATE_TOKEN\"" } " for curl, the variable itself for tidegate." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::context::canned::Canned;
    use super::*;

    fn idle() -> Value {
        json!({
            "at": "2027-01-15T08:00:00Z", "configuration": { "number": 1 }, "store": { "kind": "memory", "away": "it <b>fell</b>", "fleet": "2 of <3> nodes" },
            "history": { "on_disk": false }, "dropped": 3, "quiet": 2, "policies": [],
            "requests": { "per_second": { "allowed": 0.0, "denied": 0.0 }, "refused_share": null, "usual": null, "line": [] },
            "deciding": {}, "verdict": { "level": "unknown", "text": "no request yet" },
        })
    }

    #[tokio::test]
    async fn the_first_page_says_what_to_do_and_what_is_wrong() {
        let server = Canned::new(vec![("/v1/overview", 200, idle())]);
        let page = page(&server.context("/ui/", &[], &[])).await.unwrap().into_string();
        for command in [
            "/v1/check",
            "curl -N http://127.0.0.1:8081/v1/events",
            "tidegate top --server http://127.0.0.1:8081",
        ] {
            assert!(page.contains(command), "{command}: {page}");
        }
        for part in [
            "Not known yet",
            "away: it &lt;b&gt;fell",
            "2 of &lt;3&gt; nodes",
            "3 decisions were not counted",
            "Breakers cannot be shown",
            "in memory",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("STALE"), "{page}");
    }

    #[tokio::test]
    async fn an_old_answer_is_not_shown_as_new() {
        let mut old = idle();
        old["at"] = "2027-01-15T07:59:49Z".into();
        let server = Canned::new(vec![("/v1/overview", 200, old)]);
        let page = page(&server.context("/ui/", &[], &[])).await.unwrap().into_string();
        assert!(page.contains("STALE") && page.contains("07:59:49"), "{page}");
    }

    #[tokio::test]
    async fn the_longest_keys_make_a_page_that_can_be_sent() {
        let key = "\"".repeat(300);
        let line: Vec<Value> = (0..90).map(|at| json!([at * 7, at])).collect();
        let policy = |at: usize| {
            json!({
                "name": format!("p{at}{key}"), "per_second": { "allowed": 1.0, "denied": 1.0, "would_deny": 0.0 },
                "hottest": { "key": key, "of_rate": 1.0 }, "line": line,
            })
        };
        let mut seen = idle();
        seen["policies"] = (0..ROWS).map(policy).collect();
        seen["requests"]["line"] = line.clone().into();
        let open = json!({ "policy": key, "key": key, "state": "open", "tripped_by": key });
        let change = json!({ "at": "2027-01-15T07:59:00Z", "text": key, "who": key });
        let server = Canned::new(vec![
            ("/v1/overview", 200, seen),
            ("/v1/breakers", 200, json!({ "breakers": vec![open; 2 * BREAKERS] })),
            ("/v1/changes", 200, json!({ "changes": vec![change; CHANGES] })),
        ]);
        let page = page(&server.context("/ui/", &[], &[])).await.unwrap().into_string();
        assert!(page.len() < MOST_BYTES + (8 << 10), "{}", page.len());
        let rows = page.matches("<tr data-policy=").count();
        assert!(rows >= 5 && page.contains(&format!("{} more, quieter", 2 + ROWS - rows)), "{rows}: {page}");
        assert!(page.contains("more</a>"), "of the breakers: {page}");
    }

    #[tokio::test]
    async fn a_canary_has_a_row_below_its_policy_and_the_script_the_same_words() {
        let mut seen = idle();
        seen["policies"] =
            json!([{ "name": "per-ip", "per_second": { "allowed": 1.0, "denied": 0.0, "would_deny": 0.0 } }]);
        seen["canaries"] = json!([{
            "policy": "per-ip", "limit": "gcra 6/s", "in_force": 0.05, "elapsed_s": 660, "for_s": 7_200,
            "state": "runs <b>", "level": "ok", "denied_share": { "canary": 0.041, "others": null },
            "keys_refused": { "canary": 3, "allowed": 20 },
        }]);
        let server = Canned::new(vec![("/v1/overview", 200, seen)]);
        let ctx = server.context("/ui/", &[], &[]);
        let page = page(&ctx).await.unwrap().into_string();
        assert!(page.find("data-policy=\"per-ip\"").unwrap() < page.find("data-canary=\"per-ip\"").unwrap());
        for part in ["11 min of 2 h", "4.1 %", "runs &lt;b&gt;", "/ui/policies/per-ip#canary", "gcra 6/s"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let cells = live(&ctx).await.unwrap()["canary_cells"]["per-ip"].clone();
        let expected = json!({
            "in_force": "5.0 %", "lasts": "11 min of 2 h", "canary": "4.1 %", "others": "–", "keys": "3",
            "shape": "●", "state": "runs <b>",
        });
        assert_eq!(cells, expected);
    }

    #[test]
    fn what_is_unusual_comes_first() {
        let row = |name: &str, unusual: bool, denied: f64| json!({ "name": name, "unusual": unusual, "per_second": { "allowed": 1.0, "denied": denied, "would_deny": 0.0 } });
        let rows = [row("quiet", false, 0.0), row("hot", false, 9.0), row("odd", true, 0.6)];
        let names: Vec<&str> = sorted(&rows).into_iter().map(|row| text(&row["name"])).collect();
        assert_eq!(names, ["odd", "hot", "quiet"]);
    }
}
