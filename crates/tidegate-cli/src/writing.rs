//! Writes files completely or not at all, and chooses the format of a picture by its file name.
//!
//! A new file is written beside the old one, under a random name that must not exist yet, synced to disk, and then
//! renamed over it. So a full disk or a power cut leaves the old file intact, a server that watches it never reads half
//! a file, and a name planted in the folder by someone else is neither followed nor overwritten.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use tempfile::NamedTempFile;
use tidegate_sim::report::Form;

use crate::exit::Mistake;

/// Creates a file that must not exist yet, with the permissions of the process's umask.
///
/// # Errors
/// Of the kind `AlreadyExists` if the name exists, even as a dangling symlink.
pub(crate) fn create(path: &Path, text: &str) -> io::Result<()> {
    let new = beside(path, text.as_bytes(), None)?;
    new.persist_noclobber(path).map_err(|error| error.error)?;
    settle(path);
    Ok(())
}

/// Permissions, owner and group stay. A symlink stays, and its target is replaced. Other hard links to the file keep
/// the old content.
///
/// # Errors
/// If it is not a regular file, its owner cannot be kept, or the system reports an error. The file then stays as it
/// was.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let name = path.display();
    let target = path.canonicalize().with_context(|| format!("cannot find {name}"))?;
    let old = target.metadata().with_context(|| format!("cannot read {name}"))?;
    if !old.is_file() {
        return Err(Mistake(format!("{name} is not a regular file, and only such are replaced")).into());
    }
    let replaced = || {
        let new = beside(&target, text.as_bytes(), Some(&old))?;
        new.persist(&target).map_err(|error| error.error)?;
        settle(&target);
        io::Result::Ok(())
    };
    replaced().with_context(|| format!("cannot replace {name}; it is left as it was"))
}

/// Writes a file that can be generated again. A symlink is replaced, not followed; a device or a pipe is written to.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let put = || match path.metadata() {
        Ok(there) if !there.is_file() && !there.is_dir() => {
            File::options().write(true).open(path)?.write_all(bytes)
        }
        _ => {
            beside(path, bytes, None)?.persist(path).map_err(|error| error.error)?;
            settle(path);
            Ok(())
        }
    };
    put().with_context(|| format!("cannot write {}", path.display()))
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Writes a temporary file beside `path`, with the permissions and the owner of an old one. Dropping it deletes it.
fn beside(path: &Path, bytes: &[u8], old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tidegate-");
    #[cfg(unix)]
    if old.is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        // As for any new file. A file that replaces another is readable by its owner only until it gets the other's
        // permissions.
        builder.permissions(Permissions::from_mode(0o666));
    }
    let mut new = builder.tempfile_in(folder(path)).map_err(|error| {
        // Without the random name that was tried.
        io::Error::from(error.kind())
    })?;
    if let Some(old) = old {
        like(new.as_file(), old)?;
    }
    new.write_all(bytes)?;
    new.as_file().sync_all()?;
    Ok(new)
}

#[cfg(unix)]
fn like(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid())).map_err(|error| {
            io::Error::new(error.kind(), format!("its owner cannot be kept ({error}); be its owner"))
        })?;
    }
    // Changing the owner clears some bits.
    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
}

#[cfg(not(unix))]
fn like(file: &File, old: &Metadata) -> io::Result<()> {
    let permissions: Permissions = old.permissions();
    file.set_permissions(permissions)
}

/// Syncs a rename to disk, where folders can be synced.
fn settle(path: &Path) {
    // Both files are complete, and this only decides which one exists after a power cut.
    let _ = File::open(folder(path)).and_then(|folder| folder.sync_all());
}

// Pictures: their format by the file name, and whether a replay writes one picture or a folder.

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
pub(crate) fn prepare_picture(path: &Path) -> Result<Form> {
    let form = form(path)?;
    has_folder(path)?;
    Ok(form)
}

fn has_folder(path: &Path) -> Result<()> {
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
    pub(crate) fn prepare(path: &Path, png: bool) -> Result<Self> {
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

#[cfg(test)]
#[cfg(unix)]
mod file_tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Replacing a secret must not widen its permissions to what the umask allows.
    #[test]
    fn replacing_keeps_permissions_owner_and_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        let gone = create(&dir.path().join("gone/file"), "x").unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        assert!(!gone.to_string().contains("gone"), "{gone}");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        // Only root may give files away; for other users the owner stays the same either way.
        let given = std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).is_ok();
        symlink("file", &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!((text(&file).as_str(), text(&link).as_str()), ("new", "new"));
        assert!(link.is_symlink());
        let about = file.metadata().unwrap();
        assert_eq!(about.mode() & 0o7777, 0o640);
        assert!(!given || (about.uid(), about.gid()) == (65_534, 65_534));
        assert_eq!(names(dir.path()), ["file", "link"]);
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        assert!(replace(Path::new("/dev/null"), "x").unwrap_err().is::<Mistake>());
        let dir = tempfile::tempdir().unwrap();
        assert!(replace(dir.path(), "x").unwrap_err().is::<Mistake>());
        symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(replace(&dir.path().join("link"), "x").is_err());
    }

    #[test]
    fn a_name_that_is_taken_is_not_overwritten_nor_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, planted) = (dir.path().join("victim"), dir.path().join("planted"));
        for target in ["victim", "nowhere"] {
            let _ = std::fs::remove_file(&planted);
            std::fs::write(&victim, "kept").unwrap();
            symlink(target, &planted).unwrap();
            assert_eq!(create(&planted, "x").unwrap_err().kind(), ErrorKind::AlreadyExists);
            put(&planted, b"picture").unwrap();
            assert_eq!((text(&victim).as_str(), text(&planted).as_str()), ("kept", "picture"));
            assert!(!planted.is_symlink());
        }
        put(Path::new("/dev/null"), b"x").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
