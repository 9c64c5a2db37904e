//! Opens logs, shows the progress of reading, and reports problems in them.

use std::cell::Cell;
use std::io::IsTerminal as _;
use std::ops::ControlFlow;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tidegate::config::{self, Config};
use tidegate::policy::{Glob, GlobError, Match, Want};
use tidegate_core::spelling::nearest;
use tidegate_sim::log::{Format, Input, Log, LogOptions, MAX_DURATION, Order, Tally, Watch};
use tidegate_sim::{grouped, millis, rfc3339};

use crate::args::{self, LineFormat, Reading};
use crate::exit::Mistake;
use crate::outcome;
use crate::output::Printer;

/// The named logs, or standard input.
pub(crate) fn open(reading: &Reading, printer: &Printer) -> Result<Log> {
    let options = options(reading)?;
    let mut inputs: Vec<Input> = reading.logs.iter().map(|log| Input::from_arg(log.as_os_str())).collect();
    if inputs.is_empty() {
        if std::io::stdin().is_terminal() {
            let what = "no log named; name files, as in `tidegate replay access.log`, or pipe one in";
            return Err(Mistake(what.to_owned()).into());
        }
        inputs.push(Input::Stdin);
    }
    if inputs.contains(&Input::Stdin) {
        remark_terminal("tidegate replay access.log", printer);
    }
    Ok(Log::open(inputs, options)?)
}

/// A verb that reads lines from the terminal would otherwise seem to hang.
pub(crate) fn remark_terminal(instead: &str, printer: &Printer) {
    if std::io::stdin().is_terminal() {
        printer.remark(&format!(
            "reading lines from this terminal; end them with Ctrl-D, or name a file: {instead}"
        ));
    }
}

/// Returns the options for reading logs.
///
/// # Errors
/// If the flags contradict each other.
pub(crate) fn options(reading: &Reading) -> Result<LogOptions> {
    let format = match (&reading.log_format, reading.format) {
        (Some(format), _) => {
            if !format.tells_time(&reading.column) {
                let what = "--log-format: no variable has the time; the format needs $time_iso8601, $time_local or $msec, or a variable that \
                            is named as in --column time=NAME";
                return Err(Mistake(what.to_owned()).into());
            }
            Format::LogFormat(format.clone())
        }
        (None, LineFormat::Auto) => Format::Auto,
        (None, LineFormat::Combined) => Format::Combined,
        (None, LineFormat::Common) => Format::Common,
        (None, LineFormat::Vhost) => Format::Vhost,
        (None, LineFormat::Json) => Format::Json,
        (None, LineFormat::Csv) => Format::Csv,
        (None, LineFormat::Alb) => Format::Alb,
        (None, LineFormat::CloudFront) => Format::CloudFront,
        (None, LineFormat::W3c) => Format::W3c,
        (None, LineFormat::Envoy) => Format::Envoy,
        (None, LineFormat::Istio) => Format::Istio,
        (None, LineFormat::HaProxy) => Format::HaProxy,
    };
    let order = match (reading.order, Order::default()) {
        (args::Order::Clamp, _) => Order::Clamp,
        (args::Order::Sort, Order::Sort { bytes, .. }) => Order::Sort { window: reading.reorder, bytes },
        (args::Order::Sort, other) => other,
    };
    let matching = matching(&reading.matching)?;
    Ok(LogOptions { format, columns: reading.column.clone(), order, matching })
}

/// The option that says how lines look and the format that they have without it, if a log can be read then.
pub(crate) fn recognised(asked: &Reading) -> Option<(&'static str, String)> {
    let option = match (&asked.log_format, asked.format) {
        (Some(_), _) => "--log-format",
        (None, LineFormat::Auto) => return None,
        (None, _) => "--format",
    };
    let inputs: Vec<Input> = asked.logs.iter().map(|log| Input::from_arg(log.as_os_str())).collect();
    // A pipe has nothing more to read, and may never have.
    let is_file = |log: &std::path::PathBuf| log.is_file();
    if inputs.is_empty() || inputs.contains(&Input::Stdin) || !asked.logs.iter().all(is_file) {
        return None;
    }
    let options = LogOptions { columns: asked.column.clone(), order: Order::Clamp, ..LogOptions::default() };
    let mut log = Log::open(inputs, options).ok()?;
    let mut is_read = false;
    let tally = log.read(|_| {
        is_read = true;
        ControlFlow::Break(())
    });
    let format = tally.ok()?.files.first().map(|(_, format)| format.to_string())?;
    is_read.then_some((option, format))
}

