//! Query strings with a fixed set of parameter names.

use std::borrow::Cow;

use http::Uri;

use crate::problem::Problem;
use crate::spelling::{nearest, quoted};

/// The parameters of one request.
#[derive(Debug, Default)]
pub(crate) struct Query<'u> {
    pairs: Vec<(Cow<'u, str>, Cow<'u, str>)>,
}

impl<'u> Query<'u> {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// 400 for a name that is not among `names`, or that is given twice.
    pub(crate) fn of(uri: &'u Uri, names: &[&'static str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(Cow<'u, str>, Cow<'u, str>)> = Vec::new();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if !names.contains(&name.as_ref()) {
                let advice = match nearest(&name, names.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None if names.is_empty() => "there are none here".to_owned(),
                    None => format!("there are `{}`", names.join("`, `")),
                };
                return Err(unknown(&name, &advice));
            }
            if pairs.iter().any(|(have, _)| *have == name) {
                return Err(Problem::bad_request(format!("parameter {} is given twice", quoted(&name))));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// Checks that a request has no parameters, since its route reads the body alone.
    ///
    /// # Errors
    /// 400 for the first one.
    pub(super) fn none(uri: &Uri) -> Result<(), Problem> {
        let mut names = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        names.next().map_or(Ok(()), |(name, _)| Err(unknown(&name, "write it into the body")))
    }

    /// Returns the value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_ref())
    }

    /// Returns whether a boolean parameter is present and not `false`.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(self.wrong(name, other, "`true` or `false`")),
        }
    }

    /// Makes the problem for a value that is not possible; `works` lists the possible ones.
    pub(crate) fn wrong(&self, name: &'static str, value: &str, works: &str) -> Problem {
        Problem::bad_request(format!("{name} {} is not possible; use {works}", quoted(value)))
            .with("field", name)
    }
}

fn unknown(name: &str, advice: &str) -> Problem {
    Problem::bad_request(format!("unknown parameter {}; {advice}", quoted(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_and_slips_are_named() {
        let uri: Uri = "/v1/keys/top?policy=per%2Dip&&by=denied+now%zz%4&reveal".parse().unwrap();
        let query = Query::of(&uri, &["policy", "by", "reveal"]).unwrap();
        assert_eq!((query.get("policy"), query.get("by")), (Some("per-ip"), Some("denied now%zz%4")));
        assert!(query.flag("reveal").unwrap());
        let slip = Query::of(&uri, &["polcy", "by", "reveal"]).unwrap_err();
        assert_eq!(slip.detail(), "unknown parameter `policy`; did you mean `polcy`?");
    }
}
