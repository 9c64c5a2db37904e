//! Checking, showing and tidying policy files.

use crate::verbs::Desk;

const ONE: &str = "version: 1\npolicies:\n  - name: all\n    limit: { rate: 10/min, burst: 3 }\n";
const UNTIDY: &str = "version: 1   \r\n\n\n\n# why ten\npolicies:\n  - name: all   # everybody\n    limit: { rate: 10/min, burst: 3 }\n\n\n";
const TIDY: &str = "version: 1\n\n# why ten\npolicies:\n  - name: all   # everybody\n    limit: { rate: 10/min, burst: 3 }\n";

#[test]
fn every_mistake_is_told_to_programs_with_its_place() {
    let desk = Desk::new();
    let file = "version: 1\npolicies:\n  - name: a\n    limit: { algorithm: gcro, rate: 1/s, burst: 0 }\n";
    desk.write("bad.yaml", file);
    let found = desk.run(&["config", "check", "bad.yaml", "-o", "json"]).code(2).json();
    assert_eq!((&found["errors"], &found["warnings"]), (&2.into(), &0.into()));
    let problems = found["problems"].as_array().unwrap();
    let places: Vec<_> = problems.iter().map(|one| (one["line"].as_u64(), one["column"].as_u64())).collect();
    assert_eq!(places, [(Some(4), Some(25)), (Some(4), Some(49))]);
    assert!(problems.iter().all(|one| one["file"] == "bad.yaml" && one["severity"] == "error"));
    assert!(problems[0]["message"].as_str().unwrap().contains("did you mean \"gcra\"?"));
}

#[test]
fn a_warning_is_no_failure() {
    let desk = Desk::new();
    let file = "version: 1\npolicies:\n  - name: a\n    by: [client.ip]\n    limit: { rate: 1/s }\n";
    desk.write("proxied.yaml", file);
    let checked = desk.run(&["config", "check", "proxied.yaml"]).code(0);
    assert!(
        checked.out.contains("proxied.yaml:4:5") && checked.out.contains("(0 errors, 1 warning)"),
        "{checked:?}"
    );
}

/// The server knows `in-flight`, from its tickets, so a policy may use it without a warning.
#[test]
#[cfg(target_os = "linux")]
fn a_policy_may_go_by_every_number_without_a_warning() {
    let desk = Desk::new();
    let policy = |number: usize, when: &str| {
        format!("  - name: p{number}\n    when: {when}\n    limit: {{ rate: 1/s }}\n")
    };
    let when =
        ["in-flight above 500", "rate above 1000/s", "latency above 200ms", "cpu above 80%", "load above 8"];
    let policies: String = when.iter().enumerate().map(|(number, when)| policy(number, when)).collect();
    desk.write("numbers.yaml", format!("version: 1\npolicies:\n{policies}"));
    assert_eq!(desk.run(&["config", "check", "numbers.yaml"]).code(0).out, "The file is fine\n");
}

#[test]
fn several_files_are_checked_and_the_worst_decides() {
    let desk = Desk::new();
    desk.write("good.yaml", ONE);
    desk.write("bad.yaml", "version: 1\npolicies: 3\n");
    assert_eq!(desk.run(&["config", "check", "good.yaml", "good.yaml"]).code(0).out, "The files are fine\n");
    let both = desk.run(&["config", "check", "good.yaml", "bad.yaml"]).code(2);
    assert!(both.out.contains("bad.yaml:2:") && !both.out.contains("good.yaml"), "{both:?}");
    let missing = desk.run(&["config", "check"]).code(2);
    assert!(missing.out.contains("tidegate.yaml  error  the file cannot be read"), "{missing:?}");
    let problem = &desk.run(&["config", "check", "-o", "json"]).code(2).json()["problems"][0];
    assert!(problem["line"].is_null() && problem["file"] == "tidegate.yaml", "{problem}");
}

/// A file of almost the usual name is not read unless it is named.
#[test]
fn a_file_that_is_probably_meant_is_named() {
    let desk = Desk::new();
    desk.write("tidegate.yml", ONE);
    let told = desk.run(&["config", "check"]).code(2);
    assert!(told.err.contains("did you mean tidegate config check tidegate.yml?"), "{told:?}");
    let asked = desk.run(&["explain", "--attr", "client.ip=192.0.2.1"]);
    assert!(asked.err.contains("tidegate.yml is not read; did you mean -c tidegate.yml?"), "{asked:?}");
    let named = desk.run(&["explain", "--server", "http://127.0.0.1:1"]).code(1);
    assert!(!named.err.contains("did you mean"), "{named:?}");
}

