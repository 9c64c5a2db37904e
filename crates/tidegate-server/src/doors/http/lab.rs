//! `POST /v1/lab`: tries another limit on the requests that a policy saw in the last hour.
//!
//! The limit is read by the words of the policy file. Its effect is worked out by the sight of the server, on a thread
//! that may be blocked, and only as long as the caller waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::{Map, Value, json};
use tidegate::config::{Config, Diagnostic, Format, Severity};
use tidegate::policy::{ChargeOn, Limit, Mode, Policy};
use tidegate::visible;

use super::pages;
use super::request_body::{self, LabBody, MAX_OPERATOR_BODY};
use super::routes::Query;
use crate::active_config::one_rate;
use crate::app::App;
use crate::body::json::JSON;
use crate::body::{self, Body, Response};
use crate::problem::Problem;
use crate::requests;
use crate::sight::Trial;
use crate::text::quoted;

/// How far back without `w`, and at most: as long as requests are kept.
const HOUR: Duration = Duration::from_secs(3_600);

/// The shortest `w`.
const MINUTE: Duration = Duration::from_secs(60);

/// Answers what a limit would have done.
///
/// # Errors
/// 400 for a malformed body, an unknown policy or time; 404 if nothing sees decisions; 422 for a limit, or a policy, that
/// cannot be tried; 503 if others ask for too much; and whatever the sight finds wrong, 429 while another limit is tried.
pub(super) async fn try_limit(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let reveal = Query::of(request.uri(), &["reveal"])?.flag("reveal")?;
    let sight = Arc::clone(pages::sight_of(app)?);
    let bytes = request_body::read(request, MAX_OPERATOR_BODY).await?;
    let LabBody { policy, limit, window } = request_body::lab(&bytes)?;
    let window = window.as_deref().map_or(Ok(HOUR), window_of)?;
    let live = app.decider.live();
    let at = requests::find(&live.set, &policy).map_err(|none| {
        let advice = if none.meant.is_none() { "; GET /v1/policies lists them" } else { "" };
        Problem::bad_request(format!("{none}{advice}")).with("field", "policy")
    })?;
    can_be_asked(&live.set.policies()[at])?;
    drop(live);
    let turn = app.reading().await?;
    let asker = Asker::default();
    let cancelled = Arc::clone(&asker.0);
    let trying = move || -> Result<String, Problem> {
        // Held by the work, which goes on when the caller hangs up.
        let _turn = turn;
        let trial = Trial { window, reveal, cancelled, ..read(policy, &limit)? };
        sight.try_limit(&trial).map_err(|(status, detail)| {
            Problem::new(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), detail)
        })
    };
    // Reading a limit, and trying it, take longer than others should wait.
    let told = tokio::task::spawn_blocking(trying).await;
    drop(asker);
    let told =
        told.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the limit could not be tried"))??;
    // Names of strangers may be in it.
    Ok(body::answer(StatusCode::OK, JSON, visible::json(&told).into_owned()))
}

/// Whoever waits for the answer. Its end, also when the caller goes, ends the trial.
#[derive(Default)]
struct Asker(Arc<AtomicBool>);

