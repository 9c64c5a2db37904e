//! Rule: every Rust file parses, including those that no build compiles, because the other rules skip a file that does
//! not.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let errors = tree.rust().filter_map(|path| Some((path, tree.error(path)?)));
    let fault = |(path, error): (&str, &syn::Error)| {
        let what = format!("does not parse: {error}; the other rules see nothing in it until it does");
        Fault::new(path, error.span().start().line, what)
    };
    errors.map(fault).collect()
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    #[test]
    fn a_file_that_does_not_parse_is_named_with_its_line() {
        let found =
            found("parses", &[("a.rs", "fn sound() {}\nfn un sound() {}\n"), ("b.rs", "fn b() {}")], "");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:2: does not parse: "), "{found:?}");
    }
}
