//! What the live view shows, and what keys and answers do to it.
//!
//! Time is an argument, and nothing here asks or draws: [`Live::wants`] says what to ask, `draw` draws.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use crate::args::{Top, TopBy};
use crate::online::{self, Event, FAILURES, encoded};
use crate::overview::{Overview, PolicyRow, rows};
use crate::styled::text;

/// The most keys, guards and changes that are asked for and kept.
const MOST_ROWS: usize = 200;
/// The most refusals whose ids are kept.
const MOST_REFUSALS: usize = 512;
/// The longest filter, in characters.
const LONGEST_FILTER: usize = 60;
/// An answer older than this is called stale.
pub(super) const STALE: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Now,
    Keys,
    Guards,
    Changes,
}

impl View {
    pub(super) const ALL: [Self; 4] = [Self::Now, Self::Keys, Self::Guards, Self::Changes];

    pub(super) fn word(self) -> &'static str {
        ["Now", "Keys", "Guards", "Changes"][self as usize]
    }
}

/// What rows are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Denied,
    Near,
    Rate,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        ["denied", "near", "rate"][self as usize]
    }
}

/// How far back counts and lines go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Window {
    Minute,
    #[default]
    Quarter,
    Day,
}

impl Window {
    pub(super) fn word(self) -> &'static str {
        ["1m", "15m", "24h"][self as usize]
    }

    fn next(self) -> Self {
        match self {
            Self::Minute => Self::Quarter,
            Self::Quarter => Self::Day,
            Self::Day => Self::Minute,
        }
    }
}

/// What lies over the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    Help,
    Key {
        policy: String,
        key: String,
    },
    /// The record of a refusal; `of`: whose last one it is.
    Why {
        id: String,
        of: String,
    },
}

/// What a path is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Overview,
    Busiest,
    Breakers,
    Switches,
    Changes,
    Overlay,
}

/// A path to ask each second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) part: Part,
    pub(super) path: String,
}

/// What a key asks the program to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Quit,
    /// Ctrl-Z.
    Suspend,
}

/// A busy key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Busy {
    pub(super) policy: String,
    pub(super) key: String,
    pub(super) count: u64,
    pub(super) error: u64,
    pub(super) per_second: f64,
}

/// A refusal that was told, by which its record is found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    policy: String,
    /// A digest.
    key: String,
    id: String,
}

/// All that the live view knows.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) server: String,
    pub(super) has_colors: bool,
    pub(super) view: View,
    pub(super) order: Order,
    pub(super) window: Window,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    /// Only this policy.
    pub(super) of: Option<String>,
    pub(super) reveals: bool,
    pub(super) is_paused: bool,
    /// The row of the list that is marked.
    pub(super) selected: usize,
    pub(super) overlay: Option<Overlay>,
    /// How many lines of the overlay are above the screen.
    pub(super) scrolled: usize,
    pub(super) overview: Overview,
    pub(super) busiest: Vec<Busy>,
    pub(super) breakers: Vec<Value>,
    pub(super) switches: Vec<Value>,
    pub(super) changes: Vec<Value>,
    /// The answer for the overlay, or why there is none.
    pub(super) shown: Option<Result<Value, String>>,
    /// What to know about the last key pressed.
    pub(super) note: Option<String>,
    /// Why the last question was not answered.
    pub(super) error: Option<String>,
    refusals: VecDeque<Refusal>,
    failed: u32,
    /// When the last overview came; `None`: none did.
    pub(super) told_at: Option<Duration>,
    /// The time since the beginning.
    pub(super) now: Duration,
}

impl Live {
    pub(super) fn new(top: &Top, server: String, has_colors: bool) -> Self {
        let order = match top.by {
            TopBy::Denied => Order::Denied,
            TopBy::Near => Order::Near,
        };
        Self { server, has_colors, order, of: top.policy.clone(), reveals: top.reveal, ..Self::default() }
    }

