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
