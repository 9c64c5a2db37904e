//! Requests made from a policy's own words: each pattern with its wildcards filled in.

use super::model::written_out;
use super::words::{Ask, PolicyWords};

/// What replaces a wildcard.
const FILLINGS: [&str; 4] = ["x", "zz", "1", ""];

/// The value where the policy asks for nothing.
const ANYTHING: &str = "x";

fn filled(patterns: &[String], filling: &str) -> Vec<String> {
    let fill = |pattern: String| {
        let one = if filling.is_empty() { "y" } else { &filling[..1] };
        pattern.replace("**", filling).replace('*', filling).replace('?', one)
    };
    patterns.iter().flat_map(|pattern| written_out(pattern)).map(fill).collect()
}

fn in_lower_case(words: &[String]) -> Vec<String> {
    words.iter().map(|word| word.to_ascii_lowercase()).collect()
}

/// Returns requests; if a request that meets the policy is easily found, one of them meets it.
pub(crate) fn requests(policy: &PolicyWords) -> impl Iterator<Item = Vec<(String, String)>> {
    let words = &policy.matching;
    let mut all = Vec::new();
    for filling in FILLINGS {
        let candidates = |patterns: &[String]| match patterns {
            [] => vec![],
            some => filled(some, filling),
        };
        let mut asked: Vec<(String, Ask)> = words.attributes.clone();
        let headers = words.header.iter();
        asked.extend(
            headers.map(|(name, ask)| (format!("request.header.{}", name.to_ascii_lowercase()), ask.clone())),
        );
        // Collects the candidates of each part, and then combines them in every way.
        let mut parts: Vec<(String, Vec<String>)> = vec![
            // Methods of a match are compared without case, the attribute is not.
            ("request.method".to_owned(), [words.method.clone(), in_lower_case(&words.method)].concat()),
            ("request.path".to_owned(), candidates(&words.path)),
            ("request.host".to_owned(), candidates(&words.host)),
        ];
        let mut missing = Vec::new();
        for (name, ask) in asked {
            let more = match ask {
                Ask::Missing => {
                    missing.push(name);
                    continue;
                }
                Ask::There => vec![ANYTHING.to_owned()],
                // A path begins with a slash, which a wildcard at the start may match.
                Ask::OneOf(patterns) if name == "request.path" => {
                    let rooted = |pattern: &String| match pattern.strip_prefix(['*', '?']) {
                        Some(rest) => format!("/{rest}"),
                        None => pattern.clone(),
                    };
                    let rooted: Vec<String> = patterns.iter().map(rooted).collect();
                    let plain = [candidates(&patterns), candidates(&rooted)].concat();
                    // The attribute is such a path without the parameter; `not` may leave out only that reading.
                    let with_parameter = plain.iter().map(|path| format!("{path};x"));
                    with_parameter.chain(plain.clone()).collect()
                }
                Ask::OneOf(patterns) => candidates(&patterns),
            };
            parts.push((name, more));
        }
        for name in policy.by.iter().filter(|name| !missing.contains(name)) {
            parts.push((name.clone(), vec![ANYTHING.to_owned()]));
        }
        if policy.outbound {
            parts.push(("request.direction".to_owned(), vec!["outbound".to_owned()]));
        }
        let mut combined: Vec<Vec<(String, String)>> = vec![Vec::new()];
        for (name, values) in parts.into_iter().filter(|(_, values)| !values.is_empty()) {
            let longer = combined.iter().flat_map(|so_far| {
                let name = &name;
                values.iter().map(move |value| {
                    let mut pairs = so_far.clone();
                    match pairs.iter().position(|(have, _)| have == name) {
                        // The policy asks for this value twice. Either request may be the narrower one, so each is
                        // tried alone.
                        Some(at) if value != ANYTHING => pairs[at].1 = value.clone(),
                        Some(_) => {}
                        None => pairs.push((name.clone(), value.clone())),
                    }
                    pairs
                })
            });
            let kept = combined.clone();
            combined = longer
                .chain(kept.clone().into_iter().filter(|pairs| pairs.iter().any(|(have, _)| *have == name)))
                .collect();
        }
        all.extend(combined);
    }
    all.into_iter()
}
