//! The best moments of a service: the most work served in one bucket, and the least average latency of one bucket.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;
use crate::window::{Buckets, Peak};

/// The unit in which latencies are counted, and the values assumed while nothing was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// Nanoseconds. While nothing was served, no value is assumed.
    Nanoseconds,
    /// Milliseconds, with latencies and their averages rounded up. While nothing was served: one request of one
    /// millisecond. The bucket in progress is one of the window's.
    MillisecondsUp,
    /// Milliseconds, with latencies rounded up and their averages to the nearest, at most one second. While nothing was
    /// served: one request of one second. The bucket in progress is one of the window's.
    MillisecondsRounded,
}

/// The work served in a window of buckets. The bucket in progress does not count.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Served {
    /// The most that was served in one bucket.
    most: Peak,
    /// The least average latency of a bucket, negated.
    least: Peak,
    /// The number of the bucket in progress.
    newest: u64,
    served: u64,
    /// How many of those have a latency that counts, and the sum of these latencies.
    timed: u64,
    latencies: f64,
}

impl Served {
    pub(super) fn new(window: Buckets, now: Tick) -> Self {
        let newest = window.index(now);
        Self {
            most: Peak::new(window),
            least: Peak::new(window),
            newest,
            served: 0,
            timed: 0,
            latencies: 0.0,
        }
    }

    pub(super) fn advance(&mut self, window: Buckets, counting: Counting, at: Tick) {
        let index = window.index(at);
        if window.is_set_back(self.newest, at) {
            self.most.clear();
            self.least.clear();
            (self.newest, self.served, self.timed, self.latencies) = (index, 0, 0, 0.0);
        }
        if index <= self.newest {
            return;
        }
        if self.served > 0 {
            self.most.push(self.newest, self.served as f64);
        }
        if self.timed > 0 {
            self.least.push(self.newest, -(self.latencies / self.timed as f64));
        }
        (self.newest, self.served, self.timed, self.latencies) = (index, 0, 0, 0.0);
        let complete = match counting {
            Counting::Nanoseconds => window.count(),
            Counting::MillisecondsUp | Counting::MillisecondsRounded => window.count() - 1,
        };
        let oldest = index.saturating_sub(u64::from(complete));
        self.most.forget_before(oldest);
        self.least.forget_before(oldest);
    }

    pub(super) fn count(&mut self, counting: Counting, latency: Duration) {
        self.served += 1;
        let latency = match counting {
            Counting::Nanoseconds => (latency.as_nanos() as f64).max(1.0),
            Counting::MillisecondsUp | Counting::MillisecondsRounded => {
                latency.as_nanos().div_ceil(1_000_000) as f64
            }
        };
        // aegis leaves out latencies of zero. go-zero counts them; in nanoseconds there are none.
        if latency > 0.0 || counting == Counting::MillisecondsRounded {
            self.timed += 1;
            self.latencies += latency;
        }
    }

    /// Returns the work served per second multiplied by its latency in seconds. `None` if nothing was served and no
    /// value is assumed.
    pub(super) fn inside(&self, window: Buckets, counting: Counting) -> Option<f64> {
        let (most, least) = (self.most.get(), self.least.get().map(|negated| -negated));
        let (most, seconds) = match counting {
            Counting::Nanoseconds => (most?, least? / 1e9),
            Counting::MillisecondsUp => (most.unwrap_or(1.0), least.map_or(1.0, f64::ceil).max(1.0) / 1e3),
            Counting::MillisecondsRounded => {
                (most.unwrap_or(1.0), least.map_or(1000.0, f64::round).min(1000.0) / 1e3)
            }
        };
        Some(most * seconds * window.per_second())
    }
}

impl Bytes for Served {
    fn write(&self, out: &mut Writer) {
        self.most.write(out);
        self.least.write(out);
        out.u64(self.newest);
        out.u64(self.served);
        out.u64(self.timed);
        out.f64(self.latencies);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            most: Bytes::read(from)?,
            least: Bytes::read(from)?,
            newest: from.u64()?,
            served: from.count("served")?,
            timed: from.count("timed")?,
            latencies: from.within("latencies", 0.0..=f64::MAX)?,
        })
    }
}
