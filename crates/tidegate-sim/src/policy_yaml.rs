//! Writes proposed limits as policies.
//!
//! A limit is only worth what its policy counts. Whatever narrowed the evidence must stand in the policy, so the lines
//! are read back as a file would be; if they do not say the same, the reason is told instead.

use serde::Serializer;
use serde_json::{Map, Value, json};
use tidegate::config::{Config, Format, Severity};
use tidegate::policy::{Absent, Access, CostRule, Direction, Glob, Match, Policy, Want};

use crate::replay::PeakRate;

/// The lines of a policy before its limit: `match`, `direction`, `by`, `absent` and `cost`. `read` selects the requests
/// of the log. `cost` is as it was written; `None`: the policy's own rule.
///
/// # Errors
/// The reason, as a sentence without full stop, if no policy can count the same requests.
pub(crate) fn scope(policy: &Policy, read: &Match, cost: Option<&str>) -> Result<String, String> {
    let both = both(&policy.matching, read);
    let matching =
        both.ok_or("the policy and --match make demands on the same attribute that one `match` cannot hold")?;
    let mut lines = String::new();
    if matching != Match::any() {
        lines.push_str(&format!("    match: {}\n", flow(&match_value(&matching))));
    }
    if policy.direction == Direction::Outbound {
        lines.push_str("    direction: outbound\n");
    }
    if !policy.by.is_empty() {
        let by: Vec<String> = policy.by.iter().map(|name| plain_or_quoted(name)).collect();
        lines.push_str(&format!("    by: [{}]\n", by.join(", ")));
    }
    match policy.absent {
        Absent::SkipIfNone => {}
        Absent::Charge => lines.push_str("    absent: charge\n"),
        Absent::Skip => lines.push_str("    absent: skip\n"),
    }
    lines.push_str(&match (cost, &policy.cost) {
        (Some(cost), _) => cost_line(cost),
        (None, None) => String::new(),
        (None, Some(CostRule::Fixed(cost))) => cost_line(&cost.units().to_string()),
        (None, Some(CostRule::Attribute(name))) => cost_line(name),
        (None, Some(CostRule::Expression(expression))) => cost_line(expression.source()),
        (None, Some(CostRule::Table { .. })) => return Err(stays("its table of costs")),
        // A rule that is learned, or of a kind that is not known here.
        (None, Some(_)) => return Err(stays("a cost of its own")),
    });
    if !policy.when.is_empty() {
        return Err(stays("`when`"));
    }
    if policy.access != Access::default() {
        return Err(stays("its own lists of `access`"));
    }
    let mut names: Vec<String> = policy.by.clone();
    matching.names(&mut |name| names.push(name.to_owned()));
    if let Some(name) = names.iter().find(|name| name.starts_with("response.")) {
        return Err(format!(
            "{name} is known only after the answer, when a policy has decided: select or key by what a request says, such as path=/login"
        ));
    }
    reads_back(&lines, policy, &matching)?;
    Ok(lines)
}

fn stays(what: &str) -> String {
    format!("the policy counts by {what}, which stands in its file alone: change the limit there")
}

fn reads_back(lines: &str, policy: &Policy, matching: &Match) -> Result<(), String> {
    let text = format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: proposed\n{lines}    limit: {{ rate: 1/s }}\n"
    );
    let (config, _) = Config::parse(&text, "proposal", Format::Yaml).map_err(|mistakes| {
        let first = mistakes.into_iter().find(|mistake| mistake.severity == Severity::Error);
        first.map_or_else(|| "no file can say so".to_owned(), |mistake| mistake.message)
    })?;
    let read = config.policies.policies().first();
    let same = |read: &&Policy| {
        let same = (&read.matching, &read.by, read.direction) == (matching, &policy.by, policy.direction);
        same && read.absent == policy.absent
    };
    read.filter(same).map(|_| ()).ok_or_else(|| "a policy file reads the same words otherwise".to_owned())
}

/// The requests that fit both; `None` if one `match` cannot say that.
pub(crate) fn both(one: &Match, other: &Match) -> Option<Match> {
    let mut built = Match::any();
    for method in narrower(one.methods(), other.methods(), |method, all| all.contains(method))? {
        built = built.method(method);
    }
    let fits = |literal: &str, globs: &[Glob]| {
        !is_pattern(literal) && globs.iter().any(|glob| glob.matches(literal))
    };
    let paths = narrower(one.paths(), other.paths(), |path, all| {
        all.contains(path) || !is_pattern(path.source()) && all.iter().any(|glob| glob.matches(path.source()))
    })?;
    for path in paths {
        built = built.path(path.source()).ok()?;
    }
    let hosts =
        narrower(one.hosts(), other.hosts(), |host, all| all.contains(host) || fits(host.source(), all))?;
    for host in hosts {
        built = built.host(host.source()).ok()?;
    }
    for (name, want) in one.attributes() {
        let also = other.attributes().iter().find(|(known, _)| known == name).map(|(_, want)| want);
        let want = match (want, also) {
            (want, None) => want.clone(),
            (want, Some(also)) if want == also => want.clone(),
            (Want::OneOf(globs), Some(Want::Present)) | (Want::Present, Some(Want::OneOf(globs))) => {
                Want::OneOf(globs.clone())
            }
            (Want::OneOf(globs), Some(Want::OneOf(also))) => {
                let both = narrower(globs, also, |glob, all| all.contains(glob) || fits(glob.source(), all))?;
                Want::OneOf(both.to_vec())
            }
            _ => return None,
        };
        built = built.attribute(name, want);
    }
    for (name, want) in other.attributes() {
        if !one.attributes().iter().any(|(known, _)| known == name) {
            built = built.attribute(name, want.clone());
        }
    }
    Some(one.left_out().iter().chain(other.left_out()).fold(built, |built, not| built.not(not.clone())))
}

