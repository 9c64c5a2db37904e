//! Hints for an option or a subcommand that is another verb's.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The shortest word that is looked for in the names of subcommands.
const SHORTEST: usize = 3;

/// Options of other servers, each with the words that do the same here.
const OPTIONS: [(&str, &str); 18] = [
    ("port", "--http 127.0.0.1:8080"),
    ("listen", "--http 127.0.0.1:8080"),
    ("bind", "--http 127.0.0.1:8080"),
    ("addr", "--http 127.0.0.1:8080"),
    ("address", "--http 127.0.0.1:8080"),
    ("host", "--http 127.0.0.1:8080"),
    ("grpc-port", "--grpc 127.0.0.1:8081"),
    ("metrics-port", "--admin 127.0.0.1:9090"),
    ("metrics-addr", "--admin 127.0.0.1:9090"),
    ("config-file", "-c tidegate.yaml"),
    ("policy", "-c tidegate.yaml"),
    ("policies", "-c tidegate.yaml"),
    ("file", "-c tidegate.yaml"),
    ("log-level", "-v"),
    ("debug", "-v"),
    ("redis", "store: { kind: redis, url: redis://localhost:6379, nodes: 2 } in the file"),
    ("dry-run", "defaults: { mode: shadow } in the file"),
    ("test", "--check"),
];
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
    let Some(long) = flag.strip_prefix("--") else { return error };
    let verbs = paths(command, &|verb| {
        verb.get_arguments().any(|option| option.get_long() == Some(long) && !option.is_hide_set())
    });
    let tip = match (OPTIONS.iter().find(|(name, _)| *name == long), verbs.is_empty()) {
        (_, false) => format!("'{flag}' is an option of: {}", verbs.join(", ")),
        (Some((_, here)), true) => format!("write {here}"),
        (None, true) => return error,
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
