//! Globs: `*` for any run of characters, `?` for one character, `{a,b}` for alternatives; in paths segment by segment,
//! with `**`.
//!
//! Alternatives are multiplied out when the glob is compiled, so that matching needs no recursion and no allocation. A
//! flat pattern searches for the texts between its stars from left to right; a path pattern with `**` has a single
//! backtracking point. So a hostile path cannot cause exponential time.

use smallvec::SmallVec;

/// The most alternatives that `{}` may multiply out to, so that a typing mistake does not create a thousand patterns.
const MAX_ALTERNATIVES: usize = 64;

/// Why a text is not a valid glob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// The pattern is empty.
    #[error("an empty pattern matches nothing; leave it out to match everything")]
    Empty,
    /// A brace without a partner, or nested braces.
    #[error("\"{pattern}\": braces do not pair; write {{a,b}}, not nested")]
    Braces {
        /// The pattern.
        pattern: String,
    },
    /// Too many alternatives.
    #[error("\"{pattern}\": braces multiply out to more than {MAX_ALTERNATIVES} patterns; write a list")]
    Alternatives {
        /// The pattern.
        pattern: String,
    },
    /// `**` beside other characters.
    #[error("\"{pattern}\": ** stands for whole segments; write /**/ or /** with nothing beside it")]
    DoubleStar {
        /// The pattern.
        pattern: String,
    },
    /// A path that does not start at the root.
    #[error("\"{pattern}\": a path pattern starts with / or **")]
    NotRooted {
        /// The pattern.
        pattern: String,
    },
}

/// A glob over one flat text: header values, hosts, attributes. `*` matches any run of characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    source: Box<str>,
    alternatives: SmallVec<[Pattern; 1]>,
}

/// One alternative, without braces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pattern {
    text: Box<str>,
    shape: Shape,
    /// The number of bytes before the first wildcard. They are compared as a block.
    head: usize,
}

impl Pattern {
    fn new(text: String, shape: Shape) -> Self {
        let head = text.bytes().position(is_wildcard).unwrap_or(text.len());
        Self { text: text.into(), shape, head }
    }
}

/// The form of a pattern: common forms are matched by comparing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    /// Exactly this text.
    Literal,
    /// A path and everything below it: literal segments, then `/**`.
    Below,
    /// A path with a fixed number of segments, each literal or a single `*`.
    Whole,
    /// Anything else.
    Wild,
}

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`GlobError`] if the pattern is empty or its braces do not pair.
    pub fn new(pattern: &str) -> Result<Self, GlobError> {
        if pattern.is_empty() {
            return Err(GlobError::Empty);
        }
        let flat = |text: String| {
            let shape = if has_wildcard(&text) { Shape::Wild } else { Shape::Literal };
            Pattern::new(text, shape)
        };
        Ok(Self { source: pattern.into(), alternatives: expand(pattern)?.map(flat).collect() })
    }

    /// Reports whether the whole text fits.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.alternatives.iter().any(|pattern| match pattern.shape {
            Shape::Literal => *pattern.text == *text,
            _ => fits(&pattern.text, text),
        })
    }

    /// Returns the texts that the glob matches, if it has no wildcards.
    pub fn literals(&self) -> Option<impl Iterator<Item = &str>> {
        let literal = self.alternatives.iter().all(|pattern| pattern.shape == Shape::Literal);
        literal.then(|| self.alternatives.iter().map(|pattern| &*pattern.text))
    }

    /// Returns the patterns that the braces multiply out to.
    #[cfg(feature = "config")]
    pub fn alternatives(&self) -> impl Iterator<Item = &str> {
        self.alternatives.iter().map(|pattern| &*pattern.text)
    }

    /// Returns the most steps that a match may take per byte of the text.
    #[cfg(feature = "config")]
    pub fn walked(&self) -> usize {
        walked(&self.alternatives)
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// A glob over a path: `*` and `?` within one segment, `**` for any number of whole segments, including none.
///
/// For example, `/api/**` matches `/api` and everything below it, `/api/*` only one level. A trailing slash is ignored
/// in the pattern and in the path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathGlob {
    source: Box<str>,
    alternatives: SmallVec<[Pattern; 1]>,
}

