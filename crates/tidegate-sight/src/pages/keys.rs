//! Keys: who is refused most, comes near a limit, or is admitted most, in the last minute, quarter of an hour or day.

use maud::{Markup, html};
use serde_json::Value;

use super::context::{Context, PageError};
use super::words::{
    columns, count, cut, fitting, list, name, num, number, policy_path, segment, text, url, whole,
};

/// How many keys are asked for, and shown.
const LISTED: usize = 100;

/// Of how many policies the attributes are asked for: each takes one question to the server.
const ASKED_POLICIES: usize = 20;

/// The key that all requests share, under a policy without `by`.
pub(super) const THE_ONE: &str = "(all)";

/// The most bytes of the rows of keys.
const MOST_BYTES: usize = 104 << 10;

/// From this length on the text of a key may be cut, by the server or by the watch, and names no key: it is cut at 256
/// bytes, or before the character that lies there.
const MAY_BE_CUT: usize = 253;

/// An order: its word in the URL, for people, and the heading of what it counts.
struct Order {
    word: &'static str,
    words: &'static str,
    heading: &'static str,
    /// What no key did, and what makes one appear.
    nobody: &'static str,
    appears: &'static str,
}

const ORDERS: [Order; 3] = [
    Order {
        word: "denied",
        words: "refused most",
        heading: "Refused",
        nobody: "was refused",
        appears: "A key appears here when a policy in mode enforce refuses it.",
    },
    Order {
        word: "near",
        words: "near a limit most",
        heading: "Near the limit",
        nobody: "came near its limit",
        appears: "A key appears here when it passes with little left of its limit: near_limit in the file, 80 % unless it says otherwise.",
    },
    Order {
        word: "rate",
        words: "admitted most",
        heading: "Units admitted",
        nobody: "was admitted anything",
        appears: "A key appears here when a policy lets a request of it pass.",
    },
];

const WINDOWS: [(&str, &str); 3] = [("1m", "minute"), ("15m", "15 minutes"), ("24h", "24 hours")];

/// What the URL asks for.
struct Listing<'a> {
    order: &'static Order,
    window: (&'static str, &'static str),
    policy: Option<&'a str>,
    contains: Option<&'a str>,
}

impl<'a> Listing<'a> {
    fn of(ctx: &Context<'a>) -> Result<Self, PageError> {
        let by = ctx.param("by").unwrap_or("denied");
        let order = ORDERS.iter().find(|order| order.word == by);
        let wrong =
            || PageError::bad(format!("by {} is not possible; use denied, near or rate", cut(by, 40)));
        let order = order.ok_or_else(wrong)?;
        let window = ctx.param("w").unwrap_or("15m");
        let wrong = || PageError::bad(format!("w {} is not possible; use 1m, 15m or 24h", cut(window, 40)));
        let window = WINDOWS.into_iter().find(|(word, _)| *word == window).ok_or_else(wrong)?;
        Ok(Self { order, window, policy: ctx.param("policy"), contains: ctx.param("q") })
    }

    /// The path that answers it.
    fn path(&self, ctx: &Context<'_>) -> String {
        let most = LISTED.to_string();
        let mut pairs = vec![("by", self.order.word), ("w", self.window.0), ("limit", &*most)];
        pairs.extend(self.policy.map(|policy| ("policy", policy)));
        pairs.extend(ctx.reveal());
        url("/v1/busiest", &pairs)
    }

    fn form(&self) -> Markup {
        html! {
            form method="get" action="/ui/keys" role="search" {
                label { "Keys " select name="by" { @for order in &ORDERS {
                    option value=(order.word) selected[order.word == self.order.word] { (order.words) }
                } } } " "
                label { "in the last " select name="w" { @for (word, words) in WINDOWS {
                    option value=(word) selected[word == self.window.0] { (words) }
                } } } " "
                label { "under the policy " input name="policy" value=[self.policy] placeholder="any"; } " "
                label { "whose name or digest contains " input type="search" name="q" value=[self.contains]; } " "
                button { "Show" }
            }
        }
    }

    fn nothing(&self, had_some: bool) -> Markup {
        let under = self.policy.map(|policy| format!(" under the policy {}", cut(policy, 80)));
        let under = under.unwrap_or_default();
        html! {
            @match self.contains.filter(|_| had_some) {
                Some(part) => p { "Of the " (LISTED) " first keys none contains " code { (cut(part, 80)) } "." },
                None => p { "No key " (self.order.nobody) (under) " in the last " (self.window.1) ". " (self.order.appears) },
            }
        }
    }

    fn wants(&self, row: &Value) -> bool {
        let Some(part) = self.contains else { return true };
        text(&row["key"]).to_lowercase().contains(&part.to_lowercase())
    }
}