/// Returns the attribute that is probably meant by one which no request has, of those that requests have: `user.id` by
/// `user`.
pub(crate) fn meant<'n>(missing: &str, has: &[&'n str]) -> Option<&'n str> {
    let mut parts = has.iter().copied().filter(|name| name.split('.').any(|part| part == missing));
    match (parts.next(), parts.next()) {
        (Some(one), None) => Some(one),
        _ => nearest(missing, has.iter().copied()),
    }
}

#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<(ProgressBar, Watch)>,
    calls: Cell<u32>,
}

impl Progress {
    pub(crate) fn start(watch: Watch, printer: &Printer) -> Self {
        Self::of(String::new(), watch, printer)
    }

    /// Starts a bar with a word or two before it: what is read, and why.
    pub(crate) fn of(what: String, watch: Watch, printer: &Printer) -> Self {
        let bar = printer.progress().then(|| {
            let bar = match watch.progress().total {
                Some(total) => {
                    let style = "{msg}{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
                    ProgressBar::new(total)
                        .with_style(ProgressStyle::with_template(style).expect("a constant template"))
                }
                None => {
                    let style = "{msg}{spinner} {bytes}  {bytes_per_sec}";
                    ProgressBar::new_spinner()
                        .with_style(ProgressStyle::with_template(style).expect("a constant template"))
                }
            };
            bar.set_message(what);
            // With a long line in a short log, or a slow disk, the program would otherwise seem to hang.
            bar.tick();
            (bar, watch)
        });
        Self { bar, calls: Cell::new(0) }
    }

    /// Called once per request; updates the bar only now and then.
    pub(crate) fn tick(&self) {
        const EVERY: u32 = 1 << 14;
        let calls = self.calls.get().wrapping_add(1);
        self.calls.set(calls);
        if let (Some((bar, watch)), 0) = (&self.bar, calls % EVERY) {
            bar.set_position(watch.progress().read);
        }
    }

