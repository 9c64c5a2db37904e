use tidegate::{Tick, visible};
use tidegate_sim::replay::{BreakerChange, GuardOutcome, Outcome, ServiceOutcome};
use tidegate_sim::{grouped, millis};

use crate::styled::{Styled, table};

/// The JSON has more.
const CHANGES: usize = 20;
/// When several runs share the screen.
const FEWEST_CHANGES: usize = 4;

/// Returns the tables of the guards of all runs; empty if there are none. With several runs, each row begins with the
/// name of its run. `when` formats a time.
pub(crate) fn text(outcomes: &[Outcome], when: impl Fn(Tick) -> String) -> Styled {
    let mut text = Styled::default();
    let all: Vec<_> = outcomes.iter().flat_map(guards_of).collect();
    if all.is_empty() {
        return text;
    }
    let compared = outcomes.len() > 1;
    let mut header = vec!["GUARD", "OF", "MOST IN FLIGHT", "REFUSED", "FULL", "OPEN", "HALF-OPEN"];
    let sheds = all.iter().any(|guard| guard.did.refused_shed > 0);
    if sheds {
        header.push("SHED");
    }
    let mut numbers: Vec<usize> = (2..header.len()).collect();
    if compared {
        header.insert(0, "RUN");
        numbers.iter_mut().for_each(|column| *column += 1);
    }
    let row = |guard: &GuardOf<'_>| {
        let mut row = columns(guard);
        if sheds {
            row.push(cause(guard.did.refused_shed, guard.did.kind == "breaker"));
        }
        if compared {
            row.insert(0, guard.run.to_owned());
        }
        row
    };
    text.push("\n");
    text.push(table(&header, &numbers, all.iter().map(row)) + "\n");
    for outcome in outcomes {
        let line = outcome.service.as_ref().map(served).unwrap_or_default();
        if compared && !line.is_empty() {
            text.push(format!("{}: ", visible::name(&outcome.name)));
        }
        text.push(line);
    }
    // So that the tables still fit a screen.
    let most = (CHANGES / outcomes.len()).max(FEWEST_CHANGES);
    for guard in all.iter().filter(|guard| !guard.did.changes.is_empty()) {
        text.push("\n");
        text.push(changes(guard, compared, most, &when));
    }
    text
}

struct GuardOf<'o> {
    run: &'o str,
    policy: &'o str,
    did: &'o GuardOutcome,
}

fn guards_of(outcome: &Outcome) -> impl Iterator<Item = GuardOf<'_>> {
    outcome.policies.iter().flat_map(|policy| {
        policy.guards.iter().map(|did| GuardOf { run: &outcome.name, policy: &policy.name, did })
    })
}

fn columns(guard: &GuardOf<'_>) -> Vec<String> {
    let did = guard.did;
    let is_breaker = did.kind == "breaker";
    vec![
        did.limit.clone(),
        guard.policy.to_owned(),
        grouped(did.most_in_flight),
        grouped(did.refused()),
        cause(did.refused_full, !is_breaker),
        cause(did.refused_open, is_breaker),
        cause(did.refused_half_open, is_breaker),
    ]
}

fn cause(refused: u64, applies: bool) -> String {
    if applies { grouped(refused) } else { "-".to_owned() }
}

fn served(service: &ServiceOutcome) -> String {
    let mut text = String::new();
    if let (Some(p50), Some(p99)) = (service.p50, service.p99) {
        text = format!(
            "{} requests took {} ms in the median, {} ms at p99; {} failed",
            grouped(service.timed),
            millis(p50),
            millis(p99),
            grouped(service.failed)
        );
        if service.most_waiting > 0 {
            text += &format!("; at most {} waited at once", grouped(service.most_waiting));
        }
        text.push('\n');
    }
    text
}

/// Returns a table of the state changes of a breaker, at most `most` of them.
fn changes(guard: &GuardOf<'_>, compared: bool, most: usize, when: impl Fn(Tick) -> String) -> Styled {
    let did = guard.did;
    let shown = &did.changes[..did.changes.len().min(most)];
    let row = |change: &BreakerChange| {
        let to = match change.at_most {
            Some(at_most) => format!("{}, {at_most} at once", change.to),
            None => change.to.to_owned(),
        };
        let run = compared.then(|| guard.run.to_owned());
        let columns = [
            guard.policy.to_owned(),
            visible::name(&change.key).into_owned(),
            when(change.at),
            change.from.to_owned(),
            to,
            change.why.clone(),
        ];
        run.into_iter().chain(columns).collect::<Vec<_>>()
    };
    let mut header = vec!["BREAKER", "KEY", "AT", "WAS", "IS", "WHY"];
    if compared {
        header.insert(0, "RUN");
    }
    let mut text = table(&header, &[], shown.iter().map(row)) + "\n";
    let more = (did.changes.len() - shown.len()) as u64 + did.changes_left_out;
    if more > 0 {
        text.push(format!("and {} more changes\n", grouped(more)));
    }
    text
}
