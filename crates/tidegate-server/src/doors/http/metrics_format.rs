//! The format of `/metrics`: OpenMetrics, or the older text format of Prometheus where the caller prefers that.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::{ACCEPT, HeaderValue};

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    OpenMetrics,
    Text,
}

impl MetricsFormat {
    /// Returns the format that a caller prefers: OpenMetrics unless its `accept` ranks `text/plain` higher.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let (mut open, mut text, mut any) = (None, None, None);
        let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in ranges.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            let weight = weight.and_then(|weight| weight.parse::<f32>().ok()).unwrap_or(1.0);
            let known: &mut Option<f32> = match kind.as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" | "text/*" => &mut text,
                "*/*" => &mut any,
                _ => continue,
            };
            *known = Some(known.map_or(weight, |before| before.max(weight)));
        }
        let open = open.or(any).unwrap_or(0.0);
        if text.is_some_and(|text| text > open) { Self::Text } else { Self::OpenMetrics }
    }

    pub(super) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    /// Writes a page of OpenMetrics in this format.
    pub(super) fn written(self, page: String) -> String {
        if self == Self::OpenMetrics { page } else { as_text(&page) }
    }
}

/// Rewrites the heads of families: in the text format, a counter is called as its samples are, an info is a gauge, and
/// there are no units and no end.
fn as_text(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut help = "";
    for line in page.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        if let Some(text) = comment.strip_prefix("HELP ") {
            help = text;
        } else if let Some((name, kind)) = comment.strip_prefix("TYPE ").and_then(|of| of.split_once(' ')) {
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            // Writing to a string does not fail.
            if let Some((_, text)) = help.split_once(' ') {
                let _ = writeln!(out, "# HELP {name}{ending} {text}");
            }
            let _ = writeln!(out, "# TYPE {name}{ending} {kind}");
            help = "";
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_chooses() {
        let chosen = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            MetricsFormat::of(&headers)
        };
        assert_eq!(MetricsFormat::of(&HeaderMap::new()), MetricsFormat::OpenMetrics);
        for accept in [
            "*/*",
            "text/html",
            // Prometheus 2 and 3.
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "text/plain;q=x, application/openmetrics-text",
        ] {
            assert_eq!(chosen(accept), MetricsFormat::OpenMetrics, "{accept}");
        }
        for accept in [
            "text/plain",
            "text/plain;version=0.0.4;q=0.6,*/*;q=0.5",
            "text/plain, application/openmetrics-text;q=0.9",
            "TEXT/*",
        ] {
            assert_eq!(chosen(accept), MetricsFormat::Text, "{accept}");
        }
    }

    #[test]
    fn heads_are_those_of_the_text_format() {
        let page = "# HELP a Decisions made.\n# TYPE a counter\na_total{x=\"a # b\"} 5\n# HELP b Times.\n\
            # TYPE b histogram\n# UNIT b seconds\nb_sum 1.0\n# TYPE c info\nc_info{v=\"1\"} 1\n# HELP d d.\n\
            # TYPE d unknown\nd 1\n# EOF\n";
        let text = "# HELP a_total Decisions made.\n# TYPE a_total counter\na_total{x=\"a # b\"} 5\n# HELP b Times.\n\
            # TYPE b histogram\nb_sum 1.0\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n# HELP d d.\n# TYPE d untyped\nd 1\n";
        assert_eq!(as_text(page), text);
    }
}
