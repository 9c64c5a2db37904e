//! A layer's name, and the observer that is told what the layer does.

use std::sync::Arc;

use tidegate::observer::{LayerDid, LayerEvent, Observer, RefusalCause};
use tidegate::store::StoreError;
use tidegate::{Outcome, Retry};

use crate::refused::Refused;

/// A layer's name and its observer. Without an observer, an event costs one branch.
#[derive(Clone, Debug)]
pub struct Name {
    name: Arc<str>,
    observer: Option<Arc<dyn Observer>>,
}

impl Name {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), observer: None }
    }

    pub(crate) fn renamed(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    pub(crate) fn observed(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Makes a refusal by this layer, and tells the observer.
    pub(crate) fn refuse(&self, cause: RefusalCause, retry: Retry) -> Refused {
        self.notify(LayerDid::Refused { cause, retry });
        self.refusal(cause, retry)
    }

    /// Makes a refusal by this layer, and tells nobody.
    pub(crate) fn refusal(&self, cause: RefusalCause, retry: Retry) -> Refused {
        Refused::by(cause, Arc::clone(&self.name), retry)
    }

    pub(crate) fn notify(&self, did: LayerDid) {
        if let Some(observer) = &self.observer {
            observer.on_layer(&LayerEvent::new(&self.name, did));
        }
    }

    /// Tells the observer that a store failed to settle a request.
    pub(crate) fn not_settled(&self, error: &StoreError) {
        if let Some(observer) = &self.observer {
            observer.on_layer(&LayerEvent::new(&self.name, LayerDid::NotSettled).with_error(error));
        }
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        self.notify(LayerDid::Ended { outcome });
    }
}
