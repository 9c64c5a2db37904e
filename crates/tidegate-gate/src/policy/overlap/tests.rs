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
        (post(), Match::any().attribute(METHOD, Want::value("post").unwrap()), Some("request.method=post")),
        (post(), Match::any().attribute(METHOD, Want::Absent), None),
        (host("*.a.b"), host("x*"), Some("request.host=x.a.b")),
        (host("a.b"), Match::any().attribute(HOST, Want::value("A.b").unwrap()), None),
        (path("/a/*"), Match::any().attribute(PATH, Want::value("*/b").unwrap()), Some("request.path=/a/b")),
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
        assert_eq!(shared(&other, &one).is_some(), found.is_some(), "the other way round: {one:?} {other:?}");
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
        vec(select(&VALUES[..]), 0..3)
            .prop_map(|values| Want::OneOf(values.into_iter().map(|one| Glob::new(one).unwrap()).collect())),
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
        (inner.clone(), vec(inner, 0..3)).prop_map(|(built, nots)| nots.into_iter().fold(built, Match::not))
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
