//! Rule: the manual names every flag, verb and environment variable, and none that does not exist.
//!
//! Flags and verbs are read from clap's definitions: fields with `#[arg(..)]`, and enums that derive `Subcommand`.
//! Variables are the string literals `"TIDEGATE_.."` in the sources of the crates.

use std::collections::{BTreeMap, BTreeSet};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Field, ItemEnum, LitStr, Meta, Token};

use super::code::literal;
use super::fault::{Allowed, Fault};
use super::markdown::{code, is_page, words};
use super::tree::Tree;

const SOURCES: &str = "crates/tidegate-cli/src/";
const PAGE: &str = "docs/command-line.md";
const VARIABLE: &str = "TIDEGATE_";

/// The names that clap adds by itself.
const ADDED: [&str; 3] = ["--help", "--version", "help"];

/// An exception is named by a flag of another program (`--release`), or by a variable that users need not know.
pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut defined = Defined::default();
    for path in tree.rust().filter(|path| path.starts_with(SOURCES)) {
        defined.path = path.to_owned();
        tree.items(path).iter().for_each(|item| defined.visit_item(item));
    }
    let variables = variables(tree);
    let told = Told::of(tree);
    let mut faults = Vec::new();
    let mut missing = |names: &Places, kind: &str, told: &Places| {
        for (name, (path, line)) in names.iter().filter(|(name, _)| !told.contains_key(*name)) {
            if !allowed.allows(name) {
                let what = format!("{kind} `{name}` is not on {PAGE}; say there what it does");
                faults.push(Fault::new(path.clone(), *line, what));
            }
        }
    };
    missing(&defined.flags, "flag", &told.flags);
    missing(&defined.verbs, "verb", &told.words);
    missing(&variables, "variable", &told.variables);
    let mut invented = |names: &Places, kind: &str, known: &Places| {
        for (name, (path, line)) in names.iter().filter(|(name, _)| !known.contains_key(*name)) {
            if !ADDED.contains(&name.as_str()) && !allowed.allows(name) {
                let what = format!("tidegate has no {kind} `{name}`; take it out or correct it");
                faults.push(Fault::new(path.clone(), *line, what));
            }
        }
    };
    invented(&told.flags_anywhere, "flag", &defined.flags);
    invented(&told.verbs_anywhere, "verb", &defined.verbs);
    invented(&told.variables_anywhere, "variable", &variables);
    faults
}

type Places = BTreeMap<String, (String, usize)>;

#[derive(Debug, Default)]
struct Defined {
    path: String,
    flags: Places,
    verbs: Places,
}

impl<'ast> Visit<'ast> for Defined {
    fn visit_field(&mut self, field: &'ast Field) {
        let line = field.ident.as_ref().map_or(0, |name| name.span().start().line);
        self.flags.extend(flag(field).map(|flag| (flag, (self.path.clone(), line))));
        visit::visit_field(self, field);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        let derives =
            item.attrs.iter().filter(|attribute| attribute.path().is_ident("derive")).flat_map(parts);
        if derives
            .into_iter()
            .any(|part| part.path().segments.last().is_some_and(|last| last.ident == "Subcommand"))
        {
            for variant in &item.variants {
                let command = variant.attrs.iter().filter(|attribute| attribute.path().is_ident("command"));
                let renamed = command.flat_map(parts).find(|part| part.path().is_ident("name"));
                let name =
                    renamed.as_ref().and_then(value).unwrap_or_else(|| kebab(&variant.ident.to_string()));
                self.verbs.insert(name, (self.path.clone(), variant.ident.span().start().line));
            }
        }
        visit::visit_item_enum(self, item);
    }
}

/// Returns the flag that a field of clap's defines, as `--config`.
pub(crate) fn flag(field: &Field) -> Option<String> {
    let long = attribute_parts(field, "arg").into_iter().find(|part| part.path().is_ident("long"))?;
    let name = value(&long).or_else(|| Some(kebab(&field.ident.as_ref()?.to_string())))?;
    Some(format!("--{name}"))
}

pub(crate) fn flattened(field: &Field) -> bool {
    attribute_parts(field, "command").iter().any(|part| part.path().is_ident("flatten"))
}

fn attribute_parts(field: &Field, name: &str) -> Vec<Meta> {
    field.attrs.iter().filter(|attribute| attribute.path().is_ident(name)).flat_map(parts).collect()
}

fn parts(attribute: &Attribute) -> Vec<Meta> {
    let parts = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    parts.map(|parts| parts.into_iter().collect()).unwrap_or_default()
}

fn value(part: &Meta) -> Option<String> {
    match part {
        Meta::NameValue(pair) => literal(&pair.value).map(LitStr::value),
        _ => None,
    }
}

/// Converts a name as clap does: `no_watch` and `NoWatch` become `no-watch`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !kebab.is_empty() || letter == '_' {
            kebab.push('-');
        }
        kebab.extend(letter.to_lowercase().filter(|letter| *letter != '_'));
    }
    kebab
}

fn variables(tree: &Tree) -> Places {
    let mut variables = Places::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/"))
    {
        for (index, line) in text.lines().enumerate().filter(|_| path.ends_with(".rs")) {
            let quoted = line.split('"').filter(|piece| is_variable(piece));
            for name in quoted {
                variables.entry(name.to_owned()).or_insert((path.to_owned(), index + 1));
            }
        }
    }
    variables
}

