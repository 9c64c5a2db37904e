//! One deadline for both waits of a request: for a rate limit, and for a place in a bulkhead.
//!
//! A wait that cannot end by the deadline is refused at once, so that the caller is told while it still listens.
//!
//! ```sh
//! cargo run -p tidegate --features tokio --example deadlines
//! ```

use std::error::Error;
use std::time::Duration;

use tidegate::clock::TokioClock;
use tidegate::limiter::TakeError;
use tidegate::{Bulkhead, Limiter, Outcome, Quota};
use tokio::time::Instant;

/// A service that takes fifty calls per second, at most two of them in flight.
struct Service {
    rate: Limiter,
    places: Bulkhead,
}

impl Service {
    fn new() -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            rate: Limiter::new(Quota::per_second(50).burst(1))?.with_clock(TokioClock::new()),
            places: Bulkhead::new(2)?.with_clock(TokioClock::new()),
        })
    }

    /// Calls the service if both limits admit the call by `deadline`, an instant of tokio's clock or of the machine's.
    async fn call(&self, order: u32, deadline: Instant) -> Result<String, TakeError> {
        self.rate.wait(1).until(deadline).await?;
        let place = self.places.enter().until(deadline).await?;
        let answer = format!("answer to {order}");
        place.leave(Outcome::Success);
        Ok(answer)
    }
}

/// Makes five calls with one deadline in 50 ms: one passes at once, two wait, and two have no time.
#[allow(clippy::disallowed_methods, reason = "where a request comes in, its deadline is made")]
pub(crate) async fn demonstrate() -> Result<Vec<Result<String, TakeError>>, Box<dyn Error>> {
    let service = Service::new()?;
    let deadline = Instant::now() + Duration::from_millis(50);
    let mut answers = Vec::new();
    for order in 1..=5 {
        answers.push(service.call(order, deadline).await);
    }
    Ok(answers)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    for answer in demonstrate().await? {
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(denied) => println!("refused: {denied}"),
        }
    }
    Ok(())
}
