//! Entity tags: tell whether the state that a caller knows is still current.
//!
//! # Source
//! RFC 9110, sections 8.8.3 and 13.1: tags are compared strongly for `If-Match`, and weakly for `If-None-Match`.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use http::header::{HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};

/// Returns the tag of a text. The hasher's keys are fixed: the same text has the same tag on every server and after a restart.
pub(super) fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// The conditional headers of one request.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    matches: Option<String>,
    none_matches: Option<String>,
}

impl Conditions {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let list = |name: HeaderName| {
            let lines = headers.get_all(name).iter();
            // A value that is not text cannot be a tag of this server: it counts as a list without tags.
            let lines: Vec<&str> = lines.map(|line| HeaderValue::to_str(line).unwrap_or_default()).collect();
            (!lines.is_empty()).then(|| lines.join(","))
        };
        Self { matches: list(IF_MATCH), none_matches: list(IF_NONE_MATCH) }
    }

    /// Returns whether a change is allowed to the resource with this tag; `None` if the resource does not exist yet.
    pub(super) fn hold(&self, tag: Option<&str>) -> bool {
        let matched = self.matches.as_deref().is_none_or(|list| has(list, tag));
        matched && !self.is_known(tag)
    }

    /// Returns whether the caller has the version with this tag already.
    pub(super) fn is_known(&self, tag: Option<&str>) -> bool {
        self.none_matches.as_deref().is_some_and(|list| has(&list.replace("W/", ""), tag))
    }
}

/// Returns whether a tag is in a list; `*` in the list matches any tag. The server's tags contain no comma.
fn has(list: &str, tag: Option<&str>) -> bool {
    tag.is_some_and(|tag| list.split(',').map(str::trim).any(|one| one == "*" || one == tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_to_what_the_caller_knows_and_to_nothing_else() {
        let own = tag("x");
        let hold = |name: HeaderName, value: &str, tag: Option<&str>| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::try_from(value).unwrap())]);
            Conditions::of(&headers).hold(tag)
        };
        let cases = [
            (IF_MATCH, own.clone(), Some(&*own), true),
            (IF_MATCH, format!("\"0\", {own}"), Some(&own), true),
            (IF_MATCH, format!("W/{own}"), Some(&own), false),
            (IF_MATCH, "*".to_owned(), Some(&own), true),
            (IF_MATCH, "*".to_owned(), None, false),
            (IF_MATCH, String::new(), Some(&own), false),
            (IF_NONE_MATCH, "*".to_owned(), None, true),
            (IF_NONE_MATCH, "*".to_owned(), Some(&own), false),
            (IF_NONE_MATCH, format!("W/{own}"), Some(&own), false),
            (IF_NONE_MATCH, "\"0\"".to_owned(), Some(&own), true),
        ];
        for (name, value, tag, expected) in cases {
            assert_eq!(hold(name.clone(), &value, tag), expected, "{name}: {value} of {tag:?}");
        }
        assert!(Conditions::of(&HeaderMap::new()).hold(None));
    }
}
