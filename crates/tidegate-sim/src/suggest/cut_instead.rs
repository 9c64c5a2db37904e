//! The narrower question whose answer cuts what a suggestion spares.
//!
//! A guesser who is slower than readers of pages is far faster than anybody else at `/login`; a scraper that is slower
//! than an office stands out among those who do not sign in. So the log is asked again about such requests alone, and
//! the question is told if its answer cuts the key.

use tidegate::policy::{GlobError, Match, Want};

use super::group_policies::literal;
use super::outliers::Fate;
use super::suggestion::{Finding, Instead, Suggestion};

/// The most questions asked.
const ASKED: usize = 2;

/// A question worth asking.
pub(super) struct Question {
    key: String,
    name: &'static str,
    pattern: String,
}

impl Question {
    /// Returns which requests it is about.
    pub(super) fn matching(&self) -> Result<Match, GlobError> {
        match self.name {
            "path" => Match::any().path(&self.pattern),
            name => Ok(Match::any().attribute(name, Want::Absent)),
        }
    }

    /// Returns the answer, if it cuts the key.
    pub(super) fn answered(self, by: &Suggestion) -> Option<Instead> {
        let proposal = by.recommended().filter(|_| by.finding == Finding::Gap)?;
        let Self { key, name, pattern } = self;
        let cuts = proposal.hit.iter().any(|hit| hit.key == key);
        cuts.then(|| Instead { key, name: name.to_owned(), pattern, proposal: proposal.clone() })
    }
}

/// Returns the questions about the keys that a suggestion does not cut, those that no limit catches first.
pub(super) fn questions(found: &Suggestion) -> Vec<Question> {
    let spared = found.stand_out.iter().filter(|key| key.fate != Fate::Cut);
    let ask = |key: &str, name, pattern| Question { key: key.to_owned(), name, pattern };
    let mut out = Vec::new();
    for key in spared {
        let path = key.signs.path.as_deref().filter(|path| path.starts_with('/'));
        out.extend(path.map(|path| ask(&key.key, "path", literal(path))));
        if !key.signed_in && found.keys_signed_in > 0 {
            out.push(ask(&key.key, "user.id", "false".to_owned()));
        }
    }
    out.truncate(ASKED);
    out
}
