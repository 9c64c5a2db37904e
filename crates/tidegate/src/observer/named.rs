//! Events with the name of the part that they come from.

use std::sync::Arc;

use tidegate_core::breaker::Change;

use super::{
    CoalesceDid, Event, KeyDigest, LayerEvent, LimitMoved, Observer, PoolDid, RetryDecided, SwitchTurned,
};

/// An observer that hands each event on with a name: made by [`Observer::named`].
///
/// Costs a call through a pointer for each event. Parts without an observer have no name either, so it costs them
/// nothing.
#[derive(Clone, Debug)]
pub struct Named<O> {
    name: Arc<str>,
    observer: O,
}

impl<O> Named<O> {
    pub(super) fn new(name: &str, observer: O) -> Self {
        Self { name: name.into(), observer }
    }
}

/// One event of any kind, as passed to [`Observer::on_named`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AnyEvent<'a> {
    /// [`Observer::on_decision`].
    Decision(&'a Event),
    /// [`Observer::on_cancel`].
    Cancel(&'a Event),
    /// [`Observer::on_settle`], with the units really spent.
    Settle(&'a Event, u64),
    /// [`Observer::on_change`].
    Change(&'a Change),
    /// [`Observer::on_key_change`].
    KeyChange(&'a Change, KeyDigest),
    /// [`Observer::on_limit`].
    Limit(&'a LimitMoved),
    /// [`Observer::on_layer`].
    Layer(&'a LayerEvent<'a>),
    /// [`Observer::on_switch`].
    Switch(&'a SwitchTurned<'a>),
    /// [`Observer::on_pool`].
    Pool(PoolDid),
    /// [`Observer::on_coalesce`].
    Coalesce(CoalesceDid),
    /// [`Observer::on_retry`].
    Retry(&'a RetryDecided),
}

impl AnyEvent<'_> {
    /// Passes the event to the method of its kind.
    pub fn tell(self, observer: &(impl Observer + ?Sized)) {
        match self {
            Self::Decision(event) => observer.on_decision(event),
            Self::Cancel(event) => observer.on_cancel(event),
            Self::Settle(event, used) => observer.on_settle(event, used),
            Self::Change(change) => observer.on_change(change),
            Self::KeyChange(change, key) => observer.on_key_change(change, key),
            Self::Limit(moved) => observer.on_limit(moved),
            Self::Layer(event) => observer.on_layer(event),
            Self::Switch(turned) => observer.on_switch(turned),
            Self::Pool(did) => observer.on_pool(did),
            Self::Coalesce(did) => observer.on_coalesce(did),
            Self::Retry(decided) => observer.on_retry(decided),
        }
    }
}

impl<O: Observer> Observer for Named<O> {
    /// The outer of two names wins.
    fn on_named(&self, name: &str, event: AnyEvent<'_>) {
        self.observer.on_named(name, event);
    }

    fn on_decision(&self, event: &Event) {
        self.on_named(&self.name, AnyEvent::Decision(event));
    }

    fn on_cancel(&self, event: &Event) {
        self.on_named(&self.name, AnyEvent::Cancel(event));
    }

    fn on_settle(&self, event: &Event, used: u64) {
        self.on_named(&self.name, AnyEvent::Settle(event, used));
    }

    fn on_change(&self, change: &Change) {
        self.on_named(&self.name, AnyEvent::Change(change));
    }

    fn on_key_change(&self, change: &Change, key: KeyDigest) {
        self.on_named(&self.name, AnyEvent::KeyChange(change, key));
    }

    fn on_limit(&self, moved: &LimitMoved) {
        self.on_named(&self.name, AnyEvent::Limit(moved));
    }

    fn on_layer(&self, event: &LayerEvent<'_>) {
        self.on_named(&self.name, AnyEvent::Layer(event));
    }

    fn on_switch(&self, turned: &SwitchTurned<'_>) {
        self.on_named(&self.name, AnyEvent::Switch(turned));
    }

    fn on_pool(&self, did: PoolDid) {
        self.on_named(&self.name, AnyEvent::Pool(did));
    }

    fn on_coalesce(&self, did: CoalesceDid) {
        self.on_named(&self.name, AnyEvent::Coalesce(did));
    }

    fn on_retry(&self, decided: &RetryDecided) {
        self.on_named(&self.name, AnyEvent::Retry(decided));
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Mutex;

    use tidegate_core::breaker::CircuitBreaker;
    use tidegate_core::{Outcome, Quota};

    use super::*;
    use crate::{Breaker, Bulkhead, KeyedBreaker, Limiter, ManualClock};

    #[derive(Debug, Default)]
    struct Names(Mutex<Vec<(String, &'static str)>>);

    impl Observer for Names {
        fn on_named(&self, name: &str, event: AnyEvent<'_>) {
            let kind = match event {
                AnyEvent::Decision(_) => "decision",
                AnyEvent::Change(_) => "change",
                AnyEvent::KeyChange(..) => "key-change",
                AnyEvent::Limit(_) => "limit",
                _ => "other",
            };
            self.0.lock().unwrap().push((name.to_owned(), kind));
        }
    }

    #[test]
    fn parts_that_share_an_observer_are_told_apart() {
        let names = Arc::new(Names::default());
        let as_ = |name| Arc::clone(&names).named(name);
        let limiter = Limiter::new(Quota::per_second(1)).unwrap().with_observer(as_("all"));
        let reports = Bulkhead::new(2).unwrap().with_observer(as_("reports"));
        let fragile = || CircuitBreaker::builder().consecutive(1);
        let stock = Breaker::new(fragile()).unwrap().with_observer(as_("stock"));
        let hosts = KeyedBreaker::new(fragile(), 10).unwrap().with_observer(as_("hosts").named("outer"));
        assert!(limiter.with_clock(ManualClock::default()).allow().is_allowed());
        reports.change(3).unwrap();
        stock.try_enter().unwrap().leave(Outcome::Failure);
        hosts.try_enter("a").unwrap().leave(Outcome::Failure);
        let told = names.0.lock().unwrap().clone();
        let told: Vec<_> = told.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        let expected =
            [("all", "decision"), ("reports", "limit"), ("stock", "change"), ("outer", "key-change")];
        assert_eq!(told, expected);
    }

    #[derive(Debug, Default)]
    struct Unnamed(Mutex<u32>);

    impl Observer for Unnamed {
        fn on_limit(&self, _: &LimitMoved) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn an_observer_that_asks_for_no_name_is_told_as_before() {
        let moves = Arc::new(Unnamed::default());
        let reports = Bulkhead::new(2).unwrap().with_observer(Arc::clone(&moves).named("reports"));
        reports.change(3).unwrap();
        assert_eq!(*moves.0.lock().unwrap(), 1);
    }
}
