//! Tests the removal and the return of a device that is in use, and the loss and the return of its
//! link. The device is either a second software RoCE device, which the test creates, or the host's
//! only device.

use std::{
    env, fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use log::{LevelFilter, Log, Metadata, Record};
use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, Transport, cm, observe,
    verbs,
};
use toolbox::{Deadline, DeviceTest, Lab, TIME_LIMIT, patient, reason};

/// The time limit for the effects of a lost device or link. A connect that is not repeated has a
/// longer limit, [`TIME_LIMIT`].
const EFFECT_LIMIT: Duration = Duration::from_secs(20);

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

/// Starts a shell command that removes a device. The command ends only when no process uses the
/// device any longer.
fn start(line: &str) -> Child {
    Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the command has ended, which means that no process uses the device any longer. The
/// watchdog limits this wait.
fn wait_for_end(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

/// Listens on an address of a new device. Retries, because the connection manager needs a moment to
/// notice the device.
fn bind(address: &str, engine: &Engine) -> Listener {
    let deadline = Instant::now() + EFFECT_LIMIT;
    let builder = Listener::builder().config(&patient()).engine(engine);
    loop {
        match builder.bind(address) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

fn connector() -> Connector {
    Connector::new().config(&patient())
}

fn pair(listener: &Listener, engine: &Engine) -> (Endpoint, Endpoint) {
    let address = listener.local_addr();
    let connector = connector().engine(engine);
    let client = thread::spawn(move || connector.connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();
    client.send(b"hello").unwrap();
    assert_eq!(*server.recv_timeout(EFFECT_LIMIT).unwrap(), *b"hello");
    (client, server)
}

fn is_removed(error: &Error) -> bool {
    matches!(
        error,
        Error::ListenerEnded {
            reason: CloseReason::DeviceRemoved,
            ..
        }
    )
}

#[test]
fn device_removal_ends_users_until_device_returns() {
    let lab = DeviceTest::without_credits();
    let elsewhere = Listener::builder().config(&patient());
    let elsewhere = elsewhere.bind(lab.at(0)).unwrap();
    // This connection uses the lab's own device, which the test does not remove, so the connection
    // must survive.
    let other = pair(&elsewhere, &Engine::shared().unwrap());
    run("ip link add going0 type dummy");
    run("ip address add 10.98.0.1/24 dev going0");
    run("ip link set going0 up");
    run("rdma link add rxe_going type rxe netdev going0");

    let engine = Engine::new().unwrap();
    for (name, next) in [
        ("rxe_going", "rxe_going"),
        ("rxe_going", "rxe_other"),
        ("rxe_other", "rxe_going"),
    ] {
        let waiting = bind("10.98.0.1:7980", &engine);
        let listener = bind("10.98.0.1:7981", &engine);
        let (client, server) = pair(&listener, &engine);
        let waiter = thread::spawn(move || waiting.accept_timeout(EFFECT_LIMIT).unwrap_err());
        let deleting = start(&format!("exec rdma link delete {name}"));

        let errors = [
            waiter.join().unwrap(),
            listener.accept_timeout(EFFECT_LIMIT).unwrap_err(),
            listener.try_accept().unwrap_err(),
        ];
        for error in errors {
            assert!(is_removed(&error), "{error}");
            assert!(
                error.to_string().ends_with(
                    "has ended: the RDMA device was removed. Bind again when the device is back, or set rebind of its ListenerBuilder"
                ),
                "{error}"
            );
        }
        for endpoint in [&client, &server] {
            let end = endpoint.recv_timeout(EFFECT_LIMIT).unwrap_err();
            // Accept any reason, because the queue pair can fail before the connection manager
            // reports the removal.
            assert!(matches!(end, Error::Disconnected(_)), "{end:?}");
        }
        // The removal completes although handles still exist and the engine still runs.
        wait_for_end(deleting);
        drop((client, server, listener));
        run(&format!("rdma link add {next} type rxe netdev going0"));
    }
    let back = bind("10.98.0.1:7981", &engine);
    pair(&back, &engine);
    // Remove the device while a listener exists. The removal must end the listener.
    let deleting = start("rdma link delete rxe_going && ip link delete going0");
    assert!(is_removed(&back.accept_timeout(EFFECT_LIMIT).unwrap_err()));
    wait_for_end(deleting);
    engine.shutdown();

    other.0.send(b"all along").unwrap();
    assert_eq!(*other.1.recv_timeout(EFFECT_LIMIT).unwrap(), *b"all along");
    pair(&elsewhere, &Engine::shared().unwrap());
}

/// Connects to the listener and sends a message. Returns the transport of the connection.
fn transport_to(listener: &Listener) -> Transport {
    let address = format!("auto://{}", listener.local_addr());
    let client = thread::spawn(move || connector().connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.info().transport, server.info().transport);
    client.send(b"hello").unwrap();
    assert_eq!(*server.recv_timeout(EFFECT_LIMIT).unwrap(), *b"hello");
    client.info().transport
}

const CHOOSES: &str = "10.96.0.1:7986";

#[test]
fn auto_uses_tcp_while_device_is_removed() {
    let _lab = DeviceTest::without_credits();
    run("ip link add auto0 type dummy");
    run("ip address add 10.96.0.1/24 dev auto0");
    run("ip link set auto0 up");
    run("rdma link add rxe_auto type rxe netdev auto0");
    let engine = Engine::new().unwrap();
    drop(bind("10.96.0.1:7985", &engine));
    let listener = Listener::builder().config(&patient());
    let listener = listener.bind(format!("auto://{CHOOSES}")).unwrap();
    assert_eq!(listener.transports(), [Transport::Rdma, Transport::Tcp]);
    assert_eq!(transport_to(&listener), Transport::Rdma);
    let client = thread::spawn(|| connector().connect(format!("auto://{CHOOSES}")).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.info().transport, Transport::Rdma);

    wait_for_end(start("exec rdma link delete rxe_auto"));
    for endpoint in [client, server] {
        assert!(
            endpoint.recv_timeout(EFFECT_LIMIT).is_err(),
            "the connection must end with its device"
        );
    }
    assert_eq!(transport_to(&listener), Transport::Tcp);

    run("rdma link add rxe_auto type rxe netdev auto0");
    drop(bind("10.96.0.1:7987", &engine));
    let child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "a_process_of_its_own_chooses",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && output.contains("chose Rdma"),
        "{output}"
    );
    // The listener continues over TCP, and binds to the device again within seconds.
    let mut deadline = Deadline::after(EFFECT_LIMIT);
    while transport_to(&listener) != Transport::Rdma {
        assert!(
            !deadline.is_over(),
            "the listener must use the device again"
        );
    }
    // Remove the device while a listener exists. The removal must complete nevertheless.
    wait_for_end(start("rdma link delete rxe_auto && ip link delete auto0"));
    drop(listener);
    engine.shutdown();
}

#[test]
#[ignore = "a part of the test above, which starts it"]
fn a_process_of_its_own_chooses() {
    let listener = Listener::builder().config(&patient());
    let listener = listener.bind("auto://10.96.0.1:7988").unwrap();
    println!("chose {:?}", transport_to(&listener));
}

/// Connects to an address. Retries while the device with this address is missing. The deadline
/// permits a further attempt after an attempt that has timed out.
fn connect_when_back(address: SocketAddr, engine: &Engine) -> Endpoint {
    let deadline = Instant::now() + TIME_LIMIT;
    let config = patient().with(|config| config.connect_timeout = EFFECT_LIMIT);
    let connector = Connector::new().config(&config).engine(engine);
    loop {
        match connector.connect(address) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn listener_with_rebind_binds_again() {
    let lab = DeviceTest::without_credits();
    let _elsewhere = lab;
    run("ip link add again0 type dummy");
    run("ip address add 10.97.0.1/24 dev again0");
    run("ip link set again0 up");
    run("rdma link add rxe_again type rxe netdev again0");
    let engine = Engine::new().unwrap();
    drop(bind("10.97.0.1:7984", &engine));
    let listener = Listener::builder()
        .config(&patient())
        .rebind(true)
        .engine(&engine)
        .bind("10.97.0.1:7984")
        .unwrap();
    thread::scope(|scope| {
        for name in ["rxe_again", "rxe_again", "rxe_renamed"] {
            let server = scope.spawn(|| listener.accept_timeout(4 * EFFECT_LIMIT).unwrap());
            let client = connect_when_back(listener.local_addr(), &engine);
            let server = server.join().unwrap();
            client.send(b"hello").unwrap();
            assert_eq!(*server.recv_timeout(EFFECT_LIMIT).unwrap(), *b"hello");
            let old = fs::read_dir("/sys/class/infiniband")
                .unwrap()
                .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
                .find(|other| ["rxe_again", "rxe_renamed"].contains(&&**other))
                .unwrap();
            wait_for_end(start(&format!("exec rdma link delete {old}")));
            assert_eq!(
                reason(client.recv_timeout(EFFECT_LIMIT)),
                CloseReason::DeviceRemoved
            );
            assert!(
                listener.try_accept().unwrap().is_none(),
                "the listener must continue, without requests"
            );
            run(&format!("rdma link add {name} type rxe netdev again0"));
        }
        // Clients can connect again after the address was removed and added again.
        run("ip address del 10.97.0.1/24 dev again0");
        run("ip address add 10.97.0.1/24 dev again0");
        let server = scope.spawn(|| listener.accept_timeout(4 * EFFECT_LIMIT).unwrap());
        let client = connect_when_back(listener.local_addr(), &engine);
        client.close().unwrap();
        drop(server.join().unwrap());
    });
    wait_for_end(start(
        "rdma link delete rxe_renamed && ip link delete again0",
    ));
    assert!(listener.try_accept().unwrap().is_none());
    drop(listener);
    engine.shutdown();
}

/// A software RoCE device on its own network interface, whose link the test brings down and up.
struct Cut {
    address: String,
}

impl Cut {
    const DEVICE: &str = "rxe_cut";

    fn new(port: u16) -> Self {
        run("ip link add cut0 type dummy");
        run("ip address add 10.94.0.1/24 dev cut0");
        run("ip link set cut0 up");
        run("rdma link add rxe_cut type rxe netdev cut0");
        Self {
            address: format!("10.94.0.1:{port}"),
        }
    }

    fn set(&self, state: &str) {
        run(&format!("ip link set cut0 {state}"));
    }

    /// Establishes a connection. Returns the connecting end, the accepting end, and the listener.
    /// All three use `config`.
    fn pair(&self, config: &Config, engine: &Engine) -> (Endpoint, Endpoint, Listener) {
        bind(&self.address, engine).close();
        let listener = Listener::builder().config(config).engine(engine);
        let listener = listener.bind(&*self.address).unwrap();
        let connector = Connector::new().config(config).engine(engine);
        let address = self.address.clone();
        let client = thread::spawn(move || connector.connect(&*address).unwrap());
        let server = listener.accept_timeout(TIME_LIMIT).unwrap();
        (client.join().unwrap(), server, listener)
    }

    /// Removes the device while a listener exists. The removal must complete nevertheless.
    fn remove(self, listener: Listener) {
        wait_for_end(start("rdma link delete rxe_cut && ip link delete cut0"));
        drop(listener);
    }

    /// Returns the number of events with the name `event` that were counted for the device.
    fn count(&self, event: &str) -> u64 {
        let all = observe::snapshot().device_events;
        let mut of_device = all.iter().filter(|it| it.device == Self::DEVICE);
        let found = of_device.find(|it| it.event == event);
        found.map_or(0, |it| it.count)
    }

    fn await_count(&self, event: &str, count: u64) {
        await_that(event, || self.count(event) == count);
    }
}

fn await_that(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + EFFECT_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

/// Returns a configuration with one ping per hour. A ping during the test is therefore the effect
/// of a device event.
fn hourly() -> Config {
    let mut config = patient();
    config.keepalive_interval = Some(Duration::from_secs(3600));
    config.keepalive_timeout = Duration::from_secs(120);
    // With this timeout, the device retries a send for more than half a minute before it reports an
    // error.
    config.rdma.ack_timeout = Some(20);
    config
}

/// The link of idle connections goes down and up again. The connections must survive, so the
/// library must not ping while the link is down: sends over software RoCE then fail, which ends the
/// connection. A further connection waits for the peer's accept and sends nothing. This connection
/// keeps the device in use.
#[test]
fn lost_link_is_noticed_and_idle_connections_live() {
    let _lab = DeviceTest::without_credits();
    let cut = Cut::new(7989);
    // Only one of the engines reads the event from the device, but both must react.
    let engines = [Engine::new().unwrap(), Engine::new().unwrap()];
    let pairs = engines.each_ref().map(|engine| {
        let (client, server, listener) = cut.pair(&hourly(), engine);
        listener.close();
        (client, server)
    });
    let mut long_timeouts = Config::default();
    long_timeouts.connect_timeout = 2 * EFFECT_LIMIT;
    let listener = Listener::builder()
        .config(&long_timeouts)
        .engine(&engines[0]);
    let requests = listener.bind_requests(&*cut.address).unwrap();
    let connector = Connector::new().config(&long_timeouts).engine(&engines[0]);
    let address = cut.address.clone();
    let waiting = thread::spawn(move || connector.connect(&*address));
    let request = requests.requests().recv_timeout(EFFECT_LIMIT).unwrap();
    let devices = verbs::DeviceList::new().unwrap();
    let device = devices.iter().find(|it| it.name() == Cut::DEVICE);
    // This context of the device receives the same events as the engines' contexts.
    let context = device.unwrap().open().unwrap();
    let is_down = || {
        let event = context.poll_async_event().unwrap();
        event.is_some_and(|it| it.event_type() == verbs::AsyncEventType::PORT_ERR)
    };
    // On a busy machine, a thread can wait longer than this for a processor.
    let prompt = Duration::from_millis(50);
    let mut fastest = Duration::MAX;
    for round in 1.. {
        thread::scope(|scope| {
            scope.spawn(|| cut.set("down"));
            await_that("PORT_ERR", is_down);
            let at = Instant::now();
            cut.await_count("PORT_ERR", round);
            fastest = fastest.min(at.elapsed());
        });
        cut.set("up");
        cut.await_count("PORT_ACTIVE", round);
        for (client, server) in &pairs {
            client.send(b"on").unwrap();
            assert_eq!(*server.recv_timeout(EFFECT_LIMIT).unwrap(), *b"on");
        }
        if fastest < prompt {
            break;
        }
        assert!(
            round < 20,
            "the engines must notice the loss within {prompt:?}, not {fastest:?}"
        );
    }
    println!("the engines noticed the loss of the link {fastest:?} after the event");
    drop(request);
    // Accept any error, because the rejection may have been lost with the link.
    assert!(waiting.join().unwrap().is_err());
    requests.close();
    drop((pairs, context, devices));
    let listener = bind(&cut.address, &engines[0]);
    cut.remove(listener);
    for engine in engines {
        engine.shutdown();
    }
}

/// A session whose link is lost must move to the other device immediately. Keepalive and the
/// retries of most devices would take longer than this test waits.
#[test]
fn session_leaves_a_lost_link_at_once() {
    let lab = DeviceTest::without_credits();
    let cut = Cut::new(7990);
    let engine = Engine::new().unwrap();
    let mut config = hourly();
    config.resume = Duration::from_secs(600);
    bind(&cut.address, &engine).close();
    let on = |address: SocketAddr| {
        let listener = Listener::builder().config(&config).engine(&engine);
        listener.bind(address).unwrap()
    };
    let (first, second) = (on(cut.address.parse().unwrap()), on(lab.at(0)));
    let connector = Connector::new().config(&config).engine(&engine);
    let connector = connector.alternatives(second.local_addr()).unwrap();
    let address = first.local_addr();
    let client = thread::spawn(move || connector.connect(address).unwrap());
    let server = first.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();
    cut.set("down");
    await_that("the resumption", || client.statistics().resumes > 0);
    assert_eq!(client.peer_addr(), second.local_addr());
    client.send(b"on").unwrap();
    assert_eq!(*server.recv_timeout(EFFECT_LIMIT).unwrap(), *b"on");
    cut.set("up");
    drop((client, server, second));
    cut.remove(first);
    engine.shutdown();
}

/// Returns the network interface of the host's only device.
fn interface(lab: &Lab) -> String {
    let folder = Path::new("/sys/class/infiniband").join(&lab.device);
    let name = fs::read_to_string(folder.join("parent"))
        .expect("the device is not a software device that can be created again");
    name.trim().to_owned()
}

/// A logger that lists the devices while it handles a line about a removed device. The library must
/// not hold the lock of its device table while it calls the logger.
struct Lister;

static LINES: AtomicUsize = AtomicUsize::new(0);

impl Log for Lister {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().contains("closed the descriptors") {
            // The only device is missing, so the list cannot be created.
            cm::Devices::get().unwrap_err();
            LINES.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

#[test]
#[ignore = "takes the host's only device away: integration/test runs it in a machine of its own"]
fn the_only_device_may_be_removed_and_come_back() {
    log::set_logger(&Lister).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let lab = DeviceTest::without_credits();
    let devices = fs::read_dir("/sys/class/infiniband").unwrap();
    assert_eq!(devices.count(), 1, "{} must be the only device", lab.device);
    let interface = interface(&lab);
    let add = |name: &str| run(&format!("rdma link add {name} type rxe netdev {interface}"));
    let at = |port| lab.at(port).to_string();

    let engine = Engine::new().unwrap();
    // A listener on the unspecified address does not depend on a single device, so it remains open.
    let unspecified = Listener::builder()
        .config(&patient())
        .engine(&engine)
        .bind("0.0.0.0:7983")
        .unwrap();
    let to_wide = connector().engine(&engine);
    let through_unspecified = || {
        let (connector, address) = (to_wide.clone(), lab.at(7983));
        let client = thread::spawn(move || connector.connect(address).unwrap());
        let server = unspecified.accept_timeout(TIME_LIMIT).unwrap();
        (client.join().unwrap(), server)
    };
    for (name, next) in [
        (&*lab.device, &*lab.device),
        (&*lab.device, "rxe_other"),
        ("rxe_other", &*lab.device),
    ] {
        let listener = bind(&at(7982), &engine);
        let (client, server) = pair(&listener, &engine);
        // The buffer of a held message belongs to the device. The message must remain readable
        // after the removal.
        client.send(b"kept").unwrap();
        let held = server.recv_timeout(EFFECT_LIMIT).unwrap();
        let others = through_unspecified();
        let deleting = start(&format!("exec rdma link delete {name}"));
        assert!(is_removed(
            &listener.accept_timeout(EFFECT_LIMIT).unwrap_err()
        ));
        for endpoint in [&client, &server, &others.0, &others.1] {
            let end = endpoint.recv_timeout(EFFECT_LIMIT).unwrap_err();
            assert!(matches!(end, Error::Disconnected(_)), "{end:?}");
        }
        assert_eq!(*held, *b"kept");
        drop(held);
        wait_for_end(deleting);
        let config = Config::default().with(|c| c.connect_timeout = Duration::from_secs(1));
        let connector = Connector::new().config(&config);
        let error = connector.connect(lab.at(7982)).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
        add(next);
    }
    let back = bind(&at(7982), &engine);
    pair(&back, &engine);
    through_unspecified();
    drop((back, unspecified));
    engine.shutdown();
    assert!(LINES.load(Ordering::Relaxed) > 0);
}
