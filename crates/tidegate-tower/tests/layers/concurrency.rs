use std::task::Poll;
use std::time::Duration;

use http::Request;
use tidegate::bulkhead::Enter;
use tidegate::clock::ManualClock;
use tidegate::{Bulkhead, Tick, deadline};
use tidegate_tower::ConcurrencyLayer;
use tower_layer::Layer;

use crate::layers::service::{ScriptedService, answer, call, get, poll};

#[test]
fn a_place_is_returned_when_the_call_ends_or_goes_away() {
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let layer = ConcurrencyLayer::new("pages", places.clone());
    let mut hanging = layer.layer(ScriptedService::hanging());
    let mut called = Box::pin(call(&mut hanging, get()));
    assert!(poll(called.as_mut()).is_pending());
    assert_eq!(places.standing().remaining, 0);

    let refused = answer(&mut layer.layer(ScriptedService::default()), get()).unwrap();
    assert_eq!(refused.status(), 503);
    assert!(refused.body().contains("temporary-reduced-capacity"), "{}", refused.body());
    assert!(
        refused
            .body()
            .contains(r#"limit \"pages\" refuses this request: all places are taken; try again later"#),
        "{}",
        refused.body()
    );
    drop(called);
    assert_eq!(answer(&mut layer.layer(ScriptedService::default()), get()).unwrap().status(), 200);
    assert_eq!(places.standing().remaining, 1);
}

/// A future that was made and never polled holds no place in the queue, and a waiting one leaves the queue when it is
/// dropped.
#[test]
fn who_waits_gets_the_place_of_whoever_goes_first() {
    let places = Bulkhead::new(1).unwrap().with_room(2);
    let layer = ConcurrencyLayer::new("pages", places.clone());
    let inner = ScriptedService::default();
    let permit = places.try_enter().unwrap();
    let mut service = layer.layer(inner.clone());
    let mut gone = Box::pin(call(&mut service, get()));
    let mut waits = Box::pin(call(&mut service, get()));
    assert!(poll(gone.as_mut()).is_pending() && poll(waits.as_mut()).is_pending());
    assert_eq!(places.waiting(), 2);
    assert_eq!(answer(&mut service, get()).unwrap().status(), 503, "the line is full");
    drop(gone);
    drop(permit);
    assert!(poll(waits.as_mut()).is_ready());
    assert_eq!((inner.calls(), places.standing().remaining, places.waiting()), (1, 1, 0));
}

#[test]
fn nobody_stands_in_line_beyond_its_deadline() {
    let places = Bulkhead::new(1).unwrap().with_room(2);
    let _permit = places.try_enter().unwrap();
    let mut service = ConcurrencyLayer::new("pages", places.clone()).layer(ScriptedService::default());
    let polled = deadline::carry(Tick::EPOCH, || poll(std::pin::pin!(call(&mut service, get()))));
    let Poll::Ready(Ok(refused)) = polled else { panic!("its time was up before it came") };
    assert_eq!((refused.status().as_u16(), places.waiting()), (503, 0));
}

/// The deadline that the task carries does not lengthen a wait that the layer was told to end.
#[test]
fn a_wait_ends_at_the_first_of_its_bounds() {
    let clock = ManualClock::default();
    let second = Duration::from_secs(1);
    let places = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let _permit = places.try_enter().unwrap();
    let briefly = move |entry: Enter, _: &Request<String>| entry.within(second);
    let mut service =
        ConcurrencyLayer::new("pages", places).entering(briefly).layer(ScriptedService::default());
    let mut called = Box::pin(deadline::carry(Tick::from_secs(9), || call(&mut service, get())));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(second);
    let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("it waits for a second") };
    assert_eq!(refused.status(), 503);
}

/// The cause goes from the bulkhead to the observer, to outer layers and to callers.
#[test]
fn a_refusal_says_why_there_is_no_place() {
    use std::sync::{Arc, Mutex};
    use tidegate::bulkhead::NoPlace;
    use tidegate::observer::{LayerDid, LayerEvent, Observer};
    use tidegate_tower::{RefusalCause, Refused};

    #[derive(Clone, Debug, Default)]
    struct Causes(Arc<Mutex<Vec<RefusalCause>>>);
    impl Observer for Causes {
        fn on_layer(&self, event: &LayerEvent<'_>) {
            if let LayerDid::Refused { cause, .. } = event.did {
                self.0.lock().unwrap().push(cause);
            }
        }
    }

    let (clock, causes) = (ManualClock::default(), Causes::default());
    let second = Duration::from_secs(1);
    let places = Bulkhead::new(1).unwrap().with_room(1).with_longest_wait(second).with_clock(clock.clone());
    let _permit = places.try_enter().unwrap();
    let layer = ConcurrencyLayer::new("pages", places).with_observer(causes.clone());
    let mut service = layer.layer(ScriptedService::default());
    let mut waits = Box::pin(call(&mut service, get()));
    assert!(poll(waits.as_mut()).is_pending());
    let full = answer(&mut service, get()).unwrap();
    assert_eq!(
        Refused::of_response(&full).unwrap().to_string(),
        "pages: too many requests at once: the queue is full"
    );
    assert!(
        full.body().contains("refuses this request: the queue is full; try again later"),
        "{}",
        full.body()
    );
    clock.advance(second);
    let Poll::Ready(Ok(over)) = poll(waits.as_mut()) else { panic!("it waits for a second") };
    assert!(over.body().contains("the longest wait is over"), "{}", over.body());
    let expected = [NoPlace::QueueFull, NoPlace::QueueTimeout].map(RefusalCause::Concurrency);
    assert_eq!(*causes.0.lock().unwrap(), expected);
}
