//! Warns of environment variables that look like Tidegate's and are none: a misspelt one sets nothing.

use clap::{Command, CommandFactory as _};
use tidegate_core::spelling::nearest;

use crate::args::Cli;

const OURS: &str = "TIDEGATE_";
/// Read outside of the command line.
const OTHERS: [&str; 5] = ["TOKEN", "TOKEN_FILE", "TICKET_KEY", "TICKET_KEY_FILE", "LOG"];
/// What people expect, each with the variable that does it.
const USUAL: [(&str, &str); 9] = [
    ("PORT", "HTTP"),
    ("LISTEN", "HTTP"),
    ("BIND", "HTTP"),
    ("ADDR", "HTTP"),
    ("LOG_LEVEL", "LOG"),
    // The kind of the store stands in the file.
    ("STORE", "CONFIG"),
    ("CONFIG_FILE", "CONFIG"),
    ("POLICY_FILE", "CONFIG"),
    ("POLICIES", "CONFIG"),
];

/// Returns a warning for each variable of the environment that begins as Tidegate's do and is none of them, without its
/// value, which may be a secret.
pub(crate) fn unknown() -> Vec<String> {
    let mut known: Vec<String> = OTHERS.iter().map(ToString::to_string).collect();
    collect(&Cli::command(), &mut known);
    let given = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?.strip_prefix(OURS)?.to_owned();
        (!is_of_kubernetes(&name, &value.to_string_lossy())).then_some(name)
    });
    let mut told: Vec<String> =
        given.filter(|name| !known.contains(name)).map(|name| remark(&name, &known)).collect();
    told.sort_unstable();
    told
}

/// Kubernetes tells each container of a service called `tidegate` beside it: `TIDEGATE_SERVICE_HOST`, `TIDEGATE_PORT`,
/// `TIDEGATE_PORT_8080_TCP`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    name.contains("SERVICE_HOST")
        || name.contains("SERVICE_PORT")
        || name.contains("PORT_")
        || value.starts_with("tcp://")
}

fn collect(command: &Command, known: &mut Vec<String>) {
    let names =
        command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()?.strip_prefix(OURS));
    known.extend(names.map(str::to_owned));
    command.get_subcommands().for_each(|verb| collect(verb, known));
}

fn remark(name: &str, known: &[String]) -> String {
    let usual = USUAL.iter().find(|(word, _)| *word == name).map(|(_, ours)| *ours);
    let near = || nearest(name, known.iter().map(String::as_str));
    let hint = usual.or_else(near).map_or_else(String::new, |meant| format!("; did you mean {OURS}{meant}?"));
    let name = tidegate::visible::line(name).into_owned();
    format!("the environment variable {OURS}{name} is not known and sets nothing{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_told_the_nearest() {
        let mut known: Vec<String> = OTHERS.iter().map(ToString::to_string).collect();
        collect(&Cli::command(), &mut known);
        for (name, meant) in [
            ("TOKN", "; did you mean TIDEGATE_TOKEN?"),
            ("TOKENFILE", "; did you mean TIDEGATE_TOKEN_FILE?"),
            ("HTPP", "; did you mean TIDEGATE_HTTP?"),
            ("PORT", "; did you mean TIDEGATE_HTTP?"),
            ("STORE", "; did you mean TIDEGATE_CONFIG?"),
            ("CONFIG_FILE", "; did you mean TIDEGATE_CONFIG?"),
            ("DATABASE", "sets nothing"),
        ] {
            assert!(!known.contains(&name.to_owned()));
            assert!(remark(name, &known).ends_with(meant), "{}", remark(name, &known));
        }
        assert!(
            is_of_kubernetes("SERVICE_HOST", "10.0.0.1") && is_of_kubernetes("PORT", "tcp://10.0.0.1:8080")
        );
        assert!(!is_of_kubernetes("PORT", "8080") && !is_of_kubernetes("TOKN", "x"));
    }
}
