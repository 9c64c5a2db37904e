//! Hostile files: a policy file that is a pipe, a device, too long, or on a file system that does not respond; names
//! planted where files are written; a full disk.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::attack::rounds;
use crate::attack::serving::{Desk, FIVE_A_DAY, end_of, ended, words};

/// Puts something else in place of a policy file, and returns the error that must be printed.
fn plant(desk: &Desk, name: &str, what: usize) -> &'static str {
    let path = desk.path(name);
    match what {
        0 => {
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            "is a pipe"
        }
        1 => {
            symlink("/dev/zero", &path).unwrap();
            "is a device"
        }
        2 => {
            std::fs::create_dir(&path).unwrap();
            "is a folder"
        }
        3 => {
            File::create(&path).unwrap().set_len(100 << 30).unwrap();
            "is longer than 4 MiB"
        }
        4 => {
            symlink(&path, &path).unwrap();
            "cannot be read"
        }
        5 => {
            symlink("/proc/self/mem", &path).unwrap();
            "cannot be read"
        }
        6 => {
            std::os::unix::net::UnixListener::bind(&path).unwrap();
            "is a socket"
        }
        _ => {
            std::fs::write(&path, b"version: 1 # \xff\n").unwrap();
            "is not UTF-8 text"
        }
    }
}
const PLANTS: usize = 8;

#[test]
fn a_file_that_is_none_is_named_at_once_by_every_verb() {
    for what in 0..PLANTS {
        let desk = Desk::with(FIVE_A_DAY);
        let said = plant(&desk, "hostile.yaml", what);
        for verb in [
            &["config", "check", "hostile.yaml"][..],
            &["config", "show", "-c", "hostile.yaml"],
            &["config", "fmt", "hostile.yaml"],
            &["serve", "--check", "-c", "hostile.yaml"],
            &["serve", "-c", "hostile.yaml", "--http", "127.0.0.1:0"],
            &["serve", "-c", "p.yaml", "--http", "127.0.0.1:0", "--token-file", "hostile.yaml"],
            &["explain", "-c", "hostile.yaml", "--attr", "client.ip=203.0.113.9"],
            &["simulate", "-c", "hostile.yaml", "--traffic", "burst 10"],
        ] {
            let output = ended(desk.command(verb));
            let text = words(&output);
            assert!(!output.status.success(), "{verb:?}: {text}");
            // The limit is lower for a token file than for a policy file.
            let said = if verb.contains(&"--token-file") { said.trim_end_matches("4 MiB") } else { said };
            assert!(text.contains("hostile.yaml") && text.contains(said), "{verb:?}: {text}");
        }
    }
}

#[test]
fn a_line_of_a_trace_that_never_ends_is_an_error() {
    let desk = Desk::with(FIVE_A_DAY);
    let output = ended(desk.command(&["simulate", "--rate", "5/s", "--trace", "/dev/zero"]));
    assert!(output.status.code() == Some(2) && words(&output).contains("longer than 64 KiB"), "{output:?}");
}

#[test]
fn a_file_that_becomes_none_is_refused_and_the_server_goes_on() {
    let desk = Desk::with(FIVE_A_DAY);
    let mut serving = desk.serve(&[]);
    for what in 0..PLANTS {
        let said = plant(&desk, "beside", what);
        std::fs::remove_file(desk.path("p.yaml"))
            .or_else(|_| std::fs::remove_dir(desk.path("p.yaml")))
            .unwrap();
        std::fs::rename(desk.path("beside"), desk.path("p.yaml")).unwrap();
        serving.signal("HUP");
        serving.hears(said);
        let refused = serving.ask("POST", "/v1/reload", &[], "");
        assert!(refused.status == 422 && refused.body.contains(said), "{refused:?}");
        serving.is_well();
    }
    let _ = std::fs::remove_file(desk.path("p.yaml"));
    std::fs::write(desk.path("p.yaml"), FIVE_A_DAY).unwrap();
    assert_eq!(serving.ask("POST", "/v1/reload", &[], "").status, 200);
    serving.signal("TERM");
    assert_eq!(end_of(&mut serving.child).code(), Some(0));
}

/// A mounted file system whose server never answers: every access to it blocks forever.
struct HungMount<'d> {
    at: &'d Path,
    /// The server's end. Closing it gives all blocked accesses an error.
    _end: File,
}

