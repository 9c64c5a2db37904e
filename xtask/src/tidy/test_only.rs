//! Recognises test-only code: code that exists only in builds for tests or model checks.

use syn::punctuated::Punctuated;
use syn::{Attribute, ImplItem, Item, Meta, Token, TraitItem};

/// The conditions that only tests, documentation tests and loom's models enable.
const TEST_BUILDS: [&str; 3] = ["test", "doctest", "tidegate_loom"];

/// Returns whether these attributes make an item test-only. `#[test]`, `#[cfg(test)]` and `#[cfg(all(test, unix))]` do;
/// `#[cfg(any(test, unix))]` and `#[cfg(not(test))]` do not.
pub(crate) fn test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let test = path.segments.last().is_some_and(|last| last.ident == "test");
        test || path.is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|meta| holds(&meta) == Some(false))
    })
}

/// Evaluates a condition outside of test builds; `None` if it depends on something else.
fn holds(condition: &Meta) -> Option<bool> {
    match condition {
        Meta::Path(path) if TEST_BUILDS.iter().any(|build| path.is_ident(build)) => Some(false),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let parts: Vec<Option<bool>> = parts.iter().map(holds).collect();
            let decides = |part: bool| {
                if parts.contains(&Some(part)) {
                    return Some(part);
                }
                parts.iter().all(|known| *known == Some(!part)).then_some(!part)
            };
            if list.path.is_ident("all") {
                decides(false)
            } else if list.path.is_ident("any") {
                decides(true)
            } else {
                parts.first().copied().flatten().map(|part| !part)
            }
        }
        _ => None,
    }
}

/// Returns the attributes of an item of any kind.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item in an `impl`.
pub(crate) fn attributes_in_impl(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item in a trait.
pub(crate) fn attributes_in_trait(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        TraitItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_only_tests_meet_is_told_from_one_that_others_meet_too() {
        for (condition, only) in [
            ("#[test]", true),
            ("#[tokio::test(start_paused = true)]", true),
            ("#[cfg(test)]", true),
            ("#[cfg(tidegate_loom)]", true),
            ("#[cfg(all(test, not(tidegate_loom)))]", true),
            ("#[cfg(any(test, tidegate_loom))]", true),
            ("#[cfg(any(test, feature = \"config\"))]", false),
            ("#[cfg(not(test))]", false),
            ("#[cfg(all(unix, not(test)))]", false),
            ("#[cfg(unix)]", false),
            ("#[must_use]", false),
        ] {
            let item: Item = syn::parse_str(&format!("{condition} fn subject() {{}}")).unwrap();
            assert_eq!(test_only(attributes(&item)), only, "{condition}");
        }
    }
}
