//! The `tidegate` command. Its code is a library, because cargo compiles libraries beside the crates that they use, and
//! programs after them.

fn main() -> std::process::ExitCode {
    tidegate_cli::main()
}
