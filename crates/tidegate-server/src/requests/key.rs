//! Parses the key of a policy from a caller: the attributes that the policy's `by` names.

use std::borrow::Cow;

use tidegate::policy::Descriptor;

use crate::spelling::quoted;

/// Why some attributes are not a key of a policy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongKey {
    #[error("{} is not part of the key; the key is made of {by}", quoted(name))]
    Other { name: String, by: String },
    #[error("{} is given twice; a key has one value of it", quoted(name))]
    Twice { name: String },
    #[error("`{name}` is missing; the key is made of {by}")]
    Missing { name: String, by: String },
}

/// Parses a key that consists of these attributes.
///
/// # Errors
/// [`WrongKey`] names the attribute, and those that make up the key.
pub(crate) fn key_of<'q>(
    by: &[String],
    pairs: impl IntoIterator<Item = (Cow<'q, str>, Cow<'q, str>)>,
) -> Result<Descriptor<'q>, WrongKey> {
    let words = || match by {
        [] => "nothing: all requests share one".to_owned(),
        by => format!("`{}`", by.join("`, `")),
    };
    let mut key = Descriptor::new();
    for (name, value) in pairs {
        if !by.iter().any(|have| *have == name) {
            return Err(WrongKey::Other { name: name.into_owned(), by: words() });
        }
        if key.value(&name).is_some() {
            return Err(WrongKey::Twice { name: name.into_owned() });
        }
        key.push(name, value);
    }
    // All attributes must be given: an empty text is not the same as a missing attribute, and requests without the
    // attribute share one key, whose reset must be intended.
    match by.iter().find(|name| key.value(name).is_none()) {
        None => Ok(key),
        Some(missing) => Err(WrongKey::Missing { name: missing.clone(), by: words() }),
    }
}
