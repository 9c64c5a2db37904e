//! The `tidegate` command: parses, calls, maps outcomes to exit codes.

mod args;
mod output;

fn main() {
    let cli = <args::Cli as clap::Parser>::parse();
    let printer = output::Printer::new(&cli.global);
    printer.remark("");
}
