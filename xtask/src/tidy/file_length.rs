//! Rule: Rust files have at most 800 lines, tests included, unless an exception gives a reason.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

/// The most lines of a file: as much as a reader takes in at one sitting, and enough for a real algorithm with
/// documentation and tests.
const MOST: usize = 800;

pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let lengths = tree.rust().map(|path| (path, tree.text(path).unwrap_or_default().lines().count()));
    let long = lengths.filter(|(path, lines)| *lines > MOST && !allowed.allows(path));
    let fault = |(path, lines)| {
        let what = format!(
            "{lines} lines, more than {MOST}; find the second job in it and give that its own file, or state in {} why not",
            super::allowed::FILE
        );
        Fault::new(path, MOST + 1, what)
    };
    long.map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::MOST;
    use crate::tidy::found;

    #[test]
    fn a_long_file_is_found_unless_there_is_a_reason() {
        let (long, full) = ("//\n".repeat(MOST + 1), "//\n".repeat(MOST));
        let files = [("a/long.rs", &*long), ("a/full.rs", &*full), ("a/page.md", &*long)];
        let faults = found("file-length", &files, "");
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("a/long.rs:801: 801 lines, more than 800; "), "{faults:?}");
        assert!(found("file-length", &files, "[file-length]\n\"a/long.rs\" = \"one table\"\n").is_empty());
        let unused = found("file-length", &files[1..], "[file-length]\n\"a/full.rs\" = \"one table\"\n");
        assert_eq!(unused.len(), 1, "{unused:?}");
    }
}