fn is_variable(word: &str) -> bool {
    let name = word.strip_prefix(VARIABLE).unwrap_or_default();
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
}

#[derive(Debug, Default)]
struct Told {
    /// On the page about the command line.
    flags: Places,
    words: Places,
    variables: Places,
    /// On any page.
    flags_anywhere: Places,
    verbs_anywhere: Places,
    variables_anywhere: Places,
}

impl Told {
    fn of(tree: &Tree) -> Self {
        let mut told = Self::default();
        for (path, text) in tree.texts().filter(|(path, _)| is_page(path)) {
            for (line, piece) in code(text) {
                let here = || (path.to_owned(), line);
                let flags = words(piece, &['-']).filter(|word| is_flag(word)).map(str::to_owned);
                let variables = words(piece, &['_']).filter(|word| is_variable(word)).map(str::to_owned);
                let (flags, variables): (BTreeSet<_>, BTreeSet<_>) = (flags.collect(), variables.collect());
                if path == PAGE {
                    told.flags.extend(flags.iter().map(|flag| (flag.clone(), here())));
                    told.variables.extend(variables.iter().map(|name| (name.clone(), here())));
                    told.words.extend(words(piece, &['-']).map(|word| (word.to_owned(), here())));
                }
                flags.into_iter().for_each(|flag| _ = told.flags_anywhere.entry(flag).or_insert_with(here));
                variables
                    .into_iter()
                    .for_each(|name| _ = told.variables_anywhere.entry(name).or_insert_with(here));
                verb(piece)
                    .into_iter()
                    .for_each(|verb| _ = told.verbs_anywhere.entry(verb).or_insert_with(here));
            }
        }
        told
    }
}

fn is_flag(word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|name| name.starts_with(|letter: char| letter.is_ascii_lowercase()))
}

/// Returns the verb of a command in a page: the word after `tidegate` in a code span, or behind a prompt.
fn verb(piece: &str) -> Option<String> {
    // The program's output begins with its name too; in a code block, a command follows `$`.
    let command = piece.trim_start().strip_prefix("$ ").unwrap_or(piece);
    let verb = command.strip_prefix("tidegate ")?.split([' ', '`']).next()?;
    let prompted = piece.trim_start().starts_with("$ ");
    let printed = !prompted && verb.ends_with('s') && command.split(' ').count() > 2;
    let word = !verb.is_empty() && verb.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
    (word && !verb.starts_with('-') && !printed).then(|| verb.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    const ARGS: &str = r#"
#[derive(Parser)]
struct Cli { #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)] output: Output }
#[derive(Subcommand)]
enum Verb { Serve(Serve), #[command(name = "dry-run")] Dry }
struct Serve {
    #[arg(long = "config", short = 'c', env = "TIDEGATE_CONFIG", requires("x"))] file: PathBuf,
    #[arg(long)] no_watch: bool,
    #[arg(value_name = "FILE")] plain: PathBuf,
}
"#;

    const PAGE: &str =
        "`tidegate serve`, `dry-run`, `-c`, `--config FILE`, `--output`, `--no-watch`; `TIDEGATE_CONFIG`\n";

    fn check(args: &str, page: &str, exceptions: &str) -> Vec<String> {
        let files = [("crates/tidegate-cli/src/args.rs", args), ("docs/command-line.md", page)];
        found("command-line", &files, exceptions)
    }

    #[test]
    fn what_the_manual_names_is_known_and_the_other_way_round() {
        assert_eq!(check(ARGS, PAGE, ""), [""; 0]);
    }

    #[test]
    fn each_flag_verb_and_variable_has_to_be_on_the_page() {
        for (name, kind, line) in [
            ("--config", "flag", 7),
            ("--no-watch", "flag", 8),
            ("--output", "flag", 3),
            ("serve", "verb", 5),
            ("dry-run", "verb", 5),
            ("TIDEGATE_CONFIG", "variable", 7),
        ] {
            let found = check(ARGS, &PAGE.replace(name, "gone"), "");
            let expected = format!(
                "crates/tidegate-cli/src/args.rs:{line}: {kind} `{name}` is not on docs/command-line.md; say there what it does"
            );
            assert!(found.contains(&expected), "{name}: {found:#?}");
        }
    }

    #[test]
    fn what_does_not_exist_is_found_on_any_page() {
        let page = format!(
            "{PAGE}\n```console\n$ tidegate watch --fast\ntidegate listens on 1\n```\n`TIDEGATE_FAST`, --prose\n"
        );
        let found = check(ARGS, &page, "");
        let expected = [
            "docs/command-line.md:4: tidegate has no flag `--fast`; take it out or correct it",
            "docs/command-line.md:4: tidegate has no verb `watch`; take it out or correct it",
            "docs/command-line.md:7: tidegate has no variable `TIDEGATE_FAST`; take it out or correct it",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_flag_of_another_program_is_an_exception() {
        let page = format!("{PAGE} `cargo run --release`");
        assert_eq!(check(ARGS, &page, "").len(), 1);
        assert_eq!(check(ARGS, &page, "[command-line]\n\"--release\" = \"cargo's\"\n"), [""; 0]);
    }
}
