//! Alerts: what fires, what fired in the last seven days, silences, and how messages fare.

use http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::{Context, PageError};
use super::words::{
    Mark, columns, count, cut, fitting, list, mark, moment, name, policy_path, seconds_of, span, text, url,
    whole,
};
use crate::alerts::rule_words;

/// How many alerts are shown at first, and at most.
const SHOWN: usize = 100;
const MOST: usize = 400;

/// The most bytes of the rows of both tables, and of those of silences.
const MOST_BYTES: usize = 88 << 10;
const MOST_SILENCE_BYTES: usize = 24 << 10;

/// Receivers and silences that are shown: more than there can be.
const MOST_LINES: usize = 100;

/// Shows the alerts, those that fire first.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let most = ctx.param("limit").map_or(Ok(SHOWN), str::parse::<usize>);
    let most = most.ok().filter(|most| (1..=MOST).contains(most));
    let most = most.ok_or_else(|| PageError::bad(format!("limit is how many are shown; use 1 to {MOST}")))?;
    let answer = ctx.get(&url("/v1/alerts", &[("limit", &*most.to_string())])).await?;
    let alerts = list(&answer["alerts"]);
    let (firing, past): (Vec<&Value>, Vec<&Value>) =
        alerts.iter().partition(|alert| alert["resolved"].is_null());
    let all = whole(&answer["firing"]);
    let fires = table(ctx, "What fires now", &firing, MOST_BYTES);
    let left = MOST_BYTES.saturating_sub(fires.0.len());
    Ok(html! {
        h1 { "Alerts" }
        @if all == 0 {
            p { (mark(Mark::Usual)) " Nothing fires." }
        } @else {
            p role="status" { (mark(Mark::Trouble)) " " strong { (count(all)) " fire" @if all == 1 { "s" } } "." }
        }
        @if !firing.is_empty() { (fires) }
        section aria-labelledby="past" {
            h2 id="past" { "The last seven days" }
            @if past.is_empty() { p { "Nothing was over in the last seven days." } }
            @else { (table(ctx, "What is over, the newest first", &past, left)) }
            @if alerts.len() >= most && most < MOST {
                p { a href=(url("/ui/alerts", &[("limit", &*MOST.to_string())])) { "More" } }
            }
        }
        section aria-labelledby="silences" { h2 id="silences" { "Silences" } (silences(ctx, list(&answer["silences"]))) }
        section aria-labelledby="receivers" { h2 id="receivers" { "Receivers" } (receivers(ctx, list(&answer["receivers"]))) }
    })
}

fn table(ctx: &Context<'_>, caption: &str, alerts: &[&Value], most: usize) -> Markup {
    let lines = fitting(alerts.iter().map(|alert| line(ctx, alert)), most);
    html! {
        div class="wide" { table {
            caption { (caption) }
            (columns(&[("Since", false), ("Lasts", false), ("Rule", false), ("What", false), ("Policy", false), ("Key", false)]))
            tbody { @for line in &lines { (line) } }
        } }
        @if lines.len() < alerts.len() {
            p class="quiet" { (alerts.len() - lines.len()) " more are not shown, since the texts are very long: see /v1/alerts." }
        }
    }
}

fn line(ctx: &Context<'_>, alert: &Value) -> Markup {
    let at = |field: &str| seconds_of(text(&alert[field]));
    let (policy, key, path) = (text(&alert["policy"]), text(&alert["key"]), text(&alert["path"]));
    let (shape, word) = match (at("resolved"), text(&alert["severity"])) {
        (Some(_), _) => (Mark::Usual, "over"),
        (None, "info") => (Mark::Unusual, "fires"),
        (None, _) => (Mark::Trouble, "fires"),
    };
    html! {
        tr {
            td { @match at("since") { Some(since) => (moment(since, ctx.now)), None => "–", } }
            td {
                @match (at("since"), at("resolved")) {
                    (Some(since), Some(end)) => (span(end.saturating_sub(since))),
                    (Some(since), None) => (span(ctx.now.saturating_sub(since))),
                    _ => "–",
                }
            }
            td {
                (mark(shape)) " " (word) " " (cut(text(&alert["rule"]), 40))
                @if alert["silenced"].as_bool() == Some(true) { " " span class="quiet" { "silenced" } }
            }
            td class="words" {
                @if path.starts_with("/ui/") { a href=(path) { (cut(text(&alert["text"]), 600)) } }
                @else { (cut(text(&alert["text"]), 600)) }
            }
            td { @if policy.is_empty() { "–" } @else { a href=(policy_path(policy)) { (name(policy)) } } }
            td { @if key.is_empty() { "–" } @else { (name(key)) } }
        }
    }
}

