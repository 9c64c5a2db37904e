//! Tidegate's own commands and `CL.THROTTLE`: they do for RESP clients what the HTTP door does.

mod attributes;
mod check;
mod command_words;
mod settle;

use std::pin::pin;

use tidegate::visible::excerpt;

use self::command_words::{Refusal, shown, text, too_few};
use super::reply::Replies;
use super::session::{RespDoor, Session};
use super::throttle;
use crate::auth::Scope;
use crate::metrics::Transport;
use crate::otlp::CallEnd;
use crate::requests;
use crate::spelling::nearest;
use crate::uncovered_requests::Misdirected;

/// All commands of this module, to suggest the one that a misspelt name probably meant.
const COMMANDS: [&str; 4] = ["CL.THROTTLE", "TG.CHECK", "TG.SETTLE", "TG.RESET"];

/// Returns the scope that a token must have for a command. An unknown name gets the scope for checks, so that those
/// callers are told about it.
fn required_scope(name: &[u8]) -> Scope {
    if name.eq_ignore_ascii_case(b"TG.RESET") { Scope::Admin } else { Scope::Check }
}

/// Runs a command, or answers that there is none of that name.
pub(super) async fn run(door: &RespDoor, session: &mut Session, words: &[&[u8]], replies: &mut Replies) {
    let is = |word: &str| words[0].eq_ignore_ascii_case(word.as_bytes());
    if let Err((code, what)) = session.may(required_scope(words[0])) {
        if session.is_trusted() {
            door.app.engine.metrics.auth_failed(Transport::resp);
            let why = Misdirected::NoToken("the address for Redis clients", what.to_string());
            door.app.engine.live().unmet.note_misdirected(&why, None);
        }
        return replies.error(code, &what);
    }
    let span = door.app.spans.as_ref().and_then(|spans| {
        let decides = ["CL.THROTTLE", "TG.CHECK", "TG.SETTLE"].into_iter().find(|command| is(command));
        spans.resp(decides?)
    });
    let done = {
        let mut running = pin!(decided(door, session, words, replies));
        match span {
            None => running.await,
            Some(span) => span.around(running.as_mut(), |done| CallEnd::Resp { error: done.is_err() }).await,
        }
    };
    if let Err(Refusal(code, what)) = done {
        replies.error(code, &what);
    }
}

async fn decided(
    door: &RespDoor,
    session: &mut Session,
    words: &[&[u8]],
    replies: &mut Replies,
) -> Result<(), Refusal> {
    let is = |word: &str| words[0].eq_ignore_ascii_case(word.as_bytes());
    // The usual spelling is compared as a whole first.
    if words[0] == b"CL.THROTTLE" || is("CL.THROTTLE") {
        throttle::run(door, session, words, replies).await;
        Ok(())
    } else if is("TG.CHECK") {
        check::run(door, session, words, replies).await
    } else if is("TG.SETTLE") {
        settle::run(door, words, replies).await
    } else if is("TG.RESET") && door.decides_only {
        let where_else = "TG.RESET is not served here; DELETE /v1/keys/POLICY at the admin address does it";
        Err(Refusal::wrong(where_else))
    } else if is("TG.RESET") {
        reset(door, words, replies).await?;
        tracing::info!(token = session.token(), command = "TG.RESET", "a change through the API");
        Ok(())
    } else {
        let name = text(words[0]).to_ascii_uppercase();
        let meant = nearest(&name, COMMANDS);
        let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Err(Refusal::wrong(format!("unknown command '{}'{advice}", excerpt(&name))))
    }
}

/// `TG.RESET policy name value [name value ...]`: resets what one key has spent, and ends its block, like
/// `DELETE /v1/keys`.
async fn reset(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    let [_, policy, rest @ ..] = words else { return too_few(words, replies) };
    let live = door.app.engine.live();
    let at = requests::find(&live.set, &text(policy)).map_err(|none| Refusal::wrong(none.to_string()))?;
    let pairs = rest.chunks(2).map(|pair| match pair {
        [name, value] => attributes::pair(name, value),
        _ => Err(Refusal::wrong(format!("{} has no value", shown(pair[0])))),
    });
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let key = requests::key_of(&live.set, at, pairs);
    let key = key.map_err(|wrong| Refusal::wrong(wrong.to_string()))?;
    let let_go = door.app.engine.keys.let_go(&live, at, &key).await;
    let_go.map_err(|error| Refusal("UNAVAILABLE", error.to_string()))?;
    replies.simple("OK");
    Ok(())
}
