//! Decides several requests of one call, each by itself.

use tidegate::Charged;
use tidegate::gate::Check;
use tidegate::policy::Among;

use super::{Conclusion, Engine, HeldCharges, Want, among};
use crate::active_config::ActiveConfig;
use crate::metrics::Transport;

impl Engine {
    /// Decides the requests of a batch like [`Engine::decide`], in one exchange with an engine. Returns each conclusion
    /// with its charges. Requests after the first `most_limits` limits are not decided and have no entry in the result.
    ///
    /// # Cancel safety
    /// As [`Engine::decide`].
    pub(crate) async fn decide_each(
        &self,
        live: &ActiveConfig,
        asked: &[(Check<'_, '_>, Option<&[usize]>)],
        most_limits: usize,
    ) -> Vec<(Conclusion, HeldCharges)> {
        let among: Vec<Option<Among>> =
            asked.iter().map(|(_, only)| only.map(|only| among(live, only))).collect();
        let each = asked.iter().zip(&among);
        let checks: Vec<Check<'_, '_>> =
            each.map(|((check, _), among)| check.among(among.as_ref())).collect();
        let mut charged: Vec<Charged> = Vec::new();
        let deciding = self.base.gate.charge_each_async(&checks, &mut charged, most_limits);
        let decided = self.metrics.time_each(deciding).await;
        if live.breaks {
            for charged in &charged {
                self.breakers.note_entered(charged).await;
            }
        }
        let each = checks.iter().zip(decided).zip(charged);
        each.zip(asked)
            .map(|(((check, decided), charged), (_, only))| {
                let conclusion = self.conclude(live, check.request, decided, Want::Take);
                self.count_request(live, Transport::http, check.request, *only, &conclusion);
                (conclusion, HeldCharges { charged })
            })
            .collect()
    }
}
