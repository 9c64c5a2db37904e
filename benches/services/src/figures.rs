//! What a run shows, and the tables.

use std::fmt::Write as _;
use std::time::Duration;

use crate::load::{Arrival, How};
use crate::rows::{IN_TIME, Row};
use crate::service::Work;

/// The seconds after the start that the worst second leaves out.
const FIRST: usize = 2;

/// One run of a contender.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ended: Vec<(Arrival, How)>,
    /// The mean seconds of healthy work.
    pub(crate) held: f64,
}

/// The figures of a run, and their names.
const NAMES: [&str; 5] = ["in time", "worst second", "p99 ms", "refused", "lost"];
const IN_ALL: usize = 0;
const WORST: usize = 1;

type Figures = [f64; NAMES.len()];

impl Run {
    fn figures(&self, row: &Row) -> Figures {
        // In requests per second.
        let capacity = row.overloaded.map_or(f64::INFINITY, |places| places as f64 / self.held);
        let does_hang = |arrival: &Arrival| arrival.is_odd && matches!(row.work, Work::Pool { .. });
        let healthy: Vec<_> = self.ended.iter().filter(|(arrival, _)| !does_hang(arrival)).collect();
        let mut asked = vec![0.0; row.seconds as usize];
        let mut good = asked.clone();
        let (mut refused, mut answered) = (0.0, Vec::new());
        for (arrival, how) in &healthy {
            let second = arrival.at.as_secs() as usize;
            asked[second] += 1.0;
            match how {
                How::Answered(took) => {
                    answered.push(*took);
                    // Under overload, what is answered after the last second is not the work of these seconds.
                    let end = if row.overloaded.is_some() { arrival.at + *took } else { arrival.at };
                    if let Some(good) = good.get_mut(end.as_secs() as usize) {
                        *good += f64::from(*took <= IN_TIME);
                    }
                }
                How::Refused => refused += 1.0,
                How::Lost => {}
            }
        }
        let all = healthy.len() as f64;
        let worst = good.iter().zip(&asked).skip(FIRST).map(|(good, asked)| good / capacity.min(*asked));
        answered.sort_unstable();
        [
            good.iter().sum::<f64>() / all.min(capacity * row.seconds as f64),
            worst.fold(f64::INFINITY, f64::min),
            quantile(&answered, 0.99).as_secs_f64() * 1e3,
            refused / all,
            (all - refused - answered.len() as f64) / all,
        ]
    }
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// The tables of all rows, and what misses its bar. `runs` has for each row and contender the runs of all rounds.
pub(crate) fn table(rows: &[Row], runs: &[Vec<Vec<Run>>]) -> String {
    let mut text = String::new();
    let mut missed = String::new();
    for (row, runs) in rows.iter().zip(runs) {
        let bar = match (row.bars.in_all, row.bars.worst_second) {
            (Some(bar), Some(_)) => format!(". Bar: {bar} in all and in the worst second"),
            (Some(bar), None) => format!(". Bar: {bar} in all"),
            _ => String::new(),
        };
        let _ = writeln!(text, "\n# {}{bar}", row.title);
        let _ = writeln!(text, "\tin time\tleast\tworst second\tleast\tp99 ms\trefused\tlost");
        for (contender, runs) in row.contenders.iter().zip(runs) {
            let figures: Vec<Figures> = runs.iter().map(|run| run.figures(row)).collect();
            let mean =
                |which: usize| figures.iter().map(|one| one[which]).sum::<f64>() / figures.len() as f64;
            let least = |which: usize| figures.iter().map(|one| one[which]).fold(f64::INFINITY, f64::min);
            let _ = writeln!(
                text,
                "{}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.0}\t{:.3}\t{:.3}",
                contender.name,
                mean(IN_ALL),
                least(IN_ALL),
                mean(WORST),
                least(WORST),
                mean(2),
                mean(3),
                mean(4),
            );
            if contender.name.starts_with("Tidegate") {
                let bars = [(IN_ALL, row.bars.in_all), (WORST, row.bars.worst_second)];
                for (which, bar) in bars {
                    if let Some(bar) = bar
                        && mean(which) < bar
                    {
                        let _ = writeln!(
                            missed,
                            "{}\t{}\t{:.3}\tbar {bar}",
                            row.title,
                            NAMES[which],
                            mean(which)
                        );
                    }
                }
            }
        }
    }
    if !missed.is_empty() {
        let _ = write!(text, "\n# Below a bar\n{missed}");
    }
    text
}
