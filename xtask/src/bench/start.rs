//! Measures how soon a server answers, and how large the program is.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};

use super::bars::Bar;
use super::publish::Measured;
use crate::tidy::ratchets::program_packages;

/// The number of starts; the page shows the median and the slowest.
const STARTS: usize = 21;

pub(crate) fn measure(binary: &Path, machine: &str) -> Result<Measured> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        times.push(start_once(binary)?);
    }
    times.sort_by(f64::total_cmp);
    let size = std::fs::metadata(binary)?.len();
    let packages = program_packages::count()?;
    let mut page = String::from("## The program\n\n| what | measured |\n|---|---|\n");
    writeln!(
        page,
        "| `tidegate serve`: from starting the process to the first answer of /readyz, median of {STARTS} (slowest) | {:.1} ms ({:.1} ms) |",
        times[STARTS / 2],
        times[STARTS - 1]
    )?;
    writeln!(page, "| crates in the default release build | {packages} |")?;
    writeln!(page, "| size of the program | {:.1} MB |", size as f64 / 1e6)?;
    let row = format!("| `serve`: process start to first answer | {:.1} ms | {machine} |", times[STARTS / 2]);
    let bars = vec![
        Bar::at_most("program: start of `serve`", 10.0, Some(times[STARTS / 2]), "ms"),
        Bar::at_most("program: size", 10.0, Some(size as f64 / 1e6), "MB"),
    ];
    Ok(Measured { short: page.clone(), page, row: Some(row), bars })
}

#[allow(clippy::disallowed_methods, reason = "a bench reads the time")]
fn start_once(binary: &Path) -> Result<f64> {
    // The port was free a moment ago. If it no longer is, the server has to report that.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let start = Instant::now();
    let mut server = Command::new(binary)
        .args(["serve", "--http", &address.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let ready = loop {
        if answers(address) {
            break Ok(start.elapsed().as_secs_f64() * 1e3);
        }
        if start.elapsed().as_secs() > 10 {
            break Err(());
        }
        std::thread::yield_now();
    };
    server.kill()?;
    server.wait()?;
    match ready {
        Ok(ready) => Ok(ready),
        Err(()) => bail!("the server did not answer within ten seconds"),
    }
}

fn answers(address: std::net::SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}
