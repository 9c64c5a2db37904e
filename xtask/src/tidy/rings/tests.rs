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
    ("a.rs", "use crate::b::B;\npub struct A(B);"),
    ("b.rs", "pub struct B;\nimpl B { fn b(&self, a: &super::a::A) {} }"),
];

#[test]
fn two_files_that_use_each_other_are_a_ring() {
    let found = rings("mod a; mod b;", &TWO, "");
    let expected = "c/src/b.rs:2: a ring: uses `A` of c/src/a.rs, which uses `B` of this file; \
                    move what both need to a file that uses neither, or make them one";
    assert_eq!(found, [expected]);
}

#[test]
fn a_ring_goes_through_others_and_inline_paths_and_macros() {
    let files = [
        ("a.rs", "pub struct A;\nfn f() { vec![crate::b::b()]; }"),
        ("b.rs", "use super::c::C;\npub fn b() -> C { C }"),
        ("c.rs", "pub struct C;\nimpl From<crate::a::A> for C {}"),
    ];
    let found = rings("mod a; mod b; mod c;", &files, "");
    assert_eq!(found.len(), 1, "{found:#?}");
    let expected = "c/src/c.rs:2: a ring: uses `A` of c/src/a.rs, which uses `b` of c/src/b.rs, \
                    which uses `C` of this file; ";
    assert!(found[0].starts_with(expected), "{found:#?}");
}

#[test]
fn a_parent_that_lists_its_children_and_hands_them_on_is_in_no_ring() {
    let files = [
        ("a.rs", "mod one; mod two; pub use one::One; pub(crate) use self::two::Two;"),
        ("a/one.rs", "use super::Two;\npub struct One(Two);"),
        ("a/two.rs", "pub struct Two;"),
    ];
    assert_eq!(rings("mod a; pub use a::One;", &files, ""), [""; 0]);
}

#[test]
fn what_is_handed_on_and_used_in_the_same_file_counts() {
    let files = [
        ("a.rs", "mod one; pub use one::One; pub struct Whole(One);"),
        ("a/one.rs", "pub struct One;\nfn f(whole: &super::Whole) {}"),
    ];
    let found = rings("mod a;", &files, "");
    assert!(found.len() == 1 && found[0].contains("`One`") && found[0].contains("`Whole`"), "{found:#?}");
}

#[test]
fn a_name_is_followed_through_renames_globs_and_module_aliases() {
    let files = [
        ("a.rs", "use crate::prelude::*;\nuse crate::b as other;\npub fn a() { Named; other::make(); }"),
        ("b.rs", "pub struct B;\npub fn make() { crate::a::a() }"),
        ("prelude.rs", "pub use crate::b::B as Named;"),
    ];
    let found = rings("mod a; mod b; mod prelude;", &files, "");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0]
            .starts_with("c/src/b.rs:2: a ring: uses `a` of c/src/a.rs, which uses `B`, `make` of this file")
    );
}

#[test]
fn a_type_that_a_macro_makes_is_defined_where_the_macro_is() {
    let files = [
        (
            "a.rs",
            "use crate::b::B;\nmacro_rules! table { ($($name:ident)*) => { pub enum Made { $($name),* } } }\ntable!(One);",
        ),
        ("b.rs", "pub struct B;\nfn f(made: super::a::Made) {}"),
    ];
    let found = rings("mod a; mod b;", &files, "");
    assert!(found.len() == 1 && found[0].contains("`Made` of c/src/a.rs"), "{found:#?}");
}

#[test]
fn names_that_lead_in_a_circle_or_nowhere_come_to_an_end() {
    let files = [
        ("a.rs", "pub use crate::b::*;\nuse a::a;\nfn f() { a::a::a(); nowhere(); }"),
        ("b.rs", "pub use crate::a::*;"),
    ];
    assert_eq!(rings("mod a; mod b;", &files, ""), [""; 0]);
}

#[test]
fn tests_and_methods_close_no_ring() {
    let files = [
        ("a.rs", "use crate::b::B;\npub struct A;\nfn f(b: B) { b.method() }"),
        (
            "b.rs",
            "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }\n#[cfg(test)] fn t(a: crate::a::A) {}",
        ),
    ];
    assert_eq!(rings("mod a; mod b;", &files, ""), [""; 0]);
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
    let one = "[rings]\n\"c/src/a.rs -> c/src/b.rs\" = \"a reason\"\n";
    assert_eq!(rings("mod a; mod b;", &TWO, one), [""; 0]);
    let open = [("a.rs", "use crate::b::B;"), ("b.rs", "pub struct B;")];
    let found = rings("mod a; mod b;", &open, one);
    assert_eq!(
        found,
        ["xtask/tidy.toml:2: nothing needs the exception `c/src/a.rs -> c/src/b.rs` any more; remove it"]
    );
}
