//! Every path, what may be done there, and which scope of a token it takes.
//!
//! This is the one list: what has no row here is not found, so nothing is answered that nobody thought about who may ask it. The table of
//! the manual (docs/http-api.md) says the same, and a test holds them together.

use http::Method;

use crate::auth::Scope;
use crate::problem::Problem;
use crate::spelling::{nearest, quoted};

/// One path and what may be done there.
#[derive(Debug)]
pub(super) struct Route {
    /// The methods, as an `allow` header has them; `*` is any.
    pub(super) methods: &'static str,
    /// The path; one that ends in `{name}` is of every name.
    pub(super) path: &'static str,
    /// What a token must be for; with `None` everybody may ask, token or not.
    pub(super) asks: Option<Scope>,
}

const fn check(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, asks: Some(Scope::Check) }
}

const fn read(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, asks: Some(Scope::Read) }
}

const fn admin(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, asks: Some(Scope::Admin) }
}

const fn everybody(methods: &'static str, path: &'static str) -> Route {
    Route { methods, path, asks: None }
}

/// All routes, those that are asked most first.
pub(super) const ROUTES: [Route; 32] = [
    check("POST", "/v1/check"),
    check("*", "/v1/forward-auth"),
    check("POST", "/v1/settle"),
    check("POST", "/v1/check/batch"),
    check("POST", "/v1/peek"),
    check("POST", "/v1/report"),
    check("POST", "/v1/refund"),
    everybody("GET, HEAD", "/livez"),
    everybody("GET, HEAD", "/readyz"),
    everybody("GET, HEAD", "/healthz"),
    read("GET, HEAD", "/metrics"),
    read("GET, POST", "/v1/explain"),
    read("POST", "/v1/dry-run"),
    read("GET, HEAD", "/v1/policies"),
    read("GET, HEAD", "/v1/policies/{name}"),
    admin("PUT, DELETE", "/v1/policies/{name}"),
    read("GET, HEAD", "/v1/breakers"),
    read("GET, HEAD", "/v1/breakers/{name}"),
    admin("PUT", "/v1/breakers/{name}"),
    read("GET, HEAD", "/v1/keys/top"),
    // A policy may be named `top`: a DELETE or PUT is always of a policy's key.
    read("GET, HEAD", "/v1/keys/{name}"),
    admin("PUT", "/v1/keys/{name}"),
    admin("DELETE", "/v1/keys/{name}"),
    read("GET, HEAD", "/v1/signals"),
    admin("POST", "/v1/signals/{name}"),
    read("GET, HEAD", "/v1/switches"),
    admin("PUT", "/v1/switches/{name}"),
    read("GET, HEAD", "/v1/events"),
    admin("POST", "/v1/reload"),
    read("GET, HEAD", "/version"),
    read("GET, HEAD", "/config.schema.json"),
    read("GET, HEAD", "/openapi.json"),
];

/// Which routes an address has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// All of them.
    All,
    /// Decisions and health, where operations have an address of their own.
    Decisions,
    /// Operations and health.
    Operations,
}

impl Serves {
    /// Says whether the route is served.
    ///
    /// # Errors
    /// 404 with where it is.
    pub(super) fn has(self, route: &Route) -> Result<(), Problem> {
        let elsewhere = match (self, route.asks) {
            (Self::All, _) | (_, None) | (Self::Decisions, Some(Scope::Check)) => return Ok(()),
            (Self::Operations, Some(Scope::Read | Scope::Admin)) => return Ok(()),
            (Self::Decisions, _) => "at the admin address (--admin, server.admin)",
            (Self::Operations, _) => "where decisions are served (--http, server.http)",
        };
        Err(Problem::not_found(format!("{} is not served here but {elsewhere}", route.path)))
    }
}

impl Route {
    /// Finds what a request asks for.
    ///
    /// # Errors
    /// 404 for a path that there is not, with the one that was probably meant; 405 for another method, with those that work.
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

    fn is_at(&self, path: &str) -> bool {
        match self.path.strip_suffix("{name}") {
            None => path == self.path,
            Some(before) => path.starts_with(before),
        }
    }

    fn takes(&self, method: &Method) -> bool {
        self.methods == "*" || self.methods.split(", ").any(|one| one == method.as_str())
    }
}

fn not_found(path: &str) -> Problem {
    let paths = ROUTES.iter().map(|route| route.path).filter(|path| !path.ends_with('}'));
    let meant = nearest(path, paths);
    let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    Problem::not_found(format!("there is nothing at {}{advice}", quoted(path)))
}

fn wrong_method(method: &Method, allowed: &str) -> Problem {
    let detail = format!("{} does not work here; use {allowed}", quoted(method.as_str()));
    Problem::new(http::StatusCode::METHOD_NOT_ALLOWED, detail).allowing(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the manual's table of paths says: methods, path, scope.
    fn manual() -> Vec<(String, String, String)> {
        let text = include_str!("../../../../../docs/http-api.md");
        let table = text
            .split_once("| path | method | scope | what it does |")
            .unwrap()
            .1
            .split_once("\n\n")
            .unwrap()
            .0;
        let mut rows = Vec::new();
        for line in table.lines().skip(2) {
            let cells: Vec<_> = line.split(" | ").collect();
            // What answers to GET answers to HEAD, except for a GET that decides.
            let methods = match cells[1] {
                "POST, GET" => "POST, GET".to_owned(),
                methods => methods.replace("GET", "GET, HEAD").replace("any", "*"),
            };
            for path in cells[0].split('`').skip(1).step_by(2) {
                let path = path.replace("NAME", "{name}").replace("POLICY", "{name}");
                rows.extend(each(&methods).map(|method| (method, path.clone(), cells[2].to_owned())));
            }
        }
        rows
    }

    /// The methods of a row, one by one: how rows put them together, and in which order, is of no interest.
    fn each(methods: &str) -> impl Iterator<Item = String> {
        methods.split(", ").map(str::to_owned)
    }

    #[test]
    fn the_manual_lists_every_route_with_its_scope() {
        let mut manual = manual();
        let mut routes = Vec::new();
        for route in &ROUTES {
            let scope = route.asks.map_or("none", Scope::word);
            let row = |method| (method, route.path.to_owned(), scope.to_owned());
            routes.extend(each(route.methods).map(row));
        }
        manual.sort();
        routes.sort();
        assert_eq!(routes, manual);
    }

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
        let told = of(Method::GET, "/v1/polices").unwrap_err();
        assert_eq!(told, "there is nothing at `/v1/polices`; did you mean /v1/policies?");
    }
}