/// The alternatives that fit both lists, where one lies within the other; an empty list fits everything.
fn narrower<'l, T>(one: &'l [T], other: &'l [T], within: impl Fn(&T, &[T]) -> bool) -> Option<&'l [T]> {
    if other.is_empty() || !one.is_empty() && one.iter().all(|each| within(each, other)) {
        return Some(one);
    }
    (one.is_empty() || other.iter().all(|each| within(each, one))).then_some(other)
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '{', '}'])
}

pub(crate) fn match_value(matching: &Match) -> Value {
    let mut map = Map::new();
    let mut list = |name: &str, all: Vec<Value>| {
        if !all.is_empty() {
            map.insert(name.to_owned(), all.into());
        }
    };
    list("method", matching.methods().iter().map(|method| (**method).into()).collect());
    list("path", matching.paths().iter().map(|path| path.source().into()).collect());
    list("host", matching.hosts().iter().map(|host| host.source().into()).collect());
    let (mut headers, mut attributes) = (Map::new(), Map::new());
    for (name, want) in matching.attributes() {
        let want = match want {
            Want::OneOf(globs) => globs.iter().map(|glob| Value::from(glob.source())).collect(),
            Want::Present => true.into(),
            Want::Absent => false.into(),
        };
        match name.strip_prefix("request.header.") {
            Some(header) => headers.insert(header.to_owned(), want),
            None => attributes.insert(name.to_string(), want),
        };
    }
    for (name, each) in [("header", headers), ("attributes", attributes)] {
        if !each.is_empty() {
            map.insert(name.to_owned(), each.into());
        }
    }
    if !matching.left_out().is_empty() {
        map.insert("not".to_owned(), json!(matching.left_out().iter().map(match_value).collect::<Vec<_>>()));
    }
    map.into()
}

/// Writes a value in YAML's flow style, on one line. Texts are quoted as in JSON, which is valid YAML; a list of one is
/// written as its element.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let each = map.iter().map(|(name, value)| format!("{}: {}", plain_or_quoted(name), flow(value)));
            format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
        }
        Value::Array(all) => match &all[..] {
            [one] => flow(one),
            all => format!("[{}]", all.iter().map(flow).collect::<Vec<_>>().join(", ")),
        },
        other => other.to_string(),
    }
}

fn cost_line(cost: &str) -> String {
    let cost = cost.parse::<i64>().map_or_else(|_| plain_or_quoted(cost), |number| number.to_string());
    format!("    cost: {cost}\n")
}

/// Writes a text as a YAML scalar: plain where that is safe, otherwise as a JSON string, which is valid YAML.
pub(crate) fn plain_or_quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_plain = text.bytes().all(plain)
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && !["true", "false", "null", "yes", "no", "on", "off"]
            .iter()
            .any(|word| word.eq_ignore_ascii_case(text));
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

pub(crate) fn in_words<S: Serializer>(rate: &PeakRate, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(rate)
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;
    use tidegate::policy::Limit;

    use super::*;

    fn policy(matching: Match) -> Policy {
        let limit = Limit::new(Quota::per_second(1).gcra().unwrap(), "any");
        Policy::new("any", limit).matching(matching).by(["client.ip"])
    }

    fn one_of(pattern: &str) -> Want {
        Want::value(pattern).unwrap()
    }

    #[test]
    fn what_narrowed_the_evidence_is_written() {
        let login = || Match::any().path("/login").unwrap();
        let rows = [
            (Match::any(), Match::any(), ""),
            (Match::any(), login(), "    match: { path: \"/login\" }\n"),
            (login(), Match::any().path("/**").unwrap(), "    match: { path: \"/login\" }\n"),
            (
                Match::any().header("user-agent", one_of("a \"b\"")),
                login().method("post").not(Match::any().attribute("user.id", Want::Present)),
                "    match: { header: { user-agent: \"a \\\"b\\\"\" }, method: \"POST\", not: { attributes: { user.id: true } }, path: \"/login\" }\n",
            ),
            (
                Match::any().attribute("no", Want::Present),
                Match::any().attribute("no", one_of("x*")),
                "    match: { attributes: { \"no\": \"x*\" } }\n",
            ),
        ];
        for (own, read, line) in rows {
            let written = scope(&policy(own), &read, None);
            assert_eq!(written, Ok(format!("{line}    by: [client.ip]\n")));
        }
    }

    #[test]
    fn names_are_quoted_where_yaml_would_read_them_otherwise() {
        let words = ["per-ip", "client.ip", "no", "a: b", "1", "x\n  - y", "", "- a"].map(plain_or_quoted);
        assert_eq!(
            words,
            ["per-ip", "client.ip", "\"no\"", "\"a: b\"", "\"1\"", "\"x\\n  - y\"", "\"\"", "\"- a\""]
        );
    }

    #[test]
    fn what_no_policy_can_say_is_not_written() {
        let agent = |pattern| Match::any().header("user-agent", one_of(pattern));
        let rows = [
            (agent("a*"), agent("*b"), "one `match` cannot hold"),
            (
                Match::any(),
                Match::any().attribute("response.status", one_of("5*")),
                "known only after the answer",
            ),
            (Match::any(), Match::any().path(&format!("/{}", "x/".repeat(900))).unwrap(), "1024"),
            (agent("x").path("/a").unwrap().not(agent("x")), Match::any(), "excludes everything"),
        ];
        for (own, read, why) in rows {
            let told = scope(&policy(own), &read, None).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
