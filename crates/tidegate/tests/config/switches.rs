//! The section `switches`: what turns degrade switches off.

use std::time::Duration;

use serde_json::json;
use tidegate::Gate;
use tidegate::clock::ManualClock;
use tidegate::concurrency::signals::Reading;
use tidegate::config::{Config, Format, schema};
use tidegate::gate::Check;
use tidegate::gate::switches::Switches;
use tidegate::policy::{Descriptor, Trigger};
use tidegate::priority::{Criticality, Priority};

const POLICIES: &str = "policies:
  - { name: writes, limit: { rate: 10/s } }
  - { name: each, by: [user.id], limit: { rate: 10/s } }
  - { name: few previews, when: switch previews off, limit: { algorithm: fixed-window, rate: 1/day } }
";

fn file(switches: &str) -> String {
    format!("version: 1\nswitches:\n  {switches}\n{POLICIES}")
}

fn read(switches: &str) -> Config {
    Config::parse(&file(switches), "t", Format::Yaml).unwrap().0
}

fn fits_the_schema(text: &str) -> bool {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    validator.is_valid(&serde_saphyr::from_str::<serde_json::Value>(text).unwrap())
}

#[test]
fn one_trigger_or_several() {
    let condition = |text: &str| text.parse().unwrap();
    let text =
        "previews: { off_when: 'cpu above 80%, until 70%, stale after 1h', below: critical, hold: 30s }";
    let wanted = Trigger::new("previews", condition("cpu above 80%, until 70%")).unwrap();
    let wanted = wanted.below(Criticality::Critical).unwrap().hold(Duration::from_secs(30)).unwrap();
    assert_eq!(read(text).policies.triggers(), [wanted.lasting(Duration::from_secs(3600)).unwrap()]);
    assert!(fits_the_schema(&file(text)));

    let text = "previews: [{ off_when: cpu above 90% }, { off_when: policy writes above 95% }]\n  search: { off_when: signal errors above 5 }";
    let config = read(text);
    let names: Vec<_> = config.policies.triggers().iter().map(Trigger::switch).collect();
    assert_eq!(names, ["previews", "previews", "search"]);
    assert_eq!(config.policies.switches().collect::<Vec<_>>(), ["previews", "search"]);
    assert!(fits_the_schema(&file(text)));
    let shown = &config.effective.value["switches"];
    assert_eq!(
        shown["previews"][0],
        json!({ "off_when": "cpu above 90%, until 81%, stale after 600s", "hold": "10s" })
    );
    assert_eq!(shown["search"]["off_when"], "signal errors above 5, until 4.5, stale after 600s");
    assert_eq!(config.effective.origins["switches.search.off_when"], "t:4");
}

#[test]
fn mistakes_name_the_place_and_what_would_work() {
    for (text, says) in [
        (
            "previews: { off_when: cpus above 80% }",
            "t:3:25  error  switch \"previews\": off_when: unknown word \"cpus\"; did you mean \"cpu\"?",
        ),
        ("previews: { below: critical }", "error  switch \"previews\": switch has no off_when"),
        ("previews: {}", "switch has no off_when"),
        ("previews: cpu above 80%", "switch is a map, found"),
        ("pre views: { off_when: cpu above 80% }", "\"pre views\" is not a name of a switch"),
        ("previews: { off_when: [cpu above 80%] }", "off_when is a condition as cpu above 80%, found a list"),
        (
            "previews: { off_when: cpu above 80%, when: x }",
            "error  switch \"previews\": unknown key \"when\" in switch; possible are off_when, below, hold",
        ),
        (
            "previews: { off_when: switch search off }",
            "t:3:25  error  switch \"previews\": off_when: a switch goes by a number and by no other switch",
        ),
        ("previews: { off_when: cpu above 80%, below: sheddable }", "below: no request is below sheddable"),
        ("previews: { off_when: cpu above 80%, below: urgent }", "below"),
        (
            "previews: { off_when: cpu above 80%, hold: 31d }",
            "hold: 2678400s is out of range; use 0s to 30day",
        ),
        (
            "previews: { off_when: cpu above 80%, for: 0s }",
            "write off_when: \"cpu above 80%, stale after 10min\"",
        ),
        (
            "previews: { off_when: 'cpu above 80%, stale after 0s' }",
            "a reading is stale after 1s to 1day; 0s is out of range",
        ),
        (
            "previews: { off_when: policy wirtes above 80% }",
            "t:3:25  error  switch \"previews\": there is no policy \"wirtes\"; did you mean \"writes\"?",
        ),
        (
            "previews: { off_when: policy each above 80% }",
            "t:3:25  error  switch \"previews\" depends on policy \"each\": it has `by`, so each of its keys has a figure of its own",
        ),
        (
            "previews: []",
            "t:3:3  error  switch \"previews\": nothing turns it off; write `off_when: cpu above 80%`",
        ),
    ] {
        let mistakes = Config::parse(&file(text), "t", Format::Yaml).unwrap_err();
        let told: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|one| one.contains(says)), "{text}: {told:#?}");
    }
}

