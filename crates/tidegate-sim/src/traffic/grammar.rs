//! The grammar of traffic.

use tidegate::Cost;
use tidegate::config::unknown_attribute;
use tidegate::policy::{Descriptor, GrammarError, WrittenRate, span};
use tidegate::priority::Priority;

use super::segment::{Keys, MILLION, Ratio, Segment, Service, Shape};

/// The most keys: more would need a table of many megabytes for a picture that looks the same.
const MAX_KEYS: u64 = 1_000_000;
/// The longest span that a text may name, in nanoseconds: a year.
const MAX_SPAN: u64 = 366 * 86_400 * 1_000_000_000;
/// The words that a segment begins with.
const SHAPES: [&str; 5] = ["steady", "burst", "ramp", "poisson", "idle"];
const OPTIONS: [&str; 7] = ["keys", "key", "cost", "taking", "failing", "with", "priority"];
/// The most attributes of a request, as at the server's doors.
const MAX_ATTRIBUTES: usize = 64;

/// An error in a line of traffic, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("traffic, column {column}: {what}")]
pub struct TrafficError {
    /// The column of the wrong word, in characters from 1.
    pub column: usize,
    /// The error, and how to correct it.
    pub what: String,
}

pub(super) struct Words<'t> {
    pub(super) text: &'t str,
    pub(super) from: usize,
    pub(super) to: usize,
}

#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    column: usize,
}

impl<'t> Words<'t> {
    fn next(&mut self) -> Option<Word<'t>> {
        let rest = &self.text[self.from..self.to];
        let start = self.from + (rest.len() - rest.trim_start().len());
        let rest = rest.trim_start();
        let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.from = start + length;
        let column = self.text[..start].chars().count() + 1;
        (length > 0).then(|| Word { text: &rest[..length], column })
    }

    fn want(&mut self, what: &str) -> Result<Word<'t>, TrafficError> {
        let column = self.text[..self.to].chars().count() + 1;
        self.next().ok_or_else(|| TrafficError { column, what: format!("{what} is missing") })
    }
}