    /// What is asked each second. While it is paused, only what a key has opened.
    pub(super) fn wants(&self) -> Vec<Want> {
        let want = |part, path| Want { part, path };
        let (window, by) = (self.window.word(), self.order.word());
        let reveal = if self.reveals { "&reveal=true" } else { "" };
        let mut wants = Vec::new();
        if !self.is_paused {
            wants.push(want(Part::Overview, format!("/v1/overview?w={window}{reveal}")));
            match self.view {
                View::Now => {}
                View::Keys => {
                    let of = self.of.as_deref();
                    let of = of.map(|of| format!("&policy={}", encoded(of))).unwrap_or_default();
                    let path = format!("/v1/busiest?by={by}&w={window}&limit={MOST_ROWS}{reveal}{of}");
                    wants.push(want(Part::Busiest, path));
                }
                View::Guards => {
                    let path = format!("/v1/breakers?reveal={}", self.reveals);
                    wants.push(want(Part::Breakers, path));
                    wants.push(want(Part::Switches, "/v1/switches".to_owned()));
                }
                View::Changes => {
                    wants.push(want(Part::Changes, format!("/v1/changes?limit={MOST_ROWS}")));
                }
            }
        }
        wants.extend(self.overlay_path().map(|path| want(Part::Overlay, path)));
        wants
    }

