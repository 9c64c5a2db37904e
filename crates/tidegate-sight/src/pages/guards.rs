//! Guards: breakers as tiles, places of concurrency limits, and switches, with the forms that force, release and turn
//! them.

use http::{Method, StatusCode};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::{Context, PageError};
use super::keys::{THE_ONE, keys_of, names_in};
use super::words::{
    Mark, ago, columns, count, cut, fitting, list, mark, moment, name, percent, policy_path, seconds_of,
    segment, text, url, whole,
};

/// Breakers on one page, and at most.
const TILES: usize = 60;
const MOST_BREAKERS: usize = 1_024;

/// Policies with places that are shown. Each takes one question to the server.
const MOST_PLACES: usize = 60;

const MOST_SWITCHES: usize = 256;

/// The most bytes of all sections, of the tiles, and of the rows of places.
const MOST_BYTES: usize = 112 << 10;
const MOST_TILE_BYTES: usize = 72 << 10;
const MOST_PLACE_BYTES: usize = 20 << 10;

/// What the names of fields begin with that carry an attribute of a key.
const ATTRIBUTE: &str = "key.";

/// Shows all guards.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let from = ctx.param("from").map_or(Ok(0), str::parse::<usize>);
    let from = from.map_err(|_| PageError::bad("from is the number of the first breaker, such as 60"))?;
    let breakers = breakers(ctx, from).await?;
    let places = places(ctx).await?;
    let left = MOST_BYTES.saturating_sub(breakers.0.len() + places.0.len());
    let switches = switches(ctx, left).await?;
    Ok(html! {
        h1 { "Guards" }
        section aria-labelledby="breakers" { h2 id="breakers" { "Breakers" } (breakers) }
        section aria-labelledby="places" { h2 id="places" { "Places" } (places) }
        section aria-labelledby="switches" { h2 id="switches" { "Switches" } (switches) }
        @if !ctx.may("admin") {
            p class="quiet" { "To force breakers and turn switches needs a token with the scope " code { "admin" } "." }
        }
    })
}

/// Asks the server; what it cannot say for a while is shown in place of the section, and never as an empty list.
async fn ask(ctx: &Context<'_>, path: &str) -> Result<Result<Value, Markup>, PageError> {
    match ctx.get(path).await {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.status().is_server_error() => Ok(Err(html! {
            p role="alert" { (mark(Mark::Trouble)) " Not known now: " (cut(error.detail(), 500)) "." }
        })),
        Err(error) => Err(error),
    }
}

async fn breakers(ctx: &Context<'_>, from: usize) -> Result<Markup, PageError> {
    let answer = match ask(ctx, &url("/v1/breakers", ctx.reveal())).await? {
        Ok(answer) => answer,
        Err(instead) => return Ok(instead),
    };
    let mut all: Vec<&Value> = list(&answer["breakers"]).iter().take(MOST_BREAKERS).collect();
    if all.is_empty() {
        return Ok(html! {
            p {
                "No breaker. One appears here when a policy has a limit with " code { "algorithm: breaker" }
                "; one for each key of " code { "by" } " when it has opened."
            }
        });
    }
    all.sort_by_key(|breaker| BreakerState::of(text(&breaker["state"])).place());
    let total = all.len();
    let closed = all.iter().filter(|breaker| text(&breaker["state"]) == "closed").count();
    let shown: Vec<&Value> = all.into_iter().skip(from).take(TILES).collect();
    let keys = keys_of(ctx, &shown).await;
    let tiles = shown.iter().zip(&keys).map(|(breaker, key)| tile(ctx, breaker, key.as_deref()));
    let tiles = fitting(tiles, MOST_TILE_BYTES);
    let next = from.saturating_add(tiles.len().max(1));
    Ok(html! {
        p { (total) @if total == 1 { " breaker, " } @else { " breakers, " } (total - closed) " not closed." }
        ul class="tiles" {
            @for tile in &tiles { (tile) }
        }
        @if from > 0 || next < total {
            nav aria-label="Pages of breakers" { ul {
                @if from > 0 { li { a href=(page_from(from.saturating_sub(TILES))) rel="prev" { "Earlier" } } }
                @if next < total { li { a href=(page_from(next)) rel="next" { "Further" } } }
            } }
        }
    })
}

