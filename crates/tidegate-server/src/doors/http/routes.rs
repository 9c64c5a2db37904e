//! Lists every path with its methods and scope.
//!
//! This is the only list: a path without a row is not found, so none is served without a decision about its scope.
//! The manual's table (docs/http-api.md) is made from it.

use std::borrow::Cow;

use http::{Method, Uri};

use crate::auth::Scope;
use crate::problem::Problem;
use crate::text::{nearest, quoted};

/// Below it are the pages for operators.
pub(super) const UI: &str = "/ui/";

#[derive(Debug)]
pub(super) struct Route {
    /// The methods, as an `allow` header; `*` is any.
    pub(super) methods: &'static str,
    /// The path. One that ends in `{name}` matches every name, and `/ui/` every path below it.
    pub(super) path: &'static str,
    /// The scope of a token; `None`: none is needed.
    pub(super) required_scope: Option<Scope>,
}

const fn check(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, required_scope: Some(Scope::Check) }
}

const fn read(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, required_scope: Some(Scope::Read) }
}

const fn metrics(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, required_scope: Some(Scope::Metrics) }
}

const fn admin(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, required_scope: Some(Scope::Admin) }
}

const fn everybody(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, required_scope: None }
}

/// All routes, the most frequent ones first.
pub(super) const ROUTES: [Route; 46] = [
    check("POST", "/v1/check"),
    check("*", "/v1/forward-auth"),
    check("POST", "/v1/settle"),
    check("POST", "/v1/check/batch"),
    check("POST", "/v1/peek"),
    check("POST", "/v1/extend"),
    everybody("GET, HEAD", "/livez"),
    everybody("GET, HEAD", "/readyz"),
    everybody("GET, HEAD", "/healthz"),
    metrics("GET, HEAD", "/metrics"),
    read("GET, POST", "/v1/explain"),
    read("POST", "/v1/dry-run"),
    read("GET, HEAD", "/v1/policies"),
    read("GET, HEAD", "/v1/policies/{name}"),
    admin("PUT, DELETE", "/v1/policies/{name}"),
    admin("POST", "/v1/canaries/{name}"),
    read("GET, HEAD", "/v1/breakers"),
    read("GET, HEAD", "/v1/breakers/{name}"),
    admin("PUT", "/v1/breakers/{name}"),
    read("GET, HEAD", "/v1/keys"),
    admin("PUT", "/v1/keys"),
    read("GET, HEAD", "/v1/keys/top"),
    // A policy may be named `top`, so a DELETE or PUT is always about a policy's key.
    read("GET, HEAD", "/v1/keys/{name}"),
    admin("PUT", "/v1/keys/{name}"),
    admin("DELETE", "/v1/keys/{name}"),
    read("GET, HEAD", "/v1/signals"),
    admin("POST", "/v1/signals/{name}"),
    read("GET, HEAD", "/v1/switches"),
    admin("PUT", "/v1/switches/{name}"),
    read("GET, HEAD", "/v1/events"),
    read("GET, HEAD", "/v1/overview"),
    read("GET, HEAD", "/v1/history"),
    read("GET, HEAD", "/v1/changes"),
    read("GET, HEAD", "/v1/busiest"),
    read("GET, HEAD", "/v1/alerts"),
    admin("POST", "/v1/alerts"),
    read("GET, HEAD", "/v1/live"),
    read("POST", "/v1/lab"),
    admin("POST", "/v1/reload"),
    read("GET, HEAD", "/v1/drain"),
    admin("POST, DELETE", "/v1/drain"),
    admin("POST", "/v1/backup"),
    metrics("GET, HEAD", "/version"),
    read("GET, HEAD", "/config.schema.json"),
    read("GET, HEAD", "/openapi.json"),
    // Its pages ask their visitors for a token.
    everybody("GET, HEAD, POST", "/ui/"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// All of them.
    All,
    /// Decisions and health.
    Decisions,
    /// Operations and health.
    Operations,
}

impl Serves {
    /// Checks that the route is served here.
    ///
    /// # Errors
    /// 404 that says where it is.
    pub(super) fn has(self, route: &Route) -> Result<(), Problem> {
        let elsewhere = match (self, route.required_scope) {
            (Self::Decisions, None) if route.path == UI => "at the admin address (--admin, server.admin)",
            (Self::All, _) | (_, None) | (Self::Decisions, Some(Scope::Check)) => return Ok(()),
            (Self::Operations, Some(Scope::Read | Scope::Admin | Scope::Metrics | Scope::Keys)) => {
                return Ok(());
            }
            (Self::Decisions, _) => "at the admin address (--admin, server.admin)",
            (Self::Operations, _) => "where decisions are served (--http, server.http)",
        };
        Err(Problem::not_found(format!("{} is not served here but {elsewhere}", route.path)))
    }
}

impl Route {
    /// Finds the route of a request.
    ///
    /// # Errors
    /// 404 with a suggestion; 405 with the methods there are.
    pub(super) fn of(method: &Method, path: &str) -> Result<&'static Self, Problem> {
        let mut others: Vec<&str> = Vec::new();
        for route in ROUTES.iter().filter(|route| route.is_at(path)) {
            if route.takes(method) {
                return Ok(route);
            }
            for other in route.methods.split(", ") {
                if !others.contains(&other) {
                    others.push(other);
                }
            }
        }
        if others.is_empty() { Err(not_found(path)) } else { Err(wrong_method(method, &others.join(", "))) }
    }

    /// Reports whether all that a request asks for here is in its body.
    pub(super) fn reads_the_body_alone(&self) -> bool {
        let decides = self.required_scope == Some(Scope::Check) && self.methods == "POST";
        decides || matches!(self.path, "/v1/signals/{name}" | "/v1/switches/{name}" | "/v1/canaries/{name}")
    }

    fn is_at(&self, path: &str) -> bool {
        match self.path.strip_suffix("{name}") {
            None if self.path == UI => path.starts_with(UI),
            None => path == self.path,
            Some(before) => path.starts_with(before),
        }
    }

    fn takes(&self, method: &Method) -> bool {
        self.methods == "*" || self.methods.split(", ").any(|one| one == method.as_str())
    }
}

