//! Names that a request has and no policy reads, with those that were probably meant.
//!
//! A name without a dot can be a program's own, so it is allowed; people are only told of the longer one.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tidegate_core::spelling::nearest;

use super::descriptor::Descriptor;
use super::in_force::Among;
use super::matching::{View, Want, plain_values};
use super::named::{BUILT_IN, Named};
use super::policy::{Absent, Direction, Mode};
use super::set::PolicySet;
use tidegate_limits::visible::excerpt;

/// How many names of policies are compared with one of a request: a file may have ten thousand.
const COMPARED: usize = 500;
/// How many names of a request are compared.
const LOOKED_UP: usize = 64;
/// How many names of a request are told.
const TOLD: usize = 5;
/// How many names of policies are listed if none is near.
const LISTED: usize = 3;
/// The attribute with the domain of a call over gRPC, and the one with the keys of its entries. Proxies' configurations
/// write both, so their values are spelled like names.
const SPELLED: [(&str, &str); 2] = [("rls.domain", "domain"), ("rls.keys", "keys")];

/// Short names and the attributes that are usually meant.
const SHORT: [(&str, &str); 30] = [
    ("x_forwarded_for", "client.ip"),
    ("x_real_ip", "client.ip"),
    ("remote_address", "client.ip"),
    ("x_api_key", "request.header.x-api-key"),
    ("authorization", "request.header.authorization"),
    ("user_agent", "request.header.user-agent"),
    ("referer", "request.header.referer"),
    ("ip", "client.ip"),
    ("ipaddr", "client.ip"),
    ("ip_addr", "client.ip"),
    ("ip_address", "client.ip"),
    ("remote_addr", "client.ip"),
    ("remote_ip", "client.ip"),
    ("source_ip", "client.ip"),
    ("uid", "user.id"),
    ("user", "user.id"),
    ("userid", "user.id"),
    ("user_id", "user.id"),
    ("user.id", "user.id"),
    ("jwt.sub", "user.id"),
    ("tier", "user.tier"),
    ("user_tier", "user.tier"),
    ("user.tier", "user.tier"),
    ("path", "request.path"),
    ("uri", "request.path"),
    ("url", "request.path"),
    ("host", "request.host"),
    ("hostname", "request.host"),
    ("method", "request.method"),
    ("direction", "request.direction"),
];

/// Returns the attribute that is probably meant by a name; `None` for a name that is right or a program's own.
pub fn meant(name: &str) -> Option<&'static str> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    let found = SHORT.iter().find(|(short, _)| *short == plain);
    found.map(|(_, long)| *long).filter(|long| *long != name)
}

impl PolicySet {
    /// Returns what a request has that no policy reads, each as a sentence without a full stop, with what was probably
    /// meant: names of attributes, and over gRPC the domain and the keys of a descriptor. If no policy meets the request,
    /// of those that it asks for (`among`), the last sentence names one that would if its mode were not off; otherwise, if
    /// no such name explains it, it says what the policy needs that comes nearest. At most eight sentences.
    ///
    /// Compares names, which takes up to some milliseconds: for people, not for each request.
    #[must_use]
    pub fn unread(&self, request: &Descriptor<'_>, among: Option<&Among>) -> Vec<String> {
        let mut told = self.unread_values(request);
        let read = self.attributes_read();
        let here = |name: &str| request.value(name).is_some();
        let wanted: BTreeSet<&str> = read
            .names()
            .filter(|name| !here(name) && !BUILT_IN.contains(name) && !name.starts_with("rls."))
            .collect();
        let strange = request
            .pairs()
            .map(|(name, _)| name)
            .filter(|name| !read.contains(name) && !BUILT_IN.contains(name) && !name.starts_with("rls."));
        let mut strange: Vec<(&str, Option<String>)> =
            strange.take(LOOKED_UP).map(|name| (name, meant_among(&read, name))).collect();
        // A name beside the one that is meant is superfluous: Envoy's remote_address is `client.ip` too. Headers are
        // named by whoever sends them.
        strange.retain(|(name, meant)| match meant {
            Some(meant) => !here(meant),
            None => !name.starts_with("request.header."),
        });
        strange.sort_by_key(|(_, meant)| meant.is_none());
        let is_explained = !told.is_empty() || strange.iter().any(|(_, meant)| meant.is_some());
        told.extend(strange.into_iter().take(TOLD).map(|(name, meant)| {
            let others = match meant {
                Some(meant) => format!("; did you mean {meant}?"),
                None if wanted.is_empty() => String::new(),
                None => listed(&wanted),
            };
            format!("no policy reads the attribute {}{others}", excerpt(name))
        }));
        if !self.meets(request, among) {
            let lacks = || if is_explained { None } else { self.nearest_lacks(request, among) };
            told.extend(self.switched_off(request, among).or_else(lacks));
        }
        told
    }

