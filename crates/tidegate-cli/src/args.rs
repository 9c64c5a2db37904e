//! The command line, from which help, man pages and completions are generated.

mod logs;
mod lookup;
#[cfg(test)]
mod manual;
mod server;
mod serving;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, ValueHint,
};
use tidegate::priority::Priority;
use tidegate_core::spelling::nearest;

pub(crate) use self::logs::{LineFormat, Order, Reading, Replay, Suggest};
pub(crate) use self::server::{
    Asks, Bench, Blocking, Breaker, Breakers, Changes, Drain, Forcing, Key, KeyOrCaller, Keys, Policies,
    PolicyKey, Stat, Switch, Switches, Tail, Top, TopBy, Trust, TurnedOff, WhichServer, Why,
};
pub(crate) use self::serving::{Imports, Init, MetricsNames, Preset, Proxy, Serve};
pub(crate) use self::values::{Most, PerSecond, Speed};
use self::values::{hold, pair, priority, whole};
use crate::features;

/// Decides which requests may pass, which must wait and which are refused.
///
/// `tidegate serve` answers proxies and programs over HTTP; `tidegate replay access.log` shows what a limit would have done
/// to real traffic.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Understood by every verb.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// How to print the result
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub(crate) output: Output,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
    /// Print only results and errors: no progress, no remarks
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Which of the options that name the server, the policy file or the key were typed.
    #[arg(skip)]
    pub(crate) typed: Typed,
}

/// Which options were typed rather than taken from an environment variable or a default: a typed option wins over a
/// variable, and one that has no effect is told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Typed {
    pub(crate) server: bool,
    pub(crate) config: bool,
    pub(crate) by: bool,
}

