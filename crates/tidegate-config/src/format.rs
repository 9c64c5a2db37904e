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
    /// Guesses the format of a text without a file name from its first line that is neither empty nor a comment: TOML
    /// if that line opens a table or assigns a key with `=`, otherwise YAML.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::Format;
    /// assert_eq!(Format::of_text("# ours\nversion: 1\npolicies: []\n"), Format::Yaml);
    /// assert_eq!(Format::of_text("version = 1\npolicies = []\n"), Format::Toml);
    /// ```
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let Some(first) = lines.next() else { return Self::Yaml };
        let is_toml = match first.find(['=', ':', '{', ']']) {
            Some(at) => {
                first.as_bytes()[at] == b'=' || (first.as_bytes()[at] == b']' && first.starts_with('['))
            }
            None => false,
        };
        if is_toml { Self::Toml } else { Self::Yaml }
    }

    /// Returns the format of a file by its extension: TOML for `.toml`, YAML for every other.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
        if is_toml { Self::Toml } else { Self::Yaml }
    }
}
