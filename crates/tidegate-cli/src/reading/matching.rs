//! Parses `--match`, which selects requests of a log in the terms of a policy's `match`.

use anyhow::Result;
use serde_json::json;
use tidegate::config::{Config, Format};
use tidegate::policy::{Glob, GlobError, Match, Want};

use crate::exit::Mistake;

/// Makes a match from words such as `path=/api/**`, `header.x-plan=pro` and `not.method=GET`. Words with the same
/// name are alternatives; those with different names must all match.
pub(super) fn matching(words: &[(String, String)]) -> Result<Match> {
    let (mut asked, mut left_out) = (Vec::new(), Vec::new());
    for (name, value) in words {
        match name.strip_prefix("not.") {
            Some(name) => left_out.push((name, value.as_str())),
            None => asked.push((name.as_str(), value.as_str())),
        }
    }
    let built = part(&asked, "")?;
    let left = part(&left_out, "not.")?;
    possible(&asked, "")?;
    possible(&left_out, "not.")?;
    Ok(if left_out.is_empty() { built } else { built.not(left) })
}

/// Refuses words that fit no request, by the rules of a policy file: a network of addresses, a regular expression.
fn possible(words: &[(&str, &str)], prefix: &str) -> Result<()> {
    for (name, value) in words {
        let (part, key) = match *name {
            "method" | "request.method" => ("method", None),
            "path" | "request.path" => ("path", None),
            "host" | "request.host" => ("host", None),
            name => match name.strip_prefix("header.").or_else(|| name.strip_prefix("request.header.")) {
                Some(header) => ("header", Some(header)),
                None => ("attributes", Some(name)),
            },
        };
        let asked = key.map_or_else(|| json!(value), |key| json!({ key: value }));
        let policy = json!({ "name": "p", "match": { part: asked }, "limit": { "rate": "1/s" } });
        let file = json!({ "version": 1, "policies": [policy] }).to_string();
        let Err(mistakes) = Config::parse(&file, "", Format::Yaml) else { continue };
        let told = mistakes.first().map(|mistake| mistake.message.clone()).unwrap_or_default();
        let told = told.trim_start_matches("policy \"p\": ").trim_start_matches(&format!("match.{part}: "));
        return Err(Mistake(format!("--match {prefix}{name}: {told}")).into());
    }
    Ok(())
}

fn part(words: &[(&str, &str)], prefix: &str) -> Result<Match> {
    let mut built = Match::any();
    let mut wants: Vec<(&str, Want)> = Vec::new();
    for (name, value) in words {
        let wrong = |error: GlobError| Mistake(format!("--match {prefix}{name}: {error}"));
        built = match *name {
            "method" | "request.method" => built.method(value),
            "path" | "request.path" => built.path(value).map_err(wrong)?,
            "host" | "request.host" => built.host(value).map_err(wrong)?,
            name => {
                let want = match *value {
                    "true" => Want::Present,
                    "false" => Want::Absent,
                    pattern => Want::OneOf(vec![Glob::new(pattern).map_err(wrong)?]),
                };
                match (wants.iter_mut().find(|(have, _)| *have == name), want) {
                    (None, want) => wants.push((name, want)),
                    (Some((_, Want::OneOf(globs))), Want::OneOf(more)) => globs.extend(more),
                    (Some(_), _) => {
                        let what = format!(
                            "--match {prefix}{name}: true and false mean present and absent, and cannot be combined with other values of the same name"
                        );
                        return Err(Mistake(what).into());
                    }
                }
                built
            }
        };
    }
    for (name, want) in wants {
        let header = name.strip_prefix("header.").or_else(|| name.strip_prefix("request.header."));
        built = match header {
            Some(header) => built.header(header, want),
            None => built.attribute(name, want),
        };
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use tidegate::Descriptor;

    use super::*;

    fn read(words: &[&str]) -> Result<Match> {
        let pair = |word: &&str| {
            let (name, value) = word.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        matching(&words.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_those_of_a_policy() {
        let request = Descriptor::from([
            ("request.method", "POST"),
            ("request.path", "//api/./items?x"),
            ("request.host", "Shop.example:443"),
            ("request.header.x-plan", "pro"),
            ("response.status", "503"),
        ]);
        let rows: [(&[&str], bool); 13] = [
            (&[], true),
            (&["path=/api/**"], true),
            (&["path=/login", "path=/api/*"], true),
            (&["request.path=/login"], false),
            (&["method=post", "host=*.example"], true),
            (&["method=GET", "path=/api/**"], false),
            (&["header.X-Plan=pro"], true),
            (&["request.header.x-plan=free", "header.x-plan=pro"], false),
            (&["response.status=5*", "user.id=false"], true),
            (&["user.id=true"], false),
            (&["path=/api/**", "not.method=POST"], false),
            (&["not.path=/health", "not.path=/metrics"], true),
            (&["not.path=/api/**"], false),
        ];
        for (words, fits) in rows {
            assert_eq!(read(words).unwrap().matches(&request), fits, "{words:?}");
        }
    }

    #[test]
    fn mistakes_name_the_flag_and_the_word() {
        let rows: [(&[&str], &str); 6] = [
            (
                &["client.ip=10.0.0.0/8"],
                "--match client.ip: \"10.0.0.0/8\" is not an address; networks stand in access.allow and access.deny; in a match write \"10.*\"",
            ),
            (
                &["not.path=/api/[0-9]+"],
                "--match not.path: \"/api/[0-9]+\": a path has no regular expressions or parameters here: * is one segment, ** any number, {a,b} either; write /api/*",
            ),
            (&["path=api"], "--match path: \"api\": a path pattern starts with / or **"),
            (&["not.host=a{b"], "--match not.host: \"a{b\": braces do not pair; write {a,b}, not nested"),
            (
                &["user.id="],
                "--match user.id: an empty pattern matches nothing; leave it out to match everything",
            ),
            (
                &["user.id=true", "user.id=a"],
                "--match user.id: true and false mean present and absent, and cannot be combined with other values of the same name",
            ),
        ];
        for (words, wrong) in rows {
            assert_eq!(read(words).unwrap_err().to_string(), wrong, "{words:?}");
        }
    }
}
