//! The next hop reads the mark of a request that was over a limit: the manual's two files, each in a gate of its own.

use http::{HeaderMap, HeaderValue};
use tidegate::Gate;
use tidegate::clock::ManualClock;
use tidegate::config::{Config, Format};
use tidegate::http_answer::over;
use tidegate::policy::Descriptor;

const MANUAL: &str = include_str!("../../../../docs/policy-file.md");

/// Makes a gate of the block of the manual's section that begins with this line.
fn gate(begins: &str) -> Gate {
    let section = MANUAL.split_once("### Marks at the next hop").unwrap().1;
    let (_, rest) = section.split_once(&format!("```yaml\n{begins}\n")).unwrap();
    let block = format!("{begins}\n{}", rest.split_once("```").unwrap().0);
    let (config, warnings) =
        Config::parse(&format!("version: 1\npolicies:\n{block}"), "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    Gate::in_memory(config.policies, 1000).unwrap().with_clock(ManualClock::default())
}

fn edge() -> Gate {
    gate("- name: per-user")
}

fn search() -> Gate {
    gate("- name: searches of heavy users")
}

/// What the edge does: it decides, and replaces the headers of the request that it sends on.
fn pass(edge: &Gate, user: &str, headers: &mut HeaderMap) {
    let decision = edge.check(&Descriptor::new().with("user.id", user)).now().unwrap();
    assert!(decision.allowed);
    over::replace(&decision, headers);
}

/// What the next hop describes: the path, and each header of the request.
fn describe(headers: &HeaderMap) -> Descriptor<'static> {
    let described = Descriptor::new().with("request.path", "/search");
    headers.iter().fold(described, |described, (name, value)| {
        described.with(format!("request.header.{name}"), value.to_str().unwrap().to_owned())
    })
}

#[test]
fn what_the_edge_marks_has_a_limit_of_its_own_at_the_next_hop() {
    let (edge, search) = (edge(), search());
    let passing = |user: &str| {
        let mut headers = HeaderMap::new();
        pass(&edge, user, &mut headers);
        search.check(&describe(&headers)).now().unwrap().allowed
    };
    assert_eq!((0..100).filter(|_| passing("ann")).count(), 100, "within her limit at the edge");
    assert_eq!((0..50).filter(|_| passing("ann")).count(), 20, "marked");
    assert!(passing("bob"), "nobody else waits for her");
    let mut headers = HeaderMap::new();
    pass(&edge, "ann", &mut headers);
    assert_eq!(headers[over::MARKED], "per-user");
    let elsewhere =
        Descriptor::new().with("request.path", "/").with("request.header.x-tidegate-marked", "per-user");
    assert!(search.check(&elsewhere).now().unwrap().allowed, "the policy is about searches");
}

/// Of several names, one fits.
#[test]
fn a_request_that_several_policies_marked_is_found_by_each() {
    let search = search();
    let marked = |marks: &'static str| {
        describe(&HeaderMap::from_iter([(over::MARKED, HeaderValue::from_static(marks))]))
    };
    for marks in ["per-user", "per-ip, per-user", "per-user, per-ip"] {
        let decision = search.check(&marked(marks)).now().unwrap();
        assert_eq!(decision.limits.len(), 1, "{marks}");
    }
    assert_eq!(search.check(&marked("per-ip")).now().unwrap().limits.len(), 0);
}

/// A stranger marks himself: the edge sends on what it has found itself, and nothing else.
#[test]
fn a_strangers_own_mark_does_not_reach_the_next_hop() {
    let (edge, search) = (edge(), search());
    let mut headers = HeaderMap::new();
    for _ in 0..2 {
        headers.append(over::MARKED, HeaderValue::from_static("per-user"));
    }
    pass(&edge, "eve", &mut headers);
    assert!(headers.is_empty(), "{headers:?}");
    assert_eq!(search.check(&describe(&headers)).now().unwrap().limits.len(), 0);

    // A gate that marks nobody leaves the headers, as the manual says. So at the edge they are removed.
    headers.insert(over::MARKED, HeaderValue::from_static("per-user"));
    pass(&search, "eve", &mut headers);
    assert_eq!(headers[over::MARKED], "per-user");
    over::remove(&mut headers);
    assert!(headers.is_empty());
}
