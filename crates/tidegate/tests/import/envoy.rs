//! Trees of descriptors, each with a table of descriptors and the limits that they meet.

use tidegate::config::Peer;
use tidegate::policy::Mode;

use super::door::{Entries, called, described, imported, limits, met, told};

/// Checks which limit of a tree each descriptor meets; an empty text means none.
#[track_caller]
fn table(text: &str, rows: &[(&Entries<'_>, &str)]) {
    let imported = imported(Peer::Envoy, text);
    for (entries, expected) in rows {
        let met = limits(&imported.config.policies, &described("shop", 0, entries));
        let expected: Vec<_> =
            Some((*expected).to_owned()).into_iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(met, expected, "{entries:?} in\n{}", imported.text);
        let elsewhere = limits(&imported.config.policies, &described("another", 0, entries));
        assert!(elsewhere.is_empty(), "{elsewhere:?}");
    }
}

#[test]
fn a_value_goes_before_the_key_alone() {
    table(
        "
domain: shop
descriptors:
  - key: store
    value: books
    rate_limit: { unit: second, requests_per_unit: 40 }
  - key: store
    rate_limit: { unit: MINUTE, requests_per_unit: 9 }
  - key: remote_address
    rate_limit: { unit: hour, requests_per_unit: 7 }
  - key: remote_address
    value: 192.0.2.7
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: remote_address
    value: 192.0.2.8
",
        &[
            (&[("store", "books")], "shop.store_books: fixed-window 40/s calendar epoch"),
            (&[("store", "toys")], "shop.store: fixed-window 9/min calendar epoch"),
            (&[("store", "")], "shop.store: fixed-window 9/min calendar epoch"),
            (&[("remote_address", "192.0.2.1")], "shop.remote_address: fixed-window 7/h calendar epoch"),
            (&[("remote_address", "192.0.2.7")], "shop.remote_address_192.0.2.7: gcra 1/s"),
            // A rule without a limit leaves its value unlimited.
            (&[("remote_address", "192.0.2.8")], ""),
            (&[("path", "/")], ""),
            // A descriptor must have exactly as many entries as there are levels, in this order.
            (&[("store", "books"), ("remote_address", "192.0.2.1")], ""),
            (&[], ""),
        ],
    );
}

#[test]
fn levels_lie_in_each_other() {
    table(
        "
domain: shop
descriptors:
  - key: kind
    value: newsletter
    descriptors:
      - key: to
        rate_limit: { unit: day, requests_per_unit: 3 }
      - key: to
        value: editor
        rate_limit: { unlimited: true }
  - key: kind
    descriptors:
      - key: to
        value: editor
        rate_limit: { unit: week, requests_per_unit: 1000 }
  - key: to
    rate_limit: { unit: month, requests_per_unit: 90 }
",
        &[
            (
                &[("kind", "newsletter"), ("to", "ann")],
                "shop.kind_newsletter.to: fixed-window 3/day calendar epoch",
            ),
            (&[("kind", "newsletter"), ("to", "editor")], "shop.kind_newsletter.to_editor: unlimited"),
            (
                &[("kind", "invoice"), ("to", "editor")],
                "shop.kind.to_editor: fixed-window 1000/week calendar epoch",
            ),
            // There is no backtracking: a descriptor that matches `newsletter` does not try the rule for the key alone.
            (&[("kind", "invoice"), ("to", "ann")], ""),
            (&[("to", "ann")], "shop.to: fixed-window 90/month calendar epoch"),
            (&[("to", "ann"), ("kind", "newsletter")], ""),
            (&[("kind", "newsletter")], ""),
        ],
    );
}

#[test]
fn stars_stand_for_anything_and_the_first_in_the_file_wins() {
    table(
        "
domain: shop
descriptors:
  - key: path
    value: /files/*
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: path
    value: /files/old/*
    rate_limit: { unit: minute, requests_per_unit: 2 }
  - key: path
    value: /v*/users/*/edit
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: path
    value: /files/free
    rate_limit: { unlimited: true }
  - key: path
    rate_limit: { unit: year, requests_per_unit: 4 }
",
        &[
            (&[("path", "/files/a/b")], "shop.path_/files/*: fixed-window 1/min calendar epoch"),
            (&[("path", "/files/old/a")], "shop.path_/files/*: fixed-window 1/min calendar epoch"),
            (&[("path", "/files/free")], "shop.path_/files/free: unlimited"),
            (
                &[("path", "/v1/users/7/edit")],
                "shop.path_/v*/users/*/edit: fixed-window 3/min calendar epoch",
            ),
            (&[("path", "/v1/users/7/read")], "shop.path: fixed-window 4/year calendar epoch"),
        ],
    );
}

#[test]
fn keys_that_are_used_twice_or_mean_something_here_are_told_apart() {
    table(
        "
domain: shop
descriptors:
  - key: generic_key
    value: a
    descriptors:
      - key: generic_key
        value: b
        rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: client_ip
    descriptors:
      - key: request.path
        value: /Search?q
        rate_limit: { unit: minute, requests_per_unit: 2 }
",
        &[
            (
                &[("generic_key", "a"), ("generic_key", "b")],
                "shop.generic_key_a.generic_key_b: fixed-window 1/min calendar epoch",
            ),
            (&[("generic_key", "b"), ("generic_key", "a")], ""),
            (
                &[("client_ip", "192.0.2.1"), ("request.path", "/Search?q")],
                "shop.client_ip.request.path_/Search?q: fixed-window 2/min calendar epoch",
            ),
        ],
    );
}

#[test]
fn shadow_and_quota_refuse_nobody() {
    let text = "
domain: shop
descriptors:
  - { key: a, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: b, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: c, shadow_mode: false, rate_limit: { unit: day, requests_per_unit: 1 } }
";
    let set = imported(Peer::Envoy, text).config.policies;
    let gate = tidegate::Gate::in_memory(std::sync::Arc::clone(&set), 100).unwrap();
    let passes = |key| {
        let request = described("shop", 0, &[(key, "x")]);
        [gate.check(&request).now().unwrap().allowed, gate.check(&request).now().unwrap().allowed]
    };
    assert_eq!(["a", "b", "c"].map(passes), [[true, true], [true, true], [true, false]]);
    assert_eq!(set.policies()[0].mode, Mode::Shadow);
}

/// Each value has a counter of its own, unless the file names the value or shares the counter.
#[test]
fn what_is_counted_together() {
    let text = "
domain: shop
descriptors:
  - key: own
    value: f*
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: shared
    value: f*
    share_threshold: true
    descriptors:
      - key: user
        rate_limit: { unit: day, requests_per_unit: 1 }
";
    let set = imported(Peer::Envoy, text).config.policies;
    let by: Vec<_> = set.policies().iter().map(|policy| policy.by.join(",")).collect();
    assert_eq!(by, ["own", "user"]);
}

/// A domain may be spread over files; they are merged, as Envoy's service does.
#[test]
fn several_files_are_one() {
    let rule = |value: &str| {
        format!(
            "domain: shop\ndescriptors: [{{ key: a, value: {value}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]\n"
        )
    };
    let (one, other) = (rule("x"), rule("y"));
    let files = [(Peer::Envoy, "one.yaml", &*one), (Peer::Envoy, "other.yaml", &*other)];
    let imported = tidegate::config::Imported::of(&files).unwrap();
    assert_eq!(imported.config.policies.len(), 2);
    let twice = [(Peer::Envoy, "one.yaml", &*one), (Peer::Envoy, "other.yaml", &*one)];
    let refused = tidegate::config::Imported::of(&twice).unwrap_err();
    assert!(
        refused
            .iter()
            .any(|one| one.to_string().starts_with("other.yaml:2:15  error  key \"a\" and value \"x\"")),
        "{refused:?}"
    );
}

const REPLACING: &str = "
domain: shop
descriptors:
  - key: kind
    value: read
    descriptors:
      - key: user
        rate_limit: { name: reads, unit: minute, requests_per_unit: 5 }
  - key: path
    value: /search
    descriptors:
      - key: user
        rate_limit: { replaces: [{ name: reads }], unit: minute, requests_per_unit: 9 }
  - key: path
    value: /a,b=|%
    rate_limit: { replaces: [{ name: reads }], unlimited: true }
";

/// In a call that meets both limits, only the replacing limit is asked.
#[test]
fn a_replaced_limit_is_not_asked_in_that_call() {
    let set = imported(Peer::Envoy, REPLACING).config.policies;
    let names = |call: &[&Entries<'_>]| -> Vec<String> {
        called("shop", call).iter().flat_map(|request| met(&set, request)).collect()
    };
    let (read, search): (&Entries<'_>, &Entries<'_>) =
        (&[("kind", "read"), ("user", "ann")], &[("path", "/search"), ("user", "ann")]);
    assert_eq!(names(&[read]), ["shop.kind_read.user"]);
    assert_eq!(names(&[search]), ["shop.path_/search.user"]);
    assert_eq!(names(&[read, search]), ["shop.path_/search.user"]);
    assert_eq!(names(&[search, read]), ["shop.path_/search.user"]);
    assert_eq!(names(&[read, &[("path", "/other"), ("user", "ann")]]), ["shop.kind_read.user"]);
    // The replacing limit needs a descriptor of another shape.
    assert_eq!(names(&[read, &[("path", "/search")]]), ["shop.kind_read.user"]);
}

/// If the replacing rule has no exact value, both limits apply, and a note says so.
#[test]
fn what_cannot_be_replaced_is_told() {
    let text = REPLACING.replace("    value: /search\n", "");
    let told = told(Peer::Envoy, &text);
    assert!(
        told.iter()
            .any(|line| line.contains("replaces: a call that matches both is limited by \"reads\" too")),
        "{told:?}"
    );
    let own = REPLACING.replacen("name: reads", "name: reads, replaces: [{ name: reads }]", 1);
    let mistakes = super::door::told(Peer::Envoy, &own);
    assert!(mistakes.iter().any(|line| line.contains("\"reads\" replaces itself")), "{mistakes:?}");
}
