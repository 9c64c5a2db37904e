//! Compares what was admitted with what one limit would have admitted.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::Tick;
use tidegate::limiter::Rate;
use tidegate_core::envelope::{Envelope, Utilisation};

use super::act::{Limit, Row};
use super::run::Seen;

/// The length of the intervals used to find the recovery.
const STRETCH: Duration = Duration::from_millis(100);

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The most units, over all spans of time, that were admitted beyond the burst and what the rate returned in that
    /// span.
    pub(crate) excess: u64,
    /// The most excess allowed.
    pub(crate) most: u64,
    /// Admitted units in thousandths of the ideal.
    pub(crate) used_per_mille: u64,
    /// How long after the last act at least nine tenths of the ideal were admitted for half a second; `None` if
    /// never.
    pub(crate) back_after: Option<Duration>,
    pub(crate) p99: Duration,
    pub(crate) asked: usize,
    /// Requests without an answer, to nodes that never ended.
    pub(crate) unanswered: usize,
    /// The number of steps that nodes decided without the engine.
    pub(crate) without_engine: u64,
    /// How much later than planned the latest request was sent.
    pub(crate) late: Duration,
}

/// If the load is later than this, the machine counts as busy: nodes may miss the engine's deadline at any time.
const BUSY: Duration = Duration::from_millis(50);

/// If the load is later than this, latencies say more of the machine than of the nodes.
const QUIET: Duration = Duration::from_millis(20);

/// Returns the most excess that a run may show on a machine that was as late as this one.
///
/// Answers that wait for the machine are judged when they are read. So the units that the rate returns during the
/// lateness look like excess, and five answers may overtake each other. If the engine does not answer in time, a node
/// grants on its own in any row.
///
/// * Nodes that the row's fault does not affect grant one unit per step, and together at most their part of the
///   limit: all of it, or half if the fault leaves half of the nodes.
/// * For nodes that the fault affects, the row's bound already includes the burst and what their rate grants during
///   the fault. What remains is what they grant before the first act, one unit per step, and on a busy machine in the
///   rest of the run.
///
/// Nodes that deny grant nothing on their own.
fn most(row: &Row, seen: &Seen, late: Duration) -> u64 {
    if row.on_store_error == "deny" {
        return row.bounds.excess + 5 + returned(row, late);
    }
    // The number of the first node that the fault affects.
    let reached = match (row.bounds.alone, row.name.contains("half the nodes")) {
        (false, _) => row.nodes,
        (true, true) => row.nodes / 2,
        (true, false) => 0,
    };
    let part = |of: u64, nodes: usize| (of * nodes as u64).div_ceil(row.nodes as u64);
    let others: u64 = seen.without_engine.iter().take(reached).sum();
    let limit = row.limit.burst + row.nodes as u64 + returned(row, seen.length);
    let first = row.acts.first().map_or(Duration::ZERO, |(at, _)| *at);
    let outside = if late > BUSY {
        let lasted = seen.healed.since(Tick::EPOCH).saturating_sub(first);
        part(returned(row, seen.length.saturating_sub(lasted)), row.nodes - reached)
    } else {
        let early: u64 = seen.early.iter().skip(reached).sum();
        early.min(part(returned(row, first), row.nodes - reached))
    };
    row.bounds.excess + 5 + returned(row, late) + others.min(part(limit, reached)) + outside
}

/// Returns the units that the rate returns in a span.
fn returned(row: &Row, span: Duration) -> u64 {
    (span.as_secs_f64() * row.limit.rate as f64).ceil() as u64
}

