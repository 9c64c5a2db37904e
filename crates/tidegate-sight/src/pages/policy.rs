//! Policies: the list of all, and what one does now, in the last day and in the last quarter; its canary is set here.

use http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::{Context, PageError};
use super::keys::{key_path, keys_of, names_in};
use super::picture::chart;
use super::words::{
    Mark, columns, count, cut, fitting, lab_path, limit_of, limit_words, list, mark, mark_of, moment, name,
    num, number, percent, policy_path, seconds_of, segment, span, text, url, whole,
};

/// How many policies are on a page of the list.
const LISTED: usize = 50;

/// How many of its keys a policy's page lists.
const KEYS: usize = 10;
const MOST_KEY_BYTES: usize = 12 << 10;

/// The longest text of a policy that is shown, in characters.
const LONGEST_TEXT: usize = 8_000;

/// A span of time that a policy's page looks back over, in steps that make one point of its chart each.
#[derive(Clone, Copy, Debug)]
struct Past {
    words: &'static str,
    /// As `/v1/history` writes it.
    step: &'static str,
    seconds: u64,
    /// The seconds of a point: a multiple of the step's.
    point: u64,
}

const PASTS: [Past; 3] = [
    Past { words: "15 minutes", step: "1s", seconds: 900, point: 10 },
    Past { words: "24 hours", step: "1m", seconds: 86_400, point: 900 },
    Past { words: "90 days", step: "1h", seconds: 90 * 86_400, point: 86_400 },
];

/// What is counted: the series of `/v1/history`, its words, and whether the largest counts instead of the sum.
const SERIES: [(&str, &str, bool); 11] = [
    ("allowed", "Passed at once", false),
    ("delayed", "Passed after a wait", false),
    ("denied", "Refused", false),
    ("over", "Passed over the limit", false),
    ("near", "Passed near the limit", false),
    ("errors", "Decided without the store", false),
    ("would_deny", "Would be refused by what only measures", false),
    ("would_allow", "Would pass what only measures", false),
    ("keys_refused", "Keys refused, the most at once", true),
    ("admitted_units", "Units admitted", false),
    ("canary_denied", "Refused by the canary's limit", false),
];

/// Shows the list of all policies, 50 a page, or those whose name contains a part.
pub(crate) async fn all(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let listed = ctx.get("/v1/policies").await?;
    let part = ctx.param("q").map(str::to_lowercase);
    let wanted = |policy: &&Value| {
        part.as_ref().is_none_or(|part| text(&policy["name"]).to_lowercase().contains(part.as_str()))
    };
    let rows: Vec<&Value> = list(&listed["policies"]).iter().filter(wanted).collect();
    let pages = rows.len().div_ceil(LISTED).max(1);
    let page = ctx.param("page").and_then(|page| page.parse::<usize>().ok()).unwrap_or(1).clamp(1, pages);
    let link = |page: usize| {
        let number = page.to_string();
        let mut pairs = vec![("page", &*number)];
        pairs.extend(ctx.param("q").map(|part| ("q", part)));
        url("/ui/policies", &pairs)
    };
    Ok(html! {
        h1 { "Policies" }
        form method="get" action="/ui/policies" role="search" {
            label { "Name contains " input type="search" name="q" value=[ctx.param("q")]; } " "
            button { "Search" }
        }
        @if rows.is_empty() {
            p { @if part.is_some() { "No policy has a name like this." } @else { "There is no policy: every request passes." } }
        } @else {
            div class="wide" { table {
                caption { (count(rows.len() as u64)) @if rows.len() == 1 { " policy" } @else { " policies" } @if pages > 1 { ", page " (page) " of " (pages) } }
                (columns(&[("Policy", false), ("Mode", false), ("Limit", false), ("By", false), ("Owner", false), ("Place", false)]))
                tbody { @for policy in rows.iter().skip((page - 1) * LISTED).take(LISTED) { (list_row(policy, ctx.now)) } }
            } }
            @if pages > 1 {
                nav aria-label="Pages of the list" class="windows" { ul {
                    @if page > 1 { li { a href=(link(page - 1)) rel="prev" { "before" } } }
                    @if page < pages { li { a href=(link(page + 1)) rel="next" { "next" } } }
                } }
            }
        }
    })
}

