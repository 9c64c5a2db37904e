//! Descriptors as the gRPC door hands them to the gate.

use tidegate::config::{Imported, Peer};
use tidegate::policy::{Descriptor, PolicySet};

pub(crate) type Entries<'e> = [(&'e str, &'e str)];

/// Describes an entry list of a domain, the descriptor at `index` in its call.
pub(crate) fn described(domain: &str, index: usize, entries: &Entries<'_>) -> Descriptor<'static> {
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
    request
}

/// Returns the names of the policies that a descriptor meets.
pub(crate) fn met(set: &PolicySet, request: &Descriptor<'_>) -> Vec<String> {
    let fitting = set.policies().iter().filter(|policy| policy.matching.matches(request));
    let there = fitting.filter(|policy| policy.by.iter().all(|name| request.value(name).is_some()));
    there.map(|policy| policy.name.clone()).collect()
}

/// Returns what a descriptor meets, as `name: limit`.
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

/// Returns what is told about a file: its notes, or its mistakes.
pub(crate) fn told(peer: Peer, text: &str) -> Vec<String> {
    let found = match Imported::of(&[(peer, "t", text)]) {
        Ok(imported) => imported.notes,
        Err(mistakes) => mistakes,
    };
    found.iter().map(ToString::to_string).collect()
}
