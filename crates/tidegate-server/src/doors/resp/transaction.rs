//! `MULTI`, `EXEC` and `DISCARD`: commands that are kept, and then run together. Clients put them around a pipeline unless they are told otherwise.
//!
//! They are run one after the other and answered by one reply. Commands of other connections may be decided in between, and what one
//! has charged stays charged whatever becomes of the next.

use super::command::{MAX_BYTES, Next, next};
use super::reply::Replies;
use super::session::{Kept, RespDoor, Session};
use super::{own, redis};

/// The most commands that are kept: their replies are written in one piece.
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

/// Says whether a command is part of a transaction. Most are not, and go by without [`run`]: without a token all are refused alike.
pub(super) fn concerns(session: &Session, name: &[u8]) -> bool {
    let ends = || ENDS.into_iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
    (session.kept.is_some() || ends()) && session.is_trusted()
}

/// Runs a command that is part of a transaction, or keeps it; `sent` are the bytes that its words were read from.
pub(super) async fn run(
    door: &RespDoor,
    session: &mut Session,
    words: &[&[u8]],
    sent: &[u8],
    replies: &mut Replies,
) {
    let name = words[0];
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if words.len() > 1 && ENDS.into_iter().any(is) {
        return redis::wrong_number(name, replies);
    }
    if is("MULTI") {
        match session.kept {
            Some(_) => replies.error("ERR", "MULTI calls can not be nested"),
            None => {
                session.kept = Some(Kept::default());
                replies.simple("OK");
            }
        }
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
            Some(kept) => all(door, session, &kept.commands, replies).await,
        }
    } else if let Some(kept) = session.kept.as_mut().filter(|_| !is("QUIT")) {
        if !KNOWN.into_iter().any(is) {
            kept.spoilt = true;
            // Which says what is wrong with it.
            return one(door, session, words, replies).await;
        }
        if kept.commands.len() >= MOST || kept.bytes + sent.len() > MAX_BYTES {
            kept.spoilt = true;
            let most =
                format!("between MULTI and EXEC there are at most {MOST} commands with {MAX_BYTES} bytes");
            return replies.error("ERR", &most);
        }
        kept.bytes += sent.len();
        kept.commands.push(sent.to_vec());
        replies.simple("QUEUED");
    } else {
        one(door, session, words, replies).await;
    }
}

/// Runs all that were kept, each answered by one part of the reply.
async fn all(door: &RespDoor, session: &mut Session, commands: &[Vec<u8>], replies: &mut Replies) {
    replies.list(commands.len());
    for sent in commands {
        if let Next::Command(words, _) = next(sent) {
            one(door, session, &words, replies).await;
        }
    }
}

async fn one(door: &RespDoor, session: &mut Session, words: &[&[u8]], replies: &mut Replies) {
    if !redis::run(door, session, words, replies) {
        own::run(door, session, words, replies).await;
    }
}