fn page_from(from: usize) -> String {
    if from == 0 { "/ui/guards".to_owned() } else { url("/ui/guards", &[("from", &*from.to_string())]) }
}

/// What a state looks like: a shape and words beside the colour.
#[derive(Clone, Copy)]
struct BreakerState {
    shape: &'static str,
    class: &'static str,
    words: &'static str,
    forced: bool,
}

impl BreakerState {
    const fn new(shape: &'static str, class: &'static str, words: &'static str, forced: bool) -> Self {
        Self { shape, class, words, forced }
    }

    fn of(word: &str) -> Self {
        match word {
            "closed" => Self::new("●", "ok", "closed", false),
            "open" => Self::new("■", "bad", "OPEN", false),
            "half-open" => Self::new("◐", "warn", "half-open", false),
            "shedding" => Self::new("◐", "warn", "shedding", false),
            "forced-open" => Self::new("■", "bad", "OPEN by a person", true),
            "forced-closed" => Self::new("●", "warn", "closed by a person", true),
            "metrics-only" => Self::new("○", "warn", "measures only, by a person", true),
            "disabled" => Self::new("○", "warn", "disabled by a person", true),
            _ => Self::new("?", "quiet", "in a state this page does not know", false),
        }
    }

    /// The order of tiles: what refuses first.
    fn place(self) -> u8 {
        match self.class {
            "bad" => 0,
            "warn" => 1,
            "quiet" => 2,
            _ => 3,
        }
    }
}

fn tile(ctx: &Context<'_>, breaker: &Value, key: Option<&[(String, String)]>) -> Markup {
    let policy = text(&breaker["policy"]);
    let state = BreakerState::of(text(&breaker["state"]));
    let key_text = text(&breaker["key"]);
    let at = |field: &str| seconds_of(text(&breaker[field]));
    html! {
        li class="tile" {
            h3 { a href=(policy_path(policy)) { (name(policy)) } }
            p class=(state.class) { span aria-hidden="true" { (state.shape) } " " strong { (state.words) } }
            @if key_text != THE_ONE { p { (name(key_text)) } }
            p { (calls(&breaker["calls"])) }
            @if let Some(since) = at("since") { p { "Since " (moment(since, ctx.now)) ", " (ago(since, ctx.now)) } }
            (cause(breaker))
            @let opened = whole(&breaker["opened"]);
            @if opened > 0 { p { "Opened " (count(opened)) @if opened == 1 { " time" } @else { " times" } " since the start" } }
            @if let Some(until) = at("until") {
                p {
                    @if state.forced { "Until " } @else { "Tries the service at " }
                    (moment(until, ctx.now)) " (" (ago(until, ctx.now)) ")"
                }
            } @else if state.forced { p { "Until it is released" } }
            @if text(&breaker["mode"]) != "enforce" {
                p class="quiet" { "Mode " (cut(text(&breaker["mode"]), 20)) ": refuses nobody" }
            }
            p class="quiet" { code { (cut(text(&breaker["limit"]), 120)) } }
            @if ctx.may("admin") { (breaker_forms(ctx, breaker, key, state)) }
        }
    }
}

fn calls(calls: &Value) -> String {
    let of = |field: &str| whole(&calls[field]);
    let (ended, failed, slow) = (of("ended"), of("failed"), of("slow"));
    if ended == 0 {
        return "No call has ended in its window".to_owned();
    }
    let share = failed as f64 / ended as f64;
    let slow = if slow > 0 { format!(", {} slow", count(slow)) } else { String::new() };
    format!("{} of {} calls failed ({}){slow}", count(failed), count(ended), percent(share))
}

