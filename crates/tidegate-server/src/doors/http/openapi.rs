//! `GET /openapi.json`: describes the API in OpenAPI 3.1.
//!
//! Paths, methods and scopes come from [`ROUTES`]. Summary, parameters, body and the schema of each status are in
//! `openapi/*.json`, one file per tag. A test client checks the running server against the document.
//!
//! # Source
//! The OpenAPI Specification 3.1.1.

use std::sync::LazyLock;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::routes::{ROUTES, Route};
use crate::auth::Scope;
use crate::body::json::{self, JSON};
use crate::body::{self, Response};

/// Components that several tags use.
const COMMON: &str = include_str!("../../../openapi/common.json");
/// The operations of each tag, with their schemas.
const TAGS: [&str; 4] = [
    include_str!("../../../openapi/decisions.json"),
    include_str!("../../../openapi/settling.json"),
    include_str!("../../../openapi/policies.json"),
    include_str!("../../../openapi/operations.json"),
];
/// The methods of a path item; a route that takes any has all.
const METHODS: [&str; 8] = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];

const ABOUT: &str = "The HTTP/1.1 API of Tidegate. A path that does not exist is answered with 404, a method that it lacks with 405 \
    and `allow`. Before a request reaches its operation, the connection may answer 400, 408, 431, 503 or 505, possibly without a body. \
    If the server has tokens, each request needs one; the words beside a security scheme are the scopes that the token needs.";

static DOCUMENT: LazyLock<Vec<u8>> = LazyLock::new(|| json::bytes(&document()));

/// Answers with the document, made on the first request.
pub(crate) fn openapi() -> Response {
    body::answer(StatusCode::OK, JSON, DOCUMENT.as_slice())
}

fn document() -> Value {
    let mut components = parsed(COMMON);
    let (mut tags, mut operations) = (Vec::new(), Map::new());
    for mut part in TAGS.map(parsed) {
        let tag = part["tag"].take();
        if let Some(schemas) = object(&mut part, "schemas") {
            extend(&mut components["schemas"], schemas);
        }
        for (name, mut operation) in object(&mut part, "operations").unwrap_or_default() {
            operation["tags"] = json!([tag["name"]]);
            operations.insert(name, operation);
        }
        tags.push(tag);
    }
    components["securitySchemes"] = json!({
        "bearer": { "type": "http", "scheme": "bearer" },
        "header": { "type": "apiKey", "in": "header", "name": "x-tidegate-token" },
    });
    let mut paths = json!({});
    for route in &ROUTES {
        for method in methods(route) {
            paths[route.path][method.to_ascii_lowercase()] = operation(route, method, &operations);
        }
    }
    json!({
        "openapi": "3.1.1",
        "info": { "title": "Tidegate", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT },
        "tags": tags,
        "paths": paths,
        "components": components,
    })
}

fn methods(route: &Route) -> Vec<&'static str> {
    if route.methods == "*" { METHODS.to_vec() } else { route.methods.split(", ").collect() }
}

/// Returns the names that an operation may have in its tag's file; `HEAD` falls back to `GET`.
fn names(route: &Route, method: &str) -> [String; 3] {
    let get = if method == "HEAD" { "GET" } else { method };
    [method, get, "*"].map(|method| format!("{method} {}", route.path))
}

/// Returns one operation. A test checks that every one is described.
fn operation(route: &Route, method: &str, operations: &Map<String, Value>) -> Value {
    let found = names(route, method).iter().find_map(|name| operations.get(name));
    let mut operation = found.cloned().unwrap_or_else(|| json!({}));
    operation["operationId"] = id(method, route.path).into();
    let scope = route.required_scope.map(Scope::word);
    let asked = |scheme: &str| json!({ scheme: [scope] });
    operation["security"] =
        if scope.is_some() { json!([asked("bearer"), asked("header")]) } else { json!([]) };
    if scope.is_some() {
        // Answers of every route with a scope that come before the route itself.
        for (status, name) in [("401", "Unauthorized"), ("403", "Forbidden"), ("404", "NotFound")] {
            if operation["responses"].get(status).is_none() {
                operation["responses"][status] = json!({ "$ref": format!("#/components/responses/{name}") });
            }
        }
    }
    if method == "HEAD" {
        without_bodies(&mut operation);
    }
    operation
}

/// Turns the answers to `GET` into those to `HEAD`.
fn without_bodies(operation: &mut Value) {
    for (_, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        let described = response.get("description").cloned();
        *response = json!({ "description": described.unwrap_or_else(|| "The same as for GET, without a body.".into()) });
    }
}

/// Returns the id of an operation, for example `getPoliciesByName`.
fn id(method: &str, path: &str) -> String {
    let mut id = method.to_ascii_lowercase();
    let words = path.trim_start_matches("/v1/").split(|c: char| !c.is_ascii_alphanumeric());
    for word in words.filter(|word| !word.is_empty()) {
        let by = if word == "name" { "ByName" } else { word };
        let (first, rest) = by.split_at(1);
        id.push_str(&first.to_ascii_uppercase());
        id.push_str(rest);
    }
    id
}