impl Word<'_> {
    fn error(self, what: impl Into<String>) -> TrafficError {
        TrafficError { column: self.column, what: what.into() }
    }

    /// An option that says again what one before it has said.
    fn only_once(self, before: &[&str]) -> Result<(), TrafficError> {
        let is_of_keys = |option: &str| matches!(option, "key" | "keys");
        let first =
            before.iter().find(|first| **first == self.text || is_of_keys(first) && is_of_keys(self.text));
        match first {
            // Each `with` gives another attribute.
            None | Some(&"with") => Ok(()),
            Some(first) if *first == self.text => {
                Err(self.error(format!("`{first}` is in this segment twice; write it once")))
            }
            Some(first) => {
                Err(self.error(format!("this segment has `{first}` and `{}`; write one of them", self.text)))
            }
        }
    }

    fn pace(self) -> Result<Ratio, TrafficError> {
        match self.text.parse::<WrittenRate>() {
            Ok(rate @ WrittenRate::Per { count, .. }) => {
                let period = rate.period().map_or(1, |period| period.as_nanos() as u64);
                Ok(Ratio { count, period })
            }
            Ok(_) => Err(self.error("traffic needs a number: write 100/s")),
            Err(GrammarError::Zero { .. }) => Ok(Ratio { count: 0, period: 1_000_000_000 }),
            Err(error) => Err(self.error(error.to_string())),
        }
    }

    fn span(self) -> Result<u64, TrafficError> {
        let nanos = span(self.text).map_err(|error| self.error(error.to_string()))?.as_nanos();
        u64::try_from(nanos)
            .ok()
            .filter(|nanos| (1..=MAX_SPAN).contains(nanos))
            .ok_or_else(|| self.error(format!("`{}` is not a span to simulate; use 1ns to 366d", self.text)))
    }

    /// Parses the duration of requests: `20ms`, `20ms..400ms` or `exponential:50ms`.
    fn service(self) -> Result<Service, TrafficError> {
        let part = |at: usize, text| {
            let column = self.column + self.text[..at].chars().count();
            Word { text, column }.span()
        };
        if let Some((low, high)) = self.text.split_once("..") {
            let (low, high) = (part(0, low)?, part(low.len() + 2, high)?);
            if low > high {
                let what =
                    format!("`{}` begins with the longer time; write the shorter one first", self.text);
                return Err(self.error(what));
            }
            return Ok(Service::Between(low, high));
        }
        match self.text.split_once(':') {
            Some(("exponential", mean)) => Ok(Service::Exponential(part("exponential:".len(), mean)?)),
            Some((other, _)) => {
                let forms = "20ms, 20ms..400ms or exponential:50ms";
                let possible = crate::unknown::nearest_and_forms(other, &["exponential"], forms);
                Err(self.error(format!("`{other}` is not a spread of times{possible}")))
            }
            None => Ok(Service::Always(self.span()?)),
        }
    }

    /// Parses a percentage into millionths: `30%`, `0.5%`.
    fn share(self) -> Result<u32, TrafficError> {
        let percent = self.text.strip_suffix('%').and_then(|number| {
            let (whole, digits) = number.split_once('.').unwrap_or((number, "0"));
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let fits = is_number(whole) && is_number(digits) && digits.len() <= 4;
            let whole = whole.parse::<u32>().ok().filter(|whole| fits && *whole <= 100)?;
            Some(whole * MILLION / 100 + format!("{digits:0<4}").parse::<u32>().ok()?)
        });
        percent.filter(|share| *share <= MILLION).ok_or_else(|| {
            let what = format!(
                "`{}` is not a share of requests; use 0% to 100%, such as 30% or 0.5%, with four decimals at most",
                self.text
            );
            self.error(what)
        })
    }

    /// Parses an attribute: `request.path=/login`. The value ends at a space or a comma, and may be empty.
    fn attribute(self) -> Result<(Box<str>, Box<str>), TrafficError> {
        let Some((name, value)) = self.text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            let what =
                format!("`{}` is not an attribute; write NAME=VALUE, such as request.path=/login", self.text);
            return Err(self.error(what));
        };
        if name == "key" {
            return Err(self.error("the key is set by `key` or `keys`, as in `key a`".to_owned()));
        }
        if let Some(instead) = unknown_attribute(name) {
            return Err(self.error(format!("no policy reads `{name}`; {instead}")));
        }
        for (what, length, most) in
            [("name", name.len(), Descriptor::MAX_NAME), ("value", value.len(), Descriptor::MAX_VALUE)]
        {
            if length > most {
                return Err(self.error(format!("the {what} has {length} bytes; use at most {most}")));
            }
        }
        Ok((name.into(), value.into()))
    }

    fn number(self, what: &str, most: u64) -> Result<u64, TrafficError> {
        let number = self.text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| {
            self.error(format!("{what} `{}` is not a whole number from 1 to {most}", self.text))
        })
    }
}

