//! `POST /v1/dry-run`: answers how a request would be decided, now or after a change of the policies. Charges nothing.
//!
//! Proposed policies are evaluated over the present counters. A policy finds its keys by its name, so the answer is
//! what the first check after a reload would get. Proposed policies are never in force, have no metric series, and are
//! dropped after the answer.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::json;
use tidegate::config::{Config, Format};
use tidegate::policy::PolicySet;
use tokio::runtime::Handle;

use super::answer::Reply;
use super::check::named_among;
use super::explain::explained;
use super::query::Query;
use super::refused_policies;
use super::request_body::{self, MAX_PROPOSED, MAX_PROPOSED_BODY};
use crate::app::App;
use crate::json;
use crate::problem::Problem;
use crate::settings::Refused;

/// The longest body that is answered on a thread of connections, in a turn of long work.
const SHORT: usize = 1024;

/// Proposed policies, with warnings about them.
struct Proposed {
    set: Arc<PolicySet>,
    warnings: Vec<String>,
}

/// Answers how a request would be decided.
///
/// # Errors
/// 400 for a malformed body, 413 if the text of the policies is too long, 422 with every mistake in it, and 503 while
/// the most texts that may be read at once are being read.
pub(crate) async fn dry_run(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let reveal = Query::of(request.uri(), &["reveal"])?.flag("reveal")?;
    let bytes = request_body::read(request, MAX_PROPOSED_BODY).await?;
    if bytes.len() <= SHORT {
        drop(app.first_long_turn().await?);
        return answer(app, &bytes, reveal).await;
    }
    let Ok(place) = Arc::clone(&app.proposals).try_acquire_owned() else {
        let detail = "the largest number of proposed texts is being read already; try again in a second";
        return Err(Problem::unavailable(detail));
    };
    let (app, runtime) = (Arc::clone(app), Handle::current());
    let answering = move || {
        // Held by the work, which goes on when the caller hangs up.
        let _place = place;
        runtime.block_on(answer(&app, &bytes, reveal))
    };
    // Reading thousands of policies, asking them, writing and dropping them takes longer than others should wait.
    let answered = tokio::task::spawn_blocking(answering).await;
    answered.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the dry run failed"))?
}

/// Answers a body.
async fn answer(app: &App, bytes: &[u8], reveal: bool) -> Result<Response, Problem> {
    let asked = request_body::dry_run(bytes)?;
    let live = app.engine.live();
    let proposed = match &asked.config {
        Some(text) => Some(proposed(app, text)?),
        None => None,
    };
    let set = proposed.as_ref().map_or(&live.set, |proposed| &proposed.set);
    let only = named_among(set, &asked.check)?;
    let conclusion = app.engine.deciding.dry_run(set, asked.check.check(), only.as_deref()).await;
    // Without headers: they need facts, which policies that are not in force do not have.
    let reply = Reply::of_look(&app.engine, &asked.check.request, &conclusion);
    let mut answer = explained(app, set, &reply, only.as_deref(), reveal);
    answer["status"] = reply.status().as_u16().into();
    answer["config"] = json!(if proposed.is_some() { "proposed" } else { "in-force" });
    answer["warnings"] = json!(proposed.map(|proposed| proposed.warnings).unwrap_or_default());
    Ok(json::shown(&answer))
}

/// Parses proposed policies.
fn proposed(app: &App, text: &str) -> Result<Proposed, Problem> {
    if text.len() > MAX_PROPOSED {
        let detail = format!("`config` has {} bytes; at most {MAX_PROPOSED} are read here", text.len());
        let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
        return Err(problem.with("field", "config").with("max_bytes", MAX_PROPOSED));
    }
    let read = Config::parse_to_serve(text, "config", Format::of_text(text));
    let (config, warnings) = read.map_err(|mistakes| refused_policies::of_mistakes(&mistakes))?;
    app.engine
        .fits(&config.policies)
        .map_err(|Refused { diagnostics }| refused_policies::of_lines(diagnostics))?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(Proposed { set: config.policies, warnings })
}
