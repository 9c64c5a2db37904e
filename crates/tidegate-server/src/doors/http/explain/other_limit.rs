//! Another limit in place of one that a refused request met: what it would have decided then.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidegate::config::{Config, Format};
use tidegate::http_answer::server_parts::{in_words, millis_up};
use tidegate::limiter::{Decision, Retry};
use tidegate::policy::Mode;
use tidegate::{Quota, visible};
use tidegate_core::decision::Ruling;

use crate::problem::Problem;
use crate::refused_requests::{Record, SeenLimit};
use crate::text::quoted;

const EXAMPLE: &str = "{\"with\": {\"policy\": \"per-ip\", \"limit\": {\"rate\": \"20/s\", \"burst\": 40}}}";

/// A limit as it would stand in the policy file, for the requests of one policy.
#[derive(Debug)]
pub(super) struct OtherLimit {
    policy: String,
    quota: Arc<Quota>,
    max_wait: Duration,
    /// The limit in short form.
    label: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    with: With,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct With {
    policy: String,
    limit: Map<String, Value>,
}

impl OtherLimit {
    /// Reads a body; `None` if it is empty.
    ///
    /// # Errors
    /// 400 for anything but one limit of one policy, with what is wrong with it.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, Problem> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let Body { with: With { policy, limit } } = serde_json::from_slice(bytes).map_err(|error| {
            let error = visible::excerpt(&error.to_string());
            Problem::bad_request(format!("beside `id` the body may have {EXAMPLE}: {error}"))
                .with("field", "with")
        })?;
        let file = json!({ "version": 1, "policies": [{ "name": "with", "limit": limit }] }).to_string();
        let wrong = |detail: String| Problem::bad_request(detail).with("field", "with.limit");
        let (config, _) = Config::parse(&file, "with", Format::of_text(&file)).map_err(|mistakes| {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            wrong("the limit cannot be used; it is written as in the policy file".to_owned())
                .with("diagnostics", mistakes)
        })?;
        let limit = config.policies.policies().first().and_then(|policy| policy.limits.first());
        let terms = limit.filter(|limit| limit.tiers.is_none() && limit.overrides.is_empty());
        let Some((quota, limit)) = terms.and_then(|limit| Some((limit.terms.quota.clone()?, limit))) else {
            return Err(wrong("the limit needs one rate for all requests".to_owned()));
        };
        if quota.is_guard() {
            return Err(wrong("the limit needs a rate; what was spent tells nothing of places".to_owned()));
        }
        Ok(Some(Self { policy, quota, max_wait: limit.max_wait, label: limit.terms.label.clone() }))
    }

    /// Decides a recorded request under this limit, and says it for programs and for people.
    ///
    /// # Errors
    /// 400 if the request met no limit of the policy.
    pub(super) fn decide(&self, record: &Record) -> Result<(Value, String), Problem> {
        let seen = self.seen(record).ok_or_else(|| {
            let met: Vec<_> = record.limits.iter().map(|seen| visible::excerpt(&seen.policy)).collect();
            let met = if met.is_empty() { "none".to_owned() } else { met.join(", ") };
            let policy = quoted(&self.policy);
            Problem::bad_request(format!("the request met no limit of {policy}; it met those of: {met}"))
                .with("field", "with.policy")
        })?;
        let (policy, label) = (visible::excerpt(&self.policy), &self.label);
        let asked = seen.asked.as_ref();
        // It may be a share of the limit, and then is another number of units of another one.
        let is_kept = seen.kept_back > 0 && asked.is_some_and(|asked| *asked.quota != *self.quota);
        let decision = asked.filter(|_| !is_kept);
        let decision = decision.and_then(|asked| asked.under(&self.quota, self.max_wait, record.at));
        let Some(decision) = decision else {
            let why = if is_kept {
                "what it would have kept for higher priority cannot be told".to_owned()
            } else {
                format!("what {} held then cannot be told from its answer", seen.limit)
            };
            let line = format!("with {label} for {policy}: not known, since {why}");
            return Ok((self.value(None, None), line));
        };
        let refuses = !decision.is_allowed()
            && seen.mode == Mode::Enforce
            && !matches!(seen.result, "marked" | "demoted");
        let others: Vec<&SeenLimit> =
            record.limits.iter().filter(|one| one.result == "DENIED" && !std::ptr::eq(*one, seen)).collect();
        let verdict = if refuses || !others.is_empty() { "denied" } else { "allowed" };
        let standing = decision.standing;
        let had = format!("had {} of {}", standing.remaining, standing.limit);
        let line = match (refuses, others.first()) {
            (true, _) => {
                let retry = match decision.retry() {
                    Retry::After(wait) => format!("retry after {}", in_words(wait)),
                    Retry::Unknown => "when it would be allowed is not known".to_owned(),
                    Retry::Never => "never allowed at this cost".to_owned(),
                };
                format!("would have been DENIED, {had}; {retry}")
            }
            (false, Some(other)) => {
                format!("would have been DENIED all the same, by {}; {had}", visible::excerpt(&other.policy))
            }
            (false, None) => match decision.ruling {
                Ruling::Allowed { wait } if !wait.is_zero() => {
                    format!("would have been ALLOWED after {}, {had}", in_words(wait))
                }
                _ => format!("would have been ALLOWED, {had}"),
            },
        };
        Ok((self.value(Some(verdict), Some(&decision)), format!("with {label} for {policy}: {line}")))
    }

    /// Returns the limit that this one takes the place of: of several of the policy the one that refused, otherwise the
    /// first.
    fn seen<'r>(&self, record: &'r Record) -> Option<&'r SeenLimit> {
        let mut own = record.limits.iter().filter(|seen| *seen.policy == *self.policy && !seen.shadow_limit);
        let first = own.clone().next();
        own.find(|seen| seen.result == "DENIED").or(first)
    }

    fn value(&self, verdict: Option<&str>, decision: Option<&Decision>) -> Value {
        let retry = decision.filter(|decision| !decision.is_allowed()).map(Decision::retry);
        json!({
            "policy": self.policy,
            "limit": self.label,
            "decision": verdict,
            "has": decision.map(|decision| decision.standing.remaining),
            "of": decision.map(|decision| decision.standing.limit),
            "retry": retry.map(Retry::as_str),
            "retry_after_ms": retry.and_then(Retry::after).map(millis_up),
        })
    }
}
