//! `/v1/explain`: why a request is decided as it is, and what would let it pass.
//!
//! `POST` with the body of a check, or `GET ?id=` with the id of a recent decision, which is decided anew: counters have
//! moved since. Nothing is taken. `lines` is the answer for a terminal, `reasons` the same for programs.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request};
use serde_json::{Value, json};
use tidegate::policy::{Policy, Relevance};
use tidegate::{GateDecision, LimitDecision};

use super::App;
use super::answer::{Told, mode};
use super::body::{self, Asked};
use super::check::{decide, named};
use super::follow::{decision_id, unknown};
use super::headers::millis_up;
use super::problem::Problem;
use super::query::Query;
use crate::engine::{Verdict, Want};
use crate::live::Live;

/// Decides without taking, and says why.
pub(crate) async fn explain(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let query = Query::of(&parts.uri, &["id", "reveal"])?;
    let reveal = query.flag("reveal")?;
    let live = app.engine.live();
    if let Some(id) = query.get("id") {
        let id = decision_id(id)?;
        let (cost, remembered) = app.engine.find(id).ok_or_else(|| unknown(id))?;
        let still = |name: &&str| live.set.find(name).is_some();
        let names = remembered.only().map(|names| names.iter().map(|name| &**name).filter(still));
        let policies = names.map(|names| names.map(Into::into).collect());
        let asked = Asked { request: remembered.descriptor(), cost, policies };
        return answer(app, &live, &asked, reveal);
    }
    if parts.method == Method::GET {
        let detail = "say which decision: GET /v1/explain?id=DECISION_ID, or POST the body of a check";
        return Err(Problem::bad_request(detail).with("field", "id"));
    }
    let bytes = body::read(body, body::MAX_BODY).await?;
    let asked = body::check(&bytes)?;
    answer(app, &live, &asked, reveal)
}

fn answer(app: &App, live: &Live, asked: &Asked<'_>, reveal: bool) -> Result<Response, Problem> {
    let only = named(live, asked)?;
    let relevance = live.set.relevance(&asked.request);
    let body = decide(app, live, asked, only.as_deref(), Want::Peek, |told: Told<'_, '_>| {
        let (verdict, request) = (told.verdict, told.request);
        let mut answer = told.value();
        let Verdict::Decided(decision) = verdict else { return answer };
        let mut reasons = Vec::new();
        for (at, (policy, relevance)) in live.set.policies().iter().zip(&relevance).enumerate() {
            if only.as_ref().is_none_or(|only| only.contains(&at)) {
                let key = app.redact.key(policy, request, reveal);
                reasons.push(Reason { policy, relevance, decision, key });
            }
        }
        answer["lines"] = lines(decision, &reasons).into();
        answer["reasons"] = reasons.iter().map(Reason::value).collect();
        answer
    });
    Ok(super::ok(&body))
}

/// What one policy makes of a request, and why.
struct Reason<'a> {
    policy: &'a Policy,
    relevance: &'a Relevance,
    decision: &'a GateDecision,
    key: String,
}

impl Reason<'_> {
    /// Returns what its limits decided. The decision may be of a set with fewer policies, so they are found by name.
    fn limits(&self) -> impl Iterator<Item = &LimitDecision> {
        let policies = self.decision.policies.policies();
        self.decision.limits.iter().filter(|limit| policies[limit.policy].name == self.policy.name)
    }

    fn word(&self) -> &'static str {
        if matches!(self.relevance, Relevance::DenyListed { .. }) {
            return "DENIED";
        }
        let mut own = self.limits().filter(|limit| !self.policy.is_shadow_limit(limit.limit)).peekable();
        if own.peek().is_none() {
            return "not charged";
        }
        match own.find(|limit| !limit.decision.is_allowed()) {
            None => "allowed",
            Some(limit) if limit.binding => "DENIED",
            Some(_) => "would deny",
        }
    }

    fn value(&self) -> Value {
        let limits = self.limits().map(|limit| self.limit_value(limit)).collect::<Vec<_>>();
        json!({
            "policy": self.policy.name,
            "mode": mode(self.policy.mode),
            "result": self.word(),
            "why": self.relevance.to_string(),
            "key": self.key,
            "limits": limits,
        })
    }

    fn limit_value(&self, limit: &LimitDecision) -> Value {
        let (needs, has) = (limit.cost.units(), has(self.decision, limit));
        let refused = !limit.decision.is_allowed();
        json!({
            "limit": label(self.policy, limit),
            "shadow_limit": self.policy.is_shadow_limit(limit.limit),
            "needs": needs,
            "has": has,
            "retry_after_ms": if refused { limit.decision.retry_after().map(millis_up) } else { None },
            "allowed_with": if refused {
                json!({ "burst_at_least": burst_needed(limit), "cost_at_most": (has > 0).then_some(has) })
            } else {
                Value::Null
            },
        })
    }
}

