//! Commented example files to start from, and the file that `serve` uses if there is none.
//!
//! Each is a valid file as it stands.

use super::file::Format;

/// The use case of an example file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// An HTTP API: one limit for all callers, a limit per address, tiers per user.
    Api,
    /// A login form: guesses per address and name, messages per phone.
    Login,
    /// Outbound calls to a third-party API, kept within the limit of that API.
    Outbound,
    /// All of these.
    All,
}

impl Preset {
    /// All presets, in the order they are offered.
    pub const EVERY: [Self; 4] = [Self::Api, Self::Login, Self::Outbound, Self::All];

    /// Returns the file in a format, with comments. Both formats hold the same settings and policies.
    ///
    /// A policy by `client.ip` causes a warning: only the reader knows whether there is a proxy.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{Config, Format, Preset};
    /// let text = Preset::Outbound.text(Format::Toml);
    /// let (config, _) = Config::parse(&text, "tidegate.toml", Format::Toml).unwrap();
    /// assert_eq!(config.policies.len(), 1);
    /// ```
    #[must_use]
    pub fn text(self, format: Format) -> String {
        let [header, api, login, outbound] = match format {
            Format::Yaml => YAML,
            Format::Toml => TOML,
        };
        let policies = match self {
            Self::Api => api.to_owned(),
            Self::Login => login.to_owned(),
            Self::Outbound => outbound.to_owned(),
            Self::All => [api, login, outbound].join("\n"),
        };
        format!("{header}{policies}")
    }
}

/// The configuration of `serve` without a file. Its limits are so low that fifteen requests in a row meet a refusal.
pub const QUICKSTART: &str = "\
# yaml-language-server: $schema=./tidegate.schema.json
version: 1
client_ip: { trusted_proxies: [] }
policies:
  - name: everyone
    limit: { algorithm: gcra, rate: 5000/s, burst: 5000 }
    deny: { status: 503 }
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 5/s, burst: 10 }
";

/// The text above the policies, then the policies of `api`, `login` and `outbound`.
const YAML: [&str; 4] = [
    include_str!("preset/header.yaml"),
    include_str!("preset/api.yaml"),
    include_str!("preset/login.yaml"),
    include_str!("preset/outbound.yaml"),
];

/// The same in TOML.
const TOML: [&str; 4] = [
    include_str!("preset/header.toml"),
    include_str!("preset/api.toml"),
    include_str!("preset/login.toml"),
    include_str!("preset/outbound.toml"),
];
