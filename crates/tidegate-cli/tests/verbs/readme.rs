//! Runs the commands in the README and in the notes on the sample logs, unchanged.

use crate::verbs::{Desk, repository};

/// Returns every line of a page that is a `tidegate` command, with or without `$ `.
fn commands(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository(page)).unwrap();
    let lines = text.lines().map(|line| line.trim().trim_start_matches("$ "));
    lines.filter(|line| line.starts_with("tidegate ")).map(str::to_owned).collect()
}

/// Splits a command line into words; the pages quote with `'` only.
pub(crate) fn words(command: &str) -> Vec<String> {
    let pieces = command.split('\'').enumerate();
    pieces
        .flat_map(|(at, piece)| {
            let quoted = (at % 2 == 1).then(|| piece.to_owned());
            let bare = (at % 2 == 0).then(|| piece.split_whitespace().map(str::to_owned));
            quoted.into_iter().chain(bare.into_iter().flatten())
        })
        .collect()
}

/// A folder with the sample logs under the names that the pages use.
fn with_samples() -> Desk {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("examples")).unwrap();
    for log in ["access.log", "llm-calls.csv"] {
        std::fs::copy(repository("examples").join(log), desk.path("examples").join(log)).unwrap();
    }
    desk
}

/// Commands must not select requests that the sample does not have.
#[test]
fn what_the_manual_does_with_the_sample_logs_works() {
    let desk = with_samples();
    let mut ran = 0;
    for command in commands("docs/command-line.md") {
        let words = words(&command);
        let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        let of_samples = arguments.iter().any(|word| word.starts_with("examples/"));
        if !of_samples || arguments.contains(&"--config") {
            continue;
        }
        let done = desk.run(&arguments);
        // Exit code 3: a threshold is exceeded, as the page shows.
        let fails = arguments.contains(&"--fail-if") && done.code == 3;
        assert!(done.code == 0 || fails, "{command}: {done:?}");
        ran += 1;
    }
    assert!(ran >= 6, "{ran} commands");
}

#[test]
fn the_commands_of_the_pages_work() {
    let mut verbs = Vec::new();
    for page in ["README.md", "examples/README.md"] {
        let desk = with_samples();
        for command in commands(page) {
            let words = words(&command);
            let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
            // A server runs until it is stopped; other tests cover it.
            if arguments[0] == "serve" {
                continue;
            }
            let ran = desk.run(&arguments);
            assert_eq!(ran.code, 0, "{page}: {command}: {ran:?}");
            assert!(!ran.out.is_empty(), "{page}: {command}");
            verbs.push(arguments[0].to_owned());
        }
    }
    for verb in ["replay", "suggest"] {
        assert!(verbs.iter().any(|shown| shown == verb), "no {verb} in {verbs:?}");
    }
}

/// The README must stay short: what it is, three doors, one picture, a table of wishes, what it costs, and where to
/// go on.
#[test]
fn the_readme_stays_a_screen_of_a_browser() {
    let readme = std::fs::read_to_string(repository("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= 75, "{lines} lines: move what a reader does not need first into docs/");
}

/// The documentation site builds without features unless told otherwise, and shows the feature of each item only
/// where the crate says so.
#[test]
fn every_feature_is_shown_on_the_site_of_the_documentation() {
    let mut seen = 0;
    for folder in std::fs::read_dir(repository("crates")).unwrap() {
        let folder = folder.unwrap().path();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let Ok(library) = std::fs::read_to_string(folder.join("src/lib.rs")) else { continue };
        let is_shown = !manifest.contains("\n[lib]\ndoc = false\n");
        if manifest.contains("\n[features]\n") && is_shown {
            let all =
                "[package.metadata.docs.rs]\nall-features = true\nrustdoc-args = [\"--cfg\", \"docsrs\"]\n";
            assert!(manifest.contains(all), "{}", folder.display());
            let marks = "#![cfg_attr(docsrs, feature(doc_cfg))]\n";
            assert!(library.contains(marks), "{}: no `{marks}`", folder.display());
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen} crates");
}
