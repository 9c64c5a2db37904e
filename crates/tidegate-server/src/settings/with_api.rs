//! Combines the settings of a file with the policies that were put through the API.

use std::sync::Arc;

use tidegate::config::{AddedPolicy, Config, Diagnostic, Severity};

use super::Settings;
use crate::api_policies::ApiPolicies;

impl Settings {
    /// Adds policies after those of the file, in place of those added before. Takes as long as validating the whole
    /// file.
    ///
    /// # Errors
    /// Every mistake. Mistakes in a policy have positions in its own text; duplicate names have positions in the file.
    pub(crate) fn with_api(mut self, api: &ApiPolicies) -> Result<Self, Vec<Diagnostic>> {
        if api.is_empty() && self.api.is_empty() {
            return Ok(self);
        }
        let Some(written) = &self.written else {
            let none = "policies can be put through the API only if the others are from a file, and here a program has made them";
            return Err(vec![Diagnostic::of_file("policies", Severity::Error, none.to_owned())]);
        };
        let taken = api.each().filter_map(|(name, _)| {
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
        let added: Vec<AddedPolicy<'_>> = api.each().map(|(name, text)| AddedPolicy { name, text }).collect();
        let (config, found) = Config::with_added(written, &added)?;
        // The file's warnings are among its settings already.
        let found = found.iter().filter(|warning| warning.path != config.written().name());
        self.warnings.extend(found.map(ToString::to_string));
        (self.policies, self.api) = (config.policies, Arc::new(api.clone()));
        Ok(self)
    }
}
