//! One line of lab/results/faults-ledger.tsv: the record of a run of fault scenarios.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

/// A run of fault scenarios.
#[derive(Clone, Copy, Debug)]
pub struct FaultRun<'r> {
    /// The system under test: `simulated`, or an engine.
    pub on: &'r str,
    /// The common part of its scenarios' names; empty for all.
    pub scenarios: &'r str,
    /// The number of seeds per scenario; `None` if nothing was random.
    pub seeds: Option<u64>,
    /// Its table in Markdown. The third column is the most excess that a bound allows, the fourth the excess seen.
    pub table: &'r str,
    /// The violated bounds.
    pub broken: &'r [String],
}

impl FaultRun<'_> {
    /// Takes `--ledger` and its file out of a command line; returns the other arguments, and the file.
    ///
    /// # Panics
    /// If no file follows.
    pub fn ledger_of(mut words: impl Iterator<Item = String>) -> (Vec<String>, Option<String>) {
        let (mut others, mut file) = (Vec::new(), None);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--ledger" => file = Some(words.next().expect("write a file after --ledger")),
                _ => others.push(word),
            }
        }
        (others, file)
    }

    /// Appends its line to a file: date, commit, what ran, the row that came nearest to its bound, and whether all
    /// bounds held.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&self, file: impl AsRef<Path>) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(file)?;
        writeln!(file, "{}", self.line(&output_of("date", &["-u", "+%Y-%m-%d"]), &commit()))
    }

    fn line(&self, date: &str, commit: &str) -> String {
        let rows = Row::all(self.table);
        let which =
            if self.scenarios.is_empty() { "all".to_owned() } else { format!("`{}`", self.scenarios) };
        let seeds = self.seeds.map_or("-".to_owned(), |seeds| format!("1 to {seeds}"));
        let worst = rows.iter().max_by(|a, b| a.part().total_cmp(&b.part()));
        let worst = worst.map_or("-".to_owned(), |row| {
            format!("{} ({}): {} of {}", row.name, row.share, row.excess, row.most)
        });
        let result = match self.broken.len() {
            0 => "all bounds held".to_owned(),
            count => format!("{count} broken: {}", self.broken.join("; ")),
        };
        format!("{date}\t{commit}\t{}\t{which}: {}\t{seeds}\t{worst}\t{result}", self.on, rows.len())
    }
}

struct Row<'t> {
    name: &'t str,
    share: &'t str,
    most: u64,
    excess: u64,
}

impl<'t> Row<'t> {
    /// Returns the rows of a table whose third and fourth columns are numbers.
    fn all(table: &'t str) -> Vec<Self> {
        let row = |line: &'t str| {
            let mut columns = line.trim_matches('|').split('|').map(str::trim);
            let (name, share) = (columns.next()?, columns.next()?);
            let (most, excess) = (columns.next()?.parse().ok()?, columns.next()?.parse().ok()?);
            Some(Self { name, share, most, excess })
        };
        table.lines().filter_map(row).collect()
    }

    /// Returns the excess as a share of its bound. Bounds below 10 count as 10, because a few units are noise there.
    fn part(&self) -> f64 {
        self.excess as f64 / self.most.max(10) as f64
    }
}

fn commit() -> String {
    let changed =
        !output_of("git", &["status", "--porcelain", "--untracked-files=no", "--", "*.rs"]).is_empty();
    format!("{}{}", output_of("git", &["rev-parse", "--short=10", "HEAD"]), if changed { "+" } else { "" })
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_row_that_came_nearest_to_its_bound() {
        let table = "| scenario | share | most | seen |\n|---|---|---|---|\n| even | leased | 2 | 1 | 97.0 % |\n\
                     | engine gone | central | 100 | 60 | 90.0 % |\n| engine gone | leased | 100 | 7 | 90.0 % |";
        let run = FaultRun { on: "redis", scenarios: "", seeds: None, table, broken: &[] };
        assert_eq!(
            run.line("2027-01-15", "abc+"),
            "2027-01-15\tabc+\tredis\tall: 3\t-\tengine gone (central): 60 of 100\tall bounds held"
        );
        let broken = ["one".to_owned()];
        let run = FaultRun { scenarios: "gone", seeds: Some(9), broken: &broken, ..run };
        assert!(
            run.line("", "")
                .ends_with("\t`gone`: 3\t1 to 9\tengine gone (central): 60 of 100\t1 broken: one")
        );
    }

    #[test]
    fn the_file_is_taken_out_of_a_command_line() {
        let words = ["100", "--ledger", "file", "lost"].map(str::to_owned);
        assert_eq!(
            FaultRun::ledger_of(words.into_iter()),
            (vec!["100".to_owned(), "lost".to_owned()], Some("file".to_owned()))
        );
    }
}
