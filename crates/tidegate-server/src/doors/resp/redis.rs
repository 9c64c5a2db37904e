//! The commands of Redis itself that clients send.

use super::protocol::Replies;
use super::session::{RespDoor, Session, Shown};
use crate::metrics::Transport;
use crate::uncovered_requests::Misdirected;

/// The version that clients are told.
const LIKE: &str = "7.0.0";

/// Runs a command if it is one of these. Returns whether it was.
pub(super) fn run(door: &RespDoor, session: &mut Session, words: &[&[u8]], replies: &mut Replies) -> bool {
    let name = words[0];
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    // Longer names are none of these. This skips the usual commands, which decide requests.
    if name.len() > 8 {
        return false;
    }
    if is("HELLO") {
        hello(door, session, words, replies);
    } else if is("AUTH") {
        match words {
            [_, secret] | [_, _, secret] => auth(door, session, secret, replies),
            _ => wrong_number(name, replies),
        }
    } else if is("QUIT") {
        replies.simple("OK");
        session.closing = true;
    } else if is("POST") || is("GET") && words.len() == 3 || is("HOST:") {
        // A web page can make a browser send a request here, whose body holds commands.
        if words.last().is_some_and(|word| word.starts_with(b"HTTP/1.")) {
            door.app.decider.telemetry.misdirected(&Misdirected::HttpAtResp);
        }
        replies.error("ERR", "this is not an HTTP server");
        session.closing = true;
    } else if !session.is_trusted() {
        replies.error("NOAUTH", "Authentication required: AUTH TOKEN");
    } else if is("PING") {
        match words {
            [_] => replies.simple("PONG"),
            [_, text] => replies.bulk(text),
            _ => wrong_number(name, replies),
        }
    } else if is("ECHO") {
        match words {
            [_, text] => replies.bulk(text),
            _ => wrong_number(name, replies),
        }
    } else if is("SELECT") {
        match words {
            [_, b"0"] => replies.simple("OK"),
            [_, _] => replies.error("ERR", "DB index is out of range; there is only database 0"),
            _ => wrong_number(name, replies),
        }
    } else if is("CLIENT") {
        client(session, words, replies);
    } else if is("COMMAND") {
        match words.get(1) {
            Some(word) if word.eq_ignore_ascii_case(b"COUNT") => replies.integer(0),
            Some(word) if word.eq_ignore_ascii_case(b"DOCS") => replies.map(0, session.resp3),
            _ => replies.list(0),
        }
    } else if is("CONFIG") {
        match words.get(1) {
            Some(word) if word.eq_ignore_ascii_case(b"GET") => settings(session, &words[2..], replies),
            _ => replies.error(
                "ERR",
                "settings are in the policy file; only CONFIG GET is answered, for save and appendonly",
            ),
        }
    } else if is("INFO") {
        replies.bulk(info(door).as_bytes());
    } else {
        return false;
    }
    true
}

pub(super) fn wrong_number(name: &[u8], replies: &mut Replies) {
    let name = String::from_utf8_lossy(&name[..name.len().min(32)]).to_ascii_lowercase();
    replies.error("ERR", &format!("wrong number of arguments for '{name}' command"));
}

fn auth(door: &RespDoor, session: &mut Session, secret: &[u8], replies: &mut Replies) {
    match session.show(&door.app.access, secret) {
        Shown::Needless => replies.error("ERR", "AUTH is not needed: this server has no token"),
        Shown::Right => replies.simple("OK"),
        Shown::Wrong => {
            door.app.decider.metrics.auth_failed(Transport::resp);
            replies.error("WRONGPASS", "the token is wrong");
        }
    }
}

/// The id of every client: they need one to connect, and no command takes it.
const CLIENT_ID: i64 = 1;

/// The longest name of a client, in bytes: it is kept as long as the connection.
const LONGEST_NAME: usize = 256;

/// Returns a client's name, or writes what is wrong with it.
fn name_of(text: &[u8], replies: &mut Replies) -> Option<Vec<u8>> {
    if text.len() <= LONGEST_NAME {
        return Some(text.to_vec());
    }
    let long = format!("the name has {} bytes; use at most {LONGEST_NAME}", text.len());
    replies.error("ERR", &long);
    None
}