pub(super) fn segment(words: &mut Words<'_>) -> Result<Segment, TrafficError> {
    let shape = words.want("a segment (steady, burst, ramp, poisson or idle)")?;
    let shape = match shape.text {
        "steady" => Shape::Steady {
            pace: words.want("a rate, such as 80/s,")?.pace()?,
            span: words.want("a length of time, such as 1min,")?.span()?,
        },
        "poisson" => Shape::Poisson {
            pace: words.want("a rate, such as 80/s,")?.pace()?,
            span: words.want("a length of time, such as 1min,")?.span()?,
        },
        "ramp" => Shape::Ramp {
            from: words.want("a rate to begin with, such as 10/s,")?.pace()?,
            to: words.want("a rate to end with, such as 200/s,")?.pace()?,
            span: words.want("a length of time, such as 1min,")?.span()?,
        },
        "burst" => Shape::Burst { count: words.want("a count")?.number("count", 1_000_000_000)? },
        "idle" => Shape::Idle { span: words.want("a length of time, such as 1min,")?.span()? },
        other => {
            let possible = crate::unknown::possible(other, &SHAPES);
            return Err(shape.error(format!("`{other}` is not a kind of traffic{possible}")));
        }
    };
    let (mut keys, mut cost) = (Keys::Uniform(1), Cost::ONE);
    let (mut taking, mut failing) = (None, None);
    let (mut attributes, mut priority) = (Vec::new(), Priority::default());
    let mut before: Vec<&str> = Vec::new();
    while let Some(option) = words.next() {
        option.only_once(&before)?;
        before.push(option.text);
        match option.text {
            "key" => keys = Keys::One(words.want("the name of the key")?.text.into()),
            "keys" => keys = many(words.want("`uniform:N` or `zipf:S:N`")?)?,
            "cost" => {
                let word = words.want("a cost")?;
                cost = Cost::new(word.number("cost", 1 << 60)?).unwrap_or_default();
            }
            "taking" => taking = Some(words.want("a time, such as 20ms,")?.service()?),
            "failing" => failing = Some(words.want("a share, such as 30%,")?.share()?),
            "with" => add(&mut attributes, words.want("an attribute, such as request.path=/login,")?)?,
            "priority" => {
                let word = words.want("a priority, such as sheddable,")?;
                priority =
                    word.text.parse().map_err(|error| word.error(format!("`{}` {error}", word.text)))?;
            }
            other => {
                let possible = crate::unknown::possible(other, &OPTIONS);
                return Err(option.error(format!("`{other}` is not an option{possible}")));
            }
        }
    }
    Ok(Segment { shape, keys, cost, taking, failing, attributes: attributes.into(), priority })
}

fn add(attributes: &mut Vec<(Box<str>, Box<str>)>, word: Word<'_>) -> Result<(), TrafficError> {
    let (name, value) = word.attribute()?;
    if attributes.iter().any(|(other, _)| *other == name) {
        return Err(word.error(format!("`{name}` is in this segment twice; write it once")));
    }
    if attributes.len() == MAX_ATTRIBUTES {
        return Err(word.error(format!("a request has at most {MAX_ATTRIBUTES} attributes")));
    }
    attributes.push((name, value));
    Ok(())
}

pub(super) fn time(text: &str) -> Result<u64, TrafficError> {
    Word { text, column: 1 }.span()
}

pub(super) fn keys(text: &str) -> Result<Keys, TrafficError> {
    many(Word { text, column: 1 })
}

