//! The whole configuration in effect, with the origin of each value.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::keys::{
    ADAPTIVE, ALGORITHMS, BREAKER, CANARY_GUARD, CONCURRENCY, DEFAULTS, FILE, INHERITED, KINDS, Kind, Table,
};
use super::node::{Node, Value};
use tidegate_gate::policy::{Deny, WrittenRate};

/// The configuration in effect: the values of the file, and defaults for what the file leaves out.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Effective {
    /// The tree of the file with every default filled in.
    pub value: Json,
    /// The origin of each leaf, by its path (`policies.0.limit.rate`): `tidegate.yaml:12` or `default`.
    pub origins: BTreeMap<String, String>,
}

impl Effective {
    /// Returns the tree as YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        // A tree of texts, numbers, lists and maps is always YAML.
        serde_saphyr::to_string(&self.value).unwrap_or_default()
    }

    pub(super) fn of(file: &Node, paths: &[String]) -> Self {
        let mut walk = Walk { paths, defaults: file.get("defaults"), origins: BTreeMap::new() };
        let value = walk.table(Some(file), &FILE, "");
        Self { value, origins: walk.origins }
    }
}

/// Returns a default as the file would be parsed: a number if possible, otherwise a text.
pub(super) fn default_value(written: &str) -> Json {
    written.parse::<u64>().map_or_else(|_| Json::from(written), Json::from)
}

struct Walk<'a> {
    /// The name of each text, by its number.
    paths: &'a [String],
    defaults: Option<&'a Node>,
    origins: BTreeMap<String, String>,
}

impl Walk<'_> {
    fn table(&mut self, node: Option<&Node>, table: &Table, at: &str) -> Json {
        let mut map = Map::new();
        for key in table.keys {
            let here = if at.is_empty() { key.name.to_owned() } else { format!("{at}.{}", key.name) };
            match (node.and_then(|node| node.get(key.name)), &key.kind) {
                (_, kind) if table.name == "policy" && key.name == "deny" => {
                    if let Some(deny) = node.and_then(|policy| self.deny(policy, kind, &here)) {
                        map.insert(key.name.to_owned(), deny);
                    }
                }
                (Some(value), kind) => {
                    map.insert(key.name.to_owned(), self.value(value, kind, &here));
                }
                (None, Kind::Table(inner))
                    if table.name == FILE.name && !matches!(inner.name, "access" | "forward_auth")
                        || inner.name == CANARY_GUARD.name =>
                {
                    map.insert(key.name.to_owned(), self.table(None, inner, &here));
                }
                (None, _) => {
                    if let Some(value) = self.default(node, key.name, table, key.default, &here) {
                        map.insert(key.name.to_owned(), value);
                    }
                }
            }
        }
        Json::Object(map)
    }

    /// Returns how refusals of a policy are answered. If different refusals have different statuses, shows only what
    /// the file says.
    fn deny(&mut self, policy: &Node, kind: &Kind, at: &str) -> Option<Json> {
        let node = policy.get("deny");
        let mut shown = node.map_or_else(|| Json::Object(Map::new()), |node| self.value(node, kind, at));
        let stated = node.and_then(|node| node.text_of("status")?.parse().ok());
        let Json::Object(map) = &mut shown else { return Some(shown) };
        if let Some(status) = stated.or_else(|| refusal_status(policy)) {
            let deny = Deny::with_status(status);
            let problem = deny.problem.trim_start_matches(Deny::TYPES);
            for (name, value) in [("status", Json::from(status)), ("problem", Json::from(problem))] {
                if !map.contains_key(name) {
                    map.insert(name.to_owned(), value);
                    self.origins.insert(format!("{at}.{name}"), "default".to_owned());
                }
            }
        }
        (!map.is_empty()).then_some(shown)
    }

    fn default(
        &mut self,
        node: Option<&Node>,
        name: &str,
        table: &Table,
        own: Option<&str>,
        at: &str,
    ) -> Option<Json> {
        if table.name == "policy" && INHERITED.contains(&name) {
            if let Some(stated) = self.defaults.and_then(|defaults| defaults.get(name)) {
                return Some(self.value(stated, &Kind::Text, at));
            }
            let default = DEFAULTS.key(name).and_then(|key| key.default)?;
            self.origins.insert(at.to_owned(), "default".to_owned());
            return Some(default_value(default));
        }
        // A limit shows only the parameters of its own algorithm. A shadow limit and a canary take missing ones from the
        // limit.
        let algorithm = node.and_then(|node| node.get("algorithm")).and_then(Node::text).unwrap_or("gcra");
        if table.name == "limit" && name == "burst" && takes_burst(algorithm) {
            let WrittenRate::Per { count, .. } = node?.get("rate")?.text()?.parse().ok()? else {
                return None;
            };
            self.origins.insert(at.to_owned(), "default, the count of the rate".to_owned());
            return Some(Json::from(count));
        }
        if table.name == "limit"
            && algorithm == BREAKER
            && !matches!(name, "algorithm" | "profile" | "replace")
        {
            let word = super::breaker::in_effect(node?, name)?;
            self.origins.insert(at.to_owned(), "default, of the profile".to_owned());
            return Some(default_value(&word));
        }
        if table.name == "limit" && algorithm == ADAPTIVE && !matches!(name, "algorithm" | "replace") {
            let word = super::adaptive::in_effect(node?, name)?;
            self.origins.insert(at.to_owned(), "default, of the law".to_owned());
            return Some(default_value(&word));
        }
        let foreign = match table.name {
            "limit" => match name {
                "buckets" => algorithm != "sliding-window",
                "refill" => algorithm != "token-bucket",
                "ttl" => !matches!(algorithm, CONCURRENCY | BREAKER),
                "profile" => algorithm != BREAKER,
                "law" => algorithm != ADAPTIVE,
                _ => false,
            },
            "shadow_limit" | "canary.limit" => true,
            "store" => {
                let kind = node.and_then(|node| node.get("kind")).and_then(Node::text).unwrap_or(KINDS[0]);
                !super::store::has(kind, name)
            }
            // A cost shows only the keys of its own form.
            "cost" => {
                let has = |key: &str| node.is_some_and(|node| node.get(key).is_some());
                match name {
                    "otherwise" => !has("by"),
                    _ => !has("estimate"),
                }
            }
            _ => false,
        };
        let value = own.filter(|_| !foreign)?;
        self.origins.insert(at.to_owned(), "default".to_owned());
        Some(default_value(value))
    }

    fn value(&mut self, node: &Node, kind: &Kind, at: &str) -> Json {
        match (kind, &node.value) {
            (Kind::Table(table) | Kind::Either(_, Kind::Table(table)), Value::Map(_)) => {
                self.table(Some(node), table, at)
            }
            (Kind::OneOrMany(of @ Kind::Table(table)), _) if table.name == "limit" => match node.value {
                Value::List(_) => self.value(node, &Kind::List(of), at),
                _ => self.value(node, of, at),
            },
            (Kind::List(of), Value::List(nodes)) => {
                let each = nodes
                    .iter()
                    .enumerate()
                    .map(|(index, node)| self.value(node, of, &format!("{at}.{index}")));
                Json::Array(each.collect())
            }
            // What turns switches off: by name, one or a list.
            (Kind::Map(_, Kind::OneOrMany(of @ Kind::Table(table))), Value::Map(entries)) => {
                let each = entries.iter().map(|(name, node)| {
                    let at = format!("{at}.{}", name.text);
                    let shown = match node.value {
                        Value::List(_) => self.value(node, &Kind::List(of), &at),
                        _ => self.table(Some(node), table, &at),
                    };
                    (name.text.clone(), shown)
                });
                Json::Object(each.collect())
            }
            _ => {
                let path = self.paths.get(usize::from(node.spot.text)).map_or("", String::as_str);
                self.origins.insert(at.to_owned(), format!("{path}:{}", node.spot.line));
                match kind {
                    Kind::OneOrMany(Kind::Condition) => conditions_in_effect(node),
                    // The condition of a switch, which lasts longer than one of a policy.
                    Kind::Condition => node
                        .text()
                        .and_then(super::conditions::of_switch_in_effect)
                        .map_or_else(|| plain(node), Json::from),
                    _ => plain(node),
                }
            }
        }
    }
}

