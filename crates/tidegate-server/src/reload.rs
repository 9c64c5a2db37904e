//! Reads the configuration again and puts it in force, or keeps the old one and says why.
//!
//! One reload at a time, whoever asks: a signal, the file, a request. Reading may block, so it runs beside the requests.
//! A refused configuration changes nothing but a gauge and what `readyz?verbose` tells.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as Turn;

use crate::engine::Engine;
use crate::settings::{Refused, Source};
use crate::systemd;

/// Reloads from one source.
#[derive(Debug)]
pub(crate) struct Reload {
    source: Source,
    turn: Turn<()>,
    refused: Mutex<Option<Arc<Refused>>>,
}

/// A configuration that was put in force.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) warnings: Vec<String>,
}

impl Reload {
    pub(crate) fn new(source: Source) -> Self {
        Self { source, turn: Turn::new(()), refused: Mutex::new(None) }
    }

    /// Reads and puts in force.
    ///
    /// # Errors
    /// [`Refused`] with every mistake; the old configuration stays.
    ///
    /// # Cancel safety
    /// A call that is dropped while reading puts nothing in force.
    pub(crate) async fn now(&self, engine: &Engine) -> Result<Loaded, Refused> {
        let _turn = self.turn.lock().await;
        systemd::reloading();
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || source.load()).await;
        let read =
            read.unwrap_or_else(|error| Err(format!("reading the configuration failed: {error}").into()));
        let done = match read {
            Ok(mut settings) => {
                let warnings = std::mem::take(&mut settings.warnings);
                for warning in &warnings {
                    tracing::warn!("{warning}");
                }
                engine.replace(&settings);
                engine.metrics.reloaded(true);
                let live = engine.live();
                tracing::info!(config = live.number, policies = live.set.len(), "configuration reloaded");
                *self.refused.lock() = None;
                Ok(Loaded { warnings })
            }
            Err(refused) => {
                for diagnostic in &refused.diagnostics {
                    tracing::error!("{diagnostic}");
                }
                tracing::error!("the configuration was refused; the old one stays in force");
                engine.metrics.reloaded(false);
                *self.refused.lock() = Some(Arc::new(refused.clone()));
                Err(refused)
            }
        };
        systemd::ready();
        done
    }

    /// Returns the last refusal, unless a good configuration followed it.
    pub(crate) fn last(&self) -> Option<Arc<Refused>> {
        self.refused.lock().clone()
    }
}