fn list_row(policy: &Value, now: u64) -> Markup {
    let title = text(&policy["name"]);
    html! {
        tr {
            th scope="row" { a href=(policy_path(title)) { (name(title)) } }
            td {
                (text(&policy["mode"]))
                @if let Some(in_force) = policy["in_force"].as_str().filter(|word| *word != "yes") {
                    span class="quiet" { ", in force: " (cut(in_force, 40)) }
                }
            }
            td class="words" { (limit_words(policy)) }
            td { (cut(&names_in(&policy["by"]).join(", "), 200)) }
            td { (text(&policy["owner"])) }
            td {
                (cut(text(&policy["place"]), 200))
                @if let Some(since) = policy["unreached_since"].as_str().and_then(seconds_of) {
                    span class="warn" { " ▲ no request reached it since " (moment(since, now)) }
                }
            }
        }
    }
}

/// Shows one policy.
pub(crate) async fn page(ctx: &Context<'_>, policy: &str) -> Result<Markup, PageError> {
    let words = ctx.get(&format!("/v1/policies/{}", segment(policy))).await?;
    let mut pasts = Vec::with_capacity(PASTS.len());
    let mut unknown = None;
    for past in PASTS {
        let history = match history(ctx, policy, past).await {
            Ok(history) => history,
            // Its words are shown all the same.
            Err(error) => {
                unknown = Some(error);
                History::default()
            }
        };
        pasts.push((past, history));
    }
    let keys = busiest(ctx, policy).await;
    let overview = ctx.get("/v1/overview?w=1m").await.unwrap_or_default();
    let canary = list(&overview["canaries"]).iter().find(|canary| text(&canary["policy"]) == policy);
    let guards = list(&words["limits"]).iter().any(|limit| text(&limit["limit"]).starts_with("breaker"));
    Ok(html! {
        h1 { "Policy " (name(policy)) }
        (described(&words, ctx.now))
        @if let Some(canary) = canary { (shown_canary(ctx, policy, canary)) }
        p {
            a href=(url("/ui/keys", &[("policy", policy), ("by", "denied")])) { "Who is refused" } " · "
            a href=(key_path(policy, &[])) { "One key of it" } " · "
            a href="/ui/why" { "Why was a request refused" } " · "
            a href=(lab_path(policy)) { "Try another limit" }
            @if guards { " · " a href="/ui/guards" { "Its breakers" } }
        }
        h2 { "Requests" }
        @match &unknown {
            Some(error) => p { (mark(Mark::Unknown)) " What it decided is not known: " (cut(error.detail(), 500)) "." },
            None => {
                (totals(&pasts))
                @for (past, history) in &pasts { (pictures(*past, history, ctx.now)) }
            }
        }
        h2 { "Busiest keys" }
        (keys)
        @if let Some(written) = words["text"].as_str() {
            h2 { "As it was put" }
            details { summary { "Its text" } pre { code { (tidegate::visible::lines(&short(written))) } } }
        }
    })
}

