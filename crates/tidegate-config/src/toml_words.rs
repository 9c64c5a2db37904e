//! Writes the corrections of messages in TOML: they are made in the form of YAML, which most files have.

/// Words before which a correction begins.
const BEFORE: [&str; 4] = ["write ", "or ", "as ", "else "];

/// The longest message that is looked through: a longer one lists names, which a file chooses.
const LONGEST: usize = 4096;

/// Returns a message with the lines that it tells to write in the form of TOML.
pub(super) fn in_toml(message: &str) -> String {
    if message.len() > LONGEST {
        return message.to_owned();
    }
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    // What stands before the first correction may be the author's own words.
    while let Some((at, word)) =
        BEFORE.iter().filter_map(|word| Some((begin(rest, word)?, *word))).min_by_key(|(at, _)| *at)
    {
        let (before, after) = rest.split_at(at + word.len());
        out.push_str(before);
        rest = match line(after) {
            Some((written, after)) => {
                out.push_str(&written);
                after
            }
            None => after,
        };
    }
    out.push_str(rest);
    out
}

/// Returns where a word begins that stands alone.
fn begin(text: &str, word: &str) -> Option<usize> {
    text.match_indices(word).map(|(at, _)| at).find(|at| *at == 0 || text[..*at].ends_with([' ', '(']))
}

/// Converts what stands at the beginning of a text, if it is YAML: `key: value` with further pairs behind commas, `{ … }`
/// or `[ … ]`. Returns it and the rest of the text.
fn line(text: &str) -> Option<(String, &str)> {
    if let Some(after) = text.strip_prefix("- name: ") {
        let (name, rest) = scalar(after, false)?;
        return Some((format!("[[policies]] with name = {name}"), rest));
    }
    if let Some(after) = text.strip_prefix("policies:, a list of - ") {
        let (policy, rest) = value(after)?;
        return Some((format!("policies = [{policy}]"), rest));
    }
    if text.starts_with(['{', '[']) {
        return value(text);
    }
    let (mut pairs, mut rest) = pair(text)?;
    while let Some((next, after)) = rest.strip_prefix(", ").and_then(pair) {
        pairs.push_str(", ");
        pairs.push_str(&next);
        rest = after;
    }
    Some((pairs, rest))
}

/// Converts a key and its value.
fn pair(text: &str) -> Option<(String, &str)> {
    let (key, after) = key(text)?;
    let (of, rest) = match after.starts_with(['{', '[']) {
        true => value(after)?,
        false => scalar(after, false)?,
    };
    Some((format!("{key} = {of}"), rest))
}

/// Reads a key, perhaps in quotes, and the colon after it.
fn key(text: &str) -> Option<(String, &str)> {
    if let Some(after) = text.strip_prefix('"') {
        let end = closing(after, '"')? + 1;
        return Some((text[..=end].to_owned(), text[end + 1..].strip_prefix(": ")?));
    }
    let (key, after) = text.split_once(": ")?;
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let is_key = !key.is_empty() && key.bytes().all(is_part);
    is_key.then(|| (if key.contains('.') { format!("\"{key}\"") } else { key.to_owned() }, after))
}

/// Reads a value within brackets.
fn value(text: &str) -> Option<(String, &str)> {
    let (close, is_map) = match text.chars().next()? {
        '{' => ('}', true),
        '[' => (']', false),
        _ => return scalar(text, true),
    };
    let mut rest = text[1..].trim_start();
    let mut parts = Vec::new();
    while !rest.starts_with(close) {
        if let Some(after) = rest.strip_prefix("...").or_else(|| rest.strip_prefix('…')) {
            parts.push("...".to_owned());
            rest = after.trim_start();
            continue;
        }
        if is_map {
            let (name, after) = key(rest)?;
            let (of, after) = value(after.trim_start())?;
            parts.push(format!("{name} = {of}"));
            rest = after;
        } else {
            let (of, after) = value(rest)?;
            parts.push(of);
            rest = after;
        }
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        if rest.is_empty() {
            return None;
        }
    }
    let inner = parts.join(", ");
    Some((if is_map { format!("{{ {inner} }}") } else { format!("[{inner}]") }, &rest[1..]))
}