/// The words of a limit; those for everyone, since the key's own may be special but are told by the numbers beside.
fn label(policy: &Policy, limit: &LimitDecision) -> String {
    let of_all = policy.limit(limit.limit).map_or("", |limit| limit.terms.label.as_str());
    let most = limit.decision.standing.limit;
    let known = policy.limit(limit.limit).and_then(|limit| {
        limit
            .all_terms()
            .find(|terms| terms.quota.as_deref().is_some_and(|quota| crate::live::most_of(quota) == most))
    });
    known.map_or(of_all, |terms| &terms.label).to_owned()
}

/// What a limit holds now. An allowed peek tells what would be left after it; a person asks what there is before.
fn has(decision: &GateDecision, limit: &LimitDecision) -> u64 {
    let standing = limit.decision.standing;
    let taken = decision.allowed && limit.decision.is_allowed() && limit.spends;
    let has = if taken { standing.remaining.saturating_add(limit.cost.units()) } else { standing.remaining };
    has.min(standing.limit)
}

/// What is spent and what is asked for, together.
fn burst_needed(limit: &LimitDecision) -> u64 {
    let standing = limit.decision.standing;
    standing.limit.saturating_sub(standing.remaining).saturating_add(limit.cost.units())
}

/// Writes the answer for a terminal.
fn lines(decision: &GateDecision, reasons: &[Reason<'_>]) -> Vec<String> {
    let name = decision.policy().map(|at| decision.policies.policies()[at].name.as_str());
    let mut lines = vec![match (decision.allowed, name) {
        (true, _) if !decision.wait.is_zero() => format!("DELAYED {}", seconds(decision.wait)),
        (true, Some(name)) => format!("ALLOWED, tightest is {name}"),
        (true, None) => "ALLOWED, no policy limits it".to_owned(),
        (false, name) => {
            let by = name.unwrap_or("a deny-list");
            match decision.retry_after() {
                Some(wait) => format!("DENIED by {by}, retry after {}", seconds(wait)),
                None => format!("DENIED by {by}, at this cost for ever"),
            }
        }
    }];
    let width = reasons.iter().map(|reason| reason.policy.name.chars().count()).max().unwrap_or(0);
    for (at, reason) in reasons.iter().enumerate() {
        let start = format!("{:>3} {:width$}   {:<11}", at + 1, reason.policy.name, reason.word());
        let mut said = false;
        for limit in reason.limits() {
            said = true;
            let standing = limit.decision.standing;
            let what = if reason.policy.is_shadow_limit(limit.limit) { "shadow limit, " } else { "" };
            let untouched = !decision.allowed && limit.decision.is_allowed() && limit.spends;
            let rest = if untouched { "; not charged, another limit denied" } else { "" };
            lines.push(format!(
                "{start} {what}{}: needs {}, has {} of {}; key {}{rest}",
                label(reason.policy, limit),
                limit.cost,
                has(decision, limit),
                standing.limit,
                reason.key
            ));
        }
        if !said {
            let why = reason.relevance.to_string();
            let why = why.strip_prefix("not charged: ").unwrap_or(&why);
            lines.push(format!("{start} {why}"));
        }
    }
    if let Some(bound) = decision.binding.filter(|_| !decision.allowed).map(|at| &decision.limits[at]) {
        let mut with = format!("    would be allowed with   burst >= {}", burst_needed(bound));
        if bound.decision.standing.remaining > 0 {
            with.push_str(&format!("   or   cost <= {}", bound.decision.standing.remaining));
        }
        lines.push(with);
    }
    lines
}

fn seconds(wait: Duration) -> String {
    // Hundredths, rounded up like every wait that is told.
    let hundredths = millis_up(wait).div_ceil(10);
    format!("{}.{:02} s", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_told_in_hundredths() {
        assert_eq!(seconds(Duration::from_millis(410)), "0.41 s");
        assert_eq!(seconds(Duration::from_millis(1)), "0.01 s");
        assert_eq!(seconds(Duration::from_micros(61_000_001)), "61.01 s");
    }
}