fn cause(breaker: &Value) -> Markup {
    let words = |field: &str| breaker[field].as_str().filter(|words| !words.is_empty());
    let probes = &breaker["probes"];
    let would = &breaker["would_have_opened"];
    html! {
        @if let Some(figure) = words("tripped_by") { p { "Cause: " (cut(figure, 300)) } }
        @if let Some(reason) = words("reason") { p { "Reason: " (cut(reason, 300)) } }
        @if let Some(share) = breaker["refused_share"].as_f64() { p { "Refuses " (percent(share)) " of the calls" } }
        @if breaker["probe_due"].as_bool() == Some(true) { p { "The next call is the first probe" } }
        @if !probes.is_null() {
            p { (count(whole(&probes["in_flight"]))) " of " (count(whole(&probes["at_most"]))) " probes under way" }
        }
        @if !would.is_null() {
            p { "Would have opened " (count(whole(&would["times"]))) " times: " (cut(text(&would["by"]), 300)) }
        }
    }
}

fn breaker_forms(
    ctx: &Context<'_>,
    breaker: &Value,
    key: Option<&[(String, String)]>,
    state: BreakerState,
) -> Markup {
    let Some(key) = key else {
        return html! {
            p class="quiet" {
                @if ctx.may("keys") { "Its key is too long or ambiguous to be forced here." }
                @else { "To force it, its name must be seen: scope " code { "keys" } "." }
            }
        };
    };
    let policy = text(&breaker["policy"]);
    let hidden = |action: &str| {
        html! {
            (ctx.form_field())
            input type="hidden" name="do" value=(action);
            input type="hidden" name="policy" value=(policy);
            @for (attribute, value) in key { input type="hidden" name={ (ATTRIBUTE) (attribute) } value=(value); }
        }
    };
    html! {
        @if state.forced {
            form method="post" action="/ui/guards" { (hidden("auto")) button { "Release" } }
        }
        details {
            summary { "Force" }
            form method="post" action="/ui/guards" {
                (hidden("force"))
                label { "State " select name="state" {
                    option value="open" { "open: refuse all calls" }
                    option value="closed" { "closed: let all calls through" }
                } } " "
                label { "for " input name="for" value="10min" size="8" required; } " "
                label { "because " input name="reason" maxlength="255" required; } " "
                button { "Force" }
            }
        }
    }
}

