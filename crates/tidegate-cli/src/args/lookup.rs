//! Hints for an option or a subcommand that is another verb's or another program's.

use std::net::IpAddr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, ValueEnum as _};
use tidegate_core::spelling::nearest;

use super::LineFormat;

/// The shortest word that is looked for in the names of subcommands.
const SHORTEST: usize = 3;

/// Options of other programs, each with the words that do the same here. `{}` stands for the value given, in the form
/// that the last word names, or for the example after it.
const OPTIONS: [(&str, &str, Given, &str); 33] = [
    ("--port", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("-p", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--listen", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--bind", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--addr", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--address", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--host", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--http-port", "--http {}", Given::Address, "127.0.0.1:8080"),
    ("--grpc-port", "--grpc {}", Given::Address, "127.0.0.1:8081"),
    ("--grpc-addr", "--grpc {}", Given::Address, "127.0.0.1:8081"),
    ("--redis-port", "--resp {}", Given::Address, "127.0.0.1:6379"),
    ("--admin-port", "--admin {}", Given::Address, "127.0.0.1:9090"),
    ("--metrics", "--admin {}", Given::Address, "127.0.0.1:9090"),
    ("--metrics-port", "--admin {}", Given::Address, "127.0.0.1:9090"),
    ("--metrics-addr", "--admin {}", Given::Address, "127.0.0.1:9090"),
    ("--config-file", "-c {}", Given::Word, "tidegate.yaml"),
    ("--policy", "-c {}", Given::Word, "tidegate.yaml"),
    ("--policies", "-c {}", Given::Word, "tidegate.yaml"),
    ("--file", "-c {}", Given::Word, "tidegate.yaml"),
    ("-f", "-c {}", Given::Word, "tidegate.yaml"),
    ("--log-level", "-v", Given::Word, ""),
    ("--debug", "-v", Given::Word, ""),
    (
        "--redis",
        "store: { kind: redis, url: {}, nodes: 2 } in the file",
        Given::Url,
        "redis://localhost:6379",
    ),
    (
        "--redis-url",
        "store: { kind: redis, url: {}, nodes: 2 } in the file",
        Given::Url,
        "redis://localhost:6379",
    ),
    ("--store", "store: { {} } in the file", Given::Store, "kind: memory"),
    ("--memory", "store: { kind: memory } in the file", Given::Word, ""),
    ("--in-memory", "store: { kind: memory } in the file", Given::Word, ""),
    ("--envoy", "--from-envoy {}", Given::Word, "config.yaml"),
    ("--limitador", "--from-limitador {}", Given::Word, "limits.yaml"),
    ("--domain", "match: { attributes: { rls.domain: {} } } in the file", Given::Word, "shop"),
    ("--dry-run", "defaults: { mode: shadow } in the file", Given::Word, ""),
    ("--test", "--check", Given::Word, ""),
    ("--daemon", "serve, which stays in the foreground; a service manager runs it", Given::Word, ""),
];
const IN_FILE: &str = "policies: [{ name: api, by: [client.ip], limit: { rate: {} } }] in the file";
/// A log is named without an option.
const BARE_LOG: &str = "{} without an option, as in tidegate replay {}";
/// Options of one verb that other verbs have in another meaning, or not at all.
const OF_A_VERB: [(&str, &str, &str, Given, &str); 10] = [
    ("top", "--limit", "-n {}", Given::Word, "20"),
    ("top", "--count-by", "--by {}", Given::Word, "denied"),
    ("list", "--limit", "-n {}", Given::Word, "20"),
    ("serve", "--rate", IN_FILE, Given::Rate, "10/s"),
    ("serve", "--limit", IN_FILE, Given::Rate, "10/s"),
    ("serve", "--by", "by: [{}] in the file", Given::Word, "client.ip"),
    ("replay", "--log", BARE_LOG, Given::Word, "access.log"),
    ("replay", "--log-file", BARE_LOG, Given::Word, "access.log"),
    ("suggest", "--log", "{} without an option, as in tidegate suggest {}", Given::Word, "access.log"),
    ("suggest", "--file", "{} without an option, as in tidegate suggest {}", Given::Word, "access.log"),
];
/// No other words replace these. With the verb (empty: any) and what to know.
const NOTES: [(&str, &str, &str); 4] = [
    ("", "--token", TOKEN),
    ("suggest", "-c", NO_POLICIES),
    ("suggest", "--config", NO_POLICIES),
    (
        "check",
        "--strict",
        "config check exits 2 if there is any error and 0 if there are only warnings; -o json counts both",
    ),
];
const TOKEN: &str = "set the environment variable TIDEGATE_TOKEN; other users may read a command line";
const NO_POLICIES: &str =
    "suggest reads no policy file: it proposes a limit from the log alone, as in tidegate suggest access.log";

/// How the value of an option is handed on.
#[derive(Clone, Copy)]
enum Given {
    Address,
    Store,
    Rate,
    Url,
    Word,
}

/// The word means the same without quotes.
fn is_plain(word: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/[]@~%".contains(&byte);
    !word.is_empty() && word.bytes().all(is_safe)
}

impl Given {
    /// Returns the value as it is written here; `None` if it cannot be.
    fn written(self, value: &str) -> Option<String> {
        let value = Some(value).filter(|value| is_plain(value))?;
        match self {
            Self::Word => Some(value.to_owned()),
            Self::Rate => value.contains('/').then(|| value.to_owned()),
            Self::Store => match value {
                "memory" | "disk" => Some(format!("kind: {value}")),
                "redis" => Some("kind: redis, url: redis://localhost:6379, nodes: 2".to_owned()),
                _ => None,
            },
            Self::Url if value.contains("://") => Some(value.to_owned()),
            Self::Url => Some(format!("redis://{value}")),
            Self::Address => {
                let local = value.trim_start_matches(['*', ':']);
                let address = match local.parse::<u16>() {
                    Ok(port) => format!("127.0.0.1:{port}"),
                    Err(_) if value.contains(':') => value.to_owned(),
                    Err(_) => format!("{value}:8080"),
                };
                super::values::listened(&address).is_ok().then_some(address)
            }
        }
    }
}

fn typed() -> Vec<String> {
    std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).collect()
}