fn silences(ctx: &Context<'_>, silences: &[Value]) -> Markup {
    let or_all = |value: &Value| match text(value) {
        "" => "all".to_owned(),
        word => cut(word, 100),
    };
    let may = ctx.may("admin");
    let line = |silence: &Value| {
        html! { tr {
            td { (or_all(&silence["rule"])) }
            td { (or_all(&silence["policy"])) }
            td { @match seconds_of(text(&silence["until"])) { Some(until) => (moment(until, ctx.now)), None => "–", } }
            td { @match text(&silence["who"]) { "" => span class="quiet" { "not known" }, who => (cut(who, 100)), } }
            td { (cut(text(&silence["reason"]), 300)) }
            td { @if may {
                form method="post" action="/ui/alerts" class="inline" {
                    (ctx.form_field())
                    input type="hidden" name="do" value="end-silence";
                    input type="hidden" name="rule" value=(text(&silence["rule"]));
                    input type="hidden" name="policy" value=(text(&silence["policy"]));
                    button { "End" }
                }
            } }
        } }
    };
    let lines = fitting(silences.iter().take(MOST_LINES).map(line), MOST_SILENCE_BYTES);
    html! {
        p class="quiet" { "A silenced alert is shown here, and sent to nobody." }
        @if silences.is_empty() { p { "Nothing is silenced." } } @else {
            div class="wide" { table {
                caption { "What is sent to nobody" }
                (columns(&[("Rule", false), ("Policy", false), ("Until", false), ("By", false), ("Reason", false), ("End", false)]))
                tbody { @for line in &lines { (line) } }
            } }
            @if lines.len() < silences.len() {
                p class="quiet" { (silences.len() - lines.len()) " more are not shown: see /v1/alerts." }
            }
        }
        @if may {
            details {
                summary { "Silence" }
                form method="post" action="/ui/alerts" {
                    (ctx.form_field())
                    input type="hidden" name="do" value="silence";
                    label { "Rule " select name="rule" {
                        option value="" { "all" }
                        @for word in rule_words() { option value=(word) { (word) } }
                    } } " "
                    label { "policy " input name="policy" placeholder="all" size="16"; } " "
                    label { "for " input name="for" value="1h" size="8" required; } " "
                    label { "because " input name="reason" maxlength="255" required; } " "
                    button { "Silence" }
                }
            }
        } @else {
            p class="quiet" { "To silence needs a token with the scope " code { "admin" } "." }
        }
    }
}

fn receivers(ctx: &Context<'_>, receivers: &[Value]) -> Markup {
    if receivers.is_empty() {
        return html! {
            p {
                "Nobody is told. Receivers stand in the policy file, under " code { "server.sight.alerts" }
                ": an Alertmanager, or a webhook."
            }
        };
    }
    let number = |receiver: &Value, field: &str| count(whole(&receiver[field]));
    html! {
        div class="wide" { table {
            caption { "How messages fare since the start" }
            (columns(&[("Receiver", false), ("State", false), ("Last sent", false), ("Sent", true), ("Waiting", true), ("Failed", true), ("Refused", true), ("Dropped", true)]))
            tbody { @for receiver in receivers.iter().take(MOST_LINES) { tr {
                td { (cut(text(&receiver["kind"]), 20)) " " (name(text(&receiver["address"]))) }
                td { @match (receiver["error"].as_str(), receiver["last_sent"].as_str()) {
                    (Some(why), _) => { (mark(Mark::Trouble)) " " (cut(why, 300)) },
                    (None, Some(_)) => { (mark(Mark::Usual)) " ok" },
                    (None, None) => span class="quiet" { "nothing was sent yet" },
                } }
                td { @match seconds_of(text(&receiver["last_sent"])) { Some(at) => (moment(at, ctx.now)), None => "–", } }
                @for field in ["sent", "waiting", "failed", "refused", "dropped"] {
                    td class="n" { (number(receiver, field)) }
                }
            } } }
        } }
        @if ctx.may("admin") {
            form method="post" action="/ui/alerts" {
                (ctx.form_field())
                input type="hidden" name="do" value="test";
                button { "Send a test" }
            }
        }
    }
}

