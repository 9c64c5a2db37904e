//! Policies for traffic that no limit by the key catches: one limit for all requests with one agent, of one network, or
//! of one key.

use std::collections::HashSet;

use serde::Serialize;
use tidegate::Quota;
use tidegate::policy::{Glob, Limit, Match, Policy, Want};

use super::outliers::{Fate, StandsOut};
use super::signs::{ClientKind, Signs};
use super::watch::{Group, KeyWatch, Shared};
use super::{Readings, Step, SuggestError, SuggestOptions};
use crate::policy_yaml::{in_words, scope};
use crate::replay::PeakRate;
use crate::units::grouped;
use crate::what_if::{Asking, Candidate, WhatIf, WhatIfOptions};

pub(super) const NARROWER: usize = 3;

/// A policy for some of the requests, replayed on the whole log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Narrower {
    /// The attribute that selects the requests: `request.header.user-agent`, or the attribute of the key.
    pub attribute: String,
    /// Its value, as a pattern.
    pub pattern: String,
    /// The rate for all of them together: a quarter of their average.
    #[serde(serialize_with = "in_words")]
    pub rate: PeakRate,
    /// The burst for all of them together: the peak that nine keys in ten do not exceed.
    pub burst: u64,
    /// Requests that the policy matches.
    pub requests: u64,
    /// Distinct keys among them.
    pub keys: u64,
    /// Requests it would have denied.
    pub denied: u64,
    /// The evidence from these requests.
    #[serde(flatten)]
    pub signs: Signs,
    #[serde(skip)]
    pub(super) scope: String,
}

impl Narrower {
    /// Returns the policy as YAML, to paste into a file, in shadow mode.
    #[must_use]
    pub fn yaml(&self, name: &str) -> String {
        format!(
            "  - name: {name}\n    # Replayed: matches {} requests of {}; denies {}.\n    mode: shadow\n{}    \
             limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            grouped(self.requests),
            if self.keys == 1 { "1 key".to_owned() } else { format!("{} keys", grouped(self.keys)) },
            grouped(self.denied),
            self.scope,
            self.rate,
            self.burst
        )
    }
}

/// Traffic to be selected: by its agent if no other key sends that, otherwise by its key.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) agent: Option<String>,
    /// A pattern for the key's attribute.
    pub(super) key: Option<String>,
    /// The agent may only be used if no other key sends it.
    pub(super) is_one_key: bool,
    /// The average amount asked for in one period.
    pub(super) pace: u64,
    pub(super) signs: Signs,
}

/// The keys that the limit misses, then the groups. `pace` converts a number of requests to the average amount in one
/// period.
pub(super) fn selected(
    stand_out: &[StandsOut],
    groups: Vec<Group>,
    watch: &KeyWatch,
    by: &[String],
    pace: impl Fn(u64) -> u64,
) -> Vec<Selected> {
    let group = |group: Group, is_one_key: bool| {
        let (agent, key) = match group.shared {
            Shared::Agent(agent) => (Some(agent), None),
            Shared::Network(pattern) => (None, Some(pattern)),
        };
        Selected {
            agent,
            key,
            is_one_key,
            pace: pace(group.evidence.requests()),
            signs: group.evidence.signs(),
        }
    };
    let missed = stand_out.iter().filter(|key| key.fate == Fate::Missed).filter_map(|key| {
        if key.looks == ClientKind::Shared {
            // People use the same key, so only an agent of its own selects the crawler.
            return watch.crawler_behind(key.hash).map(|behind| group(behind.clone(), true));
        }
        Some(Selected {
            agent: key.signs.agent.clone(),
            key: (by.len() == 1).then(|| key.key.clone()),
            is_one_key: true,
            pace: pace(key.requests),
            signs: key.signs.clone(),
        })
    });
    missed.chain(groups.into_iter().map(|one| group(one, false))).take(NARROWER).collect()
}

struct Tried {
    selected: usize,
    attribute: String,
    pattern: String,
    scope: String,
    asking: Asking,
    what_if: WhatIf,
    rate: PeakRate,
    keys: HashSet<Vec<u8>>,
}

