//! What a trace charges: a single limit, or all policies of a file.

use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::{Descriptor, Mode, Named, PolicySet};
use tidegate::store::{Charge, ChargeRules};
use tidegate::{Cost, Quota};

use super::operation_line::LineIn;

/// Builds a limit, with the rate (as written) and the burst of a `change` or with its own numbers.
type Make<'m> = dyn Fn(Option<&str>, Option<u64>) -> Result<Quota, String> + 'm;

pub(super) enum Subject<'m> {
    Limit(SingleLimit<'m>),
    Policies(Policies),
}

/// A trace may change it.
pub(super) struct SingleLimit<'m> {
    make: Box<Make<'m>>,
    pub(super) quota: Arc<Quota>,
    changed: (Option<String>, Option<u64>),
}

/// Policies that all apply to every line.
pub(super) struct Policies {
    pub(super) set: Arc<PolicySet>,
    named: Named,
    /// The attributes that make the keys, without duplicates.
    by: Vec<String>,
}

#[derive(Clone)]
pub(super) struct ChargedLimit {
    /// Whose state is charged.
    pub(super) key: Box<[u8]>,
    pub(super) quota: Arc<Quota>,
    pub(super) cost: Cost,
    pub(super) kept_back: u64,
    pub(super) max_wait: Duration,
    pub(super) rules: ChargeRules,
    /// A refusal refuses the line; `false` in shadow.
    pub(super) binding: bool,
    /// The policy and the label; `None` for a single limit.
    pub(super) name: Option<(String, String)>,
}

impl ChargedLimit {
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge {
            kept_back: self.kept_back,
            max_wait: self.max_wait,
            binding: self.binding,
            rules: self.rules,
            ..Charge::new(&self.key, &self.quota, self.cost)
        }
    }
}

/// Or the entry of the deny-list that refuses the line.
pub(super) type MetLimits = Result<Vec<ChargedLimit>, String>;

impl<'m> SingleLimit<'m> {
    pub(super) fn new(make: Box<Make<'m>>) -> Result<Self, String> {
        let quota = Arc::new(make(None, None)?);
        Ok(Self { make, quota, changed: (None, None) })
    }

    /// Returns the previous limit.
    pub(super) fn change(&mut self, line: &LineIn<'_>) -> Result<Arc<Quota>, String> {
        if line.rate.is_none() && line.burst.is_none() {
            return Err("op `change` needs a `rate`, a `burst` or both".to_owned());
        }
        let rate = line.rate.as_deref().map(str::to_owned).or_else(|| self.changed.0.clone());
        let burst = line.burst.or(self.changed.1);
        let quota = (self.make)(rate.as_deref(), burst)?;
        self.changed = (rate, burst);
        Ok(std::mem::replace(&mut self.quota, Arc::new(quota)))
    }
}

impl Policies {
    /// All must match every request.
    pub(super) fn new(set: Arc<PolicySet>) -> Result<Self, String> {
        if set.policies().iter().all(|policy| policy.mode == Mode::Off) {
            let names: Vec<&str> = set.policies().iter().map(|policy| policy.name.as_str()).collect();
            return Err(format!(
                "no policy is applied, so there is nothing to trace: {} (`mode: off`)",
                names.join(", ")
            ));
        }
        let mut by: Vec<String> = Vec::new();
        for name in set.policies().iter().flat_map(|policy| &policy.by) {
            if !by.contains(name) {
                by.push(name.clone());
            }
        }
        Ok(Self { named: set.named(), set, by })
    }

    /// Finds the limits of one line as the gate does: with keys, tiers, overrides, costs and lists.
    fn find(&self, line: &LineIn<'_>, asked: Option<Cost>) -> Result<MetLimits, String> {
        let attrs = line.attrs.iter().flatten();
        let mut request = Descriptor::new();
        for (name, value) in attrs {
            if !self.named.contains(name) {
                let mut names: Vec<&str> = self.named.names().collect();
                names.sort_unstable();
                return Err(format!(
                    "no policy uses the attribute {name:?}, except perhaps in a `match`, which a trace ignores; known \
                     are {}",
                    names.join(", ")
                ));
            }
            request.push(name.as_str(), value.as_str());
        }
        for name in &self.by {
            if request.value(name).is_none() {
                request.push(name.as_str(), &*line.key);
            }
        }
        if let Some(refusal) = self.set.access(&request) {
            return Ok(Err(refusal.entry.to_string()));
        }
        let plan = self.set.plan(&request, asked);
        let found = plan.lines.iter().map(|planned| {
            let policy = &self.set.policies()[planned.policy];
            let label = policy.limit(planned.limit).map_or("", |limit| {
                let terms = limit.terms_for(&request);
                let holds = |quota: &Arc<Quota>| quota == planned.quota;
                // A path is compared in its normal form, so the terms in force may be those of another spelling.
                let terms = if terms.quota.as_ref().is_some_and(holds) {
                    Some(terms)
                } else {
                    limit.all_terms().find(|terms| terms.quota.as_ref().is_some_and(holds))
                };
                terms.map_or("", |terms| terms.label.as_str())
            });
            ChargedLimit {
                key: plan.keys[planned.key.clone()].into(),
                quota: Arc::clone(planned.quota),
                cost: planned.cost,
                kept_back: planned.kept_back,
                max_wait: planned.max_wait,
                rules: planned.rules.charge,
                binding: planned.binding,
                name: Some((policy.name.clone(), label.to_owned())),
            }
        });
        Ok(Ok(found.collect()))
    }
}

impl Subject<'_> {
    pub(super) fn find(&self, line: &LineIn<'_>) -> Result<MetLimits, String> {
        let asked = line.cost.map(|cost| {
            Cost::new(cost).ok_or_else(|| "cost 0 asks for nothing; use op `peek` to look".to_owned())
        });
        let asked = asked.transpose()?;
        match self {
            Self::Policies(policies) => policies.find(line, asked),
            Self::Limit(_) if line.attrs.is_some() => Err(
                "`attrs` has no effect with a limit given by flags: only policy files have tiers and overrides".to_owned(),
            ),
            Self::Limit(limit) => Ok(Ok(vec![ChargedLimit {
                key: line.key.as_bytes().into(),
                quota: Arc::clone(&limit.quota),
                cost: asked.unwrap_or_default(),
                kept_back: 0,
                max_wait: Duration::ZERO,
                rules: ChargeRules::new(0),
                binding: true,
                name: None,
            }])),
        }
    }
}

/// Returns the name of a limit's algorithm as policies write it: `gcra`, `sliding-window`.
#[must_use]
pub(crate) fn algorithm(quota: &Quota) -> String {
    // From the variant of `Quota`; a separate list would become outdated.
    let shown = format!("{quota:?}");
    let mut name = String::new();
    for char in shown.chars().take_while(char::is_ascii_alphanumeric) {
        if char.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(char.to_ascii_lowercase());
    }
    name
}
