//! Attacks on the real program, as a stranger, a caller with a token or the author of a file would try them.
//!
//! Every test starts the `tidegate` binary on a free loopback port, in some tests behind the real nginx or the real
//! Caddy with the manual's configuration, and attacks it over plain sockets. The tests know nothing of the server's
//! internals. `docs/security.md` states what the server promises, bound by bound. Each chapter tests a part of it:
//!
//! | chapter | who attacks | what must hold |
//! |---|---|---|
//! `connections` | a stranger who only connects | every buffer and wait has a bound, everything is answered, and operators always get in |
//! | `every_door` | a stranger with a socket | whatever is sent is answered or closed, and honest callers are served meanwhile |
//! | `redis_clients` | a stranger at the door for Redis clients | whatever is sent is answered or closed, and costs nobody else a limit |
//! | `grpc` | a stranger at the gRPC door | floods of frames and bodies without end cost bounded memory, and nobody else |
//! | `quotas` | a proxy that reports to the quota service, a filter of Limitador's | whatever is reported is answered or ends its own call, and made-up buckets cost bounded memory |
//! | `forward_auth` | a caller behind the real nginx and the real Caddy | no header, spelling or byte is served unlimited |
//! | `priority` | a caller who says that he matters | what is kept for others stays theirs |
//! | `log` | a full disk, a reader who goes away or never reads | decisions go on, the server ends when told, no verdict changes |
//! | `files` | a file that is none, a planted name, a full disk, a hung mount | decisions go on, signals are heard, files stay whole |
//! | `history` | a kill at any moment, a full disk | a minute of the past is lost at most, and no file is damaged |
//! | `terminal` | the author of a log, a trace, a name or an answer | what is printed leaves the terminal alone |
//! | `settling` | a caller who settles decisions, the author of a large file | each charge is given back once, to whom it was charged; answers fit a proxy's buffer |
//! | `breakers` | a caller who reports failures, invents keys, or forces states | one caller opens no breaker for another, and none by hand |
//! | `blocks` | a caller over his limit or blocked, with a name like another's | nobody gets another blocked, and nobody lifts his own block |
//! | `full_store` | callers who never repeat a key | the keys of one policy cost no other policy its debtors |
//! | `unread` | a caller who asks for much and reads nothing | what is held for all callers together is bounded, and others are answered meanwhile |
//! | `values` | a caller who writes its address or path in another way | no way of writing walks around a limit or a list |
//! | `tokens` | a caller with no token, two, or one that was taken away | guesses are slow and keep nobody out, and a stream ends with its token |
//! | `pages` | a stranger without a login, with endless forms, or who listens and reads nothing | no page is shown, nothing is changed, and what is held is bounded |
//! | `policy_file` | the author of a file, careless or hostile | it is refused in bounded time and memory, or it holds for somebody |
//!
//! In `cargo xtask test` each chapter runs in its short form. `cargo xtask attack` runs the long form: the same attacks with
//! [`rounds`] taken at their larger number. Random bytes come from a printed seed; `TIDEGATE_ATTACK_SEED` repeats a run.

#![cfg(unix)]

use std::collections::BTreeSet;

mod blocks;
mod breakers;
mod connections;
mod every_door;
mod files;
mod forward_auth;
mod full_store;
mod grpc;
mod history;
mod log;
mod pages;
mod policy_file;
mod priority;
pub(crate) mod proxy;
mod quotas;
pub(crate) mod raw;
mod redis_clients;
mod seed;
pub(crate) mod serving;
mod settling;
mod terminal;
mod tokens;
mod told;
mod unix_sockets;
mod unread;
mod values;
pub(crate) mod waiting;

/// Returns how often an attack is repeated: the first number in CI, the second in `cargo xtask attack`.
pub(crate) fn rounds(short: usize, long: usize) -> usize {
    if std::env::var("TIDEGATE_ATTACK").is_ok_and(|form| form == "long") { long } else { short }
}

/// The table of threats names chapters that there are, and each chapter with a test.
#[test]
fn the_manual_names_the_chapter_that_holds_each_threat() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let manual = std::fs::read_to_string(root).unwrap();
    let threats = manual.split("## Threats").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let holds =
        threats.lines().filter_map(|row| row.strip_suffix(" |")?.rsplit_once(" | ")).map(|(_, held)| held);
    let words = holds.flat_map(|held| held.split('`').skip(1).step_by(2));
    let named: BTreeSet<&str> = words.filter(|word| !word.contains([' ', '.'])).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attack");
    let mut chapters = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if std::fs::read_to_string(&path).unwrap().contains("#[test]") {
            chapters.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    assert_eq!(named, chapters.iter().map(String::as_str).collect());
}
