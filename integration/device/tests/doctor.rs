//! Tests `rdmsg doctor`. Most tests cause a fault. The doctor must name the fault, and the command
//! that the doctor prints must repair the fault.

use std::{fs, net::IpAddr, path::Path, thread, time::Duration};

use rdmsg::{Engine, Listener, TransportChoice};
use toolbox::{
    DOCTOR, Deadline, DeviceTest, Diagnosis, Finding, Process, Shell, TIME_LIMIT, example, patient,
};

/// The prefix that makes a command run as an unprivileged user.
const AS_UNPRIVILEGED: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// The guard of the lab's device. Dropping the guard restores the device.
struct Restored<'a>(&'a DeviceTest);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let (v4, v6, device) = (self.0.addr, self.0.addr6, &self.0.device);
        let script = format!(
            "modprobe -a rdma_ucm ib_uverbs rdma_rxe; ip link set eth0 up mtu 4200; \
             ip address flush dev eth0 scope global; ip address add {v4}/24 dev eth0; \
             ip address add {v6}/64 dev eth0 nodad; nft delete table inet wrong; \
             rdma link show {device}/1 || rdma link add {device} type rxe netdev eth0; \
             chmod 666 /dev/infiniband/*; true"
        );
        let mut shell = Shell::start().unwrap();
        shell.run(&format!("({script}) >/dev/null 2>&1")).unwrap();
        // Wait, because the kernel fills the GID table only after a delay.
        let port = Path::new("/sys/class/infiniband")
            .join(device)
            .join("ports/1");
        let mut deadline = Deadline::after(TIME_LIMIT);
        while !has_gid(&port, v4) || !has_gid(&port, v6) {
            assert!(!deadline.is_over(), "the device must regain its GIDs");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn has_gid(port: &Path, address: IpAddr) -> bool {
    let gid = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let gids = fs::read_dir(port.join("gids"))
        .into_iter()
        .flatten()
        .flatten();
    let mut gids = gids.filter_map(|file| fs::read_to_string(file.path()).ok());
    gids.any(|text| text.trim().parse() == Ok(gid))
}

/// Runs the doctor until its diagnosis meets the condition. One run is not enough: when the state
/// of a network interface changes, the state of its RDMA device changes only after a delay.
fn until(shell: &mut Shell, line: &str, condition: impl Fn(&Diagnosis) -> bool) -> Diagnosis {
    let mut deadline = Deadline::after(TIME_LIMIT);
    loop {
        let diagnosis = Diagnosis::typed(shell, line).unwrap();
        if condition(&diagnosis) {
            return diagnosis;
        }
        assert!(!deadline.is_over(), "{line}: {diagnosis:#?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Runs the doctor until it reports no errors.
fn wait_until_healthy(shell: &mut Shell, line: &str) -> Diagnosis {
    until(shell, line, |diagnosis| diagnosis.errors().is_empty())
}

/// Runs the repair commands of a finding exactly as the doctor has printed them.
fn run_commands(shell: &mut Shell, finding: &Finding) {
    assert!(
        !finding.commands.is_empty(),
        "{finding:?} contains no command"
    );
    for line in &finding.commands {
        shell.run(line).unwrap();
    }
}

/// Causes a fault by running `line`. Checks that the doctor reports exactly one error, which is
/// about `subject`, and that the commands of this error repair the fault. Returns the error.
fn check_repair(shell: &mut Shell, line: &str, subject: &str, doctor: &str) -> Finding {
    shell.run(line).unwrap();
    let wrong = until(
        shell,
        doctor,
        |diagnosis| matches!(diagnosis.errors()[..], [error] if error.subject == subject),
    );
    let finding = wrong.only_error(subject).clone();
    run_commands(shell, &finding);
    wait_until_healthy(shell, doctor);
    finding
}

/// Returns [`DOCTOR`] as a line that runs without privileges.
fn unprivileged_doctor() -> String {
    let path = example("rdmsg").display().to_string();
    format!("{AS_UNPRIVILEGED} {}", DOCTOR.replacen("rdmsg", &path, 1))
}

#[test]
fn nothing_is_wrong_on_a_host_where_all_is_well() {
    let _lab = DeviceTest::start();
    let mut shell = Shell::start().unwrap();
    let diagnosis = Diagnosis::typed(&mut shell, DOCTOR).unwrap();
    assert_eq!(diagnosis.status, 0, "{diagnosis:#?}");
    for subject in [
        "kernel",
        "device files",
        "port",
        "mtu",
        "memlock",
        "files",
        "firewall",
        "libraries",
        "exchange",
    ] {
        assert_eq!(
            diagnosis.states(subject),
            ["ok"],
            "{subject}: {diagnosis:#?}"
        );
    }
    let text = shell.run("rdmsg doctor").unwrap();
    assert!(text.ends_with("\nnothing is wrong\n"), "{text}");
    let short = shell.run("rdmsg doctor --quiet").unwrap();
    assert!(!short.contains("memlock"), "{short}");
}

#[test]
fn a_connection_manager_that_is_not_loaded_is_loaded() {
    let lab = DeviceTest::start();
    let _restored = Restored(&lab);
    let mut shell = Shell::start().unwrap();
    let finding = check_repair(&mut shell, "rmmod rdma_ucm", "kernel", DOCTOR);
    assert_eq!(finding.what, "rdma_ucm is not loaded");
}

#[test]
fn a_device_without_an_address_gets_one() {
    let lab = DeviceTest::start();
    let _restored = Restored(&lab);
    let mut shell = Shell::start().unwrap();
    let line = "ip address flush dev eth0 scope global";
    let finding = check_repair(&mut shell, line, "address", DOCTOR);
    assert_eq!(finding.what, "rxe0 port 1: eth0 has no address");
}

#[test]
fn a_port_that_is_down_is_brought_up() {
    let lab = DeviceTest::start();
    let _restored = Restored(&lab);
    let mut shell = Shell::start().unwrap();
    let finding = check_repair(&mut shell, "ip link set eth0 down", "port", DOCTOR);
    assert_eq!(finding.what, "rxe0 port 1 is DOWN");
}

#[test]
fn rights_on_a_device_file_are_given() {
    let lab = DeviceTest::start();
    let _restored = Restored(&lab);
    let mut shell = Shell::start().unwrap();
    shell.run("ulimit -l unlimited").unwrap();
    let line = "chmod 600 /dev/infiniband/uverbs0";
    let doctor = unprivileged_doctor();
    let finding = check_repair(&mut shell, line, "device files", &doctor);
    assert!(
        finding
            .what
            .contains("may not read and write /dev/infiniband/uverbs0 (mode 0600"),
        "{finding:?}"
    );
}

#[test]
fn locked_memory_limit_is_raised_in_current_shell() {
    let _lab = DeviceTest::start();
    let mut shell = Shell::start().unwrap();
    shell.run("ulimit -l 64").unwrap();
    let doctor = unprivileged_doctor();
    let wrong = Diagnosis::typed(&mut shell, &doctor).unwrap();
    assert_eq!(wrong.status, 4);
    let subjects: Vec<&str> = wrong.errors().iter().map(|it| &*it.subject).collect();
    assert_eq!(subjects, ["memlock", "exchange"], "{wrong:#?}");
    let [memlock, exchange] = wrong.errors()[..] else {
        panic!("{wrong:#?}")
    };
    assert!(
        memlock
            .what
            .starts_with("64 KiB of memory may be locked: room for 0 ")
    );
    assert!(exchange.what.contains("ulimit -l"), "{exchange:?}");
    run_commands(&mut shell, memlock);
    let fine = Diagnosis::typed(&mut shell, &doctor).unwrap();
    assert_eq!(fine.states("memlock"), ["ok"], "{fine:#?}");
    assert_eq!(fine.states("exchange"), ["ok"], "{fine:#?}");
}

#[test]
fn a_firewall_that_drops_roce_lets_it_pass() {
    let lab = DeviceTest::start();
    let _restored = Restored(&lab);
    let mut shell = Shell::start().unwrap();
    for chain in [
        "'{ type filter hook input priority 0; policy drop; }'",
        "'{ type filter hook output priority 0; }'",
    ] {
        shell.run("nft add table inet wrong").unwrap();
        let line = format!(
            "nft add chain inet wrong pass {chain}; nft add rule inet wrong pass tcp dport 22 \
             accept; nft add rule inet wrong pass ct state established,related accept; \
             nft add rule inet wrong pass meta l4proto udp drop"
        );
        let finding = check_repair(&mut shell, &line, "firewall", DOCTOR);
        assert!(finding.what.contains("of inet wrong pass "), "{finding:?}");
        shell.run("nft delete table inet wrong").unwrap();
    }
}

#[test]
fn a_machine_without_a_device_gets_one_of_software() {
    let lab = DeviceTest::start();
    let _restored = Restored(&lab);
    let mut shell = Shell::start().unwrap();
    let finding = check_repair(&mut shell, "rdma link delete rxe0", "device", DOCTOR);
    assert_eq!(finding.what, "there is no RDMA device");

    shell.run("rdma link delete rxe0").unwrap();
    let nobody = format!(
        "{AS_UNPRIVILEGED} {} doctor --fix",
        example("rdmsg").display()
    );
    let (status, _) = shell.type_line(&nobody).unwrap();
    assert_eq!(status, 1, "--fix must fail without root privileges");
    Diagnosis::typed(&mut shell, "rdmsg doctor --fix --json").unwrap();
    assert!(Path::new("/sys/class/infiniband/rxe0").exists());
    wait_until_healthy(&mut shell, DOCTOR);
    // `--fix` creates no second device if one already exists.
    Diagnosis::typed(&mut shell, "rdmsg doctor --fix --json").unwrap();
    assert_eq!(fs::read_dir("/sys/class/infiniband").unwrap().count(), 1);
}

#[test]
fn peer_without_service_gets_start_command() {
    let lab = DeviceTest::start();
    let mut shell = Shell::start().unwrap();
    let doctor = format!("{DOCTOR} {}:7481", lab.addr);
    let wrong = Diagnosis::typed(&mut shell, &doctor).unwrap();
    let finding = wrong.only_error("peer");
    assert!(finding.is_of_peer && finding.what.contains("rdmsg serve does not answer"));
    let [line] = &finding.commands[..] else {
        panic!("{finding:?}")
    };
    let program = example("rdmsg").display().to_string();
    let argv: Vec<String> = line
        .replacen("rdmsg", &program, 1)
        .split(' ')
        .map(Into::into)
        .collect();
    let mut server = Process::start(&argv).unwrap();
    assert!(server.wait_for_text("over RDMA and TCP", TIME_LIMIT));
    let fine = Diagnosis::typed(&mut shell, &doctor).unwrap();
    assert_eq!(fine.status, 0, "{fine:#?}");
    for subject in ["route", "peer", "both MTUs", "connection", "messages"] {
        assert_eq!(fine.states(subject), ["ok"], "{subject}: {fine:#?}");
    }
    server.signal(nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = server.end(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
}

/// `rdmsg serve` listens only over TCP, and another program listens over RDMA on the same port. A
/// client with `TransportChoice::Auto` then connects to the other program, and the doctor must
/// report this.
#[test]
fn another_program_on_the_port_over_rdma_is_named() {
    let lab = DeviceTest::start();
    let config = patient().with(|c| c.transport = TransportChoice::Rdma);
    let engine = Engine::new().unwrap();
    let other = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let address = other.local_addr();
    let program = example("rdmsg").display().to_string();
    let argv = [
        &program,
        "serve",
        &address.to_string(),
        "--transport",
        "tcp",
    ];
    let mut server = Process::start(&argv).unwrap();
    assert!(server.wait_for_text("over TCP", TIME_LIMIT));
    let mut shell = Shell::start().unwrap();
    let ending = thread::spawn(move || other.accept_timeout(TIME_LIMIT).map(drop));
    let wrong = Diagnosis::typed(&mut shell, &format!("{DOCTOR} {address}")).unwrap();
    ending.join().unwrap().unwrap();
    let finding = wrong.only_error("messages");
    assert!(finding.is_of_peer, "{finding:?}");
    assert!(
        finding.what.starts_with("no message comes back over RDMA"),
        "{finding:?}"
    );
    server.kill().unwrap();
}
