//! Changes: who changed what and when, and what was refused before and after.

use maud::{Markup, html};
use serde_json::Value;

use super::frame::{
    Context, PageError, columns, count, cut, list, moment, num, percent, seconds_of, text, url,
};

/// How many changes are shown at first, and at most.
const SHOWN: usize = 50;
const MOST: usize = 200;

/// How much of a text is shown at once, in characters; the rest unfolds.
const LONGEST: usize = 300;

/// Shows the changes, newest first.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let most = ctx.param("limit").map_or(Ok(SHOWN), str::parse::<usize>);
    let most = most.ok().filter(|most| (1..=MOST).contains(most));
    let most = most.ok_or_else(|| PageError::bad(format!("limit is how many are shown; use 1 to {MOST}")))?;
    let answer = ctx.get(&url("/v1/changes", &[("limit", &*most.to_string())])).await?;
    let changes = list(&answer["changes"]);
    Ok(html! {
        h1 { "Changes" }
        @if changes.is_empty() {
            p {
                "Nothing was changed. A line appears here when the policy file is read again, a policy is put through "
                code { "/v1/policies" } ", a key is blocked, a breaker is forced, or a switch or a signal is turned."
            }
        } @else {
            div class="wide" { table {
                caption { "The effect is over all requests: the five minutes before the minute of the change, and the five after it" }
                (columns(&[("Number", true), ("When", false), ("Who", false), ("What", false), ("Text", false), ("Effect", false), ("Configuration", true)]))
                tbody { @for change in changes { (line(ctx, change)) } }
            } }
            @if changes.len() >= most && most < MOST {
                p { a href=(url("/ui/changes", &[("limit", &*MOST.to_string())])) { "All that are kept" } }
            }
        }
    })
}

fn line(ctx: &Context<'_>, change: &Value) -> Markup {
    let number = change["number"].as_u64().unwrap_or(0);
    let reason = text(&change["reason"]);
    html! {
        tr id={ "change-" (number) } {
            td class="n" { (number) }
            td { @match seconds_of(text(&change["at"])) {
                Some(at) => (moment(at, ctx.now)),
                None => "–",
            } }
            td { @match text(&change["who"]) {
                "" => span class="quiet" { "not known" },
                who => (cut(who, 100)),
            } }
            td { (cut(text(&change["what"]), 40)) }
            td {
                (folded(text(&change["text"])))
                @if !reason.is_empty() { br; span class="quiet" { "Reason: " (cut(reason, 300)) } }
            }
            td { (effect(ctx, change)) }
            td class="n" { @match change["configuration"].as_u64() {
                Some(number) => (number),
                None => "–",
            } }
        }
    }
}

/// The whole text, of which only the beginning is shown if it is long.
fn folded(whole: &str) -> Markup {
    if whole.chars().nth(LONGEST).is_none() {
        return html! { (cut(whole, LONGEST)) };
    }
    html! { details { summary { (cut(whole, LONGEST)) } p { (cut(whole, 20_000)) } } }
}

/// The effect in words: `refused 1.0 % → 17.1 %, 0 → 1 keys`.
fn effect(ctx: &Context<'_>, change: &Value) -> Markup {
    /// After so many seconds it is known, or will never be.
    const KNOWN_AFTER: u64 = 8 * 60;
    let effect = &change["effect"];
    if effect.is_null() {
        let at = seconds_of(text(&change["at"]));
        let is_early = at.is_some_and(|at| ctx.now < at.saturating_add(KNOWN_AFTER));
        let words = if is_early { "too early to say" } else { "not known: no requests before or after" };
        return html! { span class="quiet" { (words) } };
    }
    let shares = [num(&effect["denied_share"][0]), num(&effect["denied_share"][1])];
    let keys = [0, 1].map(|side: usize| effect["keys_refused"][side].as_u64().unwrap_or(0));
    let noun = if keys[1] == 1 { "key" } else { "keys" };
    html! {
        "refused " (percent(shares[0])) " → " (percent(shares[1]))
        ", " (count(keys[0])) " → " (count(keys[1])) " " (noun)
    }
}
