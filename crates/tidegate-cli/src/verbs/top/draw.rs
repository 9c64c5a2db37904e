//! Draws the live view: a pure function of what it knows and of an area.
//!
//! All that comes from the server is made safe by [`tidegate::visible`]. What a colour says is also said by a word or a
//! shape.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use serde_json::Value;
use tidegate::visible;
use tidegate_sim::grouped;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::state::{Busy, Live, Order, Overlay, STALE, View};
use crate::overview::{Level, Point, PolicyRow, brief, clock, or_dash, percent, rate, rows};
use crate::styled::{Look, text};
use crate::verbs::changes::{effect, effect_in_words, moment};

/// From this height on there are lines for what passed and what was refused.
const TALL: u16 = 20;
/// From this width on rows have a line each, which is so wide.
const WIDE: u16 = 110;
const SPARK: usize = 24;
/// From this height on a list has the marked row in full below it.
const ROOMY: usize = 12;
/// The most lines of that.
const IN_FULL: usize = 4;

/// Draws all of it. Whatever does not fit is left out.
pub(super) fn draw(live: &Live, area: Rect, out: &mut Buffer) {
    let width = usize::from(area.width);
    let height = usize::from(area.height);
    let mut lines = head(live, width);
    let body = match &live.overlay {
        Some(overlay) => over(live, overlay, width),
        None => {
            if live.view == View::Now && area.height >= TALL {
                lines.extend(sparklines(live, width));
            }
            list(live, area.width, height.saturating_sub(lines.len() + 1))
        }
    };
    lines.extend(body);
    // The last line is there however long the list is.
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(foot(live, width));
    for (line, row) in lines.iter().zip(area.rows()) {
        out.set_line(row.x, row.y, line, row.width);
    }
}

fn style(live: &Live, look: Look) -> Style {
    let color = match look {
        Look::Heading => None,
        Look::Bad => Some(Color::Red),
        Look::Doubtful => Some(Color::Yellow),
        Look::Good => Some(Color::Green),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    color.filter(|_| live.has_colors).map_or(bold, |color| bold.fg(color))
}

fn marked() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// Makes a text of one line safe, and as wide as that: cut, or filled up with blanks.
fn cell(text: &str, width: usize) -> String {
    let safe = visible::name(text);
    if safe.width() <= width || width == 0 {
        return cut(&safe, width);
    }
    cut(&format!("{}…", beginning(&safe, width - 1)), width)
}

/// The same, aligned right; for numbers, which are short.
fn right(text: &str, width: usize) -> String {
    let free = width.saturating_sub(text.width());
    format!("{}{text}", " ".repeat(free))
}

/// The two lines of the judgement, the rates and the times below the names of the views.
fn head(live: &Live, width: usize) -> Vec<Line<'static>> {
    let seen = &live.overview;
    let mut views = Line::default();
    views.push_span(Span::styled("tidegate ", style(live, Look::Heading)));
    for (at, view) in View::ALL.into_iter().enumerate() {
        let name = format!("{} {}", at + 1, view.word());
        views.push_span(if view == live.view {
            Span::styled(format!("[{name}]"), marked())
        } else {
            Span::raw(format!(" {name} "))
        });
    }
    let state = state(live);
    let free = width.saturating_sub(views.width() + state.width());
    views.push_span(Span::raw(" ".repeat(free)));
    views.push_span(state);

    let (shape, look) = match seen.level {
        Level::Usual => ("●", Some(Look::Good)),
        Level::Unusual => ("▲", Some(Look::Doubtful)),
        Level::Unknown => ("?", None),
        Level::Trouble => ("■", Some(Look::Bad)),
    };
    let word = format!("{shape} {}  ", seen.level.word().to_uppercase());
    let mut said = wrapped(&visible::line(&seen.says), width.saturating_sub(word.width()), 2).into_iter();
    let indent = " ".repeat(word.width());
    let first = vec![
        Span::styled(word, look.map_or_else(Style::new, |look| style(live, look))),
        Span::raw(said.next().unwrap_or_default()),
    ];
    let second = format!("{indent}{}", said.next().unwrap_or_default());

    let rates = seen.rates;
    let share = seen.refused_share.map(|share| format!(" ({} %)", percent(share))).unwrap_or_default();
    let mut counts = Line::from(format!(
        "requests/s {}   passed {}   delayed {}   ",
        rate(rates.all()),
        rate(rates.passed()),
        rate(rates.delayed)
    ));
    let denied = format!("refused {}{share}", rate(rates.denied));
    let is_bad = rates.denied > 0.0;
    counts.push_span(if is_bad { Span::styled(denied, style(live, Look::Bad)) } else { Span::raw(denied) });
    if rates.failed > 0.0 {
        let failed = format!("   failed {}", rate(rates.failed));
        counts.push_span(Span::styled(failed, style(live, Look::Bad)));
    }
    let (p50, p99) = (or_dash(seen.p50_ms, brief), or_dash(seen.p99_ms, brief));
    let mut deciding = format!("deciding   p50 {p50}   p99 {p99}");
    if let Some(in_flight) = seen.in_flight {
        deciding += &format!("   {} in flight", grouped(in_flight));
    }
    if seen.history_on_disk == Some(false) {
        deciding += "   history in memory";
    }
    if seen.dropped > 0 {
        deciding += &format!("   {} not counted", grouped(seen.dropped));
    }
    vec![views, Line::from(first), Line::from(second), counts, Line::from(deciding)]
}

