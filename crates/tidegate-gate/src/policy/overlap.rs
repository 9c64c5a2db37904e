//! Decides whether some request fits several matches at once, and finds one.
//!
//! Each part of a match is a demand on one text: the method, the host, the path, an attribute. The demands of all
//! matches on one text are tried together by [`text::find`]. A `not` holds if any one of its parts fails, so its parts
//! are tried in turn, each with everything else.
//!
//! The answer is exact, with two restrictions:
//! * The path counts in one reading. A path that servers read in several ways, such as `/a;%2f..%2fb`, fits patterns in
//!   each reading, so some such path fits any two patterns, and no match could exclude the other.
//! * The form of a value beyond that of paths and hosts is not considered: `client.ip` may be any text.

mod text;

use std::collections::BTreeMap;

use self::text::{Domain, OutOfSteps, Pattern, Wanted};
use super::matching::{Match, Want};

/// Whether some request fits all of several matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// No request fits all of them.
    Empty,
    /// A request with these attributes fits all of them: the attributes that the matches ask for, by name. The path is
    /// as patterns see it, without escapes.
    Shared(Vec<(String, String)>),
    /// The steps were spent before an answer was found: a request may fit all of them.
    Undecided,
}

impl Match {
    /// Looks for a request that fits all of `matches`. Takes at most `steps` steps, each some nanoseconds, and
    /// subtracts those that it took. Memory is in proportion to the steps.
    pub fn overlap(matches: &[&Self], steps: &mut usize) -> Overlap {
        let (mut demands, mut nots) = (Demands::default(), Vec::new());
        matches.iter().for_each(|matching| demands.include(matching, &mut nots));
        let mut search = Search { steps, host: Domain::Host };
        let found = search.possible(&demands, demands.0.keys()).and_then(|possible| match possible {
            true => search.exclude(demands, &nots, 0),
            false => Ok(None),
        });
        match found.and_then(|found| found.map(|demands| search.example(&demands)).transpose()) {
            Ok(None) => Overlap::Empty,
            Ok(Some(example)) => Overlap::Shared(example),
            Err(OutOfSteps) => Overlap::Undecided,
        }
    }
}

/// What is asked of one text.
#[derive(Clone, Debug, Default)]
struct Demand<'m> {
    present: bool,
    absent: bool,
    /// One pattern of each list must fit. Such a text is present.
    fitting: Vec<Vec<Pattern<'m>>>,
    /// None of these fits, if the text is present.
    excluded: Vec<Pattern<'m>>,
}

/// What is asked of each text, by the name of its attribute.
#[derive(Clone, Debug, Default)]
struct Demands<'m>(BTreeMap<&'m str, Demand<'m>>);

const METHOD: &str = "request.method";
const HOST: &str = "request.host";
const PATH: &str = "request.path";

/// The parts of a match that have alternatives, by the attribute that each reads. A part without alternatives, such as
/// a list of no values, fits nothing, except for methods, hosts and paths, where it is no part at all.
fn parts(matching: &Match) -> impl Iterator<Item = (&str, MatchPart<'_>)> {
    let methods = matching.methods().iter().map(|method| Pattern::AnyCase(method)).collect();
    let hosts = matching.hosts().iter().map(Pattern::Flat).collect();
    let paths = matching.paths().iter().map(Pattern::Path).collect();
    let places = [(METHOD, methods), (HOST, hosts), (PATH, paths)];
    let stated = places.into_iter().filter(|(_, patterns): &(_, Vec<_>)| !patterns.is_empty());
    let attributes = matching.attributes().iter().map(|(name, want)| {
        let part = match want {
            Want::OneOf(globs) => MatchPart::OneOf(globs.iter().map(Pattern::Flat).collect()),
            Want::Present => MatchPart::Present,
            Want::Absent => MatchPart::Absent,
        };
        (&**name, part)
    });
    stated.map(|(name, patterns)| (name, MatchPart::OneOf(patterns))).chain(attributes)
}

/// One part of a match.
enum MatchPart<'m> {
    OneOf(Vec<Pattern<'m>>),
    Present,
    Absent,
}

