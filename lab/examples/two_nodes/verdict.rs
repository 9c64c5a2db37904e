//! Compares what was admitted with what one limit would have admitted.

use std::fmt;
use std::time::Duration;

use tidegate::Tick;
use tidegate::limiter::Rate;
use tidegate_core::envelope::Envelope;

use super::load::Seen;

/// The limit of examples/two-nodes, whose burst is one second's units.
pub(crate) const PER_SECOND: u32 = 100;
pub(crate) const BURST: u64 = 100;

/// When the engine is killed, when it comes back, and when the run ends; all since the beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    pub(crate) dies: Duration,
    pub(crate) back: Duration,
    pub(crate) end: Duration,
}

/// One phase of a run.
struct Row {
    name: &'static str,
    admitted: u64,
    ideal: u64,
    excess: u64,
    /// The most excess allowed.
    most: u64,
    /// The least use, in thousandths of the ideal.
    least: u64,
}

/// The results of all phases.
pub(crate) struct Judged {
    rows: Vec<Row>,
    unanswered: usize,
    slowest: Duration,
    in_use_after: Duration,
}

/// Judges each phase. Under a load that never pauses, a limit does not recover from units that were granted twice, so
/// the excess of a phase includes that of earlier phases.
///
/// `spare` is added to each bound: on a machine that stalls now and then, the engine may answer too late, which
/// counts as another outage.
pub(crate) fn judge(seen: &Seen, phases: Phases, spare: u64) -> Judged {
    let rate = Rate::new(u64::from(PER_SECOND), Duration::from_secs(1)).unwrap();
    let mut judge = Envelope::new(rate, BURST).unwrap();
    // While the engine is available the limit is exact, except that up to five answers may overtake each other on
    // their way to the client. When it is gone, each node's part of the limit starts full: one more burst. When it is
    // back, its own limit has filled up, or starts half full if it has lost its keys: one more burst.
    let plans = [
        ("engine there", Duration::ZERO, phases.dies, 5, 950),
        ("engine gone", phases.dies, phases.back, BURST + 7, 900),
        ("engine back", phases.back, phases.end, 2 * BURST + 7, 900),
    ];
    let mut rows = Vec::new();
    for (name, from, until, most, least) in plans {
        judge.restart();
        let [from, until] = [from, until].map(|at| Tick::EPOCH.after(at));
        for asked in seen.asked.iter().filter(|asked| asked.at >= from && asked.at < until) {
            judge.ask(asked.at, 1, asked.status == 200);
        }
        let used = judge.utilisation();
        rows.push(Row {
            name,
            admitted: used.admitted,
            ideal: used.ideal,
            excess: judge.excess(),
            most: most + spare,
            least,
        });
    }
    let decided = |status: u16| status == 200 || status == 429;
    Judged {
        rows,
        unanswered: seen.asked.iter().filter(|asked| !decided(asked.status)).count(),
        slowest: seen.asked.iter().map(|asked| asked.took).max().unwrap_or_default(),
        in_use_after: seen.in_use_after,
    }
}

impl Judged {
    /// Returns an error for a bound that was broken.
    pub(crate) fn holds(&self) -> Result<(), String> {
        for row in &self.rows {
            if row.excess > row.most {
                return Err(format!("{}: {} beyond the limit, at most {}", row.name, row.excess, row.most));
            }
            if row.admitted * 1000 < row.ideal * row.least {
                return Err(format!("{}: {} of {} were admitted", row.name, row.admitted, row.ideal));
            }
        }
        if self.unanswered > 0 {
            return Err(format!("{} requests were neither served nor refused", self.unanswered));
        }
        Ok(())
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:14} {:>9} {:>9} {:>7} {:>6}", "", "admitted", "one limit", "excess", "most")?;
        for row in &self.rows {
            let Row { name, admitted, ideal, excess, most, .. } = row;
            writeln!(f, "{name:14} {admitted:>9} {ideal:>9} {excess:>7} {most:>6}")?;
        }
        writeln!(f, "neither served nor refused: {}; slowest answer: {:?}", self.unanswered, self.slowest)?;
        write!(f, "in use by both nodes {:?} after its return", self.in_use_after)
    }
}
