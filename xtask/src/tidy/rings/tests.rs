use crate::tidy::found;

/// Returns the faults of a crate `c` with these files under `src/`, beside its `lib.rs`.
fn rings(lib: &str, files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
    let mut all =
        vec![("c/Cargo.toml".to_owned(), "[package]\nname = \"c\"\n"), ("c/src/lib.rs".to_owned(), lib)];
    all.extend(files.iter().map(|(file, text)| (format!("c/src/{file}"), *text)));
    let all: Vec<(&str, &str)> = all.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    found("rings", &all, exceptions)
}

const TWO: [(&str, &str); 2] = [
    ("a/x.rs", "use crate::b::y::B;\npub struct A(B);"),
    ("b/y.rs", "pub struct B;\nimpl B { fn b(&self, a: &crate::a::x::A) {} }"),
];

/// Modules of two folders with one file each.
const FOLDERS: &str = "mod a { pub mod x; } mod b { pub mod y; }";

#[test]
fn two_folders_that_use_each_other_are_a_ring() {
    let found = rings(FOLDERS, &TWO, "");
    let expected = "c/src/b/y.rs:2: a ring: uses `A` of c/src/a/x.rs, which uses `B` of this file; \
                    move what both need to a file that uses neither, or make them one folder";
    assert_eq!(found, [expected]);
}

#[test]
fn files_of_one_folder_may_use_each_other() {
    let one = [
        ("a.rs", "pub(crate) mod x; mod y; pub struct Whole(x::A);"),
        ("a/x.rs", "use super::y::B;\npub struct A(B);"),
        ("a/y.rs", "pub struct B;\nfn f(a: super::x::A, whole: super::Whole) {}"),
    ];
    assert_eq!(rings("mod a;", &one, ""), [""; 0], "a folder is its files, and the file that lists them");
    let beside = [("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", "use crate::a::A; pub struct B;")];
    assert_eq!(rings("mod a; mod b;", &beside, ""), [""; 0]);
    let tests =
        [beside[0], ("b.rs", "#[cfg(test)] mod tests; use crate::a::A; pub struct B;"), ("b/tests.rs", "")];
    assert_eq!(rings("mod a; mod b;", &tests, ""), [""; 0], "tests make no folder");
    let folder = [beside[0], ("b.rs", "mod y; use crate::a::A; pub struct B;"), ("b/y.rs", "")];
    assert_eq!(rings("mod a; mod b;", &folder, "").len(), 1, "a file with children is a folder of its own");
}

#[test]
fn a_ring_that_leaves_a_folder_is_found_also_if_it_passes_through_its_files() {
    let files = [
        ("a/x.rs", "use crate::b::y::B; pub struct X;"),
        ("a/z.rs", "use super::x::X; pub struct Z;"),
        ("b/y.rs", "use crate::a::z::Z; pub struct B;"),
    ];
    let found = rings("mod a { pub mod x; pub mod z; } mod b { pub mod y; }", &files, "");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].contains("`X` of c/src/a/x.rs") || found[0].contains("`Z` of c/src/a/z.rs"),
        "{found:#?}"
    );
}

#[test]
fn a_ring_goes_through_others_and_inline_paths_and_macros() {
    let files = [
        ("a/x.rs", "pub struct A;\nfn f() { vec![crate::b::b()]; }"),
        ("b.rs", "use super::c::C;\npub fn b() -> C { C }"),
        ("c.rs", "pub struct C;\nimpl From<crate::a::x::A> for C {}"),
    ];
    let found = rings("mod a { pub mod x; } mod b; mod c;", &files, "");
    assert_eq!(found.len(), 1, "{found:#?}");
    let expected = "c/src/c.rs:2: a ring: uses `A` of c/src/a/x.rs, which uses `b` of c/src/b.rs, \
                    which uses `C` of this file; ";
    assert!(found[0].starts_with(expected), "{found:#?}");
}

#[test]
fn a_parent_that_lists_its_children_and_hands_them_on_is_in_no_ring() {
    let files = [
        ("a.rs", "mod one; mod two; pub use one::One; pub(crate) use self::two::Two;"),
        ("a/one.rs", "mod deep; use super::Two;\npub struct One(Two);"),
        ("a/one/deep.rs", "use super::super::Two;"),
        ("a/two.rs", "pub struct Two;"),
    ];
    assert_eq!(rings("mod a; pub use a::One;", &files, ""), [""; 0]);
}