/// Shows the busiest keys.
pub(crate) async fn page(ctx: &Context<'_>) -> Result<Markup, PageError> {
    let asked = Listing::of(ctx)?;
    let names = ctx.may("keys");
    let answer = ctx.get(&asked.path(ctx)).await?;
    let all = list(&answer["keys"]);
    let rows: Vec<&Value> = all.iter().filter(|row| asked.wants(row)).take(LISTED).collect();
    let keys = if names { keys_of(ctx, &rows).await } else { vec![None; rows.len()] };
    let lines = rows.iter().zip(&keys).map(|(row, key)| line(row, key.as_deref()));
    let lines = fitting(lines, MOST_BYTES);
    let left_out = rows.len() - lines.len();
    Ok(html! {
        h1 { "Keys" }
        (asked.form())
        @if !names {
            p class="quiet" { "Keys are shown as digests; a token with the scope " code { "keys" } " sees their names." }
        }
        @if rows.is_empty() { (asked.nothing(!all.is_empty())) } @else {
            div class="wide" { table {
                caption { "Keys " (asked.order.words) " in the last " (asked.window.1) }
                (columns(&[("Policy", false), ("Key", false), (asked.order.heading, true), ("A second", true)]))
                tbody { @for line in &lines { (line) } }
            } }
            @if left_out > 0 {
                p class="quiet" { (left_out) " more are not shown, since the names are very long. Choose a policy, or a part of a name." }
            }
            @if all.len() >= LISTED {
                p class="quiet" { "These are the " (LISTED) " first keys; one policy alone shows more of its own." }
            }
        }
    })
}

fn line(row: &Value, pairs: Option<&[(String, String)]>) -> Markup {
    let (policy, key) = (text(&row["policy"]), text(&row["key"]));
    let error = whole(&row["error"]);
    html! {
        tr {
            td { a href=(policy_path(policy)) { (name(policy)) } }
            td { @match pairs {
                Some(pairs) => a href=(key_path(policy, pairs)) { (name(key)) },
                None => (name(key)),
            } }
            td class="n" {
                (count(whole(&row["count"])))
                @if error > 0 { span class="quiet" { " (at most " (count(error)) " too many)" } }
            }
            td class="n" { (number(num(&row["per_second"]))) }
        }
    }
}

/// Returns the attributes of the key of each row; `None` if the text does not say which key it is.
pub(super) async fn keys_of(ctx: &Context<'_>, rows: &[&Value]) -> Vec<Option<Vec<(String, String)>>> {
    let mut policies: Vec<(&str, Option<Vec<String>>)> = Vec::new();
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        let (policy, key) = (text(&row["policy"]), text(&row["key"]));
        if key == THE_ONE {
            keys.push(Some(Vec::new()));
            continue;
        }
        if policies.len() < ASKED_POLICIES && !policies.iter().any(|(have, _)| *have == policy) {
            policies.push((policy, attributes_of(ctx, policy).await));
        }
        let by = policies.iter().find(|(have, _)| *have == policy).and_then(|(_, by)| by.as_ref());
        keys.push(by.and_then(|by| pairs_in(by, key)));
    }
    keys
}

/// Asks by which attributes a policy tells keys apart; `None` if there is no such policy now.
async fn attributes_of(ctx: &Context<'_>, policy: &str) -> Option<Vec<String>> {
    let policy = ctx.get(&format!("/v1/policies/{}", segment(policy))).await.ok()?;
    Some(names_in(&policy["by"]))
}

/// Reads a list of names.
pub(super) fn names_in(value: &Value) -> Vec<String> {
    list(value).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The page of a key.
pub(super) fn key_path<'p>(policy: &str, pairs: impl IntoIterator<Item = &'p (String, String)>) -> String {
    url(&format!("/ui/keys/{}", segment(policy)), pairs)
}