    /// Returns the path of what lies over the list; `None` if that needs no answer, or cannot have one.
    fn overlay_path(&self) -> Option<String> {
        match self.overlay.as_ref()? {
            Overlay::Help => None,
            Overlay::Key { policy, key } => {
                let query: Vec<String> = attributes(key)?
                    .iter()
                    .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
                    .collect();
                Some(format!("/v1/keys/{}?{}", encoded(policy), query.join("&")))
            }
            Overlay::Why { id, .. } => {
                Some(format!("/v1/explain?id={}&reveal={}", encoded(id), self.reveals))
            }
        }
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// The reason to end: several failures in a row, or one that stays.
    pub(super) fn take(&mut self, want: &Want, answer: Result<Value>) -> Result<()> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if self.reveals && online::hides_names(&error) => {
                self.reveals = false;
                self.note = Some("names need a token with the scope `keys`".to_owned());
                return Ok(());
            }
            Err(error) => return self.fail(want, error),
        };
        let marked = self.marked();
        let list = |name: &str| rows(&answer[name]).iter().take(MOST_ROWS).cloned().collect();
        match want.part {
            Part::Overview => {
                (self.failed, self.error) = (0, None);
                self.told_at = Some(self.now);
                self.overview = Overview::of(&answer);
            }
            Part::Busiest => {
                self.busiest = rows(&answer["keys"]).iter().take(MOST_ROWS).map(busy).collect();
            }
            Part::Breakers => self.breakers = list("breakers"),
            Part::Switches => self.switches = list("switches"),
            Part::Changes => self.changes = list("changes"),
            // The answer may be for what lay there before.
            Part::Overlay if self.overlay_path().as_ref() == Some(&want.path) => {
                self.shown = Some(Ok(answer));
            }
            Part::Overlay => {}
        }
        self.mark(marked);
        Ok(())
    }

    fn fail(&mut self, want: &Want, error: anyhow::Error) -> Result<()> {
        let told = format!("{error:#}");
        match want.part {
            Part::Overview => {
                self.failed += 1;
                if self.failed >= FAILURES || self.told_at.is_none() || online::is_final(&error) {
                    return Err(error);
                }
                self.error = Some(told);
            }
            Part::Overlay if self.overlay_path().as_ref() == Some(&want.path) => {
                self.shown = Some(Err(told));
            }
            Part::Overlay => {}
            _ => self.note = Some(told),
        }
        Ok(())
    }

    /// Keeps the id of a refusal that was told.
    pub(super) fn hear(&mut self, event: &Event) {
        if event.name != "denied" {
            return;
        }
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return };
        if let (Some(policy), Some(id)) = (data["policy"].as_str(), data["decision_id"].as_str()) {
            if self.refusals.len() == MOST_REFUSALS {
                self.refusals.pop_front();
            }
            let key = text(&data["key"]);
            self.refusals.push_back(Refusal { policy: policy.to_owned(), key, id: id.to_owned() });
        }
    }

    /// Whether a name fits the filter.
    fn fits(&self, names: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty() || names.iter().any(|name| name.to_lowercase().contains(&wanted))
    }

    /// The policies in the order that is wanted.
    pub(super) fn policies(&self) -> Vec<&PolicyRow> {
        let is_wanted =
            |row: &&PolicyRow| self.of.as_ref().is_none_or(|of| *of == row.name) && self.fits(&[&row.name]);
        let mut found: Vec<&PolicyRow> = self.overview.policies.iter().filter(is_wanted).collect();
        let rate = |row: &PolicyRow| match self.order {
            Order::Denied => row.denied,
            Order::Near => row.near,
            Order::Rate => row.passed + row.denied,
        };
        found.sort_by(|one, other| {
            let by_rate = rate(other).partial_cmp(&rate(one)).unwrap_or(Ordering::Equal);
            by_rate.then_with(|| one.name.cmp(&other.name))
        });
        found
    }

    pub(super) fn keys(&self) -> Vec<&Busy> {
        self.busiest.iter().filter(|busy| self.fits(&[&busy.policy, &busy.key])).collect()
    }

    /// Breakers and switches: those that are not as usual come first.
    pub(super) fn guards(&self) -> Vec<&Value> {
        let all = self.breakers.iter().chain(&self.switches);
        let name =
            |guard: &Value| text(if guard["policy"].is_string() { &guard["policy"] } else { &guard["name"] });
        let mut found: Vec<&Value> =
            all.filter(|guard| self.fits(&[&name(guard), &text(&guard["key"])])).collect();
        found.sort_by_key(|guard| guard["state"] == "closed" || guard["state"] == "on");
        found
    }

    pub(super) fn changed(&self) -> Vec<&Value> {
        let fits = |change: &&Value| {
            let words = ["what", "who", "text", "reason"].map(|name| text(&change[name]));
            self.fits(&words.each_ref().map(String::as_str))
        };
        self.changes.iter().filter(fits).collect()
    }

    fn rows(&self) -> usize {
        match self.view {
            View::Now => self.policies().len(),
            View::Keys => self.keys().len(),
            View::Guards => self.guards().len(),
            View::Changes => self.changed().len(),
        }
    }

    /// The policy and the key of the marked row, by which it is found again in the next list.
    fn marked(&self) -> Option<(String, String)> {
        match self.view {
            View::Now => self.policies().get(self.selected).map(|row| (row.name.clone(), String::new())),
            View::Keys => self.keys().get(self.selected).map(|busy| (busy.policy.clone(), busy.key.clone())),
            View::Guards | View::Changes => None,
        }
    }

    /// Marks the row of before in the list of now. The first row stays the first: whoever looks at the top of a list
    /// wants to see its top.
    fn mark(&mut self, marked: Option<(String, String)>) {
        if self.selected > 0
            && let Some((policy, key)) = marked
        {
            let found = match self.view {
                View::Now => self.policies().iter().position(|row| row.name == policy),
                _ => self.keys().iter().position(|busy| busy.policy == policy && busy.key == key),
            };
            self.selected = found.unwrap_or(self.selected);
        }
        self.selected = self.selected.min(self.rows().saturating_sub(1));
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Effect {
        self.note = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Effect::Quit,
                KeyCode::Char('z') => Effect::Suspend,
                _ => Effect::None,
            };
        }
        if self.is_typing {
            self.typed(key.code);
            return Effect::None;
        }
        if self.overlay.is_some() {
            self.press_over(key.code);
            return Effect::None;
        }
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Esc if !self.back() => return Effect::Quit,
            KeyCode::Char(digit @ '1'..='4') => self.show(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => self.show(View::ALL[(self.view as usize + 1) % View::ALL.len()]),
            KeyCode::BackTab => self.show(View::ALL[(self.view as usize + 3) % View::ALL.len()]),
            KeyCode::Char('d') => self.order = Order::Denied,
            KeyCode::Char('n') => self.order = Order::Near,
            KeyCode::Char('r') => self.order = Order::Rate,
            KeyCode::Char('w') => self.window = self.window.next(),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('R') => self.reveals = !self.reveals,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('?') => self.open(Overlay::Help),
            KeyCode::Char('y') => self.open_why(),
            KeyCode::Enter => self.enter(),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.selected += 10,
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = usize::MAX,
            _ => {}
        }
        self.selected = self.selected.min(self.rows().saturating_sub(1));
        Effect::None
    }

    fn typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(char) if !char.is_control() && self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(char);
            }
            _ => {}
        }
        self.selected = 0;
    }

    fn press_over(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?') => self.overlay = None,
            KeyCode::Char('R') => self.reveals = !self.reveals,
            KeyCode::Char('y') => self.open_why(),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = self.scrolled.saturating_add(1).min(1000),
            _ => {}
        }
    }

    /// Takes back what narrows the list, the last first. Returns whether there was anything.
    fn back(&mut self) -> bool {
        if !self.filter.is_empty() {
            self.filter.clear();
            return true;
        }
        self.of.take().is_some()
    }

    fn show(&mut self, view: View) {
        (self.view, self.selected) = (view, 0);
    }

    fn open(&mut self, overlay: Overlay) {
        (self.overlay, self.shown, self.scrolled) = (Some(overlay), None, 0);
    }

    /// Opens the keys of the marked policy, or the marked key.
    fn enter(&mut self) {
        let Some((policy, key)) = self.marked() else { return };
        match self.view {
            View::Now => {
                self.of = Some(policy);
                self.filter.clear();
                self.show(View::Keys);
            }
            _ => self.open(Overlay::Key { policy, key }),
        }
    }

    /// Opens the record of the last refusal of what is marked.
    fn open_why(&mut self) {
        let marked = match &self.overlay {
            Some(Overlay::Key { policy, key }) => Some((policy.clone(), key.clone())),
            _ => self.marked(),
        };
        let of_key = |refusal: &&Refusal| {
            marked.as_ref().is_some_and(|(policy, key)| refusal.policy == *policy && refusal.key == *key)
        };
        let of_policy =
            |refusal: &&Refusal| marked.as_ref().is_none_or(|(policy, _)| refusal.policy == *policy);
        let last = |is_it: &dyn Fn(&&Refusal) -> bool| self.refusals.iter().rev().find(|one| is_it(one));
        let found = match (last(&of_key), last(&of_policy)) {
            (Some(refusal), _) => Some((refusal, "this key".to_owned())),
            (None, Some(refusal)) => Some((refusal, refusal.policy.clone())),
            (None, None) => None,
        };
        match found.map(|(refusal, of)| (refusal.id.clone(), of)) {
            Some((id, of)) => self.open(Overlay::Why { id, of }),
            None => self.note = Some("no refusal of it with an id was told since this began".to_owned()),
        }
    }
}

