//! Warns of conditions that few requests meet and that probably mean more: `/api/`, `GTE`, `>100`, and a `*` where values
//! are compared as they are.

use tidegate_core::spelling::nearest;

use crate::diagnostic::Findings;
use crate::names;
use crate::node::{Name, Node, Spot, Value};
use crate::shape::subject;
use tidegate_gate::policy::{AccessEntry, Glob, PathGlob};
use tidegate_limits::visible::excerpt;

pub(super) fn check(file: &Node, findings: &mut Findings) {
    listed(file, findings);
    for (at, policy) in file.each_of("policies").iter().enumerate() {
        findings.subject = subject(policy, at);
        if let Some(matches) = policy.get("match") {
            matching(matches, "match", findings);
            for not in matches.each_of("not") {
                matching(not, "not", findings);
            }
        }
        let limits = policy.each_of("limit").iter();
        let tried = policy.get("canary").and_then(|canary| canary.get("limit"));
        for limit in limits.chain(policy.get("shadow_limit")).chain(tried) {
            if let Some(rate) = limit.get("rate") {
                by_value(rate, findings);
            }
            overrides(limit, findings);
        }
        if let Some(cost) = policy.get("cost") {
            by_value(cost, findings);
            if let Some(estimate) = cost.get("estimate") {
                by_value(estimate, findings);
            }
        }
        listed(policy, findings);
        findings.subject.clear();
    }
}

fn by_value(node: &Node, findings: &mut Findings) {
    let Some(attribute) = node.text_of("by") else { return };
    for (Name { spot, text }, _) in node.entries_of("values") {
        if text != "*" && names::value(attribute, text).is_ok() {
            tell_of_a_star(*spot, "values", attribute, text, findings);
        }
    }
}

fn overrides(limit: &Node, findings: &mut Findings) {
    let keys = limit.each_of("overrides").iter().filter_map(|one| one.get("key"));
    for (attribute, value) in keys.flat_map(Node::entries) {
        if let Some(text) = value.text()
            && names::value(&attribute.text, text).is_ok()
        {
            tell_of_a_star(value.spot, "override.key", &attribute.text, text, findings);
        }
    }
}

fn listed(node: &Node, findings: &mut Findings) {
    let Some(access) = node.get("access") else { return };
    for (list, key) in [("allow", "access.allow"), ("deny", "access.deny")] {
        for entry in access.each_of(list) {
            if let Some(Ok(AccessEntry::Attribute { name, value })) = entry.text().map(str::parse)
                && value != "*"
            {
                tell_of_a_star(entry.spot, key, &name, &value, findings);
            }
        }
    }
}

fn tell_of_a_star(spot: Spot, key: &str, attribute: &str, text: &str, findings: &mut Findings) {
    if !text.contains('*') {
        return;
    }
    let matching = match attribute.strip_prefix(names::HEADER) {
        Some(header) => format!("header: {{ {}: \"{}\" }}", excerpt(header), excerpt(text)),
        None => format!("attributes: {{ {}: \"{}\" }}", excerpt(attribute), excerpt(text)),
    };
    findings.warn(
        spot,
        format_args!(
            "{key}: the * in \"{}\" is compared as it is; patterns hold in match alone: write a policy with match: {{ {matching} }}",
            excerpt(text)
        ),
    );
}

fn matching(node: &Node, section: &str, findings: &mut Findings) {
    for method in node.each_of("method") {
        warn_of_a_method(method, &format!("{section}.method"), findings);
    }
    let paths = node.each_of("path");
    for path in paths {
        // What is refused was told already.
        let is_sound = |text: &&str| {
            names::foreign_path(text).is_none()
                && PathGlob::new(text).is_ok_and(|glob| names::path_pattern(&glob).is_ok())
        };
        if let Some(text) = path.text().filter(is_sound)
            && let Some(remark) = path_remark(text, paths.len() == 1)
        {
            findings.warn(path.spot, format_args!("{section}.path: {} {remark}", excerpt(text)));
        }
    }
    for part in ["header", "attributes"] {
        for (name, value) in node.entries_of(part) {
            for one in value.each().iter().filter(|one| matches!(one.value, Value::Text(_))) {
                match (part, &*name.text) {
                    ("attributes", "request.path" | "request.method" | "client.ip" | "request.host") => {}
                    (_, name) => warn_of_a_value(one, &format!("{section}.{part}"), name, findings),
                }
            }
        }
    }
}

fn method_meant(text: &str) -> Option<&'static str> {
    let is_known = names::METHODS.iter().any(|known| known.eq_ignore_ascii_case(text));
    if is_known { None } else { nearest(text, names::METHODS) }
}

