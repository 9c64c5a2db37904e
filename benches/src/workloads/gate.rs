//! One check over many policies: by the number of policies and of matching ones, permitted and refused, and by the kind
//! of the policies beside the one that matches.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use tidegate::policy::{
    Condition, CostRule, Descriptor, Expression, Limit, Match, Policy, PolicySet, Want as Wanted,
};
use tidegate::{Gate, Quota};

use crate::measure::{Want, alone};
use crate::pair::Figures;
use crate::traffic::{Key, Stream};

/// Clients, each with a limit of its own under each policy that matches.
const CLIENTS: usize = 10_000;

/// The units of a limit that refuses; they come back within a day.
const UNITS: u64 = 10;

/// Policies beside the one that matches, where the cost of one of them is asked.
const OTHERS: usize = 1000;

/// Policies that match, where what one of them adds is asked.
const ALIKE: usize = 10;

/// The signal of policies with a condition, the value above which it holds, and values on either side.
const SIGNAL: &str = "queue-length";
const CONDITION: &str = "signal queue-length above 10";
const HELD: f64 = 20.0;
const NOT_HELD: f64 = 1.0;

const EXPRESSION: &str = "request.path.startsWith(\"/api/export\") ? 10 : 1";

/// Makes the policy at a place in the file.
type Make = fn(usize) -> Result<Policy>;

/// Policies that do not match the request, by their kind.
const OTHER_KINDS: [(&str, Make); 5] =
    [("path", path), ("glob", glob), ("wide glob", wide_glob), ("when", conditional), ("CEL", costed_path)];

pub(crate) fn run(figures: &mut Figures) -> Result<()> {
    let load = Load::new();
    for matching in [1, 4, 16] {
        let gate = gate_of(spread(1000, matching)?, matching)?;
        figures.set(format!("matching {matching}"), load.permitted(&gate, matching)?);
        let gate = gate_of(refusing(1000, matching)?, matching)?;
        figures.set(format!("matching {matching} refused"), load.refused(&gate, matching)?);
    }
    for policies in [10, 100, 1000, 10_000] {
        let gate = gate_of(spread(policies, 1)?, 1)?;
        figures.set(format!("policies {policies}"), load.permitted(&gate, 1)?);
    }
    others(&load, figures)?;
    alike(&load, figures)
}

/// Measures what a policy costs that does not match, by its kind.
fn others(load: &Load, figures: &mut Figures) -> Result<()> {
    let without = load.permitted(&gate_of(vec![hit(OTHERS)?], 1)?, 1)?;
    for (name, make) in OTHER_KINDS {
        let mut policies = all(OTHERS, make)?;
        policies.push(hit(OTHERS)?);
        let has_conditions = policies.iter().any(|policy| !policy.when.is_empty());
        let gate = gate_of(policies, 1)?;
        if has_conditions {
            gate.signals().report(SIGNAL, NOT_HELD)?;
        }
        figures.set(format!("other {name}"), (load.permitted(&gate, 1)? - without) / OTHERS as f64);
    }
    Ok(())
}

/// Measures what a condition and an expression add to a policy that matches.
fn alike(load: &Load, figures: &mut Figures) -> Result<()> {
    let plain = load.permitted(&gate_of(all(ALIKE, hit)?, ALIKE)?, ALIKE)?;
    let held = gate_of(all(ALIKE, conditional_hit)?, ALIKE)?;
    held.signals().report(SIGNAL, HELD)?;
    let costed = gate_of(all(ALIKE, costed_hit)?, ALIKE)?;
    for (name, gate) in [("when", held), ("CEL", costed)] {
        let nanos = load.permitted(&gate, ALIKE)?;
        figures.set(format!("added by {name}"), (nanos - plain) / ALIKE as f64);
    }
    Ok(())
}

/// The requests, which differ in their clients.
struct Load {
    clients: Vec<Key>,
    stream: Stream,
}

impl Load {
    fn new() -> Self {
        // Addresses in the form of `client.ip`.
        let client = |number: usize| format!("10.0.{}.{}", number >> 8, number & 255);
        let clients: Vec<Key> = (0..CLIENTS).map(client).collect();
        Self { stream: Stream::zipf(&clients), clients }
    }

    /// Returns the nanoseconds of a check that passes, including the making of its descriptor, if `matching` policies
    /// match the request.
    fn permitted(&self, gate: &Gate, matching: usize) -> Result<f64> {
        self.check(gate, matching, Want::Permitted)
    }

