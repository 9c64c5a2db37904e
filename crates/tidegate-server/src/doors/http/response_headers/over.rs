//! What the next hop is told of a request that passed over a limit.

use http::header::{HeaderMap, HeaderName};
use tidegate::GateDecision;
use tidegate::http_answer::server_parts::insert;
use tidegate::policy::Over;

use super::names::push_escaped;
use crate::engine::over;

/// The policies whose limits it is over, and which only mark it.
const MARKED: HeaderName = HeaderName::from_static("x-tidegate-marked");
/// The policies that lowered its priority.
const DEMOTED: HeaderName = HeaderName::from_static("x-tidegate-demoted");
/// The priority that is left.
const PRIORITY: HeaderName = HeaderName::from_static("x-tidegate-priority");
/// The most bytes of a list of names: the whole head has to fit the 4 KiB that nginx reads it into. What does not fit is left out.
const LONGEST: usize = 256;

/// Writes which policies let a request through over their limit, names escaped as in a path and separated by commas.
pub(crate) fn write_over(decision: &GateDecision, out: &mut HeaderMap) {
    let (mut marked, mut demoted) = (String::new(), String::new());
    for (name, over) in over(decision) {
        let names = if matches!(over, Over::Demote { .. }) { &mut demoted } else { &mut marked };
        let before = names.len();
        if !names.is_empty() {
            names.push_str(", ");
        }
        if !push_escaped(name, LONGEST - names.len().min(LONGEST), names) && before > 0 {
            names.truncate(before);
        }
    }
    if !marked.is_empty() {
        insert(out, MARKED, marked);
    }
    if !demoted.is_empty() {
        insert(out, PRIORITY, decision.priority.to_string());
        insert(out, DEMOTED, demoted);
    }
}
