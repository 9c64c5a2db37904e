//! Why a request was refused: what happened then, from the record, how the same request would go now, and how another
//! limit would have decided then.
//!
//! One box takes whatever has the decision's id in it. The box is sent as a form, since a log line is longer than a
//! URL may be; the page behind it has the id in its URL.

use http::{Method, StatusCode};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::{Context, PageError};
use super::words::{
    Mark, ago, columns, count, cut, fitting, list, mark, moment, name, policy_path, seconds_of, span, text,
    url, whole,
};

/// How much of a text without an id is shown again, in characters.
const SHOWN_AGAIN: usize = 2_000;

/// The most characters of a policy, and the most bytes of the rows of limits and of the lines about now.
const LONGEST_POLICY: usize = 8_000;
const MOST_ROW_BYTES: usize = 28 << 10;

/// The characters of an id: Crockford's base 32.
const DIGITS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Shows the record of a decision, or the box that asks for one.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let Some(asked) = ctx.param("id").or_else(|| ctx.param("q")) else {
        return Ok(html! { h1 { "Why was it refused?" } (ask(ctx, "")) (what_is_kept()) });
    };
    let Some(id) = id_in(asked) else {
        return Ok(html! {
            h1 { "Why was it refused?" }
            p role="alert" { (mark(Mark::Trouble)) " No decision id is in this text. An id has 26 letters and digits." }
            (ask(ctx, asked)) (what_is_kept())
        });
    };
    let reveal = ctx.may("keys");
    // By it the server finds the nearest refusal of the same key, if this one is not kept.
    let digest = ctx.param("digest").or_else(|| digest_in(asked)).map(|digest| ("digest", digest));
    let pairs = [("id", &*id)].into_iter().chain(digest).chain(ctx.reveal());
    let answer = match ctx.get(&url("/v1/explain", pairs)).await {
        Ok(answer) => answer,
        Err(error) if error.status() == StatusCode::NOT_FOUND => {
            return Ok(html! {
                h1 { "Why was " code { (id) } " refused?" }
                p role="alert" { (mark(Mark::Unknown)) " " (cut(error.detail(), SHOWN_AGAIN)) "." }
                (ask(ctx, "")) (what_is_kept())
            });
        }
        Err(error) => return Err(error),
    };
    let other = other_limit(ctx, &id).await?;
    Ok(html! {
        h1 { "Why was " code { (id) } " refused?" }
        h2 { "Then" }
        (then(ctx, &answer, reveal))
        h2 { "Now" }
        (now(&answer))
        @if list(&answer["limits"]).iter().any(|limit| limit["state_known"] == true) {
            h2 { "With another limit" }
            (with(ctx, &id, &answer, &other))
        }
        h2 { "Another one" }
        (ask(ctx, ""))
    })
}

/// Takes the box: finds the id in it.
pub(crate) async fn post(ctx: &Context<'_>) -> Result<String, PageError> {
    match id_in(ctx.field("q").unwrap_or_default()) {
        Some(id) => {
            let digest = ctx.field("q").and_then(digest_in).map(|digest| ("digest", digest));
            Ok(url("/ui/why", [("id", &*id)].into_iter().chain(digest)))
        }
        None => Err(PageError::bad(
            "no decision id is in this text; an id has 26 letters and digits, such as 01M7XS19HMMY060HC3SR7CKCBR",
        )),
    }
}

fn ask(ctx: &Context<'_>, known: &str) -> Markup {
    html! {
        form method="post" action="/ui/why" {
            (ctx.form_field())
            label for="q" { "A decision id, or a text that has one: a log line, the output of curl, the body of a 429" }
            textarea id="q" name="q" rows="4" cols="80" required spellcheck="false" { (cut(known, SHOWN_AGAIN)) }
            p { button { "Explain" } }
        }
    }
}

fn what_is_kept() -> Markup {
    html! {
        p class="quiet" {
            "The id is in the header " code { "x-tidegate-decision-id" } ", in the body of a refusal ("
            code { "tidegate-decision-id" } "), and in the log (" code { "decision_id" }
            "). Kept are the latest refusals of this server until it stops and, if it keeps files, of each refused key one a \
             minute, and all up to 50 a second; nothing of requests that passed."
        }
    }
}

