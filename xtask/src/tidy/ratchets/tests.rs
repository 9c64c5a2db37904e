use super::*;
use crate::tidy::found;

/// The faults that speak of a number, with this record of it.
fn of(name: &str, record: &str, files: &[(&str, &str)]) -> Vec<String> {
    let record = format!("# Numbers.\n{record}\n");
    let files = [&[(FILE, &*record)], files].concat();
    let told = format!("`{name}`");
    found("ratchets", &files, "").into_iter().filter(|fault| fault.contains(&told)).collect()
}

#[test]
fn a_number_may_neither_rise_nor_fall_unseen() {
    let page = [("docs/a.md", "# One page\n\n* two — three `four-five` | |\n")];
    assert_eq!(of("markdown-words", "markdown-words = 5", &page), [""; 0]);
    let more = "xtask/ratchets.toml:2: `markdown-words` is 5, 2 more than the 3 of its record; remove as much elsewhere, \
                or write `markdown-words = 5  # and the reason`";
    assert_eq!(of("markdown-words", "markdown-words = 3  # the page of b", &page), [more]);
    let less = "xtask/ratchets.toml:2: `markdown-words` is 5, 4 less than the 9 of its record; keep the gain: \
                `cargo xtask tidy --record` writes the lower number";
    assert_eq!(of("markdown-words", "markdown-words = 9", &page), [less]);
}

#[test]
fn a_number_has_a_record_and_a_record_a_number() {
    let none =
        "xtask/ratchets.toml:1: `source-files` has no record; it is 0: add the line `source-files = 0`";
    assert_eq!(of("source-files", "", &[]), [none]);
    let nothing = of("public-items.gone", "public-items.gone = 7", &[]);
    assert!(nothing.len() == 1 && nothing[0].contains(":2: nothing counts"), "{nothing:?}");
    let moved = of("serve-options", "serve-options = 7", &[("crates/tidegate-cli/src/args.rs", "")]);
    assert!(
        moved.len() == 1 && moved[0].contains(":2: nothing counts"),
        "a count that lost its way is no gain"
    );
    assert_eq!(found("ratchets", &[(FILE, "words")], "").len(), 1);
}

#[test]
fn libraries_count_if_they_are_published() {
    let library = |name: &str, more: &str| format!("[package]\nname = \"{name}\"\n{more}");
    let (a, b, c) = (library("a", ""), library("b", "publish = false"), library("c", ""));
    let source = "pub struct A; impl A { pub fn a(&self) {} pub async fn a_async(&self) {} }";
    let files = [
        ("crates/a/Cargo.toml", &*a),
        ("crates/a/src/lib.rs", source),
        ("crates/b/Cargo.toml", &*b),
        ("crates/b/src/lib.rs", source),
        ("crates/c/Cargo.toml", &*c),
        ("crates/c/src/main.rs", "fn main() {}"),
    ];
    let counted = counted(&Tree::made(&files));
    let public: Vec<_> = counted.iter().filter(|(name, _)| name.starts_with("public")).collect();
    assert_eq!(public, [(&"public-items.a".to_owned(), &3)]);
    assert_eq!((counted["async-twins"], counted["source-files"]), (1, 3));
}

#[test]
fn packages_and_test_programs_are_counted() {
    let files = [
        ("Cargo.lock", "version = 4\n[[package]]\nname = \"a\"\n\n[[package]]\nname = \"b\"\n"),
        ("fuzz/Cargo.lock", "[[package]]\n"),
        (
            "crates/a/Cargo.toml",
            "[package]\nname = \"a\"\nautotests = false\n[[test]]\npath = \"tests/main.rs\"",
        ),
        ("crates/a/tests/main.rs", "mod one;"),
        ("crates/a/tests/one.rs", ""),
        ("xtask/Cargo.toml", "[package]\nname = \"xtask\""),
        ("xtask/tests/one.rs", ""),
        ("xtask/tests/two.rs", ""),
    ];
    let counted = counted(&Tree::made(&files));
    assert_eq!((counted["locked-packages"], counted["test-programs"]), (2, 3));
}

