//! The policy files that `init` writes.

use crate::verbs::Desk;

/// A file of `init` must not set `trusted_proxies: []`: no warning would come, and behind nginx all callers would
/// share one key.
#[test]
fn every_preset_passes_its_own_check_and_asks_for_proxies() {
    let desk = Desk::new();
    for (preset, warnings) in [("api", 1), ("login", 1), ("outbound", 0), ("all", 2)] {
        for file in [format!("{preset}.yaml"), format!("{preset}.toml")] {
            let wrote = desk.run(&["init", "--preset", preset, &file]).code(0);
            assert!(wrote.err.contains(&format!("wrote {file}")), "{wrote:?}");
            let checked = desk.run(&["config", "check", &file]).code(0);
            assert_eq!(
                checked.out.matches("client_ip.trusted_proxies is empty").count(),
                warnings,
                "{checked:?}"
            );
            assert_eq!(checked.out.matches("warn ").count(), warnings, "{checked:?}");
        }
    }
}

/// `init x.toml` must write TOML: no verb could read YAML under that name.
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

const TREE: &str = "domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

const LIMITS: &str =
    "- { namespace: other, max_value: 1, seconds: 10, variables: [\"descriptors[0].user\"] }\n";

#[test]
fn files_of_other_rate_limiters_are_written_as_policies() {
    let desk = Desk::new();
    desk.write("theirs.yaml", TREE);
    desk.write("limits.yaml", LIMITS);
    let arguments = ["init", "--from-envoy", "theirs.yaml", "--from-limitador", "limits.yaml"];
    let wrote = desk.run(&arguments).code(0);
    assert!(wrote.err.contains("theirs.yaml:4:5  warn   detailed_metric"), "{wrote:?}");
    assert!(wrote.err.contains("wrote tidegate.yaml"), "{wrote:?}");
    let checked = desk.run(&["config", "check"]).code(0);
    assert!(checked.out.contains("The file is fine"), "{checked:?}");
    assert_eq!(desk.run(&[&arguments[..], &["-"]].concat()).out, desk.read("tidegate.yaml"));
    let asked = ["--attr", "rls.domain=shop", "--attr", "rls.keys=user", "--attr", "user=ann"];
    let told = desk.run(&[&["explain", "-c", "tidegate.yaml"][..], &asked].concat()).code(0);
    assert!(told.out.contains("shop.user") && told.out.contains("2/h"), "{told:?}");
    let toml = desk.run(&["init", "--from-envoy", "theirs.yaml", "x.toml"]).code(2);
    assert!(toml.err.contains("a converted file is YAML"), "{toml:?}");
    desk.run(&["init", "--from-envoy", "theirs.yaml", "--preset", "api"]).code(2);
}

/// As a cluster holds them: a ConfigMap with the text under `data`, a resource with the limits in its `spec`.
#[test]
fn manifests_are_read_or_told_what_they_are() {
    let desk = Desk::new();
    let text: String = TREE.lines().map(|line| format!("    {line}\n")).collect();
    desk.write(
        "map.yaml",
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: rl }}\ndata:\n  config.yaml: |\n{text}"),
    );
    desk.write(
        "crd.yaml",
        format!("apiVersion: limitador.kuadrant.io/v1alpha1\nkind: Limitador\nspec:\n  limits:\n  {LIMITS}"),
    );
    let wrote = desk.run(&["init", "--from-envoy", "map.yaml", "--from-limitador", "crd.yaml"]).code(0);
    assert!(wrote.err.contains("map.yaml:9:9  warn   detailed_metric"), "{wrote:?}");
    let read = desk.read("tidegate.yaml");
    assert!(read.contains("name: shop.user") && read.contains("# crd.yaml:5"), "{read}");
    for (file, flag) in [("map.yaml", "--from-envoy"), ("crd.yaml", "--from-limitador")] {
        let refused = desk.run(&["config", "check", file]).code(2);
        assert!(
            refused.err.contains(&format!("read it with {flag}"))
                || refused.out.contains(&format!("read it with {flag}")),
            "{refused:?}"
        );
    }
    desk.write("ours.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: limits }\ndata: { tidegate.yaml: \"version: 1\" }\n");
    let refused = desk.run(&["serve", "--check", "-c", "ours.yaml"]).code(2);
    assert!(
        (refused.out.clone() + &refused.err)
            .contains("kubectl get configmap limits -o jsonpath='{.data.tidegate\\.yaml}' > tidegate.yaml"),
        "{refused:?}"
    );
}

#[test]
fn mistakes_of_other_files_are_told_and_nothing_is_written() {
    let desk = Desk::new();
    desk.write("theirs.yaml", TREE.replace("hour", "hours"));
    for arguments in [&["init", "--from-envoy", "theirs.yaml"][..], &["serve", "--from-envoy", "theirs.yaml"]]
    {
        let refused = desk.run(arguments).code(2);
        let expected = "theirs.yaml:5:25  error  rate_limit: unknown unit \"hours\"; did you mean \"hour\"?";
        assert!(refused.err.contains(expected), "{refused:?}");
        assert!(!desk.path("tidegate.yaml").exists());
    }
    let none = desk.run(&["init", "--from-limitador", "none.yaml"]).code(2);
    assert!(none.err.contains("none.yaml  error  the file cannot be read"), "{none:?}");
    desk.write("theirs.yaml", TREE);
    let checked = desk.run(&["serve", "--check", "--from-envoy", "theirs.yaml"]).code(0);
    assert!(checked.err.contains("theirs.yaml:4:5") && checked.out.contains("fine"), "{checked:?}");
    desk.run(&["serve", "--check", "--from-envoy", "theirs.yaml", "-c", "x.yaml"]).code(2);
}
