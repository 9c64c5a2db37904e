//! One check over many policies, by the number of policies and of matching ones.

use anyhow::{Result, anyhow};
use tidegate::policy::{Descriptor, Limit, Match, Policy, PolicySet, Want as Wanted};
use tidegate::{Gate, Quota};

use crate::measure::{Want, alone};
use crate::pair::Figures;
use crate::traffic::{Key, Stream};

/// Clients, each with a limit of its own under each policy that matches.
const CLIENTS: usize = 10_000;

pub(crate) fn run(figures: &mut Figures) -> Result<()> {
    for matching in [1, 4, 16] {
        figures.set(format!("matching {matching}"), check(1000, matching)?);
    }
    for policies in [10, 100, 1000, 10_000] {
        figures.set(format!("policies {policies}"), check(policies, 1)?);
    }
    Ok(())
}

/// Returns the nanoseconds of a check, including the making of its descriptor, if `matching` of `policies` match the
/// request.
fn check(policies: usize, matching: usize) -> Result<f64> {
    // The matching policies are spread among the others, as in a file that grew.
    let every = policies / matching;
    let set = (0..policies).map(|at| policy(at, at % every == every / 2)).collect::<Result<Vec<_>>>()?;
    let set = PolicySet::new(set).map_err(|error| anyhow!("{error}"))?;
    let gate = Gate::in_memory(set, CLIENTS * matching * 2)?;
    let stream = Stream::zipf(&clients());
    let mut next = stream.walk(0);
    let mut wrong = false;
    let nanos = alone(Want::Permitted, || {
        let request = Descriptor::from([
            ("client.ip", next().as_str()),
            ("request.method", "GET"),
            ("request.host", "shop.example"),
            ("request.path", "/api/items/42"),
        ]);
        let decision = gate.check(&request).now();
        wrong |= decision.as_ref().map_or(true, |decision| decision.limits.len() != matching);
        decision.is_ok_and(|decision| decision.allowed)
    })?;
    anyhow::ensure!(!wrong, "not {matching} of {policies} policies matched");
    Ok(nanos)
}

/// Returns addresses in the form of `client.ip`.
fn clients() -> Vec<Key> {
    (0..CLIENTS).map(|number| format!("10.0.{}.{}", number >> 8, number & 255)).collect()
}

/// A policy that matches the request, or one of four kinds that do not: by path, method, host and an attribute.
fn policy(at: usize, matches: bool) -> Result<Policy> {
    let quota = Quota::per_second(1_000_000_000).burst(1_000_000_000);
    let mut policy = Policy::new(format!("policy-{at}"), Limit::new(quota.gcra()?, "plenty"));
    policy.by = vec!["client.ip".to_owned()];
    policy.matching = match (matches, at % 4) {
        (true, _) => Match::any().method("GET").path("/api/items/*")?,
        (false, 0) => Match::any().path(&format!("/api/kind-{at}/**"))?,
        (false, 1) => Match::any().method("POST").path(&format!("/api/kind-{at}/*"))?,
        (false, 2) => Match::any().host(&format!("shop-{at}.example"))?,
        (false, _) => Match::any().attribute("client.tier", Wanted::value(&format!("tier-{at}"))?),
    };
    Ok(policy)
}
