//! The tables of the manual that are generated from the program.
//!
//! A table stands between two markers, `<!-- generated: NAME -->` and `<!-- end -->`. A test of the crate that knows
//! the contents compares them; `cargo xtask docs` runs the same tests and writes the tables.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The environment variable that makes [`keep_tables`] write, if it is `overwrite`.
const WRITES: &str = "TABLES";
const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

/// Checks that the tables of a page of the manual, such as `docs/metrics.md`, are those that the program makes now:
/// pairs of a marker's name and a table. With `TABLES=overwrite` it writes them into the page.
///
/// # Panics
/// If a table differs, a marker is missing, or the page has a marker without a table.
pub fn keep_tables(page: &str, tables: &[(String, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let made = with_tables(&text, tables).unwrap_or_else(|why| panic!("{page}: {why}"));
    if made == text {
        return;
    }
    if env::var_os(WRITES).is_some_and(|word| word == "overwrite") {
        fs::write(&path, made).unwrap_or_else(|error| panic!("{page}: {error}"));
        return;
    }
    let (old, new) = difference(&text, &made);
    panic!("{page} is out of date: run `cargo xtask docs`\n  it says:        {old}\n  it should say:  {new}");
}

/// Returns a page with these tables between its markers.
fn with_tables(page: &str, tables: &[(String, String)]) -> Result<String, String> {
    let markers = page.matches(BEGIN).count();
    if markers != tables.len() {
        return Err(format!(
            "it has {markers} markers of tables, and {} tables are made for it",
            tables.len()
        ));
    }
    let mut made = page.to_owned();
    for (name, table) in tables {
        let marker = format!("{BEGIN}{name} -->\n");
        let (before, rest) =
            made.split_once(&marker).ok_or_else(|| format!("it lacks `{}`", marker.trim()))?;
        let (_, after) = rest.split_once(END).ok_or_else(|| format!("`{}` has no `{END}`", marker.trim()))?;
        made = format!("{before}{marker}\n{}\n\n{END}{after}", table.trim());
    }
    Ok(made)
}

/// Returns the first lines that differ.
fn difference<'t>(old: &'t str, new: &'t str) -> (&'t str, &'t str) {
    let differ = old.lines().zip(new.lines()).find(|(old, new)| old != new);
    differ.unwrap_or_else(|| (old.lines().last().unwrap_or_default(), new.lines().last().unwrap_or_default()))
}

/// Returns a table in Markdown.
#[must_use]
pub fn table<const COLUMNS: usize>(heads: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(COLUMNS));
    for row in rows {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// Returns plain text as Markdown for a cell: characters that would format it, or end the cell, are escaped, except
/// within backticks.
#[must_use]
pub fn cell(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    let mut code = false;
    for letter in text.chars() {
        code ^= letter == '`';
        if letter == '|' || !code && matches!(letter, '*' | '<' | '[') {
            cell.push('\\');
        }
        cell.push(letter);
    }
    cell
}

/// Returns a name as code, as a link if the list has a page or section for it.
#[must_use]
pub fn name(name: &str, sections: &[(&str, &str)]) -> String {
    match sections.iter().find(|(of, _)| *of == name) {
        Some((_, section)) => format!("[`{name}`]({section})"),
        None => format!("`{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n\n<!-- generated: keys -->\n\n| old |\n\n<!-- end -->\n\nprose\n";

    fn one(name: &str) -> [(String, String); 1] {
        [(name.to_owned(), table(["key", "what"], &[[name.to_owned(), cell("a|b *c* `*`")]]))]
    }

    #[test]
    fn a_table_is_put_between_its_markers_and_stays() {
        let made = with_tables(PAGE, &one("keys")).unwrap();
        let expected = "# A\n\n<!-- generated: keys -->\n\n| key | what |\n|---|---|\n| keys | a\\|b \\*c\\* `*` |\n\n\
                        <!-- end -->\n\nprose\n";
        assert_eq!(made, expected);
        assert_eq!(with_tables(&made, &one("keys")).unwrap(), made);
        assert_eq!(difference(PAGE, &made), ("| old |", "| key | what |"));
    }

    #[test]
    fn markers_and_tables_belong_together() {
        assert!(with_tables(PAGE, &[]).unwrap_err().contains("1 markers"));
        assert!(with_tables(PAGE, &one("verbs")).unwrap_err().contains("lacks `<!-- generated: verbs -->`"));
    }

    #[test]
    fn a_name_with_a_section_is_a_link() {
        let sections = [("over", "#over")];
        assert_eq!(
            (name("over", &sections), name("by", &sections)),
            ("[`over`](#over)".into(), "`by`".into())
        );
    }
}