/// Parses a built-in file; a test parses all of them.
fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn object(of: &mut Value, name: &str) -> Option<Map<String, Value>> {
    match of.get_mut(name)?.take() {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

fn extend(object: &mut Value, more: Map<String, Value>) {
    if let Some(object) = object.as_object_mut() {
        object.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_testkit::{cell, keep_tables, name, table};

    use super::*;

    /// The section of docs/http-api.md, or the page, that says more about a path.
    const SECTIONS: &[(&str, &str)] = &[
        ("/v1/check", "#check"),
        ("/v1/check/batch", "#batch"),
        ("/v1/peek", "#check"),
        ("/v1/forward-auth", "forward-auth.md"),
        ("/v1/settle", "#settle"),
        ("/v1/extend", "#extend"),
        ("/v1/explain", "#explain"),
        ("/v1/dry-run", "#dry-run"),
        ("/v1/policies", "#policies"),
        ("/v1/policies/NAME", "#policies-of-the-api"),
        ("/v1/canaries/NAME", "policy-guide.md#try-a-limit-on-a-share-of-keys"),
        ("/v1/breakers", "#breakers"),
        ("/v1/breakers/NAME", "#breakers"),
        ("/v1/keys", "#blocks-for-all-policies"),
        ("/v1/keys/top", "#keys"),
        ("/v1/keys/NAME", "#the-keys-of-one-policy"),
        ("/v1/signals", "#signals"),
        ("/v1/signals/NAME", "#signals"),
        ("/v1/switches", "#switches"),
        ("/v1/switches/NAME", "#switches"),
        ("/v1/events", "#events"),
        ("/v1/overview", "#sight"),
        ("/v1/history", "#sight"),
        ("/v1/changes", "#sight"),
        ("/v1/busiest", "#sight"),
        ("/v1/alerts", "#alerts"),
        ("/v1/live", "#sight"),
        ("/v1/lab", "#the-lab"),
        ("/ui/", "#sight"),
        ("/v1/reload", "#reload"),
        ("/v1/drain", "stores/operating.md#take-a-node-away"),
        ("/v1/backup", "#backup"),
        ("/livez", "#health"),
        ("/readyz", "#health"),
        ("/healthz", "#health"),
        ("/metrics", "metrics.md"),
    ];

    #[test]
    fn the_manual_has_the_endpoints() {
        let mut described = Map::new();
        for mut part in TAGS.map(parsed) {
            described.extend(object(&mut part, "operations").unwrap());
        }
        let mut rows = Vec::new();
        for route in &ROUTES {
            let path = name(&route.path.replace("{name}", "NAME"), SECTIONS);
            let scope = route.required_scope.map_or("none", Scope::word);
            // A path that answers GET answers HEAD likewise.
            for method in route.methods.split(", ").filter(|method| *method != "HEAD") {
                let operation = &described[&format!("{method} {}", route.path)];
                let summary = operation["summary"].as_str().unwrap();
                let mut statuses: Vec<&str> =
                    operation["responses"].as_object().unwrap().keys().map(String::as_str).collect();
                statuses.sort_unstable();
                rows.push([
                    path.clone(),
                    method.replace('*', "any"),
                    scope.to_owned(),
                    cell(summary),
                    statuses.join(", "),
                ]);
            }
        }
        let made = table(["path", "method", "scope", "what it does", "statuses"], &rows);
        keep_tables("docs/http-api.md", &[("paths".to_owned(), made)]);
    }

    #[test]
    fn the_files_have_every_operation_of_the_routes_and_no_other() {
        let mut described = BTreeSet::new();
        for part in TAGS {
            let part: Value = serde_json::from_str(part).unwrap();
            for name in part["operations"].as_object().unwrap().keys() {
                assert!(described.insert(name.clone()), "{name} is there twice");
            }
        }
        serde_json::from_str::<Value>(COMMON).unwrap();
        let mut asked = BTreeSet::new();
        for route in &ROUTES {
            for method in methods(route) {
                let names = names(route, method);
                let found = names.iter().find(|name| described.contains(*name));
                asked.insert(found.unwrap_or_else(|| panic!("no file has {}", names[0])).clone());
            }
        }
        assert_eq!(asked, described, "a file has an operation that is no route");
    }

    #[test]
    fn the_document_has_the_paths_methods_and_scopes_of_the_routes_and_names_that_differ() {
        let document = document();
        let mut listed = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let security = operation["security"].as_array().unwrap();
                let scope = security.first().map_or("none", |first| first["bearer"][0].as_str().unwrap());
                listed.insert((path.clone(), method.to_ascii_uppercase(), scope.to_owned()));
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{operation}");
                for needed in ["summary", "tags", "responses"] {
                    assert!(operation.get(needed).is_some(), "{method} {path} has no {needed}");
                }
                let named = operation["parameters"].as_array().into_iter().flatten().any(|parameter| {
                    let told = parameter["$ref"].as_str().unwrap_or_default();
                    ["/policy", "/signal", "/switch"].iter().any(|name| told.ends_with(name))
                });
                assert_eq!(named, path.ends_with("{name}"), "{method} {path}");
            }
        }
        let routes = ROUTES.iter().flat_map(|route| {
            let scope = route.required_scope.map_or("none", Scope::word);
            methods(route)
                .into_iter()
                .map(move |method| (route.path.to_owned(), method.to_owned(), scope.to_owned()))
        });
        assert_eq!(listed, routes.collect());
        assert!(ids.contains("getPoliciesByName"), "{ids:?}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references(value: &Value, into: &mut Vec<String>) {
            match value {
                Value::Object(object) => {
                    into.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    object.values().for_each(|value| references(value, into));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, into)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        for kind in ["schemas", "responses", "parameters", "headers"] {
            for name in document["components"][kind].as_object().unwrap().keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(found.contains(&reference), "nothing refers to {reference}");
            }
        }
    }
}
