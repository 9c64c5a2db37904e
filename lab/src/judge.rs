//! A second judge of protections against overload, which shares no service and no measure with [`overload`](crate::overload).
//!
//! The services have a capacity that follows from their description. A protection is judged by its *goodput*: what was
//! answered within the callers' time, as a share of what the capacity allows of the offered work. Requests that no
//! protection could have got answered, since they met a part that hangs, do not count. Beside the published laws
//! stands the *ideal*: the fixed limit that suits the service and the load best, known afterwards.
//!
//! The library's own types decide, on a virtual clock. The same seed gives the same run. A [`candidate`] for another law
//! stands beside them.
//!
//! The services are divided by the hashes of their names: half [`A`](Half::A) is to choose constants by, half
//! [`B`](Half::B) to be published once.

mod candidate;
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

pub use services::Half;

/// Judges the services of a half whose names contain `word` (an empty word matches all), with at most so many seeds
/// each. Returns the table with the checks below it, and the checks that failed.
#[must_use]
pub fn page(half: Half, seeds: u64, word: &str) -> (String, Vec<String>) {
    let seeds = seeds.max(1);
    let mut services = services::of_half(half);
    services.retain(|service| service.name.contains(word));
    let judged: Vec<_> = services.into_iter().map(|service| table::Judged::new(service, seeds)).collect();
    let mut text = table::text(&judged);
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