impl PathGlob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`GlobError`] if the pattern is empty, does not start at the root, has unpaired braces, or has other characters
    /// beside `**`.
    pub fn new(pattern: &str) -> Result<Self, GlobError> {
        if pattern.is_empty() {
            return Err(GlobError::Empty);
        }
        let rooted = |alternative: String| {
            if !alternative.starts_with('/') && !alternative.starts_with("**") {
                return Err(GlobError::NotRooted { pattern: pattern.to_owned() });
            }
            if segments(&alternative).any(|segment| segment.contains("**") && segment != "**") {
                return Err(GlobError::DoubleStar { pattern: pattern.to_owned() });
            }
            let mut tidy = String::with_capacity(alternative.len());
            for segment in segments(&alternative) {
                tidy.push('/');
                tidy.push_str(segment);
            }
            let whole = segments(&tidy).all(|segment| segment == "*" || !has_wildcard(segment));
            let shape = match tidy.strip_suffix("/**").unwrap_or(&tidy) {
                wild if has_wildcard(wild) && whole => Shape::Whole,
                wild if has_wildcard(wild) => Shape::Wild,
                literal if literal.len() == tidy.len() => Shape::Literal,
                _ => Shape::Below,
            };
            Ok(Pattern::new(tidy, shape))
        };
        let alternatives = expand(pattern)?.map(rooted).collect::<Result<_, _>>()?;
        Ok(Self { source: pattern.into(), alternatives })
    }

    /// Reports whether a normalised path fits, see [`policy`](crate::policy).
    #[must_use]
    #[inline]
    pub fn matches(&self, path: &str) -> bool {
        self.alternatives.iter().any(|pattern| match pattern.shape {
            Shape::Literal => *pattern.text == *path || (pattern.text.is_empty() && path == "/"),
            Shape::Below => {
                let above = &pattern.text[..pattern.text.len() - "/**".len()];
                path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Shape::Whole => {
                let (head, stars) = pattern.text.as_bytes().split_at(pattern.head);
                path.as_bytes().strip_prefix(head).is_some_and(|rest| fits_whole(stars, rest))
            }
            Shape::Wild => fits_path(&pattern.text, path),
        })
    }

    /// Returns the paths that the glob matches, if it has no wildcards.
    #[cfg(feature = "config")]
    pub fn literals(&self) -> Option<impl Iterator<Item = &str>> {
        let literal = self.alternatives.iter().all(|pattern| pattern.shape == Shape::Literal);
        literal.then(|| self.alternatives().map(|pattern| if pattern.is_empty() { "/" } else { pattern }))
    }

    /// Returns, for each alternative, its leading segments without wildcards, at most `depth`: their number and the
    /// path that they make.
    pub(crate) fn literal_prefixes(&self, depth: usize) -> impl Iterator<Item = (usize, &str)> {
        self.alternatives.iter().map(move |Pattern { text: pattern, .. }| {
            let count = segments(pattern).take(depth).take_while(|segment| !has_wildcard(segment)).count();
            (count, prefix(pattern, count))
        })
    }

    /// Returns the patterns that the braces multiply out to, each as segments with a leading slash; the root is empty.
    #[cfg(feature = "config")]
    pub fn alternatives(&self) -> impl Iterator<Item = &str> {
        self.alternatives.iter().map(|pattern| &*pattern.text)
    }

    /// Returns the most steps that a match may take per byte of the text.
    #[cfg(feature = "config")]
    pub fn walked(&self) -> usize {
        walked(&self.alternatives)
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// Counts one step per byte of the text for a pattern that is not a plain comparison. If a pattern has both `*` and
/// `?`, or `**` before the end of a path, each byte of the pattern counts as a step.
#[cfg(feature = "config")]
fn walked(alternatives: &[Pattern]) -> usize {
    let wild = alternatives.iter().filter(|pattern| pattern.shape == Shape::Wild);
    let steps = wild.map(|Pattern { text, .. }| {
        match text.contains('*') && text.contains('?') || text.contains("/**/") {
            true => text.len(),
            false => 1,
        }
    });
    steps.sum()
}

/// Returns the first `count` segments of a rooted path, with their slashes; fewer if the path has fewer.
fn prefix(path: &str, count: usize) -> &str {
    let end = path
        .bytes()
        .enumerate()
        .filter(|(_, byte)| *byte == b'/')
        .nth(count)
        .map_or(path.len(), |(at, _)| at);
    &path[..end]
}

fn has_wildcard(text: &str) -> bool {
    text.bytes().any(is_wildcard)
}

const fn is_wildcard(byte: u8) -> bool {
    matches!(byte, b'*' | b'?')
}

/// Multiplies out `{a,b}`.
fn expand(pattern: &str) -> Result<impl Iterator<Item = String>, GlobError> {
    let braces = || GlobError::Braces { pattern: pattern.to_owned() };
    let mut done: Vec<String> = vec![String::new()];
    let mut rest = pattern;
    while let Some(open) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(open);
        let inner = from.strip_prefix('{').ok_or_else(braces)?;
        let (inner, after) = inner.split_once('}').ok_or_else(braces)?;
        if inner.contains('{') {
            return Err(braces());
        }
        let choices: Vec<&str> = inner.split(',').collect();
        if done.len() * choices.len() > MAX_ALTERNATIVES {
            return Err(GlobError::Alternatives { pattern: pattern.to_owned() });
        }
        done = done
            .iter()
            .flat_map(|start| choices.iter().map(move |choice| format!("{start}{before}{choice}")))
            .collect();
        rest = after;
    }
    Ok(done.into_iter().map(move |start| start + rest))
}

/// Returns the segments of a path or a path pattern, without empty ones.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// Matches one flat pattern. Linear in pattern and text, except for parts between stars that contain `?`: those take their
/// length times that of the text.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, mut rest)) = pattern.split_once('*') else { return after(pattern, text) == Some("") };
    let Some(mut text) = after(head, text) else { return false };
    while let Some((part, behind)) = rest.split_once('*') {
        let Some(left) = after_first(part, text) else { return false };
        (text, rest) = (left, behind);
    }
    if !rest.contains('?') {
        return text.ends_with(rest);
    }
    let letters = rest.chars().count();
    let start = text.char_indices().rev().nth(letters - 1);
    start.is_some_and(|(at, _)| after(rest, &text[at..]) == Some(""))
}

