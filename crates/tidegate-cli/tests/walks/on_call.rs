//! A person on call has a log and little time: asks for a limit, tries it on the log, sees which keys it would hit,
//! and writes it into a file that a pipeline checks from then on.

use crate::walks::run;
use crate::walks::serving::Desk;

/// The scraper of the sample log.
const SCRAPER: &str = "203.0.113.9";
/// The client in it that guesses passwords.
const GUESSER: &str = "198.51.100.77";

fn sample() -> String {
    format!("{}/../../examples/access.log", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the policy to copy from the output of `suggest`: from its name to the next blank line.
#[track_caller]
fn copied(told: &str) -> String {
    let from = told.find("  - name: suggested").unwrap_or_else(|| panic!("nothing to copy: {told}"));
    told[from..].split("\n\n").next().unwrap().to_owned()
}

#[test]
fn from_a_log_to_a_limit() {
    let (desk, log) = (Desk::with(""), sample());

    // Which limit would fit? The advice names the keys that it hits, and can be copied.
    let (code, told) = run(&desk, &format!("suggest {log} --by client.ip --per 1min"));
    assert_eq!(code, 0, "{told}");
    assert!(told.contains(SCRAPER), "{told}");
    let policy = copied(&told);
    std::fs::write(desk.path("tidegate.yaml"), format!("version: 1\npolicies:\n{policy}\n")).unwrap();
    let (code, told) = run(&desk, "config check");
    assert_eq!(code, 0, "what is advised is right: {told}");

    // What would it have done? It hits only those two, and a pipeline can check that.
    let (code, told) = run(&desk, &format!("replay {log} --hit -c tidegate.yaml --plot out"));
    assert_eq!(code, 0, "{told}");
    assert!(
        told.contains("would hit (shadow) 2 keys") && told.contains(SCRAPER) && told.contains(GUESSER),
        "{told}"
    );
    let page = std::fs::read_to_string(desk.path("out/report.html")).unwrap();
    assert!(page.contains(SCRAPER) && page.contains("suggested"), "the report tells of both");
    let holds = "keys_hit{policy=suggested}>2";
    assert_eq!(run(&desk, &format!("replay {log} -c tidegate.yaml --fail-if {holds}")).0, 0);
    let strict = std::fs::read_to_string(desk.path("tidegate.yaml")).unwrap();
    let burst = strict.find("burst: ").expect("the advice has a burst");
    let strict = format!("{}burst: 2 }}\n", &strict[..burst]);
    std::fs::write(desk.path("strict.yaml"), strict).unwrap();
    let (code, told) = run(&desk, &format!("replay {log} -c strict.yaml --fail-if {holds}"));
    assert_eq!(code, 3, "a limit too tight does not pass: {told}");

    // Mistakes are reported: a wrong attribute, a file that is not a log, a limit in the notation of another system.
    let (code, told) = run(&desk, &format!("replay {log} --rate 20/min --by client_ip"));
    assert!(code == 2 && told.contains("client.ip"), "{code}: {told}");
    std::fs::write(desk.path("no.log"), "this is no log\nnor is this\n").unwrap();
    for verb in ["replay no.log --rate 20/min", "suggest no.log"] {
        let (code, told) = run(&desk, verb);
        assert!(code == 2 && told.contains("no.log"), "{code}: {told}");
    }
    let (code, told) = run(&desk, "replay no.log --format combined --rate 20/min");
    assert!(code == 2 && told.contains("malformed"), "{code}: {told}");
    let (code, told) = run(&desk, &format!("replay {log} --rate 10r/s"));
    assert!(code == 2 && told.contains("10/s") && told.contains("--rate"), "{code}: {told}");

    // Why is this caller denied? The file answers without a server.
    let (code, told) = run(&desk, &format!("explain --attr client.ip={SCRAPER} --cost 100000"));
    assert!(told.contains("suggested"), "{code}: {told}");
}