fn value_of(flag: &str, words: &[String]) -> Option<String> {
    words.iter().enumerate().find_map(|(at, word)| {
        let after = word.strip_prefix(flag)?;
        match after.strip_prefix('=') {
            Some(value) => Some(value.to_owned()),
            None if after.is_empty() => words.get(at + 1).filter(|next| !next.starts_with('-')).cloned(),
            None => None,
        }
    })
}

/// Verbs of other programs, each with the one here.
const VERBS: [(&str, &str); 12] = [
    ("start", "serve"),
    ("run", "serve"),
    ("server", "serve"),
    ("daemon", "serve"),
    ("check", "config check"),
    ("validate", "config check"),
    ("lint", "config check"),
    ("verify", "config check"),
    ("test", "config check"),
    ("fmt", "config fmt"),
    ("format", "config fmt"),
    ("status", "ready"),
];

/// The same of the verbs of `key`.
const KEY_VERBS: [(&str, &str); 6] = [
    ("show", "key get"),
    ("info", "key get"),
    ("ban", "key block"),
    ("unban", "key unblock"),
    ("delete", "key reset"),
    ("clear", "key reset"),
];

/// No verb does it.
const RELOAD: &str = "a running server reads its policy file again when it changes, on SIGHUP (kill -HUP PID) and on POST /v1/reload";

/// Adds where the option is, or which subcommand has the word in its name.
pub(super) fn with_hint(error: clap::Error, command: &Command) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => option_elsewhere(error, command),
        ErrorKind::InvalidSubcommand => subcommand_like(error, command),
        ErrorKind::InvalidValue => format_like(error),
        _ => error,
    }
}

/// Formats of logs by the names of the programs that write them, each with the one here.
const FORMATS: [(&str, &str); 7] = [
    ("nginx", "combined"),
    ("apache", "combined"),
    ("jsonl", "json"),
    ("ndjson", "json"),
    ("tsv", "csv"),
    ("elb", "alb"),
    ("iis", "w3c"),
];