async fn places(ctx: &Context<'_>) -> Result<Markup, PageError> {
    // The number of the configuration tells whether what is known of the policies is still right.
    let overview = ctx.get("/v1/overview?w=1m").await.unwrap_or_default();
    let policies = ctx.policies(overview["configuration"]["number"].as_u64()).await?;
    let has_places = |words: &str| {
        words.split(" and ").any(|limit| limit.starts_with("concurrency ") || limit.starts_with("adaptive "))
    };
    let mut found: Vec<(&str, &str)> = policies
        .iter()
        .filter(|(_, words)| has_places(&words.limit))
        .map(|(policy, words)| (policy.as_str(), words.limit.as_str()))
        .collect();
    if found.is_empty() {
        return Ok(html! {
            p {
                "No policy lends places. One appears here when it has a limit with "
                code { "algorithm: concurrency" } " or " code { "algorithm: adaptive" } "."
            }
        });
    }
    found.sort_unstable();
    let total = found.len();
    let mut rows = Vec::with_capacity(total.min(MOST_PLACES));
    for (policy, limit) in found.into_iter().take(MOST_PLACES) {
        match ctx.get(&format!("/v1/policies/{}", segment(policy))).await {
            Ok(shown) => rows.push(place_row(policy, limit, &shown)),
            // It was removed meanwhile.
            Err(error) if error.status() == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    let rows = fitting(rows.into_iter(), MOST_PLACE_BYTES);
    Ok(html! {
        div class="wide" { table {
            caption { "Requests under way, and how many may be" }
            (columns(&[("Policy", false), ("Limit", false), ("In use", true), ("Of", true)]))
            tbody { @for row in &rows { (row) } }
        } }
        @if total > rows.len() { p class="quiet" { "The first " (rows.len()) " of " (total) " policies by name." } }
    })
}

fn place_row(policy: &str, limit: &str, shown: &Value) -> Markup {
    let places = &shown["places"];
    let by = names_in(&shown["by"]);
    html! {
        tr {
            td { a href=(policy_path(policy)) { (name(policy)) } }
            td { code { (cut(limit, 200)) } }
            @match (places["in_use"].as_u64(), places["limit"].as_u64()) {
                (Some(in_use), Some(most)) => {
                    td class="n" {
                        @if in_use >= most { strong class="bad" { (mark(Mark::Trouble)) " full " } }
                        (count(in_use))
                    }
                    td class="n" { (count(most)) }
                }
                _ if by.is_empty() => td colspan="2" { "kept by the store, and not known here" },
                _ => td colspan="2" {
                    "for each " (cut(&by.join(", "), 120)) ": "
                    a href=(format!("/ui/keys/{}", segment(policy))) { "one key" }
                },
            }
        }
    }
}

async fn switches(ctx: &Context<'_>, most: usize) -> Result<Markup, PageError> {
    let answer = match ask(ctx, "/v1/switches").await? {
        Ok(answer) => answer,
        Err(instead) => return Ok(instead),
    };
    let all = list(&answer["switches"]);
    if all.is_empty() {
        return Ok(html! {
            p {
                "No switch. One appears here when the file names it: in " code { "when" } " of a policy, or under "
                code { "switches" } "."
            }
        });
    }
    let may_turn = ctx.may("admin");
    let row = |switch: &Value| {
        html! {
            tr {
                td { (name(text(&switch["name"]))) }
                td { (switch_state(text(&switch["state"]))) }
                td { (setting(ctx, &switch["by_hand"])) }
                td { (setting(ctx, &switch["by_signal"])) }
                @if may_turn { td { (switch_forms(ctx, switch)) } }
            }
        }
    };
    let rows = fitting(all.iter().take(MOST_SWITCHES).map(row), most);
    Ok(html! {
        div class="wide" { table {
            caption { "What can be turned off by hand, or by a signal" }
            thead { tr {
                th scope="col" { "Switch" } th scope="col" { "State" } th scope="col" { "By hand" } th scope="col" { "By a signal" }
                @if may_turn { th scope="col" { "Turn" } }
            } }
            tbody { @for row in &rows { (row) } }
        } }
        @if all.len() > rows.len() { p class="quiet" { "The first " (rows.len()) " of " (all.len()) "." } }
    })
}

fn switch_state(word: &str) -> Markup {
    match word {
        "off" => html! { span class="bad" aria-hidden="true" { "■" } " " strong { "off" } },
        word => html! { span class="ok" aria-hidden="true" { "●" } " " (cut(word, 20)) },
    }
}

/// What a hand or a signal has set: for whom, until when, and why.
fn setting(ctx: &Context<'_>, set: &Value) -> Markup {
    if set.is_null() {
        return html! { "–" };
    }
    let reason = text(&set["reason"]);
    html! {
        @if text(&set["state"]) == "on" { "kept on" } @else {
            "off"
            @if let Some(below) = set["below"].as_str() { " below " (cut(below, 40)) }
        }
        @if let Some(until) = seconds_of(text(&set["until"])) { " until " (moment(until, ctx.now)) }
        @if !reason.is_empty() { ": " (cut(reason, 300)) }
    }
}

fn switch_forms(ctx: &Context<'_>, switch: &Value) -> Markup {
    let hidden = |action: &str| {
        html! {
            (ctx.form_field())
            input type="hidden" name="do" value=(action);
            input type="hidden" name="switch" value=(text(&switch["name"]));
        }
    };
    html! {
        @if text(&switch["state"]) == "off" || !switch["by_hand"].is_null() {
            form method="post" action="/ui/guards" { (hidden("on")) button { "Turn on" } }
        }
        details {
            summary { "Turn off" }
            form method="post" action="/ui/guards" {
                (hidden("off"))
                label { "for " input name="for" value="10min" size="8" required; } " "
                label { "because " input name="reason" maxlength="255" required; } " "
                button { "Turn off" }
            }
        }
    }
}

/// Takes a form of the page.
pub(crate) async fn post(ctx: &Context<'_>) -> Result<String, PageError> {
    let wanted = |field: &'static str| {
        let missing = || PageError::bad(format!("the form needs a value for {field}; nothing was changed"));
        ctx.field(field).ok_or_else(missing)
    };
    let (path, body) = match ctx.field("do") {
        Some("force") => {
            let body =
                json!({ "state": wanted("state")?, "for": wanted("for")?, "reason": wanted("reason")? });
            (breaker_path(ctx, wanted("policy")?), body)
        }
        // It keeps neither a time nor a reason, and the server takes none.
        Some("auto") => (breaker_path(ctx, wanted("policy")?), json!({ "state": "auto" })),
        Some("off") => {
            let body = json!({ "state": "off", "for": wanted("for")?, "reason": wanted("reason")? });
            (switch_path(wanted("switch")?), body)
        }
        Some("on") => (switch_path(wanted("switch")?), json!({ "state": "on" })),
        _ => return Err(PageError::bad("the form does not say what to do; nothing was changed")),
    };
    ctx.send(Method::PUT, &path, &body).await?;
    Ok("/ui/guards".to_owned())
}

fn breaker_path(ctx: &Context<'_>, policy: &str) -> String {
    let key = ctx.fields.iter().filter_map(|(field, value)| Some((field.strip_prefix(ATTRIBUTE)?, value)));
    url(&format!("/v1/breakers/{}", segment(policy)), key)
}

fn switch_path(switch: &str) -> String {
    format!("/v1/switches/{}", segment(switch))
}

#[cfg(test)]
mod tests {
    use super::super::context::canned::{Canned, pairs};
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    fn canned(breakers: &Value) -> Canned {
        let policies = json!({ "config": { "number": 3 }, "policies": [
            { "name": "search", "mode": "enforce", "by": [], "limits": [{ "limit": "concurrency 8 ttl 5s" }] },
            { "name": "per-ip", "mode": "enforce", "by": ["client.ip"], "limits": [{ "limit": "gcra 10/s burst 20" }] },
        ] });
        let switches = json!({ "switches": [
            { "name": "previews", "state": "off", "by_signal": null, "by_hand": {
                "below": "critical", "until": "2027-01-15T08:10:00.000Z", "reason": "<b>moved</b>",
            } },
            { "name": "ads", "state": "on", "by_hand": null, "by_signal": null },
        ] });
        Canned::new(vec![
            ("/v1/breakers", 200, json!({ "breakers": breakers })),
            ("/v1/policies/search", 200, json!({ "by": [], "places": { "in_use": 8, "limit": 8 } })),
            ("/v1/policies/bank", 200, json!({ "by": ["upstream.name"] })),
            ("/v1/policies", 200, policies),
            ("/v1/overview", 200, json!({ "configuration": { "number": 3 } })),
            ("/v1/switches", 200, switches),
        ])
    }

    fn breaker(policy: &str, key: &str, state: &str) -> Value {
        json!({
            "policy": policy, "key": key, "state": state, "mode": "enforce", "limit": "breaker 50% in 10s open 5s",
            "limit_number": 1, "since": "2027-01-15T07:59:00.000Z",
            "calls": { "ended": 38, "failed": 19, "slow": 0 },
        })
    }

    #[tokio::test]
    async fn what_refuses_comes_first_with_word_shape_and_cause() {
        let mut open = breaker("bank", "upstream.name=<i>", "open");
        open["tripped_by"] = json!("19 of 38 calls <failed>");
        open["until"] = json!("2027-01-15T08:00:04.000Z");
        let canned =
            canned(&json!([breaker("pay", "(all)", "closed"), breaker("mail", "(all)", "half-open"), open]));
        let page = page(&canned.context("/ui/guards", &[], &[])).await.unwrap().into_string();
        let place = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words}: {page}"));
        assert!(["■", "OPEN", "◐", "half-open", "●"].map(place).is_sorted(), "{page}");
        for words in
            ["19 of 38 calls failed (50.0 %)", "2 not closed", "full", "off below critical", "in 4 s"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("<i>") && !page.contains("<failed>") && !page.contains("<b>"), "{page}");
        assert!(page.contains("name=\"key.upstream.name\" value=\"&lt;i&gt;\""), "{page}");
        assert_eq!(page.matches("<h1>").count(), 1);
    }

    #[tokio::test]
    async fn many_breakers_are_shown_by_pages() {
        let many: Vec<Value> = (0..2_000).map(|at| breaker(&format!("p{at}"), "(all)", "closed")).collect();
        let (canned, query) = (canned(&many.into()), pairs(&[("from", "1020")]));
        let page = page(&canned.context("/ui/guards", &query, &[])).await.unwrap().into_string();
        assert_eq!(page.matches("class=\"tile\"").count(), 4, "1,024 at most");
        assert!(page.contains("/ui/guards?from=960") && !page.contains("rel=\"next\""), "{page}");
    }

    #[tokio::test]
    async fn the_longest_keys_make_a_page_that_can_be_sent_and_the_next_goes_on() {
        let key = format!("upstream.name={}", "\"".repeat(230));
        let many: Vec<Value> = (0..=TILES).map(|_| breaker("bank", &key, "open")).collect();
        let canned = canned(&many.into());
        let page = page(&canned.context("/ui/guards", &[], &[])).await.unwrap().into_string();
        let tiles = page.matches("class=\"tile\"").count();
        assert!(page.len() < MOST_BYTES && (10..TILES).contains(&tiles), "{} {tiles}", page.len());
        assert!(page.contains(&format!("/ui/guards?from={tiles}\" rel=\"next\"")), "{page}");
    }

    #[tokio::test]
    async fn nothing_says_what_would_make_it_appear_and_a_failure_is_not_an_empty_list() {
        let answers = vec![
            ("/v1/breakers", 503, json!({ "detail": "the store did not answer" })),
            ("/v1/policies", 200, json!({ "config": { "number": 1 }, "policies": [] })),
            ("/v1/overview", 200, json!({ "configuration": { "number": 1 } })),
            ("/v1/switches", 200, json!({ "switches": [] })),
        ];
        let canned = Canned::new(answers);
        let page = page(&canned.context("/ui/guards", &[], &[])).await.unwrap().into_string();
        assert!(page.contains("Not known now: the store did not answer") && !page.contains("No breaker"));
        assert!(page.contains("No policy lends places") && page.contains("No switch"), "{page}");
    }

    #[tokio::test]
    async fn who_may_only_read_sees_no_form() {
        let canned = canned(&json!([breaker("pay", "(all)", "open")]));
        let page = page(&canned.reader("/ui/guards", &[])).await.unwrap().into_string();
        assert!(!page.contains("<form") && page.contains("scope <code>admin</code>"), "{page}");
        assert_eq!(canned.asked.lock()[0].1, "/v1/breakers", "without names");
    }

    #[tokio::test]
    async fn forms_are_sent_as_the_server_reads_them() {
        let canned = canned(&json!([]));
        let force: Fields<'_> = &[
            ("do", "force"),
            ("policy", "bank"),
            ("key.upstream.name", "a&b"),
            ("state", "open"),
            ("for", "5min"),
            ("reason", "upgrade"),
        ];
        let off: Fields<'_> = &[("do", "off"), ("switch", "ads"), ("for", "10min"), ("reason", "moved")];
        let one = "/v1/breakers/bank?upstream.name=a%26b";
        let auto: Fields<'_> = &[("do", "auto"), ("policy", "bank"), ("key.upstream.name", "a&b")];
        let on: Fields<'_> = &[("do", "on"), ("switch", "ads")];
        let forms = [
            (force, one, r#"{"state":"open","for":"5min","reason":"upgrade"}"#),
            (auto, one, r#"{"state":"auto"}"#),
            (off, "/v1/switches/ads", r#"{"state":"off","for":"10min","reason":"moved"}"#),
            (on, "/v1/switches/ads", r#"{"state":"on"}"#),
        ];
        for (fields, path, body) in forms {
            let fields = pairs(fields);
            let next = post(&canned.context("/ui/guards", &[], &fields)).await.unwrap();
            assert_eq!(next, "/ui/guards");
            let (method, asked, sent) = canned.asked.lock().pop().unwrap();
            assert_eq!((method, asked.as_str()), (Method::PUT, path));
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(read(&sent), read(body));
        }
        let fields = pairs(&[("do", "force"), ("policy", "bank"), ("state", "open"), ("for", "5min")]);
        let refused = post(&canned.context("/ui/guards", &[], &fields)).await.unwrap_err();
        assert!(refused.detail().contains("reason") && canned.asked.lock().is_empty());
    }
}
