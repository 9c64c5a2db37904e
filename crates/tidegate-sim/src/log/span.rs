//! How long a request took, as logs write it: a number, whose unit the name says.

use std::time::Duration;

use tidegate::policy::span;

/// What one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Nanos(u32),
    /// The name does not say. Some write whole milliseconds under it and some nanoseconds, so only a number with a point is
    /// taken, which is seconds with everybody.
    Unsaid,
}

impl Unit {
    /// Reads the unit off a name: `request_time` is in seconds, as in nginx; `time-taken` in milliseconds, as in W3C logs.
    pub(super) fn of(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let ends = |with: [&str; 2]| with.iter().any(|with| name.ends_with(with));
        match name.as_str() {
            "duration" => Self::Unsaid,
            "time-taken" => Self::Nanos(1_000_000),
            _ if ends(["_ms", "millis"]) => Self::Nanos(1_000_000),
            _ if ends(["_us", "micros"]) => Self::Nanos(1_000),
            _ if ends(["_ns", "nanos"]) => Self::Nanos(1),
            _ => Self::Nanos(1_000_000_000),
        }
    }

    /// Reads a value: a number of these units, or one with a unit of its own, as `12ms`. `None` where it is neither.
    pub(super) fn read(self, value: &[u8]) -> Option<Duration> {
        let text = std::str::from_utf8(value).ok()?;
        let Ok(number) = text.parse::<f64>() else {
            // Most values that are no number are a dash, and an error would be made for each.
            return if text.starts_with(|first: char| first.is_ascii_digit()) {
                span(text).ok()
            } else {
                None
            };
        };
        let nanos = match self {
            Self::Nanos(nanos) => nanos,
            Self::Unsaid if text.contains('.') => 1_000_000_000,
            Self::Unsaid => return None,
        };
        // To the nanosecond, which a product of floats would miss by a bit.
        Duration::try_from_secs_f64(number * f64::from(nanos) / 1e9).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_read_off_the_name_or_the_value() {
        let rows = [
            ("request_time", "0.250", Some(250_000_000)),
            ("request_time", "2", Some(2_000_000_000)),
            ("duration_ms", "12", Some(12_000_000)),
            ("Duration_US", "12", Some(12_000)),
            ("tookNanos", "12", Some(12)),
            ("time-taken", "40", Some(40_000_000)),
            ("duration", "0.5", Some(500_000_000)),
            ("duration", "12ms", Some(12_000_000)),
            // As programs in Go write it.
            ("duration", "1.234567ms", Some(1_234_567)),
            ("duration", "1m2.5s", Some(62_500_000_000)),
            ("duration", "12\u{b5}s", Some(12_000)),
            // Milliseconds of Envoy or nanoseconds of Traefik: nobody can say.
            ("duration", "500", None),
            ("request_time", "-", None),
            ("request_time", "-1", None),
            ("request_time", "inf", None),
            ("request_time", "NaN", None),
        ];
        for (name, value, nanos) in rows {
            let read = Unit::of(name).read(value.as_bytes());
            assert_eq!(read, nanos.map(Duration::from_nanos), "{name} {value}");
        }
    }
}
