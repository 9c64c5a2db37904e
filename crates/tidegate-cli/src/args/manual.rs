//! The tables of the manual (docs/command-line.md), made from the definition of the command line.

use clap::{Arg, Command, CommandFactory as _};
use tidegate_testkit::{cell, keep_tables, table};

use super::Cli;

const PAGE: &str = "docs/command-line.md";

/// The verbs with a table of options. Those of a verb's subcommands are in its table.
const OPTIONS: [&str; 18] = [
    "init", "config", "replay", "suggest", "simulate", "explain", "serve", "bench", "top", "stat", "tail",
    "why", "changes", "key", "switch", "breaker", "drain", "policies",
];

const SUBCOMMANDS: [&str; 5] = ["config", "key", "switch", "breaker", "policies"];

/// The headings of options that have a table of their own on the page, or are in that of another verb.
const GLOBAL: &str = "Global options";
const READING: &str = "Reading";
const LIMIT: &str = "Limit";

/// The page or section that says more about an option.
const SECTIONS: &[(&str, &str)] = &[
    ("--output", "#output-and-files"),
    ("--ca", "running.md#tls"),
    ("init --from-envoy", "migrate.md"),
    ("replay --fail-if", "#in-ci"),
    ("replay --hit", "#keys-hit"),
    ("replay --max-malformed", "#no-verdict"),
    ("replay --plot", "#the-report"),
    ("replay --switch-off", "#switches-of-a-file"),
    ("replay --match", "#part-of-a-log"),
    ("replay --log-format", "#a-log_format-of-nginx"),
    ("simulate --trace", "trace.md"),
    ("explain --id", "http-api.md#decision-ids"),
    ("explain --priority", "policy-file.md#priorities-keep_for"),
    ("serve --http", "http-api.md#unix-sockets"),
    ("serve --admin", "http-api.md#an-address-for-operations"),
    ("serve --grpc", "envoy.md"),
    ("serve --resp", "resp.md"),
    ("serve --store-path", "stores/README.md#which-folder"),
    ("serve --connections", "http-api.md#connections"),
    ("serve --tokens-file", "http-api.md#who-may-ask"),
    ("serve --tls-cert", "running.md#tls"),
    ("serve --forward-auth", "forward-auth.md"),
    ("serve --metrics-names", "metrics.md#names-of-other-rate-limiters"),
    ("serve --from-envoy", "migrate.md"),
];

#[derive(PartialEq)]
struct Row {
    option: String,
    what: String,
    /// A section is looked up by it.
    long: String,
}

impl Row {
    fn of(arg: &Arg) -> Self {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let stated = help.strip_suffix(']').and_then(|help| help.rsplit_once(" [default: "));
        let mut what = match stated {
            Some((help, default)) => format!("{}; default: {}", cell(help), cell(default)),
            None => cell(&help),
        };
        let values: Vec<String> = if takes_value(arg) {
            let possible = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
            possible.map(|value| format!("`{}`", value.get_name())).collect()
        } else {
            Vec::new()
        };
        if !values.is_empty() {
            what = format!("{what}: {}", values.join(", "));
        }
        let long = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
        Self { option: format!("{}{}", spelled(arg), default(arg)), what, long }
    }