/// The configuration and the store.
fn state(live: &Live) -> Span<'static> {
    let seen = &live.overview;
    if let Some(why) = &seen.store_away {
        return Span::styled(format!("■ store away: {}", cell(why, 24).trim_end()), style(live, Look::Bad));
    }
    let mut words = Vec::new();
    words.extend(seen.configuration.map(|number| format!("config #{number}")));
    if !seen.store.is_empty() {
        words.push(format!("store {} ok", cell(&seen.store, 10).trim_end()));
    }
    Span::raw(words.join(" · "))
}

/// Breaks a safe text between words, into lines of at most this width.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let body = text.trim_start();
    let indent = &text[..text.len() - body.len()];
    let mut lines: Vec<String> = Vec::new();
    for word in body.split(' ') {
        let has_room = lines.len() < most;
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(line) if !has_room => {
                *line = format!("{} …", cut(line, width.saturating_sub(2)).trim_end());
                break;
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

/// Draws the last points that fit, the newest on the right, each as high as its part of the highest.
fn spark(points: impl ExactSizeIterator<Item = f64>, width: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let skipped = points.len().saturating_sub(width);
    let points: Vec<f64> = points.skip(skipped).collect();
    let most = points.iter().copied().fold(0.0, f64::max);
    let height = |point: &f64| {
        let part = if most > 0.0 { (point / most).clamp(0.0, 1.0) } else { 0.0 };
        HEIGHTS[(part * 7.0).round() as usize]
    };
    points.iter().map(height).collect()
}

fn passed(line: &[Point]) -> impl ExactSizeIterator<Item = f64> {
    line.iter().map(|(passed, _)| *passed)
}

fn refused(line: &[Point]) -> impl ExactSizeIterator<Item = f64> {
    line.iter().map(|(_, refused)| *refused)
}

fn highest(points: impl Iterator<Item = f64>) -> String {
    rate(points.fold(0.0, f64::max))
}

fn sparklines(live: &Live, width: usize) -> Vec<Line<'static>> {
    let line = &live.overview.line;
    let room = width.saturating_sub(24);
    vec![
        Line::from(format!("passed   {} most {}/s", spark(passed(line), room), highest(passed(line)))),
        Line::from(format!("refused  {} most {}/s", spark(refused(line), room), highest(refused(line)))),
    ]
}

/// Which rows of a list are on the screen: so many, with the marked one among them.
fn page(selected: usize, height: usize) -> usize {
    selected.saturating_sub(height.saturating_sub(1))
}

/// The heading and the rows that fit, with the marked one in full below if there is room.
fn list(live: &Live, width: u16, height: usize) -> Vec<Line<'static>> {
    let marked = if height >= ROOMY { in_full(live) } else { None };
    let marked = marked.map_or_else(Vec::new, |(title, text)| {
        let body = wrapped(&visible::line(&text), usize::from(width), IN_FULL);
        [format!("── {} ", visible::name(&title))].into_iter().chain(body).map(Line::from).collect()
    });
    let room = height.saturating_sub(1 + marked.len());
    let first = page(live.selected, room);
    let (heading, none) = match live.view {
        View::Now => (policy_heading(live.order, width), "no policy saw a request"),
        View::Keys => (keys_heading(live), "no key was counted in this window"),
        View::Guards => (guards_heading(), "there is no breaker that has opened, and no switch"),
        View::Changes => (changes_heading(), "nothing has changed since the server began to remember"),
    };
    let rows: Vec<Row> = match live.view {
        View::Now => live.policies().into_iter().map(|row| policy(row, live.order, width)).collect(),
        View::Keys => live.keys().into_iter().map(|busy| counted(busy, width)).collect(),
        View::Guards => live.guards().into_iter().map(|guard| guarded(guard, width)).collect(),
        View::Changes => live.changed().into_iter().map(|change| changed(change, width)).collect(),
    };
    let mut lines = vec![Line::styled(heading, style(live, Look::Heading))];
    if rows.is_empty() {
        let why = if live.filter.is_empty() { none } else { "nothing fits the filter" };
        lines.push(Line::from(format!("  {why}")));
    }
    for (at, row) in rows.into_iter().enumerate().skip(first).take(room) {
        lines.push(row.line(live, at == live.selected));
    }
    if live.view == View::Now && lines.len() <= room {
        lines.extend(left_out(live).map(Line::from));
    }
    lines.extend(marked);
    lines
}

