//! Finds matches that no request can fit, when the file is read.
//!
//! Only easy cases are found: two incompatible demands on one attribute, a direction that another key of the policy
//! excludes, and a `not` that excludes everything that the rest includes. Two patterns with wildcards are not compared.

use tidegate_gate::policy::{Absent, Direction, Glob, Match, PathGlob, Policy, Want};

/// Returns why no request can be charged to a policy, as the end of a sentence; `None` if a request may be.
pub(crate) fn contradiction(policy: &Policy) -> Option<String> {
    let excluded = |name: &&String| {
        let mut asked = policy.matching.attributes().iter();
        asked.any(|(asked, want)| **asked == ***name && *want == Want::Absent)
    };
    let missing = policy.by.iter().find(excluded);
    let skipped = match policy.absent {
        Absent::Charge => None,
        Absent::Skip => missing,
        Absent::SkipIfNone => missing.filter(|_| policy.by.iter().all(|name| excluded(&name))),
    };
    match skipped {
        Some(name) => Some(format!("the key is made of {name}, which the match asks to be absent")),
        None => within(&policy.matching, policy.direction),
    }
}

/// Returns why no request fits a match, as the end of a sentence; `None` if one may.
///
/// Quadratic in the number of attributes of the match.
fn within(matching: &Match, direction: Direction) -> Option<String> {
    let attributes = matching.attributes();
    for (at, (name, want)) in attributes.iter().enumerate() {
        let rival = attributes[..at].iter().find(|(other, second)| other == name && !agree(want, second));
        if rival.is_some() {
            return Some(format!("the conditions of match on {name} contradict each other"));
        }
        let (part, possible) = match &**name {
            "request.method" if !matching.methods().is_empty() => {
                let mut methods = matching.methods().iter();
                ("method", methods.any(|method| fits(want, &method.to_ascii_uppercase())))
            }
            "request.host" if !matching.hosts().is_empty() => {
                ("host", agree(&Want::OneOf(matching.hosts().into()), want))
            }
            "request.path" if !matching.paths().is_empty() => {
                let paths = matching.paths();
                let fitting =
                    |path: &PathGlob| path.literals().is_none_or(|mut all| all.any(|text| fits(want, text)));
                let one_fits = |value: &str| paths.iter().any(|path| path.matches(value));
                ("path", can_be(want, one_fits) && paths.iter().any(fitting))
            }
            "request.direction" if direction == Direction::Outbound => {
                ("direction: outbound", fits(want, "outbound"))
            }
            // A request without the attribute is inbound.
            "request.direction" => {
                let inbound = *want == Want::Absent || fits(want, "inbound");
                ("direction: inbound, which holds unless the policy says outbound", inbound)
            }
            _ => continue,
        };
        if !possible {
            return Some(format!("the conditions of match on {name} contradict {part}"));
        }
    }
    let covered = matching.left_out().iter().any(|not| covers(not, matching));
    covered.then(|| "`not` excludes everything that the rest of the match includes".to_owned())
}

/// Reports whether every request that fits `other` also fits `this`, as far as that is easy to decide. `false`
/// if `this` has a `not` of its own.
fn covers(this: &Match, other: &Match) -> bool {
    let methods = this.methods().is_empty()
        || !other.methods().is_empty()
            && other.methods().iter().all(|method| this.methods().contains(method));
    let hosts = this.hosts().is_empty()
        || !other.hosts().is_empty()
            && other.hosts().iter().all(|host| {
                let whole = |own: &Glob| own.source() == "*" || own == host;
                let mut literals = host.literals();
                this.hosts().iter().any(whole)
                    || literals.as_mut().is_some_and(|texts| {
                        texts.all(|text| this.hosts().iter().any(|own| own.matches(text)))
                    })
            });
    // Every request has a path, except those that a program describes without one; a program tests such requests
    // explicitly.
    let paths = this.paths().is_empty()
        || this.paths().iter().any(|own| matches!(own.source(), "/**" | "**"))
        || !other.paths().is_empty()
            && other.paths().iter().all(|path| {
                let mut literals = path.literals();
                this.paths().contains(path)
                    || literals.as_mut().is_some_and(|texts| {
                        texts.all(|text| this.paths().iter().any(|own| own.matches(text)))
                    })
            });
    let attributes = this.attributes().iter().all(|(name, want)| {
        let same = |(_, asked): &&(Box<str>, Want)| {
            asked == want || *want == Want::Present && matches!(asked, Want::OneOf(_))
        };
        let within = |(_, asked): &&(Box<str>, Want)| {
            matches!(asked, Want::OneOf(globs) if is_literal(globs) && !can_be(asked, |value| !fits(want, value)))
        };
        let of_it = || other.attributes().iter().filter(|(asked, _)| asked == name);
        of_it().any(|pair| same(&pair)) || of_it().any(|pair| within(&pair))
    });
    methods && hosts && paths && attributes && this.left_out().is_empty()
}

/// Reports whether a single value can satisfy both demands.
fn agree(one: &Want, other: &Want) -> bool {
    match (one, other) {
        (Want::Absent, Want::Absent) => true,
        (Want::Absent, _) | (_, Want::Absent) => false,
        (Want::OneOf(globs), other) if is_literal(globs) => can_be(one, |value| fits(other, value)),
        (one, Want::OneOf(globs)) if is_literal(globs) => can_be(other, |value| fits(one, value)),
        _ => true,
    }
}

fn is_literal(globs: &[Glob]) -> bool {
    globs.iter().all(|glob| glob.literals().is_some())
}

fn fits(want: &Want, value: &str) -> bool {
    match want {
        Want::OneOf(globs) => globs.iter().any(|glob| glob.matches(value)),
        Want::Present => true,
        Want::Absent => false,
    }
}

/// Reports whether a value that `want` asks for can satisfy `has`. A pattern with wildcards counts as satisfying it.
fn can_be(want: &Want, mut has: impl FnMut(&str) -> bool) -> bool {
    match want {
        Want::OneOf(globs) => globs.iter().any(|glob| match glob.literals() {
            Some(mut values) => values.any(&mut has),
            None => true,
        }),
        Want::Present => true,
        Want::Absent => false,
    }
}
