//! Parses the attributes of a request: pairs of a name and a value.

use std::borrow::Cow;

use tidegate::config::{canonical_attribute, unknown_attribute};
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::Descriptor;

use super::command_words::{Refusal, shown};
use crate::requests::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};

/// Parses a name and its value as UTF-8.
pub(super) fn pair<'w>(name: &'w [u8], value: &'w [u8]) -> Result<(Cow<'w, str>, Cow<'w, str>), Refusal> {
    match (std::str::from_utf8(name), std::str::from_utf8(value)) {
        (Ok(name), Ok(value)) => Ok((name.into(), value.into())),
        _ => Err(Refusal::wrong(format!("attribute {}: names and values are UTF-8", shown(name)))),
    }
}

/// Adds an attribute to a request.
pub(super) fn add<'w>(request: &mut Descriptor<'w>, name: &'w [u8], value: &'w [u8]) -> Result<(), Refusal> {
    let (text, value) = pair(name, value)?;
    let shown = shown(name);
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(Refusal::wrong(format!("{shown} is not a name; it has 1 to {MAX_NAME} bytes")));
    }
    if let Some(instead) = unknown_attribute(&text) {
        return Err(Refusal::wrong(format!("attribute {shown}: no policy reads it; {instead}")));
    }
    if value.len() > MAX_VALUE {
        let bytes = value.len();
        let what = format!("the value of {shown} has {bytes} bytes; use at most {MAX_VALUE}");
        return Err(Refusal::wrong(what));
    }
    let text = canonical_attribute(text);
    if let Some(wrong) = wrong_value(&text, &value) {
        return Err(Refusal::wrong(wrong));
    }
    if request.value(&text).is_some() {
        return Err(Refusal::wrong(format!("attribute {shown} is given twice")));
    }
    if request.pairs().count() >= MAX_ATTRIBUTES {
        return Err(Refusal::wrong(format!("more than {MAX_ATTRIBUTES} attributes")));
    }
    request.push(text, value);
    Ok(())
}
