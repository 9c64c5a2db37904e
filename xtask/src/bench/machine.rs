//! The machine on which the figures were measured.

use std::process::Command;

use anyhow::Result;

/// Returns the name of the processor and the number of its cores.
pub(crate) fn name() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.trim_start_matches([' ', '\t', ':']))
}

pub(crate) fn describe() -> Result<String> {
    let rust = Command::new("rustc").arg("--version").output()?;
    let rust = String::from_utf8_lossy(&rust.stdout);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let clock = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let clock = clock.unwrap_or_else(|_| "unknown".to_owned());
    let (name, kernel, rust, clock) = (name(), kernel.trim(), rust.trim(), clock.trim());
    Ok(format!("Machine: {name}, Linux {kernel}, {rust}, clock source {clock}.\n"))
}
