//! The agent of a guest. `guest/init` executes it after mounting the final file system. The agent
//! creates the RDMA devices, and serves the lab over the guest's virtio port.

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
    host_network::{Driver, HOSTS},
    qemu::{HEARTBEAT, PORT},
};

/// The path of a script that runs `modprobe` with the folder of the guest kernel's modules.
const MODPROBE: &str = "/run/lab/modprobe";

/// Runs the agent until the lab closes the virtio port.
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
        // Kill all processes except this one and process 1. The call fails if no other process
        // exists.
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        sync();
    })
}

/// Runs as process 1 of a guest. Process 1 inherits every orphan, so it starts the agent as another
/// process. The agent then waits only for its own children. When the agent ends, process 1 ends,
/// and the guest stops.
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
    let index = index.context("the kernel command line names an unknown host")?;
    let drivers = Driver::from_str(&variable("lab_device")?, false).map_err(Error::msg)?;
    if drivers.each().contains(&Driver::Siw) {
        run(&format!("{MODPROBE} siw"))?;
    }
    let network = drivers.host_network(index, hosts);
    for (number, (name, addr)) in network.devices.iter().enumerate() {
        let addresses = (*addr, network.addr6.filter(|_| number == 0));
        let netdev = format!("eth{number}");
        device::create(name, drivers.each()[number], &netdev, addresses)?;
    }
    if hosts > 1 {
        await_answer(&network.peer.to_string());
        await_answer(&network.peer6.context("the guest has no IPv6")?.to_string());
    }
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
    Ok(())
}

/// Pings a host until the host answers. Runs `ping` repeatedly, because `ping` fails immediately
/// while it cannot resolve the address, for instance while the host boots. This function has no
/// time limit of its own. When the boot limit of the lab expires, the lab prints the last lines of
/// the console, which contain the message below.
fn await_answer(peer: &str) {
    let ping = || run(&format!("ping -q -c1 -i0.2 -w5 {peer}"));
    if let Err(error) = ping() {
        eprintln!("lab: {peer} does not answer yet: {error:#}");
        while ping().is_err() {}
    }
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not on the kernel command line"))
}
