//! A real browser, driven by its debugging protocol over a pipe, with only the calls that the tests need.
//!
//! Needs the Debian package `chromium`. If it is missing, the test prints a message and is skipped; with
//! `TIDEGATE_REQUIRE_SERVERS=1` it fails. The protocol is JSON with a zero byte after each message, so no client
//! library is needed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Long enough for a busy machine; a test that passes never waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The paths of the browser on Debian and other systems.
const PROGRAMS: [&str; 3] = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/// A browser with one page. Dropping it ends the browser, however the test ends.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    last: u64,
    /// Events from the browser: script errors, and violations of the page's content policy.
    pub(crate) told: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    /// Starts the browser with an empty profile; `None` if it is not installed.
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = PROGRAMS.into_iter().find(|program| Path::new(program).exists()) else {
            let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
            assert!(
                !required,
                "chromium is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install chromium"
            );
            eprintln!("SKIPPED: chromium is not installed; apt-get install chromium");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // The browser uses the file descriptors 3 and 4, which a shell copies from its standard ones. The flags are
        // for containers, which run tests as root and have little shared memory.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", program])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--remote-debugging-pipe", "--window-size=1100,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (tell, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0) {
                let Ok(message) = message else { return };
                if tell.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { child, to, from, session: String::new(), last: 0, told: Vec::new(), _profile: profile };
        let page = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", &json!({ "targetId": page["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, &json!({}));
        }
        browser.call("Emulation.setFocusEmulationEnabled", &json!({ "enabled": true }));
        Some(browser)
    }

    /// Calls a method of the protocol. Returns its result.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer = self.next();
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        let message = self.from.recv_timeout(PATIENCE).expect("the browser answers");
        if message["method"] == "Runtime.exceptionThrown" || message["method"] == "Log.entryAdded" {
            self.told.push(message["params"].clone());
        }
        message
    }

    /// Opens a file and waits until it is loaded.
    #[track_caller]
    pub(crate) fn open(&mut self, file: &Path) {
        self.call("Page.navigate", &json!({ "url": format!("file://{}", file.display()) }));
        while self.next()["method"] != "Page.loadEventFired" {}
    }

    /// Returns the value of an expression in the page; waits if it is a promise.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true });
        let result = self.call("Runtime.evaluate", &parameters);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Returns the text of the first element that matches a selector.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let found = self.value(&format!("document.querySelector({}).textContent", json!(selector)));
        found.as_str().unwrap().to_owned()
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Returns the centre of an element, after scrolling it into view.
    #[track_caller]
    pub(crate) fn middle(&mut self, selector: &str) -> (f64, f64) {
        let place = self.value(&format!(
            "(() => {{ const found = document.querySelector({}); found.scrollIntoView({{ block: 'center' }}); \
             const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        ));
        (place[0].as_f64().unwrap(), place[1].as_f64().unwrap())
    }

    /// Drags with the mouse from a position, up by `pixels`.
    pub(crate) fn drag_up(&mut self, (x, y): (f64, f64), pixels: f64) {
        let mut mouse = |kind: &str, y: f64, buttons: u32| {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        };
        mouse("mousePressed", y, 1);
        for part in 1..=4 {
            mouse("mouseMoved", y - pixels * f64::from(part) / 4.0, 1);
        }
        mouse("mouseReleased", y - pixels, 0);
    }

    /// Drags with a finger from a position, up by `pixels`.
    pub(crate) fn swipe_up(&mut self, (x, y): (f64, f64), pixels: f64) {
        let mut touch = |kind: &str, at: Option<f64>| {
            let points: Vec<Value> = at.map(|y| json!({ "x": x, "y": y })).into_iter().collect();
            self.call("Input.dispatchTouchEvent", &json!({ "type": kind, "touchPoints": points }));
        };
        touch("touchStart", Some(y));
        for part in 1..=4 {
            touch("touchMove", Some(y - pixels * f64::from(part) / 4.0));
        }
        touch("touchEnd", None);
    }

    /// For viewing: with `TIDEGATE_CHARTS=dir`, writes pictures of the whole page there, in the light and in the dark
    /// scheme.
    pub(crate) fn photograph(&mut self, name: &str) {
        use base64::Engine as _;
        let Some(dir) = std::env::var_os("TIDEGATE_CHARTS") else { return };
        for scheme in ["light", "dark"] {
            let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            self.call("Emulation.setEmulatedMedia", &media);
            let shot = self
                .call("Page.captureScreenshot", &json!({ "format": "png", "captureBeyondViewport": true }));
            let png =
                base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
            std::fs::write(Path::new(&dir).join(format!("{name}-{scheme}.png")), png).unwrap();
        }
    }
}