    /// Returns the cells of the row in the table of a verb.
    fn cells(&self, verb: &str) -> [String; 2] {
        let of = format!("{verb} {}", self.long);
        let section = SECTIONS.iter().find(|(known, _)| *known == of.trim());
        let option = section
            .map_or_else(|| self.option.clone(), |(_, section)| format!("[{}]({section})", self.option));
        [option, self.what.clone()]
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// An option as `` `-c`, `--config FILE` ``, an argument as `` `FILE` ``.
fn spelled(arg: &Arg) -> String {
    let value = value(arg);
    if arg.is_positional() {
        return format!("`{value}`");
    }
    let long = arg
        .get_long()
        .map(|long| if takes_value(arg) { format!("`--{long} {value}`") } else { format!("`--{long}`") });
    let short = arg.get_short().map(|short| format!("`-{short}`"));
    short.into_iter().chain(long).collect::<Vec<_>>().join(", ")
}

/// Writes the value of an option, in brackets if it may be left out.
fn value(arg: &Arg) -> String {
    let named = arg.get_value_names().and_then(|names| names.first());
    let name = named.map_or_else(|| arg.get_id().as_str().to_uppercase(), ToString::to_string);
    let name = name.replace('|', " or ");
    match arg.get_num_args() {
        Some(range) if range.min_values() == 0 => format!("[{name}]"),
        Some(range) if range.max_values() > 1 => format!("{name}..."),
        _ => name,
    }
}

fn default(arg: &Arg) -> String {
    let words = arg.get_default_values().iter().map(|word| word.to_string_lossy());
    let words = words.collect::<Vec<_>>().join(",");
    if words.is_empty() || !takes_value(arg) { String::new() } else { format!(" ({})", cell(&words)) }
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

fn verb<'c>(cli: &'c Command, name: &str) -> &'c Command {
    cli.find_subcommand(name).unwrap_or_else(|| panic!("there is no verb {name}"))
}

/// Lists the options that many verbs have: those of all, the policy file, and the server.
fn common(cli: &Command) -> Vec<Row> {
    let file = verb(cli, "replay").get_arguments().filter(|arg| arg.get_id().as_str() == "config");
    let server = verb(cli, "ready").get_arguments();
    cli.get_arguments().chain(file).chain(server).filter(|arg| is_shown(arg)).map(Row::of).collect()
}

/// A verb's options and those of its subcommands, without those that the page has elsewhere.
fn options(cli: &Command, name: &str, common: &[Row]) -> Vec<[String; 2]> {
    let elsewhere = |arg: &Arg| match arg.get_help_heading() {
        Some(GLOBAL | READING) => true,
        Some(LIMIT) => name == "simulate",
        _ => false,
    };
    let command = verb(cli, name);
    let arguments_too = !SUBCOMMANDS.contains(&name);
    let mut found: Vec<Found<'_>> = Vec::new();
    for of in std::iter::once(command).chain(command.get_subcommands()) {
        let here = |arg: &&Arg| is_shown(arg) && !elsewhere(arg) && (arguments_too || !arg.is_positional());
        for arg in of.get_arguments().filter(here) {
            let row = Row::of(arg);
            if common.contains(&row) {
                continue;
            }
            match found.iter_mut().find(|known| known.row == row) {
                Some(known) => known.of.push(of.get_name()),
                None => found.push(Found { row, of: vec![of.get_name()] }),
            }
        }
    }
    let rows = found.into_iter().map(|found| {
        let [option, what] = found.row.cells(name);
        if found.of == [name] {
            return [option, what];
        }
        let of: Vec<String> = found.of.iter().map(|of| format!("`{of}`")).collect();
        [option, format!("{}: {what}", of.join(", "))]
    });
    rows.collect()
}

/// A row, and the subcommands that have the option, or the verb itself.
struct Found<'c> {
    row: Row,
    of: Vec<&'c str>,
}

fn subcommands(command: &Command) -> Vec<[String; 2]> {
    let rows = command.get_subcommands().map(|of| {
        let arguments = of.get_arguments().filter(|arg| arg.is_positional()).map(|arg| {
            if arg.is_required_set() { format!(" {}", value(arg)) } else { format!(" [{}]", value(arg)) }
        });
        let about = of.get_about().map(ToString::to_string).unwrap_or_default();
        [format!("`{}{}`", of.get_name(), arguments.collect::<String>()), cell(&about)]
    });
    rows.collect()
}

/// Makes the table of environment variables that stand for an option.
fn variables(cli: &Command) -> Vec<[String; 2]> {
    let mut found: Vec<[String; 2]> = Vec::new();
    for command in cli.get_subcommands().flat_map(|verb| std::iter::once(verb).chain(verb.get_subcommands()))
    {
        for arg in command.get_arguments() {
            let (Some(variable), Some(long)) = (arg.get_env(), arg.get_long()) else { continue };
            let variable = format!("`{}`", variable.to_string_lossy());
            match found.iter_mut().find(|[known, _]| *known == variable) {
                Some([_, option]) => *option = format!("`--{long}`"),
                None => found.push([variable, format!("`{} --{long}`", command.get_name())]),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_manual_has_the_options() {
    let cli = Cli::command();
    let heads = ["option", "meaning"];
    let common = common(&cli);
    let of_all: Vec<[String; 2]> = common.iter().map(|row| row.cells("")).collect();
    let mut made = vec![("options common".to_owned(), table(heads, &of_all))];
    for name in OPTIONS {
        let rows = options(&cli, name, &common);
        if !rows.is_empty() {
            made.push((format!("options {name}"), table(heads, &rows)));
        }
    }
    let reading = verb(&cli, "replay").get_arguments().filter(|arg| arg.get_help_heading() == Some(READING));
    let reading: Vec<[String; 2]> = reading.map(|arg| Row::of(arg).cells("replay")).collect();
    made.push(("options reading".to_owned(), table(heads, &reading)));
    for name in SUBCOMMANDS {
        made.push((format!("verbs {name}"), table(["verb", "what it does"], &subcommands(verb(&cli, name)))));
    }
    made.push(("variables".to_owned(), table(["variable", "same as"], &variables(&cli))));
    keep_tables(PAGE, &made);
}
