//! One deadline for all that a request waits for: its turn under a rate, and a place among those under way.
//!
//! What cannot be met is refused at once, so that the caller can be told while it still listens.
//!
//! ```sh
//! cargo run -p tidegate --features tokio --example deadlines
//! ```

use std::error::Error;
use std::time::Duration;

use tidegate::clock::TokioClock;
use tidegate::{Bulkhead, Limiter, Outcome, Quota, TakeError};
use tokio::time::Instant;

/// A service that takes fifty calls per second, of which two may be under way.
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

    /// Calls the service if both limits let it by `deadline`, of tokio's clock or of the machine's.
    async fn call(&self, order: u32, deadline: Instant) -> Result<String, TakeError> {
        self.rate.wait(1).until(deadline).await?;
        let place = self.places.enter().until(deadline).await?;
        let answer = format!("answer to {order}");
        place.leave(Outcome::Success);
        Ok(answer)
    }
}

/// Makes five calls that have 50 ms together: one at once, two that wait, and two for which there is no time.
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