fn warn_of_a_method(node: &Node, key: &str, findings: &mut Findings) {
    // What is refused was told already.
    let text = node.text().filter(|text| names::method(text).is_ok());
    if let Some((text, meant)) = text.and_then(|text| Some((text, method_meant(text)?))) {
        findings.warn(
            node.spot,
            format_args!("{key}: few requests have the method {}; did you mean {meant}?", excerpt(text)),
        );
    }
}

/// Returns why a path pattern probably means more than it matches; `is_alone`: the match names no other path.
fn path_remark(text: &str, is_alone: bool) -> Option<String> {
    let is_slip = |segment: &str| {
        let word = segment.strip_prefix(':').unwrap_or_default();
        matches!(segment, ".*" | ".+" | ".*?")
            || !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if let Some(segment) = text.split('/').find(|segment| is_slip(segment))
        && let Some(meant) = names::path_meant(text)
    {
        return Some(format!(
            "has {segment}, which is compared as it is: a path has no regular expressions or parameters here; write {}",
            excerpt(&meant)
        ));
    }
    if text == "/" {
        return is_alone.then(|| "matches the root alone; write /** for every path".to_owned());
    }
    if let Some(path) = text.strip_suffix('/').filter(|path| !path.ends_with("**")) {
        return Some(format!(
            "matches {} alone; write {} for all below it too",
            excerpt(path),
            excerpt(&names::below(path))
        ));
    }
    let last = text.rsplit('/').next().unwrap_or_default();
    let word = last.strip_suffix('*').unwrap_or_default();
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| {
        let path = text.trim_end_matches('*');
        format!(
            "matches one segment, as {path} and {path}s, and nothing below; write {} for {path} and all below it",
            excerpt(&names::below(path))
        )
    })
}

/// Warns of a value that reads as a comparison or a regular expression: values are compared as texts and patterns.
fn warn_of_a_value(node: &Node, key: &str, name: &str, findings: &mut Findings) {
    let Some(text) = node.text() else { return };
    let is_number = |text: &str| !text.trim().is_empty() && text.trim().parse::<f64>().is_ok();
    let compares = [">=", "<=", "==", "!=", ">", "<", "="]
        .into_iter()
        .any(|sign| text.strip_prefix(sign).is_some_and(|rest| is_number(rest) || sign.len() == 2));
    let is_regex = text.starts_with('^')
        || text.starts_with("(?")
        || text.starts_with('~')
        || text.starts_with(".*")
        || text.starts_with(".+")
        || text.contains('\\')
        || (text.ends_with('$') && text.len() > 1)
        || has_class(text)
        || has_choices(text, name);
    let (shown, name) = (excerpt(text), excerpt(name));
    if compares {
        findings.warn(
            node.spot,
            format_args!(
                "{key}: \"{shown}\" is compared as text: a match has values, as [a, b], and patterns, as a*, and no \
                 comparisons; let the caller send the class of the number, as {name}: high"
            ),
        );
    } else if text.starts_with('!') && text.len() > 1 {
        findings.warn(
            node.spot,
            format_args!("{key}: \"{shown}\" is compared as it is; what does not match is written as not: {{ ... }} within match"),
        );
    } else if is_regex {
        findings.warn(
            node.spot,
            format_args!("{key}: \"{shown}\" reads as a regular expression, and is compared as a pattern, in which * is any text; write {}", plainer(text)),
        );
    }
}

/// Reports whether a text has a class of letters, as `[0-9]`.
fn has_class(text: &str) -> bool {
    text.split('[').skip(1).filter_map(|part| part.split_once(']')).any(|(inner, after)| {
        let is_range = |range: &[u8]| range[1] == b'-' && range[0] < range[2];
        let is_alone = inner.len() == 3 && is_range(inner.as_bytes());
        is_alone
            || inner.starts_with('^')
            || ["0-9", "1-9", "a-z", "A-Z", "a-f", "A-F"].iter().any(|range| inner.contains(range))
            || (!inner.is_empty() && after.starts_with(['+', '{']))
    })
}

/// Reports whether a text has words with `|` between them. `github|eve` may be an account, or an entry of Envoy's.
fn has_choices(text: &str, name: &str) -> bool {
    let in_brackets = || {
        text.split('(').skip(1).filter_map(|part| part.split_once(')')).any(|(inner, _)| inner.contains('|'))
    };
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'))
    };
    let is_whole = ["id", "sub", "user", "key", "account"].iter().any(|last| name.ends_with(last))
        || name.starts_with("rls.");
    in_brackets() || (text.contains('|') && !is_whole && text.split('|').all(is_word))
}

