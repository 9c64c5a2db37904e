//! Calls a service that takes five requests per second, from a program that has more requests than that.
//!
//! Jobs start in order, a fifth of a second apart, and overlap if the service is slow. A job that would wait for more
//! than a second is refused at once, so that the program can do something better than queue.
//!
//! ```sh
//! cargo run -p tidegate --example outbound
//! ```

use std::time::Duration;

use tidegate::limiter::Rate;
use tidegate::limiter::queue::JobQueue;

/// Simulates the service: answers after 300 ms.
async fn call(order: u32) -> String {
    tokio::time::sleep(Duration::from_millis(300)).await;
    format!("answer to {order}")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (queue, worker) = JobQueue::new(Rate::new(5, Duration::from_secs(1))?, 100)?;
    tokio::spawn(worker.run_with(|job| {
        tokio::spawn(job);
    }));

    let mut answers = Vec::new();
    for order in 1..=8 {
        match queue.submit_within(call(order), Duration::from_secs(1)) {
            Ok(answer) => answers.push(answer),
            Err(refused) => println!("order {order}: {refused}"),
        }
    }
    for answer in answers {
        println!("{}", answer.await?);
    }
    Ok(())
}