    /// The same for a check that one of the policies refuses. First spends the limits of all clients.
    fn refused(&self, gate: &Gate, matching: usize) -> Result<f64> {
        for client in &self.clients {
            for _ in 0..UNITS {
                ensure!(gate.check(&request(client)).now()?.allowed, "a new client was refused");
            }
        }
        self.check(gate, matching, Want::Denied)
    }

    fn check(&self, gate: &Gate, matching: usize, want: Want) -> Result<f64> {
        let mut next = self.stream.walk(0);
        let mut wrong = false;
        let nanos = alone(want, || {
            let decision = gate.check(&request(next())).now();
            wrong |= decision.as_ref().map_or(true, |decision| decision.limits.len() != matching);
            decision.is_ok_and(|decision| decision.allowed)
        })?;
        ensure!(!wrong, "other than {matching} policies matched");
        Ok(nanos)
    }
}

#[inline(always)]
fn request(client: &str) -> Descriptor<'_> {
    Descriptor::from([
        ("client.ip", client),
        ("request.method", "GET"),
        ("request.host", "shop.example"),
        ("request.path", "/api/items/42"),
    ])
}

/// Makes a gate with room for the keys of all clients under each policy that matches.
fn gate_of(policies: Vec<Policy>, matching: usize) -> Result<Gate> {
    Ok(Gate::in_memory(PolicySet::new(policies)?, CLIENTS * matching * 2)?)
}

fn all(count: usize, make: Make) -> Result<Vec<Policy>> {
    (0..count).map(make).collect()
}

/// Spreads the policies that match among the others, as in a file that grew.
fn spread(count: usize, matching: usize) -> Result<Vec<Policy>> {
    let every = count / matching;
    (0..count).map(|at| if at % every == every / 2 { hit(at) } else { miss(at) }).collect()
}

/// The same, with a limit that refuses in the last policy that matches.
fn refusing(count: usize, matching: usize) -> Result<Vec<Policy>> {
    let mut policies = spread(count, matching)?;
    let every = count / matching;
    policies[every * (matching - 1) + every / 2].limits =
        vec![Limit::new(Quota::per_day(UNITS).gcra()?, "spent")];
    Ok(policies)
}

/// A policy by client, with a limit that is never reached.
fn policy(at: usize, matching: Match) -> Result<Policy> {
    let quota = Quota::per_second(1_000_000_000).burst(1_000_000_000);
    let limit = Limit::new(quota.gcra()?, "plenty");
    Ok(Policy::new(format!("policy-{at}"), limit).by(["client.ip"]).matching(matching))
}

/// A policy that matches the request.
fn hit(at: usize) -> Result<Policy> {
    policy(at, Match::any().method("GET").path("/api/items/*")?)
}

/// A policy of one of four kinds that do not: by path, method, host and an attribute.
fn miss(at: usize) -> Result<Policy> {
    let matching = match at % 4 {
        0 => Match::any().path(&format!("/api/kind-{at}/**"))?,
        1 => Match::any().method("POST").path(&format!("/api/kind-{at}/*"))?,
        2 => Match::any().host(&format!("shop-{at}.example"))?,
        _ => Match::any().attribute("client.tier", Wanted::value(&format!("tier-{at}"))?),
    };
    policy(at, matching)
}

fn path(at: usize) -> Result<Policy> {
    policy(at, Match::any().path(&format!("/api/items/kind-{at}"))?)
}

/// The part before the wildcard is not in the request's path.
fn glob(at: usize) -> Result<Policy> {
    policy(at, Match::any().path(&format!("/api/kind-{at}/**"))?)
}

/// The part before the wildcard is in the request's path.
fn wide_glob(at: usize) -> Result<Policy> {
    policy(at, Match::any().path(&format!("/api/*/kind-{at}"))?)
}

fn conditional(at: usize) -> Result<Policy> {
    Ok(policy(at, Match::any())?.when(condition()?))
}

fn conditional_hit(at: usize) -> Result<Policy> {
    Ok(hit(at)?.when(condition()?))
}

/// A condition whose reading does not become too old within a run.
fn condition() -> Result<Condition> {
    Ok(CONDITION.parse::<Condition>()?.stale(Duration::from_secs(3600))?)
}

fn costed_path(at: usize) -> Result<Policy> {
    costed(path(at)?)
}

fn costed_hit(at: usize) -> Result<Policy> {
    costed(hit(at)?)
}

fn costed(mut policy: Policy) -> Result<Policy> {
    policy.cost = Some(CostRule::Expression(Arc::new(Expression::compile(EXPRESSION)?)));
    Ok(policy)
}
