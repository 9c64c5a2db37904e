//! How times are written in the pictures and on the page of a replay.

use std::time::Duration;

use crate::chart::TimeAxis;
use crate::replay::Replay;

/// Returns how times are written: as dates if the requests came from a log.
pub(super) fn axis(replay: &Replay) -> TimeAxis {
    if replay.is_recorded() { TimeAxis::Utc } else { TimeAxis::Elapsed }
}

/// Writes a window in words: `second`, `10 minutes`.
pub(super) fn window_words(window: Duration) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let seconds = window.as_secs();
    match units
        .into_iter()
        .find(|(length, _)| seconds > 0 && seconds.is_multiple_of(*length) && window.subsec_nanos() == 0)
    {
        Some((length, unit)) if seconds == length => unit.to_owned(),
        Some((length, unit)) => format!("{} {unit}s", seconds / length),
        None => format!("{} ms", window.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_in_words() {
        let words = [1, 60, 600, 90, 86_400].map(|seconds| window_words(Duration::from_secs(seconds)));
        assert_eq!(words, ["second", "minute", "10 minutes", "90 seconds", "day"]);
        assert_eq!(window_words(Duration::from_millis(200)), "200 ms");
    }
}
