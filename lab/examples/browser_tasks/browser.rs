//! A real browser without a window, driven through a pipe: keys go in, visible text comes out.
//!
//! Chromium reads commands at descriptor 3 and answers at 4, each a JSON text that ends with a zero byte. A shell opens
//! both from named pipes, so no code here hands over descriptors.

#![allow(clippy::disallowed_methods, reason = "a real browser takes its own time")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_testkit::{PATIENCE, Process, folder};

/// The most presses of Tab on the way to something.
const FAR: usize = 1_000;

/// What a page has room for, in its own pixels, and how many of the screen each of them is.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) scale: u32,
}

/// The size of the pages.
pub(crate) const WIDE: Size = Size { width: 1_280, height: 900, scale: 1 };

/// What has the focus, as a person sees it.
const FOCUS: &str = r#"(() => {
  const at = document.activeElement;
  const labels = [...(at?.labels ?? [])].map((label) => label.innerText).join(" ");
  return {
    tag: at?.tagName ?? "", text: (at?.innerText ?? "").trim(), label: labels.trim(),
    row: (at?.closest("tr")?.innerText ?? "").trim(),
  };
})()"#;

/// A browser with one page.
pub(crate) struct Browser {
    input: File,
    said: Receiver<Value>,
    session: String,
    last: u64,
    loaded: u64,
    spent: Spent,
    begun: Instant,
    /// Whether the pages may run scripts.
    pub(crate) scripts: bool,
    _process: Process,
}

/// What has the focus.
pub(crate) struct Focus {
    pub(crate) tag: String,
    pub(crate) text: String,
    pub(crate) label: String,
    /// The row of a table around it.
    pub(crate) row: String,
}

/// What a task took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) loads: u32,
    /// Keys with one purpose: the way to something, a text, a choice.
    pub(crate) groups: u32,
    pub(crate) took: Duration,
}

impl Spent {
    /// The steps: keys that end in a page are one with it.
    pub(crate) const fn steps(self) -> u32 {
        self.loads
    }
}