impl Drop for Asker {
    fn drop(&mut self) {
        // Relaxed: nothing else is told by it.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads `w`.
fn window_of(text: &str) -> Result<Duration, Problem> {
    let seconds = |text: &str| {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let unit = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(unit)
    };
    let window = seconds(text).map(Duration::from_secs).filter(|window| (MINUTE..=HOUR).contains(window));
    window.ok_or_else(|| {
        let detail =
            format!("w {} is not possible; use 5m, 30m, 1h or another time from 1m to 1h", quoted(text));
        Problem::bad_request(detail).with("field", "w")
    })
}

/// Checks that what is kept of a policy's requests is what a limit of it would be asked.
fn can_be_asked(policy: &Policy) -> Result<(), Problem> {
    let why = if policy.charge != ChargeOn::Check {
        "has charge: on-failure or always, so a limit cannot be tried on its requests alone; use `tidegate replay`"
    } else if policy.mode == Mode::Shadow && policy.shadow_limit.is_some() {
        "is in mode shadow and has a shadow_limit, whose verdicts are not kept apart; take one of them away"
    } else {
        return Ok(());
    };
    Err(untried(format!("the policy {} {why}", quoted(&policy.name))))
}

/// Reads a limit as that of a policy in a file.
///
/// # Errors
/// 422 if it is not one, or not one rate for all keys.
fn read(policy: String, limit: &Map<String, Value>) -> Result<Trial, Problem> {
    let file = json!({ "version": 1, "policies": [{ "name": policy, "limit": limit }] });
    // With blanks and line ends, as YAML wants them.
    let text = serde_json::to_string_pretty(&file).unwrap_or_default();
    let (config, _) =
        Config::parse(&text, "limit", Format::Yaml).map_err(|mistakes| of_mistakes(&mistakes))?;
    let read = config.policies.policies().first();
    let found = read.and_then(|policy| Some((policy, policy.limits.first()?)));
    let Some((of, limit)) = found else { return Err(untried("there is no limit to try".to_owned())) };
    let Limit { terms, tiers, overrides, max_wait, keep_for, follows, .. } = limit;
    let is_one =
        tiers.is_none() && overrides.is_empty() && follows.is_none() && keep_for.parts().next().is_none();
    match &terms.quota {
        Some(quota) if is_one && !limit.is_guard() => Ok(Trial {
            policy,
            quota: Arc::clone(quota),
            limit: terms.label.clone(),
            max_wait: *max_wait,
            per_second: one_rate(of),
            window: HOUR,
            reveal: false,
            cancelled: Arc::default(),
        }),
        _ => Err(untried(
            "only one rate for all keys can be tried: no tiers, overrides, signals or priorities, and neither places in \
             flight nor a breaker"
                .to_owned(),
        )),
    }
}

/// Says what is wrong with a limit, without the places in a file that nobody wrote.
fn of_mistakes(mistakes: &[Diagnostic]) -> Problem {
    let errors = mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
    let words: Vec<&str> = errors.map(|mistake| mistake.message.as_str()).collect();
    untried(words.join("; "))
}

fn untried(detail: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with("field", "limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(limit: &Value) -> Result<(String, Option<f64>, Duration), String> {
        let read = read("per-ip".to_owned(), limit.as_object().unwrap());
        read.map(|trial| (trial.limit, trial.per_second, trial.max_wait))
            .map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn a_limit_is_read_by_the_words_of_the_file() {
        let gcra = tried(&json!({ "algorithm": "gcra", "rate": "6/s", "burst": 12 })).unwrap();
        assert_eq!(gcra, ("gcra 6/s burst 12".to_owned(), Some(6.0), Duration::ZERO));
        let window = tried(&json!({ "algorithm": "fixed-window", "rate": "120/min" })).unwrap();
        assert_eq!((&*window.0, window.1), ("fixed-window 120/min", Some(2.0)));
        let waits = tried(&json!({ "rate": "6/s", "max_wait": "1s" })).unwrap();
        assert_eq!(waits.2, Duration::from_secs(1));
    }

    #[test]
    fn what_cannot_be_tried_says_why() {
        for (limit, part) in [
            (json!({}), "rate"),
            (json!({ "rate": "6/M" }), "could be minute or month"),
            (json!({ "rate": "6/s", "brust": 3 }), "burst"),
            (json!({ "rate": "unlimited" }), "only one rate"),
            (json!({ "algorithm": "concurrency", "max": 3 }), "only one rate"),
            (json!({ "rate": "6/s\n  - name: other", "burst": 1 }), "rate"),
        ] {
            let told = tried(&limit).unwrap_err();
            assert!(told.contains(part), "{limit}: {told}");
            assert!(!told.contains("limit:1"), "no place in a file: {told}");
        }
    }

    #[test]
    fn times_are_from_a_minute_to_an_hour() {
        let seconds = |text: &str| window_of(text).map(|window| window.as_secs()).ok();
        assert_eq!(["60s", "30m", "1h"].map(seconds), [Some(60), Some(1_800), Some(3_600)]);
        for wrong in ["", "m", "59s", "61m", "2h", "1d", "-5m", "30", "99999999999999999999m", "\u{202e}m"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
