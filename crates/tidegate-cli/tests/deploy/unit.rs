//! The systemd units.

use std::process::Command;

use tidegate_testkit::program;

use crate::deploy::deployed;
use crate::deploy::serving::{Desk, ended, words};

/// Returns a folder with the unit, changed to name a program on this machine, and the `systemd-analyze` command.
fn unit() -> Option<(Desk, Command)> {
    let mut analyze = Command::new(program("systemd-analyze", "systemd")?);
    let desk = Desk::with("");
    let unit = std::fs::read_to_string(deployed("tidegate.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/tidegate serve "), "{unit}");
    std::fs::write(desk.path("tidegate.service"), unit.replace("/usr/bin/tidegate", "/bin/true")).unwrap();
    analyze.current_dir(desk.path(""));
    Some((desk, analyze))
}

#[test]
fn systemd_reads_the_unit_without_a_remark() {
    let Some((_desk, mut analyze)) = unit() else { return };
    analyze.args(["verify", "--man=no", "./tidegate.service"]);
    let output = ended(analyze);
    let said = words(&output);
    // It also reports on other units of the machine.
    assert!(output.status.success() && !said.contains("tidegate.service"), "{said}");
}

#[test]
fn systemd_reads_the_socket_without_a_remark() {
    let Some((desk, mut analyze)) = unit() else { return };
    std::fs::copy(deployed("tidegate.socket"), desk.path("tidegate.socket")).unwrap();
    analyze.args(["verify", "--man=no", "./tidegate.socket"]);
    let output = ended(analyze);
    let said = words(&output);
    assert!(output.status.success() && !said.contains("tidegate."), "{said}");
}

#[test]
fn the_service_is_shut_in() {
    let Some((_desk, mut analyze)) = unit() else { return };
    // The threshold is in tenths: 20 means 2.0, where 0 isolates everything and systemd calls values below 4.0 good.
    analyze.args(["security", "--offline=yes", "--threshold=20", "./tidegate.service"]);
    let output = ended(analyze);
    assert!(output.status.success(), "{}", words(&output));
}
