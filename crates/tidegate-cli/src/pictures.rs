//! What form a picture has, by the name of its file.

use std::path::Path;

use crate::exit::Mistake;

/// Forms that a name may ask for and that pictures are not written in.
const OTHERS: [&str; 6] = ["png", "jpg", "jpeg", "gif", "webp", "pdf"];

/// Refuses a file whose name asks for anything but SVG, and says how to come by it. A renderer that draws pixels was measured: 2.3 MB more
/// of program, 57 more crates and a minute of processor time to build them, and it needs the machine's fonts.
///
/// # Errors
/// [`Mistake`], with the command that converts.
pub(crate) fn is_svg(path: &Path) -> Result<(), Mistake> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let Some(ending) = ending.filter(|ending| OTHERS.contains(&ending.as_str())) else { return Ok(()) };
    let (name, svg) = (path.display(), path.with_extension("svg"));
    let svg = svg.display();
    let how = match ending.as_str() {
        "png" => format!("rsvg-convert -z 2 {svg} -o {name}"),
        "pdf" => format!("rsvg-convert -f pdf {svg} -o {name}"),
        _ => format!("magick {svg} {name}"),
    };
    Err(Mistake(format!("{name}: pictures are drawn as SVG; write --plot {svg}, and then convert it: {how}")))
}

/// Refuses a folder that is named like a file.
///
/// # Errors
/// [`Mistake`].
pub(crate) fn is_folder(path: &Path) -> Result<(), Mistake> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let is_file =
        ending.is_some_and(|ending| OTHERS.contains(&ending.as_str()) || ending == "svg" || ending == "html");
    if !is_file || path.is_dir() {
        return Ok(());
    }
    let folder = path.with_extension("");
    Err(Mistake(format!(
        "{}: a replay writes several pictures and a report.html; name a folder, such as --plot {}",
        path.display(),
        folder.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_asks_for_pixels_is_told_how_to_get_them() {
        let told = is_svg(Path::new("out/load.PNG")).unwrap_err().0;
        assert_eq!(
            told,
            "out/load.PNG: pictures are drawn as SVG; write --plot out/load.svg, and then convert it: \
             rsvg-convert -z 2 out/load.svg -o out/load.PNG"
        );
        assert!(is_svg(Path::new("a.svg")).is_ok() && is_svg(Path::new("png")).is_ok());
        assert!(is_folder(Path::new("out")).is_ok() && is_folder(Path::new("out.d")).is_ok());
        assert!(is_folder(Path::new("x.svg")).unwrap_err().0.ends_with("such as --plot x"));
    }
}
