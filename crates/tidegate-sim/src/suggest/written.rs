//! Formats the costs, names and rates of a proposal.

use serde::Serializer;

use crate::replay::PeakRate;

/// Writes the cost of a request as a line of a policy.
pub(super) fn cost_line(cost: &str) -> String {
    let cost = cost.parse::<i64>().map_or_else(|_| plain_or_quoted(cost), |number| number.to_string());
    format!("    cost: {cost}\n")
}

/// Writes the name of an attribute as a YAML scalar.
pub(super) fn plain_or_quoted(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_plain =
        name.bytes().all(plain) && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    // A JSON string is valid YAML.
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

/// Serialises a rate as text.
pub(super) fn in_words<S: Serializer>(rate: &PeakRate, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(rate)
}
