//! The table of features in the documentation names every feature of the crate.

#[test]
fn the_table_names_every_feature() {
    let manifest = include_str!("../../Cargo.toml");
    let (_, features) = manifest.split_once("\n[features]\n").unwrap();
    let (features, _) = features.split_once("\n[").unwrap();
    let names = features.lines().filter_map(|line| line.split_once(" = [")).map(|(name, _)| name);
    let table = include_str!("../../src/docs/features.md");
    let mut seen = 0;
    for name in names.filter(|name| *name != "default") {
        assert!(table.contains(&format!("\n| `{name}`")), "{name} is not in the table of features");
        seen += 1;
    }
    assert_eq!(seen, table.lines().filter(|line| line.starts_with("| `")).count(), "a feature that is gone");
    assert!(features.contains("default = [\"tz\"]") && table.contains("`tz`, the default"));
}
