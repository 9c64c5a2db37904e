//! Runs the examples and checks what they show.
#![cfg(all(feature = "config", feature = "http", feature = "tokio"))]

use tidegate::limiter::{Retry, TakeError};

#[path = "../../examples/axum.rs"]
#[allow(dead_code, reason = "its `main` is for the example")]
mod axum_server;
#[path = "../../examples/deadlines.rs"]
#[allow(dead_code, reason = "its `main` is for the example")]
mod deadlines;
#[path = "../../examples/policy_file.rs"]
#[allow(dead_code, reason = "its `main` is for the example")]
mod policy_file;
/// The program of the README, as an example of the crate.
mod readme {
    include!("../../examples/readme.txt");

    pub(super) fn run() -> Result<(), QuotaError> {
        main()
    }
}

/// A user copies the program into a new project and runs it, so it must compile there: without a `?` outside of a
/// function, without lines that only the library's documentation hides, and, as the checks of the library without features
/// see to, without any of these.
#[test]
fn the_program_of_the_readme_runs_as_it_is_copied() {
    let readme = include_str!("../../../../README.md");
    let programs: Vec<&str> =
        readme.split("```rust\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    let [program] = programs[..] else { panic!("one program, not {}", programs.len()) };
    assert_eq!(include_str!("../../examples/readme.txt"), program);
    readme::run().unwrap();
}

#[tokio::test]
async fn the_third_request_of_a_client_is_answered_429_with_headers_and_a_problem() {
    let answers = axum_server::demonstrate().await.unwrap();
    let [first, second, third] = &answers[..] else { panic!("{answers:?}") };
    for (allowed, left) in [(first, 1), (second, 0)] {
        assert!(allowed.starts_with("HTTP/1.1 200 OK\r\n"), "{allowed}");
        assert!(allowed.contains("ratelimit-policy: \"per-client\";q=2;w=60\r\n"), "{allowed}");
        assert!(allowed.contains(&format!("ratelimit: \"per-client\";r={left};t=")), "{allowed}");
        assert!(allowed.ends_with("\r\n\r\nthe page\n"), "{allowed}");
    }
    assert!(third.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{third}");
    for line in ["retry-after: ", "content-type: application/problem+json\r\n", "cache-control: no-store\r\n"]
    {
        assert!(third.contains(line), "{line}: {third}");
    }
    assert!(
        third.contains(r#""title":"Quota exceeded","status":429,"detail":"limit \"per-client\" refuses"#),
        "{third}"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_without_time_are_refused_and_the_others_wait() {
    let answers = deadlines::demonstrate().await.unwrap();
    let told: Vec<_> = answers.iter().map(|answer| answer.as_deref().map_err(TakeError::retry)).collect();
    assert_eq!(told[..3], [Ok("answer to 1"), Ok("answer to 2"), Ok("answer to 3")]);
    // The fourth call is due after 60 ms. It is refused after 40 ms, when it has 10 ms left.
    assert!(matches!(told[3..], [Err(Retry::After(_)), Err(Retry::After(_))]), "{told:?}");
}

#[test]
fn a_policy_file_decides_and_says_why() {
    let told = policy_file::demonstrate(None).unwrap();
    let [items, export, many] = &told[..] else { panic!("{told:?}") };
    assert!(items.starts_with("/api/items: 200 OK\nratelimit-policy: \"per-client\";q=3;w=60\n"), "{items}");
    assert!(export.starts_with("/api/export: 200 OK\n"), "{export}");
    assert!(export.contains("\"exports\";q=1;w=3600"), "{export}");
    assert!(many.starts_with("/api/export: 4"), "{many}");
    assert!(many.contains("never allows a request of this cost") && many.contains("per-client"), "{many}");
}

#[test]
fn a_policy_file_with_a_mistake_says_where() {
    let wrong = policy_file::demonstrate(Some("/nowhere/tidegate.yaml")).unwrap_err().to_string();
    assert!(wrong.contains("/nowhere/tidegate.yaml"), "{wrong}");
}
