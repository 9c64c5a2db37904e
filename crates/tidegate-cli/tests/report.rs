//! The report of a replay in a real browser: the line moves, and the numbers under it equal those of a replay of that
//! limit.

#![cfg(unix)]

mod browser;

use std::path::Path;

use serde_json::{Value, json};

use browser::Browser;

/// A key and a path that would run as a script, or end the surrounding element, if they were treated as anything but
/// text.
const HOSTILE_KEY: &str = "</script><script>owned=1</script><img src=x onerror=owned=1>\"'&lt;]}";
const HOSTILE_PATH: &str = "/<svg onload=owned=1></td><!--<script>";

/// Runs the command in a folder. Returns its output.
#[track_caller]
fn tidegate(folder: &Path, arguments: &[&str]) -> String {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.current_dir(folder).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Ten minutes of a crowd of thirty, each faster than the one before, an office that has signed in, and a client with
/// a hostile name.
fn log() -> String {
    let mut lines: Vec<(u64, Value)> = Vec::new();
    let mut ask = |at_ms: u64, client: &str, path: String, user: Option<&str>| {
        let mut line = json!({ "client_ip": client, "method": "GET", "path": path, "status": 200 });
        line["ts"] =
            format!("2026-03-02T09:{:02}:{:02}.{:03}Z", at_ms / 60_000, at_ms / 1_000 % 60, at_ms % 1_000)
                .into();
        if let Some(user) = user {
            line["user"] = user.into();
        }
        lines.push((at_ms, line));
    };
    for client in 1..=30u64 {
        for number in 0..client * 4 {
            ask(number * 600_000 / (client * 4), &format!("192.0.2.{client}"), "/".to_owned(), None);
        }
    }
    for number in 0..400 {
        ask(60_000 + number * 500, "198.51.100.7", format!("/api/items/{number}"), Some("ada"));
    }
    for number in 0..1_500 {
        ask(number * 300, HOSTILE_KEY, HOSTILE_PATH.to_owned(), None);
    }
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| format!("{line}\n")).collect()
}

/// The numbers shown under the line.
#[derive(Debug, PartialEq)]
struct Shown {
    limit: String,
    denied: String,
    hit: String,
    newly: String,
    who: Vec<String>,
    yaml: String,
}

fn shown(browser: &mut Browser) -> Shown {
    let mut number = |name: &str| browser.text(&format!("[data-number={name}]"));
    let (limit, denied, hit, newly) = (number("limit"), number("denied"), number("hit"), number("newly"));
    let who = browser
        .value("[...document.querySelectorAll('[data-who] tbody code')].map(code => code.textContent)");
    let who = who.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    Shown { limit, denied, hit, newly, who, yaml: browser.text("[data-yaml]") }
}

/// Returns the same numbers from a replay of the limit.
fn replayed(folder: &Path, limit: &str, before: &[String]) -> Shown {
    let [_, rate, _, burst] = limit.split(' ').collect::<Vec<_>>()[..] else { panic!("{limit}") };
    let arguments = ["replay", "day.jsonl", "--rate", rate, "--burst", burst, "--hit", "1000", "-o", "json"];
    let value: Value = serde_json::from_str(&tidegate(folder, &arguments)).unwrap();
    let policy = &value["runs"][0]["policies"][0];
    let count = |name: &str| policy[name].as_u64().unwrap();
    let grouped = tidegate_sim::grouped;
    let signed_in = |count: u64, of: u64| match (count, of) {
        (_, 0) => String::new(),
        (0, _) => ", none of them signed in".to_owned(),
        _ => format!(", {count} of them signed in and served"),
    };
    let (denied, matched, hit) = (count("denied"), count("matched"), count("keys_hit"));
    let newly: Vec<&Value> = value["hit"][0]["keys"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|key| !before.contains(&key["key"].as_str().unwrap().to_owned()))
        .collect();
    let known = newly.iter().filter(|key| key["signed_in"] == true).count() as u64;
    let share = denied as f64 / matched as f64 * 100.0;
    let share = match share {
        0.0 => "0 %".to_owned(),
        share if share < 10.0 => format!("{share:.2} %"),
        share => format!("{share:.1} %"),
    };
    Shown {
        limit: limit.to_owned(),
        denied: format!("{} of {} requests ({share})", grouped(denied), grouped(matched)),
        hit: format!("{hit} of {}{}", count("keys"), signed_in(count("keys_hit_signed_in"), hit)),
        newly: format!("{}{}", newly.len(), signed_in(known, newly.len() as u64)),
        who: newly.iter().take(10).map(|key| key["key"].as_str().unwrap().to_owned()).collect(),
        yaml: format!(
            "  - name: gcra\n    mode: shadow\n    by: [client.ip]\n    limit: {{ algorithm: gcra, rate: {rate}, burst: {burst} }}\n"
        ),
    }
}