/// Judges the observations of a run.
pub(crate) fn judge(row: &Row, seen: &Seen) -> Outcome {
    let mut stretches: Vec<Utilisation> = Vec::new();
    let rate = |limit: &Limit| Rate::new(limit.rate, Duration::from_secs(1)).expect("a rate in range");
    let mut judge = Envelope::new(rate(&row.limit), row.limit.burst).expect("a burst in range");
    let mut changes = seen.limits.iter().skip(1).peekable();
    for asked in &seen.asked {
        let Some(allowed) = asked.allowed else { continue };
        if let Some((from, limit)) = changes.next_if(|(from, _)| asked.at >= *from) {
            judge.change(*from, rate(limit), limit.burst).expect("a burst in range");
        }
        let before = judge.utilisation();
        judge.ask(asked.at, 1, allowed);
        let after = judge.utilisation();
        let stretch = (asked.at.since(Tick::EPOCH).as_nanos() / STRETCH.as_nanos()) as usize;
        if stretches.len() <= stretch {
            stretches.resize(stretch + 1, Utilisation::default());
        }
        stretches[stretch].admitted += after.admitted - before.admitted;
        stretches[stretch].ideal += after.ideal - before.ideal;
    }
    let used = stretches.iter().skip((row.bounds.used_from.as_millis() / STRETCH.as_millis()) as usize);
    let used = used.fold((0, 0), |(admitted, ideal), one| (admitted + one.admitted, ideal + one.ideal));
    let healed = seen.healed.since(Tick::EPOCH).as_nanos().div_ceil(STRETCH.as_nanos()) as usize;
    let good = |stretch: &[Utilisation]| {
        let sum = |of: fn(&Utilisation) -> u64| stretch.iter().map(of).sum::<u64>();
        sum(|one| one.admitted) * 10 >= sum(|one| one.ideal) * 9
    };
    let back = stretches.get(healed..).unwrap_or_default().windows(5).position(good);
    let mut took: Vec<Duration> =
        seen.asked.iter().filter(|asked| asked.allowed.is_some()).map(|asked| asked.took).collect();
    took.sort_unstable();
    let late = seen.asked.iter().map(|asked| asked.late).max().unwrap_or_default();
    let ends = |node: usize| row.acts.iter().filter_map(|(_, act)| act.ends()).any(|which| which.has(node));
    // Refused with 503 because the engine is gone, as the row plans.
    let denied = row.bounds.alone && row.on_store_error == "deny";
    Outcome {
        excess: judge.excess(),
        most: most(row, seen, late),
        used_per_mille: used.0 * 1000 / used.1.max(1),
        back_after: back.map(|at| STRETCH * u32::try_from(at).unwrap_or(u32::MAX)),
        p99: took.get(took.len() * 99 / 100).copied().unwrap_or_default(),
        asked: seen.asked.len(),
        unanswered: match denied {
            true => 0,
            false => seen.asked.iter().filter(|asked| asked.allowed.is_none() && !ends(asked.node)).count(),
        },
        without_engine: seen.without_engine.iter().sum(),
        late,
    }
}

impl Outcome {
    /// Returns the bounds that were broken.
    pub(crate) fn broken(&self, row: &Row) -> Vec<String> {
        let Row { name, share, bounds, .. } = row;
        let mut broken = Vec::new();
        let mut breaks = |what: String| broken.push(format!("{name}, {share}: {what}"));
        if self.excess > self.most {
            let most = self.most;
            breaks(format!("an excess of {} units, where {most} are allowed", self.excess));
        }
        if self.used_per_mille < bounds.used_per_mille {
            let (used, least) = (self.used_per_mille, bounds.used_per_mille);
            breaks(format!("used {used} ‰ of the ideal, where {least} ‰ are required"));
        }
        if self.p99 > bounds.p99 && self.late <= QUIET {
            breaks(format!("a p99 of {:?}, where {:?} is the most", self.p99, bounds.p99));
        }
        let alone = self.without_engine;
        if !bounds.alone && self.late <= BUSY && alone * 10 > self.asked as u64 {
            breaks(format!(
                "nodes decided {alone} of {} steps alone, although the engine answered",
                self.asked
            ));
        }
        if self.unanswered > 0 {
            breaks(format!(
                "{} of {} requests were neither allowed nor refused",
                self.unanswered, self.asked
            ));
        }
        broken
    }

    /// Returns the row of the manual's table.
    pub(crate) fn line(&self, row: &Row) -> String {
        let (percent, ms) = (|of: u64| of as f64 / 10.0, |of: Duration| of.as_secs_f64() * 1e3);
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "| {} | {} | {} | {} | {:.1} % | {:.1} % | {} | {:.1} ms | {} | {:.0} ms |",
            row.name,
            row.share,
            row.bounds.excess,
            self.excess,
            percent(row.bounds.used_per_mille),
            percent(self.used_per_mille),
            self.back_after.map_or("never".to_owned(), |back| format!("{} ms", back.as_millis())),
            ms(self.p99),
            self.without_engine,
            ms(self.late),
        );
        line
    }
}

/// The head of the table.
pub(crate) const HEAD: &str = "| scenario | share | excess: most allowed | seen | used of the ideal: least allowed | seen | back after | p99 | decided without the engine | load late by |\n|---|---|---|---|---|---|---|---|---|---|";
