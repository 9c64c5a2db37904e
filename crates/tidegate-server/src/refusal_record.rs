//! The record of a refusal as text, for whoever keeps it beyond the process, and read back.
//!
//! It has what the memory of refused requests has, in full: names and values of attributes are there as the request had
//! them, because a digest could not be decided again, and because readers without the scope `keys` are shown digests of
//! both alike. Values of headers that hold secrets are the exception: the memory has them if a key is made of them, and the
//! text never; then the request is left out, and the key is a digest.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::clock::SystemClock;
use tidegate::limiter::{Decision, Retry, Standing};
use tidegate::policy::{Descriptor, Mode};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::decision::Ruling;
use tidegate_core::time::{WallAhead, nanos};

use crate::decided_again::AskedLimit;
use crate::refused_requests::{
    Record, RefusedRequest, RememberedRefusal, SeenLimit, Stated, holds_secret, is_secret,
};
use crate::text::Redact;

/// The form that this build writes, and the newest that it reads.
const FORM: u32 = 1;

/// The words of [`Record::by`] and [`SeenLimit::result`].
const REFUSERS: [&str; 8] = ["limit", "concurrency", "breaker", "block", "list", "deadline", "store", "call"];
const RESULTS: [&str; 5] = ["allowed", "DENIED", "would deny", "marked", "demoted"];

/// A record that was read back.
#[derive(Debug)]
pub(crate) struct ReadRecord {
    pub(crate) refused: RememberedRefusal,
    /// When it was refused, by the wall clock of then.
    pub(crate) wall: Tick,
    /// The number that the process had which refused it.
    pub(crate) run: u64,
    /// Whether a secret was left out: the key and the entry of a list are digests then, and there is no request.
    pub(crate) had_secret: bool,
}

#[derive(Serialize, Deserialize)]
struct Written {
    form: u32,
    run: u64,
    configuration: u64,
    at: u64,
    /// How far the wall clock was ahead of the ticks, in nanoseconds.
    wall_ahead: i64,
    had_secret: bool,
    by: String,
    policy: Option<String>,
    key: Option<String>,
    cause: String,
    retry: WrittenRetry,
    limits: Vec<WrittenLimit>,
    more_limits: usize,
    cost: Option<u64>,
    priority: String,
    request: Option<Vec<(String, String)>>,
    only: Option<Vec<String>>,
}

