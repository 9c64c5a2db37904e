//! The input of a trace: one operation per line, and the fields that each operation takes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

/// The operation of a line.
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
    /// Refuses fields that the operation does not use.
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
