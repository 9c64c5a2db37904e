//! "Why was I denied, and by which policy?": what every policy makes of a request, in words and numbers.

use std::fmt;
use std::time::Duration;

use tidegate_core::Cost;

use crate::gate::{Gate, GateDecision, LimitDecision};
use crate::policy::{Descriptor, Mode, Policy, Relevance};
use crate::store::StoreError;

/// The account of one request: nothing was spent to make it.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct Explanation {
    /// Whether the request would pass.
    pub allowed: bool,
    /// The policy that binds, if any.
    pub policy: Option<String>,
    /// Least wait until it would pass, in seconds; absent when it passes or never can.
    pub retry_after_seconds: Option<f64>,
    /// How long it would be held back, in seconds.
    pub delay_seconds: f64,
    /// Every policy, in the order of the file.
    pub policies: Vec<PolicyAccount>,
    /// What would let a denied request pass, by the limits that refuse it.
    pub would_be_allowed_with: Vec<String>,
}

/// What one policy makes of the request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct PolicyAccount {
    /// Its name.
    pub name: String,
    /// `off`, `shadow` or `enforce`.
    pub mode: &'static str,
    /// Whether it is charged at all, and if not, why.
    pub relevance: String,
    /// The attributes that make the key; an absent one has no value.
    pub key: Vec<(String, Option<String>)>,
    /// Its limits, if it is charged.
    pub limits: Vec<LimitAccount>,
}

/// What one limit makes of the request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct LimitAccount {
    /// The limit in words: `gcra 100/s burst 200`.
    pub limit: String,
    /// `allowed`, `delayed` or `denied`.
    pub decision: &'static str,
    /// Whether its refusal refuses the request.
    pub binding: bool,
    /// Units asked for.
    pub needs: u64,
    /// Units there.
    pub has: u64,
    /// Units of a full limit.
    pub of: u64,
    /// Least wait until this limit would allow it, in seconds; absent when it does or never can.
    pub retry_after_seconds: Option<f64>,
    /// Wait until this limit is full again if nothing more is asked, in seconds.
    pub reset_after_seconds: f64,
}

impl Gate {
    /// Says what every policy makes of a request and why, and what would let it pass. Spends nothing.
    ///
    /// Asks every policy, matching or not: for people, not for the hot path.
    ///
    /// # Errors
    /// [`StoreError`] when no decision could be made.
    pub fn explain(&self, request: &Descriptor<'_>, cost: Option<Cost>) -> Result<Explanation, StoreError> {
        let decision = self.peek(request, cost)?;
        let relevance = decision.policies.relevance(request);
        let accounts = decision.policies.policies().iter().zip(relevance).enumerate();
        let policies = accounts
            .map(|(index, (policy, relevance))| account(index, policy, &relevance, request, &decision))
            .collect();
        let would_be_allowed_with = decision
            .refusing()
            .map(|limit| remedy(&decision.policies.policies()[limit.policy].name, limit))
            .collect();
        Ok(Explanation {
            allowed: decision.allowed,
            policy: decision.policy().map(|index| decision.policies.policies()[index].name.clone()),
            retry_after_seconds: (!decision.allowed).then(|| decision.retry_after()).flatten().map(seconds),
            delay_seconds: seconds(decision.wait),
            policies,
            would_be_allowed_with,
        })
    }
}

fn account(
    index: usize,
    policy: &Policy,
    relevance: &Relevance,
    request: &Descriptor<'_>,
    decision: &GateDecision,
) -> PolicyAccount {
    let limits = decision.limits.iter().filter(|limit| limit.policy == index).map(|limit| {
        let label = policy.limit(limit.limit).map_or("", |of| &of.terms_for(request).label);
        LimitAccount {
            limit: label.to_owned(),
            decision: match (limit.decision.is_allowed(), limit.decision.wait().is_zero()) {
                (true, true) => "allowed",
                (true, false) => "delayed",
                (false, _) => "denied",
            },
            binding: limit.binding,
            needs: limit.cost.units(),
            has: limit.decision.standing.remaining,
            of: limit.decision.standing.limit,
            retry_after_seconds: limit.decision.retry_after().filter(|wait| !wait.is_zero()).map(seconds),
            reset_after_seconds: seconds(limit.decision.standing.reset_after),
        }
    });
    let mode = match policy.mode {
        Mode::Off => "off",
        Mode::Shadow => "shadow",
        Mode::Enforce => "enforce",
    };
    let key = policy
        .key_values(request)
        .map(|(name, value)| (name.to_owned(), value.map(|value| value.to_string())));
    PolicyAccount {
        name: policy.name.clone(),
        mode,
        relevance: relevance.to_string(),
        key: key.collect(),
        limits: limits.collect(),
    }
}

