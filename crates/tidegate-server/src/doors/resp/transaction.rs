//! `MULTI`, `EXEC` and `DISCARD`: commands that are kept, and then run together. Clients put them around a pipeline unless they are told otherwise.
//!
//! They are answered by one list. Commands of other connections may be decided in between, and what one has charged stays charged whatever
//! becomes of the next. At `EXEC` they are read once more, as if they came behind it: so replies are sent, and places given up, between
//! two of them as between any others.

use super::command::MAX_BYTES;
use super::redis;
use super::reply::Replies;
use super::session::{Kept, Session};

/// The most commands that are kept.
const MOST: usize = 512;
/// The commands that begin and end a transaction.
const ENDS: [&str; 3] = ["MULTI", "EXEC", "DISCARD"];
/// What can be kept.
const KNOWN: [&str; 13] = [
    "CL.THROTTLE",
    "TG.CHECK",
    "TG.SETTLE",
    "TG.RESET",
    "PING",
    "ECHO",
    "SELECT",
    "CLIENT",
    "COMMAND",
    "CONFIG",
    "INFO",
    "AUTH",
    "HELLO",
];

/// What becomes of a command that [concerns] a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It is answered.
    Answered,
    /// It is run as outside of a transaction.
    Run,
    /// It is answered by the head of a list, whose parts are the replies of these commands, to be run next.
    RunAll(Vec<u8>),
}

/// Says whether a command is part of a transaction. Most are not, and go by without [`take`]: without a token all are refused alike.
pub(super) fn concerns(session: &Session, name: &[u8]) -> bool {
    let ends = || ENDS.into_iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
    (session.kept.is_some() || ends()) && session.is_trusted()
}

/// Takes a command that is part of a transaction; `sent` are the bytes that its words were read from.
pub(super) fn take(session: &mut Session, words: &[&[u8]], sent: &[u8], replies: &mut Replies) -> Then {
    let name = words[0];
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if words.len() > 1 && ENDS.into_iter().any(is) {
        redis::wrong_number(name, replies);
    } else if is("MULTI") && session.kept.is_some() {
        replies.error("ERR", "MULTI calls can not be nested");
    } else if is("MULTI") {
        session.kept = Some(Kept::default());
        replies.simple("OK");
    } else if is("DISCARD") {
        match session.kept.take() {
            Some(_) => replies.simple("OK"),
            None => replies.error("ERR", "DISCARD without MULTI"),
        }
    } else if is("EXEC") {
        match session.kept.take() {
            None => replies.error("ERR", "EXEC without MULTI"),
            Some(Kept { spoilt: true, .. }) => {
                replies.error("EXECABORT", "Transaction discarded because of previous errors.");
            }
            Some(kept) => {
                replies.list(kept.count);
                return Then::RunAll(kept.commands);
            }
        }
    } else if let Some(kept) = session.kept.as_mut().filter(|_| !is("QUIT")) {
        if !KNOWN.into_iter().any(is) {
            kept.spoilt = true;
            // Which says what is wrong with it.
            return Then::Run;
        }
        if kept.count >= MOST || kept.commands.len() + sent.len() > MAX_BYTES {
            kept.spoilt = true;
            let most =
                format!("between MULTI and EXEC there are at most {MOST} commands with {MAX_BYTES} bytes");
            replies.error("ERR", &most);
        } else {
            kept.count += 1;
            kept.commands.extend_from_slice(sent);
            replies.simple("QUEUED");
        }
    } else {
        return Then::Run;
    }
    Then::Answered
}
