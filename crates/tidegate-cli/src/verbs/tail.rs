//! Prints the refusals of a running server as they happen.

use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate_sim::grouped;

use crate::args::Tail;
use crate::exit::{Exit, Mistake};
use crate::online::{self, Event, FAILURES, ServerUrl, encoded};
use crate::outcome::{span, time};
use crate::output::Printer;
use crate::overview::clock;
use crate::styled::{Look, Styled, text};

/// The time until a stream that has ended is asked for again, as the server says itself.
const PAUSE: Duration = Duration::from_secs(2);

pub(crate) fn run(tail: &Tail, printer: &Printer) -> Result<Exit> {
    if !printer.has_lines() {
        return Err(Mistake("tail prints a document a line; write -o jsonl or -o table".to_owned()).into());
    }
    let server = ServerUrl::of(&tail.server)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A listener made anew for each event would miss a Ctrl-C pressed in between.
        let mut pressed = pin!(tokio::signal::ctrl_c());
        tokio::select! {
            ended = follow(tail, &server, printer) => ended.map(|()| Exit::Done),
            _ = &mut pressed => Ok(Exit::Done),
        }
    })
}

/// Prints until it fails. A server that is started again is found again.
async fn follow(tail: &Tail, server: &ServerUrl, printer: &Printer) -> Result<()> {
    let (mut failed, mut has_begun) = (0, false);
    loop {
        let mut stream = match online::listen(server, "/v1/events").await {
            Ok(stream) => stream,
            Err(error) => {
                failed += 1;
                if failed == FAILURES || !has_begun || online::is_final(&error) {
                    return Err(error);
                }
                printer.error(&format!("{error:#}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if has_begun {
            printer.remark("listening again; what happened in between is not told");
        }
        (failed, has_begun) = (0, true);
        loop {
            match stream.next().await {
                Ok(Some(event)) => told(&event, tail, server, printer).await?,
                Ok(None) => break,
                Err(error) => {
                    printer.error(&format!("{error:#}"));
                    break;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Prints an event, if it is one of those wanted.
async fn told(event: &Event, tail: &Tail, server: &ServerUrl, printer: &Printer) -> Result<()> {
    let Some(mut value) = wanted(event, tail.policy.as_deref()) else { return Ok(()) };
    if tail.reveal
        && let Some(key) = name_of(&value, server, printer).await?
    {
        value["key"] = key.into();
    }
    printer.line(&value, |_| Ok(line(&value, clock_now().as_str())))
}

/// Returns the time of day, UTC.
fn clock_now() -> String {
    clock(&time(SystemClock::new().now())).to_owned()
}

/// Returns the data of an event with its kind; `None` if it is of another kind, or a refusal by another policy.
///
/// A refusal also counts those of all policies that were not told before it.
fn wanted(event: &Event, policy: Option<&str>) -> Option<Value> {
    let mut value: Value = serde_json::from_str(&event.data).ok().filter(Value::is_object)?;
    let is_wanted = match event.name.as_str() {
        "denied" => policy.is_none_or(|policy| value["policy"] == policy) || untold(&value) > 0,
        "missed" => true,
        _ => false,
    };
    if event.name == "denied" && policy.is_some_and(|policy| value["policy"] != policy) {
        // Only the number of those left out is of interest.
        value = json!({ "untold": untold(&value) });
    }
    value["event"] = event.name.as_str().into();
    is_wanted.then_some(value)
}

fn untold(value: &Value) -> u64 {
    value["untold"].as_u64().unwrap_or_default()
}

/// Asks for the name of the key that was refused; `None` if the server does not remember it.
///
/// # Errors
/// A token that may not see names.
async fn name_of(value: &Value, server: &ServerUrl, printer: &Printer) -> Result<Option<String>> {
    let Some(id) = value["decision_id"].as_str() else { return Ok(None) };
    match online::get(server, &format!("/v1/explain?id={}&reveal=true", encoded(id))).await {
        Ok(record) => Ok(record["key"].as_str().map(str::to_owned)),
        Err(error) if online::hides_names(&error) => Err(error),
        Err(error) => {
            printer.remark(&format!("{error:#}"));
            Ok(None)
        }
    }
}

fn line(value: &Value, now: &str) -> Styled {
    let mut line = Styled::default();
    let more = match untold(value) {
        0 => String::new(),
        untold => format!("and {} more of all policies, untold", grouped(untold)),
    };
    if value["event"] == "missed" {
        let missed = value["events"].as_u64().unwrap_or_default();
        line.push(format!("{now}   "));
        line.push_as(Look::Doubtful, "missed");
        line.push(format!(" {} events: this reader was too slow", grouped(missed)));
        return line;
    }
    if value["policy"].is_null() && !more.is_empty() {
        return format!("{now}   {more}").into();
    }
    line.push(format!("{now}   "));
    line.push_as(Look::Bad, "denied");
    let by = value["refused_by"].as_str().map(|by| format!(" by {by}")).unwrap_or_default();
    let retry = match (value["retry_after_ms"].as_u64(), value["retry"].as_str()) {
        // Rounded up: whoever comes earlier is refused again.
        (Some(millis), _) => {
            let millis = if millis < 1000 { millis } else { millis.div_ceil(1000).saturating_mul(1000) };
            format!("again in {}", span(Duration::from_millis(millis)))
        }
        (None, Some(retry)) => format!("again: {retry}"),
        (None, None) => String::new(),
    };
    let named = [text(&value["policy"]), text(&value["key"])];
    let words = named.iter().map(|word| tidegate::visible::name(word).into_owned());
    let rest = [retry, value["decision_id"].as_str().unwrap_or_default().to_owned(), more];
    let words: Vec<String> = words.chain(rest).filter(|word| !word.is_empty()).collect();
    line.push(format!("{by}   {}", tidegate::visible::line(&words.join("   "))));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &Value) -> Event {
        Event { name: name.to_owned(), data: data.to_string() }
    }

    fn shown(name: &str, data: &Value, policy: Option<&str>) -> Option<String> {
        let value = wanted(&event(name, data), policy)?;
        Some(line(&value, "02:51:07").to_string())
    }

    #[test]
    fn refusals_are_a_line_each_and_those_left_out_are_counted() {
        let denied = json!({
            "policy": "per-ip", "key": "#8f3a\u{1b}[2J", "retry": "after", "retry_after_ms": 1200, "untold": 0,
            "refused_by": "limit", "decision_id": "01J9ZQ4M8X0000000000000000",
        });
        let all = "02:51:07   denied by limit   per-ip   #8f3a\\u{1b}[2J   again in 2 s   01J9ZQ4M8X0000000000000000";
        assert_eq!(shown("denied", &denied, None).as_deref(), Some(all));
        assert_eq!(shown("denied", &denied, Some("per-ip")).as_deref(), Some(all));
        assert_eq!(shown("denied", &denied, Some("other")), None);
        let mut many = denied;
        many["untold"] = 1950.into();
        let left_out = "02:51:07   and 1,950 more of all policies, untold";
        assert_eq!(shown("denied", &many, Some("other")).as_deref(), Some(left_out));
        let missed = shown("missed", &json!({ "events": 12 }), Some("other"));
        assert_eq!(missed.as_deref(), Some("02:51:07   missed 12 events: this reader was too slow"));
        assert_eq!(shown("change", &json!({}), None), None);
        assert_eq!(wanted(&Event { name: "denied".to_owned(), data: "[1".to_owned() }, None), None);
    }
}