/// Says what would have let the request pass one limit.
fn remedy(policy: &str, limit: &LimitDecision) -> String {
    let standing = limit.decision.standing;
    let needs = limit.cost.units();
    if needs > standing.limit {
        return format!("{policy}: a limit of {needs} or more, or a cost of {} or less", standing.limit);
    }
    let short = needs.saturating_sub(standing.remaining);
    let more = format!("{policy}: a limit of {} or more", standing.limit.saturating_add(short));
    if standing.remaining > 0 { format!("{more}, or a cost of {} or less", standing.remaining) } else { more }
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.policy.as_deref().map(|policy| format!(" by {policy}")).unwrap_or_default();
        match (self.allowed, self.retry_after_seconds) {
            (true, _) if self.delay_seconds > 0.0 => writeln!(f, "DELAYED{by}, {:.3} s", self.delay_seconds)?,
            (true, _) => writeln!(f, "ALLOWED")?,
            (false, Some(wait)) => writeln!(f, "DENIED{by}, retry after {wait:.3} s")?,
            (false, None) => writeln!(f, "DENIED{by}, never allowed as it is")?,
        }
        let width = self.policies.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
        for (place, policy) in self.policies.iter().enumerate() {
            write!(f, "  {} {:width$}  ", place + 1, policy.name)?;
            if policy.limits.is_empty() {
                writeln!(f, "{}", policy.relevance)?;
                continue;
            }
            for (at, limit) in policy.limits.iter().enumerate() {
                if at > 0 {
                    write!(f, "    {:width$}  ", "")?;
                }
                policy.write_limit(f, limit, !self.allowed)?;
            }
        }
        for remedy in &self.would_be_allowed_with {
            writeln!(f, "  would be allowed with  {remedy}")?;
        }
        Ok(())
    }
}

impl PolicyAccount {
    fn write_limit(&self, f: &mut fmt::Formatter<'_>, limit: &LimitAccount, refused: bool) -> fmt::Result {
        let word = match (limit.decision, limit.binding) {
            ("denied", true) => "DENIED",
            ("denied", false) => "would be DENIED (shadow)",
            (decision, true) => decision,
            (_, false) => "allowed (shadow)",
        };
        write!(f, "{word:<8} {}: needs {}, has {} of {}", limit.limit, limit.needs, limit.has, limit.of)?;
        if let Some(wait) = limit.retry_after_seconds {
            write!(f, "; retry after {wait:.3} s")?;
        }
        if !self.key.is_empty() {
            let pairs = self.key.iter().map(|(name, value)| match value {
                Some(value) => format!("{name}={value}"),
                None => format!("{name} absent"),
            });
            write!(f, "; key {}", pairs.collect::<Vec<_>>().join(" "))?;
        }
        if refused && limit.decision != "denied" {
            write!(f, "; nothing was taken, another limit denies")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Limit, Match, PolicySet};
    use crate::{ManualClock, Quota, Tick};

    #[test]
    fn each_policy_says_what_it_saw() {
        let quota = |rate, burst| Quota::per_second(rate).burst(burst).gcra().unwrap();
        let shield = Policy::new("shield", Limit::new(quota(5000, 5000), "gcra 5000/s burst 5000"));
        let mut client = Policy::new("per-ip", Limit::new(quota(2, 1), "gcra 2/s burst 1"));
        client.by = vec!["client.ip".to_owned()];
        let mut login = Policy::new("login", Limit::new(quota(1, 1), "gcra 1/s burst 1"));
        login.matching = Match::any().path("/login").unwrap();
        let set = PolicySet::new(vec![shield, client, login]).unwrap();
        let gate = Gate::in_memory(set, 100).with_clock(ManualClock::at(Tick::from_secs(1)));
        let request = Descriptor::new().with("client.ip", "203.0.113.9").with("request.path", "/");
        assert!(gate.check(&request, None).unwrap().allowed);
        assert_eq!(
            gate.explain(&request, None).unwrap().to_string(),
            "DENIED by per-ip, retry after 0.500 s\n  \
             1 shield  allowed  gcra 5000/s burst 5000: needs 1, has 4999 of 5000; nothing was taken, another limit denies\n  \
             2 per-ip  DENIED   gcra 2/s burst 1: needs 1, has 0 of 1; retry after 0.500 s; key client.ip=203.0.113.9\n  \
             3 login   not charged: path does not match\n  \
             would be allowed with  per-ip: a limit of 2 or more\n"
        );
    }
}