/// What is marked, and all that is known of it: a column has room for its beginning.
fn in_full(live: &Live) -> Option<(String, String)> {
    match live.view {
        View::Now => {
            let policies = live.policies();
            let row = policies.get(live.selected)?;
            let refused = row.most_refused.as_ref().map(|key| format!("refused most: {key}"));
            let hottest = row.hottest.as_ref();
            let hottest =
                hottest.map(|hottest| format!("hottest: {}, {}/s", hottest.key, rate(hottest.per_second)));
            let known: Vec<String> = refused.into_iter().chain(hottest).collect();
            (!known.is_empty()).then(|| (row.name.clone(), known.join("; ")))
        }
        View::Keys => live.keys().get(live.selected).map(|busy| (busy.policy.clone(), busy.key.clone())),
        View::Guards => live.guards().get(live.selected).map(|guard| guard_in_full(guard)),
        View::Changes => live.changed().get(live.selected).map(|change| {
            let effect = effect_in_words(change, &live.overview.at);
            let reason = change["reason"].as_str().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!("; reason: {reason}")).unwrap_or_default();
            (moment(change), format!("{}{reason}; {effect}", text(&change["text"])))
        }),
    }
}

fn guard_in_full(guard: &Value) -> (String, String) {
    let (name, key, why) = guard_words(guard);
    let mut words = vec![key, why];
    if let Some(opened) = guard["opened"].as_u64() {
        let times = if opened == 1 { "time" } else { "times" };
        words.push(format!("opened {} {times} since the start", grouped(opened)));
    }
    if let Some(until) = guard["until"].as_str() {
        words.push(format!("until {}", clock(until)));
    }
    words.retain(|word| word != "-");
    (name, words.join("; "))
}

/// The policies that the server does not list.
fn left_out(live: &Live) -> Option<String> {
    let (quiet, more) = (live.overview.quiet, live.overview.more);
    match (quiet, more) {
        (0, 0) => None,
        (quiet, 0) => Some(format!("  {} more policies saw no request", grouped(quiet))),
        (0, more) => Some(format!("  {} more policies saw requests", grouped(more))),
        (quiet, more) => {
            Some(format!("  {} more policies saw requests, {} saw none", grouped(more), grouped(quiet)))
        }
    }
}