/// Reads the attributes of a key from its text (`client.ip=203.0.113.9, user.id=ann`); `None` if the text may be cut,
/// is a digest, lacks an attribute, or can be read in two ways: a value may contain what separates two.
pub(super) fn pairs_in(by: &[String], key: &str) -> Option<Vec<(String, String)>> {
    if by.is_empty() || key.len() >= MAY_BE_CUT {
        return None;
    }
    let mut pairs = Vec::with_capacity(by.len());
    let mut rest = key;
    for (at, attribute) in by.iter().enumerate() {
        rest = rest.strip_prefix(attribute.as_str())?.strip_prefix('=')?;
        let value = match by.get(at + 1) {
            None => rest,
            Some(next) => {
                let separator = format!(", {next}=");
                let (first, after) = rest.split_once(&separator)?;
                if after.contains(&separator) || rest.contains(&format!(", {next} absent")) {
                    return None;
                }
                rest = &rest[first.len() + 2..];
                first
            }
        };
        pairs.push((attribute.clone(), value.to_owned()));
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::context::canned::{Canned, pairs};
    use super::*;

    fn canned() -> Canned {
        let row = |key: &str, error: u64| json!({ "policy": "per-<b>", "key": key, "count": 91, "error": error, "per_second": 0.1 });
        let keys =
            [row("client.ip=203.0.113.9", 2), row("client.ip=<img src=x>", 0), row("client.ip absent", 0)];
        Canned::new(vec![
            ("/v1/busiest", 200, json!({ "by": "denied", "window_s": 900, "keys": keys })),
            ("/v1/policies/per-%3Cb%3E", 200, json!({ "by": ["client.ip"] })),
        ])
    }

    #[tokio::test]
    async fn each_key_that_can_be_named_links_to_its_page_and_each_policy_is_asked_for_once() {
        let (canned, query) = (canned(), pairs(&[("by", "denied"), ("policy", "per-<b>")]));
        let page = page(&canned.context("/ui/keys", &query, &[])).await.unwrap().into_string();
        assert!(page.contains("href=\"/ui/keys/per-%3Cb%3E?client.ip=203.0.113.9\""), "{page}");
        assert!(page.contains("href=\"/ui/policies/per-%3Cb%3E\"") && page.contains("at most 2 too many"));
        assert!(!page.contains("<img") && !page.contains("<b>"), "{page}");
        assert_eq!(
            page.matches("/ui/keys/per-").count(),
            2,
            "a key without the attribute has no page: {page}"
        );
        let asked = canned.asked.lock();
        assert_eq!(asked[0].1, "/v1/busiest?by=denied&w=15m&limit=100&policy=per-%3Cb%3E&reveal=true");
        assert_eq!(asked.len(), 2);
    }

    #[tokio::test]
    async fn without_the_right_keys_are_digests_and_the_page_says_which_right_it_is() {
        let canned = canned();
        let page = page(&canned.reader("/ui/keys", &[])).await.unwrap().into_string();
        assert!(page.contains("scope <code>keys</code>"), "{page}");
        assert_eq!(canned.asked.lock()[0].1, "/v1/busiest?by=denied&w=15m&limit=100");
    }

    #[tokio::test]
    async fn an_empty_list_says_what_makes_a_key_appear_and_a_wrong_order_is_refused() {
        let canned = Canned::new(vec![("/v1/busiest", 200, json!({ "keys": [] }))]);
        for (by, words) in [("denied", "refuses it"), ("near", "near_limit"), ("rate", "lets a request")] {
            let query = pairs(&[("by", by)]);
            let page = page(&canned.context("/ui/keys", &query, &[])).await.unwrap().into_string();
            assert!(page.contains("No key ") && page.contains(words), "{page}");
        }
        let query = pairs(&[("by", "<b>")]);
        let wrong = page(&canned.context("/ui/keys", &query, &[])).await.unwrap_err();
        assert!(wrong.detail().contains("use denied, near or rate"));
    }

    #[tokio::test]
    async fn the_longest_names_make_a_page_that_can_be_sent() {
        let by = ["client.ip".to_owned()];
        let key = format!("client.ip={}", "\"".repeat(MAY_BE_CUT - 11));
        assert!(pairs_in(&by, &key).is_some() && pairs_in(&by, &format!("{key}\"")).is_none());
        let row = json!({ "policy": "per-<b>", "key": key, "count": 91, "error": 2, "per_second": 0.1 });
        let canned = Canned::new(vec![
            ("/v1/busiest", 200, json!({ "by": "denied", "window_s": 900, "keys": vec![row; LISTED] })),
            ("/v1/policies/per-%3Cb%3E", 200, json!({ "by": by })),
        ]);
        let page = page(&canned.context("/ui/keys", &[], &[])).await.unwrap().into_string();
        assert!(page.len() < MOST_BYTES + (8 << 10) && page.contains("more are not shown"), "{}", page.len());
        assert!(page.matches("/ui/keys/per-").count() >= 18, "{page}");
    }

    #[test]
    fn a_key_is_read_only_where_its_text_has_one_meaning() {
        let by = ["client.ip".to_owned(), "user.id".to_owned()];
        let both = pairs(&[("client.ip", "::1"), ("user.id", "a, b=c")]);
        assert_eq!(pairs_in(&by, "client.ip=::1, user.id=a, b=c"), Some(both));
        for text in [
            "client.ip=::1, user.id=x, user.id=y",
            "client.ip=::1, user.id=x, user.id absent",
            "client.ip absent, user.id=x",
            "#0123",
            "",
        ] {
            assert_eq!(pairs_in(&by, text), None, "{text}");
        }
        assert_eq!(pairs_in(&by, &format!("client.ip=::1, user.id={}", "x".repeat(300))), None);
        assert_eq!(pairs_in(&[], "client.ip=::1"), None, "of an earlier configuration");
    }
}