/// Guesses by the last part of a path, and what they mean.
const GUESSED: [(&str, &str); 20] = [
    ("auth", "/v1/forward-auth"),
    ("auth-request", "/v1/forward-auth"),
    ("auth_request", "/v1/forward-auth"),
    ("authorize", "/v1/forward-auth"),
    ("verify", "/v1/forward-auth"),
    ("forwardauth", "/v1/forward-auth"),
    ("forward-auth", "/v1/forward-auth"),
    ("stats", "/metrics"),
    ("dashboard", "/ui/"),
    ("ui", "/ui/"),
    ("metrics", "/metrics"),
    ("prometheus", "/metrics"),
    ("status", "/readyz?verbose"),
    ("health", "/readyz"),
    ("check", "/v1/check"),
    ("ratelimit", "/v1/check"),
    ("acquire", "/v1/check"),
    ("allow", "/v1/check"),
    ("limit", "/v1/check"),
    ("release", "/v1/settle"),
];

/// Paths that settled a part of a decision, and what settles it now.
const REMOVED: [(&str, &str); 2] = [
    ("/v1/report", "POST /v1/settle takes the same body, as {\"ticket\": \"TICKET\", \"status\": 200}"),
    ("/v1/refund", "POST /v1/settle gives back, as {\"ticket\": \"TICKET\", \"refund\": \"all\"}"),
];

fn not_found(path: &str) -> Problem {
    if let Some((_, now)) = REMOVED.iter().find(|(removed, _)| *removed == path) {
        return Problem::not_found(format!("there is nothing at {} now; {now}", quoted(path)));
    }
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let guessed = GUESSED.iter().find(|(word, _)| *word == last).map(|(_, meant)| *meant);
    let paths = ROUTES.iter().map(|route| route.path).filter(|path| !path.ends_with('}'));
    let meant = guessed.or_else(|| nearest(path, paths));
    let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    Problem::not_found(format!("there is nothing at {}{advice}", quoted(path)))
}

fn wrong_method(method: &Method, allowed: &str) -> Problem {
    let detail = format!("{} does not work here; use {allowed}", quoted(method.as_str()));
    Problem::new(http::StatusCode::METHOD_NOT_ALLOWED, detail).allowing(allowed)
}

/// The parameters of one request.
#[derive(Debug, Default)]
pub(crate) struct Query<'u> {
    pairs: Vec<(Cow<'u, str>, Cow<'u, str>)>,
}

impl<'u> Query<'u> {
    /// Reads a query.
    ///
    /// # Errors
    /// 400 for a name that is unknown or given twice.
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

    /// Checks that a request has no parameters.
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

    /// Returns whether a parameter is present, and not `false`.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(self.wrong(name, other, "`true` or `false`")),
        }
    }

    /// Makes the problem for an impossible value; `works` lists the possible ones.
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
    fn a_path_is_found_by_its_method() {
        let of = |method: Method, path: &str| {
            Route::of(&method, path).map(|route| route.path).map_err(|problem| problem.detail().to_owned())
        };
        assert_eq!(of(Method::GET, "/v1/keys/top"), Ok("/v1/keys/top"));
        assert_eq!(of(Method::DELETE, "/v1/keys/top"), Ok("/v1/keys/{name}"));
        assert_eq!(of(Method::PUT, "/v1/breakers/a/b"), Ok("/v1/breakers/{name}"));
        assert_eq!(of(Method::PATCH, "/v1/forward-auth"), Ok("/v1/forward-auth"));
        let told = of(Method::POST, "/v1/keys/top").unwrap_err();
        assert_eq!(told, "`POST` does not work here; use GET, HEAD, PUT, DELETE");
        for (path, meant) in [
            ("/v1/forward-auth/", "/v1/forward-auth"),
            ("/auth", "/v1/forward-auth"),
            ("/v1/auth", "/v1/forward-auth"),
            ("/v1/metrics", "/metrics"),
            ("/stats", "/metrics"),
        ] {
            let told = of(Method::GET, path).unwrap_err();
            assert_eq!(told, format!("there is nothing at `{path}`; did you mean {meant}?"));
        }
        for (path, meant) in [
            ("/v1/acquire", "/v1/check"),
            ("/v1/allow", "/v1/check"),
            ("/v1/limit", "/v1/check"),
            ("/v1/release", "/v1/settle"),
        ] {
            let told = of(Method::POST, path).unwrap_err();
            assert_eq!(told, format!("there is nothing at `{path}`; did you mean {meant}?"));
        }
        let told = of(Method::POST, "/v1/refund").unwrap_err();
        assert!(
            told.ends_with(r#"POST /v1/settle gives back, as {"ticket": "TICKET", "refund": "all"}"#),
            "{told}"
        );
        let told = of(Method::GET, "/v1/polices").unwrap_err();
        assert_eq!(told, "there is nothing at `/v1/polices`; did you mean /v1/policies?");
    }

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