impl Browser {
    /// Starts a browser at an empty page.
    pub(crate) fn start(program: &Path) -> Self {
        let folder = folder();
        let pipes = ["in", "out"].map(|name| folder.path().join(name));
        let made = Command::new("mkfifo").args(&pipes).status().unwrap();
        assert!(made.success(), "mkfifo makes the pipes");
        let mut command = Command::new("sh");
        command.current_dir(folder.path()).args(["-c", r#"exec "$0" "$@" 3<in 4>out"#]).arg(program);
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]);
        command.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--user-data-dir=profile",
        ]);
        // As root Chromium does not start with its sandbox. It sees the pages of this run alone.
        if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
            command.arg("--no-sandbox");
        }
        command.arg("about:blank");
        let process = Process::start(command, folder);
        // In the order of the shell: each waits for the other side.
        let input = OpenOptions::new().write(true).open(&pipes[0]).unwrap();
        let output = BufReader::new(File::open(&pipes[1]).unwrap());
        let (say, said) = channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice::<Value>(&message) else { return };
                if say.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            input,
            said,
            session: String::new(),
            last: 0,
            loaded: 0,
            spent: Spent::default(),
            begun: Instant::now(),
            scripts: true,
            _process: process,
        };
        browser.attach();
        browser
    }

    fn attach(&mut self) {
        let targets = self.call("Target.getTargets", &json!({}));
        let pages = targets["targetInfos"].as_array().unwrap();
        let page = pages.iter().find(|target| target["type"] == "page").expect("it starts with a page");
        let attached =
            self.call("Target.attachToTarget", &json!({ "targetId": page["targetId"], "flatten": true }));
        attached["sessionId"].as_str().unwrap().clone_into(&mut self.session);
        for domain in ["Page.enable", "Runtime.enable"] {
            self.call(domain, &json!({}));
        }
        self.call("Emulation.setFocusEmulationEnabled", &json!({ "enabled": true }));
        self.resize(WIDE);
    }

    /// Sends a command. Returns its answer.
    fn try_call(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).unwrap();
        loop {
            let mut told = self.hear(PATIENCE).ok_or_else(|| "no answer".to_owned())?;
            if told["id"].as_u64() == Some(self.last) {
                return if told["error"].is_null() {
                    Ok(told["result"].take())
                } else {
                    Err(told["error"].to_string())
                };
            }
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|why| panic!("{method}: {why}"))
    }

    /// Takes what the browser says next, within a time.
    fn hear(&mut self, patience: Duration) -> Option<Value> {
        let told = self.said.recv_timeout(patience).ok()?;
        if told["method"] == "Page.loadEventFired" {
            self.loaded += 1;
        }
        Some(told)
    }

    /// Sets the size of the page.
    pub(crate) fn resize(&mut self, size: Size) {
        let Size { width, height, scale } = size;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Lets pages run scripts, or not. Counts for the pages that are opened afterwards.
    pub(crate) fn set_scripts(&mut self, run: bool) {
        self.scripts = run;
        self.call("Emulation.setScriptExecutionDisabled", &json!({ "value": !run }));
    }

    /// Opens an address, and waits until the page is there.
    pub(crate) fn open(&mut self, url: &str) {
        let before = self.loaded;
        self.call("Page.navigate", &json!({ "url": url }));
        self.await_load(before, "");
    }

    /// Waits for a page whose title begins with these words.
    fn await_load(&mut self, before: u64, title: &str) {
        let begun = Instant::now();
        loop {
            if self.loaded > before
                && let Ok(shown) = self.evaluate("document.title")
                && shown.as_str().is_some_and(|shown| shown.starts_with(title))
            {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "no page `{title}`, but: {}", self.text());
            self.hear(Duration::from_millis(20));
        }
    }

    /// Evaluates an expression in the page; fails while the page is replaced.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value, String> {
        let ask = json!({ "expression": expression, "returnByValue": true });
        let mut told = self.try_call("Runtime.evaluate", &ask)?;
        match told.get("exceptionDetails") {
            Some(error) => Err(error.to_string()),
            None => Ok(told["result"]["value"].take()),
        }
    }

    /// The same, again while the page is replaced.
    fn shown(&mut self, expression: &str) -> Value {
        let begun = Instant::now();
        loop {
            match self.evaluate(expression) {
                Ok(value) if !value.is_null() => return value,
                other => assert!(begun.elapsed() < PATIENCE, "{expression}: {other:?}"),
            }
            self.hear(Duration::from_millis(20));
        }
    }

    /// Runs a program beside the page, where the page's content policy does not count, then an expression, and waits
    /// for its value.
    pub(crate) fn beside(&mut self, program: &str, expression: &str) -> Value {
        let frame = self.call("Page.getFrameTree", &json!({}));
        let frame = &frame["frameTree"]["frame"]["id"];
        let world = self.call("Page.createIsolatedWorld", &json!({ "frameId": frame, "worldName": "judge" }));
        let world = &world["executionContextId"];
        let loaded = self.call("Runtime.evaluate", &json!({ "expression": program, "contextId": world }));
        assert!(loaded["exceptionDetails"].is_null(), "{}", loaded["exceptionDetails"]);
        let ask = json!({ "expression": expression, "contextId": world, "returnByValue": true, "awaitPromise": true });
        let mut told = self.call("Runtime.evaluate", &ask);
        assert!(told["exceptionDetails"].is_null(), "{}", told["exceptionDetails"]);
        told["result"]["value"].take()
    }

    /// Takes a picture of what is in view, as the base64 text of a PNG.
    pub(crate) fn picture(&mut self) -> String {
        let told = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        told["data"].as_str().unwrap().to_owned()
    }

    /// The visible text of the page.
    pub(crate) fn text(&mut self) -> String {
        self.shown("document.body?.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Begins to count anew.
    pub(crate) fn begin(&mut self) {
        self.spent = Spent::default();
        self.begun = Instant::now();
    }

    /// What was spent since then.
    pub(crate) fn spent(&self) -> Spent {
        Spent { took: self.begun.elapsed(), ..self.spent }
    }

    /// Presses and releases a key. `text`: what it types, if anything.
    fn press(&mut self, key: &str, code: u32, text: Option<&str>) {
        let mut event = json!({ "type": "keyDown", "key": key, "windowsVirtualKeyCode": code });
        if let Some(text) = text {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", &event);
        let event = json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", &event);
    }

    fn keys(&mut self, text: &str) {
        let mut room = [0; 4];
        for char in text.chars() {
            let char: &str = char.encode_utf8(&mut room);
            self.press(char, 0, Some(char));
        }
    }

    /// Types a text into what has the focus, over what is selected there.
    pub(crate) fn write(&mut self, text: &str) {
        self.spent.groups += 1;
        self.keys(text);
    }

    /// What has the focus.
    pub(crate) fn focus(&mut self) -> Focus {
        let shown = self.shown(FOCUS);
        let word = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
        Focus { tag: word("tag"), text: word("text"), label: word("label"), row: word("row") }
    }

    /// Presses Tab until what is wanted has the focus.
    pub(crate) fn walk(&mut self, what: &str, is_wanted: impl Fn(&Focus) -> bool) {
        self.spent.groups += 1;
        for _ in 0..FAR {
            if is_wanted(&self.focus()) {
                return;
            }
            self.press("Tab", 9, None);
        }
        panic!("Tab does not lead to {what}: {}", self.text());
    }

    /// Presses Enter, and waits for a page whose title begins with these words.
    pub(crate) fn enter(&mut self, title: &str) {
        self.spent.loads += 1;
        let before = self.loaded;
        self.press("Enter", 13, Some("\r"));
        self.await_load(before, title);
    }

    /// Goes to a page of the navigation: by its keys, or without scripts by its link.
    pub(crate) fn go(&mut self, page: &str) {
        let key = match page {
            "Now" => "n",
            "Policies" => "p",
            "Keys" => "k",
            "Why" => "w",
            "Guards" => "u",
            "Alerts" => "a",
            "Changes" => "c",
            other => panic!("no page is called {other}"),
        };
        if self.scripts {
            self.spent.groups += 1;
            self.spent.loads += 1;
            let before = self.loaded;
            self.keys("g");
            self.keys(key);
            self.await_load(before, page);
        } else {
            self.walk(page, |focus| focus.tag == "A" && focus.text == page);
            self.enter(page);
        }
    }
}

impl Drop for Browser {
    /// Its helper processes end with it.
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.input.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
    }
}
