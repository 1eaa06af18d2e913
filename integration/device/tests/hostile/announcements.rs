//! Tests of announcements of large messages. An announcement costs the peer only 40 bytes, so the
//! library must commit memory in small steps as the bytes arrive.

use std::{
    env, fs,
    fs::Permissions,
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rdmsg::{CloseReason, Config, Connector, Endpoint, Engine, Error, Listener};
use toolbox::{Deadline, DeviceTest, Lab, TIME_LIMIT, applies, connect, patient, pattern};

use crate::{
    bystander::Bystander,
    peer::Peer,
    scene::{Role, Scene, config, end},
    wire::{Descriptor, Frame, Hello, RENDEZVOUS},
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The number of bytes that a peer lets the library read before the peer stalls: the first three
/// chunks, of 64 KiB, 64 KiB and 128 KiB.
const READABLE: usize = 256 << 10;

/// The upper bound for the number of pinned bytes after the stall. It exceeds the sum of four
/// chunks, of 128 KiB, 256 KiB, 512 KiB and 1 MiB.
const PINNED_LIMIT: u64 = 2 * MIB;

/// Returns a configuration for messages of up to 1 GiB.
fn large_messages() -> Config {
    let mut config = config();
    config.max_message = GIB;
    config.large_memory = GIB;
    config
}

/// Returns the library's configuration for tests in which a peer stalls READs. With this
/// configuration, the device reports a missing answer only after more than two minutes.
fn long_timeouts() -> Config {
    let mut config = large_messages();
    // The device waits 17 s for an answer, and retries seven times.
    config.rdma.ack_timeout = Some(22);
    config
}

/// Announces a message of `len` bytes, and lets the library read only the first [`READABLE`] bytes.
/// Waits until the announcement has arrived, and then stops answering READs, without a disconnect.
fn announce_and_stall(peer: &mut Peer, len: u64) {
    let region = peer.register(READABLE);
    let lie = Descriptor {
        addr: region.addr(),
        len,
        rkey: region.rkey(),
        reserved: 0,
    };
    let frame = Frame {
        payload: &lie.bytes(),
        ..Frame::control(RENDEZVOUS)
    };
    peer.send(&frame.bytes());
    assert!(peer.flush());
    peer.stop_answering();
}

/// Returns the number of bytes of this process that are pinned for devices (VmPin).
fn pinned() -> u64 {
    status("VmPin:")
}

/// Returns a list of the memory regions on the device, and the sum of their lengths in bytes.
fn registered() -> (String, u64) {
    let output = Command::new("rdma")
        .args(["resource", "show", "mr"])
        .output()
        .unwrap();
    let regions = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> = regions.split_whitespace().collect();
    let lengths = words.windows(2).filter(|pair| pair[0] == "mrlen");
    let bytes = lengths.map(|pair| pair[1].parse::<u64>().unwrap()).sum();
    (regions, bytes)
}

fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Waits until the library has processed the announcement of `len` bytes on this connection.
fn wait_announced(scene: &Scene, endpoint: &Endpoint, len: u64) {
    while endpoint.statistics().large_bytes_held < len {
        assert_eq!(endpoint.info().close_reason, None);
        scene.stage.bystander.assert_unaffected();
    }
}

#[test]
fn announcement_of_a_gibibyte_pins_little() {
    let scene = Scene::with(long_timeouts());
    for role in [Role::Client, Role::Server] {
        let (mut peer, endpoint) = scene.connect(role);
        let (_, registered_before) = registered();
        let (before, resident) = (pinned(), status("VmRSS:"));
        announce_and_stall(&mut peer, GIB);
        wait_announced(&scene, &endpoint, GIB);
        for _ in 0..20 {
            scene.stage.bystander.assert_unaffected();
            let (more, more_resident) = (
                pinned().saturating_sub(before),
                status("VmRSS:").saturating_sub(resident),
            );
            // With software iWARP, the kernel's count of pinned bytes once increased without a new
            // registration, for an unknown reason. In this case check the registered regions
            // instead.
            if more >= PINNED_LIMIT {
                let (regions, bytes) = registered();
                assert!(
                    Lab::get().is_iwarp() && bytes < registered_before + PINNED_LIMIT,
                    "{role:?}: pinned bytes grow from {before} by {more}:\n{regions}"
                );
            }
            assert!(
                more_resident < 32 * MIB,
                "{role:?}: resident memory grows by {more_resident} bytes"
            );
        }
        endpoint.abort(0);
        peer.disconnect();
        end(&endpoint);
        while pinned() >= before + MIB {
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

#[test]
fn peers_that_announce_and_vanish_leave_nothing() {
    const LEN: u64 = 128 * MIB;
    let scene = Scene::with(long_timeouts());
    // Do not count the engine's relief thread, which starts when the engine first calls a waker or
    // the logger, and the threads that destroy ended connections, which end after a second.
    let threads = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
        names
            .filter(|name| {
                let name = name.as_ref().map(|name| name.trim_end());
                !matches!(name, Ok("rdmsg-relief" | "rdmsg-destroy"))
            })
            .count()
    };
    let before = (pinned(), threads());
    let mut endpoints = Vec::new();
    for _ in 0..12 {
        let (mut peer, endpoint) = scene.connect(Role::Client);
        announce_and_stall(&mut peer, LEN);
        wait_announced(&scene, &endpoint, LEN);
        drop(peer);
        endpoints.push(endpoint);
    }
    for endpoint in endpoints {
        endpoint.abort(0);
        end(&endpoint);
    }
    // The bystander's connection counts twice, because both of its sides use this engine.
    while scene.stage.engine.statistics().unwrap().connections > 2 {
        scene.stage.bystander.assert_unaffected();
    }
    // The memory is deregistered in the background.
    let mut deadline = Deadline::after(TIME_LIMIT);
    while pinned() > before.0 && !deadline.is_over() {
        thread::sleep(Duration::from_millis(5));
    }
    // When `before` was measured, a thread that helped to establish a connection may still have
    // been running. The number of threads can therefore be lower now.
    let after = (pinned(), threads());
    assert!(
        after.0 <= before.0 && after.1 <= before.1,
        "pinned bytes and threads must not increase: {before:?} before, {after:?} after"
    );
    scene.finish();
}

#[test]
fn stalled_read_ends_connection_and_frees_budget() {
    let lab = DeviceTest::without_credits();
    if !applies(
        !lab.is_iwarp(),
        "queue pairs that fall silent without a disconnect",
    ) {
        return;
    }
    let mut limits = rdmsg::EngineLimits::default();
    limits.held = 4 * MIB;
    let engine = Engine::with_limits(limits).unwrap();
    let mut config = long_timeouts();
    config.read_timeout = Duration::from_millis(500);
    let address = lab.at(0);
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(address)
        .unwrap();
    let address = listener.local_addr();
    let hello = Hello::GOOD.bytes();
    // The messages together need twice the memory limit, so one READ has to wait until another
    // message's memory is free.
    let hostile: Vec<_> = [4 * MIB, 2 * MIB, 2 * MIB]
        .into_iter()
        .map(|len| {
            let connecting = thread::spawn({
                let hello = hello.clone();
                move || Peer::connect(address, &hello)
            });
            let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
            let mut peer = connecting.join().unwrap();
            announce_and_stall(&mut peer, len);
            (peer, endpoint)
        })
        .collect();
    let (honest, server) = honest_pair(&engine, lab.at(0));
    for number in 0..3 {
        let message = pattern(number, MIB as usize);
        honest.send(&message).unwrap();
        assert!(*server.recv_timeout(TIME_LIMIT).unwrap() == *message);
    }
    for (peer, endpoint) in hostile {
        let reason = end(&endpoint).0;
        // If the peer's queue pair enters the error state during a READ, the peer's device rejects
        // this READ.
        let refused = matches!(&reason, CloseReason::ProtocolViolation(it) if it.field() == "rkey");
        assert!(refused || reason == CloseReason::ReadTimeout, "{reason}");
        drop(peer);
    }
    honest.close().unwrap();
    drop((server, listener));
    assert_eq!(engine.drain(TIME_LIMIT).unwrap(), 0);
    let statistics = engine.statistics().unwrap();
    assert_eq!(statistics.held, 0, "{statistics:?}");
    engine.shutdown();
}

/// Connects two honest sides. Their configuration does not contain the long acknowledgement timeout
/// of the hostile connections. If a packet of a READ is lost, the device therefore retries much
/// earlier.
fn honest_pair(engine: &Engine, address: SocketAddr) -> (Endpoint, Endpoint) {
    let config = large_messages();
    let listener = Listener::builder()
        .config(&config)
        .engine(engine)
        .bind(address)
        .unwrap();
    let connector = Connector::new().config(&config).engine(engine);
    let address = listener.local_addr();
    let connecting = thread::spawn(move || connector.connect(address).unwrap());
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    (connecting.join().unwrap(), accepted)
}

/// Gives all users access to the device files. Returns a command that runs another test of this
/// program with a limit of `kib` KiB of locked memory. The command runs as an unprivileged user,
/// because the limit does not apply to root.
fn as_unprivileged(test: &str, kib: u32) -> Command {
    for entry in fs::read_dir("/dev/infiniband").unwrap() {
        fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o666)).unwrap();
    }
    let script = format!("ulimit -l {kib} && exec \"$0\" --exact --ignored --nocapture \"$1\"");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .arg(env::current_exe().unwrap())
        .arg(format!("announcements::{test}"))
        .uid(65534)
        .gid(65534);
    command
}

#[test]
fn announcements_leave_lock_limit_to_others() {
    let _test = DeviceTest::without_credits();
    let status = as_unprivileged("among_announcers_with_a_small_lock_limit", 8192)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "started by another test, with a limit"]
fn among_announcers_with_a_small_lock_limit() {
    let lab = DeviceTest::without_credits();
    let engine = Engine::new().unwrap();
    let address = lab.at(0);
    let bystander = Bystander::new(&engine, address);
    // The hostile peers are on the same host as the honest peer. If all three READs stall, they use
    // up the host's share of the memory for READs until one of them times out.
    let config = long_timeouts().with(|config| config.read_timeout = Duration::from_millis(500));
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(address)
        .unwrap();
    let address = listener.local_addr();
    let connect = || {
        let connecting = thread::spawn(move || Peer::connect(address, &Hello::GOOD.bytes()));
        let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
        (connecting.join().unwrap(), endpoint)
    };
    let (honest, server) = honest_pair(&engine, lab.at(0));
    // The three messages together exceed the memory for READs, but each message alone does not.
    let hostile: Vec<_> = (0..3)
        .map(|_| {
            let (mut peer, endpoint) = connect();
            announce_and_stall(&mut peer, MIB);
            (peer, endpoint)
        })
        .collect();
    for number in 0..8 {
        let message = pattern(number, 300_000);
        honest.send(&message).unwrap();
        assert!(*server.recv_timeout(TIME_LIMIT).unwrap() == *message);
        bystander.assert_unaffected();
    }
    for (peer, endpoint) in hostile {
        endpoint.abort(0);
        peer.disconnect();
        end(&endpoint);
    }
    honest.close().unwrap();
    drop((server, listener));
    bystander.finish();
    engine.shutdown();
}

#[test]
fn client_learns_of_servers_missing_memory() {
    let _test = DeviceTest::without_credits();
    let mut server = as_unprivileged("a_server_that_may_lock_nothing_more", 8192)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut said = |what: &str| {
        let found = lines.find_map(|line| line.unwrap().strip_prefix(what).map(str::to_owned));
        found.unwrap_or_else(|| panic!("the server did not print {what:?}"))
    };
    let address: SocketAddr = said("listening on ").parse().unwrap();
    let connect = || connect(address).unwrap();
    let (sender, other) = (connect(), connect());
    // The server prints "ready" when it has accepted both connections and lowered its limit.
    said("ready");
    sender.send(&pattern(1, MIB as usize)).unwrap();
    other.send(b"still there").unwrap();
    assert_eq!(*other.recv_timeout(TIME_LIMIT).unwrap(), *b"still there");
    assert_eq!(end(&sender).0, CloseReason::PeerOutOfResources);
    let reason = said("ended: ");
    for advice in ["ibv_reg_mr", "ulimit -l", "LimitMEMLOCK="] {
        assert!(reason.contains(advice), "{reason}");
    }
    other.send(b"even now").unwrap();
    assert_eq!(*other.recv_timeout(TIME_LIMIT).unwrap(), *b"even now");
    other.close().unwrap();
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

#[test]
#[ignore = "started by another test, with a limit"]
fn a_server_that_may_lock_nothing_more() {
    use nix::sys::resource::{Resource, setrlimit};

    let lab = DeviceTest::without_credits();
    let mut config = patient();
    config.read_timeout = Duration::from_secs(1);
    config.receive_window = Some(8);
    config.send_depth = Some(8);
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let say = |what: std::fmt::Arguments<'_>| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "\n{what}").unwrap();
        stdout.flush().unwrap();
    };
    say(format_args!("listening on {}", listener.local_addr()));
    let endpoints = [(); 2].map(|()| listener.accept_timeout(TIME_LIMIT).unwrap());
    setrlimit(Resource::RLIMIT_MEMLOCK, 4096, 4096).unwrap();
    say(format_args!("ready"));
    let servers = endpoints.map(|endpoint| {
        thread::spawn(move || {
            loop {
                match endpoint.recv_timeout(TIME_LIMIT) {
                    Ok(message) => endpoint.send(&message).unwrap(),
                    Err(Error::Disconnected(CloseReason::PeerClosed)) => return None,
                    Err(error) => return Some(error.to_string()),
                }
            }
        })
    });
    let mut waiting: Vec<_> = servers.into_iter().collect();
    while !waiting.is_empty() {
        let done = waiting.iter().position(thread::JoinHandle::is_finished);
        let Some(done) = done else {
            thread::yield_now();
            continue;
        };
        if let Some(error) = waiting.swap_remove(done).join().unwrap() {
            say(format_args!("ended: {error}"));
        }
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
