//! Chooses the format of a picture by its file name, and whether a replay writes one picture or a folder.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use tidegate_sim::report::Form;

use crate::exit::Mistake;

/// File endings of other formats, which are not supported.
const OTHERS: [&str; 5] = ["jpg", "jpeg", "gif", "webp", "pdf"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plot {
    Folder(Form),
    File(Form),
}

/// Returns the format for a file name; SVG if the name has no known ending.
///
/// # Errors
/// [`Mistake`] for another format, with the command that converts to it.
fn form(path: &Path) -> Result<Form, Mistake> {
    let asked = ending(path);
    if asked == Form::Png.ending() {
        return Ok(Form::Png);
    }
    if !OTHERS.contains(&asked.as_str()) {
        return Ok(Form::Svg);
    }
    let name = path.display();
    let from = |form: Form| path.with_extension(form.ending());
    let (drawn, how) = if asked == "pdf" {
        let drawn = from(Form::Svg);
        let how = format!("rsvg-convert -f pdf {} -o {name}", drawn.display());
        (drawn, how)
    } else {
        let drawn = from(Form::Png);
        let how = format!("magick {} {name}", drawn.display());
        (drawn, how)
    };
    Err(Mistake(format!(
        "{name}: pictures are drawn as SVG or PNG; write --plot {}, and then convert it: {how}",
        drawn.display()
    )))
}

/// Returns the format of a single picture, like [`form`], and checks that its folder exists. Called before a run, which
/// takes a while.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<Form> {
    let form = form(path)?;
    has_folder(path)?;
    Ok(form)
}

fn has_folder(path: &Path) -> anyhow::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    let cannot = || format!("--plot: cannot write {}", path.display());
    match folder.metadata() {
        Ok(there) if there.is_dir() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(cannot),
        _ => Err(anyhow!("{}: there is no folder {}; make it first", cannot(), folder.display())),
    }
}

impl Plot {
    /// Determines what a replay writes at a path, like [`plot`], and makes the folder. Called before the log is read,
    /// which takes a while.
    pub(crate) fn prepare(path: &Path, png: bool) -> anyhow::Result<Self> {
        let plot = plot(path, png)?;
        if plot.has_report() {
            std::fs::create_dir_all(path)
                .with_context(|| format!("--plot: cannot make {}", path.display()))?;
        } else {
            has_folder(path)?;
        }
        Ok(plot)
    }

    pub(crate) fn has_report(self) -> bool {
        matches!(self, Self::Folder(_))
    }
}

/// Determines what a replay writes at a path: one picture if it has the name of one, otherwise a folder, with PNG
/// pictures if `png` is set.
///
/// # Errors
/// [`Mistake`] if the name is that of another kind of file, or contradicts `png`.
fn plot(path: &Path, png: bool) -> Result<Plot, Mistake> {
    let asked = ending(path);
    if asked == "html" && !path.is_dir() {
        return Err(Mistake(format!(
            "{}: the report is written into a folder, as report.html; name the folder, such as --plot {}",
            path.display(),
            path.with_extension("").display()
        )));
    }
    let is_file = asked == "svg" || asked == "png" || OTHERS.contains(&asked.as_str());
    if path.is_dir() || !is_file {
        return Ok(Plot::Folder(if png { Form::Png } else { Form::Svg }));
    }
    match form(path)? {
        Form::Svg if png => Err(Mistake(format!(
            "{}: --png is for a folder of pictures; for one as PNG write --plot {}",
            path.display(),
            path.with_extension("png").display()
        ))),
        form => Ok(Plot::File(form)),
    }
}

fn ending(path: &Path) -> String {
    path.extension().map_or_else(String::new, |ending| ending.to_string_lossy().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_form_and_others_are_told_how_to_get_theirs() {
        for (name, wanted) in
            [("a.svg", Form::Svg), ("png", Form::Svg), ("a", Form::Svg), ("o/a.PNG", Form::Png)]
        {
            assert_eq!(form(Path::new(name)).unwrap(), wanted, "{name}");
        }
        let rows = [
            (
                "out/load.JPG",
                "write --plot out/load.png, and then convert it: magick out/load.png out/load.JPG",
            ),
            ("x.pdf", "write --plot x.svg, and then convert it: rsvg-convert -f pdf x.svg -o x.pdf"),
        ];
        for (name, told) in rows {
            let wanted = format!("{name}: pictures are drawn as SVG or PNG; {told}");
            assert_eq!(form(Path::new(name)).unwrap_err().0, wanted);
            assert_eq!(plot(Path::new(name), false).unwrap_err().0, wanted);
        }
    }

    #[test]
    fn a_replay_writes_a_folder_or_one_picture() {
        let rows = [
            ("out", false, Plot::Folder(Form::Svg)),
            ("out.d", true, Plot::Folder(Form::Png)),
            ("x.svg", false, Plot::File(Form::Svg)),
            ("x.png", false, Plot::File(Form::Png)),
            ("x.png", true, Plot::File(Form::Png)),
        ];
        for (name, png, wanted) in rows {
            assert_eq!(plot(Path::new(name), png).unwrap(), wanted, "{name} {png}");
        }
        let told = |name: &str| plot(Path::new(name), true).unwrap_err().0;
        assert!(told("x.svg").ends_with("for one as PNG write --plot x.png"));
        assert!(told("out/report.html").ends_with("such as --plot out/report"));
    }
}