/// What a file can make a server do with each reading is bounded.
#[test]
fn too_many_triggers_or_numbers_are_refused() {
    let each = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<String>();
    let names = each(1025, &|at| format!("s{at}: {{ off_when: cpu above 80% }}\n  "));
    let numbers = each(65, &|at| format!("s{at}: {{ off_when: signal n{at} above 1 }}\n  "));
    for (text, says) in [(names, "1026 conditions"), (numbers, "on 66 different numbers")] {
        let mistakes = Config::parse(&file(&text), "t", Format::Yaml).unwrap_err();
        assert!(mistakes[0].to_string().contains(says), "{}", mistakes[0]);
    }
    let list = each(17, &|_| "{ off_when: cpu above 80% },".to_owned());
    let mistakes = Config::parse(&file(&format!("previews: [{list}]")), "t", Format::Yaml).unwrap_err();
    assert!(mistakes[0].to_string().contains("has 17 entries; at most 16"), "{}", mistakes[0]);
}

/// The numbers of the machine reach the switches with the checks that read them, and policies by a switch follow in the
/// same check.
#[test]
fn a_gate_turns_its_switches_by_what_it_reads() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    let config = read(
        "previews: { off_when: 'cpu above 80%, until 70%, stale after 1min', below: critical, hold: 5s }",
    );
    let (clock, cpu) = (ManualClock::default(), Arc::new(AtomicU16::new(0)));
    let switches = Switches::of(&config.policies).unwrap().with_clock(clock.clone());
    let read = Arc::clone(&cpu);
    // Absent at 0: a machine that does not say.
    let machine = move || {
        let mut reading = Reading::default();
        reading.cpu = Some(read.load(Ordering::Relaxed)).filter(|thousandths| *thousandths > 0);
        reading
    };
    let gate = Gate::in_memory(config.policies, 1000).unwrap().with_clock(clock.clone());
    let gate = gate.with_machine(machine).with_switches(switches.clone());
    let request = Descriptor::new();
    // Whether a sheddable request is limited by the policy: it is in force.
    let limited = |thousandths: u16, seconds: u64| {
        cpu.store(thousandths, Ordering::Relaxed);
        clock.advance(Duration::from_secs(seconds));
        let check = Check::of(&request).priority(Criticality::Sheddable);
        gate.check(check).now().unwrap().limits.iter().any(|limit| limit.policy == 2)
    };
    assert!(!limited(800, 1), "at the mark");
    assert!(limited(801, 1));
    let off = switches.why_off("previews", Priority::of(Criticality::Sheddable)).unwrap();
    assert_eq!(off.reason(), "cpu above 80%, until 70%: read as 80.1%");
    assert!(switches.is_on("previews", Priority::of(Criticality::Critical)));
    assert!(limited(10, 4), "held");
    assert!(!limited(10, 1));
    assert!(limited(900, 1) && limited(0, 59), "an absent number turns nothing on");
    assert!(!limited(0, 1) && !limited(0, 1), "until its end");
    let sources = gate.signals().list();
    let of_cpu = sources.iter().find(|one| one.source.to_string() == "cpu").unwrap();
    assert_eq!((of_cpu.value, of_cpu.last), (None, Some(90.0)));
}