fn keys_heading(live: &Live) -> String {
    let count = match live.order {
        Order::Denied => "REFUSED",
        Order::Near => "NEAR",
        Order::Rate => "UNITS",
    };
    let numbers = [right(count, 10), right("/s", 9), right("ERROR", 9)].concat();
    format!("{}{numbers}  KEY", cell("  POLICY", 20))
}

fn counted(busy: &Busy, width: u16) -> Row {
    let error = if busy.error > 0 { format!("≤ {}", grouped(busy.error)) } else { String::new() };
    let numbers =
        [right(&grouped(busy.count), 10), right(&rate(busy.per_second), 9), right(&error, 9)].concat();
    let left = usize::from(width).saturating_sub(50);
    Row::plain(format!("{}{numbers}  {}", cell(&busy.policy, 18), cell(&busy.key, left)))
}

fn guards_heading() -> String {
    [cell("  GUARD", 22), cell("STATE", 16), cell("SINCE", 11), "KEY, WHY".to_owned()].concat()
}

fn changes_heading() -> String {
    let columns = [("  AT", 23), ("WHAT", 10), ("WHO", 12), ("REFUSED", 15), ("CHANGE", 6)];
    columns.map(|(name, width)| cell(name, width)).concat()
}

/// A row of a list: parts, some of which stand out.
struct Row(Vec<(String, Option<Look>)>);

impl Row {
    fn plain(text: String) -> Self {
        Self(vec![(text, None)])
    }

    /// The marked row also has a sign before it.
    fn line(self, live: &Live, is_marked: bool) -> Line<'static> {
        let sign = if is_marked { "> " } else { "  " };
        let mut line = Line::from(sign);
        for (text, look) in self.0 {
            line.push_span(Span::styled(text, look.map_or_else(Style::new, |look| style(live, look))));
        }
        if is_marked { line.style(marked()) } else { line }
    }
}

/// The columns of a policy, but the name and the last. The last of these is only for the hottest key.
const COLUMNS: [(&str, usize); 6] =
    [("PASSED/s", 9), ("REFUSED/s", 11), ("%", 6), ("USUAL %", 10), ("KEYS", 5), ("OF RATE", 8)];

/// How many of the columns there are: by refusals, the key is the one that is refused most.
fn columns(order: Order) -> usize {
    COLUMNS.len() - usize::from(order == Order::Denied)
}

fn policy_heading(order: Order, width: u16) -> String {
    let columns: String =
        COLUMNS.iter().take(columns(order)).map(|(name, width)| right(name, *width)).collect();
    let line = if width >= WIDE { cell("  REFUSED IN THE WINDOW", SPARK + 2) } else { String::new() };
    let key = if order == Order::Denied { "REFUSED MOST" } else { "HOTTEST" };
    format!("{}{columns}{line}  {key}", cell("  POLICY", 15))
}

fn policy(row: &PolicyRow, order: Order, width: u16) -> Row {
    let looks = row.is_unusual.then_some(Look::Doubtful);
    let denied = match (row.denied > 0.0, row.would_deny > 0.0) {
        // Would be refused, as in the tables of a replay.
        (false, true) => format!("({})", rate(row.would_deny)),
        _ => rate(row.denied),
    };
    let denied = if row.is_unusual { format!("▲ {denied}") } else { denied };
    let usual =
        row.usual.map_or_else(|| "-".to_owned(), |(low, high)| format!("{}–{}", percent(low), percent(high)));
    let hottest = row.hottest.as_ref();
    let of_rate = hottest.and_then(|hottest| hottest.of_rate).map(|part| format!("{:.0} %", 100.0 * part));
    let cells = [
        (rate(row.passed), None),
        (denied, looks.or((row.denied > 0.0).then_some(Look::Bad))),
        (or_dash(row.share, percent), None),
        (usual, None),
        (grouped(row.keys_refused), None),
        (of_rate.unwrap_or_else(|| "-".to_owned()), None),
    ];
    let mut parts = vec![(cell(&row.name, 13), None)];
    let sized = cells.into_iter().zip(COLUMNS).take(columns(order));
    let mut left = usize::from(width).saturating_sub(15 + 2);
    for ((text, look), (_, width)) in sized {
        parts.push((right(&text, width), look));
        left = left.saturating_sub(width);
    }
    if width >= WIDE {
        let line = spark(refused(&row.line), SPARK);
        parts.push((format!("  {}", cell(&line, SPARK)), None));
        left = left.saturating_sub(SPARK + 2);
    }
    let key = match order {
        Order::Denied => row.most_refused.as_ref(),
        Order::Near | Order::Rate => hottest.map(|hottest| &hottest.key),
    };
    parts.push((format!("  {}", cell(key.map_or("-", String::as_str), left)), None));
    Row(parts)
}

