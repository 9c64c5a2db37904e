//! The recorded numbers: a line `name = number` for each, and a comment where one was raised.

use std::collections::BTreeMap;

/// The text of the record, and its numbers with their lines, which count from 1.
#[derive(Debug)]
pub(super) struct Record<'t> {
    text: &'t str,
    numbers: BTreeMap<&'t str, (usize, usize)>,
}

impl<'t> Record<'t> {
    /// Reads a record; the error is a line and what is wrong with it.
    pub(super) fn read(text: &'t str) -> Result<Self, (usize, String)> {
        let mut numbers = BTreeMap::new();
        for (line, content) in (1..).zip(text.lines()) {
            let Some((name, number)) = split(content) else {
                if content.trim().is_empty() || content.starts_with('#') {
                    continue;
                }
                return Err((line, format!("`{content}` is no number; write `name = 12  # reason`")));
            };
            let Ok(number) = number.parse() else {
                return Err((line, format!("`{number}` is no number; write digits only")));
            };
            if numbers.insert(name, (line, number)).is_some() {
                return Err((line, format!("`{name}` is recorded twice; remove one of its lines")));
            }
        }
        Ok(Self { text, numbers })
    }

    /// Returns the line and the number of a name.
    pub(super) fn of(&self, name: &str) -> Option<(usize, usize)> {
        self.numbers.get(name).copied()
    }

    /// Lists all names with their lines.
    pub(super) fn names(&self) -> impl Iterator<Item = (usize, &'t str)> {
        self.numbers.iter().map(|(name, (line, _))| (*line, *name))
    }

    /// Returns the text with the numbers that fell, and these: name, before and now.
    pub(super) fn lowered(
        &self,
        counted: &BTreeMap<String, usize>,
    ) -> (String, Vec<(&'t str, usize, usize)>) {
        let (mut text, mut fell) = (String::new(), Vec::new());
        for content in self.text.lines() {
            let before = split(content).and_then(|(name, number)| Some((name, number, self.of(name)?.1)));
            match before {
                Some((name, number, most)) if counted.get(name).is_some_and(|now| *now < most) => {
                    let now = counted[name];
                    // The first such number is the recorded one, unless the name has it too.
                    let (head, tail) = content.split_at(content.find('=').unwrap_or_default());
                    text.push_str(head);
                    text.push_str(&tail.replacen(number, &now.to_string(), 1));
                    fell.push((name, most, now));
                }
                _ => text.push_str(content),
            }
            text.push('\n');
        }
        (text, fell)
    }
}

/// Splits a line into a name and a number, without its comment.
fn split(line: &str) -> Option<(&str, &str)> {
    let (name, number) = line.split('#').next()?.split_once('=')?;
    Some((name.trim(), number.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Numbers.\n\nkeys.of-7 = 7  # 7 because of the tenant\nwords = 12\n";

    #[test]
    fn only_what_fell_is_written_and_comments_stay() {
        let record = Record::read(TEXT).unwrap();
        let counted = [("keys.of-7", 6), ("words", 13), ("new", 1)];
        let counted = counted.map(|(name, count)| (name.to_owned(), count)).into_iter().collect();
        let (text, fell) = record.lowered(&counted);
        assert_eq!(text, TEXT.replace("= 7 ", "= 6 "));
        assert_eq!(fell, [("keys.of-7", 7, 6)]);
    }

    #[test]
    fn a_line_that_is_no_number_is_named() {
        for (text, line, what) in [
            ("a = 1\nb", 2, "`b`"),
            ("a = 1_000", 1, "`1_000`"),
            ("a = 1\na = 1", 2, "twice"),
            ("a =", 1, "``"),
        ] {
            let (at, error) = Record::read(text).unwrap_err();
            assert!(at == line && error.contains(what), "{text}: {at} {error}");
        }
    }
}
