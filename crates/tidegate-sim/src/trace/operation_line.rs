//! The lines of a trace: one operation in, with the fields that it takes, and one line of JSON out. Spans are in
//! nanoseconds.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use tidegate::Quota;
use tidegate::limiter::Standing;
use tidegate_core::decision::Ruling;
use tidegate_core::{Retry, State};

use super::subject::{ChargedLimit, algorithm};

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Op {
    #[default]
    Allow,
    Reserve,
    Peek,
    Settle,
    Cancel,
    Change,
}

impl Op {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Reserve => "reserve",
            Self::Peek => "peek",
            Self::Settle => "settle",
            Self::Cancel => "cancel",
            Self::Change => "change",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReplaceWord {
    AsIs,
    Proportional,
    Reset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LineIn<'a> {
    pub(super) t: u64,
    #[serde(borrow, default)]
    pub(super) key: Cow<'a, str>,
    pub(super) attrs: Option<BTreeMap<String, String>>,
    pub(super) cost: Option<u64>,
    #[serde(default)]
    pub(super) op: Op,
    pub(super) max_wait: Option<u64>,
    #[serde(borrow)]
    pub(super) id: Option<Cow<'a, str>>,
    pub(super) used: Option<u64>,
    #[serde(borrow)]
    pub(super) rate: Option<Cow<'a, str>>,
    pub(super) burst: Option<u64>,
    pub(super) replace: Option<ReplaceWord>,
}

impl LineIn<'_> {
    pub(super) fn check(&self) -> Result<(), String> {
        const ASKS: &[Op] = &[Op::Allow, Op::Reserve, Op::Peek];
        let fields: [(&str, bool, &[Op]); 8] = [
            ("max_wait", self.max_wait.is_some(), &[Op::Reserve, Op::Peek]),
            ("rate", self.rate.is_some(), &[Op::Change]),
            ("burst", self.burst.is_some(), &[Op::Change]),
            ("replace", self.replace.is_some(), &[Op::Change]),
            ("cost", self.cost.is_some(), ASKS),
            ("attrs", self.attrs.is_some(), ASKS),
            ("id", self.id.is_some(), &[Op::Allow, Op::Reserve, Op::Settle, Op::Cancel]),
            ("used", self.used.is_some(), &[Op::Settle]),
        ];
        let stray = fields.into_iter().find(|(_, there, ops)| *there && !ops.contains(&self.op));
        match stray {
            Some((name, ..)) => Err(format!("op `{}` has no field `{name}`", self.op.word())),
            None => Ok(()),
        }
    }
}

pub(super) fn head(out: &mut String, t: u64, key: &str, op: Op) {
    let key = text(key);
    let _ = write!(out, r#"{{"t":{t},"key":{key},"op":"{}""#, op.word());
}

/// Writes whether it was allowed. `retry_after` is null if no wait is known to help.
pub(super) fn ruling(out: &mut String, ruling: Ruling) {
    let _ = match ruling {
        Ruling::Allowed { wait } => {
            write!(out, r#","allowed":true,"wait":{},"retry_after":0"#, wait.as_nanos())
        }
        Ruling::Denied { retry } => {
            let word = retry.as_str();
            let after = retry.after().map_or_else(|| "null".to_owned(), |wait| wait.as_nanos().to_string());
            write!(out, r#","allowed":false,"wait":0,"retry":"{word}","retry_after":{after}"#)
        }
    };
}

/// Writes that a deny-list refused it before any limit was checked.
pub(super) fn listed(out: &mut String, entry: &str) {
    ruling(out, Ruling::Denied { retry: Retry::Never });
    let _ = write!(out, r#","denied_by_list":{},"limits":[]"#, text(entry));
}

pub(super) fn name(out: &mut String, charged: &ChargedLimit) {
    if let Some((policy, label)) = &charged.name {
        let (policy, label) = (text(policy), text(label));
        let _ = write!(
            out,
            r#""policy":{policy},"limit":{label},"binding":{},"cost":{}"#,
            charged.binding, charged.cost
        );
    }
}

pub(super) fn standing(out: &mut String, standing: &Standing) {
    let Standing { remaining, debt, reset_after, .. } = standing;
    let _ = write!(out, r#","remaining":{remaining},"debt":{debt},"reset_after":{}"#, reset_after.as_nanos());
}

/// Writes a state in its byte form, as hexadecimal digits.
pub(super) fn state(out: &mut String, quota: &Quota, state: &State) {
    let _ = write!(out, r#","state":{{"algorithm":"{}","bytes":""#, algorithm(quota));
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for byte in state.encode() {
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
    }
    out.push_str("\"}");
}

fn text(raw: &str) -> String {
    let quoted = serde_json::to_string(raw).unwrap_or_default();
    tidegate::visible::json(&quoted).into_owned()
}
