//! Rule: modules have one form, `foo.rs` beside `foo/`. `foo/mod.rs` is only for tests, where cargo would take `foo.rs`
//! for a test of its own.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let modules = tree.rust().filter_map(|path| Some((path, path.strip_suffix("/mod.rs")?)));
    let outside = modules.filter(|(path, _)| !path.split('/').any(|folder| folder == "tests"));
    outside
        .map(|(path, module)| Fault::new(path, 1, format!("the other form of module; name it {module}.rs")))
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    #[test]
    fn the_other_form_is_found_and_tests_may_have_it() {
        let files = [("a/src/b/mod.rs", ""), ("a/src/c.rs", ""), ("a/tests/help/mod.rs", "")];
        let found = found("module-form", &files, "");
        assert_eq!(found, ["a/src/b/mod.rs:1: the other form of module; name it a/src/b.rs"]);
    }
}
