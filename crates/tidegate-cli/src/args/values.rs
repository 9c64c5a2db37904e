//! Parsers for the values of flags, with errors that name valid values.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{IntErrorKind, ParseIntError};
use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate::config::{Address, DoorName};
use tidegate::policy::{GrammarError, WrittenRate};
use tidegate::priority::{Criticality, Priority};

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    tidegate::policy::span(text).map_err(|error| error.to_string())
}

/// The time is sent on as it was written, so that an answer names what the user wrote.
pub(super) fn written_duration(text: &str) -> Result<String, String> {
    duration(text).map(|_| text.to_owned())
}

/// Parses how long requests are in flight, by the rule of traffic.
pub(super) fn hold(text: &str) -> Result<Duration, String> {
    tidegate_sim::traffic::request_time(text)
}

/// Few logs have finer times, and a limit per shorter period is not readable.
const LEAST_PERIOD: Duration = Duration::from_millis(1);

pub(super) fn period(text: &str) -> Result<Duration, String> {
    let period = duration(text)?;
    if period < LEAST_PERIOD {
        return Err(format!(
            "`{text}` is too short for the period of a rate; use 1ms or more, such as 1s, 1min or 1h"
        ));
    }
    Ok(period)
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(match text.split_once(':') {
            Some((name, value)) if name.contains('.') && !value.is_empty() => {
                format!("write {name}={value}")
            }
            _ => "write NAME=VALUE".to_owned(),
        }),
    }
}

/// Parses a whole number, including 0; each flag defines its own meaning of 0.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => format!("`{text}` is too large; use {} at most", u64::MAX),
        _ => format!("`{text}` is not a whole number; write one as 20"),
    })
}

pub(super) fn priority(text: &str) -> Result<Priority, String> {
    text.parse().map_err(|error| format!("`{text}` {error}"))
}

pub(super) fn level(text: &str) -> Result<Criticality, String> {
    text.parse().map_err(|error| format!("`{text}` {error}"))
}

/// A table for a billion keys takes 24 GB at once, so more is likely a typing mistake.
const MAX_KEYS: usize = 1_000_000_000;

pub(super) fn keys(text: &str) -> Result<usize, String> {
    one_to(MAX_KEYS, text, "keys")
}

/// Parses a number from 1 to `most`; the error names what is counted.
fn one_to(most: usize, text: &str, what: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number of {what}; use 1 to {most}"))
}

/// The most keys to list: more than anybody reads.
const MAX_LISTED: usize = 100_000;

pub(super) fn listed(text: &str) -> Result<usize, String> {
    one_to(MAX_LISTED, text, "keys to list")
        .map_err(|wrong| format!("{wrong}, or write the option after the log"))
}

/// Parses how many keys to list, of at most `MOST` that a server lists in one answer.
pub(super) fn keys_up_to<const MOST: usize>(text: &str) -> Result<usize, String> {
    one_to(MOST, text, "keys to list")
}

/// The most changes that the server remembers.
const MAX_CHANGES: usize = 200;

pub(super) fn changes_up_to(text: &str) -> Result<usize, String> {
    one_to(MAX_CHANGES, text, "changes to list")
}

/// Far more than one machine serves.
const MAX_CONNECTIONS: usize = 1_000_000;

pub(super) fn connections(text: &str) -> Result<usize, String> {
    one_to(MAX_CONNECTIONS, text, "connections")
}

pub(super) fn door(text: &str) -> Result<DoorName, String> {
    text.parse().map_err(|why| format!("`{text}` {why}"))
}

/// A port alone, and `localhost`, mean the loopback address; no other name is looked up.
///
/// `:8080` is refused: in other programs it means every address of the machine, which has to be written explicitly
/// here.
pub(super) fn listened(text: &str) -> Result<Address, String> {
    if text.starts_with("unix:") {
        return text.parse().map_err(|why| format!("`{text}` {why}"));
    }
    reached(text).map(Address::Tcp)
}

