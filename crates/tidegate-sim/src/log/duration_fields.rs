//! The durations of requests in logs: numbers whose unit follows from the field's name.

use std::time::Duration;

use tidegate::policy::span;

/// The unit of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Nanos(u32),
    /// Whole numbers are milliseconds, and numbers with a decimal point seconds: `time-taken` and the like, which servers
    /// and clouds write in the one or the other way.
    WholeMillis,
    /// The name does not tell. Some systems write whole milliseconds under it and some nanoseconds. Only a number
    /// with a decimal point is accepted: all systems mean seconds by it.
    Unsaid,
}

impl Unit {
    /// Infers the unit from a name: `request_time` is in seconds, as in nginx; `time-taken` in milliseconds, as IIS
    /// writes it, or in seconds with a decimal point, as CloudFront does.
    pub(super) fn of(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let ends = |with: [&str; 2]| with.iter().any(|with| name.ends_with(with));
        match name.as_str() {
            "duration" => Self::Unsaid,
            "time-taken" | "properties.timetaken" => Self::WholeMillis,
            "latencies.request" | "responselatency" => Self::Nanos(1_000_000),
            _ if ends(["_ms", "millis"]) => Self::Nanos(1_000_000),
            _ if ends(["_us", "micros"]) => Self::Nanos(1_000),
            _ if ends(["_ns", "nanos"]) => Self::Nanos(1),
            _ => Self::Nanos(1_000_000_000),
        }
    }

    /// Parses a value: a number in this unit, or one with a unit of its own, such as `12ms`. `None` for any other
    /// text.
    pub(super) fn read(self, value: &[u8]) -> Option<Duration> {
        let text = std::str::from_utf8(value).ok()?;
        let Ok(number) = text.parse::<f64>() else {
            // Most other values are a dash; building an error for each would cost time.
            return if text.starts_with(|first: char| first.is_ascii_digit()) {
                span(text).ok()
            } else {
                None
            };
        };
        let nanos = match self {
            Self::Nanos(nanos) => nanos,
            Self::Unsaid | Self::WholeMillis if text.contains('.') => 1_000_000_000,
            Self::WholeMillis => 1_000_000,
            Self::Unsaid => return None,
        };
        // Divide only at the end, to be exact to the nanosecond.
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
            ("time-taken", "0.250", Some(250_000_000)),
            ("properties.timeTaken", "0.012", Some(12_000_000)),
            ("latencies.request", "12", Some(12_000_000)),
            ("httpRequest.latency", "0.012s", Some(12_000_000)),
            ("duration", "0.5", Some(500_000_000)),
            ("duration", "12ms", Some(12_000_000)),
            // As Go programs write it.
            ("duration", "1.234567ms", Some(1_234_567)),
            ("duration", "1m2.5s", Some(62_500_000_000)),
            ("duration", "12\u{b5}s", Some(12_000)),
            // Milliseconds in Envoy, nanoseconds in Traefik: undecidable.
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