/// `HELLO [version [AUTH user token] [SETNAME name]]`
fn hello(door: &RespDoor, session: &mut Session, words: &[&[u8]], replies: &mut Replies) {
    let resp3 = match words.get(1) {
        None => session.resp3,
        Some(&b"2") => false,
        Some(&b"3") => true,
        Some(_) => return replies.error("NOPROTO", "unsupported protocol version; use 2 or 3"),
    };
    let mut rest = words.get(2..).unwrap_or_default();
    let mut name = None;
    loop {
        rest = match rest {
            [] => break,
            [word, _, secret, rest @ ..] if word.eq_ignore_ascii_case(b"AUTH") => {
                if session.show(&door.app.access, secret) == Shown::Wrong {
                    door.app.decider.metrics.auth_failed(Transport::resp);
                    return replies.error("WRONGPASS", "the token is wrong");
                }
                rest
            }
            [word, text, rest @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                let Some(given) = name_of(text, replies) else { return };
                name = Some(given);
                rest
            }
            _ => {
                return replies
                    .error("ERR", "syntax error in HELLO; write HELLO 3 AUTH default TOKEN SETNAME name");
            }
        };
    }
    if !session.is_trusted() {
        return replies
            .error("NOAUTH", "HELLO must be called with AUTH default TOKEN: this server has a token");
    }
    session.resp3 = resp3;
    session.name = name.unwrap_or_default();
    replies.map(7, resp3);
    replies.bulk(b"server");
    replies.bulk(b"tidegate");
    replies.bulk(b"version");
    replies.bulk(LIKE.as_bytes());
    replies.bulk(b"proto");
    replies.integer(if resp3 { 3 } else { 2 });
    replies.bulk(b"id");
    replies.integer(CLIENT_ID);
    replies.bulk(b"mode");
    replies.bulk(b"standalone");
    replies.bulk(b"role");
    replies.bulk(b"master");
    replies.bulk(b"modules");
    replies.list(0);
}

fn client(session: &mut Session, words: &[&[u8]], replies: &mut Replies) {
    let sub = words.get(1).copied().unwrap_or_default();
    let is = |word: &str| sub.eq_ignore_ascii_case(word.as_bytes());
    if is("SETINFO") || is("NO-EVICT") || is("NO-TOUCH") {
        replies.simple("OK");
    } else if is("SETNAME") {
        let Some(name) = name_of(words.get(2).copied().unwrap_or_default(), replies) else { return };
        session.name = name;
        replies.simple("OK");
    } else if is("GETNAME") {
        match &*session.name {
            [] => replies.null(session.resp3),
            name => replies.bulk(name),
        }
    } else if is("ID") {
        replies.integer(CLIENT_ID);
    } else {
        replies
            .error("ERR", "CLIENT has the subcommands SETINFO, SETNAME, GETNAME, ID, NO-EVICT and NO-TOUCH");
    }
}

/// `CONFIG GET name [name ...]`: the two settings that redis-benchmark asks for, else it warns. They say that nothing
/// is persisted in Redis's ways.
fn settings(session: &Session, names: &[&[u8]], replies: &mut Replies) {
    const SETTINGS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];
    let is_named = |setting: &str| names.iter().any(|name| name.eq_ignore_ascii_case(setting.as_bytes()));
    let named = || SETTINGS.iter().filter(|(name, _)| is_named(name));
    replies.map(named().count(), session.resp3);
    for (name, value) in named() {
        replies.bulk(name.as_bytes());
        replies.bulk(value.as_bytes());
    }
}

fn info(door: &RespDoor) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let occupancy = door.app.decider.storage.occupancy();
    format!(
        "# Server\r\nredis_version:{LIKE}\r\ntidegate_version:{version}\r\nredis_mode:standalone\r\n\
         # Replication\r\nrole:master\r\n# Keyspace\r\ndb0:keys={}\r\n",
        occupancy.used
    )
}