impl<'d> HungMount<'d> {
    /// Mounts it; prints a message and returns `None` if the test lacks the rights.
    fn at(at: &'d Path) -> Option<Self> {
        use nix::mount::{MsFlags, mount};
        use std::os::fd::AsRawFd as _;
        std::fs::create_dir(at).unwrap();
        let mounted = File::options().read(true).write(true).open("/dev/fuse").and_then(|end| {
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", end.as_raw_fd());
            mount(Some("hung"), at, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
            Ok(end)
        });
        match mounted {
            Ok(end) => Some(Self { at, _end: end }),
            Err(error) => {
                eprintln!("SKIPPED: no hung file system can be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for HungMount<'_> {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.at, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_file_system_that_does_not_answer_stops_neither_signals_nor_decisions() {
    let desk = Desk::with(FIVE_A_DAY);
    let at = desk.path("mount");
    let Some(mount) = HungMount::at(&at) else { return };
    let hung: Vec<_> = [
        &["config", "check", "mount/p.yaml"][..],
        &["serve", "-c", "mount/p.yaml", "--http", "127.0.0.1:0"],
        &["serve", "-c", "p.yaml", "--http", "127.0.0.1:0", "--token-file", "mount/token"],
    ]
    .into_iter()
    .map(|verb| {
        let command = desk.command(verb);
        std::thread::spawn(move || ended(command))
    })
    .collect();
    for long in [false, true] {
        let mut serving = desk.serve(&["--drain", "1s"]);
        symlink("mount/p.yaml", desk.path("beside")).unwrap();
        std::fs::rename(desk.path("beside"), desk.path("p.yaml")).unwrap();
        serving.signal("HUP");
        for _ in 0..rounds(100, 10_000) {
            assert!(matches!(serving.check("client.ip", "203.0.113.9").status, 200 | 429));
        }
        if long {
            serving.hears("reading it takes longer than 10 s");
            let refused = serving.ask("POST", "/v1/reload", &[], "");
            assert!(refused.body.contains("an earlier try has been hanging"), "{refused:?}");
            serving.is_well();
        }
        serving.signal("TERM");
        assert_eq!(end_of(&mut serving.child).code(), Some(0));
        std::fs::remove_file(desk.path("p.yaml")).unwrap();
        std::fs::write(desk.path("p.yaml"), FIVE_A_DAY).unwrap();
        if rounds(1, 2) == 1 {
            break;
        }
    }
    for output in hung {
        let output = output.join().unwrap();
        assert!(!output.status.success() && words(&output).contains("takes longer than 10 s"), "{output:?}");
    }
    drop(mount);
}

#[test]
fn tidying_widens_nothing_and_follows_nothing_planted() {
    let desk = Desk::with("version: 1   \npolicies: []\n");
    let (file, victim) = (desk.path("p.yaml"), desk.path("victim"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("p.yaml", desk.path("link.yaml")).unwrap();
    std::fs::write(&victim, "kept").unwrap();
    // The temporary name used by earlier versions before the rename.
    symlink("victim", desk.path("p.tidegate-tmp")).unwrap();
    symlink("victim", desk.path("link.tidegate-tmp")).unwrap();
    let output = ended(desk.command(&["config", "fmt", "link.yaml"]));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version: 1\npolicies: []\n");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(desk.path("link.yaml").is_symlink());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
    let written = ended(desk.command(&["init", "--force", "link.yaml"]));
    assert!(written.status.success(), "{written:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let device = ended(desk.command(&["init", "--force", "/dev/null"]));
    assert!(!device.status.success() && words(&device).contains("is not a regular file"), "{device:?}");
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let desk = Desk::with(FIVE_A_DAY);
    let disk = desk.path("disk");
    std::fs::create_dir(&disk).unwrap();
    if let Err(error) = mount(Some("tiny"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=16k")) {
        eprintln!("SKIPPED: no small file system can be mounted here: {error}");
        return;
    }
    let old = format!("{FIVE_A_DAY}# years of work   \n");
    std::fs::write(disk.join("p.yaml"), &old).unwrap();
    let filled = std::fs::write(disk.join("filler"), vec![b'x'; 64 << 10]);
    let ran: Vec<Output> = [&["init", "--force", "disk/p.yaml"][..], &["config", "fmt", "disk/p.yaml"]]
        .map(|verb| ended(desk.command(verb)))
        .into();
    let left = std::fs::read_to_string(disk.join("p.yaml"));
    let names = std::fs::read_dir(&disk).map(Iterator::count);
    umount2(&disk, MntFlags::MNT_DETACH).unwrap();
    assert!(filled.is_err(), "the disk is full");
    for output in ran {
        assert!(
            !output.status.success() && words(&output).contains("cannot replace disk/p.yaml"),
            "{output:?}"
        );
    }
    assert_eq!(left.unwrap(), old);
    assert_eq!(names.unwrap(), 2, "nothing is left beside it");
}

#[test]
fn a_policy_file_that_is_removed_is_told_and_stays_in_force() {
    let desk = Desk::with(FIVE_A_DAY);
    let mut serving = desk.serve(&[]);
    std::fs::remove_file(desk.path("p.yaml")).unwrap();
    serving.hears("the file is gone; what was read from it stays in force");
    assert_eq!(serving.check("client.ip", "203.0.113.9").status, 200);
    std::fs::write(desk.path("p.yaml"), FIVE_A_DAY.replace("5/day", "6/day")).unwrap();
    serving.hears("configuration reloaded");
    serving.is_well();
}