impl Cli {
    /// Parses the command line.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        // Man pages have the version alone: they are the same for every build.
        let command = Self::command().long_version(features::version());
        let matches =
            command.try_get_matches().map_err(|error| lookup::with_hint(error, &Self::command()))?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let Some((_, verb)) = matches.subcommand() {
            let is_typed = |id: &str| {
                // Some verbs lack the option.
                let source = verb.try_contains_id(id).is_ok().then(|| verb.value_source(id)).flatten();
                source == Some(ValueSource::CommandLine)
            };
            cli.global.typed =
                Typed { server: is_typed("server"), config: is_typed("config"), by: is_typed("by") };
        }
        if let Verb::Serve(serve) = &mut cli.verb
            && let Some(file) = serve.file.take()
        {
            if cli.global.typed.config {
                let what = "the policy file is named twice; write tidegate serve -c FILE\n";
                return Err(Self::command().error(ErrorKind::ArgumentConflict, what));
            }
            // What is typed wins over the environment.
            serve.policies.config = Some(file);
        }
        Ok(cli)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Aligned columns for people
    Table,
    /// All columns
    Wide,
    /// One JSON document
    Json,
    /// One JSON document a line
    Jsonl,
    /// One YAML document
    Yaml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the decision server
    Serve(Serve),
    /// Write a commented policy file to start from
    Init(Init),
    /// Check, show and format policy files
    #[command(subcommand)]
    Config(Config),
    /// Run synthetic traffic, or a trace, against limits on a virtual clock
    Simulate(Simulate),
    /// Show what policies would have done to recorded traffic
    Replay(Replay),
    /// Propose a limit from recorded traffic, with the evidence
    Suggest(Suggest),
    /// Show what each policy decides about a request, and why
    Explain(Explain),
    /// Put a running server under load, and check its answers against a policy file
    Bench(Bench),
    /// Watch a running server on a terminal, or list the keys that it refuses most, or that come near their limit
    Top(Top),
    /// Print one line a second about a running server: requests, refusals, times; exit 3 if a condition holds
    Stat(Stat),
    /// Print the refusals of a running server as they happen
    Tail(Tail),
    /// Show why a request was refused, from a decision id or a text that has one, as `explain --id`
    Why(Why),
    /// List what changed on a running server, who did it, and how refusals went before and after
    Changes(Changes),
    /// List the keys of a policy of a running server, or get, reset, block or unblock one
    Key(Keys),
    /// List the degrade switches of a running server, or turn one off or on
    Switch(Switches),
    /// List the breakers of a running server, or force one into a state
    Breaker(Breakers),
    /// Show whether a running server is ready for requests; exit 1 if it is not
    Ready(WhichServer),
    /// Take a running server out of a fleet while it still answers: health fails, and it gives back what it holds; exit 1
    /// while requests still come
    Drain(Drain),
    /// Put policies in force on every node of a cluster, and see which version each node uses
    #[command(subcommand)]
    Policies(Policies),
    /// Print a completion script
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    Man {
        /// The folder; created if missing
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Report every mistake with file, line and column; exit 2 if there is any
    Check {
        /// Policy files [default: the file of -c, else tidegate.yaml]
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        policies: PolicyFile,
    },
    /// Print the configuration as it takes effect
    Show {
        #[command(flatten)]
        policies: PolicyFile,
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Print the JSON Schema of the policy file, or of a verb's output with -o json
    Schema {
        /// The document that the schema describes
        #[arg(long, value_enum, default_value_t = Document::PolicyFile, value_name = "DOCUMENT")]
        of: Document,
    },
    /// Normalise blanks and line ends of policy files in place; words, comments, permissions, owner and symlinks stay
    Fmt {
        /// Policy files
        #[arg(value_name = "FILE", default_value = "tidegate.yaml", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
        /// Change nothing; exit 1 if anything would change
        #[arg(long)]
        check: bool,
    },
    /// Compare the policies of a file with those in force on a running server; exit 1 if they differ, 2 for trouble
    Diff {
        /// Policy file
        #[arg(value_name = "FILE", default_value = "tidegate.yaml", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        server: WhichServer,
    },
}

/// A document that a schema describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Document {
    /// The policy file; `config show` prints one
    PolicyFile,
    /// Output of `replay`
    Replay,
    /// Output of `simulate`
    Simulate,
    /// Output of `suggest`
    Suggest,
    /// Output of `explain`
    Explain,
    /// Output of `bench`
    Bench,
    /// Output of `top`
    Top,
    /// Output of `stat`
    Stat,
    /// Output of `tail`
    Tail,
    /// Output of `changes`
    Changes,
    /// Output of `key`
    Key,
    /// Output of `switch`
    Switch,
    /// Output of `breaker`
    Breaker,
    /// Output of `ready`
    Ready,
    /// Output of `drain`
    Drain,
    /// Output of `policies put`, `show`, `history`, `rollback` and `nodes`
    Policies,
    /// Output of `config check` and `serve --check`
    ConfigCheck,
    /// Output of `config show --origin`
    ConfigOrigin,
    /// Output of `config fmt`
    ConfigFmt,
    /// Output of `config diff`
    ConfigDiff,
    /// Output of `init`
    Init,
    /// Output of `completions`
    Completions,
    /// Output of `man`
    Man,
}

#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// Only this policy of the file
    #[arg(value_name = "POLICY", requires = "config")]
    pub(crate) policy: Option<String>,
    #[command(flatten)]
    pub(crate) policies: PolicyFile,
    /// Synthetic traffic, such as 'steady 80/s 1min, burst 500, steady 150/s 1min taking 20ms..80ms failing 5%'
    #[arg(long, value_name = "TRAFFIC", conflicts_with = "trace")]
    pub(crate) traffic: Option<String>,
    /// File of timed operations as JSON lines; prints one decision a line; `-` reads standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    /// Write the whole state of each limit on every line of the trace: a sliding log has an entry per charge
    #[arg(long, requires = "trace", conflicts_with = "traffic")]
    pub(crate) state: bool,
    /// Other limits to run on the same traffic: names of algorithms, with the same rate and burst, or limits in the form of --limit
    #[arg(long, value_name = "LIMITS")]
    pub(crate) compare: Vec<String>,
    /// Draw the load, the guards or the denials of each algorithm into this file: .svg or .png
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) plot: Option<PathBuf>,
    /// How long each request is in flight if the traffic does not say, such as 200ms; for concurrency limits, breakers and conditions on requests in flight
    #[arg(long, value_name = "TIME", value_parser = hold, allow_hyphen_values = true)]
    pub(crate) hold: Option<Duration>,
    /// Take this degrade switch of the file as off for all requests, from the first to the last; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "trace")]
    pub(crate) switch_off: Vec<String>,
    /// Seed of the random parts of the traffic
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) limit: LimitArgs,
}

