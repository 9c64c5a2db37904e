//! A call of one proxy without its connection: reports in, answers out.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::super::rate_limit::fuzzing::RateLimitDoor;
use super::USUAL_TTL;
use super::buckets::Buckets;

/// The call of one proxy.
pub struct QuotaCall<'d> {
    door: &'d RateLimitDoor,
    buckets: Buckets,
}

impl fmt::Debug for QuotaCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaCall").finish_non_exhaustive()
    }
}

impl<'d> QuotaCall<'d> {
    /// Begins a call.
    #[must_use]
    pub fn begin(door: &'d RateLimitDoor) -> Self {
        Self { door, buckets: Buckets::new(Duration::from_secs(USUAL_TTL)) }
    }

    /// Answers a report with the body of the answer. After an error the call is over.
    ///
    /// # Errors
    /// The code and the message of the final status.
    pub fn report(&mut self, message: Bytes) -> Result<Bytes, (u8, String)> {
        let service = &self.door.service;
        let answered = self.door.runtime.block_on(async {
            let answer = self.buckets.answer(service, message, |_| Ok(())).await;
            self.buckets.book(service).await;
            answer
        });
        answered.map_err(|status| (status.code as u8, status.message.into_owned()))
    }
}
