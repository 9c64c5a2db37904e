//! Proposes limits from a log: where the crowd of keys ends, what a limit there costs, and when the log cannot tell.
//!
//! The log is read four to fifteen times. The first reading measures how much burst each key needs at each of about
//! thirty rates (`bursts`). The second looks at the requests of the keys that stand out (`watch`, `signs`). Then a gap
//! is sought that separates the most traffic at the cost of the fewest keys (`candidates`, `choose`). Further readings
//! minimise rate and burst, and leave room between the spared keys and those that are cut (`margins`). The last reading
//! replays the proposals, exactly as gates decide.
//!
//! Memory is bounded by [`SuggestOptions::keys`]. With more keys, the lightest are left out of the search.

mod bursts;
mod candidates;
mod caution;
mod choose;
mod group_policies;
mod margins;
mod measure;
mod options;
mod outliers;
mod signs;
mod suggestion;
mod watch;

use tidegate::Quota;
use tidegate::limiter::Rate;
use tidegate::policy::{Limit, Policy};

pub use self::candidates::Purpose;
pub use self::caution::Caution;
pub use self::group_policies::Narrower;
use self::measure::Measured;
pub use self::options::{SuggestError, SuggestOptions, WrittenCost};
pub use self::outliers::{Fate, StandsOut};
pub use self::signs::{ClientKind, Signs};
pub use self::suggestion::{
    Finding, Instead, KeysPeak, LeastLimit, Proposal, ReplayResult, Spared, Suggestion,
};
use crate::log::LogOptions;
use crate::policy_yaml::both;
use crate::source::Input;
use options::Readings;
pub use options::Step;

/// Proposes limits for a log, reading it four to fifteen times, and as often again for each of at most two narrower
/// questions ([`Instead`]) if it does not cut all keys that stand out; `watch` is told about each reading and each request.
///
/// # Errors
/// [`SuggestError`] if the log cannot be read, is standard input, or does not suffice for a proposal; or if the key,
/// the period or the share to keep is not valid.
///
/// # Examples
/// ```
/// use std::fmt::Write as _;
/// use tidegate_sim::log::LogOptions;
/// use tidegate_sim::log::Input;
/// use tidegate_sim::suggest::{Finding, SuggestOptions, suggest};
///
/// // Forty clients of about twenty requests an hour each, and one of 600 in ten minutes.
/// let mut requests: Vec<(u64, u64)> = (0..40).flat_map(|c| (0..20).map(move |n| (n * 177 + c * (n % 5), c))).collect();
/// requests.extend((0..600).map(|second| (1_000 + second, 99)));
/// requests.sort_unstable();
/// let mut text = "ts,client\n".to_owned();
/// for (second, client) in requests {
///     writeln!(text, "{},192.0.2.{client}", 1_772_442_000 + second)?;
/// }
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(file.path(), text)?;
///
/// let input = Input::File(file.path().to_owned());
/// let found = suggest(&[input], &LogOptions::default(), &SuggestOptions::default(), |_| {})?;
/// assert_eq!(found.finding, Finding::Gap);
/// let proposal = &found.proposals[0];
/// assert_eq!((proposal.evidence.keys_hit, proposal.hit[0].key.as_str()), (1, "192.0.2.99"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn suggest(
    inputs: &[Input],
    log: &LogOptions,
    options: &SuggestOptions,
    mut watch: impl FnMut(Step),
) -> Result<Suggestion, SuggestError> {
    if inputs.contains(&Input::Stdin) {
        return Err(SuggestError::OnlyOnce);
    }
    if let Some(keep) = options.keep.filter(|keep| !(*keep > 0.0 && *keep <= 1.0)) {
        return Err(SuggestError::Keep { percent: keep * 100.0 });
    }
    // Reject periods that a rate cannot have.
    Rate::new(1, options.per)?;
    let mut policy = policy(&options.by)?;
    policy.cost = options.cost.as_ref().map(|cost| cost.rule.clone());
    let mut ask = |log: &LogOptions, options: &SuggestOptions| {
        Measured::new(Readings::new(inputs, log, &mut watch), options, &policy)?.suggestion()
    };
    let mut found = ask(log, options)?;
    let of_all = SuggestOptions { keep: None, ..options.clone() };
    for question in choose::questions(&found) {
        let matching = question.matching().ok().and_then(|narrower| both(&log.matching, &narrower));
        let Some(matching) = matching else { continue };
        let Ok(answer) = ask(&LogOptions { matching, ..log.clone() }, &of_all) else { continue };
        found.instead.extend(question.answered(&answer));
    }
    Ok(found)
}

/// The policy whose limit is sought.
fn policy(by: &[String]) -> Result<Policy, SuggestError> {
    if by.is_empty() || by.iter().any(|name| name.trim().is_empty()) {
        return Err(SuggestError::Unnamed);
    }
    if let Some((_, name)) = by.iter().enumerate().find(|(at, name)| by[..*at].contains(name)) {
        return Err(SuggestError::Repeated { attribute: name.clone() });
    }
    let mut policy = Policy::new("suggested", Limit::new(Quota::per_second(1).gcra()?, "sought"));
    policy.by = by.to_vec();
    Ok(policy)
}

#[cfg(test)]
mod tests;
