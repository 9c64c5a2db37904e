//! Judges protections against overload and writes the figures: all tables as data, those of the manual, and its pictures.
//!
//! `cargo run --release -p tidegate-lab --example overload` writes lab/results/overload.tsv, the tables between the marks of
//! docs/figures.md, and docs/images, in the current folder or the one given as an argument. Takes some twenty minutes on
//! two processors.

use std::fs;
use std::path::PathBuf;

use tidegate_lab::overload::figures;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::args_os().nth(1).map_or_else(PathBuf::new, PathBuf::from);
    let (images, results) = (root.join("docs/images"), root.join("lab/results"));
    fs::create_dir_all(&images)?;
    fs::create_dir_all(&results)?;
    for (name, svg) in figures::pictures()? {
        fs::write(images.join(name), svg)?;
    }
    let (data, page) = (figures::data(), root.join("docs/figures.md"));
    fs::write(results.join("overload.tsv"), &data)?;
    if page.is_file() {
        let text = figures::with_section(&fs::read_to_string(&page)?, &data);
        fs::write(page, text.ok_or("docs/figures.md has no place for the tables about overload")?)?;
    }
    Ok(())
}
