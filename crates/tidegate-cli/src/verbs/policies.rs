//! Manages the policies of all nodes: puts and shows them, rolls them back, and lists which version each node uses.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use serde_json::json;
use tidegate::cluster::Coordinator;
use tidegate::cluster::policies::{self as put_for_all, PutError, Version};
use tidegate::config::{Config, Format, MAX_BYTES, read_text};
use tidegate::visible;
use tidegate_server::open_coordinator;

use super::serve::unopened;
use crate::args::{Policies, PolicyFile};
use crate::exit::{Exit, Mistake};
use crate::features;
use crate::output::Printer;
use crate::policies::{self, Loaded};
use crate::styled::{Cell, Look, table};

type Cluster = Arc<dyn Coordinator>;

pub(crate) fn run(verb: &Policies, printer: &Printer) -> Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        match verb {
            Policies::Put { file, replacing, own } => {
                let own = own_file(own, printer)?;
                let text = checked(file, &own, printer)?;
                put(&reach(&own).await?, text, *replacing, printer).await
            }
            Policies::Show { which, own } => show(&cluster(own, printer).await?, *which, printer).await,
            Policies::History { own } => history(&cluster(own, printer).await?, printer).await,
            Policies::Rollback { which: version, own } => {
                let again = put_for_all::rollback(&*cluster(own, printer).await?, *version).await?;
                let told = format!("version {version} is put for all nodes again, as version {again}");
                printer.value(&json!({ "version": again, "of": version }), |_| Ok(told))?;
                Ok(Exit::Done)
            }
            Policies::Nodes { own } => nodes(&cluster(own, printer).await?, printer).await,
        }
    });
    // A client of an engine may keep a task that never ends.
    runtime.shutdown_background();
    ended
}

/// A node's own file tells how to reach the cluster.
fn own_file(named: &PolicyFile, printer: &Printer) -> Result<Config> {
    let Some(file) = policies::file(named) else {
        let wrong = "name a node's own file, which says how the cluster is reached: -c tidegate.yaml";
        return Err(Mistake(wrong.to_owned()).into());
    };
    let own = policies::read(&file, &printer.silent())?;
    if !own.store.takes_cluster_policies() {
        let (name, kind) = (file.display(), own.store.word());
        let wrong = format!(
            "{name}: nodes of this file use the policies in it (`store.kind: {kind}`); to have them use those that are put for all, write \
             store.policies: cluster, where store.kind is etcd or zookeeper"
        );
        return Err(Mistake(wrong).into());
    }
    features::check_engine(&own)?;
    Ok(own)
}

async fn reach(own: &Config) -> Result<Cluster> {
    open_coordinator(&own.store).await.map_err(unopened)
}

async fn cluster(own: &PolicyFile, printer: &Printer) -> Result<Cluster> {
    reach(&own_file(own, printer)?).await
}

/// Reads policies and checks them as the node with the file `own` will.
fn checked(file: &Path, own: &Config, printer: &Printer) -> Result<String> {
    let name = file.display().to_string();
    let text = policies::patiently(file, |file| read_text(file, MAX_BYTES as u64))?
        .map_err(|error| Mistake(format!("{name} {error}")))?;
    if Format::of_text(&text) != Format::of(file) {
        let (by_name, by_text) = match Format::of(file) {
            Format::Toml => ("TOML", "YAML"),
            Format::Yaml => ("YAML", "TOML"),
        };
        return Err(Mistake(format!(
            "{name}: the name says that it is {by_name}, and its first line that it is {by_text}"
        ))
        .into());
    }
    let outcome = own.with_policies(&text, &name);
    policies::accept(Loaded { outcome, source: (name, Some(text.clone())) }, printer)?;
    Ok(text)
}

async fn put(cluster: &Cluster, text: String, replacing: Option<u64>, printer: &Printer) -> Result<Exit> {
    let version = put_for_all::put(&**cluster, text.into_bytes(), replacing).await?;
    let told =
        format!("version {version} is put for all nodes; `tidegate policies nodes` says which nodes use it");
    printer.value(&json!({ "version": version }), |_| Ok(told))?;
    Ok(Exit::Done)
}