fn then(ctx: &Context<'_>, answer: &Value, reveal: bool) -> Markup {
    let at = seconds_of(text(&answer["decided_at"]));
    let key = answer["key"].as_str();
    html! {
        p {
            (mark(Mark::Trouble)) " " strong { "DENIED" } " " (refused_by(answer))
            @if let Some(at) = at { " at " (moment(at, ctx.now)) ", " (ago(at, ctx.now)) }
            "; " (retry(answer)) "."
        }
        @if let Some(cause) = answer["cause"].as_str() { p { "Cause: " code { (cut(cause, 500)) } } }
        @if let Some(key) = key {
            p {
                "Key: " (name(key))
                @if !reveal {
                    span class="quiet" { " (a digest; a token with the scope " code { "keys" } " sees the name)" }
                }
            }
        }
        (configuration(&answer["configuration"]))
        @if let Some(policy) = answer["policy_then"].as_str() {
            details { summary { "The policy as it was then" } pre { (cut(policy, LONGEST_POLICY)) } }
        }
        (seen(answer))
    }
}

/// Asks how another limit would have decided, if the URL names one. A limit that cannot be used is part of the page.
async fn other_limit(ctx: &Context<'_>, id: &str) -> Result<Result<Value, String>, PageError> {
    let (Some(policy), Some(rate)) = (ctx.param("policy"), ctx.param("rate")) else {
        return Ok(Ok(Value::Null));
    };
    let mut limit = json!({ "rate": rate });
    if let Some(burst) = ctx.param("burst") {
        limit["burst"] = burst.parse::<u64>().map_or_else(|_| burst.into(), Value::from);
    }
    let body = json!({ "with": { "policy": policy, "limit": limit } });
    match ctx.send(Method::POST, &url("/v1/explain", [("id", id)]), &body).await {
        Ok(mut answer) => Ok(Ok(answer["with"].take())),
        Err(error) if error.status() == StatusCode::BAD_REQUEST => Ok(Err(error.detail().to_owned())),
        Err(error) => Err(error),
    }
}