/// Returns the rest of a text that starts with a part without stars.
fn after<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    if !part.contains('?') {
        return text.strip_prefix(part);
    }
    let mut letters = text.chars();
    let same = part.chars().all(|want| letters.next().is_some_and(|have| want == '?' || want == have));
    same.then_some(letters.as_str())
}

/// Returns the rest of a text after the first occurrence of a part without stars.
fn after_first<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    if !part.contains('?') {
        return text.find(part).map(|at| &text[at + part.len()..]);
    }
    text.char_indices().find_map(|(at, _)| after(part, &text[at..]))
}

/// Matches a path pattern whose stars each stand for one segment, in a single pass.
fn fits_whole(mut pattern: &[u8], mut path: &[u8]) -> bool {
    loop {
        (pattern, path) = match (pattern, path) {
            ([], []) => return true,
            ([b'*', rest @ ..], [have, ..]) if *have != b'/' => {
                let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
                (rest, &path[end..])
            }
            ([want, rest @ ..], [have, below @ ..]) if want == have && *want != b'*' => (rest, below),
            _ => return false,
        };
    }
}

/// Matches a path pattern segment by segment. On a mismatch, the last `**` takes one more segment.
fn fits_path(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (segments(pattern), segments(path));
    let mut retry = None;
    loop {
        let here = path.clone();
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some("**"), _) => {
                path = here.clone();
                retry = Some((pattern.clone(), here));
            }
            (Some(want), Some(have)) if fits(want, have) => {}
            _ => {
                let Some((after_star, mut taken)) = retry.take() else { return false };
                if taken.next().is_none() {
                    return false;
                }
                (pattern, path) = (after_star.clone(), taken.clone());
                retry = Some((after_star, taken));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_matched_by_segments() {
        for (pattern, path, fits) in [
            ("/api/**", "/api", true),
            ("/api/**", "/api/a/b", true),
            ("/api/**", "/apis", false),
            ("/api/*", "/api/a", true),
            ("/api/*", "/api/a/b", false),
            ("/api/*", "/api", false),
            ("/login", "/login", true),
            ("/login/", "/login", true),
            ("/login", "/loginx", false),
            ("/v?/users/{list,get}", "/v2/users/get", true),
            ("/v?/users/{list,get}", "/v2/users/put", false),
            ("/**/edit", "/a/b/edit", true),
            ("/**/edit", "/edit", true),
            ("/**/edit", "/a/edit/b", false),
            ("/a/**/b/**/c", "/a/x/b/b/y/c", true),
            ("/a/**/b/**/c", "/a/x/y/c", false),
            ("/files/*.pdf", "/files/a.b.pdf", true),
            ("**", "/", true),
            ("/", "/", true),
            ("/", "/a", false),
        ] {
            assert_eq!(PathGlob::new(pattern).unwrap().matches(path), fits, "{pattern} {path}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        assert!(matches!(PathGlob::new("api/*"), Err(GlobError::NotRooted { .. })));
        assert!(matches!(PathGlob::new("/a**"), Err(GlobError::DoubleStar { .. })));
        assert!(matches!(PathGlob::new("/{a,{b,c}}"), Err(GlobError::Braces { .. })));
        assert!(matches!(Glob::new("a}"), Err(GlobError::Braces { .. })));
        assert!(matches!(Glob::new(&"{a,b}".repeat(7)), Err(GlobError::Alternatives { .. })));
        assert_eq!(Glob::new(""), Err(GlobError::Empty));
    }

    /// The obvious recursive matcher.
    fn model(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|taken| model(rest, &text[taken..])),
            Some((want, rest)) => text
                .split_first()
                .is_some_and(|(have, text)| (*want == '?' || want == have) && model(rest, text)),
        }
    }

    proptest! {
        /// The fast comparisons agree with the walk over segments.
        #[test]
        fn shapes_are_shortcuts_of_the_walk(
            pattern in "(/([ab]|\\*|\\*\\*)){0,4}", path in "(/[ab]{1,2}){0,4}",
        ) {
            let (pattern, path) = (format!("{pattern}/"), if path.is_empty() { "/" } else { &path });
            let glob = PathGlob::new(&pattern).unwrap();
            prop_assert_eq!(glob.matches(path), fits_path(&pattern, path));
        }

        #[test]
        fn the_walk_agrees_with_the_obvious_matcher(pattern in "[ab*?]{1,8}", text in "[ab]{0,10}") {
            let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(Glob::new(&pattern).unwrap().matches(&text), model(&p, &t));
        }
    }
}
