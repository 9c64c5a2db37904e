//! The content policy of the page: a browser may run its script, use its style sheets, and do nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// Returns a `Content-Security-Policy` under which these scripts and style sheets work. Content that a hostile name
/// could inject does not: no other script runs, nothing is loaded, nothing is sent.
pub(super) fn content_policy(scripts: &[&str], styles: &[&str]) -> String {
    let hashes = |texts: &[&str]| {
        let hash = |text: &&str| format!(" 'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())));
        texts.iter().map(hash).collect::<String>()
    };
    format!(
        "default-src 'none'; script-src{}; style-src{}; base-uri 'none'; form-action 'none'",
        hashes(scripts),
        hashes(styles)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of `alert('Hello, world.');` is an example in the standard, Content Security Policy level 3.
    #[test]
    fn hashes_are_those_of_the_standard() {
        let policy = content_policy(&["alert('Hello, world.');"], &["", "a"]);
        assert!(
            policy.contains("script-src 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=';"),
            "{policy}"
        );
        assert_eq!(policy.matches("sha256-").count(), 3);
    }
}