fn busy(row: &Value) -> Busy {
    let count = |name: &str| row[name].as_u64().unwrap_or_default();
    Busy {
        policy: text(&row["policy"]),
        key: text(&row["key"]),
        count: count("count"),
        error: count("error"),
        per_second: row["per_second"].as_f64().unwrap_or_default(),
    }
}

/// Reads the attributes of a key: `client.ip=203.0.113.9, user.id=42`; `None` for a digest. A part that does not begin
/// with the name of an attribute belongs to the value before.
fn attributes(key: &str) -> Option<Vec<(String, String)>> {
    let is_name = |name: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !name.is_empty() && name.bytes().all(is_letter)
    };
    let mut found: Vec<(String, String)> = Vec::new();
    for part in key.split(", ") {
        match part.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, value)) => found.push((name.to_owned(), value.to_owned())),
            None => {
                let (_, value) = found.last_mut()?;
                value.push_str(", ");
                value.push_str(part);
            }
        }
    }
    Some(found)
}

#[cfg(test)]
pub(super) mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;
    use crate::overview::tests::answer;

    pub(in super::super) fn live() -> Live {
        Live { server: "http://127.0.0.1:9090".to_owned(), ..Live::default() }
    }

    pub(in super::super) fn press(live: &mut Live, keys: &str) -> Effect {
        let code = |key| match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            key => KeyCode::Char(key),
        };
        keys.chars().fold(Effect::None, |_, key| live.press(KeyEvent::new(code(key), KeyModifiers::NONE)))
    }

    /// Answers what is wanted now.
    pub(in super::super) fn answered(live: &mut Live) {
        for want in live.wants() {
            let answer = match want.part {
                Part::Overview => answer(),
                Part::Busiest => json!({ "by": "denied", "window_s": 900, "keys": [
                    { "policy": "per-ip", "key": "client.ip=203.0.113.9", "count": 91, "error": 0, "per_second": 0.1 },
                    { "policy": "login", "key": "#8f3a\u{1b}[2J", "count": 5, "error": 1, "per_second": 0.0 },
                ]}),
                Part::Breakers => json!({ "breakers": [
                    { "policy": "calls", "key": "(all)", "state": "closed", "since": null },
                    { "policy": "bank", "key": "upstream.name=bank", "state": "open", "since": "2026-03-02T02:14:08Z", "opened": 3, "tripped_by": "19 of 38 failed" },
                ]}),
                Part::Switches => json!({ "switches": [
                    { "name": "previews", "state": "off", "by_hand": { "state": "off", "until": null, "reason": "moved" }, "by_signal": null },
                ]}),
                Part::Changes => json!({ "changes": [
                    {
                        "number": 7, "at": "2026-03-02T02:50:01Z", "what": "policies", "who": "file", "reason": "",
                        "text": "per-ip: 10/s → 6/s", "configuration": 18,
                        "effect": { "denied_share": [0.01, 0.171], "keys_refused": [0, 1] },
                    },
                ]}),
                Part::Overlay => {
                    json!({ "lines": ["DENIED by per-ip, at 02:51:07"], "denied": 91, "near": 3 })
                }
            };
            live.take(&want, Ok(answer)).unwrap();
        }
    }

    fn paths(live: &Live) -> Vec<String> {
        live.wants().into_iter().map(|want| want.path).collect()
    }

    #[test]
    fn keys_say_what_is_asked() {
        let mut live = live();
        assert_eq!(paths(&live), ["/v1/overview?w=15m"]);
        press(&mut live, "2nwR");
        let keys = "/v1/busiest?by=near&w=24h&limit=200&reveal=true";
        assert_eq!(paths(&live), ["/v1/overview?w=24h&reveal=true", keys]);
        press(&mut live, "\tRw");
        assert_eq!(paths(&live), ["/v1/overview?w=1m", "/v1/breakers?reveal=false", "/v1/switches"]);
        press(&mut live, "\tp");
        assert!(live.wants().is_empty(), "paused");
        assert_eq!(press(&mut live, "pq"), Effect::Quit);
        let ctrl = |code| KeyEvent::new(KeyCode::Char(code), KeyModifiers::CONTROL);
        assert_eq!((live.press(ctrl('c')), live.press(ctrl('z'))), (Effect::Quit, Effect::Suspend));
    }

    #[test]
    fn a_policy_opens_its_keys_and_a_key_its_standing() {
        let mut live = live();
        answered(&mut live);
        assert_eq!(live.policies()[0].name, "per-tenant", "most refused first");
        press(&mut live, "r\n");
        assert_eq!((live.view, live.of.as_deref()), (View::Keys, Some("per-tenant")));
        assert!(paths(&live)[1].ends_with("&policy=per-tenant"));
        answered(&mut live);
        press(&mut live, "\n");
        assert_eq!(paths(&live).last().unwrap(), "/v1/keys/per-ip?client.ip=203.0.113.9");
        answered(&mut live);
        assert!(matches!(&live.shown, Some(Ok(shown)) if shown["denied"] == 91));
        // Back, step by step.
        assert_eq!(press(&mut live, "\u{1b}"), Effect::None);
        assert_eq!(live.overlay, None);
        assert_eq!(press(&mut live, "/login\n"), Effect::None);
        assert_eq!(live.keys().len(), 1);
        assert_eq!(press(&mut live, "\u{1b}\u{1b}"), Effect::None);
        assert_eq!((live.filter.as_str(), &live.of), ("", &None));
        assert_eq!(press(&mut live, "\u{1b}"), Effect::Quit);
    }

    #[test]
    fn why_opens_the_last_refusal_of_the_key_or_of_its_policy() {
        let mut live = live();
        press(&mut live, "2");
        answered(&mut live);
        press(&mut live, "y");
        assert!(live.note.as_ref().unwrap().contains("no refusal"), "none was told");
        for (policy, key, id) in
            [("login", "#8f3a\u{1b}[2J", "A"), ("per-ip", "#77", "B"), ("login", "#99", "C")]
        {
            let data = json!({ "policy": policy, "key": key, "decision_id": id }).to_string();
            live.hear(&Event { name: "denied".to_owned(), data });
        }
        press(&mut live, "y");
        assert_eq!(live.overlay, Some(Overlay::Why { id: "B".to_owned(), of: "per-ip".to_owned() }));
        press(&mut live, "\u{1b}jy");
        assert_eq!(live.overlay, Some(Overlay::Why { id: "A".to_owned(), of: "this key".to_owned() }));
        assert_eq!(paths(&live).last().unwrap(), "/v1/explain?id=A&reveal=false");
        for _ in 0..2 * MOST_REFUSALS {
            let data = json!({ "policy": "p", "decision_id": "D" }).to_string();
            live.hear(&Event { name: "denied".to_owned(), data });
        }
        assert_eq!(live.refusals.len(), MOST_REFUSALS);
    }

    #[test]
    fn five_failures_in_a_row_end_it_and_fewer_do_not() {
        let mut live = live();
        let want = live.wants().remove(0);
        assert!(live.take(&want, Err(anyhow!("gone"))).is_err(), "the first answer must come");
        live.failed = 0;
        answered(&mut live);
        for _ in 0..4 {
            live.take(&want, Err(anyhow!("gone"))).unwrap();
        }
        assert_eq!(live.error.as_deref(), Some("gone"));
        answered(&mut live);
        assert_eq!(live.error, None);
        let ended = (0..5).map(|_| live.take(&want, Err(anyhow!("gone")))).filter(Result::is_err).count();
        assert_eq!(ended, 1, "the fifth");
    }

    #[test]
    fn the_marked_row_stays_marked_when_the_order_changes() {
        let mut live = live();
        answered(&mut live);
        press(&mut live, "j");
        assert_eq!(live.policies()[live.selected].name, "per-ip");
        let mut other = answer();
        other["policies"][0]["per_second"]["denied"] = 99.0.into();
        let want = live.wants().remove(0);
        live.take(&want, Ok(other)).unwrap();
        assert_eq!((live.policies()[live.selected].name.as_str(), live.selected), ("per-ip", 0));
        press(&mut live, "jjjj");
        live.take(&want, Ok(json!({}))).unwrap();
        assert_eq!(live.selected, 0, "an empty list");
    }

    #[test]
    fn attributes_of_a_key_are_read_from_its_name() {
        let pairs = |key| attributes(key).map(|found| format!("{found:?}"));
        assert_eq!(
            pairs("client.ip=::1, user.id=a, b").unwrap(),
            r#"[("client.ip", "::1"), ("user.id", "a, b")]"#
        );
        assert_eq!((pairs("#8f3a"), pairs("(all)")), (None, None));
    }
}
