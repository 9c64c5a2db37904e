//! `TG.RESET`: resets what one key has spent, and ends its block, like `DELETE /v1/keys`.

use super::super::reply::Replies;
use super::super::session::RespDoor;
use super::attributes;
use super::words::{Refusal, shown, text, too_few};
use crate::requests;

/// `TG.RESET policy name value [name value ...]`
pub(super) async fn run(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
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
    let let_go = door.app.engine.let_go(&live, at, &key).await;
    let_go.map_err(|error| Refusal("UNAVAILABLE", error.to_string()))?;
    replies.simple("OK");
    Ok(())
}
