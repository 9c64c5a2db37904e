//! The table and bars of the store on disk, compared with the one in memory.

use std::fmt::Write as _;

use anyhow::Result;

use super::bars::Bar;
use super::found::Found;

const CHECKS: [(&str, &str); 4] = [
    ("passing 1", "limits that are full again at the next check"),
    ("passing 2", "the same, two threads"),
    ("lasting 1", "limits that stay spent: every check is written"),
    ("lasting 2", "the same, two threads, while a third thread writes"),
];

/// Writes the table of the page.
pub(crate) fn table(found: &Found) -> Result<String> {
    let of = |contender: &str, figure: &str| found.median("disk", contender, figure);
    let mut page = String::from(
        "## A million keys on disk\n\nRandom keys, uniform; CPU time of the checking threads in ns.\n\n| | in memory | on disk | speed, as a share of that in memory |\n|---|---|---|---|\n",
    );
    for (figure, title) in CHECKS {
        if let Some((memory, disk)) = of("memory", figure).zip(of("disk", figure)) {
            writeln!(page, "| {title} | {memory:.2} | {disk:.2} | {:.2} |", memory / disk)?;
        }
    }
    page += "\n| on disk | measured |\n|---|---|\n";
    let rows = [
        ("checks of one thread while every check is written, million a second", "checks M/s"),
        ("use of a core by the writing thread meanwhile, percent", "writer core %"),
        ("written to the device while every check is written, MB a second", "written MB/s"),
        ("part of that: pieces, MB a second", "pieces MB/s"),
        ("duration of the last write meanwhile, ms", "last write ms"),
        ("strict checks by 64 threads, a second", "strict"),
        ("size of the file, MB", "file MB"),
        ("start with a million keys, ms", "open ms"),
        ("CPU time of that start, ms", "open cpu ms"),
        ("read during that start, MB", "read MB"),
    ];
    for (title, figure) in rows {
        if let Some(measured) = of("disk", figure) {
            writeln!(page, "| {title} | {measured:.0} |")?;
        }
    }
    Ok(page + "\n")
}

/// Returns the bars.
pub(crate) fn bars(found: &Found) -> Vec<Bar> {
    let of = |contender: &str, figure: &str| found.median("disk", contender, figure);
    let ratio = |figure| Some(of("memory", figure)? / of("disk", figure)?);
    vec![
        Bar::at_least("on disk, full again at once, against in memory", 0.9, ratio("passing 1"), "x"),
        Bar::at_least("on disk, every check written, against in memory", 0.9, ratio("lasting 1"), "x"),
        Bar::at_most("on disk: start with a million keys", 1000.0, of("disk", "open ms"), "ms"),
    ]
}