/// A form for another limit, and what it would have decided.
fn with(ctx: &Context<'_>, id: &str, answer: &Value, other: &Result<Value, String>) -> Markup {
    let mut policies: Vec<&str> = Vec::new();
    for limit in list(&answer["limits"]).iter().filter(|limit| limit["state_known"] == true) {
        let policy = text(&limit["policy"]);
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let chosen = ctx.param("policy").or_else(|| answer["policy"].as_str());
    html! {
        @match other {
            Err(detail) => { p role="alert" { (mark(Mark::Trouble)) " " (cut(detail, 500)) "." } },
            Ok(Value::Null) => { p { "It decides by what was spent then, as after a change of the configuration." } },
            Ok(told) => (told_of(told)),
        }
        form method="get" action="/ui/why" {
            input type="hidden" name="id" value=(id);
            label for="policy" { "Policy" }
            select id="policy" name="policy" {
                @for policy in policies { option value=(policy) selected[chosen == Some(policy)] { (cut(policy, 80)) } }
            }
            label for="rate" { "Rate" }
            input id="rate" name="rate" required placeholder="20/s" value=[ctx.param("rate")];
            label for="burst" { "Burst" }
            input id="burst" name="burst" inputmode="numeric" placeholder="40" value=[ctx.param("burst")];
            button { "Decide" }
        }
    }
}

fn told_of(told: &Value) -> Markup {
    let (limit, policy) = (cut(text(&told["limit"]), 200), cut(text(&told["policy"]), 80));
    let had = match (told["has"].as_u64(), told["of"].as_u64()) {
        (Some(has), Some(of)) => format!("; it would have had {} of {}", count(has), count(of)),
        _ => String::new(),
    };
    html! {
        p {
            @match told["decision"].as_str() {
                Some("allowed") => { (mark(Mark::Usual)) " It would have been " strong { "ALLOWED" } },
                Some(_) => { (mark(Mark::Trouble)) " It would have been " strong { "DENIED" } },
                None => { (mark(Mark::Unknown)) " It is not known how it would have gone" },
            }
            " with " code { (limit) } " for " (policy) (had) "."
        }
    }
}

/// Says what refused, with the page of its policy.
fn refused_by(answer: &Value) -> Markup {
    let policy = answer["policy"].as_str();
    let link = |policy: &str| html! { a href=(policy_path(policy)) { (name(policy)) } };
    html! {
        @match (text(&answer["refused_by"]), policy) {
            ("block", None) => "by a block for all policies",
            ("block", Some(policy)) => { "by a block of its key under " (link(policy)) },
            ("deadline", Some(policy)) => { "by the deadline of " (link(policy)) },
            ("list", Some(policy)) => { "by the deny-list of " (link(policy)) },
            ("list", None) => "by the deny-list for all policies",
            ("store", Some(policy)) => { "by " (link(policy)) ", since the store did not answer" },
            ("store", None) => "since the store did not answer",
            ("concurrency", Some(policy)) => { "by the places of " (link(policy)) },
            ("breaker", Some(policy)) => { "by the breaker of " (link(policy)) },
            (_, Some(policy)) => { "by " (link(policy)) },
            (_, None) => "since another check of its call was refused",
        }
    }
}

fn retry(answer: &Value) -> String {
    let by = text(&answer["refused_by"]);
    match (text(&answer["retry"]), answer["retry_after_ms"].as_u64()) {
        ("never", _) if matches!(by, "list" | "deadline") => "a retry would not have helped".to_owned(),
        ("never", _) => "it is never allowed at this cost".to_owned(),
        (_, Some(millis)) if millis < 1_000 => format!("it was to retry after {millis} ms"),
        (_, Some(millis)) => format!("it was to retry after {}", span(millis.div_ceil(1_000))),
        _ => "when it would be allowed was not known".to_owned(),
    }
}

fn configuration(value: &Value) -> Markup {
    let Some(number) = value["number"].as_u64() else { return html! {} };
    html! {
        p {
            "Decided under configuration " (number)
            @if value["in_force"].as_bool() == Some(true) { ", which is still in force." } @else {
                ", which is no longer in force: " a href="/ui/changes" { "what changed" } "."
            }
        }
    }
}

/// What each limit saw when the request came.
fn seen(answer: &Value) -> Markup {
    let limits = list(&answer["limits"]);
    if limits.is_empty() {
        return html! { p { "No limit was asked." } };
    }
    let line = |limit: &Value| {
        html! { tr {
            td { a href=(policy_path(text(&limit["policy"]))) { (name(text(&limit["policy"]))) } }
            td {
                @if limit["shadow_limit"].as_bool() == Some(true) { "shadow limit, " }
                code { (cut(text(&limit["limit"]), 200)) }
                @if text(&limit["mode"]) == "shadow" { span class="quiet" { " (mode shadow: refuses nobody)" } }
            }
            td { (cut(text(&limit["result"]), 40)) }
            td class="n" { @match limit["needs"].as_u64() {
                Some(needs) => (count(needs)),
                None => "unknown",
            } }
            td class="n" { (had(limit)) }
            td class="n" { (count(whole(&limit["of"]))) }
        } }
    };
    let lines = fitting(limits.iter().map(line), MOST_ROW_BYTES);
    let left_out = whole(&answer["limits_left_out"]).saturating_add((limits.len() - lines.len()) as u64);
    html! {
        div class="wide" { table {
            caption { "What each limit saw then" }
            (columns(&[("Policy", false), ("Limit", false), ("Result", false), ("Needed", true), ("Had", true), ("Of", true)]))
            tbody { @for line in &lines { (line) } }
        } }
        @if left_out > 0 { p { "And " (count(left_out)) " more limits, which are not shown." } }
    }
}

fn had(limit: &Value) -> String {
    let mut had = count(whole(&limit["has"]));
    if text(&limit["counts"]) == "places" {
        had += " places free";
    }
    match limit["kept_back"].as_u64() {
        None | Some(0) => had,
        Some(kept) => had + &format!(", {} kept for higher priority", count(kept)),
    }
}

/// How the same request would go now. The server says it in lines, the first for the whole request and one for each
/// limit.
fn now(answer: &Value) -> Markup {
    let lines: Vec<&str> = list(&answer["now"]["lines"]).iter().filter_map(Value::as_str).collect();
    let Some((first, rest)) = lines.split_first() else {
        let told = list(&answer["lines"]).iter().filter_map(Value::as_str);
        let told = told.filter_map(|line| line.strip_prefix("now: ")).next_back();
        return html! { p { (mark(Mark::Unknown)) " " (cut(told.unwrap_or("not known"), 500)) "." } };
    };
    let is_refused = text(&answer["now"]["decision"]) == "denied";
    let line = |line: &&str| html! { li { code { (cut(without_number(line), 1_000)) } } };
    let lines = fitting(rest.iter().map(line), MOST_ROW_BYTES);
    html! {
        p {
            (mark(if is_refused { Mark::Trouble } else { Mark::Usual }))
            " The same request would be " strong { (cut(first, 500)) } ". Asking this charges nothing."
        }
        @if !rest.is_empty() {
            ol class="lines" { @for line in &lines { (line) } }
            @if lines.len() < rest.len() { p class="quiet" { "And " (rest.len() - lines.len()) " more limits." } }
        }
    }
}

/// Takes the number off a line: the list writes its own.
fn without_number(line: &str) -> &str {
    line.trim_start().trim_start_matches(|char: char| char.is_ascii_digit()).trim_start()
}

/// Finds a decision id in a text: one behind its name, else the first word that can be one.
fn id_in(text: &str) -> Option<String> {
    let mut first = None;
    let mut before = ["", ""];
    for word in text.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if is_id(word) {
            if before[0].eq_ignore_ascii_case("decision") && before[1].eq_ignore_ascii_case("id") {
                return Some(word.to_ascii_uppercase());
            }
            first = first.or(Some(word));
        }
        before = [before[1], word];
    }
    first.map(str::to_ascii_uppercase)
}