/// The operations manual uses `config check -c f`, as for every other verb; it must be accepted.
#[test]
fn the_file_to_check_may_be_named_as_for_the_other_verbs() {
    let desk = Desk::new();
    desk.write("good.yaml", ONE);
    desk.write("bad.yaml", "version: 1\npolicies: 3\n");
    desk.run(&["config", "check", "-c", "good.yaml"]).code(0);
    desk.run(&["config", "check", "-c", "bad.yaml"]).code(2);
}

#[test]
fn toml_is_read_by_its_name() {
    let desk = Desk::new();
    desk.write(
        "p.toml",
        "version = 1\n[[policies]]\nname = \"all\"\nlimit = { rate = \"10/min\", burst = 3 }\n",
    );
    desk.run(&["config", "check", "p.toml"]).code(0);
    let shown = desk.run(&["config", "show", "-c", "p.toml", "-o", "json"]).code(0).json();
    assert_eq!(shown["policies"][0]["limit"]["burst"], 3);
}

#[test]
fn what_is_shown_can_be_read_again() {
    let desk = Desk::new();
    desk.write("one.yaml", ONE);
    let shown = desk.run(&["config", "show", "-c", "one.yaml"]).code(0).out;
    assert!(shown.contains("algorithm: gcra") && shown.contains("burst: 3"), "{shown}");
    desk.write("shown.yaml", &shown);
    desk.run(&["config", "check", "shown.yaml"]).code(0);
    assert_eq!(desk.run(&["config", "show", "-c", "shown.yaml"]).code(0).out, shown);
    // Without a file, it shows what `serve` would run.
    assert!(desk.run(&["config", "show"]).code(0).out.contains("name: per-ip"));
}

#[test]
fn origins_name_the_line_or_the_default() {
    let desk = Desk::new();
    desk.write("one.yaml", ONE);
    let table = desk.run(&["config", "show", "--origin", "-c", "one.yaml"]).code(0).out;
    let line =
        |key: &str| table.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{table}"));
    assert!(line("policies.0.limit.burst").ends_with("one.yaml:4"), "{table}");
    assert!(line("policies.0.limit.algorithm").ends_with("default"), "{table}");
    let origins = desk.run(&["config", "show", "--origin", "-c", "one.yaml", "-o", "json"]).code(0).json();
    assert_eq!(origins["policies.0.name"], "one.yaml:3");
}

#[test]
fn the_schema_is_a_schema() {
    let schema = Desk::new().run(&["config", "schema"]).code(0).json();
    assert!(schema["$schema"].as_str().unwrap().contains("json-schema.org"));
    assert!(schema["properties"]["policies"].is_object());
}

#[test]
fn tidying_keeps_comments_and_says_when_there_is_something_to_do() {
    let desk = Desk::new();
    desk.write("p.yaml", UNTIDY);
    let told = desk.run(&["config", "fmt", "--check", "p.yaml"]).code(1);
    assert_eq!(told.out, "p.yaml is not tidy\n");
    assert_eq!(desk.read("p.yaml"), UNTIDY, "--check writes nothing");
    desk.run(&["config", "fmt", "p.yaml"]).code(0);
    assert_eq!(desk.read("p.yaml"), TIDY);
    desk.run(&["config", "fmt", "--check", "p.yaml"]).code(0);
    let left: Vec<_> = desk.path("").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["p.yaml"], "nothing is left beside it");
}

/// Empty lines inside a text block are part of the text.
#[test]
fn tidying_that_would_change_a_value_is_refused() {
    let desk = Desk::new();
    let file = "version: 1\npolicies:\n  - name: a\n    cost: |\n      int(x)\n\n\n      + 1\n    limit: { rate: 5/s }\n";
    desk.write("p.yaml", file);
    desk.run(&["config", "check", "p.yaml"]).code(0);
    let refused = desk.run(&["config", "fmt", "p.yaml"]).code(2);
    assert!(refused.err.contains("tidying would change what it says"), "{refused:?}");
    assert_eq!(desk.read("p.yaml"), file);
}

#[test]
fn a_file_that_cannot_be_read_is_not_tidied() {
    let desk = Desk::new();
    desk.write("bad.yaml", "version: 1   \npolicies: 3\n");
    desk.run(&["config", "fmt", "bad.yaml"]).code(2);
    assert_eq!(desk.read("bad.yaml"), "version: 1   \npolicies: 3\n");
    assert!(desk.run(&["config", "fmt", "gone.yaml"]).code(1).err.contains("gone.yaml"));
}