/// A breaker, or a switch.
fn guarded(guard: &Value, width: u16) -> Row {
    let (name, key, why) = guard_words(guard);
    let word = text(&guard["state"]);
    let (shape, look) = match word.as_str() {
        "closed" | "on" => ("●", None),
        "open" | "forced-open" | "off" => ("■", Some(Look::Bad)),
        _ => ("▲", Some(Look::Doubtful)),
    };
    let since = text(&guard["since"]);
    let left = usize::from(width).saturating_sub(49);
    Row(vec![
        (cell(&name, 20), None),
        (cell(&format!("{shape} {word}"), 16), look),
        (format!("{}{}", cell(clock(&since), 11), cell(&format!("{key}, {why}"), left)), None),
    ])
}

/// The name of a breaker with its key, or of a switch with how long it stays so; and why it is so.
fn guard_words(guard: &Value) -> (String, String, String) {
    if guard["policy"].is_string() {
        let why = if guard["tripped_by"].is_string() { &guard["tripped_by"] } else { &guard["reason"] };
        return (text(&guard["policy"]), text(&guard["key"]), text(why));
    }
    let by = ["by_hand", "by_signal"].map(|by| &guard[by]).into_iter().find(|by| by.is_object());
    let by = by.unwrap_or(&Value::Null);
    let until = by["until"].as_str().map(|until| format!("until {}", clock(until)));
    (text(&guard["name"]), until.unwrap_or_else(|| "-".to_owned()), text(&by["reason"]))
}

fn changed(change: &Value, width: u16) -> Row {
    let left = usize::from(width).saturating_sub(60);
    let reason = change["reason"].as_str().filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    Row::plain(format!(
        "{}  {}{}{}{}",
        cell(&moment(change), 19),
        cell(&text(&change["what"]), 10),
        cell(&text(&change["who"]), 12),
        cell(&effect(&change["effect"]), 15),
        cell(&format!("{}{reason}", text(&change["text"])), left)
    ))
}

const HELP: [&str; 17] = [
    "1 2 3 4, Tab     Now, Keys, Guards, Changes",
    "d, n, r          order by refused, near the limit, rate",
    "w                window: 1m, 15m, 24h",
    "/                filter; Esc takes it back",
    "arrows, PgUp …   mark a row",
    "Enter            keys of the marked policy; details of the marked key",
    "y                why the last refusal of the marked policy or key",
    "R                names of keys, or digests; needs a token with the scope keys",
    "p                pause",
    "q, Esc, Ctrl-C   back, end",
    "",
    "▲ unusual: more refusals than at this hour of other days",
    "■ trouble: something does not work, or refuses all",
    "(0.2)  would be refused: mode shadow, or a shadow limit",
    "≤ 5    by how much a count may be too high",
    "OF RATE (n, r): what the hottest key was admitted, of the rate of its limit",
    "Blocks, switches, breakers: tidegate key block, switch off, breaker force-open",
];