/// Returns the keys that the replayed limit hits.
fn hit_before(folder: &Path) -> Vec<String> {
    let value: Value = serde_json::from_str(&tidegate(
        folder,
        &["replay", "day.jsonl", "--rate", "60/min", "--burst", "60", "--hit", "1000", "-o", "json"],
    ))
    .unwrap();
    let keys = value["hit"][0]["keys"].as_array().unwrap().iter();
    keys.map(|key| key["key"].as_str().unwrap().to_owned()).collect()
}

fn report(folder: &Path) {
    std::fs::write(folder.join("day.jsonl"), log()).unwrap();
    tidegate(folder, &["replay", "day.jsonl", "--rate", "60/min", "--burst", "60", "--plot", "out", "-q"]);
}

#[test]
fn the_numbers_under_the_line_are_those_of_a_replay() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    report(folder);
    browser.open(&folder.join("out/report.html"));
    let before = hit_before(folder);
    assert_eq!(before, [HOSTILE_KEY, "198.51.100.7"]);
    let first = shown(&mut browser);
    assert_eq!(
        (&first, first.limit.as_str()),
        (&replayed(folder, "gcra 60/min burst 60", &before), "gcra 60/min burst 60")
    );

    // With the keyboard, down to limits that hit the crowd.
    browser.value("document.querySelector('input[type=range]').focus()");
    let mut seen = vec![first.limit.clone()];
    for _ in 0..4 {
        for _ in 0..3 {
            browser.press("ArrowLeft", 37);
        }
        let now = shown(&mut browser);
        assert_eq!(now, replayed(folder, &now.limit, &before));
        assert!(!seen.contains(&now.limit), "{now:?} after {seen:?}");
        seen.push(now.limit);
    }
    assert!(shown(&mut browser).newly.split([' ', ',']).next().unwrap().parse::<u64>().unwrap() > 5);
    let spoken = browser.value("document.querySelector('input[type=range]').getAttribute('aria-valuetext')");
    assert!(spoken.as_str().unwrap().starts_with(&format!("Limit: {}; Denied: ", seen[4])), "{spoken}");
    browser.photograph("report-moved");

    // With the mouse and with a finger, up again.
    let grip = browser.middle(".grip");
    browser.drag_up(grip, 60.0);
    let dragged = shown(&mut browser);
    assert_eq!(dragged, replayed(folder, &dragged.limit, &before));
    assert_ne!(dragged.limit, seen[4]);
    let grip = browser.middle(".grip");
    browser.call("Emulation.setTouchEmulationEnabled", &json!({ "enabled": true }));
    browser.swipe_up(grip, 40.0);
    let swiped = shown(&mut browser);
    assert_eq!(swiped, replayed(folder, &swiped.limit, &before));
    assert_ne!(swiped.limit, dragged.limit);

    // The copied policy equals the one shown, and the command can read it.
    let origin = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    browser.call("Browser.grantPermissions", &origin);
    browser.value("document.querySelector('[data-copy]').click()");
    let copied = browser.value("navigator.clipboard.readText()");
    assert_eq!(
        (copied.as_str(), browser.text("[data-copied]").as_str()),
        (Some(swiped.yaml.as_str()), "copied")
    );
    std::fs::write(folder.join("p.yaml"), format!("version: 1\npolicies:\n{}", swiped.yaml)).unwrap();
    tidegate(folder, &["config", "check", "p.yaml", "-q"]);
    browser.value("document.querySelector('[data-back]').click()");
    assert_eq!(shown(&mut browser), first);
    assert_eq!(browser.told, Vec::<Value>::new());
}

