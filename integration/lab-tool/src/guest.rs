//! Runs commands in virtual machines.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::Path,
    thread,
    time::Instant,
};

use anyhow::{Error, Result, bail};
use hosts::wire::Job;

use crate::{
    cli::Exec,
    output::follow,
    pulse::watch_over,
    qemu::{Machine, Machines},
    watch::{Stop, Watch},
};

/// The maximum number of attempts to boot. On a busy machine, some attempts fail.
const BOOTS: u32 = 3;

/// The environment variables of this process that a command inherits.
const INHERITED: [&str; 2] = ["RUST_BACKTRACE", "RUST_LOG"];

/// Boots all machines. Waits until each machine has its devices and can reach the other machine. If
/// one machine fails, switches off all machines and boots them again, up to [`BOOTS`] attempts in
/// total.
pub(crate) fn boot(machines: &Machines, watch: &Watch) -> Result<Vec<Machine>> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let start = Instant::now();
        let (guests, reports): (Vec<_>, Vec<_>) = machines.start()?.into_iter().unzip();
        let mut threads = Vec::new();
        for (host, (guest, reports)) in guests.iter().zip(reports).enumerate() {
            let (pid, monitor, news) =
                (guest.pid(), guest.monitor.try_clone()?, watch.news.clone());
            threads.push(thread::spawn(move || {
                watch_over(host, pid, &monitor, &reports, &news)
            }));
        }
        let ready = watch.ready(guests.len(), attempt * machines.accel.boot_limit());
        let Err(error) = with_console_tail(&guests, ready) else {
            let (hosts, seconds) = (guests.len(), start.elapsed().as_secs_f32());
            let s = if hosts == 1 { "" } else { "s" };
            eprintln!("lab: {hosts} host{s} up in {seconds:.1} s");
            return Ok(guests);
        };
        if attempt == BOOTS || lost(&error).is_none() {
            return Err(error);
        }
        eprintln!("lab: {error:#}; booting again");
        // Each thread can send events until its machine has been switched off. Join the threads, so
        // that `forget_hosts` discards all these events.
        drop(guests);
        for thread in threads {
            let _ = thread.join();
        }
        watch.forget_hosts()?;
    }
}

pub(crate) fn exec(machines: &Machines, args: &Exec, watch: &Watch) -> Result<u8> {
    refuse(
        &args.command,
        &[&machines.lab.checkout, &machines.lab.target],
    )?;
    let guests = boot(machines, watch)?;
    for guest in &guests {
        start(machines, watch, guest, args.argv(), &args.env, false)?;
    }
    let ended = watch.ended(guests.len(), args.timeout(), &args.may_die);
    with_console_tail(&guests, ended)
}

/// Returns an error if the program exists on this machine but is not visible in a guest. A guest
/// has its own /tmp and /run, so it does not see this machine's files there. The folders in
/// `visible` are visible in the guest even if they are below /tmp or /run. `visible[0]` is the
/// command's working directory.
fn refuse(command: &[impl AsRef<OsStr>], visible: &[&Path]) -> Result<()> {
    let program = command[0].as_ref().to_string_lossy();
    // A single argument is a command line for the shell.
    let program = program.split_whitespace().next().unwrap_or_default();
    let path = visible[0].join(program);
    let own = ["/tmp", "/run"]
        .into_iter()
        .find(|own| path.starts_with(own));
    let is_visible = visible.iter().any(|folder| path.starts_with(folder));
    // Names without a slash are not checked, because they are looked up in `PATH`.
    match own.filter(|_| program.contains('/') && !is_visible && path.exists()) {
        Some(own) => bail!(
            "{program} does not exist in the guest, which has its own {own}; move it below {}",
            visible[0].display()
        ),
        None => Ok(()),
    }
}

/// Starts a program in a guest. The working directory is the checkout. Returns the program's
/// number. If `has_stdin` is set, the program's stdin is a pipe.
pub(crate) fn start(
    machines: &Machines,
    watch: &Watch,
    guest: &Machine,
    argv: Vec<OsString>,
    more: &[(OsString, OsString)],
    has_stdin: bool,
) -> Result<u32> {
    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // This option tells modprobe which folder contains the modules of the guest's kernel.
    let modprobe = format!("-d \"{}\"", machines.kernel.display());
    let own = [
        ("PATH", PATH),
        ("MODPROBE_OPTIONS", &modprobe),
        ("HOME", "/tmp"),
        ("LANG", "C.UTF-8"),
    ];
    let own = own.map(|(name, value)| (name.into(), value.into()));
    let inherited = INHERITED.iter();
    let inherited = inherited.filter_map(|name| Some((name.into(), env::var_os(name)?)));
    let (host, hosts) = (guest.host, machines.args.hosts);
    let network = machines.args.device.host_network(host, hosts);
    let network = network.variables(&machines.lab, &guest.results);
    let env = own.into_iter().chain(inherited).chain(network);
    let (number, frames) = guest.link.start(Job {
        argv,
        dir: Some(machines.lab.checkout.clone()),
        env: Some(env.chain(more.iter().cloned()).collect()),
        has_stdin,
    })?;
    let (news, named) = (watch.news.clone(), hosts > 1 && !has_stdin);
    thread::spawn(move || follow(host, named, &frames, &news));
    Ok(number)
}

/// If the error reports a lost host, returns the index of the host and the error.
fn lost(error: &Error) -> Option<(usize, &Stop)> {
    let stop = error.downcast_ref::<Stop>()?;
    Some((stop.host()?, stop))
}

/// If `outcome` reports that a host was lost, prints the last lines of the console of this host. If
/// the host has stopped responding, also prints the answers of its monitor, and saves these answers
/// and the console output in a folder.
pub(crate) fn with_console_tail<T>(guests: &[Machine], outcome: Result<T>) -> Result<T> {
    outcome.inspect_err(|error| {
        if let Some((host, stop)) = lost(error) {
            eprintln!("{}", guests[host].console_tail());
            if let Stop::Unresponsive { monitor, .. } = stop {
                let folder = guests[host].save_output(monitor);
                eprintln!("{monitor}\nlab: saved the output in {folder:?}");
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    #[test]
    fn program_missing_in_guest_is_refused_with_reason() {
        // Use a path below /tmp, which the guest does not share. `env::temp_dir` can return a
        // different folder.
        let dir = PathBuf::from(format!("/tmp/lab-hidden.{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("program"), "").unwrap();
        let program = dir.join("program").display().to_string();
        let checkout = env::current_dir().unwrap();
        let outcomes = [
            refuse(&[&*program, "1"], &[Path::new("/home")]),
            refuse(&[format!("{program} 1")], &[Path::new("/home")]),
            refuse(&[&*program, "1"], &[Path::new("/home"), &dir]),
            refuse(&["ls", &*program], &[Path::new("/home")]),
            refuse(&["/tmp/that/there/is/not", "1"], &[&*checkout]),
        ];
        fs::remove_dir_all(dir).unwrap();
        let [refused, line, visible, argument, missing] = outcomes;
        for outcome in [refused, line] {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("which has its own /tmp"), "{text}");
        }
        for outcome in [visible, argument, missing] {
            outcome.unwrap();
        }
    }
}