/// The lines of what lies over the list.
fn over(live: &Live, overlay: &Overlay, width: usize) -> Vec<Line<'static>> {
    let title = match overlay {
        Overlay::Help => "Keys of this view".to_owned(),
        Overlay::Key { policy, key } => format!("{} under {}", visible::name(key), visible::name(policy)),
        Overlay::Why { id, of } => {
            format!("Why: the last refusal of {}, {}", visible::name(of), visible::name(id))
        }
    };
    let body: Vec<String> = match (overlay, &live.shown) {
        (Overlay::Help, _) => HELP.map(str::to_owned).into(),
        (Overlay::Key { key, .. }, None) if !key.contains('=') => {
            vec!["what a key has left is asked by its name: R shows names".to_owned()]
        }
        (_, None) => vec!["asked …".to_owned()],
        (_, Some(Err(why))) => vec![why.clone()],
        (Overlay::Key { .. }, Some(Ok(answer))) => standing(answer),
        (Overlay::Why { .. }, Some(Ok(answer))) => {
            rows(&answer["lines"]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
    };
    let mut lines = vec![Line::styled(format!("── {title} "), style(live, Look::Heading))];
    let body = body.iter().flat_map(|line| wrapped(&visible::line(line), width, 8));
    let body: Vec<String> = body.collect();
    // The last line stays on the screen.
    let scrolled = live.scrolled.min(body.len().saturating_sub(1));
    lines.extend(body.into_iter().skip(scrolled).map(Line::from));
    lines
}

/// What a key has left, and its counts.
fn standing(answer: &Value) -> Vec<String> {
    let count = |name: &str| answer[name].as_u64().map_or_else(|| "-".to_owned(), grouped);
    let limits = rows(&answer["standing"]).iter().map(|limit| {
        let number = |name: &str| limit[name].as_u64().map_or_else(|| "-".to_owned(), grouped);
        let full = match limit["reset_after_ms"].as_f64() {
            Some(millis) if millis > 0.0 => format!(", full in {}", brief(millis)),
            _ => String::new(),
        };
        format!("{}: {} of {} left{full}", text(&limit["limit"]), number("remaining"), number("most"))
    });
    let mut lines: Vec<String> = limits.collect();
    lines.push(format!("refused {}, near the limit {}", count("denied"), count("near")));
    if answer["block"].is_object() {
        let (until, reason) = (&answer["block"]["until"], &answer["block"]["reason"]);
        lines.push(format!("■ blocked until {}: {}", text(until), text(reason)));
    }
    lines
}

/// The end of the last line.
const KEYS: &str = "? help  q quit";

/// The last line: how old the numbers are, and what was chosen.
fn foot(live: &Live, width: usize) -> Line<'static> {
    if live.is_typing {
        return Line::from(format!("/{}▏", visible::line(&live.filter)));
    }
    let age = live.told_at.map(|at| live.now.saturating_sub(at));
    let (state, look) = match age {
        _ if live.is_paused => ("‖ PAUSED".to_owned(), Some(Look::Doubtful)),
        None => ("asked …".to_owned(), None),
        Some(age) if age >= STALE => (format!("■ STALE for {} s", age.as_secs()), Some(Look::Bad)),
        Some(_) => ("● live".to_owned(), None),
    };
    let told = live.error.as_ref().or(live.note.as_ref());
    let mut chosen = vec![format!("by {}", live.order.word()), live.window.word().to_owned()];
    chosen.push(if live.reveals { "names".to_owned() } else { "digests".to_owned() });
    chosen.extend(live.of.as_ref().map(|of| format!("of {}", visible::name(of))));
    if !live.filter.is_empty() {
        chosen.push(format!("filter {}", visible::line(&live.filter)));
    }
    let words = told.map_or_else(|| chosen.join(" · "), |told| visible::line(told).into_owned());
    let left = width.saturating_sub(state.width() + 2 + 1 + KEYS.width());
    Line::from(vec![
        Span::styled(state, look.map_or_else(Style::new, |look| style(live, look))),
        Span::raw("  "),
        Span::raw(cut(&words, left)),
        Span::raw(format!(" {KEYS}")),
    ])
}

