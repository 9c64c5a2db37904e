//! Finds a text that fits one pattern of each of several lists, and none of another list.
//!
//! All patterns are compiled into one list of tokens. A state is the set of tokens at which the next character may be
//! compared, as in the simulation of a nondeterministic automaton. The states are searched in breadth, so the text found
//! is among the shortest. A character that no pattern names stands for all such characters.

use std::collections::{HashSet, VecDeque};

use crate::policy::glob::{Glob, PathGlob};

/// The steps are spent.
#[derive(Debug)]
pub(super) struct OutOfSteps;

/// Subtracts steps.
pub(super) fn spend(steps: &mut usize, count: usize) -> Result<(), OutOfSteps> {
    *steps = steps.saturating_sub(count);
    if *steps == 0 { Err(OutOfSteps) } else { Ok(()) }
}

/// One pattern for a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern<'m> {
    /// Exactly this text, in any case.
    AnyCase(&'m str),
    Flat(&'m Glob),
    Path(&'m PathGlob),
}

/// The texts that are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// Any text.
    Any,
    /// Without capital letters.
    Host,
    /// The same without empty labels.
    ProperHost,
    /// A path in normal form.
    Path,
    /// A path in normal form that all servers read alike.
    PlainPath,
}

/// What a text is to be.
pub(super) struct Wanted<'a, 'm> {
    pub(super) domain: Domain,
    /// One pattern of each list must fit.
    pub(super) fitting: &'a [Vec<Pattern<'m>>],
    /// None of these may fit.
    pub(super) excluded: &'a [Pattern<'m>],
}

/// Finds a text, preferably not the empty one. Exact, unless the steps are spent before.
pub(super) fn find(wanted: &Wanted<'_, '_>, steps: &mut usize) -> Result<Option<String>, OutOfSteps> {
    let mut tokens = Tokens::default();
    let mut start = Vec::new();
    for pattern in wanted.excluded {
        tokens.add(pattern, EXCLUDED, &mut start);
    }
    for (at, list) in wanted.fitting.iter().enumerate() {
        list.iter().for_each(|pattern| tokens.add(pattern, at + 1, &mut start));
    }
    spend(steps, 1 + tokens.0.len())?;
    tokens.search(wanted, tokens.close(start), steps)
}

/// The group of the patterns that may not fit. Group `n` is list `n - 1` of those that must.
const EXCLUDED: usize = 0;

#[derive(Clone, Copy, Debug)]
enum Token {
    Char(char),
    AnyCase(char),
    /// One character, in segments of paths no slash.
    One {
        slash: bool,
    },
    /// Any number of such characters.
    Run {
        slash: bool,
    },
    /// Any number of whole segments, each after a slash. The next token is [`Token::Inside`].
    Segments,
    /// Within such segments.
    Inside,
    /// The pattern fits.
    End,
}

/// The tokens of all patterns, each with its group, and every pattern with an end.
#[derive(Default)]
struct Tokens(Vec<(Token, usize)>);

/// The tokens that come next, ascending.
type Set = Vec<u32>;

/// A state that the search has reached.
struct SearchState {
    set: Set,
    place: TextPosition,
    /// The node before and the character after it.
    before: Option<(usize, char)>,
}

impl Tokens {
    /// Adds a pattern; `start` gets where its alternatives begin.
    fn add(&mut self, pattern: &Pattern<'_>, group: usize, start: &mut Set) {
        match pattern {
            Pattern::AnyCase(text) => self.alternative(text.chars().map(Token::AnyCase), group, start),
            Pattern::Flat(glob) => {
                let token = |char| match char {
                    '*' => Token::Run { slash: true },
                    '?' => Token::One { slash: true },
                    char => Token::Char(char),
                };
                glob.alternatives().for_each(|text| self.alternative(text.chars().map(token), group, start));
            }
            Pattern::Path(glob) => {
                glob.alternatives().for_each(|text| self.alternative(path_tokens(text), group, start));
            }
        }
    }

