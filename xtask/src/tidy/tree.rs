//! The tracked files, read once for all rules.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use syn::Item;

/// The files that git tracks, by their paths from the root of the workspace.
pub(crate) struct Tree {
    files: BTreeMap<String, File>,
    is_checkout: bool,
}

struct File {
    /// `None` if the file is not text.
    text: Option<String>,
    /// The items of a Rust file, parsed at first use.
    items: OnceCell<syn::Result<Vec<Item>>>,
}

impl Tree {
    /// Reads all tracked files of a checkout, except those that are deleted but still tracked.
    pub(crate) fn tracked(root: &Path) -> Result<Self> {
        let git = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
        let git = git.context("cannot start git, which knows the tracked files")?;
        if !git.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&git.stderr).trim());
        }
        let list = String::from_utf8(git.stdout).context("a tracked file has a name that is no UTF-8")?;
        let mut files = BTreeMap::new();
        for path in list.split_terminator('\0') {
            let place = root.join(path);
            if !place.is_file() {
                continue;
            }
            let bytes = std::fs::read(&place).with_context(|| format!("cannot read {path}"))?;
            files.insert(path.to_owned(), File::new(bytes));
        }
        Ok(Self { files, is_checkout: true })
    }

    /// Makes a tree for tests from paths and texts.
    #[cfg(test)]
    pub(crate) fn made(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| ((*path).to_owned(), File::new(text.as_bytes().to_vec()));
        Self { files: files.iter().map(file).collect(), is_checkout: false }
    }

    /// Says whether these are the files of this workspace, which cargo can be asked about.
    pub(crate) const fn is_checkout(&self) -> bool {
        self.is_checkout
    }

    /// Returns a Rust file's syntax error, if there is one.
    pub(crate) fn error(&self, path: &str) -> Option<&syn::Error> {
        self.files.get(path)?.parse()?.as_ref().err()
    }

    /// Lists the paths of all files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Lists the paths of Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &str> {
        self.paths().filter(|path| path.ends_with(".rs"))
    }

    /// Lists all text files: path and text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, file)| Some((path.as_str(), file.text.as_deref()?)))
    }

    /// Returns the text of a file; `None` if it does not exist or is not text.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.text.as_deref()
    }

    /// Returns a path as stored in the tree; `None` if there is no such file.
    pub(crate) fn path(&self, path: &str) -> Option<&str> {
        self.files.get_key_value(path).map(|(path, _)| path.as_str())
    }

    /// Returns the items of a Rust file; empty if it does not exist or does not parse.
    pub(crate) fn items(&self, path: &str) -> &[Item] {
        match self.files.get(path).and_then(File::parse) {
            Some(Ok(items)) => items,
            _ => &[],
        }
    }
}

impl File {
    fn new(bytes: Vec<u8>) -> Self {
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        Self { text, items: OnceCell::new() }
    }

    fn parse(&self) -> Option<&syn::Result<Vec<Item>>> {
        let text = self.text.as_deref()?;
        Some(self.items.get_or_init(|| syn::parse_file(text).map(|file| file.items)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_file_is_tracked_and_parses() {
        let tree = Tree::tracked(crate::step::root()).unwrap();
        assert!(tree.path("xtask/src/main.rs").is_some());
        assert!(!tree.items("xtask/src/main.rs").is_empty());
    }
}