fn plainer(text: &str) -> String {
    let starts = text.trim_start_matches("(?i)").trim_start_matches(['~', ' ']);
    let inner = starts.trim_start_matches('^').trim_end_matches('$');
    let choices =
        if inner.contains('|') && !inner.contains('(') { format!("({inner})") } else { inner.to_owned() };
    let Some(inner) = globbed(&choices) else { return "a pattern as \"k*\", or a list as [a, b]".to_owned() };
    // What has one end is searched for; other expressions read as the whole value.
    let is_searched = starts.len() < text.len()
        || starts.starts_with(['^', '(', '.'])
        || text.ends_with('$')
        || text.contains('\\');
    let before =
        if !is_searched || starts.starts_with(['^', '(']) || inner.starts_with('*') { "" } else { "*" };
    let after = if !is_searched || text.ends_with(['$', ')']) || inner.ends_with('*') { "" } else { "*" };
    let whole = format!("{before}{inner}{after}");
    let values = whole.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    match values.filter(|values| !values.contains(['{', '}'])) {
        Some(values) => {
            let values: Vec<_> = values.split(',').map(|value| format!("\"{}\"", excerpt(value))).collect();
            format!("[{}]", values.join(", "))
        }
        None => format!("\"{}\"", excerpt(&whole)),
    }
}

/// Translates a regular expression without anchors into a pattern; `None` if no pattern is near.
fn globbed(regex: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = regex;
    while let Some(first) = rest.chars().next() {
        let behind = &rest[first.len_utf8()..];
        let (part, after) = match first {
            '[' => ("?".to_owned(), behind.split_once(']')?.1),
            '\\' => {
                let escaped = behind.chars().next()?;
                let part = match escaped {
                    'd' | 'w' | 's' | 'D' | 'W' | 'S' => "?".to_owned(),
                    'b' | 'B' => String::new(),
                    literal => literal.to_string(),
                };
                (part, &behind[escaped.len_utf8()..])
            }
            '.' if behind.starts_with(['*', '+']) => ("?".to_owned(), behind),
            '(' => {
                let (inner, after) = behind.split_once(')')?;
                let inner = inner.strip_prefix("?:").unwrap_or(inner);
                if inner.contains(['(', ',', '{']) {
                    return None;
                }
                let choices: Option<Vec<_>> = inner.split('|').map(globbed).collect();
                let choices = choices?.join(",");
                (if inner.contains('|') { format!("{{{choices}}}") } else { choices }, after)
            }
            literal => (literal.to_string(), behind),
        };
        let is_class = part == "?";
        let counted = || Some(after.strip_prefix('{')?.split_once('}')?.1);
        let repeated = after.strip_prefix(['*', '+', '?']).or_else(counted);
        match repeated {
            Some(more) if is_class => {
                rest = more.strip_prefix('?').unwrap_or(more);
                if !out.ends_with('*') {
                    out.push('*');
                }
            }
            _ => {
                rest = after;
                out.push_str(&part);
            }
        }
    }
    Glob::new(&out).is_ok().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_told_as_patterns_and_lists() {
        for (regex, meant) in [
            ("k[0-9]+", "\"k*\""),
            ("k[0-9]", "\"k?\""),
            ("k[0-9]{2,4}-x", "\"k*-x\""),
            ("^pro$", "\"pro\""),
            ("^curl.*", "\"curl*\""),
            ("^curl", "\"curl*\""),
            ("~*bot", "\"*bot*\""),
            (".*bot.*", "\"*bot*\""),
            ("bot$", "\"*bot\""),
            ("a\\.example\\.com$", "\"*a.example.com\""),
            ("^v\\d+$", "\"v*\""),
            ("^(pro|team)$", "[\"pro\", \"team\"]"),
            ("(pro|team)", "[\"pro\", \"team\"]"),
            ("pro|team", "[\"pro\", \"team\"]"),
            ("^(?:a|b)-x$", "\"{a,b}-x\""),
            ("^((a|b)|c)$", "a pattern as \"k*\", or a list as [a, b]"),
        ] {
            assert_eq!(plainer(regex), meant, "{regex}");
            let is_told = has_class(regex)
                || has_choices(regex, "x-plan")
                || regex.starts_with(['^', '~', '.'])
                || regex.ends_with('$');
            assert!(is_told, "{regex}");
        }
    }

    #[test]
    fn values_that_are_no_regular_expressions_are_not_told() {
        for text in [
            "*/*",
            "curl/7.*",
            "application/*+json",
            "{a,b}-*",
            "Mozilla/5.0 (compatible; a+b)",
            "[::1]",
            "[foo-bar]",
            "auth0|5f7c8ec7",
            "",
        ] {
            assert!(!has_class(text) && !has_choices(text, "x-plan"), "{text}");
        }
        assert!(!has_choices("github|eve", "user.id"));
    }
}