#[test]
fn keys_are_counted_by_name_and_those_of_a_limit_through_its_constants() {
    let limit = r#"
use super::breaker::{self, PROBES};
const OVERRIDE: Table = Table { name: "override", keys: &[key("key", Kind::Text, None, "")], required: &[] };
const PLAIN: &[Key] = &[
    key("rate", Kind::Rate, None, ""),
    key("overrides", Kind::List(&Kind::Table(&OVERRIDE)), None, ""),
    key("adaptive", Kind::Elsewhere("as law"), None, ""),
    key("later", Kind::Unavailable, None, ""),
];
const PARTS: [&[Key]; 3] = [PLAIN, &breaker::KEYS, &PROBES];
const LIMIT_KEYS: &[Key] = &{ let mut keys = [PLAIN[0]; 3]; keys[0] = PARTS[0][0]; keys };
const LIMIT: Table = Table { name: "limit", keys: LIMIT_KEYS, required: &[] };
"#;
    let files = [
        ("crates/a/src/keys/limit.rs", limit),
        ("crates/a/src/keys/adaptive.rs", "const KEYS: &[Key] = &[key(\"law\", Kind::Text, None, \"\")];"),
        (
            "crates/a/src/keys/breaker.rs",
            "const KEYS: [Key; 2] = [key(\"window\", Kind::Span, None, \"\"), key(\"rate\", Kind::Rate, None, \"\")];\n\
             const PROBES: [Key; 1] = [key(\"probes\", Kind::Whole(1, 2), None, \"\")];",
        ),
    ];
    let counted = counted(&Tree::made(&files));
    // rate, overrides, window, probes; and besides these key and law.
    assert_eq!((counted["limit-keys"], counted["policy-keys"]), (4, 6));
}

#[test]
fn options_are_counted_with_those_that_are_flattened_into_them() {
    let args = "struct Cli { #[arg(long, global = true)] color: bool }\n\
                struct Serve { #[command(flatten)] tls: super::Tls, #[arg(long)] http: u8, #[arg(value_name = \"FILE\")] file: u8 }\n\
                struct Init { #[arg(long)] force: bool }";
    let more = "struct Tls { #[arg(long = \"cert\")] tls_cert: u8, #[arg(short, long)] key: u8, #[command(flatten)] more: More }\n\
                struct More { #[arg(long)] more: u8 }";
    let files = [("crates/tidegate-cli/src/args.rs", args), ("crates/tidegate-cli/src/args/tls.rs", more)];
    assert_eq!(counted(&Tree::made(&files))["serve-options"], 4);
}

#[test]
fn recording_lowers_what_fell_and_raises_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("xtask")).unwrap();
    let text = "# Numbers.\nmarkdown-words = 9  # a page\nsource-files = 0\n";
    let files =
        [(FILE, text), ("a.md", "one two"), ("crates/a/src/lib.rs", "fn a() {}"), ("crates/a/src/b.rs", "")];
    record(&Tree::made(&files), folder.path()).unwrap();
    let written = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
    assert_eq!(written, "# Numbers.\nmarkdown-words = 2  # a page\nsource-files = 0\n");
}

const TEXT: &str = "# Numbers.\n\nkeys.of-7 = 7  # 7 because of the tenant\nwords = 12\n";

#[test]
fn only_what_fell_is_written_and_comments_stay() {
    let record = Record::read(TEXT).unwrap();
    let counted = [("keys.of-7", 6), ("words", 13), ("new", 1)];
    let counted = counted.map(|(name, count)| (name.to_owned(), count)).into_iter().collect();
    let (text, fell) = record.lowered(&counted);
    assert_eq!(text, TEXT.replace("= 7 ", "= 6 "));
    assert_eq!(fell, [("keys.of-7", 7, 6)]);
}

#[test]
fn a_line_that_is_no_number_is_named() {
    for (text, line, what) in
        [("a = 1\nb", 2, "`b`"), ("a = 1_000", 1, "`1_000`"), ("a = 1\na = 1", 2, "twice"), ("a =", 1, "``")]
    {
        let (at, error) = Record::read(text).unwrap_err();
        assert!(at == line && error.contains(what), "{text}: {at} {error}");
    }
}