    /// Names a policy that would be about a request if its mode were not off.
    fn switched_off(&self, request: &Descriptor<'_>, among: Option<&Among>) -> Option<String> {
        let plain = plain_values(request);
        let descriptor = plain.as_ref().unwrap_or(request);
        let view = View::over(request, descriptor);
        let (_, off) = self.policies().iter().enumerate().find(|(at, policy)| {
            let there = || policy.by.iter().filter(|name| descriptor.value(name).is_some()).count();
            policy.mode == Mode::Off
                && among.is_none_or(|among| among.has(*at))
                && (policy.direction == Direction::Outbound) == view.outbound
                && policy.matching.misfit(&view).is_none()
                && there() >= policy.needs()
        })?;
        Some(format!("policy {} would be, but its mode is off", excerpt(&off.name)))
    }

    /// Says what the policy needs that lacks the fewest attributes of a request that no policy meets.
    fn nearest_lacks(&self, request: &Descriptor<'_>, among: Option<&Among>) -> Option<String> {
        let asked = self.policies().iter().enumerate();
        let asked = asked.filter(|(at, _)| among.is_none_or(|among| among.has(*at)));
        let enabled = asked.filter(|(_, policy)| policy.mode != Mode::Off);
        let lacking = enabled.filter_map(|(_, policy)| {
            let matching = &policy.matching;
            let demands = matching.attributes();
            let differs = |(name, want): &(Box<str>, Want)| match (want, request.value(name)) {
                (Want::OneOf(globs), Some(value)) => !globs.iter().any(|glob| glob.matches(value)),
                (Want::Absent, Some(_)) => true,
                _ => false,
            };
            if demands.iter().any(differs) {
                return None;
            }
            let places = [
                ("request.method", !matching.methods().is_empty()),
                ("request.host", !matching.hosts().is_empty()),
                ("request.path", !matching.paths().is_empty()),
            ];
            let places = places.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name);
            let demanded = demands.iter().filter(|(_, want)| *want != Want::Absent).map(|(name, _)| &**name);
            let by = policy.by.iter().map(String::as_str);
            let by_is_needed = match policy.absent {
                Absent::Charge => false,
                Absent::Skip => true,
                Absent::SkipIfNone => !policy.by.iter().any(|name| request.value(name).is_some()),
            };
            let lacking: BTreeSet<&str> = places
                .chain(demanded)
                .chain(by.filter(|_| by_is_needed))
                .filter(|name| request.value(name).is_none())
                .collect();
            let there = policy.by.iter().filter(|name| request.value(name).is_some()).count();
            (!lacking.is_empty()).then_some((policy, lacking, there))
        });
        // Of several, one whose key the request has.
        let nearest =
            lacking.take(COMPARED).min_by_key(|(_, lacking, there)| (lacking.len(), Reverse(*there)));
        let (policy, lacking, _) = nearest?;
        let names: Vec<&str> = lacking.into_iter().take(TOLD).collect();
        let needs = format!("policy {} needs {}", excerpt(&policy.name), names.join(", "));
        // Only calls over gRPC have a domain.
        Some(match request.value("rls.domain") {
            Some(_) => format!("{needs}; {}", entries_to_add(&names)),
            None => needs,
        })
    }

    /// Like [`PolicySet::unread`], with only the domain and the keys of a descriptor.
    pub(crate) fn unread_values(&self, request: &Descriptor<'_>) -> Vec<String> {
        SPELLED
            .into_iter()
            .filter_map(|(name, word)| {
                let value = request.value(name)?;
                let wanted = self.wanted_values(name)?;
                if wanted.contains(value) {
                    return None;
                }
                Some(format!("no policy reads the {word} \"{}\"{}", excerpt(value), instead(value, &wanted)))
            })
            .collect()
    }

    /// Returns the values that policies demand of an attribute; `None` if some policy takes other values too.
    fn wanted_values(&self, attribute: &str) -> Option<BTreeSet<&str>> {
        let mut wanted = BTreeSet::new();
        for policy in self.policies().iter().filter(|policy| policy.mode != Mode::Off) {
            for (_, want) in policy.matching.attributes().iter().filter(|(name, _)| **name == *attribute) {
                let Want::OneOf(globs) = want else { return None };
                for glob in globs {
                    wanted.extend(glob.literals()?);
                }
            }
        }
        (!wanted.is_empty()).then_some(wanted)
    }
}

