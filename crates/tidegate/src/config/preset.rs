//! Commented files to start from, and what `serve` enforces without a file.
//!
//! Each is a valid file as it is, and tests make sure of that.

use std::fmt;
use std::str::FromStr;

/// What a starting file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// An HTTP API: a shield for all, a limit per address, tiers per user.
    Api,
    /// A login form: guesses per address and name, messages per phone.
    Login,
    /// Calls that we make to somebody else, whose limit we keep by ourselves.
    Outbound,
    /// All of them.
    All,
}

impl Preset {
    /// Every preset, in the order they are offered.
    pub const EVERY: [Self; 4] = [Self::Api, Self::Login, Self::Outbound, Self::All];

    /// Returns the word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Login => "login",
            Self::Outbound => "outbound",
            Self::All => "all",
        }
    }

    /// Returns the file, as YAML with comments.
    #[must_use]
    pub fn text(self) -> String {
        let policies = match self {
            Self::Api => API.to_owned(),
            Self::Login => LOGIN.to_owned(),
            Self::Outbound => OUTBOUND.to_owned(),
            Self::All => [API, LOGIN, OUTBOUND].join("\n"),
        };
        format!("{HEADER}{policies}")
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The word names no preset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown preset \"{found}\"; possible are api, login, outbound, all")]
pub struct UnknownPreset {
    found: String,
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        let found = Self::EVERY.into_iter().find(|preset| preset.name() == text);
        found.ok_or_else(|| UnknownPreset { found: text.to_owned() })
    }
}

/// What `serve` enforces when there is no file: so little that fifteen requests in a row see a refusal.
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

const HEADER: &str = "\
# yaml-language-server: $schema=./tidegate.schema.json
#
# Tidegate policies. Three things to know:
#   * All policies that match a request are tried in the order of this file.
#   * A deny charges none of the policies: whoever is refused by the third has not spent the first two.
#   * Counters survive a reload: a policy of the same name and key keeps what was spent, and a new rate holds at once.
#
# Check it with `tidegate config check`; a file with a mistake is refused and the running one stays.
version: 1

server:
  http: 127.0.0.1:8080          # checks; only this machine reaches it
  admin: 127.0.0.1:9080         # dashboard, metrics

client_ip:
  trusted_proxies: []           # the networks of your own proxies, as [10.0.0.0/8]; nobody else's header is believed
  header: x-forwarded-for
  ipv6_prefix: 64               # one customer has a /64: it is one caller

# forward_auth: { proxy: nginx }  # or caddy, traefik: which proxy asks /v1/forward-auth; until it is said nobody may

store:
  kind: memory
  keys: 1000000                 # the most callers remembered at once

defaults:
  mode: enforce                 # or shadow: measure first, refuse later
  near_limit: 80%
  on_store_error: local         # when the store is gone, each process decides by itself
  headers: draft-11

policies:
";

const API: &str = "  # A shield for everyone together. 503, not 429: it is we who are short, not this caller who is over a quota.
  - name: global-protect
    limit: { algorithm: token-bucket, rate: 5000/s, burst: 5000 }
    deny: { status: 503, problem: temporary-reduced-capacity }

  # Each address by itself: 100 per second, up to 200 at once after a pause.
  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { algorithm: gcra, rate: 100/s, burst: 200 }
    shadow_limit: { rate: 80/s }          # measured beside the real limit, never enforced: what would 80/s refuse?

  # Users by tier. Requests without user.id are not limited here.
  - name: per-user-tier
    match: { path: /api/** }
    by: [user.id]
    limit:
      algorithm: sliding-window
      rate_by: user.tier
      rates: { free: 60/min, pro: 600/min, staff: unlimited }
      otherwise: 60/min
    cost: { by: request.method, values: { POST: 5 }, otherwise: 1 }
";

const LOGIN: &str =
    "  # Three wrong passwords an hour, for each address and name. A report of success forgets; unreported is a failure.
  - name: login
    match: { method: POST, path: /login }
    by: [client.ip, form.username]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
    on_store_error: deny                  # guessing must not become free when the store is gone
    deny: { problem: abnormal-usage-detected }

  # Messages cost money: five a day where the user lives, and not twice a minute.
  - name: sms-per-phone
    by: [sms.phone]
    limits:
      - { algorithm: fixed-window, rate: 5/day, calendar: Asia/Shanghai }
      - { algorithm: fixed-window, rate: 1/min }
";

const OUTBOUND: &str =
    "  # Somebody else's limit, kept on our side: calls are delayed up to ten seconds instead of refused.
  - name: partner-api
    direction: outbound
    match: { host: api.partner.example }
    limit: { algorithm: leaky-bucket, rate: 30/s, queue: 300, max_wait: 10s }
";