    fn alternative(&mut self, tokens: impl IntoIterator<Item = Token>, group: usize, start: &mut Set) {
        start.push(self.0.len() as u32);
        self.0.extend(tokens.into_iter().chain([Token::End]).map(|token| (token, group)));
    }

    /// Adds the tokens that can be reached without a character.
    fn close(&self, mut set: Set) -> Set {
        let mut at = 0;
        while let Some(&token) = set.get(at) {
            match self.0[token as usize].0 {
                Token::Run { .. } | Token::Inside => set.push(token + 1),
                Token::Segments => set.push(token + 2),
                _ => {}
            }
            at += 1;
        }
        set.sort_unstable();
        set.dedup();
        set
    }

    fn after(&self, set: &[u32], char: char) -> Set {
        let next = set.iter().filter_map(|&at| match self.0[at as usize].0 {
            Token::Char(want) => (want == char).then_some(at + 1),
            Token::AnyCase(want) => want.eq_ignore_ascii_case(&char).then_some(at + 1),
            Token::One { slash } => (slash || char != '/').then_some(at + 1),
            Token::Run { slash } => (slash || char != '/').then_some(at),
            Token::Segments => (char == '/').then_some(at + 1),
            Token::Inside => Some(at),
            Token::End => None,
        });
        self.close(next.collect())
    }

    /// Reports whether each list has a token left, which is an end if `ended`, and nothing excluded has ended if so.
    fn keeps(&self, set: &[u32], lists: usize, ended: bool) -> bool {
        let mut kept = 0;
        for &at in set {
            let (token, group) = self.0[at as usize];
            if ended && !matches!(token, Token::End) {
                continue;
            }
            match group {
                EXCLUDED if ended => return false,
                // Groups come in order, since the set does.
                _ if group == kept + 1 => kept = group,
                _ => {}
            }
        }
        kept == lists
    }

    /// Returns a character that no pattern names and that the domain allows within a text.
    fn other(&self, domain: Domain) -> Option<char> {
        let names = |char: char| {
            char == '.'
                || self.0.iter().any(|(token, _)| match *token {
                    Token::Char(named) => named == char,
                    Token::AnyCase(named) => named.eq_ignore_ascii_case(&char),
                    _ => false,
                })
        };
        let allowed =
            |char: &char| !names(*char) && TextPosition::Text.then(domain, *char) == Some(TextPosition::Text);
        ('x'..='z').chain('a'..='w').chain('0'..='9').chain('\u{e0}'..='\u{ffff}').find(allowed)
    }

    fn search(
        &self,
        wanted: &Wanted<'_, '_>,
        start: Set,
        steps: &mut usize,
    ) -> Result<Option<String>, OutOfSteps> {
        let (domain, lists) = (wanted.domain, wanted.fitting.len());
        if !self.keeps(&start, lists, false) {
            return Ok(None);
        }
        let fits = |node: &SearchState| node.place.may_end(domain) && self.keeps(&node.set, lists, true);
        let usual = self.other(domain).into_iter().chain(domain.is_path().then_some('/'));
        let usual: Vec<char> = usual.collect();
        let mut nodes = vec![SearchState { set: start, place: TextPosition::Start, before: None }];
        let mut seen: HashSet<(Set, TextPosition)> = HashSet::new();
        let mut queue = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for char in self.next_chars(&nodes[at].set, &usual) {
                let SearchState { set, place, .. } = &nodes[at];
                spend(steps, 1 + set.len())?;
                let Some(place) = place.then(domain, char) else { continue };
                let set = self.after(set, char);
                if !self.keeps(&set, lists, false) || !seen.insert((set.clone(), place)) {
                    continue;
                }
                nodes.push(SearchState { set, place, before: Some((at, char)) });
                let last = nodes.len() - 1;
                if fits(&nodes[last]) {
                    return Ok(Some(text_of(&nodes, last)));
                }
                queue.push_back(last);
            }
        }
        Ok(fits(&nodes[0]).then(String::new))
    }

    /// Returns the characters that can make a difference after a state: those that its tokens name, and `usual` ones
    /// unless each pattern of some list names its next character.
    fn next_chars(&self, set: &[u32], usual: &[char]) -> Vec<char> {
        let groups = || set.chunk_by(|one, next| self.0[*one as usize].1 == self.0[*next as usize].1);
        let names =
            |at: &u32| matches!(self.0[*at as usize].0, Token::Char(_) | Token::AnyCase(_) | Token::End);
        let narrow =
            groups().find(|group| self.0[group[0] as usize].1 != EXCLUDED && group.iter().all(names));
        // What no pattern names comes first, since it makes the most readable text.
        let mut chars = if narrow.is_some() { Vec::new() } else { usual.to_vec() };
        let mut add = |char: char| {
            if !chars.contains(&char) {
                chars.push(char);
            }
        };
        for &at in narrow.unwrap_or(set) {
            match self.0[at as usize].0 {
                Token::Char(char) => add(char),
                Token::AnyCase(char) => {
                    add(char.to_ascii_uppercase());
                    add(char.to_ascii_lowercase());
                }
                _ => {}
            }
        }
        chars
    }
}

