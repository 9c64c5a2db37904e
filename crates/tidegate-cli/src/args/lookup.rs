//! Hints for an option or a subcommand that is another verb's.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The shortest word that is looked for in the names of subcommands.
const SHORTEST: usize = 3;

/// Options of other programs, each with the words that do the same here. `{}` stands for the value given, in the form that
/// the last word names, or for the example after it.
const OPTIONS: [(&str, &str, Given, &str); 27] = [
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
    ("--dry-run", "defaults: { mode: shadow } in the file", Given::Word, ""),
    ("--test", "--check", Given::Word, ""),
    ("--daemon", "serve, which stays in the foreground; a service manager runs it", Given::Word, ""),
];
/// Options of one verb that other verbs have in another meaning.
const OF_A_VERB: [(&str, &str, &str, &str); 3] = [
    ("top", "--limit", "-n {}", "20"),
    ("top", "--count-by", "--by {}", "denied"),
    ("list", "--limit", "-n {}", "20"),
];

/// The form in which the value of an option is handed on.
#[derive(Clone, Copy)]
enum Given {
    /// An address to listen on, or a port.
    Address,
    /// The address of an engine.
    Url,
    Word,
}

impl Given {
    /// Returns the value as it is written here; `None` if it cannot be.
    fn written(self, value: &str) -> Option<String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/[]@~%".contains(&byte);
        let value = Some(value).filter(|value| !value.is_empty() && value.bytes().all(is_plain))?;
        match self {
            Self::Word => Some(value.to_owned()),
            Self::Url if value.contains("://") => Some(value.to_owned()),
            Self::Url => Some(format!("redis://{value}")),
            Self::Address => {
                // A port alone is one of this machine.
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

/// Returns the value that an option of the command line has.
fn value_of(flag: &str) -> Option<String> {
    let words: Vec<String> = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).collect();
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

/// Adds to an error of the command line where the option is, or which subcommand has the word in its name.
pub(super) fn with_hint(error: clap::Error, command: &Command) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => option_elsewhere(error, command),
        ErrorKind::InvalidSubcommand => subcommand_like(error, command),
        _ => error,
    }
}

/// For an option that only other verbs have, names those verbs instead of a similarly spelled option of this verb.
fn option_elsewhere(error: clap::Error, command: &Command) -> clap::Error {
    // If the option was put before a verb that has it, clap's message says so already.
    let says_where = match error.get(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips.iter().any(|tip| tip.to_string().contains("exists")),
        _ => false,
    };
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg).filter(|_| !says_where) else {
        return error;
    };
    let written = |form: &str, given: Given, example: &str| {
        let value = value_of(flag).and_then(|value| given.written(&value));
        format!("write {}", form.replace("{}", value.as_deref().unwrap_or(example)))
    };
    let words: Vec<_> = std::env::args().skip(1).collect();
    let of_a_verb =
        OF_A_VERB.iter().find(|(verb, name, ..)| name == flag && words.iter().any(|word| word == verb));
    let known = OPTIONS.iter().find(|(name, ..)| name == flag);
    let long = flag.strip_prefix("--");
    let verbs = paths(command, &|verb| {
        let is_it = |option: &clap::Arg| option.get_long() == long && !option.is_hide_set();
        long.is_some() && verb.get_arguments().any(is_it)
    });
    let tip = match (of_a_verb, known, verbs.is_empty()) {
        (Some((_, _, form, example)), ..) => written(form, Given::Word, example),
        (None, _, false) => format!("'{flag}' is an option of: {}", verbs.join(", ")),
        (None, Some((_, form, given, example)), true) => written(form, *given, example),
        (None, None, true) => return error,
    };
    // Build a new error: the old one shows the usage of the similarly spelled option.
    let mut told = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(command);
    told.insert(ContextKind::InvalidArg, ContextValue::String(flag.clone()));
    told.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    told
}

/// For a subcommand that does not exist and is not spelled like any, names those with the word in their names: for
/// `open`, `force-open`.
fn subcommand_like(mut error: clap::Error, command: &Command) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if let Some((_, here)) = VERBS.iter().find(|(name, _)| name == word) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![(*here).to_owned()]));
        return error;
    }
    if error.get(ContextKind::SuggestedSubcommand).is_some() || word.len() < SHORTEST {
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