/// The canary of a policy, beside its other keys.
fn shown_canary(ctx: &Context<'_>, policy: &str, canary: &Value) -> Markup {
    let pair = |of: &Value| {
        let share = |value: &Value| value.as_f64().map_or_else(|| "–".to_owned(), percent);
        let allowed = of["allowed_more"].as_f64();
        html! {
            (share(&of["canary"])) ", other keys " (share(&of["others"]))
            @if let Some(allowed) = allowed { ", allowed are " (percent(allowed)) " more" }
        }
    };
    let (refused, requests, keys) = (&canary["keys_refused"], &canary["requests"], &canary["keys"]);
    let of_keys = canary["share_of_keys"]["canary"].as_f64().filter(|share| *share < 1.0);
    let shape = mark_of(text(&canary["level"]));
    html! {
        section aria-labelledby="canary" {
            h2 id="canary" { "Canary" }
            p role="status" { (mark(shape)) " " strong { (cut(text(&canary["state"]), 600)) } }
            dl class="words" {
                dt { "Limit" } dd { code { (cut(text(&canary["limit"]), 500)) } }
                dt { "Share of the keys" } dd { (percent(num(&canary["share"]))) " asked, " (percent(num(&canary["in_force"]))) " in force" }
                dt { "Has run" } dd {
                    (span(whole(&canary["elapsed_s"]))) " of " (span(whole(&canary["for_s"])))
                    @if text(&canary["then"]) == "enforce" { ", then it is put in force for all keys if it held" } @else { ", then it stays as it is" }
                }
                dt { "Refused, per key" } dd { (pair(&canary["denied_share"])) }
                dt { "Keys refused" } dd {
                    (count(whole(&refused["canary"]))) " beyond what is compared with: " (cut(text(&canary["compared_with"]), 40))
                    @if let Some(allowed) = refused["allowed"].as_u64() { "; allowed are " (count(allowed)) }
                }
                dt { "Failed calls, per key" } dd {
                    @if canary["failed_share"]["canary"].is_null() { "none reported" } @else { (pair(&canary["failed_share"])) }
                }
                dt { "Seen" } dd {
                    (count(whole(&requests["canary"]))) " requests of " (count(whole(&keys["canary"]))) " keys, and "
                    (count(whole(&requests["others"]))) " of " (count(whole(&keys["others"]))) " others"
                    @if let Some(share) = of_keys { "; 1 of " (count(share.recip().round() as u64)) " keys is counted" }
                }
            }
            @if ctx.may("admin") { (canary_form(ctx, policy, canary)) } @else {
                p class="quiet" { "To stop or start it needs a token with the scope " code { "admin" } "." }
            }
        }
    }
}

fn canary_form(ctx: &Context<'_>, policy: &str, canary: &Value) -> Markup {
    let runs = num(&canary["in_force"]) > 0.0;
    // Without the noise of a number in binary.
    let asked = (num(&canary["share"]) * 10_000.0).round() / 100.0;
    html! {
        form method="post" action=(policy_path(policy)) {
            (ctx.form_field())
            @if runs {
                input type="hidden" name="percent" value="0";
            } @else {
                label { "for " input name="percent" value=(asked) size="6" inputmode="decimal" required; " % of the keys" } " "
            }
            label { "because " input name="reason" maxlength="255" required; } " "
            button { @if runs { "Stop the canary" } @else { "Start it again" } }
        }
    }
}

/// Takes the form of a canary.
pub(crate) async fn post(ctx: &Context<'_>, policy: &str) -> Result<String, PageError> {
    let percent = ctx.field("percent").and_then(|percent| percent.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    let percent = percent
        .ok_or_else(|| PageError::bad("the share is not 0 to 100 % of the keys; nothing was changed"))?;
    let reason = ctx.field("reason").ok_or_else(|| PageError::bad("say why; nothing was changed"))?;
    let body = json!({ "share": percent / 100.0, "reason": reason });
    ctx.send(Method::POST, &format!("/v1/canaries/{}", segment(policy)), &body).await?;
    Ok(policy_path(policy))
}

/// Cuts a text of several lines.
fn short(written: &str) -> String {
    match written.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &written[..end]),
        None => written.to_owned(),
    }
}

