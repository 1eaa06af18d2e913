//! Starting virtual machines, none of which outlives this process.

use std::{
    fs::{self, File},
    io::Read,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::Receiver,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use hosts::{Link, wire::Frame, words};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{prctl::set_pdeathsig, signal::Signal},
};

use crate::{
    accel::Accel,
    cli::MachineArgs,
    device::MTU,
    lab::Lab,
    place::{Driver, HOSTS},
};

/// The name of the agent's virtio port in the guest's sysfs.
pub(crate) const PORT: &str = "lab";

/// Time between two signs of life of an agent, by the guest's clock.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// The common settings of the machines of one run.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) lab: Lab,
    /// The unpacked package of the kernel.
    pub(crate) kernel: PathBuf,
    pub(crate) accel: Accel,
    pub(crate) args: MachineArgs,
}

/// A running machine. Dropping it, or the end of this process, switches it off.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) host: usize,
    qemu: Child,
    /// The connection to its agent.
    pub(crate) link: Link,
    /// This side of QEMU's monitor.
    pub(crate) monitor: UnixStream,
    /// Folder shared with the guest.
    pub(crate) results: PathBuf,
    console: PathBuf,
    /// Folder for the last output of stopped machines.
    stopped: PathBuf,
}

impl Machines {
    pub(crate) fn new(lab: Lab, args: &MachineArgs, accel: Accel) -> Result<Self> {
        let drivers = args.device.each();
        ensure!(
            drivers.len() == 1 || args.hosts() == 1,
            "--device both is for one host"
        );
        let kernel = lab.kernel()?;
        lab.provide("initramfs", &kernel)?;
        if drivers.contains(&Driver::Siw) {
            lab.provide("siw", &kernel)?;
        }
        let args = args.clone();
        Ok(Self {
            lab,
            kernel,
            accel,
            args,
        })
    }

    /// Starts all machines without waiting for them to boot. Returns each with the frames of its
    /// agent.
    pub(crate) fn start(&self) -> Result<Vec<(Machine, Receiver<Frame>)>> {
        // Unnamed sockets need no free port and no cleanup.
        let (a, b) = UnixStream::pair()?;
        let links = [a, b].into_iter().take(self.args.hosts()).enumerate();
        links
            .map(|(host, link)| self.start_one(host, link))
            .collect()
    }

    fn start_one(&self, host: usize, link: UnixStream) -> Result<(Machine, Receiver<Frame>)> {
        let results = self.lab.results(HOSTS[host])?;
        let console = results.join("console.log");
        let output = File::create(&console).context("cannot write console.log")?;
        let (port, port_of_guest) = UnixStream::pair()?;

        let (monitor, monitor_of_qemu) = UnixStream::pair()?;
        let mut options = format!(
            "-nodefaults -no-user-config -no-reboot -display none -machine q35 {} -m {} \
             -chardev stdio,id=console,signal=off -serial chardev:console \
             -device virtio-serial-pci -chardev socket,id=port,fd={} \
             -device virtserialport,chardev=port,name={PORT} \
             -chardev socket,id=monitor,fd={} -mon chardev=monitor,mode=control",
            self.accel.options(self.args.cpus()),
            self.args.memory,
            inherited(&port_of_guest)?,
            inherited(&monitor_of_qemu)?
        );
        if self.args.hosts() > 1 {
            let fd = inherited(&link)?;
            options += &format!(
                " -netdev socket,id=net,fd={fd} -device virtio-net-pci,netdev=net,\
                 mac=52:54:00:00:00:0{host},host_mtu={MTU},romfile="
            );
        }
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(words(&options));
        qemu.arg("-kernel").arg(self.kernel.join("kernel"));
        qemu.arg("-initrd").arg(self.kernel.join("initramfs"));
        let line = self.command_line(HOSTS[host], &results)?;
        qemu.args(["-append", &line]);
        for (tag, path, options) in [
            ("root", Path::new("/"), ",readonly=on,multidevs=remap"),
            ("results", &results, ""),
        ] {
            // QEMU escapes a comma within a value by doubling it.
            let path = path.display().to_string().replace(',', ",,");
            let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
            let folder = format!("local,id={tag},path={path},security_model=none{options}");
            qemu.args(["-fsdev", &folder, "-device", &device]);
        }
        qemu.stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        kill_with_parent(&mut qemu);
        let qemu = qemu
            .spawn()
            .context("cannot run qemu; run: integration/lab setup")?;
        let (link, guests_life) = (link.try_clone()?, port.try_clone()?);
        thread::spawn(move || drain_link(link, &guests_life));
        let (link, reports) = Link::over(port)?;
        let machine = Machine {
            host,
            qemu,
            link,
            monitor,
            results,
            console,
            stopped: self.lab.dir().join("stopped"),
        };
        Ok((machine, reports))
    }