/// A port alone is on the loopback address.
fn reached(text: &str) -> Result<SocketAddr, String> {
    let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    if let Ok(port) = text.parse() {
        return Ok(here(port));
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Err(format!("`{text}` has no port; write {}", SocketAddr::new(ip, 8080)));
    }
    let wrong = || {
        format!("`{text}` is not an address and port; write 127.0.0.1:8080, or 8080 for this machine alone")
    };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "8080"));
    let host = host.to_ascii_lowercase();
    match port.parse::<u16>() {
        Err(_) => Err(wrong()),
        Ok(port) if host == "localhost" => Ok(here(port)),
        Ok(port) if host.is_empty() || host == "*" => Err(format!(
            "`{text}` does not say who may reach it; write {port} for this machine alone, or 0.0.0.0:{port} for everyone"
        )),
        Ok(_) if text.contains("//") => Err(wrong()),
        Ok(port) => Err(format!(
            "`{text}` is not an address: names other than localhost are not looked up; write 127.0.0.1:{port}, or the address itself"
        )),
    }
}

/// The speed at which a log is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speed {
    /// As fast as it can be read.
    Max,
    /// This many seconds of log per second.
    Times(f64),
}

pub(super) fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    match text.strip_suffix('x').unwrap_or(text).parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(Speed::Times(speed)),
        _ => Err(format!("`{text}` is not a speed; write max, 1x or 60x")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerSecond {
    pub(crate) count: u64,
    /// The period in nanoseconds.
    pub(crate) period: u64,
}

impl PerSecond {
    pub(crate) fn per_second(self) -> f64 {
        self.count as f64 * 1e9 / self.period as f64
    }

    pub(crate) fn text(self) -> String {
        let rate = self.per_second();
        if rate.fract() == 0.0 { format!("{rate}/s") } else { format!("{rate:.3}/s") }
    }
}

/// Far more than one machine sends.
const MAX_PER_SECOND: f64 = 10_000_000.0;

/// Parses a request rate: `500` means per second, `30/min` names its period.
pub(super) fn per_second(text: &str) -> Result<PerSecond, String> {
    let whole =
        if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}/s") } else { text.to_owned() };
    if whole.starts_with("0/") {
        return Err(format!("`{text}` sends no requests; use 1 or more, such as 500/s or 30/min"));
    }
    let rate: WrittenRate = whole.parse().map_err(|error: GrammarError| error.to_string())?;
    let (WrittenRate::Per { count, .. }, Some(period)) = (rate, rate.period()) else {
        return Err(format!(
            "`{text}` is not a rate of requests; leave it out to send the next request after each answer"
        ));
    };
    let rate = PerSecond { count, period: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX) };
    if rate.per_second() > MAX_PER_SECOND {
        return Err(format!("`{text}` is more than this command can send; use at most {MAX_PER_SECOND}/s"));
    }
    Ok(rate)
}

const MAX_AT_ONCE: usize = 10_000;

pub(super) fn at_once(text: &str) -> Result<usize, String> {
    one_to(MAX_AT_ONCE, text, "connections")
        .map_err(|wrong| format!("{wrong} (a policy file is named by --config here)"))
}

pub(super) fn lasting(text: &str) -> Result<Duration, String> {
    let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
    span_within(range, text, "for a run; use 1s to 24h")
}

pub(super) fn waiting(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    span_within(range, text, "to wait for an answer; use 1ms to 60s")
}

/// Parses the time between two answers of a server that are shown one after the other.
pub(super) fn refresh(text: &str) -> Result<Duration, String> {
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    span_within(range, text, "between two lists; use 1s to 1h")
}

/// The error ends with the purpose and the range.
fn span_within(range: RangeInclusive<Duration>, text: &str, purpose: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    if range.contains(&span) {
        return Ok(span);
    }
    Err(format!("`{text}` is too short or too long {purpose}"))
}

pub(super) fn refreshes(text: &str) -> Result<u64, String> {
    let number = whole(text)?;
    (number > 0).then_some(number).ok_or_else(|| "`0` shows nothing; use 1 or more".to_owned())
}

/// A number or a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Most {
    Count(u64),
    Share(f64),
}