/// The policy in the words of the file.
fn described(words: &Value, now: u64) -> Markup {
    let by = names_in(&words["by"]).join(", ");
    let when = names_in(&words["when"]).join("; ");
    let matches = words["match"].as_object().filter(|parts| !parts.is_empty());
    let answer = |answer: &Value| {
        html! { (num(&answer["status"])) @if let Some(problem) = answer["problem"].as_str() { ", " (cut(problem, 100)) } }
    };
    let said = |field: &str| words[field].as_str().map(|word| cut(word, 200));
    html! {
        dl class="words" {
            dt { "Mode" } dd {
                strong { (cut(text(&words["mode"]), 40)) }
                @if text(&words["mode"]) == "shadow" { ": it counts what it would refuse, and refuses nobody" }
            }
            dt { "Limit" } dd { @match list(&words["limits"]) {
                [] => "none",
                limits => @for limit in limits.iter().take(32) { p { code { (cut(&limit_of(limit), 500)) } (more_of(limit)) } },
            } }
            @if !words["shadow_limit"].is_null() {
                dt { "Only measures" } dd { code { (cut(&limit_of(&words["shadow_limit"]), 500)) } }
            }
            dt { "One limit for each" } dd { @if by.is_empty() { "nothing: all requests share it" } @else { (cut(&by, 500)) } }
            dt { "Is about" } dd { @match matches {
                None => "all requests",
                Some(_) => code { (cut(&words["match"].to_string(), 1_000)) },
            } }
            @if !when.is_empty() { dt { "When" } dd { code { (cut(&when, 1_000)) } } }
            @if let Some(in_force) = said("in_force") { dt { "In force" } dd { (in_force) } }
            @if let Some(since) = words["unreached_since"].as_str().and_then(seconds_of) {
                dt { "Reached" } dd class="warn" { "▲ by no request since " (moment(since, now)) }
            }
            @if let Some(charge) = said("charge") { dt { "Charges" } dd { (charge) } }
            @if let Some(over) = said("over") { dt { "Over the limit" } dd { (over) } }
            @if !words["deny"].is_null() { dt { "Refuses with" } dd { (answer(&words["deny"])) } }
            @if !words["shed"].is_null() { dt { "Sheds with" } dd { (answer(&words["shed"])) } }
            @if let Some(share) = said("share") { dt { "Decided" } dd { (share) } }
            @if let Some(near) = said("near_limit") { dt { "Near the limit" } dd { "from " (near) } }
            @if let Some(store) = said("on_store_error") { dt { "Without the store" } dd { (store) } }
            @if let Some(limit) = words["places"]["limit"].as_u64() {
                dt { "Places" } dd { (count(whole(&words["places"]["in_use"]))) " of " (count(limit)) " in use" }
            }
            dt { "Owner" } dd {
                (cut(text(&words["owner"]), 40))
                @if let Some(place) = said("place") { ", " code { (place) } }
            }
        }
    }
}

fn more_of(limit: &Value) -> Markup {
    let overrides = whole(&limit["overrides"]);
    let wait = whole(&limit["max_wait_ms"]);
    html! {
        @if let Some(rate) = limit["per_second_in_force"].as_f64() { ", now " (number(rate)) " a second" }
        @if overrides > 0 { ", with " (count(overrides)) " exceptions" }
        @if wait > 0 { ", requests wait up to " (count(wait)) " ms" }
    }
}

/// The points of each series, in the order of [`SERIES`]: when each begins, and the count of each.
#[derive(Debug, Default)]
struct History {
    points: Vec<(u64, [f64; SERIES.len()])>,
}

impl History {
    /// Sums of the whole span, or the largest, by series.
    fn total(&self, series: usize) -> f64 {
        let values = self.points.iter().map(|(_, values)| values[series]);
        if SERIES[series].2 { values.fold(0.0, f64::max) } else { values.sum() }
    }

    /// What a chart draws: when, and two sums of series a second.
    fn rates(&self, past: Past, first: &[usize], second: &[usize]) -> Vec<(u64, f64, f64)> {
        let rate = |values: &[f64; SERIES.len()], of: &[usize]| {
            of.iter().map(|series| values[*series]).sum::<f64>() / past.point as f64
        };
        self.points.iter().map(|(at, values)| (*at, rate(values, first), rate(values, second))).collect()
    }
}