/// Returns the default status of a policy's refusals; `None` if a guard or `deadline` refuses with another status than
/// its other limits.
fn refusal_status(policy: &Node) -> Option<u16> {
    let limits = policy.each_of("limit").iter();
    let is_guard =
        |limit: &Node| matches!(limit.text_of("algorithm"), Some(CONCURRENCY | BREAKER | ADAPTIVE));
    let mut guards = limits.map(is_guard).chain(policy.get("deadline").map(|_| true));
    let first = guards.next()?;
    guards.all(|guard| guard == first).then_some(if first { 503 } else { 429 })
}

/// Returns conditions with every part that the file leaves out.
fn conditions_in_effect(node: &Node) -> Json {
    match &node.value {
        Value::Text(text) => super::conditions::in_effect(text).map_or_else(|| plain(node), Json::from),
        Value::List(nodes) => Json::Array(nodes.iter().map(conditions_in_effect).collect()),
        _ => plain(node),
    }
}

fn takes_burst(algorithm: &str) -> bool {
    ALGORITHMS.iter().any(|known| known.name == algorithm && known.takes.contains(&"burst"))
}

fn plain(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::from(*value),
        Value::Number(text) => serde_json::from_str(text).unwrap_or_else(|_| Json::from(text.as_str())),
        Value::Text(text) => Json::from(text.as_str()),
        Value::List(nodes) => Json::Array(nodes.iter().map(plain).collect()),
        Value::Map(entries) => {
            Json::Object(entries.iter().map(|(name, node)| (name.text.clone(), plain(node))).collect())
        }
    }
}
