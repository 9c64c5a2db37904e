//! Policies for whom no limit by the key catches: one limit for all requests with one agent, of one network, or of one key.

use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use serde::Serialize;
use tidegate::Quota;
use tidegate::policy::{Glob, Limit, Match, Policy, Want};

use super::options::{SuggestError, SuggestOptions};
use super::readings::{Readings, Step};
use super::signs::Few;
use super::suggestion::in_words;
use super::watch::Shared;
use crate::replay::PeakRate;
use crate::what_if::{Asking, Candidate, WhatIf, WhatIfOptions};

/// Such policies, at most.
pub(super) const NARROWER: usize = 3;

/// A policy for some requests alone, replayed on the whole log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Narrower {
    /// The attribute that tells the requests: `request.header.user-agent`, or the attribute of the key.
    pub attribute: String,
    /// Its value, as a pattern.
    pub pattern: String,
    /// The rate for all of them together: what nine keys in ten do not go above.
    #[serde(serialize_with = "in_words")]
    pub rate: PeakRate,
    /// The burst for all of them together.
    pub burst: u64,
    /// Requests that the policy speaks of.
    pub requests: u64,
    /// Different keys among them; above 127 an estimate, with a standard error of 9 %.
    pub keys: u64,
    /// Requests it would have denied.
    pub denied: u64,
}

impl Narrower {
    /// Returns the policy, to paste into a file: in shadow first.
    #[must_use]
    pub fn yaml(&self, name: &str) -> String {
        let value = serde_json::Value::from(self.pattern.as_str());
        let matching = match self.attribute.strip_prefix("request.header.") {
            Some(header) => format!("header: {{ {header}: {value} }}"),
            None => format!("attributes: {{ {}: {value} }}", serde_json::Value::from(self.attribute.as_str())),
        };
        format!(
            "  - name: {name}\n    mode: shadow\n    match: {{ {matching} }}\n    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            self.rate, self.burst
        )
    }
}

/// What is to be told apart: by the agent if it is nobody else's, else by the rest.
#[derive(Clone, Debug)]
pub(super) struct Apart {
    pub(super) agent: Option<String>,
    /// A pattern of the key's attribute.
    pub(super) key: Option<String>,
    /// Whether its agent is told only if no other key sends it.
    pub(super) is_one_key: bool,
}

impl Apart {
    pub(super) fn group(shared: Shared) -> Self {
        let (agent, key) = match shared {
            Shared::Agent(agent) => (Some(agent), None),
            Shared::Network(pattern) => (None, Some(pattern)),
        };
        Self { agent, key, is_one_key: false }
    }
}

/// A policy that is being replayed.
struct Tried {
    apart: usize,
    attribute: String,
    pattern: String,
    asking: Asking,
    what_if: WhatIf,
    keys: Few,
}

/// Replays policies that tell each of those apart, and returns the best for each.
pub(super) fn narrower<W: FnMut(Step)>(
    readings: &mut Readings<'_, W>,
    options: &SuggestOptions,
    asking: &Asking,
    apart: &[Apart],
    granted: u64,
) -> Result<Vec<Narrower>, SuggestError> {
    let rate = PeakRate { count: granted.max(1), window: options.per };
    let candidate = Candidate { rate: tidegate::Rate::new(rate.count, rate.window)?, burst: rate.count };
    let mut tried = Vec::new();
    for (place, one) in apart.iter().enumerate().take(NARROWER) {
        let agent = one.agent.iter().map(|agent| ("request.header.user-agent", literal(agent)));
        let key = one.key.iter().zip(options.by.first()).map(|(key, by)| (by.as_str(), key.clone()));
        for (attribute, pattern) in agent.chain(key) {
            // A pattern that is none is not worth a mistake: the next is tried.
            let Ok(glob) = Glob::new(&pattern) else { continue };
            let matching = Match::any().attribute(attribute, Want::OneOf(vec![glob]));
            let limit = Limit::new(Quota::per(rate.count, rate.window).gcra()?, "narrower");
            let mut policy = Policy::new("narrower", limit).matching(matching);
            policy.cost = options.cost.clone();
            let one_key = WhatIfOptions { keys: 2, named: 0, ..WhatIfOptions::default() };
            tried.push(Tried {
                apart: place,
                attribute: attribute.to_owned(),
                pattern,
                asking: Asking::new(&policy, options.ipv6_prefix)?,
                what_if: WhatIf::new(&policy, &[candidate], one_key)?,
                keys: Few::default(),
            });
        }
    }
    if tried.is_empty() {
        return Ok(Vec::new());
    }
    let hasher = FixedState::with_seed(2);
    readings.read("narrowing", |record| {
        for one in &mut tried {
            if one.asking.find(&one.asking.describe(record), None).is_some() {
                one.what_if.feed(record);
                if let Some(asked) = asking.find(&asking.describe(record), None) {
                    one.keys.add(hasher.hash_one(&asked.key));
                }
            }
        }
    })?;
    let mut out: Vec<Narrower> = Vec::new();
    for (place, apart) in apart.iter().enumerate() {
        let mut of = tried.iter().filter(|one| one.apart == place && one.what_if.requests() > 0);
        // An agent that others send, too, tells nobody apart.
        let Some(best) = of.find(|one| !apart.is_one_key || one.keys.about() == 1) else { continue };
        let is_told = |have: &Narrower| (&have.attribute, &have.pattern) == (&best.attribute, &best.pattern);
        if !out.iter().any(is_told) {
            out.push(Narrower {
                attribute: best.attribute.clone(),
                pattern: best.pattern.clone(),
                rate,
                burst: rate.count,
                requests: best.what_if.requests(),
                keys: best.keys.about().min(best.what_if.requests()),
                denied: best.what_if.outcomes().first().map_or(0, |outcome| outcome.denied),
            });
        }
    }
    Ok(out)
}

/// Writes an agent as a pattern that fits it: what means something in a pattern stands for one character, but for the `*` at the end of
/// one that was cut.
fn literal(agent: &str) -> String {
    let (agent, end) = agent.strip_suffix('*').map_or((agent, ""), |agent| (agent, "*"));
    let one = |char| if matches!(char, '*' | '{' | '}') { '?' } else { char };
    agent.chars().map(one).chain(end.chars()).collect()
}
