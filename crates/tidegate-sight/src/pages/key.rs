//! One key under one policy: what is left of each limit, whether it is blocked, and the forms to block, unblock and
//! reset it.

use http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::{Context, PageError};
use super::keys::{key_path, names_in};
use super::words::{
    Mark, ago, columns, count, cut, list, mark, moment, name, policy_path, seconds_of, segment, span, text,
    url, whole,
};

/// The key that the URL names, under its policy.
struct NamedKey {
    policy: String,
    /// As the server describes it.
    words: Value,
    by: Vec<String>,
    /// The attributes of `by`.
    key: Vec<(String, String)>,
    /// Further attributes, which select limits of the key: its plan.
    plan: Vec<(String, String)>,
}

impl NamedKey {
    async fn of(ctx: &Context<'_>, policy: &str) -> Result<Self, PageError> {
        let words = ctx.get(&format!("/v1/policies/{}", segment(policy))).await?;
        let by = names_in(&words["by"]);
        let is_of_key = |attribute: &String| by.contains(attribute);
        // The theme is the frame's, unless keys are told apart by an attribute of that name.
        let pairs = ctx.query.iter().filter(|(attribute, _)| attribute != "theme" || is_of_key(attribute));
        let (key, plan) = pairs.cloned().partition(|(attribute, _)| is_of_key(attribute));
        Ok(Self { policy: policy.to_owned(), words, by, key, plan })
    }

    fn is_named(&self) -> bool {
        self.by.iter().all(|attribute| self.key.iter().any(|(have, _)| have == attribute))
    }

    /// The path of the server that shows and changes the key.
    fn path(&self, with_plan: bool) -> String {
        let plan = self.plan.iter().filter(|_| with_plan);
        url(&format!("/v1/keys/{}", segment(&self.policy)), self.key.iter().chain(plan))
    }

    /// The page's own path.
    fn page_path(&self) -> String {
        key_path(&self.policy, self.key.iter().chain(&self.plan))
    }

    fn enforces(&self) -> bool {
        text(&self.words["mode"]) == "enforce"
    }

    /// A form that asks for attributes, and keeps those that are known.
    fn ask_for(&self, attributes: &[&str], button: &str) -> Markup {
        let known = self.key.iter().chain(&self.plan);
        let known = known.filter(|(have, _)| !attributes.contains(&have.as_str()));
        html! {
            form method="get" action=(key_path(&self.policy, &[])) {
                @for (attribute, value) in known { input type="hidden" name=(attribute) value=(value); }
                @for attribute in attributes {
                    label { code { (cut(attribute, 200)) } " " input name=(attribute) required; } " "
                }
                button { (button) }
            }
        }
    }
}

/// Shows one key, or asks which one.
pub(crate) async fn page(ctx: &Context<'_>, policy: &str) -> Result<Markup, PageError> {
    let asked = NamedKey::of(ctx, policy).await?;
    if !asked.is_named() {
        return Ok(which(&asked));
    }
    let answer = ctx.get(&asked.path(true)).await?;
    // Without attributes the server lists what it knows, which is the one key that all requests share.
    let shown = if asked.by.is_empty() { &answer["keys"][0] } else { &answer };
    let may_change = ctx.may("admin");
    Ok(html! {
        h1 { "Key " (name(text(&shown["key"]))) }
        p {
            "Under the policy " a href=(policy_path(&asked.policy)) { (name(&asked.policy)) }
            ", mode " (text(&asked.words["mode"])) "."
            @if !asked.by.is_empty() { " " a href=(key_path(&asked.policy, &[])) { "Another key" } "." }
        }
        (block_words(ctx, &shown["block"]))
        (standing(&asked, &shown["standing"]))
        (counted(shown))
        @if may_change { (forms(ctx, &asked, shown)) } @else {
            p class="quiet" { "To block, unblock or reset a key needs a token with the scope " code { "admin" } "." }
        }
    })
}

fn which(asked: &NamedKey) -> Markup {
    let attributes: Vec<&str> = asked.by.iter().map(String::as_str).collect();
    html! {
        h1 { "Key of " (name(&asked.policy)) }
        p {
            "The policy " a href=(policy_path(&asked.policy)) { (name(&asked.policy)) }
            " tells keys apart by the attributes below. Which key?"
        }
        (asked.ask_for(&attributes, "Show the key"))
        p { a href=(url("/ui/keys", &[("policy", &*asked.policy)])) { "Its busiest keys" } }
    }
}

fn block_words(ctx: &Context<'_>, block: &Value) -> Markup {
    if block.is_null() {
        return html! { p { (mark(Mark::Usual)) " Not blocked." } };
    }
    let at = |field: &str| seconds_of(text(&block[field]));
    html! {
        p {
            (mark(Mark::Trouble)) " " strong { "BLOCKED" }
            @if let Some(since) = at("since") { " since " (moment(since, ctx.now)) }
            @if let Some(until) = at("until") { ", until " (moment(until, ctx.now)) " (" (ago(until, ctx.now)) ")" }
            @match text(&block["reason"]) {
                "" => ", without a reason.",
                reason => { ": " (cut(reason, 300)) }
            }
        }
    }
}