    fn command_line(&self, host: &str, results: &Path) -> Result<String> {
        // The emulated clock is this machine's clock, which needs no check, and is the only cheap
        // one. The kernel's interrupt tests at boot fail on a busy machine, and prove nothing here.
        let mut line = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check \
                        net.ifnames=0"
            .to_owned();
        if let Some(khz) = self.accel.tsc_khz() {
            line += &format!(" tsc_early_khz={khz}");
        }
        line += match self.accel {
            // These hardening features cost time for each system call and packet, which an emulated
            // processor cannot spare. A guest has no attackers, no devices with limited addressing,
            // no algorithms to test, and no memory accounting.
            Accel::Tcg => {
                " init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off apparmor=0 \
                 selinux=0 audit=0 swiotlb=noforce cryptomgr.notests cgroup_disable=memory"
            }
            // Fix the addresses, because they influence how many instructions copies and searches
            // take.
            Accel::Counted => " norandmaps nokaslr",
        };
        let (hosts, device) = (self.args.hosts(), self.args.device.name());
        line += &format!(" lab_host={host} lab_hosts={hosts} lab_device={device}");
        for (name, path) in [
            ("checkout", &*self.lab.checkout),
            ("target", &self.lab.target),
            ("agent", &self.lab.tool),
            ("kernel", &self.kernel),
            ("results", results),
        ] {
            let path = path.to_str().filter(|path| !path.contains('"'));
            let path = path.context("the lab has a path with a quotation mark or without UTF-8")?;
            line += &format!(" lab_{name}=\"{path}\"");
        }
        Ok(line)
    }
}

impl Machine {
    /// Returns QEMU's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Keeps the console's and the monitor's output of a stopped machine. Returns the folder.
    pub(crate) fn keep(&self, monitor: &str) -> Result<PathBuf> {
        let kept = self.stopped.join(self.pid().to_string());
        fs::create_dir_all(&kept)?;
        fs::copy(&self.console, kept.join("console.log"))?;
        fs::write(kept.join("monitor.log"), monitor)?;
        Ok(kept)
    }

    /// Returns the last output of QEMU and of the kernel.
    pub(crate) fn console_tail(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<_> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(25)..].join("\n");
        format!("--- end of {} ---\n{tail}", self.console.display())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only if the machine is already off.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Kills the child when this process ends for any reason, and keeps a terminal's ^C from the child,
/// because this process handles it. Spawn the child from the main thread, because the kernel acts
/// on that thread's end.
#[allow(unsafe_code)]
pub(crate) fn kill_with_parent(command: &mut Command) {
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes one system call and does not allocate.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
}

/// Reads the data that is sent to a machine after its end, until there is none for 1 s. Otherwise
/// the other machine's QEMU keeps a partially sent packet forever. Its guest's driver then waits
/// with all further packets, which blocks the destruction of queue pairs.
fn drain_link(mut link: UnixStream, port: &UnixStream) {
    // The other end of the port closes with the machine.
    let mut gone = [PollFd::new(port.as_fd(), PollFlags::empty())];
    while poll(&mut gone, PollTimeout::NONE) == Err(Errno::EINTR) {}
    // QEMU has made the shared socket nonblocking.
    let ready = link.set_nonblocking(false).is_ok()
        && link.set_read_timeout(Some(Duration::from_secs(1))).is_ok();
    while ready && matches!(link.read(&mut [0; 64 << 10]), Ok(1..)) {}
}

/// Lets the next child inherit `socket`, with the same descriptor.
fn inherited(socket: &UnixStream) -> Result<i32> {
    fcntl(socket.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(socket.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};

    use super::*;

    #[test]
    fn leftover_packets_of_ended_machine_are_read() {
        let (mut other, link) = UnixStream::pair().unwrap();
        let (port, of_guest) = UnixStream::pair().unwrap();
        link.set_nonblocking(true).unwrap();
        other.set_nonblocking(true).unwrap();
        let packet = [0; 4096];
        let full = loop {
            if let Err(error) = other.write(&packet) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let taking = thread::spawn(move || drain_link(link, &port));
        drop(of_guest);
        other.set_nonblocking(false).unwrap();
        other.write_all(&packet).unwrap();
        taking.join().unwrap();
        let error = other.write_all(&packet).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
