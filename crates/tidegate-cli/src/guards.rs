//! What guards did in a replay or a simulation, as tables.

use tidegate::{Tick, visible};
use tidegate_sim::json_units::millis;
use tidegate_sim::replay::{BreakerChange, GuardOutcome, Outcome, ServiceOutcome};
use tidegate_sim::thousands::grouped;

use crate::styled::Styled;
use crate::table::table;

/// The most changes of one breaker's state that a table has; the JSON has more.
const CHANGES: usize = 20;

/// Returns the tables of an outcome's guards; nothing where it has none. `when` writes a time.
pub(crate) fn text(outcome: &Outcome, when: impl Fn(Tick) -> String) -> Styled {
    let mut text = Styled::default();
    let policies = outcome.policies.iter();
    let all: Vec<_> =
        policies.flat_map(|policy| policy.guards.iter().map(move |guard| (&policy.name, guard))).collect();
    if all.is_empty() {
        return text;
    }
    let header = ["GUARD", "OF", "MOST IN FLIGHT", "REFUSED", "FULL", "OPEN", "HALF-OPEN"];
    let row = |(policy, guard): &(&String, &GuardOutcome)| {
        let is_breaker = guard.kind == "breaker";
        let cause = |refused: u64, applies: bool| if applies { grouped(refused) } else { "-".to_owned() };
        vec![
            guard.limit.clone(),
            (*policy).clone(),
            grouped(guard.most_in_flight),
            grouped(guard.refused()),
            cause(guard.refused_full, !is_breaker),
            cause(guard.refused_open, is_breaker),
            cause(guard.refused_half_open, is_breaker),
        ]
    };
    text.push("\n");
    text.push(table(&header, &[2, 3, 4, 5, 6], all.iter().map(row)) + "\n");
    if let Some(service) = &outcome.service {
        text.push(served(service));
    }
    for (policy, guard) in all.iter().filter(|(_, guard)| !guard.changes.is_empty()) {
        text.push("\n");
        text.push(changes(policy, guard, &when));
    }
    text
}

fn served(service: &ServiceOutcome) -> String {
    let mut text = String::new();
    if let (Some(p50), Some(p99)) = (service.p50, service.p99) {
        text = format!(
            "{} took {} ms in the median, {} ms at p99; {} failed",
            grouped(service.timed),
            millis(p50),
            millis(p99),
            grouped(service.failed)
        );
        if service.most_waiting > 0 {
            text += &format!("; {} at most waited at once", grouped(service.most_waiting));
        }
        text.push('\n');
    }
    text
}

/// The changes of a breaker's state, one a line.
fn changes(policy: &str, guard: &GuardOutcome, when: impl Fn(Tick) -> String) -> Styled {
    let shown = &guard.changes[..guard.changes.len().min(CHANGES)];
    let row = |change: &BreakerChange| {
        let to = match change.at_most {
            Some(at_most) => format!("{}, {at_most} at once", change.to),
            None => change.to.to_owned(),
        };
        vec![
            policy.to_owned(),
            visible::name(&change.key).into_owned(),
            when(change.at),
            change.from.to_owned(),
            to,
            change.why.clone(),
        ]
    };
    let header = ["BREAKER", "KEY", "AT", "WAS", "IS", "WHY"];
    let mut text = table(&header, &[], shown.iter().map(row)) + "\n";
    let more = (guard.changes.len() - shown.len()) as u64 + guard.changes_left_out;
    if more > 0 {
        text.push(format!("and {} more changes\n", grouped(more)));
    }
    text
}
