//! A second judge of protections against overload, which shares no service and no measure with [`overload`](crate::overload).
//!
//! The services have a capacity that follows from their description. A protection is judged by its *goodput*: what was
//! answered within the callers' time, as a share of what the capacity allows of the offered work. Requests that no
//! protection could have got answered, since they met a part that hangs, do not count. Beside the published laws
//! stands the *ideal*: the fixed limit that suits the service and the load best, known afterwards.
//!
//! The library's own types decide, on a virtual clock. The same seed gives the same run.
//!
//! The services are in three sets. The law was chosen by [`A`](Set::A) and [`B`](Set::B), divided by the hashes of their names;
//! [`C`](Set::C) is by another hand, and was not seen by those who made it.

mod checks;
mod engine;
mod guard;
mod run;
mod service;
mod services;
mod table;
mod tally;
#[cfg(test)]
mod tests;
mod unseen;

pub use services::Set;

/// Returns the names of all protections.
#[must_use]
pub fn protections() -> Vec<&'static str> {
    table::all_protections().into_iter().map(guard::Protection::name).collect()
}

/// Judges the services of a set whose names contain `word` (an empty word matches all), with at most so many seeds
/// each. Returns the table with the checks below it, and the checks that failed.
///
/// If `only` names protections, no others are judged, and nothing is checked.
#[must_use]
pub fn page(set: Set, seeds: u64, word: &str, only: &[&str]) -> (String, Vec<String>) {
    let seeds = seeds.max(1);
    let mut services = services::of_set(set);
    services.retain(|service| service.name.contains(word));
    let judged: Vec<_> =
        services.into_iter().map(|service| table::Judged::new(service, seeds, only)).collect();
    let mut text = table::text(&judged);
    if !only.is_empty() {
        return (text, Vec::new());
    }
    text.push('\n');
    let mut failed = Vec::new();
    for check in checks::all(&judged, seeds) {
        let line = check.to_string();
        text.push_str(&line);
        text.push('\n');
        if !check.passed() {
            failed.push(line);
        }
    }
    (text, failed)
}