/// Says which actions make Envoy send entries with these names. Its caller's address is an action of its own: an entry
/// named `client.ip` would have a fixed value or a header's.
fn entries_to_add(names: &[&str]) -> String {
    let others: Vec<&str> = names.iter().copied().filter(|name| *name != "client.ip").collect();
    match (others.len() < names.len(), others.is_empty()) {
        (true, true) => "add `- actions: [{ remote_address: {} }]`".to_owned(),
        (true, false) => {
            format!("add a descriptor_key: {} beside `- remote_address: {{}}`", others.join(" and "))
        }
        (false, _) => format!("add a descriptor_key: {}", others.join(" and ")),
    }
}

/// Returns the attribute that was probably meant by a name that no policy reads: one that policies read, or the long
/// form of a short name.
pub(crate) fn meant_among(read: &Named, name: &str) -> Option<String> {
    let mut names: Vec<&str> = read.names().filter(|read| !read.starts_with("rls.")).collect();
    names.sort_unstable();
    let near = nearest(name, names.into_iter().take(COMPARED));
    near.or_else(|| meant(name)).map(str::to_owned)
}

/// Returns the end of a sentence about a value that no policy reads.
fn instead(value: &str, wanted: &BTreeSet<&str>) -> String {
    match nearest(value, wanted.iter().copied().take(COMPARED)) {
        Some(near) => format!("; did you mean \"{}\"?", excerpt(near)),
        None => listed(wanted),
    }
}