async fn show(cluster: &Cluster, version: Option<u64>, printer: &Printer) -> Result<Exit> {
    let mut kept = kept(cluster).await?;
    let found = match version {
        None => kept.pop().map(|(version, _)| version).ok_or_else(|| anyhow!("{NONE}")),
        Some(wanted) => {
            let at = kept.iter().position(|(held, _)| held.version == wanted);
            let numbers = || kept.iter().map(|(held, _)| held.version).collect();
            at.map(|at| kept[at].0.clone())
                .ok_or_else(|| PutError::NoVersion { version: wanted, kept: numbers() }.into())
        }
    }?;
    let text = String::from_utf8_lossy(&found.bytes);
    let value = json!({ "version": found.version, "text": text });
    printer.value(&value, |_| Ok(visible::lines(&text).into_owned()))?;
    Ok(Exit::Done)
}

const NONE: &str = "no policies were put for all nodes; put some with `tidegate policies put FILE`";

/// Returns the versions that are kept, ascending, and whether each is in force.
async fn kept(cluster: &Cluster) -> Result<Vec<(Version, bool)>> {
    let current = put_for_all::current(&**cluster).await?;
    let before = put_for_all::history(&**cluster).await?;
    // Put in between, a version appears in both answers.
    let before =
        before.into_iter().filter(|held| current.as_ref().is_none_or(|now| held.version < now.version));
    let mut all: Vec<_> = before.map(|held| (held, false)).collect();
    all.extend(current.map(|now| (now, true)));
    Ok(all)
}

async fn history(cluster: &Cluster, printer: &Printer) -> Result<Exit> {
    let kept = kept(cluster).await?;
    let one = |(held, in_force): &(Version, bool)| json!({ "version": held.version, "bytes": held.bytes.len(), "in_force": in_force });
    let value = json!({ "versions": kept.iter().map(one).collect::<Vec<_>>() });
    printer.value(&value, |_| {
        if kept.is_empty() {
            return Ok(NONE.to_owned().into());
        }
        let rows = kept.iter().map(|(held, in_force)| {
            let state = if *in_force { "in force" } else { "kept" };
            vec![held.version.to_string(), held.bytes.len().to_string(), state.to_owned()]
        });
        Ok(table(&["VERSION", "BYTES", "STATE"], &[0, 1], rows))
    })?;
    Ok(Exit::Done)
}

async fn nodes(cluster: &Cluster, printer: &Printer) -> Result<Exit> {
    // Probably the document that nodes refuse, so list the nodes all the same.
    let in_force = match put_for_all::current(&**cluster).await {
        Ok(current) => current.map_or(0, |now| now.version),
        Err(PutError::Foreign(_)) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut nodes = put_for_all::nodes(&**cluster).await.context("the members cannot be asked for")?;
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    let one = |node: &put_for_all::Following| {
        let refuses = node.refused.as_ref().map(|(version, why)| json!({ "version": version, "why": why }));
        json!({ "node": node.node, "follows": node.follows, "refuses": refuses })
    };
    let value = json!({ "in_force": in_force, "nodes": nodes.iter().map(one).collect::<Vec<_>>() });
    printer.value(&value, |_| {
        if nodes.is_empty() {
            return Ok("no node is in the cluster".to_owned().into());
        }
        let rows = nodes.iter().map(|node| {
            let follows = match node.follows {
                0 => "its file".to_owned(),
                version => version.to_string(),
            };
            let late = (node.follows != in_force).then_some(Look::Bad);
            let (refuses, why) = match &node.refused {
                None => ("-".to_owned(), "-".to_owned()),
                Some((0, why)) => ("the last".to_owned(), why.clone()),
                Some((version, why)) => (version.to_string(), why.clone()),
            };
            vec![Cell::from(node.node.clone()), Cell::looking(follows, late), refuses.into(), why.into()]
        });
        Ok(table(&["NODE", "USES", "REFUSES", "WHY"], &[], rows))
    })?;
    Ok(if nodes.iter().any(|node| node.refused.is_some()) { Exit::No } else { Exit::Done })
}
