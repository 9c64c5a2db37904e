//! The first file somebody has.

use crate::Desk;

/// A file of `init` said `trusted_proxies: []`: no warning came, and behind nginx all callers shared one key.
#[test]
fn every_preset_passes_its_own_check_and_asks_for_proxies() {
    let desk = Desk::new();
    for (preset, warnings) in [("api", 1), ("login", 1), ("outbound", 0), ("all", 2)] {
        for file in [format!("{preset}.yaml"), format!("{preset}.toml")] {
            let wrote = desk.run(&["init", "--preset", preset, &file]).code(0);
            assert!(wrote.err.contains(&format!("wrote {file}")), "{wrote:?}");
            let checked = desk.run(&["config", "check", &file]).code(0);
            assert_eq!(checked.out.matches("trusted_proxies is empty").count(), warnings, "{checked:?}");
            assert_eq!(checked.out.matches("warn ").count(), warnings, "{checked:?}");
        }
    }
}

/// `init x.toml` wrote YAML, which no verb could read under that name.
#[test]
fn a_name_that_ends_in_toml_is_written_as_toml() {
    let desk = Desk::new();
    for preset in ["api", "login", "outbound", "all"] {
        let shown = |file: &str| {
            desk.run(&["init", "--force", "--preset", preset, file]).code(0);
            desk.run(&["config", "show", "-c", file, "-q"]).code(0).out
        };
        assert_eq!(shown("p.toml"), shown("p.yaml"), "{preset}");
        assert!(desk.read("p.toml").contains("\n[server]\n"));
    }
}

#[test]
fn the_usual_name_is_found_by_the_verbs_that_follow() {
    let desk = Desk::new();
    desk.run(&["init"]).code(0);
    desk.run(&["config", "check"]).code(0);
    desk.run(&["serve", "--check"]).code(0);
}

#[test]
fn a_file_that_is_there_is_kept() {
    let desk = Desk::new();
    desk.write("tidegate.yaml", "# years of work\n");
    let refused = desk.run(&["init"]).code(2);
    assert!(refused.err.contains("tidegate.yaml is already there") && refused.err.contains("--force"));
    assert_eq!(desk.read("tidegate.yaml"), "# years of work\n");
    desk.run(&["init", "--force"]).code(0);
    desk.run(&["config", "check"]).code(0);
}

#[test]
fn a_shorter_file_leaves_nothing_of_a_longer_one() {
    let desk = Desk::new();
    desk.write("tidegate.yaml", "#".repeat(100_000));
    desk.run(&["init", "--force"]).code(0);
    assert_eq!(desk.read("tidegate.yaml"), desk.run(&["init", "-"]).out);
}

#[test]
fn a_dash_prints_and_writes_nothing() {
    let desk = Desk::new();
    let printed = desk.run(&["init", "-", "--preset", "login"]).code(0);
    assert!(printed.out.contains("version: 1"), "{printed:?}");
    assert!(!desk.path("-").exists() && !desk.path("tidegate.yaml").exists());
    let refused = desk.run(&["init", "no/such/folder/x.yaml"]).code(1);
    assert!(refused.err.contains("no/such/folder/x.yaml"), "{refused:?}");
}
