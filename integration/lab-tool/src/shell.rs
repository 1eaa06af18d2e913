//! A shell in a guest, on our terminal.

use std::{
    env, fs,
    io::{self, IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Command, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    accel, cli::Shell, driver::Driver, guest, kernel::Kernel, lab::Lab, place::HOSTS,
    qemu::Machines, siw, watch::Watch, wire::Frame,
};

/// A person may take as long as they like.
const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// What ^D on a terminal sends.
const END_OF_INPUT: u8 = 4;

pub(crate) fn shell(args: &Shell) -> Result<u8> {
    let lab = Lab::find()?;
    let sockets = lab.dir().join("shell");
    if let Some(host) = &args.attach {
        let terminal =
            UnixStream::connect(sockets.join(host)).context("no `shell --hosts 2` is running")?;
        let _raw = RawTerminal::enter();
        let _ = connect_terminals(terminal)?.join();
        return Ok(0);
    }
    let watch = Watch::new()?;
    let kernel = Kernel::open(&lab, args.machines.kernel.as_deref())?;
    if args.machines.device.includes(Driver::Siw) {
        siw::provide(&kernel)?;
    }
    let accel = accel::choose(&lab, &kernel, &args.machines)?;
    let sockets = Sockets::make(sockets)?;
    let machines = Machines {
        lab: &lab,
        kernel: &kernel,
        accel,
        args: &args.machines,
        terminals: Some(&sockets.0),
    };
    let mut guests = guest::boot(&machines, &watch)?;
    for (host, guest) in guests.iter_mut().enumerate() {
        let shell = "setsid --ctty --wait bash --norc -i";
        let shell = if host == 0 {
            shell.into()
        } else {
            format!("while :; do {shell}; done")
        };
        let line = format!(
            "exec <>/dev/hvc0 >&0 2>&1; stty sane {}; {shell}",
            terminal_size()
        );
        let mut job = guest::job(&machines, host, guest, vec![line.into()]);
        job.env.push(("PS1".into(), r"\h:\w# ".into()));
        job.env.push((
            "TERM".into(),
            env::var_os("TERM").unwrap_or_else(|| "dumb".into()),
        ));
        Frame::Run(job).write_to(&mut guest.port)?;
    }
    let terminal = UnixStream::connect(sockets.0.join(HOSTS[0]))?;
    let raw = RawTerminal::enter();
    let relay = connect_terminals(terminal)?;
    let outcome = guest::with_last_words(&guests, watch.ended(1, NO_LIMIT, &[]));
    drop(guests);
    let _ = relay.join();
    drop(raw);
    outcome
}

/// Copies our stdin to `terminal`, and `terminal` to our stdout; the thread ends with `terminal`.
fn connect_terminals(mut terminal: UnixStream) -> Result<JoinHandle<()>> {
    let mut keys = terminal.try_clone()?;
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut keys);
        let _ = keys.write_all(&[END_OF_INPUT]);
    });
    Ok(thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut stdout = io::stdout();
        while let Ok(len @ 1..) = terminal.read(&mut buffer) {
            if stdout
                .write_all(&buffer[..len])
                .and_then(|()| stdout.flush())
                .is_err()
            {
                return;
            }
        }
    }))
}

/// The folder of the sockets that lead to the guests' terminals.
#[derive(Debug)]
struct Sockets(PathBuf);

impl Sockets {
    fn make(dir: PathBuf) -> Result<Self> {
        let in_use = UnixStream::connect(dir.join(HOSTS[0])).is_ok();
        ensure!(!in_use, "another shell of the lab is running");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Our terminal, passing on every key as it is typed, until this is dropped.
#[derive(Debug)]
struct RawTerminal {
    before: String,
}

impl RawTerminal {
    /// `None` if stdin is not a terminal.
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

/// Arguments that give another terminal the size of ours.
fn terminal_size() -> String {
    let size = stty(&["size"]).unwrap_or_default();
    size.trim()
        .split_once(' ')
        .map(|(rows, columns)| format!("rows {rows} cols {columns}"))
        .unwrap_or_default()
}

fn stty(args: &[&str]) -> Option<String> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let output = Command::new("stty")
        .args(args)
        .stdin(Stdio::inherit())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