/// Finds the digest of a key in a text: `#` and 16 digits.
fn digest_in(text: &str) -> Option<&str> {
    const LENGTH: usize = 17;
    text.match_indices('#').find_map(|(at, _)| {
        let digest = text.get(at..at + LENGTH)?;
        let ends = !text[at + LENGTH..].starts_with(|char: char| char.is_ascii_alphanumeric());
        (ends && digest[1..].bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digest)
    })
}

fn is_id(word: &str) -> bool {
    word.len() == 26
        && word.starts_with(|first: char| ('0'..='7').contains(&first))
        && word.chars().all(|char| DIGITS.contains(char.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::super::context::canned::{Canned, pairs};
    use super::*;

    const ID: &str = "01M7XS19HMMY060HC3SR7CKCBR";

    fn record() -> Value {
        json!({
            "answers": "then", "decision": "denied", "decision_id": ID, "decided_at": "2027-01-15T07:59:00.000Z",
            "configuration": { "number": 17, "in_force": false }, "policy": "per-<i>", "refused_by": "limit",
            "key": "client.ip=<b>", "cause": null, "retry": "after", "retry_after_ms": 9_000, "priority": "critical",
            "limits": [{
                "policy": "per-<i>", "mode": "enforce", "limit": "gcra 10/s burst 20", "result": "DENIED",
                "shadow_limit": false, "counts": "units", "needs": 1, "has": 0, "kept_back": 0, "of": 20,
                "retry": "after", "retry_after_ms": 9_000, "state_known": true,
            }],
            "policy_then": "{\"name\":\"per-<i>\"}",
            "with": { "policy": "per-<i>", "limit": "gcra 20/s burst 40", "decision": "allowed", "has": 20, "of": 40 },
            "limits_left_out": 2,
            "lines": ["DENIED by per-<i>", "now: would be ALLOWED"],
            "now": {
                "decision": "allowed",
                "lines": ["ALLOWED, tightest is per-<i>", "  1 per-<i>   allowed     gcra 10/s burst 20: needs 1, has 18 of 20"],
            },
        })
    }

    #[tokio::test]
    async fn what_happened_then_comes_before_how_it_would_go_now() {
        let canned = Canned::new(vec![("/v1/explain", 200, record())]);
        let query = pairs(&[("id", ID)]);
        let page = page(&canned.context("/ui/why", &query, &[])).await.unwrap().into_string();
        let place = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words}: {page}"));
        let in_order = [
            "<h2>Then</h2>",
            "DENIED",
            "60 s ago",
            "retry after 9 s",
            "configuration 17, which is no longer in force",
            "gcra 10/s burst 20",
            "2 more limits",
            "<h2>Now</h2>",
            "ALLOWED, tightest is",
            "has 18 of 20",
        ];
        assert!(in_order.map(place).is_sorted(), "{page}");
        assert!(!page.contains("<i>") && !page.contains("<b>"), "{page}");
        assert_eq!(canned.asked.lock()[0].1, format!("/v1/explain?id={ID}&reveal=true"));
    }

    #[tokio::test]
    async fn another_limit_is_asked_and_what_is_wrong_with_it_is_told() {
        let canned = Canned::new(vec![("/v1/explain", 200, record())]);
        let query = pairs(&[("id", ID), ("policy", "per-<i>"), ("rate", "20/s"), ("burst", "40")]);
        let shown = page(&canned.context("/ui/why", &query, &[])).await.unwrap().into_string();
        assert!(shown.contains("It would have been <strong>ALLOWED</strong>"), "{shown}");
        assert!(shown.contains("20 of 40") && shown.contains("The policy as it was then"), "{shown}");
        assert!(!shown.contains("<i>"), "{shown}");
        let asked = canned.asked.lock();
        let wanted = json!({ "with": { "policy": "per-<i>", "limit": { "rate": "20/s", "burst": 40 } } });
        assert_eq!((&asked[1].0, asked[1].1.as_str()), (&Method::POST, &*format!("/v1/explain?id={ID}")));
        assert_eq!(asked[1].2, wanted.to_string());
    }

    #[tokio::test]
    async fn an_unknown_id_says_what_is_kept() {
        let problem =
            json!({ "detail": format!("decision {ID} is not remembered here (kept: at most 8192)") });
        let canned = Canned::new(vec![("/v1/explain", 404, problem)]);
        let query = pairs(&[("q", ID)]);
        let page = page(&canned.context("/ui/why", &query, &[])).await.unwrap().into_string();
        assert!(page.contains("is not remembered here") && page.contains("until it stops"), "{page}");
        assert!(page.contains("name=\"form\" value=\"form-secret\""), "{page}");
    }

    #[tokio::test]
    async fn a_request_that_was_not_kept_says_so() {
        let mut record = record();
        record["now"] = Value::Null;
        record["lines"] = json!(["DENIED", "now: not known, since a request above 8 KiB is not kept"]);
        let canned = Canned::new(vec![("/v1/explain", 200, record)]);
        let query = pairs(&[("id", ID)]);
        let page = page(&canned.context("/ui/why", &query, &[])).await.unwrap().into_string();
        assert!(page.contains("not known, since a request above 8 KiB is not kept."), "{page}");
    }

    #[tokio::test]
    async fn the_box_leads_to_the_id_and_refuses_what_has_none() {
        let canned = Canned::new(Vec::new());
        let line = format!("{{\"message\":\"denied\",\"decision_id\":\"{ID}\"}}");
        let fields = pairs(&[("q", line.as_str())]);
        let next = post(&canned.context("/ui/why", &[], &fields)).await.unwrap();
        assert_eq!(next, format!("/ui/why?id={ID}"));
        let line = format!("decision_id={ID} key=#5c1f20cf0b14e7a9");
        let fields = pairs(&[("q", line.as_str())]);
        let next = post(&canned.context("/ui/why", &[], &fields)).await.unwrap();
        assert_eq!(next, url("/ui/why", &[("id", ID), ("digest", "#5c1f20cf0b14e7a9")]));
        let fields = pairs(&[("q", "<script>")]);
        assert!(post(&canned.context("/ui/why", &[], &fields)).await.is_err());
        let page = page(&canned.context("/ui/why", &fields, &[])).await.unwrap().into_string();
        assert!(page.contains("No decision id") && !page.contains("<script>"), "{page}");
    }

    #[test]
    fn an_id_is_found_in_whatever_has_one() {
        let other = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        for text in [
            ID.to_owned(),
            ID.to_lowercase(),
            format!("request {other} x-tidegate-decision-id: {ID}\r\n"),
            format!("{{\"trace\":\"{other}\",\"tidegate-decision-id\":\"{ID}\"}}"),
            format!("level=INFO msg=denied decision_id={ID} key=#5c1f20cf0b14e7a9"),
            format!("http://127.0.0.1:8081/ui/why?id={ID}"),
        ] {
            assert_eq!(id_in(&text).as_deref(), Some(ID), "{text}");
        }
        for text in
            ["", "denied", "81M7XS19HMMY060HC3SR7CKCBR", "01M7XS19HMMY060HC3SR7CKCBL", &format!("{ID}X")]
        {
            assert_eq!(id_in(text), None, "{text}");
        }
    }
}
