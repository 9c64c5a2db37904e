//! Decides whether some request fits several matches at once, and finds one.
//!
//! The demands of all matches on one text (the method, the host, the path, an attribute) are tried together by
//! [`text::find`]. A `not` holds if any one of its parts fails, so its parts are tried in turn, each with everything else.
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
struct TextDemand<'m> {
    present: bool,
    absent: bool,
    /// One pattern of each list must fit. Such a text is present.
    fitting: Vec<Vec<Pattern<'m>>>,
    /// None of these fits, if the text is present.
    excluded: Vec<Pattern<'m>>,
}

/// What is asked of each text, by the name of its attribute.
#[derive(Clone, Debug, Default)]
struct Demands<'m>(BTreeMap<&'m str, TextDemand<'m>>);

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
        let patterns = |demand: &TextDemand<'_>| {
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
    fn value(&mut self, name: &str, demand: &TextDemand<'_>) -> Result<Option<Option<String>>, OutOfSteps> {
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
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::text::{Domain, OutOfSteps, Pattern, Wanted, find};
    use super::*;
    use crate::policy::path::Readings;
    use crate::policy::{Descriptor, Glob, PathGlob};

    const STEPS: usize = 1_000_000;

    fn overlap(matches: &[&Match]) -> Overlap {
        let mut steps = STEPS;
        Match::overlap(matches, &mut steps)
    }

    /// Writes a path as a request line has it, so that patterns see `text`.
    fn raw_path(text: &str) -> String {
        text.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
    }

    /// Writes a host so that patterns see `text`.
    fn raw_host(text: &str) -> String {
        if text.contains([':', '[']) {
            format!("[{text}]")
        } else if text.ends_with('.') {
            format!("{text}.")
        } else {
            text.to_owned()
        }
    }

    fn request(example: &[(String, String)]) -> Descriptor<'_> {
        let mut request = Descriptor::new();
        for (name, value) in example {
            match name.as_str() {
                PATH => request.push(name.as_str(), raw_path(value)),
                HOST => request.push(name.as_str(), raw_host(value)),
                _ => request.push(name.as_str(), value.as_str()),
            }
        }
        request
    }

    fn shared(one: &Match, other: &Match) -> Option<String> {
        match overlap(&[one, other]) {
            Overlap::Empty => None,
            Overlap::Shared(pairs) => {
                let words: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
                Some(words.join(" "))
            }
            Overlap::Undecided => panic!("undecided"),
        }
    }

    fn path(pattern: &str) -> Match {
        Match::any().path(pattern).unwrap()
    }

    fn user(pattern: &str) -> Match {
        Match::any().attribute("user.id", Want::value(pattern).unwrap())
    }

    #[test]
    fn a_shared_request_is_found_or_there_is_none() {
        let post = || Match::any().method("POST");
        let host = |pattern: &str| Match::any().host(pattern).unwrap();
        for (one, other, found) in [
            (Match::any(), Match::any(), Some("")),
            (path("/api/*"), post(), Some("request.method=POST request.path=/api/x")),
            (path("/api/*"), Match::any(), Some("request.path=/api/x")),
            (path("/api/**"), path("/api"), Some("request.path=/api")),
            (path("/api/**"), path("/apis"), None),
            (path("/*/edit"), path("/users/?*"), Some("request.path=/users/edit")),
            (path("/**/edit"), path("/a/**/b"), None),
            (path("/*"), path("/"), None),
            (path("/**"), path("/"), Some("request.path=/")),
            (path("/{a,b}"), path("/{b,c}"), Some("request.path=/b")),
            (path("/?"), path("/.*"), None),
            (path("/v?/x"), path("/v1/**"), Some("request.path=/v1/x")),
            (post(), Match::any().method("get"), None),
            (post(), Match::any().method("get").method("post"), Some("request.method=POST")),
            (
                post(),
                Match::any().attribute(METHOD, Want::value("post").unwrap()),
                Some("request.method=post"),
            ),
            (post(), Match::any().attribute(METHOD, Want::Absent), None),
            (host("*.a.b"), host("x*"), Some("request.host=x.a.b")),
            (host("a.b"), Match::any().attribute(HOST, Want::value("A.b").unwrap()), None),
            (
                path("/a/*"),
                Match::any().attribute(PATH, Want::value("*/b").unwrap()),
                Some("request.path=/a/b"),
            ),
            (path("/a"), Match::any().attribute(PATH, Want::value("/b").unwrap()), None),
            (user("a*"), user("*b"), Some("user.id=ab")),
            (user("a*"), user("b*"), None),
            (user("a"), Match::any().attribute("user.id", Want::Present), Some("user.id=a")),
            (user("a"), Match::any().attribute("user.id", Want::Absent), None),
            (user("a*"), Match::any().not(user("a?*")), Some("user.id=a")),
            (user("a*"), Match::any().not(user("a?*")).not(user("a")), None),
            (path("/api/**"), Match::any().not(path("/api/**")), None),
            (path("/api/**"), post().not(path("/api/*")), Some("request.method=POST request.path=/api")),
            (path("/api/**"), Match::any().not(path("/**").not(path("/api/x"))), Some("request.path=/api/x")),
            // One part of a `not` that fails is enough.
            (
                path("/api"),
                Match::any().not(path("/api").method("GET")),
                Some("request.method=x request.path=/api"),
            ),
            (path("/api").method("GET"), Match::any().not(path("/api").method("GET")), None),
        ] {
            assert_eq!(shared(&one, &other).as_deref(), found, "{one:?} {other:?}");
            assert_eq!(
                shared(&other, &one).is_some(),
                found.is_some(),
                "the other way round: {one:?} {other:?}"
            );
        }
    }

    /// Such a path fits any two patterns, so it cannot count.
    #[test]
    fn a_path_that_servers_read_differently_counts_in_one_reading() {
        let disguised = Descriptor::new().with(PATH, "/a;%2f..%2fb");
        assert!(path("/a").matches(&disguised) && path("/b").matches(&disguised));
        assert_eq!(overlap(&[&path("/a"), &path("/b")]), Overlap::Empty);
    }

    #[test]
    fn the_steps_bound_the_work() {
        // The shortest common text is as long as the least common multiple of the periods.
        let dense = |part: &str| user(&format!("*{part}*{part}*{part}*{part}*"));
        let mut steps = 1000;
        assert_eq!(Match::overlap(&[&dense("aab?"), &dense("ab?b")], &mut steps), Overlap::Undecided);
        assert_eq!(steps, 0);
        let many = (0..MAX_DEPTH + 1).fold(Match::any(), |built, at| built.not(user(&format!("u{at}"))));
        let mut steps = usize::MAX;
        assert_eq!(Match::overlap(&[&many], &mut steps), Overlap::Undecided);
        let mut steps = STEPS;
        assert_eq!(Match::overlap(&[&path("/a"), &path("/b")], &mut steps), Overlap::Empty);
        assert!((STEPS - 100..STEPS).contains(&steps), "{steps}");
    }

    const NAMES: [&str; 5] = [PATH, METHOD, HOST, "user.id", "request.header.x"];
    const VALUES: [&str; 12] = ["a", "b", "/a", "/a/b", "a*", "*b", "?", "*", "{a,b}", "get", "GET", "a?b"];
    const PATHS: [&str; 12] =
        ["/a", "/a/*", "/a/**", "/**", "/", "/*", "/**/b", "/a*", "/?b", "/{a,b}/b", "/a;b", "/a/**/b"];
    const HOSTS: [&str; 6] = ["a", "*.b", "b", "?", "a.", "*"];

    fn want() -> impl Strategy<Value = Want> {
        prop_oneof![
            Just(Want::Present),
            Just(Want::Absent),
            vec(select(&VALUES[..]), 0..3).prop_map(|values| Want::OneOf(
                values.into_iter().map(|one| Glob::new(one).unwrap()).collect()
            )),
        ]
    }

    /// Few parts, so that two of them often share a request.
    fn matching() -> impl Strategy<Value = Match> {
        let parts = (
            vec(select(&["GET", "POST", "a"][..]), 0..2),
            vec(select(&PATHS[..]), 0..3),
            vec(select(&HOSTS[..]), 0..2),
            vec((select(&NAMES[..]), want()), 0..2),
        );
        let simple = parts.prop_map(|(methods, paths, hosts, attributes)| {
            let built = methods.into_iter().fold(Match::any(), Match::method);
            let built = paths.into_iter().fold(built, |built, one| built.path(one).unwrap());
            let built = hosts.into_iter().fold(built, |built, one| built.host(one).unwrap());
            attributes.into_iter().fold(built, |built, (name, want)| built.attribute(name, want))
        });
        simple.prop_recursive(2, 4, 2, |inner| {
            (inner.clone(), vec(inner, 0..3))
                .prop_map(|(built, nots)| nots.into_iter().fold(built, Match::not))
        })
    }

    /// A request whose path has one reading.
    fn any_request() -> impl Strategy<Value = Vec<(&'static str, String)>> {
        let value = prop_oneof![
            Just(None),
            "[ab.]{0,3}".prop_map(Some),
            select(&["GET", "get"][..]).prop_map(|v| Some(v.to_owned()))
        ];
        let path = prop_oneof![Just(None), "(/[abx.]{1,2}){0,4}|/".prop_map(Some)];
        (path, value.clone(), value.clone(), value.clone(), value).prop_map(
            |(path, method, host, user, header)| {
                let values = [path, method, host, user, header];
                NAMES.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect()
            },
        )
    }

    /// All texts of a few letters.
    fn texts(letters: &[char], most: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut from = 0;
        for _ in 0..most {
            let longer: Vec<String> = all[from..]
                .iter()
                .flat_map(|text| letters.iter().map(move |char| format!("{text}{char}")))
                .collect();
            from = all.len();
            all.extend(longer);
        }
        all
    }

    fn sought<'m>(domain: Domain, fitting: &[Vec<Pattern<'m>>], excluded: &[Pattern<'m>]) -> Option<String> {
        let mut steps = STEPS;
        match find(&Wanted { domain, fitting, excluded }, &mut steps) {
            Ok(found) => found,
            Err(OutOfSteps) => panic!("out of steps"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(tidegate_limits::sync::short_or_long(400, 2000)))]

        /// What fits both was announced, and what was announced fits both.
        #[test]
        fn an_overlap_is_never_missed_nor_made_up(
            one in matching(), other in matching(), requests in vec(any_request(), 30),
        ) {
            let found = overlap(&[&one, &other]);
            prop_assert_ne!(&found, &Overlap::Undecided);
            if let Overlap::Shared(example) = &found {
                let request = request(example);
                prop_assert!(one.matches(&request) && other.matches(&request), "{:?}", example);
            }
            for pairs in requests {
                let mut request = Descriptor::new();
                pairs.iter().for_each(|(name, value)| request.push(*name, value.as_str()));
                let path = request.value(PATH).unwrap_or("/");
                prop_assert_eq!(Readings::of(path).each().count(), 1);
                if one.matches(&request) && other.matches(&request) {
                    prop_assert_ne!(&found, &Overlap::Empty, "{:?}", request);
                }
            }
        }

        /// Where no text is found, no short text fits; the text found fits.
        #[test]
        fn the_search_for_a_text_is_exact(
            fitting in vec(vec("[ab*?]{1,4}", 1..3), 0..3), excluded in vec("[ab*?]{1,3}", 0..4),
        ) {
            let compiled = |list: &Vec<String>| -> Vec<Glob> {
                list.iter().map(|one| Glob::new(one).unwrap()).collect()
            };
            let (fitting, excluded) = (fitting.iter().map(compiled).collect::<Vec<_>>(), compiled(&excluded));
            let fits = |text: &str| {
                fitting.iter().all(|list| list.iter().any(|glob| glob.matches(text)))
                    && !excluded.iter().any(|glob| glob.matches(text))
            };
            let lists: Vec<Vec<_>> = fitting.iter().map(|list| list.iter().map(Pattern::Flat).collect()).collect();
            let nots: Vec<_> = excluded.iter().map(Pattern::Flat).collect();
            match sought(Domain::Any, &lists, &nots) {
                Some(text) => prop_assert!(fits(&text), "{}", text),
                None => prop_assert_eq!(texts(&['a', 'b', 'x'], 6).into_iter().find(|text| fits(text)), None),
            }
        }

        #[test]
        fn the_search_for_a_path_is_exact(
            fitting in vec(vec("(/([ab]|\\*|\\*\\*|\\?|a\\*|\\*b)){0,3}/", 1..3), 0..3),
            excluded in vec("(/([ab]|\\*|\\*\\*)){0,2}/", 0..3),
        ) {
            let compiled = |list: &Vec<String>| -> Vec<PathGlob> {
                list.iter().map(|one| PathGlob::new(one).unwrap()).collect()
            };
            let (fitting, excluded) = (fitting.iter().map(compiled).collect::<Vec<_>>(), compiled(&excluded));
            let fits = |text: &str| {
                fitting.iter().all(|list| list.iter().any(|glob| glob.matches(text)))
                    && !excluded.iter().any(|glob| glob.matches(text))
            };
            let lists: Vec<Vec<_>> = fitting.iter().map(|list| list.iter().map(Pattern::Path).collect()).collect();
            let nots: Vec<_> = excluded.iter().map(Pattern::Path).collect();
            match sought(Domain::Path, &lists, &nots) {
                Some(text) => prop_assert!(fits(&text), "{}", text),
                None => {
                    let segments: Vec<String> = texts(&['a', 'b', 'x'], 2).into_iter().filter(|one| !one.is_empty()).collect();
                    let longer = |paths: &[String]| -> Vec<String> {
                        paths.iter().flat_map(|path| segments.iter().map(move |one| format!("{path}/{one}"))).collect()
                    };
                    let one = longer(&[String::new()]);
                    let two = longer(&one);
                    let three = longer(&two);
                    let mut all = ["/".to_owned()].into_iter().chain(one).chain(two).chain(three);
                    prop_assert_eq!(all.find(|path| fits(path)), None);
                }
            }
        }
    }
}
