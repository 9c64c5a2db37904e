//! The formats in which a file may be written.

use std::path::Path;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2.
    Yaml,
    /// TOML 1.1, with the same tree.
    Toml,
}

impl Format {
    /// Returns the format of a file by its name: TOML for `.toml`, YAML for every other.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
        if is_toml { Self::Toml } else { Self::Yaml }
    }
}
