//! How the values of flags are read, with an error that says what would work.

use std::time::Duration;

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500ms, 10s, 5m or 1h"))
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no NAME=VALUE")),
    }
}

/// Room for a billion keys takes 4 GiB before the first has come; more is a slip of the finger.
const MAX_KEYS: usize = 1_000_000_000;

pub(super) fn keys(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_KEYS).contains(number));
    number.ok_or_else(|| format!("`{text}` is no number of keys; use 1 to {MAX_KEYS}"))
}

/// Far more than one machine serves.
const MAX_CONNECTIONS: usize = 1_000_000;

pub(super) fn connections(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_CONNECTIONS).contains(number));
    number.ok_or_else(|| format!("`{text}` is no number of connections; use 1 to {MAX_CONNECTIONS}"))
}

/// How fast a log is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speed {
    /// As fast as it can be read.
    Max,
    /// So many seconds of log a second.
    Times(f64),
}

pub(super) fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    match text.strip_suffix('x').unwrap_or(text).parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(Speed::Times(speed)),
        _ => Err(format!("`{text}` is no speed; write max, 1x or 60x")),
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    // Read as 99.9e-2, the nearest number to the share; 99.9 / 100 is another one, a little above.
    let number =
        text.strip_suffix('%').map_or_else(|| text.to_owned(), |number| format!("{}e-2", number.trim()));
    match number.trim().parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("`{text}` is no share; write 99.9% or 0.999")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_speeds() {
        assert!((share("99.9%").unwrap() - 0.999).abs() < 1e-12);
        assert!(share("140%").is_err() && share("x").is_err());
        assert_eq!(speed("max"), Ok(Speed::Max));
        assert_eq!(speed("60x"), Ok(Speed::Times(60.0)));
        assert!(speed("-1x").is_err() && speed("inf").is_err());
    }

    /// A number of keys that no machine has room for was tried all the same, and ended in a panic or an abort.
    #[test]
    fn a_number_of_keys_is_one_that_there_can_be_room_for() {
        assert_eq!(keys("100000"), Ok(100_000));
        for bad in ["0", "-1", "1000000001", "18446744073709551615", "many"] {
            assert!(keys(bad).is_err(), "{bad}");
        }
    }
}
