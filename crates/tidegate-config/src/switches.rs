//! Reads `switches`: what turns degrade switches off.

use super::conditions;
use super::diagnostic::Findings;
use super::node::{Name, Node, Spot};
use tidegate_gate::policy::{Trigger, span};
use tidegate_limits::visible::excerpt;

/// Returns the switches of the file, each with its name and its triggers.
fn switches(file: &Node) -> impl Iterator<Item = (&Name, &[Node])> {
    let switches = file.get("switches").map_or(&[][..], Node::entries).iter();
    switches.map(|(name, triggers)| (name, triggers.each()))
}

/// Returns each trigger of the file with the name of its switch.
pub(super) fn written(file: &Node) -> impl Iterator<Item = (&Name, &Node)> {
    switches(file).flat_map(|(name, triggers)| triggers.iter().map(move |one| (name, one)))
}

/// Builds the triggers that have no mistake. The mistakes of the others are among the findings.
pub(super) fn triggers(file: &Node, findings: &mut Findings) -> Vec<Trigger> {
    let mut built = Vec::new();
    for (name, _) in switches(file).filter(|(_, triggers)| triggers.is_empty()) {
        let shown = excerpt(&name.text);
        findings.error(
            name.spot,
            format_args!(
                "switch \"{shown}\": nothing turns it off; write `off_when: cpu above 80%`, or leave the switch out"
            ),
        );
    }
    for (name, node) in written(file) {
        findings.subject = format!("switch \"{}\": ", excerpt(&name.text));
        built.extend(trigger(name, node, findings));
    }
    findings.subject.clear();
    built
}

/// Builds a trigger; `None` if it is invalid, which is reported here or was by the shape check.
fn trigger(name: &Name, node: &Node, findings: &mut Findings) -> Option<Trigger> {
    let off_when = node.get("off_when")?;
    let (condition, lasting) = conditions::of_switch(off_when.text()?).ok()?;
    let mut said = |spot: Spot, key: &str, error: &dyn std::fmt::Display| {
        findings.error(spot, format_args!("{key}: {error}"));
    };
    let mut trigger =
        Trigger::new(&name.text, condition).map_err(|error| said(off_when.spot, "off_when", &error)).ok()?;
    if let Some(below) = node.get("below") {
        let level = below.text()?.parse().ok()?;
        trigger = trigger.below(level).map_err(|error| said(below.spot, "below", &error)).ok()?;
    }
    if let Some(hold) = node.get("hold") {
        let time = span(hold.text()?).ok()?;
        trigger = trigger.hold(time).map_err(|error| said(hold.spot, "hold", &error)).ok()?;
    }
    if let Some(lasting) = lasting {
        trigger = trigger.lasting(lasting).map_err(|error| said(off_when.spot, "off_when", &error)).ok()?;
    }
    Some(trigger)
}