fn text_of(nodes: &[SearchState], last: usize) -> String {
    let before = |at: usize| nodes[at].before;
    let mut chars: Vec<char> =
        std::iter::successors(before(last), |&(at, _)| before(at)).map(|(_, char)| char).collect();
    chars.reverse();
    chars.into_iter().collect()
}

/// Returns the tokens of one alternative of a path pattern: segments, each after a slash, or nothing for the root.
fn path_tokens(pattern: &str) -> Vec<Token> {
    if pattern.is_empty() {
        return vec![Token::Char('/')];
    }
    let mut tokens = Vec::new();
    for segment in pattern.split('/').skip(1) {
        match segment {
            "**" => tokens.extend([Token::Segments, Token::Inside]),
            // No segment is empty. The root, `/`, has none.
            "*" => {
                tokens.extend([Token::Char('/'), Token::One { slash: false }, Token::Run { slash: false }]);
            }
            segment => {
                tokens.push(Token::Char('/'));
                tokens.extend(segment.chars().map(|char| match char {
                    '*' => Token::Run { slash: false },
                    '?' => Token::One { slash: false },
                    char => Token::Char(char),
                }));
            }
        }
    }
    tokens
}

impl Domain {
    const fn is_path(self) -> bool {
        matches!(self, Self::Path | Self::PlainPath)
    }
}

/// How far a text is, as its domain sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TextPosition {
    Start,
    /// After the first slash of a path.
    Root,
    /// After a later slash, or a dot of a host.
    Separator,
    /// A segment that is so far one dot or two.
    Dots(u8),
    /// Within a segment, or anywhere in a text that is no path.
    Text,
}

impl TextPosition {
    /// Returns the place after one more character; `None` if the domain has no such text.
    fn then(self, domain: Domain, char: char) -> Option<Self> {
        match domain {
            Domain::Any => return Some(Self::Text),
            Domain::Host => return (!char.is_ascii_uppercase()).then_some(Self::Text),
            Domain::ProperHost => {
                let allowed = !char.is_ascii_uppercase() && (char != '.' || self == Self::Text);
                return allowed.then_some(if char == '.' { Self::Separator } else { Self::Text });
            }
            Domain::PlainPath if char == ';' || char == '\\' => return None,
            Domain::Path | Domain::PlainPath => {}
        }
        match (self, char) {
            (Self::Start, '/') => Some(Self::Root),
            (Self::Text, '/') => Some(Self::Separator),
            (Self::Start, _) | (_, '/') => None,
            (Self::Root | Self::Separator, '.') => Some(Self::Dots(1)),
            (Self::Dots(1), '.') => Some(Self::Dots(2)),
            _ => Some(Self::Text),
        }
    }

    /// Reports whether a text may end here.
    const fn may_end(self, domain: Domain) -> bool {
        match self {
            Self::Start => !domain.is_path(),
            Self::Root | Self::Text => true,
            Self::Separator | Self::Dots(_) => false,
        }
    }
}
