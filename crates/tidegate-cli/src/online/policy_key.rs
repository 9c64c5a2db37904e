//! Parts of requests about one policy or one of its keys, and errors that name the option for a key.

use std::fmt::Write as _;

use anyhow::anyhow;
use serde_json::Value;

use super::RefusedByServer;
use crate::args::PolicyKey;

/// Returns the attributes of a key as the query of a URL; empty if there are none.
pub(crate) fn query(which: &PolicyKey) -> String {
    let mut query = String::new();
    for (at, (name, value)) in which.key.iter().enumerate() {
        let sign = if at == 0 { '?' } else { '&' };
        // Writing to a string does not fail.
        let _ = write!(query, "{sign}{}={}", encoded(name), encoded(value));
    }
    query
}

/// Encodes a text for any part of a URL. Outside the query a plus would not mean a space.
pub(crate) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// Adds how long a change lasts, and why it was made, as far as the options say so.
pub(crate) fn with_end(mut body: Value, lasts: Option<&str>, reason: Option<&str>) -> Value {
    for (name, said) in [("for", lasts), ("reason", reason)] {
        if let Some(said) = said {
            body[name] = said.into();
        }
    }
    body
}

/// If the server's error is about the key, adds the options that select one.
pub(crate) fn with_options(error: anyhow::Error) -> anyhow::Error {
    let problem = error.downcast_ref::<RefusedByServer>().map_or(&Value::Null, |refused| &refused.problem);
    match options(&problem["key"]) {
        Some(options) => anyhow!("{error}; write {options}"),
        None => error,
    }
}

/// Returns the options that select a key which is made of these attributes; `None` if there are none.
pub(crate) fn options(attributes: &Value) -> Option<String> {
    let names = attributes.as_array()?.iter().filter_map(Value::as_str);
    let words: Vec<String> = names.map(|name| format!("--key {name}=...")).collect();
    (!words.is_empty()).then(|| words.join(" "))
}
