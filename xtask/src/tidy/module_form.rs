//! Rule: modules have one form, `foo.rs` beside `foo/`, in tests too: with `autotests = false` and a `tests/main.rs` that
//! names its modules, cargo does not take `tests/foo.rs` for a program of its own.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let modules = tree.rust().filter_map(|path| Some((path, path.strip_suffix("/mod.rs")?)));
    let fault = |(path, module): (&str, &str)| {
        let beside = module.rsplit_once('/').is_some_and(|(folder, _)| folder.ends_with("tests"));
        let beside = if beside { ", a module of tests/main.rs" } else { "" };
        Fault::new(path, 1, format!("the other form of module; name it {module}.rs{beside}"))
    };
    modules.map(fault).collect()
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    #[test]
    fn the_other_form_is_found_in_tests_too() {
        let files = [("a/src/b/mod.rs", ""), ("a/src/c.rs", ""), ("a/tests/help/mod.rs", "")];
        let expected = [
            "a/src/b/mod.rs:1: the other form of module; name it a/src/b.rs",
            "a/tests/help/mod.rs:1: the other form of module; name it a/tests/help.rs, a module of tests/main.rs",
        ];
        assert_eq!(found("module-form", &files, ""), expected);
    }
}