fn many(word: Word<'_>) -> Result<Keys, TrafficError> {
    let refuse = || {
        let name = word.text.split(':').next().unwrap_or("");
        let possible = crate::unknown::nearest_and_forms(name, &["uniform", "zipf"], "uniform:N or zipf:S:N");
        word.error(format!("`{}` is not a choice of keys{possible}", word.text))
    };
    let count = |text: &str| {
        let number = text.parse().ok().filter(|number| (1..=MAX_KEYS).contains(number));
        number.ok_or_else(|| word.error(format!("`{text}` is not a number of keys from 1 to {MAX_KEYS}")))
    };
    let parts: Vec<&str> = word.text.split(':').collect();
    match parts[..] {
        ["uniform", number] => Ok(Keys::Uniform(count(number)? as u32)),
        ["zipf", exponent, number] => {
            let exponent: f64 = exponent.parse().map_err(|_| refuse())?;
            if !(0.0..=10.0).contains(&exponent) {
                return Err(word.error("the exponent of zipf is 0 to 10"));
            }
            Ok(Keys::zipf(exponent, count(number)?))
        }
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    // Mistakes in lines of traffic.

    use crate::traffic::Traffic;

    #[test]
    fn mistakes_name_their_place_and_the_nearest_word() {
        let rows = [
            ("", "traffic, column 1: a segment (steady, burst, ramp, poisson or idle) is missing"),
            (
                "stedy 1/s 1s",
                "traffic, column 1: `stedy` is not a kind of traffic; did you mean `steady`? use steady, burst, ramp, poisson, idle",
            ),
            ("idle 1s, steady 1/s", "traffic, column 20: a length of time, such as 1min, is missing"),
            (
                "steady 100 1s",
                "traffic, column 8: \"100\" does not say per what; write 100/s, 100/min or 100/day",
            ),
            (
                "steady 1/s 1x",
                "traffic, column 12: unknown unit \"x\"; use ns, us, ms, s, min, h, day, week, month or year",
            ),
            (
                "burst 5,steady 1000000000/s 366d",
                "traffic, column 9: with this segment it is 31622400000000005 requests; use at most 1000000000",
            ),
            ("burst 0", "traffic, column 7: count `0` is not a whole number from 1 to 1000000000"),
            (
                "burst 5 keys zip:1:2",
                "traffic, column 14: `zip:1:2` is not a choice of keys; did you mean `zipf`? use uniform:N or zipf:S:N",
            ),
            (
                "burst 5 kyes uniform:3",
                "traffic, column 9: `kyes` is not an option; did you mean `keys`? use keys, key, cost, taking, failing, with, priority",
            ),
            (
                "burst 5 takng 20ms",
                "traffic, column 9: `takng` is not an option; did you mean `taking`? use keys, key, cost, taking, failing, with, priority",
            ),
            ("burst 5 taking", "traffic, column 15: a time, such as 20ms, is missing"),
            (
                "burst 5 taking 20ms..40x",
                "traffic, column 22: unknown unit \"x\"; use ns, us, ms, s, min, h, day, week, month or year",
            ),
            (
                "burst 5 taking 40ms..20ms",
                "traffic, column 16: `40ms..20ms` begins with the longer time; write the shorter one first",
            ),
            (
                "burst 5 taking exponentail:20ms",
                "traffic, column 16: `exponentail` is not a spread of times; did you mean `exponential`? use 20ms, 20ms..400ms or exponential:50ms",
            ),
            (
                "burst 5 taking exponential:0s",
                "traffic, column 28: `0s` is not a span to simulate; use 1ns to 366d",
            ),
            (
                "burst 5 taking 5ms failing 1% taking 6ms",
                "traffic, column 31: `taking` is in this segment twice; write it once",
            ),
            (
                "burst 5 failing 1% failing 2%",
                "traffic, column 20: `failing` is in this segment twice; write it once",
            ),
            ("burst 5 cost 1 cost 2", "traffic, column 16: `cost` is in this segment twice; write it once"),
            ("burst 5 key a key a", "traffic, column 15: `key` is in this segment twice; write it once"),
            (
                "burst 5 keys uniform:3 key a",
                "traffic, column 24: this segment has `keys` and `key`; write one of them",
            ),
            (
                "burst 5 wiht request.path=/",
                "traffic, column 9: `wiht` is not an option; did you mean `with`? use keys, key, cost, taking, failing, with, priority",
            ),
            ("burst 5 with", "traffic, column 13: an attribute, such as request.path=/login, is missing"),
            (
                "burst 5 with /login",
                "traffic, column 14: `/login` is not an attribute; write NAME=VALUE, such as request.path=/login",
            ),
            (
                "burst 5 with =a",
                "traffic, column 14: `=a` is not an attribute; write NAME=VALUE, such as request.path=/login",
            ),
            (
                "burst 5 with request.paht=/",
                "traffic, column 14: no policy reads `request.paht`; write request.path",
            ),
            (
                "burst 5 with a=1 cost 2 with a=2",
                "traffic, column 30: `a` is in this segment twice; write it once",
            ),
            (
                "burst 5 priority high",
                "traffic, column 18: `high` is not a priority; use critical-plus, critical, sheddable-plus or sheddable",
            ),
            (
                "burst 5 priority critical priority critical",
                "traffic, column 27: `priority` is in this segment twice; write it once",
            ),
            (
                "burst 5 failing 130%",
                "traffic, column 17: `130%` is not a share of requests; use 0% to 100%, such as 30% or 0.5%, with four decimals at most",
            ),
            (
                "burst 5 failing 0.3",
                "traffic, column 17: `0.3` is not a share of requests; use 0% to 100%, such as 30% or 0.5%, with four decimals at most",
            ),
        ];
        for (text, want) in rows {
            assert_eq!(text.parse::<Traffic>().unwrap_err().to_string(), want, "{text}");
        }
    }
}
