//! `MULTI`, `EXEC` and `DISCARD`: keep commands, then run them together. Many clients put them around a pipeline by
//! default.
//!
//! The reply to `EXEC` is one list. Commands of other connections may be decided in between, and each charge stands
//! whatever happens to the next command. At `EXEC`, the commands are put back in front of the unread input. So replies
//! are sent, and the place can be given up, between two of them as between any other commands.

use super::command::MAX_BYTES;
use super::redis;
use super::reply::Replies;
use super::session::{QueuedCommands, Session};

/// The most commands between `MULTI` and `EXEC`.
const MOST: usize = 512;
/// The commands that begin and end a transaction.
const ENDS: [&str; 3] = ["MULTI", "EXEC", "DISCARD"];
/// The commands that can be kept.
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

/// What to do with a command that [concerns] a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// It has been answered.
    Answered,
    /// Run it as outside a transaction.
    Run,
    /// The head of a list was written. Run these commands next; their replies are the list's elements.
    RunAll(Vec<u8>),
}

/// Returns whether a command is part of a transaction. Most are not, and skip [`take`]. Without a token none is, since
/// all commands are refused alike.
pub(super) fn concerns(session: &Session, name: &[u8]) -> bool {
    let ends = || ENDS.into_iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
    (session.queued.is_some() || ends()) && session.is_trusted()
}

/// Handles a command that is part of a transaction. `sent` holds the bytes of the command.
pub(super) fn take(
    session: &mut Session,
    words: &[&[u8]],
    sent: &[u8],
    replies: &mut Replies,
) -> Disposition {
    let name = words[0];
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if words.len() > 1 && ENDS.into_iter().any(is) {
        redis::wrong_number(name, replies);
    } else if is("MULTI") && session.queued.is_some() {
        replies.error("ERR", "MULTI calls can not be nested");
    } else if is("MULTI") {
        session.queued = Some(QueuedCommands::default());
        replies.simple("OK");
    } else if is("DISCARD") {
        match session.queued.take() {
            Some(_) => replies.simple("OK"),
            None => replies.error("ERR", "DISCARD without MULTI"),
        }
    } else if is("EXEC") {
        match session.queued.take() {
            None => replies.error("ERR", "EXEC without MULTI"),
            Some(QueuedCommands { spoilt: true, .. }) => {
                replies.error("EXECABORT", "Transaction discarded because of previous errors.");
            }
            Some(queued) => {
                replies.list(queued.count);
                return Disposition::RunAll(queued.commands);
            }
        }
    } else if let Some(queued) = session.queued.as_mut().filter(|_| !is("QUIT")) {
        if !KNOWN.into_iter().any(is) {
            queued.spoilt = true;
            // Running it answers what is wrong with it.
            return Disposition::Run;
        }
        if queued.count >= MOST || queued.commands.len() + sent.len() > MAX_BYTES {
            queued.spoilt = true;
            let most =
                format!("between MULTI and EXEC there are at most {MOST} commands with {MAX_BYTES} bytes");
            replies.error("ERR", &most);
        } else {
            queued.count += 1;
            queued.commands.extend_from_slice(sent);
            replies.simple("QUEUED");
        }
    } else {
        return Disposition::Run;
    }
    Disposition::Answered
}
