//! Writes what was measured into the repository.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::bars::Bar;
use crate::step::root;

const START: &str = "<!-- bench -->";
const END: &str = "<!-- /bench -->";

/// Writes the page as data, its short form into the manual, and the rows of the README.
pub(crate) fn publish(page: &str, short: &str, rows: &[String]) -> Result<()> {
    let data = root().join("lab/results/bench.tsv");
    std::fs::write(&data, tsv(page)).with_context(|| format!("cannot write {}", data.display()))?;
    replace(&root().join("docs/figures.md"), &format!("\n{}\n", short.trim_end()))?;
    replace(
        &root().join("README.md"),
        &format!("| what | measured | on |\n|---|---|---|\n{}", rows.join("\n")),
    )
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let name = path.display();
    let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let page = between_marks(&page, text).with_context(|| format!("{name} has no place for figures"))?;
    std::fs::write(path, page).with_context(|| format!("cannot write {name}"))
}

fn between_marks(page: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n{text}\n{END}{after}"))
}

/// Converts a page: rows of tables to cells with tabs between them, all other lines to comments. An empty line ends a
/// table.
fn tsv(page: &str) -> String {
    let mut data = String::from("# cargo xtask bench\n");
    let (mut in_table, mut ended) = (false, false);
    for line in page.lines().filter(|line| !line.starts_with("|---")) {
        if line.is_empty() {
            ended = in_table;
            continue;
        }
        if ended {
            data += "\n";
        }
        let row = line.strip_prefix('|');
        match row {
            Some(row) => {
                let row = row.strip_suffix('|').unwrap_or(row);
                data += &row.split('|').map(cell).collect::<Vec<_>>().join("\t");
            }
            None => {
                data += "# ";
                data += line.trim_start_matches(['#', ' ']);
            }
        }
        data += "\n";
        (in_table, ended) = (row.is_some(), false);
    }
    data
}

fn cell(cell: &str) -> String {
    cell.trim().replace("\\*", "(disturbed)").trim_matches('*').to_owned()
}

pub(crate) fn machine_name() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.trim_start_matches([' ', '\t', ':']))
}

pub(crate) fn describe_machine() -> Result<String> {
    let rust = Command::new("rustc").arg("--version").output()?;
    let rust = String::from_utf8_lossy(&rust.stdout);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let clock = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let clock = clock.unwrap_or_else(|_| "unknown".to_owned());
    let (name, kernel, rust, clock) = (machine_name(), kernel.trim(), rust.trim(), clock.trim());
    Ok(format!("Machine: {name}, Linux {kernel}, {rust}, clock source {clock}.\n"))
}

/// One part of the page, what the manual shows of it, its row for the README, and its bars.
pub(crate) struct Measured {
    pub(crate) page: String,
    pub(crate) short: String,
    pub(crate) row: Option<String>,
    pub(crate) bars: Vec<Bar>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_data() {
        let page = "## One limiter\n\nMachine: two cores.\n\n| | ns | x |\n|---|---:|---|\n| **Tidegate** | 15 [13-15] |  |\n\
                    | *floor* | 2.0 [1.0-2.0] \\* | 1.00 |\n\n| log | ns |\n|---|---|\n| 10 | 304 |\n\n## Replay\n";
        let data = "# cargo xtask bench\n# One limiter\n# Machine: two cores.\n\tns\tx\nTidegate\t15 [13-15]\t\n\
                    floor\t2.0 [1.0-2.0] (disturbed)\t1.00\n\nlog\tns\n10\t304\n\n# Replay\n";
        assert_eq!(tsv(page), data);
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = "before <!-- bench -->old<!-- /bench --> after";
        assert_eq!(between_marks(page, "new").unwrap(), "before <!-- bench -->\nnew\n<!-- /bench --> after");
        assert_eq!(between_marks("no place", "new"), None);
    }
}
