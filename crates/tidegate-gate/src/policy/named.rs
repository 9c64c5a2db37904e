//! The attributes that policies name: a server must keep these of a request, since they decide who is limited, and may drop
//! all others.

use std::collections::HashSet;

use foldhash::fast::RandomState;

/// The attributes that Tidegate itself defines, without the headers.
pub const BUILT_IN: [&str; 5] =
    ["client.ip", "request.direction", "request.host", "request.method", "request.path"];

/// The attributes that the policies of a set name, in matches, keys, tiers, overrides, costs and lists.
///
/// Includes the names in policies that are switched off, so that a decision can be explained under them. A lookup takes one
/// hash, and one comparison per prefix.
#[derive(Clone, Debug, Default)]
pub struct Named {
    names: HashSet<String, RandomState>,
    /// Prefixes with a final dot: every attribute that begins with one is named.
    prefixes: Vec<String>,
}

impl Named {
    /// Reports whether an attribute is named.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// Reports whether any attribute that begins with `start` is named; `start` ends with a dot.
    #[must_use]
    pub fn reaches(&self, start: &str) -> bool {
        self.names().any(|name| name.starts_with(start))
            || self
                .prefixes
                .iter()
                .any(|prefix| prefix.starts_with(start) || start.starts_with(prefix.as_str()))
    }

    /// Returns the names that are written out. An expression may use others too: see [`Named::contains`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Adds the name of an attribute, and with `group` also all names that continue it after a dot.
    pub(super) fn add_name(&mut self, name: &str, group: bool) {
        if group { self.add_with_fields(name) } else { self.add(name) }
    }

    /// Adds the name of an attribute.
    pub(super) fn add(&mut self, name: &str) {
        if !self.names.contains(name) {
            self.names.insert(name.to_owned());
        }
    }

    /// Adds the name of an attribute and all names that continue it after a dot: which member of a group an expression
    /// uses is known only at evaluation.
    fn add_with_fields(&mut self, name: &str) {
        self.add(name);
        let prefix = format!("{name}.");
        if !self.prefixes.contains(&prefix) {
            self.prefixes.push(prefix);
        }
    }
}

#[cfg(test)]
#[cfg(feature = "cel")]
mod tests {
    use tidegate::config::Config;
    use tidegate::config::Format;

    fn named(policy: &str) -> tidegate::policy::Named {
        let file = format!("version: 1\naccess: {{ allow: [\"user.role=root\"] }}\npolicies: [{policy}]\n");
        Config::parse(&file, "f", Format::Yaml).unwrap().0.policies.named()
    }

    #[test]
    fn whatever_decides_is_named() {
        let named = named(
            "{ name: a, by: [user.id], cost: llm.tokens, access: { deny: [\"user.name=eve\"] },
               match: { header: { X-Plan: [a, b] }, attributes: { user.tier: false }, not: { header: { x-in: true } } },
               limit: { rate: { by: user.plan, values: { a: 1/s }, otherwise: 2/s },
                        overrides: [{ key: { user.id: vip }, rate: 9/s }] } }",
        );
        let names =
            ["user.id", "llm.tokens", "user.name", "user.tier", "user.plan", "user.role", "client.ip"];
        for name in names.into_iter().chain(["request.header.x-plan", "request.header.x-in", "request.path"])
        {
            assert!(named.contains(name), "{name}: {named:?}");
        }
        assert!(!named.contains("request.header.x-other") && !named.contains("user.plans"));
    }

    #[test]
    fn method_host_and_path_are_looked_at_where_a_policy_asks_for_them() {
        let places = |policy: &str| {
            let file = format!("version: 1\npolicies: [{policy}]\n");
            let looked_at = Config::parse(&file, "f", Format::Yaml).unwrap().0.policies.attributes_read();
            ["request.method", "request.host", "request.path", "client.ip"]
                .map(|name| looked_at.contains(name))
        };
        let with = |rest: &str| places(&format!("{{ name: a, limit: {{ rate: 1/s }}, {rest} }}"));
        assert_eq!(with("by: [client.ip]"), [false, false, false, true]);
        assert_eq!(with("match: { method: GET }"), [true, false, false, false]);
        assert_eq!(with("match: { host: a.example }"), [false, true, false, false]);
        assert_eq!(with("match: { path: /a, not: { method: GET } }"), [true, false, true, false]);
        assert_eq!(with("by: [request.path]"), [false, false, true, false]);
        assert_eq!(with("access: { deny: [\"request.host=a.example\"] }"), [false, true, false, false]);
        assert_eq!(with("cost: \"size(request.path)\""), [false, false, true, false]);
    }

    #[test]
    fn what_an_expression_may_look_up_is_named() {
        for (cost, reaches, not) in [
            ("int(llm.tokens) + 1", "llm.tokens", "llm.model"),
            ("int(request.header['x-batch'])", "request.header.x-batch", "request.head"),
            ("has(request.header.cost) ? 2 : 1", "request.header.cost", "request.header.other"),
            ("size(request.header) > 9 ? 2 : 1", "request.header.x", "user.id"),
            ("user.tier in ['a', client.asn] ? 2 : 1", "client.asn", "user.id"),
            ("{'a': user.tier}['a'] == 'b' ? 2 : 1", "user.tier", "user.id"),
            ("request.header[request.header['x-which']].size()", "request.header.any", "user.id"),
        ] {
            let named = named(&format!("{{ name: a, limit: {{ rate: 1/s }}, cost: \"{cost}\" }}"));
            assert!(named.contains(reaches) && !named.contains(not), "{cost}: {named:?}");
            assert_eq!(named.reaches("request.header."), reaches.starts_with("request.header."), "{cost}");
        }
    }
}
