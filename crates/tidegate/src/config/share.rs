//! `share`: where a policy is decided, when several nodes enforce it.
//!
//! All words are words of the file; which of them can be kept depends on the store. One that is this process's own decides `local` and
//! nothing else, and a file that says otherwise is refused: counters that are not shared, where their author thinks they are, would let
//! through a multiple of the limit without a word.

use super::diagnostic::Findings;
use super::node::Node;
use super::store;
use crate::policy::Share;

/// The words, as the file has them.
pub(super) const WORDS: &[&str] =
    &[Share::ALL[0].word(), Share::ALL[1].word(), Share::ALL[2].word(), Share::ALL[3].word()];

/// Reads the word of a policy, or that of `defaults`; `None` where neither says one, and the store decides.
pub(super) fn share(node: &Node, defaults: Option<&Node>) -> Option<Share> {
    let word = node.get("share").or_else(|| defaults?.get("share"))?.text()?;
    Share::ALL.into_iter().find(|share| share.word() == word)
}

/// Refuses a word of a policy, or of `defaults`, that the configured store cannot keep.
///
/// `key` is how the message names it: `share`, or `defaults.share`.
pub(super) fn check(node: Option<&Node>, key: &str, file: &Node, findings: &mut Findings) {
    let kind = store::kind(file);
    let Some(said) = node.and_then(|node| node.get("share")) else { return };
    let Some(word) = said.text().filter(|word| WORDS.contains(word)) else { return };
    if word != Share::Local.word() && store::is_own(file) {
        findings.error(
            said.spot,
            format_args!(
                "{key}: {word} needs a store that several nodes have in common, and `store.kind: {kind}` is this process's own; \
                 write share: local, or leave it out"
            ),
        );
    }
}
