//! Runs an interactive shell in a guest.

use std::{
    env,
    io::{self, IsTerminal, Read},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Result;
use hosts::wire::Frame;

use crate::{guest, qemu::Machines, watch::Watch};

/// The time limit of an interactive shell: 136 years, so in practice there is none.
const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// The byte that a terminal in raw mode sends for ^D.
const END_OF_INPUT: u8 = 4;

pub(crate) fn shell(machines: &Machines, watch: &Watch) -> Result<u8> {
    let guests = guest::boot(machines, watch)?;
    let term = env::var_os("TERM").unwrap_or_else(|| "dumb".into());
    let env = [("PS1".into(), r"\h:\w# ".into()), ("TERM".into(), term)];
    // This command gives the guest's terminal the same number of rows and columns as this terminal.
    let size =
        stty(&["size"]).map(|size| format!("stty rows {};", size.trim().replace(' ', " cols ")));
    let size = size.unwrap_or_default();
    let lines = [
        format!("exec script -qefc '{size} exec bash --norc -i' /dev/null"),
        "exec busybox telnetd -F -l /bin/bash".to_owned(),
    ];
    let mut numbers = Vec::new();
    for (guest, line) in guests.iter().zip(lines) {
        let argv = ["sh", "-c", &line].map(Into::into).to_vec();
        numbers.push(guest::start(machines, watch, guest, argv, &env, true)?);
    }
    let (keys, number) = (guests[0].link.clone(), numbers[0]);
    let _raw = RawTerminal::enter();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut stdin = io::stdin();
        while let Ok(len @ 1..) = stdin.read(&mut buffer) {
            let _ = keys.send(number, &Frame::Tell(buffer[..len].to_vec()));
        }
        let _ = keys.send(number, &Frame::Tell(vec![END_OF_INPUT]));
    });
    guest::with_console_tail(&guests, watch.ended(1, NO_LIMIT, &[]))
}

/// A guard for the terminal's raw mode, in which each key can be read immediately. Dropping this
/// value restores the previous mode.
#[derive(Debug)]
struct RawTerminal {
    before: String,
}

impl RawTerminal {
    /// Switches to raw mode. Returns `None` if stdin is not a terminal.
    fn enter() -> Option<Self> {
        let before = stty(&["-g"])?;
        stty(&["raw", "-echo"])?;
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        stty(&[self.before.trim()]);
    }
}

fn stty(args: &[&str]) -> Option<String> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let output = Command::new("stty")
        .args(args)
        .stdin(Stdio::inherit())
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
