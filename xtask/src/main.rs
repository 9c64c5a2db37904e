//! Runs the checks of CI on any machine: `cargo xtask test | nightly | tidy | attack | counts | program | deny | bench | docs`.

mod bench;
mod counts;
mod deny;
mod packages;
mod program;
mod programs;
mod step;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  test    install what the tests need (Debian packages, as root or with sudo) and run every check CI runs
  nightly check what a change seldom breaks and takes long to build: the benches compile, rustdoc, deny, counts, program, the long models of loom
  tidy    check, in seconds, rules that reviewers overlook: cycles of modules, long files, unused files, banned calls and words,
          metrics, flags and keys that the manual does not name, numbers that grew; with names: only these rules;
          --record: write the numbers that fell; small-files: report files that may be merged
  attack  run long attacks on the real program, also behind real proxies; with words: only attacks with these words in their names
  counts  count the instructions of each hot path under valgrind, and compare with benches/counts/recorded.txt;
          --record: write that file again
  program build the released program from nothing, and compare its size and the processor seconds with xtask/program.toml;
          --record: write what fell, or all if the compiler or the machine is another
  deny    check licences, sources, bans and, if the database can be fetched, known vulnerabilities of the dependencies
  bench   compare Tidegate with its peers, and write the figures to lab/results/bench.tsv, docs/figures.md and the README;
          with parts (clock one keyed refused protection flood expire disk store gate growth replay start): measure only these, and only print the figures;
          redis: decisions on a Redis server, compared with its own counters; on its own, only printed;
          doors: the cost of the server's protocols, compared with other servers; on its own, or with words that the names of rows must have;
          --huge: up to 100 million keys; TIDEGATE_BENCH_ROUNDS: the number of rounds
  docs    write what is made from the program: man pages, and the tables of keys, options, paths and metrics in the manual";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["test"] => test::run(),
        ["nightly"] => test::nightly(),
        ["attack", ref words @ ..] => test::attack(words),
        ["counts", ref words @ ..] => counts::run(words),
        ["program", ref words @ ..] => program::run(words),
        ["bench", ref parts @ ..] => bench::run(parts),
        ["tidy", ref names @ ..] => tidy::run(names),
        ["deny"] => deny::run(),
        ["docs"] => test::docs(),
        ["replay-once", binary, log, window] => bench::replay::once(binary, log, window),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
