//! Starts virtual machines, which are killed when this process ends.

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
    host_network::{Driver, HOSTS},
    lab::Lab,
};

/// The name of the virtio port that connects the agent to this process. The guest's sysfs shows
/// this name.
pub(crate) const PORT: &str = "lab";

/// The interval between two heartbeats of an agent, by the guest's clock.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// The settings that are the same for all machines of a run.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) lab: Lab,
    /// The folder of the unpacked kernel package.
    pub(crate) kernel: PathBuf,
    pub(crate) accel: Accel,
    pub(crate) args: MachineArgs,
}

/// A running machine, which is switched off when this value is dropped or this process ends.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) host: usize,
    qemu: Child,
    /// The connection to the machine's agent.
    pub(crate) link: Link,
    /// The connection to QEMU's monitor (QMP).
    pub(crate) monitor: UnixStream,
    /// The folder for the guest's results. The guest mounts this folder and can write to it.
    pub(crate) results: PathBuf,
    console: PathBuf,
    /// The folder in which `save_output` creates one folder for each stopped machine.
    stopped: PathBuf,
}

impl Machines {
    pub(crate) fn new(lab: Lab, args: &MachineArgs, accel: Accel) -> Result<Self> {
        let drivers = args.device.each();
        ensure!(
            drivers.len() == 1 || args.hosts == 1,
            "--device both requires a single host"
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

    /// Starts all machines without waiting until they have booted. Returns each machine with the
    /// receiver of its agent's frames.
    pub(crate) fn start(&self) -> Result<Vec<(Machine, Receiver<Frame>)>> {
        // Connect the machines' network devices through a socket pair, because a socket pair needs
        // neither a free TCP port nor cleanup.
        let (a, b) = UnixStream::pair()?;
        let links = [a, b].into_iter().take(self.args.hosts).enumerate();
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
        if self.args.hosts > 1 {
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
            // Double the commas, because QEMU requires this in option values.
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
        // tsc=reliable: the kernel does not check the emulated time stamp counter (TSC) against
        // other clocks. The check is unnecessary, because the TSC follows this machine's clock or
        // counts instructions. The TSC is also the only clock that is cheap to read.
        // no_timer_check: the kernel does not test the timer interrupts at boot. On a busy machine,
        // this test sometimes fails although the interrupts work.
        let mut line = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check \
                        net.ifnames=0"
            .to_owned();
        if let Some(khz) = self.accel.tsc_khz() {
            line += &format!(" tsc_early_khz={khz}");
        }
        line += match self.accel {
            // Disable features that cost much time on an emulated processor. A guest has no
            // attackers, so it does not need hardening, security modules or auditing. Its devices
            // can address all memory, so it does not need bounce buffers. Self-tests of
            // cryptographic algorithms and memory accounting are not needed either.
            Accel::Tcg => {
                " init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off apparmor=0 \
                 selinux=0 audit=0 swiotlb=noforce cryptomgr.notests cgroup_disable=memory"
            }
            // Disable address randomization, so that all runs execute the same number of
            // instructions. Copies and searches execute different numbers of instructions at
            // different addresses.
            Accel::Counted => " norandmaps nokaslr",
        };
        let (hosts, device) = (self.args.hosts, self.args.device.name());
        line += &format!(" lab_host={host} lab_hosts={hosts} lab_device={device}");
        for (name, path) in [
            ("checkout", &*self.lab.checkout),
            ("target", &self.lab.target),
            ("agent", &self.lab.tool),
            ("kernel", &self.kernel),
            ("results", results),
        ] {
            let path = path.to_str().filter(|path| !path.contains('"'));
            let path =
                path.context("a path of the lab is not UTF-8, or contains a quotation mark")?;
            line += &format!(" lab_{name}=\"{path}\"");
        }
        Ok(line)
    }
}

impl Machine {
    /// Returns the process id of QEMU.
    pub(crate) fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Saves the console output and `monitor`, the answers of QEMU's monitor, after the machine has
    /// stopped. Returns the folder with these files.
    pub(crate) fn save_output(&self, monitor: &str) -> Result<PathBuf> {
        let folder = self.stopped.join(self.pid().to_string());
        fs::create_dir_all(&folder)?;
        fs::copy(&self.console, folder.join("console.log"))?;
        fs::write(folder.join("monitor.log"), monitor)?;
        Ok(folder)
    }

    /// Returns the last lines that QEMU and the guest's kernel have printed to the console.
    pub(crate) fn console_tail(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<_> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(25)..].join("\n");
        format!("--- last lines of {} ---\n{tail}", self.console.display())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Ignore the errors: both calls fail only if QEMU has already ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Makes the kernel kill the child when this process ends for any reason. Also moves the child to
/// its own process group, so that ^C on a terminal reaches only this process, which handles the
/// signal. The caller must spawn the child from the main thread, because the kernel kills the child
/// when the spawning thread ends.
#[allow(unsafe_code)]
pub(crate) fn kill_with_parent(command: &mut Command) {
    command.process_group(0);
    // SAFETY: between fork and exec, the closure makes one system call, allocates no memory and
    // takes no lock.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
}

/// Waits until a machine has ended, and then discards the packets that the other machine still
/// sends to it. Returns when no packet has arrived for 1 s. `port` is this process's side of the
/// connection to the ended machine's agent.
///
/// If nothing read these packets, a partially sent packet would block the other machine's QEMU
/// forever. The network driver in the other machine would then queue all further packets, and the
/// queue pairs of that machine could not be destroyed.
fn drain_link(mut link: UnixStream, port: &UnixStream) {
    // Wait until QEMU has ended. The kernel then closes QEMU's side of the socket pair, and `poll`
    // reports a hang-up.
    let mut gone = [PollFd::new(port.as_fd(), PollFlags::empty())];
    while poll(&mut gone, PollTimeout::NONE) == Err(Errno::EINTR) {}
    // Clear O_NONBLOCK. QEMU has set this flag on the open file description, which QEMU shares with
    // this process.
    let ready = link.set_nonblocking(false).is_ok()
        && link.set_read_timeout(Some(Duration::from_secs(1))).is_ok();
    while ready && matches!(link.read(&mut [0; 64 << 10]), Ok(1..)) {}
}

/// Clears close-on-exec, so that the next child inherits `socket`. Returns the number of the
/// descriptor.
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
