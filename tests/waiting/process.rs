//! A child process that runs this test program in one of several roles. A test can stop the
//! process, or one of its threads.

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines, Read},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use common::patient;
use nix::{
    sys::{
        prctl::set_pdeathsig,
        ptrace,
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use rdmsg::{Config, Endpoint, Listener, Polling};

use crate::stage::{TIME_LIMIT, ip_and_transport, unprobed};

/// The environment variable that contains the role of the child process.
const ROLE: &str = "WAITING_ROLE";

/// The prefix of lines that the process prints for the test.
const MARK: &str = "for the test: ";

/// The name of the thread that a test stops.
const RECEIVER: &str = "receiver";

/// The numbers of the system calls in which a thread waits for data on a connection: recvfrom(2)
/// over TCP, poll(2) otherwise. Architectures without poll(2) have only ppoll(2).
const WAITING_CALLS: [libc::c_long; 3] = [
    libc::SYS_recvfrom,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(not(target_arch = "x86_64"))]
    libc::SYS_ppoll,
];

/// The role of the child process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Accepts connections and receives nothing.
    AcceptsOnly,
    /// Accepts connections. A separate thread receives on the first connection.
    Receives,
    /// Does the same as `Receives`, but the receiving thread never sleeps.
    ReceivesBusily,
}

/// A running child process, which is killed on drop.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// A stopped thread of the child process, which is resumed on drop.
pub(crate) struct Stopped(Pid);

impl Process {
    pub(crate) fn start(role: Role) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "process::run_child_role",
            ])
            .env(ROLE, format!("{role:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the next line for the test.
    pub(crate) fn line(&mut self) -> String {
        for line in &mut self.lines {
            if let Some((_, line)) = line.unwrap().split_once(MARK) {
                return line.to_owned();
            }
        }
        panic!("the child process must print a line for the test before it ends");
    }

    pub(crate) fn addr(&mut self) -> SocketAddr {
        self.line().parse().unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Stops the whole process.
    pub(crate) fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Stops the receiving thread, as a debugger does.
    pub(crate) fn stop_receiver(&self) -> Stopped {
        let tid = self.receiver();
        ptrace::seize(tid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(tid).unwrap();
        let status = waitpid(tid, Some(WaitPidFlag::__WALL)).unwrap();
        assert!(matches!(status, WaitStatus::PtraceEvent(..)), "{status:?}");
        Stopped(tid)
    }

    /// Stops the receiving thread while it waits for completion events or bytes. The thread then
    /// holds no lock that other connections need.
    pub(crate) fn stop_sleeping_receiver(&self) -> Stopped {
        let call = format!("/proc/{}/task/{}/syscall", self.pid(), self.receiver());
        loop {
            self.await_sleep();
            let stopped = self.stop_receiver();
            // A probe may wake the thread between the two calls above. If the thread is not in a
            // system call, the kernel prints `running` or -1 instead of the number of a call.
            let call = fs::read_to_string(&call).unwrap();
            let number = call.split_whitespace().next().unwrap();
            if WAITING_CALLS.iter().any(|call| call.to_string() == number) {
                return stopped;
            }
        }
    }

    /// Waits until the receiving thread sleeps.
    fn await_sleep(&self) {
        let tid = self.receiver();
        let stat = format!("/proc/{}/task/{tid}/stat", self.pid());
        let mut asleep = 0;
        while asleep < 5 {
            let stat = fs::read_to_string(&stat).unwrap();
            let (_, rest) = stat.rsplit_once(") ").unwrap();
            asleep = if rest.starts_with('S') { asleep + 1 } else { 0 };
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn receiver(&self) -> Pid {
        let tasks = format!("/proc/{}/task", self.pid());
        for _ in 0..TIME_LIMIT.as_millis() {
            for task in fs::read_dir(&tasks).unwrap() {
                let task = task.unwrap();
                let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
                if name.trim_end() == RECEIVER {
                    let tid = task.file_name().into_string().unwrap();
                    return Pid::from_raw(tid.parse().unwrap());
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("the child process must have a thread with the name {RECEIVER}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        ptrace::detach(self.0, None).unwrap();
    }
}

/// Prints a line for the test.
fn print_line(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}

#[test]
#[ignore = "other tests run this test in a child process"]
fn run_child_role() {
    let role = env::var(ROLE).expect("the parent process must set the role");
    // The kernel kills this process when the test thread that started this process ends, even if
    // this process is stopped.
    set_pdeathsig(Signal::SIGKILL).unwrap();
    match &*role {
        "AcceptsOnly" => accept_only(),
        "Receives" => receive(&probing()),
        "ReceivesBusily" => receive(&probing().with(|c| c.polling = Polling::Busy)),
        other => panic!("unknown role: {other}"),
    }
}

fn accept_only() {
    let config = unprobed().with(|c| {
        c.receive_window = Some(4);
        c.send_depth = Some(4);
    });
    let builder = Listener::builder().config(&config);
    let messages = builder.bind((ip_and_transport().0, 0)).unwrap();
    let bytes = builder.bind_stream((ip_and_transport().0, 0)).unwrap();
    print_line(messages.local_addr());
    print_line(bytes.local_addr().unwrap());
    thread::spawn(move || bytes.incoming().collect::<Vec<_>>());
    let _kept: Vec<_> = messages.incoming().collect();
}

/// Returns a configuration with keepalive probes. Because of the probes, the engine's thread polls
/// each connection twice per keepalive interval, which is ten times per second. The keepalive
/// timeout is long, so that no connection ends during a test.
fn probing() -> Config {
    patient(&Config::default()).with(|c| c.keepalive_interval = Some(Duration::from_millis(200)))
}

fn receive(config: &Config) {
    let builder = Listener::builder().config(config);
    let listener = builder.bind((ip_and_transport().0, 0)).unwrap();
    print_line(listener.local_addr());
    let first = listener.accept().unwrap();
    let receiver = move |endpoint: Endpoint| {
        let mut count = 0;
        while endpoint.recv().is_ok() {
            count += 1;
        }
        print_line(count);
        // Wait until the test kills this process.
        let _ = std::io::stdin().read(&mut [0]);
    };
    let thread = thread::Builder::new().name(RECEIVER.into());
    thread.spawn(move || receiver(first)).unwrap();
    let _kept: Vec<_> = listener.incoming().collect();
}
