//! Texts that nobody would write as a policy file: each is refused quickly and without a panic.

use proptest::prelude::*;
use tidegate::config::Format;

use super::{mistakes, yaml};

/// Nine levels of nine aliases: half a billion scalars if expanded.
#[test]
fn an_alias_bomb_is_refused_quickly() {
    let mut text = "version: 1\nx-0: &x0 [a, a, a, a, a, a, a, a, a]\n".to_owned();
    for level in 1..9 {
        let below = vec![format!("*x{}", level - 1); 9].join(", ");
        text += &format!("x-{level}: &x{level} [{below}]\n");
    }
    text += "policies: []\n";
    let found = yaml(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("cannot be read as YAML"), "{found:?}");
}

#[test]
fn depth_is_refused() {
    for text in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), "a:\n ".repeat(1000)] {
        assert!(!yaml(&text).is_empty());
        assert!(!mistakes(&format!("a = {text}"), Format::Toml).is_empty());
    }
}

fn scalar() -> impl Strategy<Value = String> {
    let words = "100/s|60/m|unlimited|gcra|concurrency|fixed-window|warm-up|client.ip|/a/\\*\\*|/\\{a|10.0.0.0/8|80%|-1|1.5|0x1F|2min|true|~|UTC|'x|\\*x|&x|\\[|\\{|\\]|\\}|!!int|1 \\? 2 : 3|a.b|\"";
    prop_oneof![words, ".{0,12}"]
}

fn known_key() -> impl Strategy<Value = String> {
    "version|policies|name|limit|limits|rate|burst|by|cost|match|path|not|header|access|allow|deny|status|values|otherwise|overrides|key|calendar|mode|shadow_limit|server|http|store|defaults|client_ip|trusted_proxies|[a-z]{1,8}"
}

/// Generates lines that resemble a policy file.
fn almost_a_file() -> impl Strategy<Value = String> {
    let line = (0..5_usize, any::<bool>(), known_key(), scalar()).prop_map(|(depth, dash, key, value)| {
        format!("{}{}{key}: {value}\n", "  ".repeat(depth), if dash { "- " } else { "" })
    });
    let flow = proptest::collection::vec((known_key(), scalar()), 0..6).prop_map(|pairs| {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        format!("version: 1\npolicies: [{{ name: a, limit: {{ {} }} }}]\n", pairs.join(", "))
    });
    prop_oneof![proptest::collection::vec(line, 0..20).prop_map(|lines| lines.concat()), flow]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = yaml(&text);
        let _ = mistakes(&text, Format::Toml);
    }

    #[test]
    fn nothing_like_a_file_panics(text in almost_a_file()) {
        for found in yaml(&text) {
            // The place lies within the text, except for an early end of the text.
            let line: usize = found.split(':').nth(1).and_then(|line| line.parse().ok()).unwrap_or(0);
            // YAML also counts a carriage return as the end of a line.
            let lines = text.matches(['\n', '\r']).count() + 1;
            prop_assert!((1..=lines).contains(&line), "{}", found);
        }
        let _ = mistakes(&text.replace(": ", " = "), Format::Toml);
    }
}
