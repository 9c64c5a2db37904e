//! How finished work ended, as callers report it: by a word, or by the HTTP status of the work.

use std::ops::RangeInclusive;

use tidegate::Outcome;

/// The statuses that can be reported.
pub(crate) const STATUSES: RangeInclusive<u16> = 100..=599;

/// The words for outcomes of the work.
pub(crate) const OUTCOMES: [(&str, Option<Outcome>); 6] = [
    ("success", Some(Outcome::Success)),
    ("callers-fault", Some(Outcome::CallersFault)),
    ("failure", Some(Outcome::Failure)),
    ("overloaded", Some(Outcome::Overloaded)),
    ("ignored", Some(Outcome::Ignored)),
    ("undone", None),
];

/// How the work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkEnd {
    With(Outcome),
    /// The work was not done.
    Undone,
}

impl WorkEnd {
    /// Finds an outcome by its word; `None` if the word is unknown.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let (_, outcome) = OUTCOMES.iter().find(|(known, _)| *known == word)?;
        Some(outcome.map_or(Self::Undone, Self::With))
    }

    /// Returns the outcome that the work's status means; `None` if it is not a status.
    pub(crate) fn of_status(status: u16) -> Option<Self> {
        STATUSES.contains(&status).then(|| Self::With(Outcome::from_status(status)))
    }

    /// Lists all words, for messages.
    pub(crate) fn known_words() -> String {
        OUTCOMES.map(|(word, _)| word).join(", ")
    }

    /// Returns the word.
    pub(crate) fn word(self) -> &'static str {
        let meant = match self {
            Self::With(outcome) => Some(outcome),
            Self::Undone => None,
        };
        OUTCOMES.iter().find(|(_, outcome)| *outcome == meant).map_or("ignored", |(word, _)| word)
    }
}