impl<'m> Demands<'m> {
    /// Adds all that a match asks for, and its `not` matches to `nots`.
    fn include(&mut self, matching: &'m Match, nots: &mut Vec<&'m Match>) {
        for (name, part) in parts(matching) {
            let demand = self.0.entry(name).or_default();
            match part {
                MatchPart::OneOf(patterns) => demand.fitting.push(patterns),
                MatchPart::Present => demand.present = true,
                MatchPart::Absent => demand.absent = true,
            }
        }
        nots.extend(matching.left_out());
    }

    /// Asks that one part of a match does not fit.
    fn refuse(&mut self, name: &'m str, part: MatchPart<'m>) {
        let demand = self.0.entry(name).or_default();
        match part {
            MatchPart::OneOf(patterns) => demand.excluded.extend(patterns),
            MatchPart::Present => demand.absent = true,
            MatchPart::Absent => demand.present = true,
        }
    }
}

/// The most `not` matches that are tried together. Each takes a level of recursion.
const MAX_DEPTH: usize = 256;

/// A search with a bound on its steps.
struct Search<'s> {
    steps: &'s mut usize,
    host: Domain,
}

impl Search<'_> {
    /// Returns demands under which none of `nots` fits; `None` if there are none.
    fn exclude<'m>(
        &mut self,
        demands: Demands<'m>,
        nots: &[&'m Match],
        depth: usize,
    ) -> Result<Option<Demands<'m>>, OutOfSteps> {
        let Some((not, others)) = nots.split_first() else { return Ok(Some(demands)) };
        if depth == MAX_DEPTH {
            return Err(OutOfSteps);
        }
        for (name, part) in parts(not) {
            let mut tried = self.copy(&demands)?;
            tried.refuse(name, part);
            if self.possible(&tried, [&name])?
                && let Some(found) = self.exclude(tried, others, depth + 1)?
            {
                return Ok(Some(found));
            }
        }
        // Or one of its own `not` matches fits.
        for inner in not.left_out() {
            let mut tried = self.copy(&demands)?;
            let mut nots = others.to_vec();
            tried.include(inner, &mut nots);
            if self.possible(&tried, tried.0.keys())?
                && let Some(found) = self.exclude(tried, &nots, depth + 1)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn copy<'m>(&mut self, demands: &Demands<'m>) -> Result<Demands<'m>, OutOfSteps> {
        let patterns = |demand: &Demand<'_>| {
            1 + demand.excluded.len() + demand.fitting.iter().map(|list| 1 + list.len()).sum::<usize>()
        };
        text::spend(self.steps, demands.0.values().map(patterns).sum())?;
        Ok(demands.clone())
    }

    /// Reports whether each of these texts can be as demanded.
    fn possible<'n, 'm: 'n>(
        &mut self,
        demands: &Demands<'m>,
        names: impl IntoIterator<Item = &'n &'m str>,
    ) -> Result<bool, OutOfSteps> {
        for name in names {
            if self.value(name, &demands.0[name])?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a value as demanded: `Some(None)` if the text has to be absent, `None` if no value will do.
    fn value(&mut self, name: &str, demand: &Demand<'_>) -> Result<Option<Option<String>>, OutOfSteps> {
        let present = demand.present || !demand.fitting.is_empty();
        if demand.absent {
            return Ok((!present).then_some(None));
        }
        let reads_value = || {
            let fitting = demand.fitting.iter().flatten();
            fitting.chain(&demand.excluded).any(|pattern| matches!(pattern, Pattern::Flat(_)))
        };
        let domain = match name {
            HOST => self.host,
            PATH if reads_value() => Domain::PlainPath,
            PATH => Domain::Path,
            _ => Domain::Any,
        };
        let wanted = Wanted { domain, fitting: &demand.fitting, excluded: &demand.excluded };
        Ok(match text::find(&wanted, self.steps)? {
            Some(text) => Some(Some(text)),
            None if present => None,
            None => Some(None),
        })
    }

    /// Returns values as demanded, of which some may be absent. A host has no empty labels, if possible.
    fn example(&mut self, demands: &Demands<'_>) -> Result<Vec<(String, String)>, OutOfSteps> {
        let mut example = Vec::new();
        for (name, demand) in &demands.0 {
            let mut value = None;
            for host in [Domain::ProperHost, Domain::Host] {
                self.host = host;
                if value.is_none() {
                    value = self.value(name, demand)?.flatten();
                }
            }
            example.extend(value.map(|value| ((*name).to_owned(), value)));
        }
        Ok(example)
    }
}

#[cfg(test)]
mod tests;
