//! A device that is taken away while it is in use: a second one of software RoCE, made for this. In a program of its own, because what
//! is left of it goes when the process ends.

use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use device::{Lab, Watchdog};
use rdmsg::{CloseReason, Config, Endpoint, Engine, Error, Listener};

const PATIENCE: Duration = Duration::from_secs(20);

fn run(line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap())
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Listens on an address of a device that has just been made, which takes a moment.
fn bind(address: &str, engine: &Engine) -> Listener {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Listener::bind_with(address, &Config::default(), engine) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn a_device_that_is_removed_ends_its_listener_and_its_connections() {
    let _watchdog = Watchdog::new(
        "a_device_that_is_removed_ends_its_listener_and_its_connections",
        120,
    );
    let elsewhere = Listener::bind(Lab::get().at(0)).unwrap();
    run("ip link add going0 type dummy");
    run("ip address add 10.98.0.1/24 dev going0");
    run("ip link set going0 up");
    run("rdma link add rxe_going type rxe netdev going0");

    let engine = Engine::new().unwrap();
    let waiting = bind("10.98.0.1:7980", &engine);
    let listener = bind("10.98.0.1:7981", &engine);
    let address = listener.local_addr();
    let client = thread::spawn(move || Endpoint::connect(address).unwrap());
    let server = listener.accept_timeout(PATIENCE).unwrap();
    let client = client.join().unwrap();
    client.send(b"hello").unwrap();
    assert_eq!(*server.recv_timeout(PATIENCE).unwrap(), *b"hello");

    let waiter = thread::spawn(move || waiting.accept_timeout(PATIENCE).unwrap_err());
    // The kernel waits for all that used the device, and librdmacm keeps it open until this process ends: nobody can wait for this.
    #[expect(clippy::zombie_processes, reason = "it ends after this process")]
    let _deleting = Command::new("sh")
        .args(["-c", "rdma link delete rxe_going; ip link delete going0"])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();

    let ends = [
        waiter.join().unwrap(),
        listener.accept_timeout(PATIENCE).unwrap_err(),
        listener.try_accept().unwrap_err(),
    ];
    for error in ends {
        assert!(
            matches!(
                error,
                Error::ListenerEnded {
                    reason: CloseReason::DeviceRemoved,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(
            error.to_string().ends_with(
                "has ended: the RDMA device was removed. Bind again when the device is back"
            ),
            "{error}"
        );
    }
    for endpoint in [&client, &server] {
        let end = endpoint.recv_timeout(PATIENCE).unwrap_err();
        // The queue pair may fail before the connection manager says why.
        assert!(matches!(end, Error::Disconnected(_)), "{end:?}");
    }
    drop((client, server, listener));
    engine.shutdown();

    let address = elsewhere.local_addr();
    let client = thread::spawn(move || Endpoint::connect(address).unwrap());
    elsewhere.accept_timeout(PATIENCE).unwrap();
    client.join().unwrap();
}
