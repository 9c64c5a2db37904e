//! The most frequent paths of one key, in bounded memory.

use std::fmt::Write as _;

/// The most paths counted at once for a key: about as many as one person's visit to a site has. Fewer would make the
/// counts far too low.
const COUNTED: usize = 16;
/// The most paths shown of a key.
const SHOWN: usize = 3;
/// The longest text kept of a path, in bytes. A longer one is cut and ends in `…`.
const LONGEST: usize = 64;

/// One path of a key, with the number of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathCount {
    /// The path. Segments that are numbers are written as `*`, so that `/items/1` and `/items/2` count as one.
    pub path: String,
    /// How many requests asked for it, at least.
    pub requests: u64,
    /// Whether `requests` is exact.
    pub is_exact: bool,
}

/// Counts paths. A new path replaces the rarest one and inherits its count as uncertainty. At most 2 KiB.
///
/// # Source
/// Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005 (space saving).
#[derive(Clone, Debug, Default)]
pub(super) struct Frequent(Vec<Counted>);

#[derive(Clone, Debug)]
struct Counted {
    path: Box<str>,
    count: u64,
    /// How much of the count may belong to paths that this one replaced.
    uncertain: u64,
}

impl Frequent {
    /// Counts a path in the form made by [`shape`].
    pub(super) fn add(&mut self, path: &str) {
        if let Some(found) = self.0.iter_mut().find(|counted| *counted.path == *path) {
            found.count += 1;
            return;
        }
        let uncertain = if self.0.len() < COUNTED { 0 } else { self.make_room() };
        self.0.push(Counted { path: path.into(), count: uncertain + 1, uncertain });
    }

    /// Removes the rarest path and returns its count.
    fn make_room(&mut self) -> u64 {
        let rarest = self.0.iter().enumerate().min_by_key(|(_, counted)| counted.count);
        rarest.map(|(place, _)| place).map_or(0, |place| self.0.swap_remove(place).count)
    }

    /// Returns the most requested paths, at most three.
    pub(super) fn most(&self) -> Vec<PathCount> {
        let mut all: Vec<&Counted> = self.0.iter().collect();
        let sure = |counted: &Counted| counted.count - counted.uncertain;
        all.sort_by(|a, b| sure(b).cmp(&sure(a)).then_with(|| a.path.cmp(&b.path)));
        let shown = all.into_iter().take(SHOWN);
        shown
            .map(|counted| PathCount {
                path: counted.path.to_string(),
                requests: sure(counted),
                is_exact: counted.uncertain == 0,
            })
            .collect()
    }
}

/// Writes a path with `*` for its numbers, cut to a bounded length.
pub(super) fn shape(path: &str, out: &mut String) {
    out.clear();
    for (place, part) in path.split('/').enumerate() {
        let slash = if place > 0 { "/" } else { "" };
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let part = if is_number { "*" } else { part };
        if out.len() + slash.len() + part.len() > LONGEST {
            let mut end = LONGEST.saturating_sub(out.len() + slash.len()).min(part.len());
            while !part.is_char_boundary(end) {
                end -= 1;
            }
            // Writing to a string does not fail.
            let _ = write!(out, "{slash}{}…", &part[..end]);
            return;
        }
        let _ = write!(out, "{slash}{part}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(path: &str) -> String {
        let mut out = "before".to_owned();
        shape(path, &mut out);
        out
    }

    #[test]
    fn numbers_and_length_are_left_out() {
        assert_eq!(shaped("/api/items/17/x2"), "/api/items/*/x2");
        assert_eq!([shaped(""), shaped("/"), shaped("*")], ["", "/", "*"]);
        let long = shaped(&format!("/{}/x", "é".repeat(80)));
        assert!(long.len() <= LONGEST + '…'.len_utf8() && long.ends_with("é…"), "{long}");
        assert!(shaped(&"/a".repeat(500)).len() <= LONGEST + 4);
    }

    #[test]
    fn who_asks_for_one_path_often_is_told_it_among_many() {
        let mut frequent = Frequent::default();
        for number in 0..1_000 {
            frequent.add(&format!("/rare-{number}"));
            frequent.add("/often");
        }
        let most = frequent.most();
        assert_eq!(most[0], PathCount { path: "/often".to_owned(), requests: 1_000, is_exact: true });
        assert_eq!((most.len(), most[1].is_exact), (3, false));
        assert!(frequent.0.len() <= COUNTED);
    }
}
