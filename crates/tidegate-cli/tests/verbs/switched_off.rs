//! Degrade switches of a policy file in `replay` and `simulate`: what turns them there, and `--switch-off`.

use crate::verbs::Desk;

const FILE: &str = "version: 1
switches:
  previews: { off_when: 'cpu above 80%, until 70%' }
policies:
  - { name: all, limit: { rate: 1000/s } }
  - { name: few, when: switch previews off, limit: { rate: 1/h } }
";

/// The figures of the policy that reads the switch: matched and denied.
fn few(told: &crate::verbs::Ran) -> (u64, u64) {
    let policies = told.json()["runs"][0]["policies"].clone();
    let few = policies.as_array().unwrap().iter().find(|policy| policy["name"] == "few").unwrap().clone();
    (few["matched"].as_u64().unwrap(), few["denied"].as_u64().unwrap())
}

/// A file whose switches did nothing looked as if it had none.
#[test]
fn a_switch_that_nothing_turns_is_remarked_on_and_can_be_turned_off() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    let line = |request: u32| format!("2026-01-01T00:00:{:02}Z,198.51.100.7\n", request / 40);
    desk.write("log.csv", format!("time,client.ip\n{}", (0..400).map(line).collect::<String>()));
    let simulate = ["simulate", "-c", "p.yaml", "--traffic", "steady 40/s 10s", "-o", "json"];
    let replay = ["replay", "-c", "p.yaml", "log.csv", "-o", "json"];
    for (verb, teller) in [(&simulate[..], "the traffic"), (&replay[..], "the log")] {
        let run = |rest: &[&str]| desk.run(&[verb, rest].concat());
        let on = run(&[]).code(0);
        let says = format!(
            "switch previews was taken as on throughout: {teller} does not say what `cpu` was; policy few was never in force; --switch-off previews shows the traffic with it off\n"
        );
        assert!(on.err.contains(&says), "{on:?}");
        let remarks = on.json()["remarks"].clone();
        assert!(remarks.as_array().unwrap().iter().any(|one| one == says.trim_end()), "{remarks}");
        assert_eq!(few(&on), (0, 0));
        let off = run(&["--switch-off", "previews"]).code(0);
        assert_eq!(few(&off), (400, 399));
        assert!(!off.err.contains("switch previews"), "{off:?}");
        assert!(!off.json()["remarks"].to_string().contains("switch previews"), "{off:?}");
        let unknown = run(&["--switch-off", "preview"]).code(2);
        assert!(
            unknown.err.contains("--switch-off: there is no switch \"preview\"; there are previews"),
            "{unknown:?}"
        );
    }
    let none =
        desk.run(&["simulate", "--rate", "1/s", "--traffic", "burst 5", "--switch-off", "previews"]).code(2);
    assert!(none.err.contains("the policies have no switches"), "{none:?}");
}

#[test]
fn a_trigger_on_a_number_that_is_known_works_in_one_policy_of_a_file_too() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE.replace("cpu above 80%, until 70%", "rate above 20/s"));
    let run = |rest: &[&str]| {
        let told = desk.run(
            &[&["simulate", "-c", "p.yaml", "--traffic", "steady 40/s 10s", "-o", "json"], rest].concat(),
        );
        told.code(0)
    };
    for told in [run(&[]), run(&["few"])] {
        assert!(few(&told).0 > 200, "{told:?}");
        assert!(!told.err.contains("switch previews"), "{told:?}");
    }
    // Without the policy that its trigger is on, the switch has nothing that turns it.
    let full = FILE.replace("cpu above 80%, until 70%", "policy all above 50%").replace("1000/s", "10/s");
    desk.write("p.yaml", full);
    assert!(few(&run(&[])).0 > 200);
    let alone = run(&["few"]);
    assert!(
        alone.err.contains("switch previews was taken as on throughout: only a person or a program"),
        "{alone:?}"
    );
}

#[test]
fn a_trace_turns_no_switch() {
    let desk = Desk::new();
    desk.write("p.yaml", FILE);
    desk.write("trace.jsonl", "{\"t\":0,\"key\":\"a\"}\n");
    let run =
        |rest: &[&str]| desk.run(&[&["simulate", "-c", "p.yaml", "--trace", "trace.jsonl"], rest].concat());
    let told = run(&[]).code(0);
    let says = "switch previews was taken as on throughout: a trace does not say what `cpu` is; policy few was never in force\n";
    assert!(told.err.contains(says), "{told:?}");
    run(&["--switch-off", "previews"]).code(2);
}