#[derive(Args, Debug)]
#[command(mut_arg("server", |arg| arg.help("The running server, instead of a policy file; if it needs a token, set TIDEGATE_TOKEN [default: http://127.0.0.1:8080, if there is no policy file]")))]
pub(crate) struct Explain {
    /// An attribute of the request, such as client.ip=203.0.113.9; may be repeated
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) attributes: Vec<(String, String)>,
    /// Show the record of a recent denial of the running server, by its decision id, and how it would go now; exit 1 if it is not remembered
    #[arg(long, value_name = "DECISION_ID", conflicts_with_all = ["attributes", "config"])]
    pub(crate) id: Option<String>,
    /// The digest of the denied key, if the text with the id has it.
    #[arg(skip)]
    pub(crate) digest: Option<String>,
    /// Cost of the request [default: as the policies say]
    #[arg(long, value_name = "N", conflicts_with = "id", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) cost: Option<u64>,
    /// Priority of the request: critical-plus, critical, sheddable-plus or sheddable [default: critical]
    #[arg(long, value_name = "LEVEL", conflicts_with = "id", value_parser = priority)]
    pub(crate) priority: Option<Priority>,
    #[command(flatten)]
    pub(crate) policies: PolicyFile,
    #[command(flatten)]
    pub(crate) server: WhichServer,
}

/// Where policies come from.
#[derive(Args, Clone, Debug)]
pub(crate) struct PolicyFile {
    /// Policy file, YAML or TOML
    #[arg(short = 'c', long = "config", env = "TIDEGATE_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

/// The help heading of the flags that define a limit.
const LIMIT: &str = "Limit";

/// One limit given on the command line, in the words of the policy file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = LIMIT)]
pub(crate) struct LimitArgs {
    /// A limit in the form of the policy file, such as '{algorithm: gcra, rate: 100/s, burst: 200}'
    #[arg(long, value_name = "LIMIT")]
    pub(crate) limit: Option<String>,
    /// Algorithm or profile, such as gcra, token-bucket, sliding-log, x-time
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,
    /// Rate, such as 100/s, 60/min, 5/day
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub(crate) rate: Option<String>,
    /// The most units granted at once [default: the count of the rate]
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub(crate) burst: Option<u64>,
    /// Any other key of a limit, such as buckets=10 or calendar=Europe/Paris; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) set: Vec<(String, String)>,
}

// Environment variables that look like Tidegate's and are none: a misspelt one sets nothing.

const PREFIX: &str = "TIDEGATE_";
/// Read outside of the command line.
const OTHER_VARIABLES: [&str; 5] = ["TOKEN", "TOKEN_FILE", "TICKET_KEY", "TICKET_KEY_FILE", "LOG"];
/// What people expect, each with the variable that does it.
const EXPECTED_VARIABLES: [(&str, &str); 9] = [
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
pub(crate) fn unknown_variables() -> Vec<String> {
    let mut known: Vec<String> = OTHER_VARIABLES.iter().map(ToString::to_string).collect();
    collect_variables(&Cli::command(), &mut known);
    let given = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?.strip_prefix(PREFIX)?.to_owned();
        (!is_of_kubernetes(&name, &value.to_string_lossy())).then_some(name)
    });
    let mut told: Vec<String> =
        given.filter(|name| !known.contains(name)).map(|name| remark_variable(&name, &known)).collect();
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

fn collect_variables(command: &Command, known: &mut Vec<String>) {
    let names =
        command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()?.strip_prefix(PREFIX));
    known.extend(names.map(str::to_owned));
    command.get_subcommands().for_each(|verb| collect_variables(verb, known));
}

fn remark_variable(name: &str, known: &[String]) -> String {
    let usual = EXPECTED_VARIABLES.iter().find(|(word, _)| *word == name).map(|(_, ours)| *ours);
    let near = || nearest(name, known.iter().map(String::as_str));
    let hint =
        usual.or_else(near).map_or_else(String::new, |meant| format!("; did you mean {PREFIX}{meant}?"));
    let name = tidegate::visible::line(name).into_owned();
    format!("the environment variable {PREFIX}{name} is not known and sets nothing{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn misspelt_variables_are_told_the_nearest() {
        let mut known: Vec<String> = OTHER_VARIABLES.iter().map(ToString::to_string).collect();
        collect_variables(&Cli::command(), &mut known);
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
            assert!(remark_variable(name, &known).ends_with(meant), "{}", remark_variable(name, &known));
        }
        assert!(
            is_of_kubernetes("SERVICE_HOST", "10.0.0.1") && is_of_kubernetes("PORT", "tcp://10.0.0.1:8080")
        );
        assert!(!is_of_kubernetes("PORT", "8080") && !is_of_kubernetes("TOKN", "x"));
    }
}
