//! The unit of systemd.

use std::process::Command;

use tidegate_testkit::program;

use crate::deployed;
use crate::serving::{Desk, ended, words};

/// Returns the unit with a program that is on this machine, and `systemd-analyze`.
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
    // It looks at other units of the machine too.
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
    // In tenths: 20 is 2.0, where 0 shuts everything out and systemd calls 4.0 and less good.
    analyze.args(["security", "--offline=yes", "--threshold=20", "./tidegate.service"]);
    let output = ended(analyze);
    assert!(output.status.success(), "{}", words(&output));
}
