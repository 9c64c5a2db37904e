//! Matches a text against one pattern without braces. This code runs on every request.

/// Returns the segments of a path or a path pattern, without empty ones.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// Matches one flat pattern: the texts before the first `*` and after the last are compared in place, and each text in
/// between is searched for once, from left to right.
///
/// Linear in pattern and text, except for parts between stars that contain `?`: those take their length times that of
/// the text.
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

/// Matches a path pattern whose stars each stand for one segment. A single pass suffices, since nothing needs
/// backtracking.
pub(super) fn fits_whole(mut pattern: &[u8], mut path: &[u8]) -> bool {
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
pub(super) fn fits_path(pattern: &str, path: &str) -> bool {
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
