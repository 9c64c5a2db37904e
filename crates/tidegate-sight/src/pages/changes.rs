//! Changes: who changed what and when, and what was refused before and after.

use maud::{Markup, html};
use serde_json::Value;

use super::context::{Context, PageError};
use super::words::{columns, count, cut, fitting, list, moment, num, percent, seconds_of, text, url, whole};
use crate::history::MOST_CHANGES;

/// How many changes are shown at first.
const SHOWN: usize = 50;

/// How much of a text is shown at once, in characters; the rest unfolds, as far as the page has room for all.
const LONGEST: usize = 300;
const LONGEST_WHOLE: usize = 12_000;
const WHOLE_OF_ALL: usize = 32_000;

/// The most bytes of the rows.
const MOST_BYTES: usize = 104 << 10;

/// Shows the changes, newest first.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let most = ctx.param("limit").map_or(Ok(SHOWN), str::parse::<usize>);
    let most = most.ok().filter(|most| (1..=MOST_CHANGES).contains(most));
    let most =
        most.ok_or_else(|| PageError::bad(format!("limit is how many are shown; use 1 to {MOST_CHANGES}")))?;
    let answer = ctx.get(&url("/v1/changes", &[("limit", &*most.to_string())])).await?;
    let changes = list(&answer["changes"]);
    let longest = (WHOLE_OF_ALL / changes.len().max(1)).clamp(LONGEST, LONGEST_WHOLE);
    let lines = fitting(changes.iter().map(|change| line(ctx, change, longest)), MOST_BYTES);
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
                tbody { @for line in &lines { (line) } }
            } }
            @if lines.len() < changes.len() {
                p class="quiet" { (changes.len() - lines.len()) " older ones are not shown, since the texts are very long: see /v1/changes." }
            }
            @if changes.len() >= most && most < MOST_CHANGES {
                p { a href=(url("/ui/changes", &[("limit", &*MOST_CHANGES.to_string())])) { "All that are kept" } }
            }
        }
    })
}

fn line(ctx: &Context<'_>, change: &Value, longest: usize) -> Markup {
    let number = whole(&change["number"]);
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
                (folded(text(&change["text"]), longest))
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

/// The first characters of a text. If there are many, only its beginning is shown until it is unfolded.
fn folded(text: &str, most: usize) -> Markup {
    if text.chars().nth(LONGEST).is_none() {
        return html! { (cut(text, LONGEST)) };
    }
    html! { details { summary { (cut(text, LONGEST)) } p { (cut(text, most)) } } }
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
    let keys = [0, 1].map(|side: usize| whole(&effect["keys_refused"][side]));
    let noun = if keys[1] == 1 { "key" } else { "keys" };
    html! {
        "refused " (percent(shares[0])) " → " (percent(shares[1]))
        ", " (count(keys[0])) " → " (count(keys[1])) " " (noun)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::context::canned::{Canned, pairs};
    use super::*;

    fn change(number: u64, at: &str, effect: &Value) -> Value {
        json!({
            "number": number, "at": at, "what": "policies", "who": "<b>oncall</b>", "reason": "a\u{202e}b",
            "text": "per-ip: limit gcra 20/s -> gcra 10/s", "configuration": 18, "effect": effect,
        })
    }

    #[tokio::test]
    async fn a_change_says_who_what_and_the_effect_in_words() {
        let effect = json!({ "denied_share": [0.01, 0.171], "keys_refused": [0, 1] });
        let changes = [
            change(9, "2027-01-15T07:59:00.000Z", &Value::Null),
            change(8, "2027-01-15T07:00:00.000Z", &effect),
            change(7, "2027-01-14T07:00:00.000Z", &Value::Null),
        ];
        let canned = Canned::new(vec![("/v1/changes", 200, json!({ "changes": changes }))]);
        let page = page(&canned.context("/ui/changes", &[], &[])).await.unwrap().into_string();
        for words in [
            "refused 1.0 % → 17.1 %, 0 → 1 key",
            "too early to say",
            "not known: no requests",
            "per-ip: limit gcra 20/s -&gt; gcra 10/s",
            "id=\"change-8\"",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("<b>") && !page.contains('\u{202e}'), "{page}");
        assert_eq!(canned.asked.lock()[0].1, "/v1/changes?limit=50");
    }

    #[tokio::test]
    async fn the_longest_texts_make_a_page_that_can_be_sent() {
        let mut long = change(9, "2027-01-15T07:59:00.000Z", &Value::Null);
        long["text"] = "a <- b ".repeat(2_300).into();
        for most in [1, SHOWN, MOST_CHANGES] {
            let canned =
                Canned::new(vec![("/v1/changes", 200, json!({ "changes": vec![long.clone(); most] }))]);
            let page = page(&canned.context("/ui/changes", &[], &[])).await.unwrap().into_string();
            assert!(page.len() < MOST_BYTES + (8 << 10), "{}", page.len());
            assert!(most == 1 || page.matches("<details>").count() >= SHOWN, "{page}");
        }
    }

    #[tokio::test]
    async fn no_change_says_what_is_one_and_a_wrong_limit_is_refused() {
        let canned = Canned::new(vec![("/v1/changes", 200, json!({ "changes": [] }))]);
        let page_of = page(&canned.context("/ui/changes", &[], &[])).await.unwrap().into_string();
        assert!(page_of.contains("Nothing was changed") && !page_of.contains("<table"), "{page_of}");
        for wrong in ["0", "201", "x"] {
            let query = pairs(&[("limit", wrong)]);
            assert!(page(&canned.context("/ui/changes", &query, &[])).await.is_err(), "{wrong}");
        }
    }
}