#[test]
fn a_hostile_name_does_nothing() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    report(folder.path());
    browser.open(&folder.path().join("out/report.html"));
    // Move to the strictest limit and to the laxest, so that the script writes every name.
    for key in [("Home", 36), ("End", 35), ("Home", 36)] {
        browser.value("document.querySelector('input[type=range]').focus()");
        browser.press(key.0, key.1);
    }
    let names = browser.value("[...document.querySelectorAll('code')].map(code => code.textContent)");
    assert!(names.as_array().unwrap().contains(&HOSTILE_KEY.into()), "{names}");
    assert!(browser.text("body").contains(HOSTILE_PATH));
    let strangers =
        "document.querySelectorAll('img, iframe, object, svg[onload], [onerror], [style]').length";
    assert_eq!(browser.value(strangers), 0);
    assert_eq!(browser.value("document.scripts.length"), 2, "the data and the script of the page");
    assert_eq!(browser.value("typeof owned"), "undefined");
    assert_eq!(browser.told, Vec::<Value>::new());

    // Even if a name were treated as markup, the page's content policy would not run it, load anything or send
    // anything.
    browser.value(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"owned=1\">'); \
         document.body.append(Object.assign(document.createElement('script'), { textContent: 'owned=1' }))",
    );
    assert_eq!(browser.value("fetch('file:///etc/hostname').then(() => 'sent', () => 'refused')"), "refused");
    assert_eq!(browser.value("typeof owned"), "undefined");
    assert!(
        browser.told.iter().any(|told| told.to_string().contains("Content Security Policy")),
        "{:?}",
        browser.told
    );
}

#[test]
fn without_a_script_all_is_there() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    report(folder.path());
    browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.open(&folder.path().join("out/report.html"));
    browser.photograph("report-without-script");
    let before = hit_before(folder.path());
    let here = replayed(folder.path(), "gcra 60/min burst 60", &before);
    assert_eq!(shown(&mut browser), here);
    let rows = browser.value("[...document.querySelectorAll('tr[data-rung]')].map(row => row.innerText)");
    let rows: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
    assert!(
        rows.len() > 5 && rows.iter().any(|row| row.starts_with("gcra 60/min burst 60 (replayed)")),
        "{rows:?}"
    );
    assert_eq!(browser.value("document.querySelector('input').checkVisibility()"), false);
}

/// Pictures must fit a phone: at a minimum width of 620 pixels, half of each would be hidden. Tables scroll, each on
/// its own.
#[test]
fn pictures_fit_a_phone() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    report(folder.path());
    let phone = json!({ "width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", &phone);
    browser.open(&folder.path().join("out/report.html"));
    browser.photograph("report-phone");
    let widths = browser.value("[innerWidth, document.documentElement.scrollWidth]");
    assert_eq!(widths, json!([390, 390]), "the page itself does not scroll sideways");
    let hidden = "[...document.querySelectorAll('.wide')].filter(box => box.querySelector('svg') && box.scrollWidth > box.clientWidth).length";
    assert_eq!(browser.value(hidden), 0);
    let seen = "[...document.querySelectorAll('.wide svg')].filter(svg => svg.getBoundingClientRect().width > 300).length";
    assert!(browser.value(seen).as_u64().unwrap() >= 2, "they are drawn");
    // The texts within must fit too.
    let cut = "[...document.querySelectorAll('.wide svg text')].filter(text => { const [word, svg] = [text, text.closest('svg')].map(one => one.getBoundingClientRect()); return word.right > svg.right + 1 || word.left < svg.left - 1; }).map(text => text.textContent)";
    assert_eq!(browser.value(cut), json!([]));
}
