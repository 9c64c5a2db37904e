//! Checks the rules with promtool: they are well-formed, and each alert has a test.

use std::process::Command;

use tidegate_testkit::program;

use crate::deploy::deployed;
use crate::deploy::expressions;
use crate::deploy::serving::{ended, words};

#[track_caller]
fn promtool(arguments: &[&str], file: &str) {
    let Some(promtool) = program("promtool", "prometheus") else { return };
    let mut command = Command::new(promtool);
    command.args(arguments).arg(deployed(file));
    let output = ended(command);
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn the_rules_are_well_formed() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], "prometheus-rules.yaml");
}

#[test]
fn each_alert_stands_when_it_should_and_only_then() {
    promtool(&["test", "rules"], "prometheus-rules-test.yaml");
    let tests = std::fs::read_to_string(deployed("prometheus-rules-test.yaml")).unwrap();
    for alert in expressions::alerts() {
        for standing in ["exp_alerts: []", "exp_labels"] {
            let tested = tests.split("eval_time:").any(|test| {
                test.contains(&format!("alertname: {alert}\n")) && test.contains(standing)
                    || test.contains(&format!("alertname: {alert}, {standing}"))
            });
            assert!(tested, "no test with `{standing}` of {alert}");
        }
    }
}