/// Reads a text, number or word: a quoted one up to its quote, others within brackets up to a comma or their end, else
/// up to a blank.
fn scalar(text: &str, within: bool) -> Option<(String, &str)> {
    if let Some(quote) = text.chars().next().filter(|quote| matches!(quote, '"' | '\'')) {
        let end = closing(&text[1..], quote)? + 1;
        // Between double quotes, both formats escape alike.
        let written = if quote == '"' { text[..=end].to_owned() } else { quoted(&text[1..end]) };
        return Some((written, &text[end + 1..]));
    }
    let mut depth = 0_usize;
    let end = text.char_indices().find(|(_, letter)| match letter {
        '{' => {
            depth += 1;
            false
        }
        '}' if depth > 0 => {
            depth -= 1;
            false
        }
        ',' | '}' | ']' => depth == 0,
        ' ' | ';' | ')' => !within,
        _ => false,
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    let word = text[..end].trim_end();
    let is_plain = matches!(word, "true" | "false") || word.bytes().all(|byte| byte.is_ascii_digit());
    let written = if is_plain { word.to_owned() } else { quoted(word) };
    (!word.is_empty()).then_some((written, &text[end..]))
}

/// Returns where a quoted text ends. Between double quotes, a backslash escapes what comes after it.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    let end = text.char_indices().find(|(_, letter)| {
        let ends = *letter == quote && !escaped;
        escaped = quote == '"' && *letter == '\\' && !escaped;
        ends
    });
    end.map(|(at, _)| at)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_are_written_in_toml() {
        for (yaml, toml) in [
            (
                "file has no version; write version: 1 in its first line",
                "file has no version; write version = 1 in its first line",
            ),
            (
                "unknown key \"key\" in policy; write by: [client.ip, user.id]",
                "unknown key \"key\" in policy; write by = [\"client.ip\", \"user.id\"]",
            ),
            (
                "; write { rate: 100/s } or { rate: 100/min }",
                "; write { rate = \"100/s\" } or { rate = \"100/min\" }",
            ),
            (
                "; name one attribute of `by`, as key: { user.id: vip }",
                "; name one attribute of `by`, as key = { \"user.id\" = \"vip\" }",
            ),
            (
                "; write policies:, a list of - { name: api, limit: { rate: 10/s } }",
                "; write policies = [{ name = \"api\", limit = { rate = \"10/s\" } }]",
            ),
            (
                "; write on_cost_error: deny if that is meant, else on_cost_error: whole-limit",
                "; write on_cost_error = \"deny\" if that is meant, else on_cost_error = \"whole-limit\"",
            ),
            (
                "; write limit: { algorithm: breaker, ... }",
                "; write limit = { algorithm = \"breaker\", ... }",
            ),
            ("; write match: { path: /{api,v1}/** }", "; write match = { path = \"/{api,v1}/**\" }"),
            ("; write url: \"redis://db:6379\"", "; write url = \"redis://db:6379\""),
            ("; write over: \"demote to sheddable\"", "; write over = \"demote to sheddable\""),
            ("; write name: \"a \\\"b\\\" c\" here", "; write name = \"a \\\"b\\\" c\" here"),
            (
                "; write profile: sentinel, window: \"100 calls\", min_calls: 100, which differ",
                "; write profile = \"sentinel\", window = \"100 calls\", min_calls = 100, which differ",
            ),
            (
                "; write rate: { by: user.tier, values: { \"Gold\": 1/s, ... }, otherwise: 1/s }, with the others",
                "; write rate = { by = \"user.tier\", values = { \"Gold\" = \"1/s\", ... }, otherwise = \"1/s\" }, with the others",
            ),
            (
                "; write estimate: \"learned 99%\" for a share other than 90%",
                "; write estimate = \"learned 99%\" for a share other than 90%",
            ),
        ] {
            assert_eq!(in_toml(yaml), toml);
        }
        for same in [
            "cannot be read as TOML: duplicate key",
            "rate: \"M\" could be minute or month; write min or month",
            "write 100/s, 100/min or 100/day",
            "\"x\" has no host; write 0.0.0.0:90 for all addresses of this machine, or 127.0.0.1:90",
            "write {a,b}, not nested",
            "write { é",
            "write [",
        ] {
            assert_eq!(in_toml(same), same);
        }
    }
}
