//! Judges protections against overload and writes the figures of the manual:
//! `cargo run --release -p tidegate-sim --example overload`, into `docs` or the folder given as an argument. Takes some
//! twenty minutes on two processors.

use std::fs;
use std::path::PathBuf;

use tidegate_sim::overload::figures;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let docs = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("docs"), PathBuf::from);
    let (images, pages) = (docs.join("images"), docs.join("protection"));
    fs::create_dir_all(&images)?;
    fs::create_dir_all(&pages)?;
    for (name, svg) in figures::pictures()? {
        fs::write(images.join(name), svg)?;
    }
    fs::write(pages.join("overload-figures.md"), figures::page())?;
    Ok(())
}