/// Takes a form of the page.
pub(crate) async fn post(ctx: &Context<'_>) -> Result<String, PageError> {
    let action = ctx.field("do").filter(|action| ["silence", "end-silence", "test"].contains(action));
    let action =
        action.ok_or_else(|| PageError::bad("the form does not say what to do; nothing was changed"))?;
    let mut body = json!({ "do": action });
    for field in ["rule", "policy", "for", "reason"] {
        if let Some(value) = ctx.field(field).filter(|_| action != "test") {
            body[field] = value.into();
        }
    }
    ctx.send(Method::POST, "/v1/alerts", &body).await?;
    Ok("/ui/alerts".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::context::canned::{Canned, pairs};
    use super::*;

    fn alert(rule: &str, resolved: &Value) -> Value {
        json!({
            "number": 1, "rule": rule, "severity": "warning", "policy": "per-<b>", "key": "#1", "silenced": false,
            "since": "2027-01-15T07:00:00Z", "fired": "2027-01-15T07:02:00Z", "resolved": resolved,
            "text": "a key of `per-<b>` is refused 92 % of the time", "path": "/ui/keys?policy=per",
        })
    }

    fn told() -> Value {
        json!({
            "firing": 1,
            "alerts": [alert("customer-cut", &Value::Null), alert("store-away", &json!("2027-01-15T07:30:00Z"))],
            "silences": [{ "rule": "tenant-near", "policy": null, "until": "2027-01-15T09:00:00Z", "who": "ann", "reason": "the sale" }],
            "receivers": [{ "kind": "webhook", "address": "https://hooks.example", "sent": 7, "failed": 2, "refused": 0,
                "dropped": 0, "waiting": 1, "last_sent": null, "error": "answered 503" }],
        })
    }

    #[tokio::test]
    async fn what_fires_comes_first_with_the_page_that_says_more() {
        let canned = Canned::new(vec![("/v1/alerts", 200, told())]);
        let page = page(&canned.context("/ui/alerts", &[], &[])).await.unwrap().into_string();
        for words in [
            "1 fires",
            "href=\"/ui/keys?policy=per\"",
            "refused 92 % of the time",
            "30 min",
            "the sale",
            "https://hooks.example",
            "answered 503",
            "Send a test",
            "option value=\"breaker-trips\"",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(page.find("customer-cut").unwrap() < page.find("store-away").unwrap(), "{page}");
        assert!(!page.contains("<b>"), "{page}");
        assert_eq!(canned.asked.lock()[0].1, "/v1/alerts?limit=100");
    }

    #[tokio::test]
    async fn nothing_is_said_in_words_and_a_wrong_limit_is_refused() {
        let none = json!({ "firing": 0, "alerts": [], "silences": [], "receivers": [] });
        let canned = Canned::new(vec![("/v1/alerts", 200, none)]);
        let shown = page(&canned.context("/ui/alerts", &[], &[])).await.unwrap().into_string();
        for words in ["Nothing fires", "Nothing was over", "Nothing is silenced", "server.sight.alerts"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(!shown.contains("Send a test"));
        let query = pairs(&[("limit", "401")]);
        assert!(page(&canned.context("/ui/alerts", &query, &[])).await.is_err());
    }

    #[tokio::test]
    async fn forms_become_what_the_server_takes() {
        for (form, sent) in [
            (
                &[
                    ("do", "silence"),
                    ("rule", "tenant-near"),
                    ("policy", ""),
                    ("for", "2h"),
                    ("reason", "the sale"),
                ][..],
                json!({ "do": "silence", "rule": "tenant-near", "for": "2h", "reason": "the sale" }),
            ),
            (
                &[("do", "end-silence"), ("rule", ""), ("policy", "p")][..],
                json!({ "do": "end-silence", "policy": "p" }),
            ),
            (&[("do", "test"), ("reason", "x")][..], json!({ "do": "test" })),
        ] {
            let canned = Canned::new(vec![("/v1/alerts", 200, json!({ "done": "" }))]);
            let fields = pairs(form);
            let next = post(&canned.context("/ui/alerts", &[], &fields)).await.unwrap();
            assert_eq!(next, "/ui/alerts");
            let (method, path, body) = canned.asked.lock()[0].clone();
            assert_eq!((method, path.as_str()), (Method::POST, "/v1/alerts"));
            assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), sent);
        }
        let canned = Canned::new(Vec::new());
        let fields = pairs(&[("do", "delete")]);
        assert!(post(&canned.context("/ui/alerts", &[], &fields)).await.is_err());
        assert!(canned.asked.lock().is_empty());
    }
}
