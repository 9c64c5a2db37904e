//! Finds which files of a target use which others, and which items.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use crate::tidy::modules::Modules;

/// The using file, and the used file.
pub(crate) type Edge<'t> = (&'t str, &'t str);

/// For each use, the lines and the items named there.
pub(crate) type Uses<'t> = BTreeMap<Edge<'t>, BTreeSet<(usize, String)>>;

/// Returns the uses between the files of a target, without tests.
pub(crate) fn uses<'t>(modules: &Modules<'t>) -> Uses<'t> {
    let names = Names::of(modules);
    let mut uses = Uses::new();
    for (index, module) in modules.all.iter().enumerate().filter(|(_, module)| !module.test) {
        let code = names.code(index);
        let imports = code.imports.iter().filter(|import| !import.test && !import.handed_on);
        let imports = imports.map(|import| (&import.path, import.line));
        let mentions = code.mentions.iter().filter(|mention| !mention.test);
        let mentions = mentions.map(|mention| (&mention.path, mention.line));
        for (path, line) in imports.chain(mentions) {
            for (file, item) in names.definitions(index, path) {
                if file != module.file {
                    uses.entry((module.file, file)).or_default().insert((line, item));
                }
            }
        }
    }
    uses
}
