//! Policies that were put through the API, each in its own text. They are in force after those of the file.
//!
//! Each name has one owner: the file cannot use a name that the API has, nor the API one of the file. With two owners,
//! a reload would undo a request, or the other way round.

mod saved;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use self::saved::SavedPolicies;

/// The most policies that the API may have.
pub(crate) const MOST: usize = 1000;
/// The longest text of a policy, in bytes. Most policies have a few hundred bytes, those with long lists more.
pub(crate) const MAX_TEXT: usize = 64 << 10;
/// The most bytes of all texts together, as many as a file may have.
const MAX_TEXTS: usize = 4 << 20;

/// The texts by name, in the order of the names. Immutable: a change makes a new value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiPolicies(BTreeMap<Arc<str>, Arc<str>>);

/// The error if there is no room for another policy, or for a text of its length.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error(
        "{MOST} policies were put through the API, which is the largest number possible; delete one first"
    )]
    Policies,
    #[error("the policies put through the API would have {0} bytes together; at most {MAX_TEXTS} are kept")]
    Bytes(usize),
}

impl ApiPolicies {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of a policy.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|text| &**text)
    }

    /// Adds a policy, or replaces it.
    ///
    /// # Errors
    /// [`NoRoom`] if there are too many policies, or their texts are too long together.
    pub(crate) fn with(&self, name: &str, text: &str) -> Result<Self, NoRoom> {
        let mut texts = self.0.clone();
        texts.insert(name.into(), text.into());
        if texts.len() > MOST {
            return Err(NoRoom::Policies);
        }
        let bytes: usize = texts.iter().map(|(name, text)| name.len() + text.len()).sum();
        if bytes > MAX_TEXTS { Err(NoRoom::Bytes(bytes)) } else { Ok(Self(texts)) }
    }

    /// Returns the policies without this one.
    pub(crate) fn without(&self, name: &str) -> Self {
        let mut texts = self.0.clone();
        texts.remove(name);
        Self(texts)
    }

    /// Returns each name with its text, in the order of the names.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (&**name, &**text))
    }
}
