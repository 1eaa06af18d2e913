//! The agent of a guest, which `guest/init` starts in the final file system. It creates the device
//! and serves the lab over the guest's virtio port.

use std::{
    env,
    fs::{self, File},
    path::Path,
    process::Command,
    thread,
};

use anyhow::{Context, Error, Result, bail};
use clap::ValueEnum;
use hosts::{
    agent::obey,
    wire::{Frame, HOST, Sender},
};
use nix::{
    sys::{
        resource::{RLIM_INFINITY, Resource, setrlimit},
        signal::{Signal, kill},
        wait::wait,
    },
    unistd::{Pid, sync},
};

use crate::{
    device::{self, run},
    place::{Driver, HOSTS},
    qemu::{HEARTBEAT, PORT},
};

/// A `modprobe` with the folder of this kernel's modules.
const MODPROBE: &str = "/run/lab/modprobe";

/// Runs the agent until the lab has closed the port.
pub(crate) fn main() -> Result<()> {
    if std::process::id() == 1 {
        return run_as_init();
    }
    let mut port = open_port()?;
    let sender = Sender::new(port.try_clone()?);
    let beating = sender.clone();
    thread::spawn(move || {
        while beating.send(HOST, &Frame::Beat).is_ok() {
            thread::sleep(HEARTBEAT);
        }
    });
    let ready = match bring_up() {
        Ok(()) => Frame::Ready,
        Err(error) => Frame::Failed(format!("{error:#}")),
    };
    sender.send(HOST, &ready)?;
    obey(&mut port, &sender, |_| {
        // Kills all processes except this one and the first one. Fails if there are none.
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        sync();
    })
}

/// Runs as the first process of a guest, which inherits every orphan and whose end stops the guest.
/// Starts the agent as another process, which waits only for its own children.
fn run_as_init() -> Result<()> {
    let agent = Command::new(env::current_exe()?).arg("agent").spawn()?;
    let agent = Pid::from_raw(agent.id() as i32);
    while wait()?.pid() != Some(agent) {}
    Ok(())
}

fn open_port() -> Result<File> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT) {
            let node = Path::new("/dev").join(entry.file_name());
            return Ok(File::options().read(true).write(true).open(node)?);
        }
    }
    bail!("this is not a guest of the lab");
}

fn bring_up() -> Result<()> {
    let hosts: usize = variable("lab_hosts")?.parse()?;
    let host = variable("lab_host")?;
    let index = HOSTS.iter().position(|name| *name == host);
    let index = index.context("unknown host")?;
    let drivers = Driver::from_str(&variable("lab_device")?, false).map_err(Error::msg)?;
    if drivers.each().contains(&Driver::Siw) {
        run(Command::new(MODPROBE).arg("siw"))?;
    }
    let place = drivers.place(index, hosts);
    for (number, (name, addr)) in place.devices.iter().enumerate() {
        let addresses = (*addr, place.addr6.filter(|_| number == 0));
        let netdev = format!("eth{number}");
        device::create(name, drivers.each()[number], &netdev, addresses)?;
    }
    if hosts > 1 {
        await_answer(&place.peer.to_string());
        await_answer(&place.peer6.context("a guest has IPv6")?.to_string());
    }
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
    Ok(())
}

/// Waits until a host answers. It may still be booting, and `ping` gives up as soon as the address
/// cannot be resolved, so repeat it until the lab's boot limit ends the guest. The lab then prints
/// the end of the console, which contains this message.
fn await_answer(peer: &str) {
    let ping = || run(Command::new("ping").args(["-q", "-c1", "-i0.2", "-w5", peer]));
    if let Err(error) = ping() {
        eprintln!("lab: {peer} does not answer yet: {error:#}");
        while ping().is_err() {}
    }
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not on the kernel command line"))
}
