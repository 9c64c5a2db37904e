//! Policies that were put through the API, each in the text that was put; they are in force behind those of the file.
//!
//! A name has one owner. The file cannot take a name that the API has, nor the API one of the file: with two owners, a reload would undo
//! what a request has put, or the other way round.

mod kept;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate::config::{AddedPolicy, Diagnostic, Severity};

pub(crate) use self::kept::KeptPolicies;
use crate::settings::Settings;

/// The most policies.
pub(crate) const MOST: usize = 1000;
/// The longest text of one, in bytes: policies have some hundred, those with long lists more.
pub(crate) const MAX_TEXT: usize = 64 << 10;
/// The most bytes of all texts, as many as a file may have.
const MAX_TEXTS: usize = 4 << 20;

/// The texts by their names, in the order of the names. A change makes another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiPolicies(BTreeMap<Arc<str>, Arc<str>>);

/// There is no room for one more policy, or for one so long.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("{MOST} policies were put through the API, which are as many as there may be; delete one first")]
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
    /// [`NoRoom`].
    pub(crate) fn with(&self, name: &str, text: &str) -> Result<Self, NoRoom> {
        let mut texts = self.0.clone();
        texts.insert(name.into(), text.into());
        if texts.len() > MOST {
            return Err(NoRoom::Policies);
        }
        let bytes: usize = texts.iter().map(|(name, text)| name.len() + text.len()).sum();
        if bytes > MAX_TEXTS { Err(NoRoom::Bytes(bytes)) } else { Ok(Self(texts)) }
    }

    /// Leaves a policy out.
    pub(crate) fn without(&self, name: &str) -> Self {
        let mut texts = self.0.clone();
        texts.remove(name);
        Self(texts)
    }

    /// Returns the settings of a file with these policies behind its own. Takes as long as to validate the whole file.
    ///
    /// # Errors
    /// Every mistake: those of the policies at their places in their texts, and names that the file has too at their places there.
    pub(crate) fn join(&self, settings: Settings) -> Result<Settings, Vec<Diagnostic>> {
        if self.is_empty() && settings.api.is_empty() {
            return Ok(settings);
        }
        let Some(written) = &settings.written else {
            let none = "policies put through the API need those of a file, and here a program has made them";
            return Err(vec![Diagnostic::of_file("policies", Severity::Error, none.to_owned())]);
        };
        let taken = self.0.keys().filter_map(|name| {
            let place = written.place(name)?;
            let message = format!(
                "policy {name:?} is owned by the API, which keeps its name: give this one another, or DELETE /v1/policies/{name} first"
            );
            Some(Diagnostic::of_file(&place, Severity::Error, message))
        });
        let taken: Vec<Diagnostic> = taken.collect();
        if !taken.is_empty() {
            return Err(taken);
        }
        let added: Vec<AddedPolicy<'_>> =
            self.0.iter().map(|(name, text)| AddedPolicy { name, text }).collect();
        let (config, found) = written.with_added(&added)?;
        let mut settings = settings;
        // Those of the file are among its settings already.
        let found = found.iter().filter(|warning| warning.path != config.written().name());
        settings.warnings.extend(found.map(ToString::to_string));
        (settings.policies, settings.api) = (config.policies, Arc::new(self.clone()));
        Ok(settings)
    }
}
