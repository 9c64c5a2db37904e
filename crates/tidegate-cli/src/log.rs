//! The log of the process.
//!
//! Lines are text on a terminal, JSON otherwise. Both go through [`Queue`], so that decisions never wait for the reader
//! of the log. A line contains untrusted text: characters that a terminal acts on are escaped, and its length is
//! bounded. So is the rate of lines from each place in the program: hostile requests cannot fill a disk.

mod queue;

use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use serde_json::json;
use tidegate::visible;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::queue::{Queue, RateLimitedWriter};
use crate::args::Global;
use crate::exit::Mistake;
use crate::output::{self, Printer};
use crate::styled::Styled;

/// How long the process waits at its end until the log is written. A reader that needs longer was already too slow
/// before.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Dropping it writes the remaining lines, for at most a second.
#[derive(Debug)]
pub(crate) struct Log {
    queue: Arc<Queue>,
    is_colored: bool,
    is_json: bool,
}

impl Log {
    /// Starts the log on standard error.
    ///
    /// # Errors
    /// If `TIDEGATE_LOG` is invalid.
    pub(crate) fn start(global: &Global) -> Result<Self, Mistake> {
        let queue = Queue::start(queue::standard_error());
        let filter = filter(global)?;
        let terminal = std::io::stderr().is_terminal();
        // Depends on `--color`, NO_COLOR, and whether it is a terminal.
        let is_colored = AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
        let builder = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE) // the filter below decides
            .with_writer(RateLimitedWriter::new(Arc::clone(&queue)));
        if terminal {
            let people = builder.without_time().with_target(false).with_level(false);
            people
                .map_event_format(|inner| Bounded { inner, json: false, is_colored })
                .finish()
                .with(filter)
                .init();
        } else {
            builder
                .json()
                .map_event_format(|inner| Bounded { inner, json: true, is_colored: false })
                .finish()
                .with(filter)
                .init();
        }
        Ok(Self { queue, is_colored, is_json: !terminal })
    }

    /// Prints a text for people, after the lines that are waiting: unchanged on a terminal, otherwise each of its lines
    /// as a line of the log.
    pub(crate) fn say(&self, text: impl Into<Styled>) {
        let text = text.into();
        if self.is_json {
            for line in text.lines().filter(|line| !line.trim().is_empty()) {
                self.queue.push(json_line("INFO", line));
            }
            return;
        }
        self.print(&text);
    }

    pub(crate) const fn is_json(&self) -> bool {
        self.is_json
    }

    /// The error that ends the program, after the lines that are waiting. No filter leaves it out.
    pub(crate) fn error(&self, text: &str) {
        if self.is_json {
            self.queue.push(json_line("ERROR", text.trim_end()));
        } else {
            self.print(&output::error(text));
        }
    }

    fn print(&self, text: &Styled) {
        let text = if self.is_colored { text.render() } else { visible::lines(text).into_owned() };
        let text = text.trim_end_matches('\n');
        self.queue.push(format!("{text}\n").into_bytes());
    }

    /// The default hook would block on standard error, and callers would wait with it.
    pub(crate) fn take_panics(&self) {
        std::panic::set_hook(Box::new(|panic| {
            let backtrace = std::backtrace::Backtrace::capture();
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("without a name");
            if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
                tracing::error!(thread, %backtrace, "{panic}");
            } else {
                tracing::error!(thread, "{panic}");
            }
        }));
    }

    pub(crate) fn dropped(&self) -> Arc<AtomicU64> {
        self.queue.dropped()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.flush(LAST_WORDS);
    }
}

/// Returns a line of the log in the form of those that `tracing` writes.
fn json_line(level: &str, message: &str) -> Vec<u8> {
    #[allow(clippy::disallowed_methods, reason = "the time of a line of the log, as `tracing` writes it")]
    let now = jiff::Timestamp::now();
    let line = json!({
        "timestamp": format!("{now:.6}"),
        "level": level,
        "fields": { "message": visible::lines(message) },
        "target": "tidegate",
    });
    format!("{line}\n").into_bytes()
}

/// The server ended before its log began.
pub(crate) fn error_without_log(text: &str, printer: &Printer) {
    if std::io::stderr().is_terminal() {
        printer.error(text);
    } else {
        // Failures could not be reported.
        let _ = std::io::stderr().write_all(&json_line("ERROR", text));
    }
}

/// Returns the filter: `TIDEGATE_LOG` wins over the flags.
fn filter(global: &Global) -> Result<Targets, Mistake> {
    let wrong = |why: String| {
        Mistake(format!("TIDEGATE_LOG: {why}; write a level such as info or debug, or target=level pairs"))
    };
    if let Some(set) = std::env::var_os("TIDEGATE_LOG").filter(|set| !set.is_empty()) {
        let set = set.to_str().ok_or_else(|| wrong("is set to bytes that are not UTF-8 text".to_owned()))?;
        let targets: Targets = set.parse().map_err(|error| wrong(format!("{error}")))?;
        // Other targets still log errors.
        let others = targets.default_level().unwrap_or(LevelFilter::ERROR);
        return Ok(targets.with_default(others));
    }
    Ok(match (global.quiet, global.verbose) {
        (true, _) => Targets::new().with_default(LevelFilter::ERROR),
        (false, 0) => {
            Targets::new().with_default(LevelFilter::WARN).with_target("tidegate_server", LevelFilter::INFO)
        }
        (false, 1) => Targets::new().with_default(LevelFilter::INFO),
        (false, _) => Targets::new().with_default(LevelFilter::DEBUG),
    })
}

// A line in the log: of bounded length, without characters that a terminal acts on.

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
    use std::sync::Mutex;

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
