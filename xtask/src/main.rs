//! Runs the checks of CI on any machine: `cargo xtask test | tidy | attack | counts | deny | bench | docs`.

mod attack;
mod bench;
mod counts;
mod deny;
mod docs;
mod packages;
mod places;
mod python;
mod step;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  test    install what the tests need (Debian packages, as root or with sudo) and run every check CI runs
  tidy    hold the rules that eyes forget, in seconds: rings of modules, long files, dead files, banned calls and words,
          metrics, flags and keys that the manual does not name; with words: only the rules of these names
  attack  attack the real program, behind real proxies too, at length; with words: only the attacks whose names have them
  counts  count the instructions of each hot path under valgrind, and compare with benches/counts/recorded.txt;
          --record: write that file anew
  deny    check licences, sources, bans and, where its database can be had, known holes of what is depended on
  bench   measure Tidegate beside its peers, and write what was found to docs/performance.md and the README;
          with parts (clock one keyed flood expire gate growth replay start): only these, and only print them;
          redis: decisions on a Redis server beside its own counters; alone, and only printed;
          doors: what the server's doors cost beside other servers; alone, or with the rows that have a word in their names;
          --huge: up to 100 million keys; TIDEGATE_BENCH_ROUNDS: how often each contender has its turn
  docs    write the files made from the program: man pages, completions, the config schema";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["test"] => test::run(),
        ["attack", ref words @ ..] => attack::run(words),
        ["counts", ref words @ ..] => counts::run(words),
        ["bench", ref parts @ ..] => bench::run(parts),
        ["tidy", ref names @ ..] => tidy::run(names),
        ["deny"] => deny::run(),
        ["docs"] => docs::run(),
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