    pub(crate) fn finish(&self) {
        if let Some((bar, _)) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

pub(crate) fn describe(tally: &Tally) -> Value {
    let files: Vec<Value> = tally
        .files
        .iter()
        .map(|(file, format)| json!({ "file": file, "format": format.to_string() }))
        .collect();
    json!({
        "files": files,
        "lines": tally.lines,
        "requests": tally.records,
        "unmatched": tally.unmatched,
        "malformed": tally.malformed,
        "malformed_examples": tally.first_malformed.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "odd_statuses": tally.odd_statuses,
        "overlong": tally.overlong,
        "back_in_time": tally.order.back,
        "put_in_order": tally.order.ordered,
        "clamped": tally.order.clamped,
        "largest_step_back_ms": millis(tally.order.largest_step),
        "first_at": tally.first.map(rfc3339),
        "last_at": tally.last.map(rfc3339),
    })
}

/// What to know before trusting the numbers.
pub(crate) fn remark(tally: &Tally, printer: &Printer) {
    let order = &tally.order;
    remark_surrounded(tally, printer);
    if order.back > 0 {
        printer.remark(&format!(
            "time goes back {} times, by up to {}: {} lines were put in order, {} were given the latest time seen",
            grouped(order.back),
            outcome::span(order.largest_step),
            grouped(order.ordered),
            grouped(order.clamped),
        ));
        if let Some(window) = order.window_advised() {
            printer.remark(&format!("  with --reorder {window} none would come too late"));
        }
    }
    if tally.malformed > 0 {
        printer.remark(&format!("{} malformed and left out; the first:", lines(tally.malformed)));
        for line in &tally.first_malformed {
            printer.remark(&format!("  {line}"));
        }
    }
    if let Some(first) = tally.first_odd_status {
        printer.remark(&format!(
            "{} outside 100 to 599, such as {first:03}: 600 and above count as failed, less than 100 as succeeded",
            counted(tally.odd_statuses, "has a status", "have a status"),
        ));
    }
    if tally.overlong > 0 {
        printer.remark(&format!(
            "{} of more than {}, which counts as unknown; name its unit as in --column request.duration=NAME_us, or give --hold",
            counted(tally.overlong, "has a duration", "have a duration"),
            outcome::span(MAX_DURATION),
        ));
    }
    if tally.unmatched > 0 {
        let requests = if tally.unmatched == 1 { "request" } else { "requests" };
        printer.remark(&format!("left out by --match: {} {requests}", grouped(tally.unmatched)));
    }
    for name in &tally.unmet {
        printer.remark(&format!(
            "--match {name}: no request has {name}; the attributes of requests are named as in a policy file"
        ));
    }
    if tally.files_sorted {
        let files: Vec<&str> = tally.files.iter().map(|(file, _)| file.as_str()).collect();
        printer.remark(&format!("files were read in the order of their times: {}", files.join(", ")));
    }
}

/// What surrounds the lines of files that were read; all requests come from a proxy.
fn remark_surrounded(tally: &Tally, printer: &Printer) {
    for (file, told) in &tally.surrounded {
        printer.remark(&format!("{file}: {told}"));
    }
}

/// The same of files that were read by others, each of which is begun anew for it.
pub(crate) fn remark_begins(inputs: &[Input], options: &LogOptions, printer: &Printer) {
    if !printer.remarks() {
        return;
    }
    let options = LogOptions { order: Order::Clamp, matching: Match::any(), ..options.clone() };
    for input in inputs {
        // Whoever read the files has told of their errors.
        let Ok(mut log) = Log::open(vec![input.clone()], options.clone()) else { continue };
        if log.read(|_| ControlFlow::Break(())).is_ok() {
            remark_surrounded(log.tally(), printer);
        }
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 request {one}") } else { format!("{} requests {many}", grouped(count)) }
}

fn lines(count: u64) -> String {
    if count == 1 { "1 line is".to_owned() } else { format!("{} lines are", grouped(count)) }
}

pub(crate) fn title(tally: &Tally) -> String {
    match &tally.files[..] {
        [(file, _)] => {
            let path = std::path::Path::new(file);
            path.file_name().map_or_else(|| file.clone(), |name| name.to_string_lossy().into_owned())
        }
        files => format!("{} files", files.len()),
    }
}

/// Makes a match from words such as `path=/api/**`, `header.x-plan=pro` and `not.method=GET`. Words with the same name
/// are alternatives; those with different names must all match.
fn matching(words: &[(String, String)]) -> Result<Match> {
    let (mut asked, mut left_out) = (Vec::new(), Vec::new());
    for (name, value) in words {
        match name.strip_prefix("not.") {
            Some(name) => left_out.push((name, value.as_str())),
            None => asked.push((name.as_str(), value.as_str())),
        }
    }
    let built = part(&asked, "")?;
    let left = part(&left_out, "not.")?;
    possible(&asked, "")?;
    possible(&left_out, "not.")?;
    Ok(if left_out.is_empty() { built } else { built.not(left) })
}

/// Words that fit no request, by the rules of a policy file: a network of addresses, a regular expression.
fn possible(words: &[(&str, &str)], prefix: &str) -> Result<()> {
    for (name, value) in words {
        let (part, key) = match *name {
            "method" | "request.method" => ("method", None),
            "path" | "request.path" => ("path", None),
            "host" | "request.host" => ("host", None),
            name => match name.strip_prefix("header.").or_else(|| name.strip_prefix("request.header.")) {
                Some(header) => ("header", Some(header)),
                None => ("attributes", Some(name)),
            },
        };
        let asked = key.map_or_else(|| json!(value), |key| json!({ key: value }));
        let policy = json!({ "name": "p", "match": { part: asked }, "limit": { "rate": "1/s" } });
        let file = json!({ "version": 1, "policies": [policy] }).to_string();
        let Err(mistakes) = Config::parse(&file, "", config::Format::Yaml) else { continue };
        let told = mistakes.first().map(|mistake| mistake.message.clone()).unwrap_or_default();
        let told = told.trim_start_matches("policy \"p\": ").trim_start_matches(&format!("match.{part}: "));
        return Err(Mistake(format!("--match {prefix}{name}: {told}")).into());
    }
    Ok(())
}

fn part(words: &[(&str, &str)], prefix: &str) -> Result<Match> {
    let mut built = Match::any();
    let mut wants: Vec<(&str, Want)> = Vec::new();
    for (name, value) in words {
        let wrong = |error: GlobError| Mistake(format!("--match {prefix}{name}: {error}"));
        built = match *name {
            "method" | "request.method" => built.method(value),
            "path" | "request.path" => built.path(value).map_err(wrong)?,
            "host" | "request.host" => built.host(value).map_err(wrong)?,
            name => {
                let want = match *value {
                    "true" => Want::Present,
                    "false" => Want::Absent,
                    pattern => Want::OneOf(vec![Glob::new(pattern).map_err(wrong)?]),
                };
                match (wants.iter_mut().find(|(have, _)| *have == name), want) {
                    (None, want) => wants.push((name, want)),
                    (Some((_, Want::OneOf(globs))), Want::OneOf(more)) => globs.extend(more),
                    (Some(_), _) => {
                        let what = format!(
                            "--match {prefix}{name}: true and false mean present and absent, and cannot be combined with other values of the same name"
                        );
                        return Err(Mistake(what).into());
                    }
                }
                built
            }
        };
    }
    for (name, want) in wants {
        let header = name.strip_prefix("header.").or_else(|| name.strip_prefix("request.header."));
        built = match header {
            Some(header) => built.header(header, want),
            None => built.attribute(name, want),
        };
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use tidegate::policy::Descriptor;

    use super::*;

    fn read(words: &[&str]) -> Result<Match> {
        let pair = |word: &&str| {
            let (name, value) = word.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        matching(&words.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_those_of_a_policy() {
        let request = Descriptor::from([
            ("request.method", "POST"),
            ("request.path", "//api/./items?x"),
            ("request.host", "Shop.example:443"),
            ("request.header.x-plan", "pro"),
            ("response.status", "503"),
        ]);
        let rows: [(&[&str], bool); 13] = [
            (&[], true),
            (&["path=/api/**"], true),
            (&["path=/login", "path=/api/*"], true),
            (&["request.path=/login"], false),
            (&["method=post", "host=*.example"], true),
            (&["method=GET", "path=/api/**"], false),
            (&["header.X-Plan=pro"], true),
            (&["request.header.x-plan=free", "header.x-plan=pro"], false),
            (&["response.status=5*", "user.id=false"], true),
            (&["user.id=true"], false),
            (&["path=/api/**", "not.method=POST"], false),
            (&["not.path=/health", "not.path=/metrics"], true),
            (&["not.path=/api/**"], false),
        ];
        for (words, fits) in rows {
            assert_eq!(read(words).unwrap().matches(&request), fits, "{words:?}");
        }
    }

    #[test]
    fn mistakes_name_the_flag_and_the_word() {
        let rows: [(&[&str], &str); 6] = [
            (
                &["client.ip=10.0.0.0/8"],
                "--match client.ip: \"10.0.0.0/8\" is not an address; networks stand in access.allow and access.deny; in a match write \"10.*\"",
            ),
            (
                &["not.path=/api/[0-9]+"],
                "--match not.path: \"/api/[0-9]+\": a path has no regular expressions or parameters here: * is one segment, ** any number, {a,b} either; write /api/*",
            ),
            (&["path=api"], "--match path: \"api\": a path pattern starts with / or **"),
            (&["not.host=a{b"], "--match not.host: \"a{b\": braces do not pair; write {a,b}, not nested"),
            (
                &["user.id="],
                "--match user.id: an empty pattern matches nothing; leave it out to match everything",
            ),
            (
                &["user.id=true", "user.id=a"],
                "--match user.id: true and false mean present and absent, and cannot be combined with other values of the same name",
            ),
        ];
        for (words, wrong) in rows {
            assert_eq!(read(words).unwrap_err().to_string(), wrong, "{words:?}");
        }
    }
}
