//! Conditions that make a replay fail: `--fail-if 'denied{policy=per-ip} > 0.5%'`.

use std::fmt;
use std::str::FromStr;

use super::outcome::{Outcome, PolicyOutcome, SHADOW_LIMIT, late, malformed, share};
use crate::log::Tally;
use crate::peaks::Distinct;
use crate::units::grouped;

/// An error in an expression, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--fail-if, column {column}: {what}")]
pub struct ThresholdError {
    /// The column, in characters from 1.
    pub column: usize,
    /// The error, and how to correct it.
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Requests,
    Allowed,
    Denied,
    Delayed,
    ShadowDenied,
    Marked,
    Demoted,
    KeysHit,
    Errors,
    Malformed,
    Late,
}

impl Measure {
    /// Says whether the measure is about the log, regardless of the policies.
    fn is_of_log(self) -> bool {
        matches!(self, Self::Malformed | Self::Late)
    }
}

const MEASURES: [(&str, Measure); 12] = [
    ("requests", Measure::Requests),
    ("matched", Measure::Requests),
    ("allowed", Measure::Allowed),
    ("denied", Measure::Denied),
    ("delayed", Measure::Delayed),
    ("shadow_denied", Measure::ShadowDenied),
    ("marked", Measure::Marked),
    ("demoted", Measure::Demoted),
    ("keys_hit", Measure::KeysHit),
    ("errors", Measure::Errors),
    ("malformed", Measure::Malformed),
    ("late", Measure::Late),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    Unequal,
}

/// Longer signs first, so that `>=` is not read as `>`.
const RELATIONS: [(&str, Relation); 6] = [
    ("<=", Relation::LessOrEqual),
    (">=", Relation::MoreOrEqual),
    ("==", Relation::Equal),
    ("!=", Relation::Unequal),
    ("<", Relation::Less),
    (">", Relation::More),
];

/// A condition that makes a replay fail when it holds: `MEASURE[{policy=NAME}] RELATION NUMBER[%]`.
///
/// Measures are requests (or matched), allowed, denied, delayed, shadow_denied, marked, demoted, keys_hit and errors. A
/// percentage is relative to the requests that the policy matched, or to all requests; for `keys_hit`, to the policy's
/// keys. `malformed` (lines) and `late` (requests) are about the log and take no policy.
///
/// A shadow limit is named `{policy=NAME (shadow_limit)}`. Its measures are `matched`, `shadow_denied` and `keys_hit`,
/// as are those of a policy in shadow mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    measure: Measure,
    policy: Option<String>,
    relation: Relation,
    number: f64,
    percent: bool,
}

/// The result of a threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether the condition holds, so that the replay fails.
    pub failed: bool,
    /// The measured value, in the unit of the expression.
    pub measured: f64,
    /// Whether that value is a percentage.
    pub percent: bool,
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn rest(&mut self) -> &'t str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        rest.trim_start()
    }

    fn word(&mut self, of: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|char| !of(char)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn takes(&mut self, sign: &str) -> bool {
        let is_next = self.rest().starts_with(sign);
        self.at += if is_next { sign.len() } else { 0 };
        is_next
    }

    fn error(&self, at: usize, what: impl Into<String>) -> ThresholdError {
        ThresholdError { column: self.text[..at].chars().count() + 1, what: what.into() }
    }

    fn want(&mut self, sign: &str) -> Result<(), ThresholdError> {
        if self.takes(sign) { Ok(()) } else { Err(self.error(self.at, format!("`{sign}` is missing"))) }
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let mut from = Cursor { text, at: 0 };
        let word = from.word(|char| char.is_alphanumeric() || char == '_');
        let start = from.at - word.len();
        let measure = MEASURES.iter().find(|(name, _)| *name == word).map(|(_, measure)| *measure);
        let measure = measure.ok_or_else(|| {
            let names = MEASURES.map(|(name, _)| name);
            from.error(start, format!("`{word}` is not a measure{}", crate::unknown::possible(word, &names)))
        })?;
        let mut policy = None;
        if from.takes("{") {
            let label = from.word(|char| char.is_alphanumeric() || char == '_');
            if label != "policy" {
                return Err(
                    from.error(from.at - label.len(), format!("`{label}` is not a label; use policy=NAME"))
                );
            }
            from.want("=")?;
            let quoted = from.takes("\"");
            let name = from.word(|char| char != '}' && char != '"' && (quoted || !char.is_whitespace()));
            if name.is_empty() {
                return Err(from.error(from.at, "the name of the policy is missing"));
            }
            let mut name = name.to_owned();
            if quoted {
                from.want("\"")?;
            } else if from.takes(SHADOW_LIMIT.trim_start()) {
                name.push_str(SHADOW_LIMIT);
            }
            policy = Some(name);
            from.want("}")?;
            if measure == Measure::Errors {
                let what = "`errors` are requests that no policy decided; leave out {policy=…}";
                return Err(from.error(start, what));
            }
            if measure.is_of_log() {
                let what =
                    format!("`{word}` is about the whole log, not about a policy; leave out {{policy=…}}");
                return Err(from.error(start, what));
            }
        }
        let Some((_, relation)) = RELATIONS.into_iter().find(|(sign, _)| from.takes(sign)) else {
            return Err(from.error(from.at, "a relation is missing; use <, <=, >, >=, == or !="));
        };
        let digits = from.word(|char| char.is_ascii_digit() || char == '.' || char == '_');
        let number = digits.replace('_', "").parse::<f64>();
        let number =
            number.map_err(|_| from.error(from.at - digits.len(), "a number is missing, as 100 or 0.5%"))?;
        let percent = from.takes("%");
        if !from.rest().is_empty() {
            let what = format!("`{}` comes after the end; give --fail-if once per condition", from.rest());
            return Err(from.error(from.at, what));
        }
        if percent && matches!(measure, Measure::Requests) {
            return Err(from.error(start, "requests are always 100% of themselves; give a number"));
        }
        if percent && number > 100.0 {
            let at = from.at - 1 - digits.len();
            return Err(from.error(at, format!("{digits}% is more than all; a share is 0% to 100%")));
        }
        if percent && number == 100.0 && relation == Relation::More {
            return Err(from.error(start, "nothing is more than all, so this never holds; use >= 100%"));
        }
        if !percent && number.fract() != 0.0 {
            let what = format!("a count is a whole number; for a share write {}%", number * 100.0);
            return Err(from.error(from.at - digits.len(), what));
        }
        if number == 0.0 && matches!(relation, Relation::Less | Relation::MoreOrEqual) {
            let holds = if relation == Relation::Less { "never" } else { "always" };
            return Err(from.error(start, format!("no count is below 0, so this {holds} holds; use > 0")));
        }
        Ok(Self { text: text.trim().to_owned(), measure, policy, relation, number, percent })
    }
}

