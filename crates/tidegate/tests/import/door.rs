//! Descriptors as the gRPC door passes them to the gate.

use tidegate::config::{Imported, Peer};
use tidegate::policy::{Descriptor, PolicySet};

pub(crate) type Entries<'e> = [(&'e str, &'e str)];

/// Returns the request for one descriptor, at `index` in a call with no other descriptor.
pub(crate) fn described(domain: &str, index: usize, entries: &Entries<'_>) -> Descriptor<'static> {
    one_of(domain, index, entries, &[entries])
}

/// Returns a request for each descriptor of a call.
pub(crate) fn called(domain: &str, call: &[&Entries<'_>]) -> Vec<Descriptor<'static>> {
    call.iter().enumerate().map(|(index, entries)| one_of(domain, index, entries, call)).collect()
}

fn one_of(domain: &str, index: usize, entries: &Entries<'_>, call: &[&Entries<'_>]) -> Descriptor<'static> {
    let mut request = Descriptor::new();
    for (at, (key, value)) in entries.iter().enumerate() {
        let before = entries[..at].iter().filter(|(other, _)| other == key).count();
        let name = if before == 0 { (*key).to_owned() } else { format!("{key}.{}", before + 1) };
        request.push(format!("rls.entry.{name}"), (*value).to_owned());
        request.push(name, (*value).to_owned());
    }
    let keys: Vec<_> = entries.iter().map(|(key, _)| *key).collect();
    request.push("rls.domain", domain.to_owned());
    request.push("rls.keys", keys.join(","));
    request.push("rls.index", index.to_string());
    let spelled = |entries: &&Entries<'_>| {
        entries.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    };
    request.push("rls.call", format!("|{}|", call.iter().map(spelled).collect::<Vec<_>>().join("|")));
    request
}

/// Returns the names of the policies that a descriptor meets.
pub(crate) fn met(set: &PolicySet, request: &Descriptor<'_>) -> Vec<String> {
    let fitting = set.policies().iter().filter(|policy| policy.matching.matches(request));
    let there = fitting.filter(|policy| policy.by.iter().all(|name| request.value(name).is_some()));
    there.map(|policy| policy.name.clone()).collect()
}

/// Returns what a descriptor meets, each as `name: limit`.
pub(crate) fn limits(set: &PolicySet, request: &Descriptor<'_>) -> Vec<String> {
    let one = |name: String| {
        let (_, policy) = set.find(&name).unwrap();
        format!("{name}: {}", policy.limits[0].terms.label)
    };
    met(set, request).into_iter().map(one).collect()
}

#[track_caller]
pub(crate) fn imported(peer: Peer, text: &str) -> Imported {
    match Imported::of(&[(peer, "theirs.yaml", text)]) {
        Ok(imported) => imported,
        Err(mistakes) => panic!("{mistakes:#?}"),
    }
}

/// Returns what is reported about a file: its notes, or its mistakes.
pub(crate) fn told(peer: Peer, text: &str) -> Vec<String> {
    let found = match Imported::of(&[(peer, "t", text)]) {
        Ok(imported) => imported.notes,
        Err(mistakes) => mistakes,
    };
    found.iter().map(ToString::to_string).collect()
}
