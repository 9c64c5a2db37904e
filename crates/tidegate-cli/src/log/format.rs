//! A line in the log: of bounded length, without characters that a terminal acts on.

use std::borrow::Cow;
use std::fmt;

use serde_json::json;
use tidegate::visible;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The longest line, in bytes: a path of 8 KiB nearly fits even if every byte is escaped.
const MOST_BYTES: usize = 16 << 10;
/// The bytes kept of a longer line.
const KEPT_BYTES: usize = 4 << 10;

/// Formats by `inner`, then bounds and escapes the result.
#[derive(Debug)]
pub(crate) struct Bounded<F> {
    pub(crate) inner: F,
    /// Whether a line is a JSON object. If not, it begins with its level.
    pub(crate) json: bool,
    /// Whether the level is coloured. `inner` colours nothing.
    pub(crate) is_colored: bool,
}

impl<S, N, F> FormatEvent<S, N> for Bounded<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        let level = *event.metadata().level();
        if self.json {
            return writeln!(out, "{}", visible::json(&whole_json(line, level)));
        }
        let colour = match level {
            _ if !self.is_colored => None,
            Level::ERROR => Some(31),
            Level::WARN => Some(33),
            Level::INFO => Some(32),
            Level::DEBUG => Some(34),
            Level::TRACE => Some(35),
        };
        match colour {
            Some(colour) => write!(out, "\u{1b}[{colour}m{level:>5}\u{1b}[0m ")?,
            None => write!(out, "{level:>5} ")?,
        }
        writeln!(out, "{}", whole_text(&visible::line(line)))
    }
}

fn whole_text(line: &str) -> Cow<'_, str> {
    if line.len() <= MOST_BYTES {
        return Cow::Borrowed(line);
    }
    let kept = &line[..line.floor_char_boundary(KEPT_BYTES)];
    Cow::Owned(format!("{kept} … cut, {} bytes in all", line.len()))
}

/// A line that is too long becomes an object with its beginning.
fn whole_json(line: &str, level: Level) -> Cow<'_, str> {
    if line.len() <= MOST_BYTES {
        return Cow::Borrowed(line);
    }
    let kept = &line[..line.floor_char_boundary(KEPT_BYTES)];
    let cut =
        json!({ "level": level.to_string(), "fields": { "message": kept, "cut_from_bytes": line.len() } });
    Cow::Owned(cut.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Logs one line with this text as message and field, in either format.
    fn logged(json: bool, text: &str) -> String {
        let out = Arc::new(Mutex::new(Vec::new()));
        let writer = {
            let out = Arc::clone(&out);
            move || Sink(Arc::clone(&out))
        };
        let builder = tracing_subscriber::fmt().with_writer(writer).with_ansi(false);
        if json {
            let subscriber =
                builder.json().map_event_format(|inner| Bounded { inner, json, is_colored: false }).finish();
            tracing::subscriber::with_default(subscriber, || tracing::warn!(path = text, "{text}"));
        } else {
            let people = builder.without_time().with_target(false).with_level(false);
            let subscriber =
                people.map_event_format(|inner| Bounded { inner, json, is_colored: false }).finish();
            tracing::subscriber::with_default(subscriber, || tracing::warn!(path = text, "{text}"));
        }
        String::from_utf8(out.lock().unwrap().clone()).unwrap()
    }

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_strangers_text_stays_in_its_line_and_moves_no_cursor() {
        let hostile = "a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{202e}";
        for json in [false, true] {
            let line = logged(json, hostile);
            let (one, rest) = line.split_once('\n').unwrap();
            assert_eq!(rest, "", "{line}");
            let acted_on = |char: char| char.is_control() || char == '\u{202e}';
            assert!(!one.chars().any(acted_on), "{one}");
        }
        let value: serde_json::Value = serde_json::from_str(&logged(true, hostile)).unwrap();
        assert_eq!(value["fields"]["path"], hostile);
    }

    #[test]
    fn a_line_is_of_bounded_length_and_json_stays_json() {
        let long = "ä\u{1b}".repeat(100_000);
        assert!(logged(false, &long).len() < KEPT_BYTES + 100);
        let line = logged(true, &long);
        assert!(line.len() < 3 * KEPT_BYTES, "{}", line.len());
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(value["fields"]["cut_from_bytes"].as_u64().unwrap() > 400_000);
    }
}
