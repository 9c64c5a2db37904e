//! What pages look like: without overlaps at twice the size, for people who use a screen reader, and as pictures.

use std::path::Path;

use serde_json::Value;

use super::browser::{Browser, Size, WIDE};
use super::stand::Stand;
use super::tasks::Rows;

const THEMES: [&str; 2] = ["light", "dark"];

/// A page of 1,280 pixels at 200 %.
const DOUBLED: Size = Size { width: 640, height: 450, scale: 2 };

/// Counts what axe finds serious, with the rules and the places.
const FINDINGS: &str = r#"axe.run(document).then((told) => told.violations
  .filter((one) => one.impact === "serious" || one.impact === "critical")
  .map((one) => `${one.id} at ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`))"#;

/// The pages: name and path.
pub(crate) struct Pages(Vec<(&'static str, String)>);

impl Pages {
    /// `id`: of a refusal.
    pub(crate) fn new(id: &str) -> Self {
        Self(vec![
            ("now", "/ui/".to_owned()),
            ("policies", "/ui/policies".to_owned()),
            ("policy", "/ui/policies/per-ip".to_owned()),
            ("keys", "/ui/keys".to_owned()),
            ("key", "/ui/keys/per-tenant?tenant.id=t1&tenant.plan=free".to_owned()),
            ("why", format!("/ui/why?id={id}")),
            ("guards", "/ui/guards".to_owned()),
            ("alerts", "/ui/alerts".to_owned()),
            ("changes", "/ui/changes".to_owned()),
            ("lab", "/ui/lab/per-ip?rate=6%2Fs&burst=12".to_owned()),
        ])
    }

    /// Compares the width of each page with that of the window.
    pub(crate) fn double(&self, browser: &mut Browser, stand: &Stand, rows: &mut Rows) {
        browser.resize(DOUBLED);
        let mut wide = Vec::new();
        for (name, path) in &self.0 {
            browser.open(&stand.page(path));
            let fits = browser
                .evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth");
            if fits.unwrap().as_bool() != Some(true) {
                wide.push(*name);
            }
        }
        browser.resize(WIDE);
        let measured = match wide.as_slice() {
            [] => format!("{} pages fit", self.0.len()),
            wide => format!("too wide: {}", wide.join(", ")),
        };
        rows.add("11 at 200 %", "no page is wider than the window", measured, wide.is_empty());
    }

    /// Runs axe-core on each page in both themes.
    pub(crate) fn judge(&self, browser: &mut Browser, stand: &Stand, axe: &str, rows: &mut Rows) {
        for theme in THEMES {
            browser.open(&stand.page(&format!("/ui/?theme={theme}")));
            let mut found = Vec::new();
            for (name, path) in &self.0 {
                browser.open(&stand.page(path));
                let told = browser.beside(axe, FINDINGS);
                let told = told.as_array().unwrap().iter().filter_map(Value::as_str);
                found.extend(told.map(|one| format!("{name}: {one}")));
            }
            let measured = match found.as_slice() {
                [] => format!("0 on {} pages", self.0.len()),
                found => format!("{}: {}", found.len(), found.join("; ")),
            };
            let task = format!("11 axe-core, {theme}");
            rows.add(&task, "0 serious findings", measured, found.is_empty());
        }
    }

    /// Writes a picture of each page in both themes.
    pub(crate) fn draw(&self, browser: &mut Browser, stand: &Stand, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        for theme in THEMES {
            browser.open(&stand.page(&format!("/ui/?theme={theme}")));
            for (name, path) in &self.0 {
                browser.open(&stand.page(path));
                let picture = bytes_of(&browser.picture());
                std::fs::write(folder.join(format!("{name}-{theme}.png")), picture).unwrap();
            }
        }
    }
}

/// Reads base64.
fn bytes_of(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(value).collect();
    let mut out = Vec::with_capacity(digits.len());
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0_u32, |bits, digit| (bits << 6) | u32::from(*digit));
        let bits = bits << (6 * (4 - four.len()) + 8);
        out.extend_from_slice(&bits.to_be_bytes()[..four.len() - 1]);
    }
    out
}