/// The format of a log is called otherwise here.
fn format_like(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let given = text(ContextKind::InvalidValue);
    let is_format = text(ContextKind::InvalidArg).starts_with("--format ");
    let Some((_, here)) = FORMATS.iter().find(|(name, _)| is_format && *name == given) else {
        return error;
    };
    error.insert(ContextKind::SuggestedValue, ContextValue::String((*here).to_owned()));
    error
}

/// This verb lacks the option: what to write instead of a similarly spelled one.
fn option_elsewhere(mut error: clap::Error, command: &Command) -> clap::Error {
    // Clap's message says so already if the option was put before a verb that has it.
    let says_where = match error.get(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips.iter().any(|tip| tip.to_string().contains("exists")),
        _ => false,
    };
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg).filter(|_| !says_where) else {
        return error;
    };
    let (flag, words) = (flag.clone(), typed());
    let here = words.iter().fold(command, |verb, word| verb.find_subcommand(word).unwrap_or(verb));
    let (kind, tip) = if let Some(tip) = tip(&flag, &words, here, command) {
        (ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]))
    } else if let Some(near) = spelled_like(&flag, here) {
        (ContextKind::SuggestedArg, ContextValue::String(near))
    } else {
        // No tip is better than that of clap: an option whose letters are similar, or to write it as a value.
        error.remove(ContextKind::Suggested);
        if error.remove(ContextKind::SuggestedArg).is_some() {
            error.remove(ContextKind::Usage);
        }
        return error;
    };
    // The old error shows the usage of the similarly spelled option.
    let mut told = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(command);
    told.insert(ContextKind::InvalidArg, ContextValue::String(flag));
    told.insert(kind, tip);
    told
}

fn spelled_like(flag: &str, here: &Command) -> Option<String> {
    let long = flag.strip_prefix("--")?;
    let visible = here.get_arguments().filter(|option| !option.is_hide_set());
    let globals = ["output", "color", "quiet", "verbose", "help", "version"];
    nearest(long, visible.filter_map(clap::Arg::get_long).chain(globals)).map(|near| format!("--{near}"))
}

fn tip(flag: &str, words: &[String], here: &Command, command: &Command) -> Option<String> {
    let is_typed = |verb: &str| verb.is_empty() || words.iter().any(|word| word == verb);
    if let Some((.., says)) = NOTES.iter().find(|(verb, name, _)| *name == flag && is_typed(verb)) {
        return Some((*says).to_owned());
    }
    let value = value_of(flag, words);
    let written = |form: &str, given: Given, example: &str| {
        let value = value.as_deref().and_then(|value| given.written(value));
        Some(format!("write {}", form.replace("{}", value.as_deref().unwrap_or(example))))
    };
    let has = |is_it: &dyn Fn(&clap::Arg) -> bool| here.get_arguments().any(is_it);
    if let Some((.., form, given, example)) =
        OF_A_VERB.iter().find(|(verb, name, ..)| *name == flag && is_typed(verb))
    {
        return written(form, *given, example);
    }
    let format = value.as_deref().filter(|_| flag == "-f" && has(&|option| option.get_id() == "format"));
    if let Some(format) = format.filter(|format| LineFormat::from_str(format, true).is_ok()) {
        return Some(format!("write --format {format}"));
    }
    if has(&|option| option.get_long() == Some("attr"))
        && let Some(options) = attributes(flag, words)
    {
        return Some(format!("write {options}"));
    }
    if is_typed("key")
        && has(&|option| option.get_long() == Some("key"))
        && let Some(key) = key(flag, words, here.get_name() == "reset")
    {
        return Some(format!("write {key}"));
    }
    let is_here = |option: &str| match option.strip_prefix("--") {
        Some(long) => has(&|one| one.get_long() == Some(long)),
        None if option == "-c" => {
            has(&|one| one.get_short() == Some('c') && one.get_long() == Some("config"))
        }
        // Words of the file, and options of all verbs.
        None => true,
    };
    let known =
        OPTIONS.iter().find(|(name, form, ..)| *name == flag && form.split(' ').next().is_none_or(is_here));
    if let Some((_, form, given, example)) = known {
        return written(form, *given, example);
    }
    let long = flag.strip_prefix("--");
    let verbs = paths(command, &|verb| {
        let is_it = |option: &clap::Arg| option.get_long() == long && !option.is_hide_set();
        long.is_some() && verb.get_arguments().any(is_it)
    });
    (!verbs.is_empty()).then(|| format!("'{flag}' is an option of: {}", verbs.join(", ")))
}