#[test]
fn what_is_handed_on_and_used_in_the_same_file_counts() {
    let files = [
        ("a.rs", "mod one; pub use one::One; pub struct Whole(One);"),
        ("a/one.rs", "mod deep; pub struct One;\nfn f(whole: &super::Whole) {}"),
        ("a/one/deep.rs", ""),
    ];
    let found = rings("mod a;", &files, "");
    assert!(found.len() == 1 && found[0].contains("`One`") && found[0].contains("`Whole`"), "{found:#?}");
}

#[test]
fn a_name_is_followed_through_renames_globs_and_module_aliases() {
    let files = [
        ("a/x.rs", "use crate::prelude::*;\nuse crate::b as other;\npub fn a() { Named; other::make(); }"),
        ("b.rs", "pub struct B;\npub fn make() { crate::a::x::a() }"),
        ("prelude.rs", "pub use crate::b::B as Named;"),
    ];
    let found = rings("mod a { pub mod x; } mod b; mod prelude;", &files, "");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].starts_with(
            "c/src/b.rs:2: a ring: uses `a` of c/src/a/x.rs, which uses `B`, `make` of this file"
        )
    );
}

#[test]
fn a_type_that_a_macro_makes_is_defined_where_the_macro_is() {
    let files = [
        (
            "a/x.rs",
            "use crate::b::B;\nmacro_rules! table { ($($name:ident)*) => { pub enum Made { $($name),* } } }\ntable!(One);",
        ),
        ("b.rs", "pub struct B;\nfn f(made: super::a::x::Made) {}"),
    ];
    let found = rings("mod a { pub mod x; } mod b;", &files, "");
    assert!(found.len() == 1 && found[0].contains("`Made` of c/src/a/x.rs"), "{found:#?}");
}

#[test]
fn names_that_lead_in_a_circle_or_nowhere_come_to_an_end() {
    let files = [
        ("a/x.rs", "pub use crate::b::*;\nuse a::a;\nfn f() { a::a::a(); nowhere(); }"),
        ("b.rs", "pub use crate::a::x::*;"),
    ];
    assert_eq!(rings("mod a { pub mod x; } mod b;", &files, ""), [""; 0]);
}

#[test]
fn tests_and_methods_close_no_ring() {
    let files = [
        ("a/x.rs", "use crate::b::B;\npub struct A;\nfn f(b: B) { b.method() }"),
        (
            "b.rs",
            "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::x::A; }\n#[cfg(test)] fn t(a: crate::a::x::A) {}",
        ),
    ];
    assert_eq!(rings("mod a { pub mod x; } mod b;", &files, ""), [""; 0]);
}

#[test]
fn modules_in_one_file_are_one_file() {
    assert_eq!(
        rings("mod a { use super::b::B; pub struct A; } mod b { use super::a::A; pub struct B; }", &[], ""),
        [""; 0]
    );
}

#[test]
fn an_exception_takes_one_use_out_and_is_needed() {
    let one = "[rings]\n\"c/src/a/x.rs -> c/src/b/y.rs\" = \"a reason\"\n";
    assert_eq!(rings(FOLDERS, &TWO, one), [""; 0]);
    let unneeded =
        ["xtask/tidy.toml:2: nothing needs the exception `c/src/a/x.rs -> c/src/b/y.rs` any more; remove it"];
    let open = [TWO[0], ("b/y.rs", "pub struct B;")];
    assert_eq!(rings(FOLDERS, &open, one), unneeded);
}

#[test]
fn an_exception_within_a_folder_is_needed_if_the_ring_leaves_it() {
    let one = "[rings]\n\"c/src/a/z.rs -> c/src/a/x.rs\" = \"a reason\"\n";
    let (x, z) =
        (("a/x.rs", "use crate::b::y::B; pub struct X;"), ("a/z.rs", "use super::x::X; pub struct Z;"));
    let lib = "mod a { pub mod x; pub mod z; } mod b { pub mod y; }";
    assert_eq!(rings(lib, &[x, z, ("b/y.rs", "use crate::a::z::Z; pub struct B;")], one), [""; 0]);
    let inside = ("a/x.rs", "use super::z::Z; pub struct X;");
    assert_eq!(rings(lib, &[inside, z, ("b/y.rs", "pub struct B;")], one).len(), 1);
}