impl Threshold {
    /// Returns the name of the policy in the expression; `None` if it names none.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Measures an outcome and the log that it was made from.
    ///
    /// # Errors
    /// A message if no limit could change whether the condition holds: no policy has the name, the policy matched no
    /// request, the measure is always 0, or the number is more than all requests or keys.
    pub fn measure(&self, outcome: &Outcome, log: &Tally) -> Result<Verdict, String> {
        let (part, whole) = match &self.policy {
            None if self.measure == Measure::Malformed => malformed(log),
            None if self.measure == Measure::Late => late(log),
            None => {
                self.can_hold_of_all(outcome)?;
                self.within(outcome, None)?;
                total(self.measure, outcome)
            }
            Some(name) => {
                let names: Vec<&str> = outcome.policies.iter().map(|policy| policy.name.as_str()).collect();
                let mut named = outcome.policies.iter().filter(|policy| policy.name == *name);
                // The policy wins over another's shadow limit of the same name.
                let found =
                    named.clone().find(|policy| policy.shadow_limit_of.is_none()).or_else(|| named.next());
                let found = found.ok_or_else(|| {
                    let near = crate::unknown::nearest(name, &names);
                    format!(
                        "--fail-if {self}: there is no policy `{name}`{near}; there are {}",
                        names.join(", ")
                    )
                })?;
                self.can_hold(found, outcome)?;
                self.within(outcome, Some(found))?;
                of_policy(self.measure, found)
            }
        };
        let measured = if self.percent { share(part, whole) * 100.0 } else { part as f64 };
        let failed = match self.relation {
            Relation::Less => measured < self.number,
            Relation::LessOrEqual => measured <= self.number,
            Relation::More => measured > self.number,
            Relation::MoreOrEqual => measured >= self.number,
            Relation::Equal => measured == self.number,
            Relation::Unequal => measured != self.number,
        };
        Ok(Verdict { failed, measured, percent: self.percent })
    }

    /// Rejects a count that is more than all there are: whatever the limits did, the condition would never hold, or
    /// always.
    fn within(&self, outcome: &Outcome, policy: Option<&PolicyOutcome>) -> Result<(), String> {
        if self.percent || self.measure == Measure::Requests {
            return Ok(());
        }
        let (all, what) = match (self.measure, policy) {
            (Measure::KeysHit, Some(policy)) => (most_keys(policy), "keys"),
            (Measure::KeysHit, None) => (own_rows(outcome).map(most_keys).sum(), "keys"),
            // Not among the requests matched.
            (Measure::Denied, Some(policy)) => (policy.matched + outcome.denied_by_list, "requests"),
            (_, Some(policy)) => (policy.matched, "requests"),
            (_, None) => (outcome.requests, "requests"),
        };
        let (number, most) = (self.number, all as f64);
        let holds = match self.relation {
            Relation::More if number >= most => "never",
            Relation::MoreOrEqual | Relation::Equal if number > most => "never",
            Relation::LessOrEqual if number >= most => "always",
            Relation::Less | Relation::Unequal if number > most => "always",
            _ => return Ok(()),
        };
        let of = policy.map_or_else(String::new, |policy| format!(" of `{}`", policy.name));
        Err(format!(
            "--fail-if {self}: there are only {} {what}{of}, so this {holds} holds; use a smaller number, or a share such as 1%",
            grouped(all)
        ))
    }