fn standing(asked: &NamedKey, standing: &Value) -> Markup {
    let Some(limits) = standing.as_array() else {
        return html! { p { "What is left of its limits is not known: the store did not answer." } };
    };
    if limits.is_empty() {
        return html! { p { "The policy has no limits; it goes by lists alone." } };
    }
    let mut missing: Vec<&str> = Vec::new();
    for attribute in limits.iter().flat_map(|limit| list(&limit["depends_on"])).filter_map(Value::as_str) {
        if !missing.contains(&attribute) {
            missing.push(attribute);
        }
    }
    html! {
        div class="wide" { table {
            caption { "What is left" }
            (columns(&[("Limit", false), ("Left", true), ("Of", true), ("Owed", true), ("Full again", false)]))
            tbody { @for limit in limits { tr {
                td { code { (cut(text(&limit["limit"]), 200)) } }
                @match limit["remaining"].as_u64() {
                    Some(left) => {
                        td class="n" { (count(left)) }
                        td class="n" { (count(whole(&limit["most"]))) }
                        td class="n" { (count(whole(&limit["debt"]))) }
                        td { (full_again(limit["reset_after_ms"].as_u64())) }
                    }
                    None => td colspan="4" { (depends_on(limit)) },
                }
            } } }
        } }
        @if !missing.is_empty() { (asked.ask_for(&missing, "Show what is left")) }
    }
}

fn depends_on(limit: &Value) -> String {
    let attributes: Vec<String> =
        list(&limit["depends_on"]).iter().filter_map(Value::as_str).map(|word| cut(word, 80)).collect();
    if attributes.is_empty() {
        return "depends on the request".to_owned();
    }
    format!("depends on {}", attributes.join(", "))
}

fn full_again(millis: Option<u64>) -> String {
    match millis {
        None => "–".to_owned(),
        Some(0) => "now".to_owned(),
        // Rounded up: who is told one second must not be early.
        Some(millis) => format!("in {}", span(millis.div_ceil(1_000))),
    }
}

fn counted(shown: &Value) -> Markup {
    let of = |field: &str| whole(&shown[field]);
    let times = |counted: u64| if counted == 1 { "time" } else { "times" };
    let (denied, near, error) = (of("denied"), of("near"), of("error"));
    html! {
        p {
            "Since the server started: refused " (count(denied)) " " (times(denied))
            ", near the limit " (count(near)) " " (times(near))
            @if error > 0 { " (at most " (count(error)) " too many)" }
            @if denied == 0 && near == 0 { "; only keys that are refused or near their limit often are counted" }
            "."
        }
    }
}

fn forms(ctx: &Context<'_>, asked: &NamedKey, shown: &Value) -> Markup {
    let action = asked.page_path();
    html! {
        h2 { "Change" }
        @if asked.enforces() {
            form method="post" action=(action) {
                (ctx.form_field()) input type="hidden" name="do" value="block";
                label { "Refuse all its requests for " input name="for" value="1h" size="8" required; } " "
                label { "because " input name="reason" maxlength="255" required; } " "
                button { "Block" }
            }
        } @else {
            p class="quiet" {
                "The policy is in mode " (text(&asked.words["mode"])) " and refuses nobody, so a block would have no effect."
            }
        }
        @if !shown["block"].is_null() {
            form method="post" action=(action) {
                (ctx.form_field()) input type="hidden" name="do" value="unblock";
                "Let its limits decide again; what it has spent stays. "
                button { "Unblock" }
            }
        }
        form method="post" action=(action) {
            (ctx.form_field()) input type="hidden" name="do" value="reset";
            "Forget what it has spent, and end its block. "
            label { input type="checkbox" name="sure" value="yes" required; " Yes, reset it" } " "
            button { "Reset" }
        }
    }
}

/// Takes a form of the page.
pub(crate) async fn post(ctx: &Context<'_>, policy: &str) -> Result<String, PageError> {
    let asked = NamedKey::of(ctx, policy).await?;
    if !asked.is_named() {
        return Err(PageError::bad("name every attribute of the key"));
    }
    let path = asked.path(false);
    match ctx.field("do") {
        Some("block") => {
            let Some(reason) = ctx.field("reason") else {
                return Err(PageError::bad(
                    "a block needs a reason, which others see later; nothing was changed",
                ));
            };
            let Some(lasts) = ctx.field("for") else {
                return Err(PageError::bad("a block needs a time, such as 10min; nothing was changed"));
            };
            let body = json!({ "block": { "for": lasts, "reason": reason } });
            ctx.send(Method::PUT, &path, &body).await?;
        }
        Some("unblock") => {
            let answer = ctx.send(Method::PUT, &path, &json!({ "block": null })).await?;
            if answer["unblocked"].as_bool() == Some(false) {
                return Err(PageError::bad(
                    "this policy does not block the key; a block for all policies is ended by \
                     tidegate key unblock CALLER, or PUT /v1/keys with {\"block\": null}",
                ));
            }
        }
        Some("reset") => {
            if ctx.field("sure").is_none() {
                return Err(PageError::bad("say that you mean it; nothing was changed"));
            }
            ctx.send(Method::DELETE, &path, &Value::Null).await?;
        }
        _ => return Err(PageError::bad("the form does not say what to do; nothing was changed")),
    }
    Ok(asked.page_path())
}