async fn history(ctx: &Context<'_>, policy: &str, past: Past) -> Result<History, PageError> {
    let series: Vec<&str> = SERIES.iter().map(|(series, ..)| *series).collect();
    // A point is of whole steps, and the last one is not yet over.
    let to = ctx.now / past.point * past.point + past.point;
    let from = to.saturating_sub(past.seconds);
    let (from_text, to_text, series) = (from.to_string(), to.to_string(), series.join(","));
    let pairs = [
        ("policy", policy),
        ("series", &*series),
        ("from", &*from_text),
        ("to", &*to_text),
        ("step", past.step),
    ];
    let answer = ctx.get(&url("/v1/history", &pairs)).await?;
    let places = (past.seconds / past.point) as usize;
    let mut points: Vec<(u64, [f64; SERIES.len()])> =
        (0..places as u64).map(|place| (from + place * past.point, [0.0; SERIES.len()])).collect();
    for (number, (word, _, is_largest)) in SERIES.into_iter().enumerate() {
        for point in list(&answer["series"][word]) {
            let (Some(at), value) = (point[0].as_u64(), num(&point[1])) else { continue };
            let place = at.checked_sub(from).map(|after| (after / past.point) as usize);
            let Some(place) = place.filter(|place| *place < places) else { continue };
            let values = &mut points[place].1;
            values[number] = if is_largest { values[number].max(value) } else { values[number] + value };
        }
    }
    Ok(History { points })
}

fn totals(pasts: &[(Past, History)]) -> Markup {
    html! {
        div class="wide" { table {
            caption { "Decisions of this policy" }
            thead { tr {
                th scope="col" { "Decision" }
                @for (past, _) in pasts { th scope="col" class="n" { "last " (past.words) } }
            } }
            tbody { @for (number, (_, words, _)) in SERIES.iter().enumerate() {
                @let values: Vec<f64> = pasts.iter().map(|(_, history)| history.total(number)).collect();
                // What a policy never does is left out; passed and refused are always there.
                @if number < 3 || values.iter().any(|value| *value > 0.0) { tr {
                    th scope="row" { (words) }
                    @for value in &values { td class="n" { (count(value.round() as u64)) } }
                } }
            } }
        } }
    }
}

/// The places in [`SERIES`] of what passed, was refused, and would be either.
const PASSED: [usize; 3] = [0, 1, 3];
const REFUSED: [usize; 1] = [2];
const WOULD_DENY: [usize; 1] = [6];
const WOULD_PASS: [usize; 1] = [7];

fn pictures(past: Past, history: &History, now: u64) -> Markup {
    let measured = history.total(WOULD_DENY[0]) > 0.0;
    html! {
        section class="past" {
            h3 { "Last " (past.words) }
            (chart(&history.rates(past, &PASSED, &REFUSED), &format!("Requests a second in the last {}", past.words), now))
            @if measured {
                (chart(
                    &history.rates(past, &WOULD_PASS, &WOULD_DENY),
                    &format!("What only measures, in the last {}: would pass and would be refused", past.words),
                    now,
                ))
            }
        }
    }
}

/// The keys that were refused most, and those that were admitted most.
async fn busiest(ctx: &Context<'_>, policy: &str) -> Markup {
    let most = KEYS.to_string();
    let mut tables = Vec::new();
    for (by, words) in
        [("denied", "Refused most in the last 15 minutes"), ("rate", "Admitted most in the last 15 minutes")]
    {
        let pairs = [("policy", policy), ("by", by), ("w", "15m"), ("limit", &*most)];
        let path = url("/v1/busiest", pairs.into_iter().chain(ctx.reveal()));
        let table = match ctx.get(&path).await {
            Ok(answer) => {
                let rows: Vec<&Value> = list(&answer["keys"]).iter().take(KEYS).collect();
                let keys = keys_of(ctx, &rows).await;
                keys_table(policy, words, &rows, &keys)
            }
            // Its history and its words are shown all the same.
            Err(error) => {
                html! { p { (mark(Mark::Trouble)) " " (words) ": " (cut(error.detail(), 300)) "." } }
            }
        };
        tables.push(table);
    }
    html! { @for table in &tables { (table) } }
}