/// Cuts a safe text, or fills it up, to a width.
fn cut(text: &str, width: usize) -> String {
    let kept = beginning(text, width);
    format!("{kept}{}", " ".repeat(width.saturating_sub(kept.width())))
}

/// As much of a text as fits into a width.
fn beginning(text: &str, width: usize) -> &str {
    let mut used = 0;
    let too_wide = |char: char| {
        used += char.width().unwrap_or_default();
        used > width
    };
    text.find(too_wide).map_or(text, |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::state::tests::{answered, live, press};
    use super::*;

    fn drawn(live: &Live, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| {
                let area = frame.area();
                draw(live, area, frame.buffer_mut());
            })
            .unwrap();
        terminal.backend().buffer().clone()
    }

    fn screen(live: &Live, width: u16, height: u16) -> Vec<String> {
        let buffer = drawn(live, width, height);
        let line = |y| (0..width).map(|x| buffer.cell((x, y)).unwrap().symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    /// A view that was answered once.
    fn shown(keys: &str) -> Live {
        let mut live = live();
        press(&mut live, keys);
        answered(&mut live);
        live
    }

    #[test]
    fn what_is_refused_now_is_seen_at_80_by_24() {
        let lines = screen(&shown("1"), 80, 24);
        assert!(lines[0].starts_with("tidegate [1 Now] 2 Keys  3 Guards  4 Changes"), "{lines:#?}");
        assert!(lines[0].ends_with("config #18 · store disk ok"), "{lines:#?}");
        assert_eq!(lines[1], "▲ UNUSUAL  17.1 % of requests refused; usual at this hour 0.4 to 1.2 %");
        assert_eq!(lines[3], "requests/s 88.0   passed 73.0   delayed 0   refused 15.0 (17.1 %)");
        assert_eq!(lines[4], "deciding   p50 2 µs   p99 9 µs   3 in flight");
        assert_eq!(lines[6], "refused  ▁█ most 15.0/s");
        assert_eq!(lines[7], "  POLICY        PASSED/s  REFUSED/s     %   USUAL % KEYS  REFUSED MOST");
        assert_eq!(lines[8], "> per-tenant        58.0     ▲ 12.3  17.5  0.0–0.20    1  tenant.id=t1");
        assert_eq!(lines[9], "  per-ip            61.0        1.5   2.4         -    1  -");
        assert_eq!(
            lines[10..13],
            ["  12 more policies saw no request", "── per-tenant", "refused most: tenant.id=t1"]
        );
        assert!(lines[23].starts_with("● live  by denied · 15m · digests"), "{lines:#?}");
        assert!(lines[23].ends_with("? help  q quit"), "{lines:#?}");
        let mut by_rate = shown("1r");
        press(&mut by_rate, "j");
        let by_rate = screen(&by_rate, 80, 24);
        assert_eq!(by_rate[7], "  POLICY        PASSED/s  REFUSED/s     %   USUAL % KEYS OF RATE  HOTTEST");
        assert_eq!(by_rate[9], "> per-ip            61.0        1.5   2.4         -    1   250 %  #8f3a");
        assert_eq!(by_rate[11..13], ["── per-ip", "hottest: #8f3a, 25.0/s"]);
    }

    #[test]
    fn the_other_views_have_their_rows() {
        let keys = screen(&shown("2"), 80, 24);
        assert_eq!(keys[5], "  POLICY               REFUSED       /s    ERROR  KEY");
        assert_eq!(keys[6], "> per-ip                    91     0.10           client.ip=203.0.113.9");
        assert_eq!(keys[7], "  login                      5        0      ≤ 1  #8f3a\\u{1b}[2J");
        assert_eq!(keys[8..10], ["── per-ip", "client.ip=203.0.113.9"]);
        let guards = screen(&shown("3"), 80, 24);
        assert!(
            guards[6].starts_with("> bank                ■ open          02:14:08   upstream.name=bank"),
            "{guards:#?}"
        );
        assert!(
            guards[7].starts_with("  previews            ■ off           -          -, moved"),
            "{guards:#?}"
        );
        assert!(
            guards[8].starts_with("  calls               ● closed"),
            "what is as usual comes last: {guards:#?}"
        );
        assert_eq!(
            guards[9..11],
            ["── bank", "upstream.name=bank; 19 of 38 failed; opened 3 times since the start"]
        );
        let changes = screen(&shown("4"), 80, 24);
        assert_eq!(changes[5], "  AT                   WHAT      WHO         REFUSED        CHANGE");
        assert_eq!(
            changes[6],
            "> 2026-03-02 02:50:01  policies  file        1.0 → 17.1 %   per-ip: 10/s → 6/s"
        );
        assert_eq!(
            changes[7..9],
            ["── 2026-03-02 02:50:01", "per-ip: 10/s → 6/s; refused 1.0 → 17.1 %, 0 → 1 keys"]
        );
    }

    #[test]
    fn what_lies_over_a_list_and_the_last_line_say_what_was_pressed() {
        let mut live = shown("2");
        press(&mut live, "\n");
        assert_eq!(screen(&live, 80, 24)[6], "asked …");
        answered(&mut live);
        let lines = screen(&live, 80, 24);
        assert!(lines[5].starts_with("── client.ip=203.0.113.9 under per-ip"), "{lines:#?}");
        assert_eq!(lines[6], "refused 91, near the limit 3");
        press(&mut live, "\u{1b}j\n");
        assert!(screen(&live, 80, 24)[6].contains("R shows names"), "a digest cannot be asked for");
        press(&mut live, "\u{1b}/lo");
        assert_eq!(screen(&live, 80, 24)[23], "/lo▏");
        press(&mut live, "x\np");
        let lines = screen(&live, 80, 24);
        assert_eq!(lines[6], "  nothing fits the filter");
        assert!(lines[23].starts_with("‖ PAUSED  by denied · 15m · digests · filter lox"), "{lines:#?}");
        press(&mut live, "p");
        live.now += Duration::from_secs(5);
        live.error = Some("gone\u{1b}[2J".to_owned());
        assert!(screen(&live, 80, 24)[23].starts_with("■ STALE for 5 s  gone\\u{1b}[2J"));
        press(&mut live, "?");
        let help = screen(&live, 80, 24);
        assert!(help.iter().any(|line| line.contains("1m, 15m, 24h")));
        assert!(help[22].ends_with("breaker force-open"), "all of it: {help:#?}");
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let colors = |live: &Live| {
            let buffer = drawn(live, 80, 24);
            buffer.content().iter().filter(|cell| cell.fg != Color::Reset).count()
        };
        let mut live = shown("1");
        assert_eq!(colors(&live), 0);
        live.has_colors = true;
        assert!(colors(&live) > 0);
    }

    #[test]
    fn every_size_is_drawn_and_nothing_moves_the_cursor() {
        let sizes = [(1, 1), (5, 2), (20, 4), (40, 10), (80, 24), (109, 19), (200, 70)];
        for keys in ["1", "2", "3", "4", "?", "2\n", "/x"] {
            let mut live = shown(keys);
            for (width, height) in sizes {
                let text = screen(&live, width, height).concat();
                assert!(!text.chars().any(visible::is_acted_on), "{keys:?} {width}×{height}: {text:?}");
            }
            live.selected = usize::MAX;
            screen(&live, 80, 24);
        }
    }

    #[test]
    fn long_and_wide_texts_are_cut_to_their_width() {
        assert_eq!(
            [cell("abc", 5), cell("abcdef", 4), cell("東京都", 4), cell("x", 0)],
            ["abc  ", "abc…", "東… ", ""]
        );
        assert_eq!(wrapped("  one two three", 9, 2), ["  one two", "  three"]);
        assert_eq!(wrapped("one two three four", 8, 2), ["one two", "three …"]);
        assert_eq!(
            (spark([0.0, 1.0, 2.0].into_iter(), 2), spark([0.0; 0].into_iter(), 2)),
            ("▅█".to_owned(), String::new())
        );
    }
}
