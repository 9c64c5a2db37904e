//! The `tidegate` command: parses, calls, maps outcomes to exit codes.

mod args;
mod exit;
mod online;
mod outcome;
mod output;
mod policies;
mod reading;
mod verbs;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Verb};
use crate::exit::{Exit, Mistake};
use crate::output::Printer;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let printer = Printer::new(&cli.global);
    log(&cli.global);
    match run(&cli, &printer) {
        Ok(exit) => exit.into(),
        // Whoever closed the pipe has seen enough.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&format!("{error:#}"));
            if error.is::<Mistake>() { Exit::Bad.into() } else { Exit::No.into() }
        }
    }
}

fn run(cli: &Cli, printer: &Printer) -> Result<Exit> {
    match &cli.verb {
        Verb::Serve(serve) => verbs::serve::run(serve, printer),
        Verb::Init(init) => verbs::init::run(init, printer),
        Verb::Config(config) => verbs::config::run(config, printer),
        Verb::Explain(explain) => verbs::explain::run(explain, &cli.global.server, printer),
        Verb::Completions { shell } => verbs::shell::completions(*shell, printer),
        Verb::Man { dir } => verbs::shell::man(dir, printer),
        Verb::Simulate(simulate) => verbs::simulate::run(simulate, printer),
        Verb::Replay(replay) => verbs::replay::run(replay, printer),
        Verb::Suggest(suggest) => verbs::suggest::run(suggest, printer),
    }
}

/// Logs for people on a terminal, JSON lines otherwise.
fn log(global: &args::Global) {
    use std::io::IsTerminal as _;
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn,tidegate_server=info",
        (false, 1) => "info",
        (false, _) => "debug",
    };
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.without_time().with_target(false).init();
    } else {
        builder.json().init();
    }
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