/// Says whether a word may be the name of an attribute, such as `client.ip`.
fn is_attribute(name: &str) -> bool {
    name.contains('.') && name.starts_with(|letter: char| letter.is_ascii_lowercase()) && is_plain(name)
}

/// An attribute written without `--attr`: `client.ip=203.0.113.9`, `--client.ip 203.0.113.9` or `GET /api`.
fn attributes(stray: &str, words: &[String]) -> Option<String> {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let attribute = |name: &str, value: &str| is_plain(value).then(|| format!("--attr {name}={value}"));
    if let Some(name) = stray.strip_prefix("--") {
        return value_of(stray, words)
            .filter(|_| is_attribute(name))
            .and_then(|value| attribute(name, &value));
    }
    if let Some((name, value)) = stray.split_once('=') {
        return attribute(name, value).filter(|_| is_attribute(name));
    }
    if METHODS.contains(&stray) {
        let method = attribute("request.method", stray)?;
        let next = words.iter().skip_while(|word| *word != stray).nth(1);
        let path = next.filter(|next| next.starts_with('/')).and_then(|path| attribute("request.path", path));
        return Some(path.map_or_else(|| method.clone(), |path| format!("{method} {path}")));
    }
    match stray.parse::<IpAddr>() {
        Ok(_) => attribute("client.ip", stray),
        Err(_) if stray.starts_with('/') => attribute("request.path", stray),
        Err(_) => None,
    }
}

/// A key or caller whose name and value were written as two words, or without `--key`.
fn key(stray: &str, words: &[String], is_of_policy: bool) -> Option<String> {
    if let Some((name, value)) = stray.split_once('=') {
        return (is_attribute(name) && is_plain(value)).then(|| format!("--key {stray}"));
    }
    let at = words.iter().position(|word| word == stray)?;
    let name = words.get(at.checked_sub(1)?).filter(|name| is_attribute(name) && is_plain(stray))?;
    Some(if is_of_policy { format!("POLICY --key {name}={stray}") } else { format!("{name}={stray}") })
}

/// Names the subcommands with the word in their names: for `open`, `force-open`.
fn subcommand_like(mut error: clap::Error, command: &Command) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let word = word.clone();
    if word == "reload" {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![RELOAD.into()]));
        return error;
    }
    let of_keys = if typed().iter().any(|verb| verb == "key") { &KEY_VERBS[..] } else { &[] };
    if let Some((_, here)) = of_keys.iter().chain(&VERBS).find(|(name, _)| *name == word) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![(*here).to_owned()]));
        return error;
    }
    // Similar letters alone are no better than none.
    if let Some(ContextValue::Strings(names)) = error.remove(ContextKind::SuggestedSubcommand) {
        let near = |name: &String| nearest(&word, [name.as_str()]).is_some() || name.starts_with(&word);
        let names: Vec<String> = names.into_iter().filter(near).collect();
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
            return error;
        }
        error.remove(ContextKind::Suggested);
    }
    if word.len() < SHORTEST {
        return error;
    }
    let has_word = |verb: &Command| verb.get_name().split('-').any(|part| part.starts_with(word.as_str()));
    let names = paths(command, &has_word);
    if !names.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
    error
}

/// Returns the verbs that are wanted, each with the verbs before it, as it is typed: `breaker force-open`. Below a verb
/// that is wanted none is looked for.
fn paths(command: &Command, is_wanted: &dyn Fn(&Command) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for verb in command.get_subcommands() {
        if is_wanted(verb) {
            found.push(verb.get_name().to_owned());
        } else {
            found.extend(paths(verb, is_wanted).iter().map(|below| format!("{} {below}", verb.get_name())));
        }
    }
    found
}