/// Replays policies that select each of the given traffics. Returns the best for each.
pub(super) fn narrower<W: FnMut(Step)>(
    readings: &mut Readings<'_, W>,
    options: &SuggestOptions,
    asking: &Asking,
    selected: &[Selected],
    burst: u64,
) -> Result<Vec<Narrower>, SuggestError> {
    let burst = burst.max(1);
    let mut tried = Vec::new();
    for (place, one) in selected.iter().enumerate().take(NARROWER) {
        let rate = PeakRate { count: (one.pace / 4).max(1), window: options.per };
        let candidate = Candidate { rate: tidegate::limiter::Rate::new(rate.count, rate.window)?, burst };
        let agent = one.agent.iter().map(|agent| ("request.header.user-agent", literal(agent)));
        let key = one.key.iter().zip(options.by.first()).map(|(key, by)| (by.as_str(), key.clone()));
        for (attribute, pattern) in agent.chain(key) {
            let Ok(glob) = Glob::new(&pattern) else { continue };
            let matching = Match::any().attribute(attribute, Want::OneOf(vec![glob]));
            let limit = Limit::new(Quota::per(rate.count, rate.window).gcra()?, "narrower");
            let mut policy = Policy::new("narrower", limit).matching(matching);
            policy.cost = options.cost.as_ref().map(|cost| cost.rule.clone());
            let cost = options.cost.as_ref().map(|cost| cost.written.as_str());
            let Ok(scope) = scope(&policy, readings.matching(), cost) else { continue };
            let one_key = WhatIfOptions { keys: 2, named: 0, ..WhatIfOptions::default() };
            tried.push(Tried {
                selected: place,
                attribute: attribute.to_owned(),
                pattern,
                scope,
                asking: Asking::new(&policy, options.ipv6_prefix)?,
                what_if: WhatIf::new(&policy, &[candidate], one_key)?,
                rate,
                keys: HashSet::new(),
            });
        }
    }
    if tried.is_empty() {
        return Ok(Vec::new());
    }
    readings.read("narrowing", |record| {
        for one in &mut tried {
            if one.asking.find(&one.asking.describe(record), None).is_some() {
                one.what_if.feed(record);
                // Remember no more keys than elsewhere.
                if one.keys.len() < options.keys
                    && let Some(asked) = asking.find(&asking.describe(record), None)
                {
                    one.keys.insert(asked.key);
                }
            }
        }
    })?;
    let mut out: Vec<Narrower> = Vec::new();
    for (place, selected) in selected.iter().enumerate() {
        let mut of = tried.iter().filter(|one| one.selected == place && one.what_if.requests() > 0);
        // An agent that other keys send too does not select this key.
        let Some(best) = of.find(|one| !selected.is_one_key || one.keys.len() == 1) else { continue };
        let is_told = |have: &Narrower| (&have.attribute, &have.pattern) == (&best.attribute, &best.pattern);
        if !out.iter().any(is_told) {
            out.push(Narrower {
                attribute: best.attribute.clone(),
                pattern: best.pattern.clone(),
                rate: best.rate,
                burst,
                requests: best.what_if.requests(),
                keys: best.keys.len() as u64,
                denied: best.what_if.outcomes().first().map_or(0, |outcome| outcome.denied),
                signs: selected.signs.clone(),
                scope: best.scope.clone(),
            });
        }
    }
    Ok(out)
}

/// A pattern for an agent. Characters with a meaning in patterns, and those that may be refused in a file or confuse a
/// terminal, become `?`. A `*` at the end of a truncated agent stays.
pub(super) fn literal(agent: &str) -> String {
    let (agent, end) = agent.strip_suffix('*').map_or((agent, ""), |agent| (agent, "*"));
    let is_plain = |char: char| (char == ' ' || char.is_ascii_graphic()) && !"*{}".contains(char);
    agent.chars().map(|char| if is_plain(char) { char } else { '?' }).chain(end.chars()).collect()
}