pub(super) fn most(text: &str) -> Result<Most, String> {
    if text.ends_with('%') {
        let share = share(text)?;
        if share >= 1.0 {
            return Err(format!(
                "nothing is more than `{text}`, so this never fails; use less, such as 0.1%"
            ));
        }
        return Ok(Most::Share(share));
    }
    text.parse()
        .map(Most::Count)
        .map_err(|_| format!("`{text}` is neither a number nor a share; write 0 or 0.1%"))
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    // With an exponent of -2, as in 99.9e-2, it is the float nearest to the share; 99.9 / 100 would be slightly larger.
    let number =
        text.strip_suffix('%').map_or_else(|| text.to_owned(), |number| format!("{}e-2", number.trim()));
    match number.trim().parse::<f64>() {
        Ok(_) if text.trim() == "1" => Err("`1` may be one in a hundred or all; write 1% or 100%".to_owned()),
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("`{text}` is not a share; write 99.9% or 0.999")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_speeds() {
        assert!((share("99.9%").unwrap() - 0.999).abs() < 1e-12);
        assert_eq!((share("100%"), share("0"), share("1%")), (Ok(1.0), Ok(0.0), Ok(0.01)));
        assert!(share("1").unwrap_err().contains("write 1% or 100%"));
        assert!(share("140%").is_err() && share("x").is_err());
        assert_eq!(speed("max"), Ok(Speed::Max));
        assert_eq!(speed("60x"), Ok(Speed::Times(60.0)));
        assert!(speed("-1x").is_err() && speed("inf").is_err());
    }

    #[test]
    fn a_rate_without_a_period_is_a_second() {
        for (text, shown) in
            [("500", "500/s"), ("500/s", "500/s"), ("50/min", "0.833/s"), ("10000000", "10000000/s")]
        {
            assert_eq!(per_second(text).map(PerSecond::text), Ok(shown.to_owned()), "{text}");
        }
        for bad in ["", "0", "0/s", "-1", "10000001", "1000/us", "5/fortnight", "unlimited", "x"] {
            assert!(per_second(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_there_may_be_most_of_is_a_number_or_a_share() {
        assert_eq!((most("0"), most("1%")), (Ok(Most::Count(0)), Ok(Most::Share(0.01))));
        assert!(["", "-1", "100%", "101%", "1.5"].iter().all(|bad| most(bad).is_err()));
    }

    #[test]
    fn a_whole_number_may_be_too_large() {
        assert_eq!(whole("18446744073709551615"), Ok(u64::MAX));
        let too_large = whole("18446744073709551616").unwrap_err();
        assert_eq!(too_large, "`18446744073709551616` is too large; use 18446744073709551615 at most");
        for bad in ["", "-1", "1e9", "NaN", "\u{663}", "1 "] {
            assert_eq!(whole(bad).unwrap_err(), format!("`{bad}` is not a whole number; write one as 20"));
        }
    }

    #[test]
    fn a_log_behind_the_option_is_no_number() {
        assert_eq!(listed("20"), Ok(20));
        assert!(listed("access.log").unwrap_err().ends_with("or write the option after the log"));
        assert!(listed("0").is_err());
    }

    #[test]
    fn an_address_may_be_a_port_of_this_machine() {
        for (text, addr) in [
            ("8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("LocalHost", "127.0.0.1:8080"),
            ("0", "127.0.0.1:0"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
            ("unix:/run/t.sock,mode=660", "unix:/run/t.sock,mode=660"),
        ] {
            assert_eq!(listened(text), Ok(addr.parse().unwrap()), "{text}");
        }
        for (text, says) in [
            (":8080", "write 8080 for this machine alone, or 0.0.0.0:8080 for everyone"),
            ("*:80", "or 0.0.0.0:80 for everyone"),
            ("0.0.0.0", "has no port; write 0.0.0.0:8080"),
            ("::1", "has no port; write [::1]:8080"),
            ("web.example:80", "write 127.0.0.1:80, or the address itself"),
            ("http://localhost:8080", "write 127.0.0.1:8080, or 8080"),
            ("70000", "write 127.0.0.1:8080, or 8080"),
            ("localhost:http", "write 127.0.0.1:8080"),
            ("", "write 127.0.0.1:8080, or 8080"),
            ("unix:t.sock", "write the whole path, as unix:/run/tidegate.sock"),
        ] {
            let refused = listened(text).unwrap_err();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    /// A number of keys that does not fit any memory must be refused; trying it would end in a panic or an abort.
    #[test]
    fn a_number_of_keys_is_one_that_there_can_be_room_for() {
        assert_eq!(keys("100000"), Ok(100_000));
        for bad in ["0", "-1", "1000000001", "18446744073709551615", "many"] {
            assert!(keys(bad).is_err(), "{bad}");
        }
    }
}
