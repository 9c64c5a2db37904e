//! Text formats of proxies that are known by name: a table of what a user would otherwise write as flags.
//!
//! A row has the format in the notation of `--log-format`, and the columns as of `--column`. Its lines are read by the
//! same reader as a format given by hand.

use super::detect::Format;
use super::log_format::{Cutter, LogFormat};

/// A format known by name.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) format: Format,
    text: &'static str,
    /// The meanings of its variables, beside those that nginx's have: (attribute, variable).
    columns: &'static [(&'static str, &'static str)],
}

/// The formats, the longer before those that they begin like.
///
/// Sources: Istio, "Envoy access logs", default format; Envoy, "Access logging", default format string; HAProxy
/// configuration manual, "HTTP log format".
pub(super) static SHAPES: [Shape; 3] = [
    Shape {
        format: Format::Istio,
        text: "[$time_iso8601] \"$request\" $status $response_flags $response_code_details $connection_termination_details \
               \"$upstream_transport_failure_reason\" $bytes_received $bytes_sent $duration_ms $service_ms \"$http_x_forwarded_for\" \
               \"$http_user_agent\" \"$request_id\" \"$host\" \"$upstream_host\" $upstream_cluster $upstream_local_address \
               $downstream_local_address $downstream_remote_address $requested_server_name $route_name",
        columns: &[("client.ip", "downstream_remote_address"), ("request.duration", "duration_ms")],
    },
    Shape {
        format: Format::Envoy,
        text: "[$time_iso8601] \"$request\" $status $response_flags $bytes_received $bytes_sent $duration_ms $service_ms \
               \"$http_x_forwarded_for\" \"$http_user_agent\" \"$request_id\" \"$host\" \"$upstream_host\"$more",
        columns: &[("client.ip", "http_x_forwarded_for"), ("request.duration", "duration_ms")],
    },
    Shape {
        format: Format::HaProxy,
        text: "$remote_addr:$remote_port [$time_local] $frontend $backend/$server $request_ms/$queue_ms/$connect_ms/$response_ms/$active_ms \
               $status $bytes_sent $request_cookie $response_cookie $termination_state $connections $queues \"$request\"$more",
        columns: &[("request.duration", "active_ms")],
    },
];

impl Shape {
    /// Returns the shape of a format; `None` for formats with a reader of their own.
    pub(super) fn of(format: &Format) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.format == *format)
    }

    /// Makes a reader of lines. The columns that the user named win over those of the shape.
    pub(super) fn cutter(&self, users: &[(String, String)]) -> Cutter {
        let own =
            self.columns.iter().filter(|(attribute, _)| users.iter().all(|(have, _)| have != attribute));
        let own = own.map(|(attribute, column)| ((*attribute).to_owned(), (*column).to_owned()));
        let columns: Vec<_> = users.iter().cloned().chain(own).collect();
        self.log_format().cutter(&columns).only_addresses()
    }

    fn log_format(&self) -> LogFormat {
        self.text.parse().expect("the texts of the table are valid, as their test shows")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_format_with_its_time_and_its_columns() {
        for shape in &SHAPES {
            let format = shape.log_format();
            assert!(format.tells_time(&[]), "{shape:?}");
            let text = format.to_string();
            for (_, variable) in shape.columns {
                assert!(text.contains(&format!("${{{variable}}}")), "{variable} in {text}");
            }
        }
    }
}