    /// The measure of all requests is 0 whatever the limits did.
    fn can_hold_of_all(&self, outcome: &Outcome) -> Result<(), String> {
        let only_measures =
            !outcome.policies.is_empty() && outcome.policies.iter().all(|policy| policy.mode == "shadow");
        let measures_some = outcome.policies.iter().any(|policy| policy.mode == "shadow");
        // Although all policies are in shadow mode.
        let refuses_none = only_measures && outcome.denied == 0;
        let why = match self.measure {
            Measure::Denied | Measure::Delayed | Measure::Allowed if refuses_none => {
                "all policies are in shadow mode, which denies and delays nobody; use shadow_denied"
            }
            Measure::ShadowDenied if !measures_some && !outcome.policies.is_empty() => {
                "no policy is in shadow mode and none has a shadow limit; use denied"
            }
            Measure::Delayed
                if !outcome.policies.is_empty()
                    && !outcome.policies.iter().any(|policy| policy.can_delay) =>
            {
                "no policy has a limit with max_wait, so nobody is delayed; use denied"
            }
            Measure::Marked if outcome.marked.is_none() => "no policy has `over: mark`",
            Measure::Demoted if outcome.demoted.is_none() => "no policy has `over: demote`",
            _ => return Ok(()),
        };
        Err(format!("--fail-if {self}: {why}"))
    }

    /// Rejects a condition that could not hold whatever the limits did.
    fn can_hold(&self, policy: &PolicyOutcome, outcome: &Outcome) -> Result<(), String> {
        let name = &policy.name;
        let counts_refusals = matches!(self.measure, Measure::Denied | Measure::Delayed | Measure::Allowed);
        if counts_refusals && policy.shadow_limit_of.is_some() {
            return Err(format!(
                "--fail-if {self}: a shadow limit denies and delays nobody; use shadow_denied"
            ));
        }
        if counts_refusals && policy.mode == "shadow" {
            return Err(format!(
                "--fail-if {self}: `{name}` is in shadow mode, which denies and delays nobody; use shadow_denied"
            ));
        }
        let own_shadow = outcome.policies.iter().find(|row| row.shadow_limit_of.as_ref() == Some(name));
        if let Some(row) = own_shadow
            && self.measure == Measure::ShadowDenied
            && policy.mode == "enforce"
        {
            return Err(format!(
                "--fail-if {self}: the limits of `{name}` are enforced; its shadow limit is {{policy={}}}",
                row.name
            ));
        }
        let tells = match (policy.marked, policy.demoted) {
            (Some(_), _) => Some(Measure::Marked),
            (_, Some(_)) => Some(Measure::Demoted),
            _ => None,
        };
        match (self.measure, tells) {
            (Measure::Delayed, _) if !policy.can_delay => {
                let word = match tells {
                    Some(Measure::Marked) => "marked",
                    Some(_) => "demoted",
                    None => "denied",
                };
                return Err(format!(
                    "--fail-if {self}: `{name}` has no limit with max_wait, so it delays nobody; use {word}"
                ));
            }
            (Measure::Marked | Measure::Demoted, tells) if tells != Some(self.measure) => {
                return Err(format!("--fail-if {self}: `{name}` has another `over`"));
            }
            (Measure::ShadowDenied, Some(tells)) => {
                let word = if tells == Measure::Marked { "marked" } else { "demoted" };
                return Err(format!(
                    "--fail-if {self}: `{name}` lets through what is over its limit; use {word}"
                ));
            }
            (Measure::ShadowDenied, None) if policy.mode == "enforce" => {
                return Err(format!("--fail-if {self}: `{name}` is enforced; use denied"));
            }
            // Its lists and its deadline may still have denied requests.
            (Measure::Denied, Some(tells)) if policy.denied == 0 => {
                let word = if tells == Measure::Marked { "marked" } else { "demoted" };
                return Err(format!(
                    "--fail-if {self}: `{name}` lets through what is over its limit; use {word}"
                ));
            }
            _ => {}
        }
        if policy.matched == 0 && policy.denied == 0 && self.measure != Measure::Requests {
            return Err(format!(
                "--fail-if {self}: no verdict, `{name}` matched none of the {} requests",
                outcome.requests
            ));
        }
        Ok(())
    }
}

