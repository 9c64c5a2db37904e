//! Asks a running server.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tidegate_server::Token;

use crate::exit::Mistake;

/// Gets a path, or posts JSON to it, and returns the JSON answered; a problem becomes an error with its words.
pub(crate) fn ask(server: &str, path: &str, body: Option<&Value>) -> Result<Value> {
    let url = format!("{}{path}", server.trim_end_matches('/'));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false)
        .build()
        .into();
    let token = Token::from_env().map_err(|error| Mistake(error.to_string()))?;
    let token = token.map(|token| format!("Bearer {}", token.secret()));
    let sent = match body {
        None => {
            let request = agent.get(&url);
            match &token {
                Some(token) => request.header("authorization", token),
                None => request,
            }
            .call()
        }
        Some(body) => {
            let request = agent.post(&url).header("content-type", "application/json");
            match &token {
                Some(token) => request.header("authorization", token),
                None => request,
            }
            .send(body.to_string())
        }
    };
    let mut response = sent.with_context(|| {
        format!("no server answers at {server}; start one with `tidegate serve`, or name it with --server")
    })?;
    let text = response.body_mut().read_to_string().with_context(|| format!("{url} broke off its answer"))?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    if response.status().as_u16() >= 400 {
        let words = |key| answer.get(key).and_then(Value::as_str);
        let why = words("detail").or_else(|| words("title")).unwrap_or("no reason given");
        bail!("{url} answered {}: {why}", response.status());
    }
    Ok(answer)
}
