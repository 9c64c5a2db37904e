//! Compares the real matcher with the model, on a file and requests generated from bytes.

use std::sync::{Arc, LazyLock};

use tidegate::Gate;
use tidegate::config::{Config, Format};
use tidegate::gate::Check;
use tidegate::policy::{Among, Descriptor, PolicySet};

use super::model;
use super::witness;
use super::words::{Ask, Choices, FileWords, PolicyWords, request};

/// A gate to peek with. It is handed the policies of each file, so one gate serves all files.
static GATE: LazyLock<Gate> = LazyLock::new(|| Gate::in_memory(PolicySet::default(), 64).unwrap());

/// Generates a file. If it is accepted, compares the model and the real matcher on eight requests. Returns whether it
/// was accepted.
///
/// # Panics
/// When the two differ.
pub(crate) fn compare(bytes: &[u8]) -> bool {
    let mut choices = Choices(bytes);
    let file = FileWords::of(&mut choices, false);
    let text = file.text();
    let Ok((config, _)) = Config::parse(&text, "made up", Format::Yaml) else { return false };
    let set = config.policies;
    for _ in 0..8 {
        let pairs = request(&mut choices);
        let mut descriptor = Descriptor::new();
        for (name, value) in &pairs {
            descriptor.push(name.as_str(), value.as_str());
        }
        let mut found: Vec<usize> =
            set.plan(&descriptor, None).lines.iter().map(|line| line.policy).collect();
        found.dedup();
        let expected = model::charged(&file, &pairs);
        assert_eq!(found, expected, "charged\n{text}\n{pairs:?}");
        let refused = set.access(&descriptor).map(|refusal| refusal.policy);
        assert_eq!(refused, model::refused(&file, &pairs), "refused\n{text}\n{pairs:?}");
        // Some policies by name: the same result as with the others switched off.
        let chosen: Vec<usize> = (0..set.len()).filter(|_| choices.below(2) == 0).collect();
        let among = Among::new(Arc::clone(&set), chosen.iter().copied());
        let decision = GATE.check(Check::of(&descriptor).among(&among).peek()).now().expect("memory decides");
        let decided: Vec<usize> = decision.limits.iter().map(|limit| limit.policy).collect();
        let mut some = file.clone();
        (0..set.len()).filter(|at| !chosen.contains(at)).for_each(|at| some.policies[at].off = true);
        let expected = match model::refused(&some, &pairs) {
            Some(_) => Vec::new(),
            None => model::charged(&some, &pairs),
        };
        assert_eq!(decided, expected, "among {chosen:?}\n{text}\n{pairs:?}");
    }
    true
}

/// Generates a file. For each accepted policy of it, looks for a request from the policy's words that the real matcher
/// charges to it.
///
/// # Panics
/// When no such request is found for an accepted policy.
pub(crate) fn can_be_met(bytes: &[u8]) {
    let mut file = FileWords::of(&mut Choices(bytes), true);
    file.policies.truncate(2);
    file.deny.clear();
    file.policies.iter_mut().for_each(|policy| policy.deny.clear());
    let text = file.text();
    let Ok((config, _)) = Config::parse(&text, "made up", Format::Yaml) else { return };
    let decided = |policy: &PolicyWords| !policy.off && !is_undecided(policy);
    for (at, policy) in file.policies.iter().enumerate().filter(|(_, policy)| decided(policy)) {
        let met = witness::requests(policy).any(|pairs| {
            let mut descriptor = Descriptor::new();
            for (name, value) in &pairs {
                descriptor.push(name.as_str(), value.as_str());
            }
            config.policies.plan(&descriptor, None).lines.iter().any(|line| line.policy == at)
        });
        assert!(met, "nobody meets p{at}\n{text}");
    }
}

/// Says whether two patterns with wildcards ask for the same value: the check of a file does not decide whether any
/// text matches both.
fn is_undecided(policy: &PolicyWords) -> bool {
    let words = &policy.matching;
    let wild = |patterns: &[String]| patterns.iter().any(|pattern| pattern.contains(['*', '?']));
    let mut asked =
        vec![("request.path".to_owned(), wild(&words.path)), ("request.host".to_owned(), wild(&words.host))];
    let header = |name: &String| format!("request.header.{}", name.to_ascii_lowercase());
    let headers = words.header.iter().map(|(name, ask)| (header(name), ask));
    for (name, ask) in headers.chain(words.attributes.iter().map(|(name, ask)| (name.clone(), ask))) {
        asked.push((name, matches!(ask, Ask::OneOf(patterns) if wild(patterns))));
    }
    let wild: Vec<&String> = asked.iter().filter(|(_, wild)| *wild).map(|(name, _)| name).collect();
    (1..wild.len()).any(|at| wild[..at].contains(&wild[at]))
}
