//! Translates path patterns of other systems: regular expressions, and parameters as `/users/{id}` and `/users/:id`.
//!
//! Here such a pattern fits no path or the wrong ones.

use tidegate_gate::policy::PathGlob;
use tidegate_limits::visible::excerpt;

/// Returns the pattern to write for one that no path fits as it was meant: empty if that is not known, `None` if it may
/// be meant.
fn never(text: &str) -> Option<String> {
    // No such letter stands in a path as it is sent; a brace has several alternatives.
    let is_regex = text.contains(['[', ']', '|', '^', '\\', '<', '>', '"', '`']) || text.ends_with('$');
    (is_regex || braces(text).any(|inner| !inner.contains(','))).then(|| path_meant(text).unwrap_or_default())
}

/// Says what is wrong with a pattern of another system; `None` if a path pattern may be meant as it is.
pub(crate) fn foreign_path(text: &str) -> Option<String> {
    let meant = never(text)?;
    let write = match meant.as_str() {
        "" => "/api/**, /users/*/orders or /{api,v1}/**".to_owned(),
        meant => excerpt(meant),
    };
    Some(format!(
        "\"{}\": a path has no regular expressions or parameters here: * is one segment, ** any number, {{a,b}} either; write {write}",
        excerpt(text)
    ))
}

/// Returns the pattern to write for one that is hardly meant as it is: a segment `.*` or `:id`.
pub(crate) fn path_meant(text: &str) -> Option<String> {
    let mut rest = text.trim();
    for before in ["~*", "~", "="] {
        rest = rest.strip_prefix(before).map_or(rest, str::trim);
    }
    // A class without the slash is one segment.
    let plain = unescaped(rest.trim_start_matches('^').trim_end_matches('$')).replace("[^/]", "[x]");
    let groups = without_groups(&plain)?;
    let mut out = String::new();
    let segments: Vec<&str> = groups.split('/').collect();
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        if at > 0 {
            out.push('/');
        }
        out.push_str(&meant_segment(segment, is_last));
    }
    // A regular expression without an end is a prefix.
    let is_open = rest.starts_with('^') && !rest.ends_with('$');
    if is_open && !out.ends_with("**") {
        out = format!("{}/**", out.trim_end_matches('/'));
    }
    if out.is_empty() || !out.starts_with('/') && !out.starts_with("**") {
        out.insert(0, '/');
    }
    (out != text && PathGlob::new(&out).is_ok()).then_some(out)
}

/// Returns the pattern for a path and all below it.
pub(crate) fn below(text: &str) -> String {
    let path = path_meant(text).unwrap_or_else(|| text.to_owned());
    let path = path.trim_end_matches(['*', '/']);
    if path.starts_with('/') { format!("{path}/**") } else { format!("/{path}/**").replace("//", "/") }
}

fn braces(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|part| part.split_once('}')).map(|(inner, _)| inner)
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, true) => match letters.next() {
                // A class such as `\d` is any text.
                Some(class) if class.is_ascii_alphabetic() => out.push_str("[x]"),
                Some(literal) => out.push(literal),
                None => {}
            },
            _ => out.push(letter),
        }
    }
    out
}

/// Replaces `(a|b)` by `{a,b}`, and a group without alternatives by what it holds; `None` for nested groups.
fn without_groups(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, group)) = rest.split_once('(') {
        let (inner, after) = group.split_once(')')?;
        if inner.contains('(') {
            return None;
        }
        let inner = inner.strip_prefix("?:").unwrap_or(inner);
        out.push_str(before);
        match inner.contains('|') {
            true => {
                let choices: Vec<&str> = inner.split('|').map(|choice| choice.trim_matches('/')).collect();
                // `/api(/v1|/v2)` has its slash within the group.
                if inner.starts_with('/') && !before.ends_with('/') {
                    out.push('/');
                }
                out.push_str(&format!("{{{}}}", choices.join(",")));
            }
            false => out.push_str(inner),
        }
        rest = after.trim_start_matches(['?', '+']);
        rest = match rest.strip_prefix('*') {
            Some(more) if !more.starts_with('*') && !before.ends_with('/') => more,
            _ => rest,
        };
    }
    out.push_str(rest);
    Some(out)
}

fn meant_segment(segment: &str, is_last: bool) -> String {
    let any = if is_last { "**" } else { "*" };
    match segment {
        ".*" | ".+" | ".*?" | ".*$" => return any.to_owned(),
        _ => {}
    }
    let is_parameter = segment.strip_prefix(':').is_some_and(is_word)
        || (segment.starts_with(['{', '<']) && segment.ends_with(['}', '>']) && !segment.contains(','));
    if is_parameter {
        // `{path...}` and `{*rest}` are the whole rest.
        let rest = segment.contains("...") || segment.contains('*');
        return if rest { any.to_owned() } else { "*".to_owned() };
    }
    let mut out = String::new();
    let mut letters = segment.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_class = match letter {
            '[' => {
                for inner in letters.by_ref() {
                    if inner == ']' {
                        break;
                    }
                }
                true
            }
            '.' => letters.peek().is_some_and(|next| matches!(next, '*' | '+')),
            _ => false,
        };
        if !is_class {
            out.push(letter);
            continue;
        }
        while letters.peek().is_some_and(|next| matches!(next, '*' | '+' | '?')) {
            letters.next();
        }
        if letters.peek() == Some(&'{') {
            for inner in letters.by_ref() {
                if inner == '}' {
                    break;
                }
            }
        }
        if !out.ends_with('*') {
            out.push('*');
        }
    }
    out
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_other_systems_are_translated() {
        for (text, meant) in [
            ("/api/.*", "/api/**"),
            ("/users/{id}/orders", "/users/*/orders"),
            ("/users/:id", "/users/*"),
            ("/(api|v1)/**", "/{api,v1}/**"),
            ("/n/[0-9]+", "/n/*"),
            ("~ ^/api", "/api/**"),
            ("^/api/(.*)$", "/api/**"),
            ("/users/<int:id>", "/users/*"),
            ("/files/{path...}", "/files/**"),
            ("/v\\d+/x", "/v*/x"),
            ("/api(/v1|/v2)/x", "/api/{v1,v2}/x"),
            ("/users/[^/]+/orders", "/users/*/orders"),
        ] {
            assert_eq!(path_meant(text).as_deref(), Some(meant), "{text}");
            assert!(PathGlob::new(meant).is_ok() && never(meant).is_none(), "{meant}");
        }
        for own in
            ["/api/**", "/{api,v1}/**", "/odata/Users('x')", "/v1/jobs/7:cancel", "/.well-known/*", "/v?/*"]
        {
            assert_eq!(never(own), None, "{own}");
        }
        assert_eq!(
            (below("/api"), below("/api/"), below("api")),
            ("/api/**".into(), "/api/**".into(), "/api/**".into())
        );
    }
}