/// Waits are in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum WrittenRetry {
    After(u64),
    Unknown,
    Never,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WrittenRuling {
    Allowed(u64),
    Denied(WrittenRetry),
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WrittenMode {
    Off,
    Shadow,
    Enforce,
}

#[derive(Serialize, Deserialize)]
struct WrittenLimit {
    policy: String,
    limit: String,
    mode: WrittenMode,
    shadow_limit: bool,
    /// Absent in records from before there were canaries.
    #[serde(default)]
    canary: bool,
    result: String,
    counts_places: bool,
    needs: Option<u64>,
    has: u64,
    kept_back: u64,
    of: u64,
    retry: Option<WrittenRetry>,
    asked: Option<WrittenAsked>,
}

#[derive(Serialize, Deserialize)]
struct WrittenAsked {
    quota: Vec<u8>,
    cost: u64,
    max_wait: u64,
    ruling: WrittenRuling,
    limit: u64,
    remaining: u64,
    debt: u64,
    reset_after: u64,
}

/// Writes a refusal. `run` is a number of this process.
pub(crate) fn written(refused: &RememberedRefusal, redact: &Redact, run: u64) -> String {
    let RememberedRefusal { record, stated, request } = refused;
    let request = request.as_ref().map(|request| (request.descriptor(), request.only()));
    // A request may be too long to be remembered, or without what only a list or a block asks for.
    let had_secret =
        request.as_ref().is_some_and(|(request, _)| request.pairs().any(|(name, _)| is_secret(name)))
            || record.key.as_deref().is_some_and(holds_secret)
            || holds_secret(&record.cause);
    let own = |text: &str| text.to_owned();
    let wall = i128::from(SystemClock::wall_time(record.at).as_nanos());
    let written = Written {
        form: FORM,
        run,
        configuration: record.configuration,
        at: record.at.as_nanos(),
        // Clocks differ by less than 292 years.
        wall_ahead: i64::try_from(wall - i128::from(record.at.as_nanos())).unwrap_or(0),
        had_secret,
        by: own(record.by),
        policy: record.policy.as_deref().map(own),
        key: record.key.as_deref().map(|key| redact.text(key, !had_secret)),
        // The entry of a list may be the secret.
        cause: redact.text(&record.cause, !(had_secret && record.by == "list")),
        retry: record.retry.into(),
        limits: record.limits.iter().map(WrittenLimit::of).collect(),
        more_limits: record.more_limits,
        cost: stated.cost.map(Cost::units),
        priority: stated.priority.to_string(),
        only: request
            .as_ref()
            .and_then(|(_, only)| *only)
            .map(|only| only.iter().map(|name| own(name)).collect()),
        request: request
            .filter(|_| !had_secret)
            .map(|(request, _)| request.pairs().map(|(name, value)| (own(name), own(value))).collect()),
    };
    // A tree of texts and numbers is always JSON.
    serde_json::to_string(&written).unwrap_or_default()
}

/// Reads a refusal; `None` if the text is none, or of a newer form.
pub(crate) fn read(text: &str) -> Option<ReadRecord> {
    let written: Written =
        serde_json::from_str(text).ok().filter(|written: &Written| written.form <= FORM)?;
    let at = Tick::from_nanos(written.at);
    let ahead = WallAhead::default();
    ahead.set(written.wall_ahead);
    let record = Record {
        at,
        configuration: written.configuration,
        by: word(&REFUSERS, &written.by)?,
        policy: written.policy.map(Into::into),
        key: written.key.map(Into::into),
        cause: written.cause.into(),
        retry: written.retry.into(),
        limits: written.limits.into_iter().map(|limit| limit.seen(&ahead)).collect::<Option<_>>()?,
        more_limits: written.more_limits,
    };
    let cost = match written.cost {
        Some(units) => Some(Cost::new(units)?),
        None => None,
    };
    let stated = Stated { cost, priority: written.priority.parse().ok()? };
    let only = written.only.map(|only| only.into_iter().map(Into::into).collect());
    let request = written.request.and_then(|pairs| {
        let mut request = Descriptor::new();
        for (name, value) in pairs {
            request.push(name, value);
        }
        RefusedRequest::new(&request, only)
    });
    Some(ReadRecord {
        refused: RememberedRefusal { record, stated, request },
        wall: Tick::from_nanos(written.at.saturating_add_signed(written.wall_ahead)),
        run: written.run,
        had_secret: written.had_secret,
    })
}

fn word<const N: usize>(words: &[&'static str; N], text: &str) -> Option<&'static str> {
    words.iter().copied().find(|word| *word == text)
}

impl From<Retry> for WrittenRetry {
    fn from(retry: Retry) -> Self {
        match retry {
            Retry::After(wait) => Self::After(nanos(wait)),
            Retry::Unknown => Self::Unknown,
            Retry::Never => Self::Never,
        }
    }
}

impl From<WrittenRetry> for Retry {
    fn from(written: WrittenRetry) -> Self {
        match written {
            WrittenRetry::After(wait) => Self::After(Duration::from_nanos(wait)),
            WrittenRetry::Unknown => Self::Unknown,
            WrittenRetry::Never => Self::Never,
        }
    }
}

impl WrittenLimit {
    fn of(seen: &SeenLimit) -> Self {
        Self {
            policy: seen.policy.to_string(),
            limit: seen.limit.to_string(),
            mode: match seen.mode {
                Mode::Off => WrittenMode::Off,
                Mode::Shadow => WrittenMode::Shadow,
                Mode::Enforce => WrittenMode::Enforce,
            },
            shadow_limit: seen.shadow_limit,
            canary: seen.canary,
            result: seen.result.to_owned(),
            counts_places: seen.counts_places,
            needs: seen.needs,
            has: seen.has,
            kept_back: seen.kept_back,
            of: seen.of,
            retry: seen.retry.map(Into::into),
            asked: seen.asked.as_ref().map(|asked| {
                let Standing { limit, remaining, debt, reset_after } = asked.decision.standing;
                WrittenAsked {
                    quota: asked.quota.encode(),
                    cost: asked.cost.units(),
                    max_wait: nanos(asked.max_wait),
                    ruling: match asked.decision.ruling {
                        Ruling::Allowed { wait } => WrittenRuling::Allowed(nanos(wait)),
                        Ruling::Denied { retry } => WrittenRuling::Denied(retry.into()),
                    },
                    limit,
                    remaining,
                    debt,
                    reset_after: nanos(reset_after),
                }
            }),
        }
    }

    fn seen(self, ahead: &WallAhead) -> Option<SeenLimit> {
        Some(SeenLimit {
            policy: self.policy.into(),
            limit: self.limit.into(),
            mode: match self.mode {
                WrittenMode::Off => Mode::Off,
                WrittenMode::Shadow => Mode::Shadow,
                WrittenMode::Enforce => Mode::Enforce,
            },
            shadow_limit: self.shadow_limit,
            canary: self.canary,
            result: word(&RESULTS, &self.result)?,
            counts_places: self.counts_places,
            needs: self.needs,
            has: self.has,
            kept_back: self.kept_back,
            of: self.of,
            retry: self.retry.map(Into::into),
            // What this build cannot read is not known; the rest of the record is.
            asked: self.asked.and_then(|asked| asked.asked(ahead)),
        })
    }
}

impl WrittenAsked {
    fn asked(self, ahead: &WallAhead) -> Option<AskedLimit> {
        let quota = Quota::decode(&self.quota).ok()?;
        quota.follow_wall(ahead);
        let standing = Standing {
            limit: self.limit,
            remaining: self.remaining,
            debt: self.debt,
            reset_after: Duration::from_nanos(self.reset_after),
        };
        let ruling = match self.ruling {
            WrittenRuling::Allowed(wait) => Ruling::Allowed { wait: Duration::from_nanos(wait) },
            WrittenRuling::Denied(retry) => Ruling::Denied { retry: retry.into() },
        };
        Some(AskedLimit {
            quota: quota.into(),
            cost: Cost::new(self.cost)?,
            max_wait: Duration::from_nanos(self.max_wait),
            decision: Decision { ruling, standing },
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate::priority::Priority;

    use super::*;

    fn refusal(request: &Descriptor<'_>) -> RememberedRefusal {
        let quota = Quota::per_second(3).burst(5).gcra().unwrap();
        let decision = Decision {
            ruling: Ruling::Denied { retry: Retry::After(Duration::from_nanos(333_333_334)) },
            standing: Standing {
                limit: 5,
                remaining: 0,
                debt: 0,
                reset_after: Duration::from_nanos(1_666_666_667),
            },
        };
        let seen = SeenLimit {
            policy: "per-ip".into(),
            limit: "gcra 3/s burst 5".into(),
            mode: Mode::Enforce,
            shadow_limit: false,
            canary: true,
            result: "DENIED",
            counts_places: false,
            needs: Some(1),
            has: 0,
            kept_back: 0,
            of: 5,
            retry: Some(Retry::Never),
            asked: Some(AskedLimit {
                quota: quota.into(),
                cost: Cost::ONE,
                max_wait: Duration::ZERO,
                decision,
            }),
        };
        let record = Record {
            at: Tick::from_secs(1_800_000_000),
            configuration: 7,
            by: "limit",
            policy: Some("per-ip".into()),
            key: Some("client.ip=203.0.113.9".into()),
            cause: Box::default(),
            retry: Retry::After(Duration::from_nanos(333_333_334)),
            limits: [seen].into(),
            more_limits: 2,
        };
        let stated = Stated { cost: Cost::new(4), priority: Priority::default() };
        let only: Box<[Box<str>]> = Box::new(["per-ip".into()]);
        RememberedRefusal { record, stated, request: RefusedRequest::new(request, Some(only)) }
    }

    #[test]
    fn what_is_written_is_read() {
        let request = Descriptor::new().with("client.ip", "203.0.113.9").with("x", "é\n\"");
        let before = refusal(&request);
        let text = written(&before, &Redact::new([7; 32]), 9);
        let after = read(&text).unwrap();
        assert_eq!((after.run, after.had_secret), (9, false));
        assert_eq!(after.wall, SystemClock::wall_time(before.record.at));
        assert_eq!(written(&after.refused, &Redact::new([7; 32]), 9), text);
        let found = after.refused.request.unwrap();
        assert!(found.descriptor().pairs().eq(request.pairs()));
        assert_eq!(found.only().unwrap().len(), 1);
        let (seen, was) = (&after.refused.record.limits[0], &before.record.limits[0]);
        assert_eq!((seen.canary, &seen.asked), (was.canary, &was.asked));
        let asked = seen.asked.as_ref().unwrap();
        assert_eq!(
            asked.under(&asked.quota, asked.max_wait, after.refused.record.at),
            Some(asked.decision),
            "bit for bit"
        );
        for text in ["", "{}", &text.replace("\"form\":1", "\"form\":2"), &text.replace("DENIED", "denied")] {
            assert!(read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn no_secret_is_written() {
        let request = Descriptor::new().with("request.header.x-api-key", "hunter2");
        let mut refused = refusal(&request);
        refused.record.key = Some("request.header.x-api-key=hunter2".into());
        let text = written(&refused, &Redact::new([7; 32]), 9);
        assert!(!text.contains("hunter2"), "{text}");
        let read = read(&text).unwrap();
        assert!(read.had_secret && read.refused.request.is_none());
        assert!(read.refused.record.key.unwrap().starts_with('#'));
    }

    /// Regression: they were only looked for in the request, which is not there if it is long, and has no header that no
    /// policy's key is made of.
    #[test]
    fn no_secret_is_written_without_its_request() {
        let request = Descriptor::new().with("client.ip", "203.0.113.9");
        let secret = "request.header.authorization=hunter2";
        let redact = Redact::new([7; 32]);
        for (by, key, cause, is_long) in [
            ("limit", Some(format!("client.ip=203.0.113.9, {secret}")), "", true),
            ("block", Some(secret.to_owned()), "abuse", false),
            ("list", None, secret, false),
        ] {
            let mut refused = refusal(&request);
            refused.request = refused.request.filter(|_| !is_long);
            (refused.record.by, refused.record.cause) = (by, cause.into());
            refused.record.key = key.map(Into::into);
            let text = written(&refused, &redact, 9);
            assert!(!text.contains("hunter2"), "{by}: {text}");
            let read = read(&text).unwrap();
            assert!(read.had_secret && read.refused.request.is_none());
            let shown = if by == "list" { redact.text(secret, false) } else { cause.to_owned() };
            assert_eq!(*read.refused.record.cause, *shown);
        }
    }
}
