//! Awaits several futures at once.

use std::pin::Pin;
use std::task::Poll;

/// Awaits all, and returns what they return, in order.
pub(crate) async fn all<F: Future>(futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut each: Vec<(Pin<Box<F>>, Option<F::Output>)> =
        futures.into_iter().map(|future| (future, None)).collect();
    std::future::poll_fn(|context| {
        let mut done = true;
        for (future, output) in &mut each {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(ready) => *output = Some(ready),
                    Poll::Pending => done = false,
                }
            }
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    each.into_iter().filter_map(|(_, output)| output).collect()
}
