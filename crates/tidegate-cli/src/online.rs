//! Asks a running server.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tidegate_server::Token;
use ureq::http::{Method, Request, Uri};

use crate::exit::Mistake;

/// The server asked where nothing else is said.
pub(crate) const USUAL_SERVER: &str = "http://127.0.0.1:8080";

/// Where a server is asked: `http://HOST[:PORT]`, perhaps with a path before the API's own.
#[derive(Clone, Debug)]
pub(crate) struct ServerUrl(String);

impl ServerUrl {
    /// Reads a URL as `--server` or `TIDEGATE_SERVER` has it.
    ///
    /// # Errors
    /// What is not asked over plain HTTP, with what would be.
    pub(crate) fn read(text: &str) -> Result<Self, Mistake> {
        let refuse =
            |why: &str| Err(Mistake(format!("the server `{text}` (--server, TIDEGATE_SERVER) {why}")));
        let Some((scheme, rest)) = text.split_once("://") else {
            let is_address = text.parse::<Uri>().is_ok_and(|uri| uri.host().is_some());
            let write = if is_address { text } else { "127.0.0.1:8080" };
            return refuse(&format!("is no URL; write http://{write}"));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" => {}
            "https" => {
                return refuse(
                    "is asked over TLS, which this command does not speak; ask it by http:// from its own machine",
                );
            }
            _ => return refuse("is not asked over HTTP; write a URL as http://127.0.0.1:8080"),
        }
        let is_whole = text
            .parse::<Uri>()
            .is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none());
        if !is_whole || rest.contains('#') {
            return refuse("is no URL of a server; write one as http://127.0.0.1:8080");
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Gets a path, or posts JSON to it, and returns the JSON answered; a problem becomes an error with its words.
pub(crate) fn ask(server: &ServerUrl, path: &str, body: Option<&Value>) -> Result<Value> {
    let method = if body.is_some() { Method::POST } else { Method::GET };
    send(server, method, path, body)
}

/// Puts JSON to a path; otherwise as [`ask`].
pub(crate) fn put(server: &ServerUrl, path: &str, body: &Value) -> Result<Value> {
    send(server, Method::PUT, path, Some(body))
}

/// Says whether a server is ready for requests, without a token: one that drains is not.
///
/// # Errors
/// When nobody answers there, or somebody else does.
pub(crate) fn is_ready(server: &ServerUrl) -> Result<bool> {
    let url = format!("{server}/readyz");
    let sent = agent().run(Request::builder().uri(&url).body(())?);
    match sent.with_context(|| unanswered(server))?.status().as_u16() {
        200 => Ok(true),
        503 => Ok(false),
        status => bail!("{url} answered {status}, as no tidegate does"),
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(10)));
    config.http_status_as_error(false).build().into()
}

fn unanswered(server: &ServerUrl) -> String {
    format!("no server answers at {server}; start one with `tidegate serve`, or name it with --server")
}

fn send(server: &ServerUrl, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
    let url = format!("{server}{path}");
    let agent = agent();
    let mut request = Request::builder().method(method).uri(&url);
    if let Some(token) = Token::from_env().map_err(|error| Mistake(error.to_string()))? {
        request = request.header("authorization", format!("Bearer {}", token.secret()));
    }
    let sent = match body {
        None => agent.run(request.body(())?),
        Some(body) => agent.run(request.header("content-type", "application/json").body(body.to_string())?),
    };
    let mut response = sent.with_context(|| unanswered(server))?;
    let text = response.body_mut().read_to_string().with_context(|| format!("{url} broke off its answer"))?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    if response.status().as_u16() >= 400 {
        let words = |key| answer.get(key).and_then(Value::as_str);
        let why = words("detail").or_else(|| words("title")).unwrap_or("no reason given");
        bail!("{url} answered {}: {why}", response.status());
    }
    Ok(answer)
}