fn keys(policy: &PolicyOutcome) -> u64 {
    policy.keys.about()
}

/// A tenth more than estimated, and those that it hit.
fn most_keys(policy: &PolicyOutcome) -> u64 {
    match policy.keys {
        Distinct::Exactly(count) => count,
        Distinct::About(count) => count.saturating_add(count / 10).max(policy.keys_hit),
    }
}

fn own_rows(outcome: &Outcome) -> impl Iterator<Item = &PolicyOutcome> {
    outcome.policies.iter().filter(|policy| policy.shadow_limit_of.is_none())
}

/// Returns the value of a measure, and the whole for its percentage.
fn total(measure: Measure, outcome: &Outcome) -> (u64, u64) {
    let part = match measure {
        Measure::Requests => outcome.requests,
        Measure::Allowed => outcome.allowed,
        Measure::Denied => outcome.denied,
        Measure::Delayed => outcome.delayed,
        Measure::ShadowDenied => outcome.shadow_denied,
        Measure::Marked => outcome.marked.unwrap_or(0),
        Measure::Demoted => outcome.demoted.unwrap_or(0),
        Measure::Errors => outcome.errors,
        Measure::Malformed | Measure::Late => 0,
        Measure::KeysHit => {
            let sum = |of: fn(&PolicyOutcome) -> u64| own_rows(outcome).map(of).sum();
            return (sum(|policy| policy.keys_hit), sum(keys));
        }
    };
    (part, outcome.requests)
}

fn of_policy(measure: Measure, policy: &PolicyOutcome) -> (u64, u64) {
    let part = match measure {
        Measure::Requests => policy.matched,
        Measure::Allowed => policy.matched - policy.denied.min(policy.matched),
        Measure::Denied => policy.denied,
        Measure::Delayed => policy.delayed,
        Measure::ShadowDenied => policy.shadow_denied,
        Measure::Marked => policy.marked.unwrap_or(0),
        Measure::Demoted => policy.demoted.unwrap_or(0),
        Measure::Errors | Measure::Malformed | Measure::Late => 0,
        Measure::KeysHit => return (policy.keys_hit, keys(policy)),
    };
    (part, policy.matched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for text in [
            "denied{policy=per-ip} > 0.5%",
            "keys_hit>=3",
            " errors != 0 ",
            "denied { policy = \"a b\" } <= 1_000",
            "malformed > 0",
            "late > 0.1%",
        ] {
            assert_eq!(text.parse::<Threshold>().unwrap().to_string(), text.trim());
        }
        assert_eq!("denied{policy=\"a b\"}>1".parse::<Threshold>().unwrap().policy(), Some("a b"));
        for text in ["keys_hit{policy=a (shadow_limit)}>1", "keys_hit{policy=\"a (shadow_limit)\"}>1"] {
            assert_eq!(text.parse::<Threshold>().unwrap().policy(), Some("a (shadow_limit)"));
        }
        let rows = [
            (
                "denied > 100%",
                "--fail-if, column 1: nothing is more than all, so this never holds; use >= 100%",
            ),
            ("allowed < 0.95", "--fail-if, column 11: a count is a whole number; for a share write 95%"),
            (
                "denid > 1",
                "--fail-if, column 1: `denid` is not a measure; did you mean `denied`? use requests, matched, allowed, denied, delayed, shadow_denied, marked, demoted, keys_hit, errors, malformed, late",
            ),
            ("denied{police=x} > 1", "--fail-if, column 8: `police` is not a label; use policy=NAME"),
            ("denied{policy=x > 1", "--fail-if, column 17: `}` is missing"),
            (
                "late{policy=x} > 1",
                "--fail-if, column 1: `late` is about the whole log, not about a policy; leave out {policy=…}",
            ),
            ("denied = 1", "--fail-if, column 8: a relation is missing; use <, <=, >, >=, == or !="),
            ("denied > x", "--fail-if, column 10: a number is missing, as 100 or 0.5%"),
            (
                "denied > 1 and denied < 3",
                "--fail-if, column 12: `and denied < 3` comes after the end; give --fail-if once per condition",
            ),
            ("denied > 101%", "--fail-if, column 10: 101% is more than all; a share is 0% to 100%"),
            ("denied >= 0", "--fail-if, column 1: no count is below 0, so this always holds; use > 0"),
            (
                "errors{policy=x} > 1",
                "--fail-if, column 1: `errors` are requests that no policy decided; leave out {policy=…}",
            ),
            ("requests > 1%", "--fail-if, column 1: requests are always 100% of themselves; give a number"),
        ];
        for (text, want) in rows {
            assert_eq!(text.parse::<Threshold>().unwrap_err().to_string(), want);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(denied|\\{|\\}|policy|=|>|<|1|%|\"| |é){0,12}") {
            let _ = text.parse::<Threshold>();
        }
    }
}