#[cfg(test)]
mod tests {
    use super::super::context::canned::{Canned, pairs};
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    const HOSTILE: &str = "<script>alert(1)</script>\u{202e}";

    fn policy(mode: &str, by: &[&str]) -> Value {
        json!({ "name": "per-ip", "mode": mode, "by": by })
    }

    fn key(block: &Value) -> Value {
        json!({
            "key": format!("client.ip={HOSTILE}"), "denied": 1_234, "near": 1, "error": 2, "block": block,
            "standing": [
                { "limit": "gcra 10/s burst 20", "remaining": 3, "most": 20, "debt": 0, "reset_after_ms": 1_001 },
                { "limit": "free 1/s", "remaining": null, "depends_on": ["tenant.plan"] },
            ],
        })
    }

    fn canned(block: &Value) -> Canned {
        Canned::new(vec![
            ("/v1/policies/per-ip", 200, policy("enforce", &["client.ip"])),
            ("/v1/keys/per-ip", 200, key(block)),
        ])
    }

    #[tokio::test]
    async fn a_key_shows_what_is_left_and_what_blocks_it_and_hostile_words_stay_words() {
        let block = json!({
            "since": "2027-01-15T07:59:00.000Z", "until": "2027-01-15T08:59:00.000Z", "reason": HOSTILE,
        });
        let (canned, query) = (canned(&block), pairs(&[("client.ip", "<b>")]));
        let page =
            page(&canned.context("/ui/keys/per-ip", &query, &[]), "per-ip").await.unwrap().into_string();
        assert_eq!(page.matches("<h1>").count(), 1);
        assert!(!page.contains("<script>") && !page.contains('\u{202e}'), "{page}");
        for words in ["BLOCKED", "refused 1,234 times", "in 2 s", "depends on tenant.plan", "Unblock"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        let asked = canned.asked.lock();
        assert_eq!(asked[1].1, "/v1/keys/per-ip?client.ip=%3Cb%3E");
    }

    #[tokio::test]
    async fn who_may_only_read_sees_no_form_that_changes() {
        let canned = canned(&Value::Null);
        let query = pairs(&[("client.ip", "192.0.2.1")]);
        let ctx = canned.reader("/ui/keys/per-ip", &query);
        let page = page(&ctx, "per-ip").await.unwrap().into_string();
        assert!(!page.contains("method=\"post\"") && page.contains("scope <code>admin</code>"), "{page}");
    }

    #[tokio::test]
    async fn an_unnamed_key_is_asked_for() {
        let canned = canned(&Value::Null);
        let page = page(&canned.context("/ui/keys/per-ip", &[], &[]), "per-ip").await.unwrap().into_string();
        assert!(page.contains("name=\"client.ip\" required"), "{page}");
    }

    #[tokio::test]
    async fn forms_are_sent_as_the_server_reads_them() {
        let canned = canned(&Value::Null);
        // The plan selects a limit, and is no part of the key.
        let query = pairs(&[("client.ip", "2001:db8::/64"), ("tenant.plan", "free")]);
        let path = "/v1/keys/per-ip?client.ip=2001%3Adb8%3A%3A%2F64";
        let forms: [(Fields<'_>, Method, &str); 3] = [
            (
                &[("do", "block"), ("for", "1h"), ("reason", "scraper")],
                Method::PUT,
                r#"{"block":{"for":"1h","reason":"scraper"}}"#,
            ),
            (&[("do", "unblock")], Method::PUT, r#"{"block":null}"#),
            (&[("do", "reset"), ("sure", "yes")], Method::DELETE, ""),
        ];
        for (fields, method, body) in forms {
            let fields = pairs(fields);
            let next = post(&canned.context("/ui/keys/per-ip", &query, &fields), "per-ip").await.unwrap();
            assert_eq!(next, "/ui/keys/per-ip?client.ip=2001%3Adb8%3A%3A%2F64&tenant.plan=free");
            let sent = canned.asked.lock().pop().unwrap();
            assert_eq!(sent, (method, path.to_owned(), body.to_owned()));
        }
        let incomplete: [Fields<'_>; 3] = [&[("do", "block"), ("for", "1h")], &[("do", "reset")], &[]];
        for fields in incomplete {
            let fields = pairs(fields);
            let refused = post(&canned.context("/ui/keys/per-ip", &query, &fields), "per-ip").await;
            assert!(refused.unwrap_err().detail().contains("nothing was changed"));
            assert_eq!(canned.asked.lock().pop().unwrap().0, Method::GET);
        }
    }
}