fn listed(wanted: &BTreeSet<&str>) -> String {
    let named: Vec<String> = wanted.iter().take(LISTED).map(|value| excerpt(value)).collect();
    let more =
        if wanted.len() > LISTED { format!(" and {} more", wanted.len() - LISTED) } else { String::new() };
    format!("; they read {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Limit, Match, Policy};
    use tidegate_core::Quota;

    /// A policy of an imported file, and one of our own.
    fn set() -> PolicySet {
        let limit = || Limit::new(Quota::per_second(1).gcra().unwrap(), "1/s");
        let mut path = Policy::new("shop-ratelimit.PATH", limit());
        let fits = |value| Want::value(value).unwrap();
        path.matching =
            Match::any().attribute("rls.domain", fits("shop-ratelimit")).attribute("rls.keys", fits("PATH"));
        path.by = vec!["PATH".to_owned()];
        let mut key = Policy::new("per-key", limit());
        key.matching = Match::any().attribute("rls.domain", fits("api"));
        key.by = vec!["api.key".to_owned()];
        PolicySet::new(vec![path, key]).unwrap()
    }

    #[test]
    fn what_no_policy_reads_is_told_with_what_was_meant() {
        let set = set();
        let unread = |pairs: &[(&'static str, &'static str)]| {
            let request = pairs.iter().fold(Descriptor::new(), |all, (name, value)| all.with(*name, *value));
            assert!(!set.meets(&request, None), "{pairs:?}");
            set.unread(&request, None)
        };
        let ours = |keys| [("rls.domain", "shop-ratelimit"), ("rls.keys", keys)];
        assert_eq!(
            unread(&[("rls.domain", "shop-rate-limit"), ("rls.keys", "PATH"), ("PATH", "/")]),
            ["no policy reads the domain \"shop-rate-limit\"; did you mean \"shop-ratelimit\"?"]
        );
        assert_eq!(
            unread(&[("rls.domain", "edge"), ("rls.keys", "PATH"), ("PATH", "/")]),
            ["no policy reads the domain \"edge\"; they read api, shop-ratelimit"]
        );
        let [domain, keys] = ours("path");
        assert_eq!(
            unread(&[domain, keys, ("path", "/")]),
            [
                "no policy reads the keys \"path\"; did you mean \"PATH\"?",
                "no policy reads the attribute path; did you mean PATH?"
            ]
        );
        let [domain, keys] = ours("PATH,method");
        assert_eq!(
            unread(&[domain, keys, ("PATH", "/"), ("method", "GET")])[0],
            "no policy reads the keys \"PATH,method\"; they read PATH"
        );
        assert_eq!(
            unread(&[("rls.domain", "api"), ("api_key", "k")]),
            ["no policy reads the attribute api_key; did you mean api.key?"]
        );
    }

    /// Regression: a request that asked for one policy was told what another needs, and a policy that is off was not named.
    #[test]
    fn advice_is_about_the_policies_that_are_asked_and_names_one_that_is_off() {
        let by = |name: &str, attribute: &str, mode| {
            let mut policy = Policy::new(name, Limit::of(crate::policy::Terms::unlimited()));
            (policy.by, policy.mode) = (vec![attribute.to_owned()], mode);
            policy
        };
        let policies = vec![
            by("per-ip", "client.ip", Mode::Enforce),
            by("user", "user.id", Mode::Enforce),
            by("api", "api.key", Mode::Off),
        ];
        let set = std::sync::Arc::new(PolicySet::new(policies).unwrap());
        let told = |name: &'static str, asked: &[usize]| {
            let among = Among::new(std::sync::Arc::clone(&set), asked.iter().copied());
            set.unread(&Descriptor::new().with(name, "a"), Some(&among))
        };
        assert_eq!(told("api.key", &[1]), ["policy user needs user.id"]);
        assert_eq!(told("client.ip", &[1]), ["policy user needs user.id"]);
        assert_eq!(told("client.ip", &[0]), [""; 0]);
        assert_eq!(told("client.ip", &[2]), [""; 0], "it needs another attribute too");
        assert_eq!(told("api.key", &[2]), ["policy api would be, but its mode is off"]);
        let off = set.unread(&Descriptor::new().with("api.key", "a"), None);
        assert_eq!(off, ["policy api would be, but its mode is off"]);
    }

    /// Regression: an entry that is named `client.ip` has the same value for all callers, or one that they choose.
    #[test]
    fn envoy_is_told_to_send_the_address_by_its_own_action() {
        let told = |by: &[&str]| {
            let mut policy = Policy::new("a", Limit::of(crate::policy::Terms::unlimited()));
            policy.by = by.iter().map(|name| (*name).to_owned()).collect();
            policy.absent = Absent::Skip;
            let set = PolicySet::new(vec![policy]).unwrap();
            set.unread(&Descriptor::new().with("rls.domain", "edge"), None).concat()
        };
        assert_eq!(
            told(&["client.ip"]),
            "policy a needs client.ip; add `- actions: [{ remote_address: {} }]`"
        );
        assert_eq!(
            told(&["client.ip", "tenant"]),
            "policy a needs client.ip, tenant; add a descriptor_key: tenant beside `- remote_address: {}`"
        );
        assert_eq!(told(&["tenant"]), "policy a needs tenant; add a descriptor_key: tenant");
    }

    #[test]
    fn a_request_that_a_policy_or_a_list_leaves_out_on_purpose_is_met() {
        let mut per_ip = Policy::new("per-ip", Limit::of(crate::policy::Terms::unlimited()));
        per_ip.by = vec!["client.ip".to_owned()];
        per_ip.access.allow = ["user.role=root".parse().unwrap()].into_iter().collect();
        let set = PolicySet::new(vec![per_ip]).unwrap();
        assert!(
            set.meets(&Descriptor::new().with("client.ip", "::1"), None),
            "without a limit, as the file says"
        );
        assert!(set.meets(&Descriptor::new().with("user.role", "root"), None));
        assert!(!set.meets(&Descriptor::new().with("client", "::1"), None), "it has no key");
    }

    #[test]
    fn only_short_forms_are_near() {
        let meant =
            ["ip", "User", "user-id", "User.ID", "user.id", "tenant", "client.id", "form.user"].map(meant);
        let user = Some("user.id");
        assert_eq!(meant, [Some("client.ip"), user, user, user, None, None, None, None]);
    }
}
