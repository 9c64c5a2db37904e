//! Reports about a tree of descriptors: differences as notes, mistakes as errors, each with its line.

use proptest::prelude::*;
use tidegate::config::{Imported, Peer};

use super::door::told;

#[test]
fn each_difference_has_a_line() {
    let text = "domain: shop
descriptors:
  - key: a
    detailed_metric: true
    metadata: { x: [1] }
    rate_limit: { name: n, unit: day, requests_per_unit: 1 }
  - key: b
    quota_mode: true
    value: '{x}*'
    rate_limit:
      unit: day
      requests_per_unit: 1
      replaces: [{ name: n }]
";
    let told = told(Peer::Envoy, text);
    let begins: Vec<_> =
        told.iter().map(|line| line.split([':', ';', ',']).take(3).collect::<Vec<_>>().join(":")).collect();
    let lines: Vec<&str> = told.iter().map(|line| line.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["4", "5", "6", "7", "8", "13"], "{begins:#?}");
    assert!(told.iter().all(|line| line.contains("  warn   ")), "{told:#?}");
    assert!(told[5].contains("replaces: a call that matches both is limited by \"n\" too"), "{told:#?}");
}

#[test]
fn mistakes_name_the_place_the_word_and_what_would_work() {
    let rule = |rest: &str| told(Peer::Envoy, &format!("domain: d\ndescriptors:\n  - key: a\n{rest}"));
    for (rest, expected) in [
        (
            "    rate_limit: { unit: fortnight, requests_per_unit: 1 }\n",
            "t:4:25  error  rate_limit: unknown unit \"fortnight\"; possible are second, minute, hour, day, week, month, year",
        ),
        (
            "    rate_limit: { requests_per_unit: 1 }\n",
            "t:4:17  error  rate_limit has no unit; write second, minute, hour, day, week, month or year, or unlimited: true",
        ),
        (
            "    rate_limit: { unit: day, requests_per_unit: -1 }\n",
            "t:4:49  error  requests_per_unit is a whole number from 0 to 4294967295, found \"-1\"",
        ),
        (
            "    rate_limit: { unit: day, unlimited: true }\n",
            "t:4:30  error  unlimited and unit exclude each other",
        ),
        ("    shadow_mode: 1\n", "t:4:18  error  shadow_mode is true or false, found a number"),
        (
            "    rate_limit: { unit: day, requests_per_unit: 1, shadow_mode: true }\n",
            "t:4:52  error  shadow_mode has no effect in rate_limit; it belongs in the descriptor, beside rate_limit",
        ),
        (
            "    ratelimit: {}\n",
            "t:4:5  error  unknown key \"ratelimit\" in a descriptor; did you mean \"rate_limit\"?",
        ),
        (
            "    share_threshold: true\n",
            "t:4:5  error  share_threshold needs a value with *, as files/*: other values are not shared by anyone",
        ),
        ("    descriptors: x\n", "t:4:18  error  descriptors is a list, found a text"),
        ("  - key: a\n", "t:4:5  error  key \"a\" stands in line 3 too; put the two rules into one"),
        (
            "  - value: a\n",
            "t:4:5  error  a descriptor has no key; write the key of the entry that Envoy sends",
        ),
    ] {
        let errors: Vec<_> = rule(rest).into_iter().filter(|line| line.contains("  error  ")).collect();
        assert_eq!(errors, [expected]);
    }
    assert_eq!(told(Peer::Envoy, "- namespace: x\n"), ["t:1:1  error  the file is a map, found a list"]);
    assert_eq!(
        told(Peer::Envoy, "descriptors: []\n"),
        ["t:1:1  error  the file has no domain; write the domain of Envoy's filter"]
    );
}

/// A mistake found only by the validation of the converted policies is reported at the line of the original.
#[test]
fn mistakes_of_the_written_file_are_told_of_the_original() {
    let text = format!(
        "domain: d\ndescriptors:\n  - key: a\n    value: {}\n    rate_limit: {{ unit: day, requests_per_unit: 1 }}\n",
        "x".repeat(2000)
    );
    let told = told(Peer::Envoy, &text);
    assert!(told[0].starts_with("t:3:5  error  policy \"d.a_xxx"), "{told:?}");
}

/// A small file that expands to a large one is refused quickly.
#[test]
fn lists_that_multiply_out_are_bounded() {
    let rules: String = (0..3000)
        .map(|at| {
            format!("  - {{ key: k, value: 'a{at}*', rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n")
        })
        .collect();
    assert!(Imported::of(&[(Peer::Envoy, "t", &format!("domain: d\ndescriptors:\n{rules}"))]).is_err());
}

proptest! {
    #[test]
    fn any_text_is_a_file_or_a_list_of_mistakes(text in "[-a-z:{}\\[\\]'*?0-9 \n]{0,80}") {
        for peer in [Peer::Envoy, Peer::Limitador] {
            let _ = Imported::of(&[(peer, "t", &text)]);
        }
    }
}
