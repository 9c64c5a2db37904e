//! Which file of a target uses which other one, and for what.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use crate::tidy::modules::Modules;

/// The file that uses, and the file that is used.
pub(crate) type Edge<'t> = (&'t str, &'t str);

/// Of each use, the lines and the items that are named there.
pub(crate) type Uses<'t> = BTreeMap<Edge<'t>, BTreeSet<(usize, String)>>;

/// Draws the uses between the files of a target, tests left out.
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