fn keys_table(policy: &str, words: &str, rows: &[&Value], keys: &[Option<Vec<(String, String)>>]) -> Markup {
    if rows.is_empty() {
        return html! { p { (words) ": no key." } };
    }
    let line = |(row, key): (&&Value, &Option<Vec<(String, String)>>)| {
        html! { tr {
            td { @match key {
                Some(pairs) => a href=(key_path(policy, pairs)) { (name(text(&row["key"]))) },
                None => (name(text(&row["key"]))),
            } }
            td class="n" { (count(whole(&row["count"]))) }
            td class="n" { (number(num(&row["per_second"]))) }
        } }
    };
    let lines = fitting(rows.iter().zip(keys).map(line), MOST_KEY_BYTES);
    html! {
        div class="wide" { table {
            caption { (words) }
            (columns(&[("Key", false), ("Count", true), ("A second", true)]))
            tbody { @for line in &lines { (line) } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::context::canned::{Canned, NOW, pairs};
    use super::*;

    fn words(name: &str) -> Value {
        json!({
            "name": name, "mode": "enforce", "match": { "path": ["/api/**"] }, "when": [], "by": ["client.ip"],
            "limits": [{ "limit": "10/s burst 20", "tiers": null, "overrides": 0, "max_wait_ms": 0, "keep_for": {} }],
            "shadow_limit": { "limit": "6/s", "tiers": null, "overrides": 0, "max_wait_ms": 0, "keep_for": {} },
            "charge": "on-check", "over": "deny", "deny": { "status": 429, "problem": "quota-exceeded" }, "shed": null,
            "share": "local", "near_limit": "80%", "on_store_error": "allow", "owner": "file", "place": "shop.yaml:8",
        })
    }

    #[tokio::test]
    async fn a_policy_is_told_in_the_words_of_its_file_and_by_its_past() {
        let quarter = json!({ "step": 1, "series": {
            "allowed": [[NOW - 20, 30], [NOW - 19, 30]], "denied": [[NOW - 19, 40]], "would_deny": [[NOW - 19, 2]],
            "keys_refused": [[NOW - 20, 1], [NOW - 19, 3]],
        } });
        let keys = json!({ "by": "denied", "keys": [
            { "policy": "per-ip", "key": "client.ip=203.0.113.9", "count": 91, "error": 0, "per_second": 0.1 },
            { "policy": "per-ip", "key": "client.ip=<script>alert(1)</script>\u{202e}", "count": 1, "error": 0, "per_second": 0.0 },
        ] });
        let server = Canned::new(vec![
            ("/v1/policies/per-ip", 200, words("per-ip")),
            ("/v1/history", 200, quarter),
            ("/v1/busiest", 200, keys),
        ]);
        let page =
            page(&server.context("/ui/policies/per-ip", &[], &[]), "per-ip").await.unwrap().into_string();
        for part in [
            "10/s burst 20",
            "6/s",
            "client.ip",
            "shop.yaml:8",
            "/ui/keys/per-ip?client.ip=203.0.113.9",
            "/ui/lab/per-ip",
            "Keys refused",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<script>") && !page.contains('\u{202e}'), "{page}");
        assert!(page.len() < 128 << 10, "{}", page.len());
        let asked = server.asked.lock();
        assert!(asked.iter().any(|(_, path, _)| path.contains("step=1m")), "{asked:?}");
    }

    fn canary(in_force: f64) -> Value {
        json!({
            "policy": "per-ip", "limit": "gcra 6/s <b>burst</b> 12", "share": 0.05, "in_force": in_force, "elapsed_s": 660,
            "for_s": 7_200, "then": "enforce", "state": "rolled back 03:12: 31 keys refused > 20", "level": "bad",
            "compared_with": "its own limit", "requests": { "canary": 1_500, "others": 28_500 },
            "keys": { "canary": 100, "others": 1_900 }, "share_of_keys": { "canary": 0.25, "others": 0.0625 },
            "denied_share": { "canary": 0.041, "others": 0.01, "allowed_more": 0.01 },
            "failed_share": { "canary": null, "others": null, "allowed_more": 0.02 },
            "keys_refused": { "canary": 31, "allowed": 20 },
        })
    }

    #[tokio::test]
    async fn a_canary_is_shown_beside_the_other_keys_and_may_be_stopped_or_started() {
        let shown = async |in_force: f64, may: bool| {
            let canaries = json!({ "canaries": [canary(in_force)] });
            let server = Canned::new(vec![
                ("/v1/policies/per-ip", 200, words("per-ip")),
                ("/v1/overview", 200, canaries),
            ]);
            let ctx = if may {
                server.context("/ui/policies/per-ip", &[], &[])
            } else {
                server.reader("/ui/policies/per-ip", &[])
            };
            page(&ctx, "per-ip").await.unwrap().into_string()
        };
        let stopped = shown(0.0, true).await;
        for part in [
            "rolled back 03:12: 31 keys refused &gt; 20",
            "gcra 6/s &lt;b&gt;burst&lt;/b&gt; 12",
            "5.0 % asked, 0 % in force",
            "11 min of 2 h, then it is put in force for all keys if it held",
            "4.1 %, other keys 1.0 %, allowed are 1.0 % more",
            "31 beyond what is compared with: its own limit; allowed are 20",
            "none reported",
            "1,500 requests of 100 keys, and 28,500 of 1,900 others; 1 of 4 keys is counted",
            "Start it again",
            "name=\"percent\" value=\"5\"",
        ] {
            assert!(stopped.contains(part), "{part}: {stopped}");
        }
        assert!(!stopped.contains("<b>"), "{stopped}");
        assert!(shown(0.05, true).await.contains("Stop the canary"));
        let read = shown(0.05, false).await;
        assert!(!read.contains("Stop the canary") && read.contains("needs a token with the scope"), "{read}");
    }

    #[tokio::test]
    async fn the_form_of_a_canary_becomes_what_the_server_takes() {
        let canned = Canned::new(vec![("/v1/canaries/", 200, json!({ "done": "" }))]);
        let fields = pairs(&[("percent", "2.5"), ("reason", "once more")]);
        let next = post(&canned.context("/ui/policies/a", &[], &fields), "a/b").await.unwrap();
        assert_eq!(next, "/ui/policies/a%2Fb");
        let (method, path, body) = canned.asked.lock()[0].clone();
        assert_eq!((method, path.as_str()), (Method::POST, "/v1/canaries/a%2Fb"));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body, json!({ "share": 0.025, "reason": "once more" }));
        for wrong in [
            &[("percent", "101"), ("reason", "x")][..],
            &[("percent", "x"), ("reason", "x")],
            &[("percent", "5")],
            &[("reason", "x")],
        ] {
            let fields = pairs(wrong);
            assert!(post(&canned.context("/ui/policies/a", &[], &fields), "a").await.is_err(), "{wrong:?}");
        }
        assert_eq!(canned.asked.lock().len(), 1);
    }

    #[tokio::test]
    async fn a_thousand_policies_are_shown_in_pages() {
        let long = "ü".repeat(100);
        let policies: Vec<Value> = (0..1_000).map(|at| words(&format!("<b>{at}{long}"))).collect();
        let listed =
            json!({ "config": { "number": 1, "since": "2027-01-15T00:00:00Z" }, "policies": policies });
        let server = Canned::new(vec![("/v1/policies", 200, listed)]);
        let page = all(&server.context("/ui/policies", &[], &[])).await.unwrap().into_string();
        assert!(page.contains("1,000 policies, page 1 of 20") && page.contains("&lt;b&gt;49"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("&lt;b&gt;50"));
        assert!(page.len() < 128 << 10, "{}", page.len());
        let query = pairs(&[("q", "999"), ("page", "7")]);
        let page = all(&server.context("/ui/policies", &query, &[])).await.unwrap().into_string();
        assert!(page.contains("&lt;b&gt;999") && page.contains("1 policy"), "{page}");
    }
}
