//! The tool's other half: first process of a guest, once `guest/init` has put the file system in
//! place. Brings up the device, runs the one command it is given, and reports on everything.

use std::{
    env,
    fs::{self, File},
    io::{PipeReader, Read, pipe},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::{
        resource::{RLIM_INFINITY, Resource, setrlimit},
        signal::{Signal, kill},
        wait::{WaitStatus, wait},
    },
    unistd::{Pid, sync},
};

use crate::{
    device::{Device, run},
    driver::Driver,
    place::HOSTS,
    qemu::NETDEV,
    wire::{BEAT, Frame, Job, PORT},
};

/// With the folder where the modules of this kernel are.
const MODPROBE: &str = "/run/lab/modprobe";

type Port = Arc<Mutex<File>>;

/// Returns only when nobody listens any more: the end of the first process stops the machine.
pub(crate) fn main() -> Result<()> {
    let mut requests = open_port()?;
    let port = Port::new(Mutex::new(requests.try_clone()?));
    let beating = port.clone();
    thread::spawn(move || {
        loop {
            send(&beating, &Frame::Beat);
            thread::sleep(BEAT);
        }
    });
    if let Err(error) = bring_up() {
        send(&port, &Frame::Failed(format!("{error:#}")));
    } else {
        send(&port, &Frame::Ready);
    }
    let Frame::Run(job) = Frame::read_from(&mut requests)? else {
        bail!("expected a job")
    };
    let status = execute(&job, &port).unwrap_or_else(|error| {
        send(
            &port,
            &Frame::Stderr(format!("lab: {error:#}\n").into_bytes()),
        );
        127
    });
    sync();
    send(&port, &Frame::Exit(status));
    // The peer may still need this machine: whoever started it ends it.
    Frame::read_from(&mut requests)?;
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

/// The network device of a second RDMA device.
const SECOND: &str = "eth1";

fn bring_up() -> Result<()> {
    let hosts: usize = variable("lab_hosts")?.parse()?;
    let host = variable("lab_host")?;
    let index = HOSTS
        .iter()
        .position(|name| *name == host)
        .context("unknown host")?;
    let driver = variable("lab_device")?;
    let driver = Driver::find(&driver).with_context(|| format!("unknown driver {driver}"))?;
    if driver.includes(Driver::Siw) {
        run(Command::new(MODPROBE).arg("siw"))?;
    }
    let place = driver.place(index, hosts);
    let alone = hosts == 1;
    let mtu = variable("lab_mtu")?.parse()?;
    Device::create(driver.first(), &place, NETDEV, alone, mtu)?;
    if let (Some(driver), Some(place)) = (driver.second(), place.of_second()) {
        Device::create(driver, &place, SECOND, alone, mtu)?;
    }
    if !alone {
        let peers = [
            Some(place.peer.to_string()),
            place.peer6.map(|peer| peer.to_string()),
        ];
        for peer in peers.iter().flatten() {
            await_answer(peer);
        }
    }
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
    Ok(())
}

/// Waits until a host answers. It may be far from up, and then `ping` gives up as soon as nobody
/// has the address: so again and again, until whoever booted both hosts has waited long enough. On
/// the console, of which the end is shown then, it says what it waits for.
fn await_answer(peer: &str) {
    let mut said = String::new();
    while let Err(error) = run(Command::new("ping")
        .args(["-q", "-c1", "-i0.2", "-w5"])
        .arg(peer))
    {
        let says = format!("lab: {peer} does not answer yet: {error:#}");
        if says != said {
            eprintln!("{says}");
            said = says;
        }
    }
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not on the kernel command line"))
}

/// Runs `job` and everything it starts to the end; what it leaves behind is killed.
fn execute(job: &Job, port: &Port) -> Result<u8> {
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let child = job
        .command()
        .stdin(File::open("/dev/null")?)
        .stdout(stdout_end)
        .stderr(stderr_end)
        .spawn()
        .with_context(|| format!("cannot run {}", job.argv[0].display()))?;
    let relays = [
        relay(stdout, port, Frame::Stdout),
        relay(stderr, port, Frame::Stderr),
    ];
    let child = Pid::from_raw(child.id() as i32);
    let status = loop {
        // The first process inherits every orphan, so other processes end here too.
        match wait()? {
            WaitStatus::Exited(pid, status) if pid == child => break status as u8,
            WaitStatus::Signaled(pid, signal, _) if pid == child => break 128 + signal as u8,
            _ => {}
        }
    };
    // All processes but this one. Fails when there are none.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    for relay in relays {
        let _ = relay.join();
    }
    Ok(status)
}

fn relay(mut from: PipeReader, port: &Port, frame: fn(Vec<u8>) -> Frame) -> JoinHandle<()> {
    let port = port.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            send(&port, &frame(buffer[..len].to_vec()));
        }
    })
}

/// A port that cannot be written to leaves nobody to complain to.
fn send(port: &Port, frame: &Frame) {
    if let Ok(mut port) = port.lock() {
        let _ = frame.write_to(&mut *port);
    }
}
