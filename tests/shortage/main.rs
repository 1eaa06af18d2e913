//! Tests of connections while a resource is exhausted. The request that needs the resource must
//! fail with an error that names the resource, and all other connections must continue. Also tests
//! the parameters that connections request from a device. The tests run over TCP on this machine,
//! and over RDMA in the lab.
#![allow(unsafe_code)]

mod adapters;
mod blocked;
mod calls;
mod windows;

use std::{
    env,
    fmt::Debug,
    fs::{self, File},
    net::TcpStream,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use common::{
    TIME_LIMIT, apart::run_in_own_process, ip_and_transport, tcp_peer::Peer, with_time_to_connect,
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket},
    },
};
use rdmsg::{
    Config, Connector, Endpoint, Engine, Error, Listener, Transport, TransportChoice,
    observe::Export,
};

use self::calls::Calls;

/// The limit on the number of open files of this process.
const MAX_FILES: i32 = 256;

fn config() -> Config {
    with_time_to_connect(&Config::default())
}

/// A connection that the shortage must not affect. Also stores how many resources the process uses
/// while no other connection exists.
struct Bystander {
    near: Endpoint,
    far: Endpoint,
    _listener: Listener,
    descriptors: usize,
    threads: usize,
    objects: String,
}

impl Bystander {
    fn new() -> Self {
        let engine = Engine::new().unwrap();
        let listener = Listener::builder()
            .config(&config())
            .engine(&engine)
            .bind((ip_and_transport().0, 0))
            .unwrap();
        let connector = Connector::new().config(&config()).engine(&engine);
        let near = connector.connect(listener.local_addr()).unwrap();
        assert_eq!(near.info().transport, ip_and_transport().1);
        let far = listener.accept_timeout(TIME_LIMIT).unwrap();
        exchange(&near, &far).unwrap();
        // Create the objects that all connections share.
        run_lifecycle(&config()).unwrap();
        thread::sleep(Duration::from_millis(100));
        Self {
            near,
            far,
            _listener: listener,
            descriptors: descriptors(),
            threads: threads(),
            objects: objects(),
        }
    }

    /// Asserts that this connection delivers messages, and waits until all other connections have
    /// released their resources.
    fn assert_unaffected(&self) {
        exchange(&self.near, &self.far).unwrap();
        await_value(descriptors, &self.descriptors, "descriptors");
        await_value(threads, &self.threads, "threads");
        await_value(objects, &self.objects, "objects of devices");
    }
}

/// Returns the number of open descriptors. Does not open a descriptor itself.
fn descriptors() -> usize {
    let is_open = |fd: &i32| {
        // SAFETY: F_GETFD only queries the descriptor, and fails if it is closed.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        fcntl(fd, FcntlArg::F_GETFD).is_ok()
    };
    (0..MAX_FILES).filter(is_open).count()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns the number of protection domains, queues and other objects of each device. Omits memory
/// regions, because the bystander retains some of them.
fn objects() -> String {
    if ip_and_transport().1 == Transport::Tcp {
        return String::new();
    }
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains(" pd "), "{text}");
    let (before, from_regions) = text.split_once(" mr ").unwrap();
    let (_, after) = from_regions.split_once(' ').unwrap();
    format!("{before} {after}")
}

/// Waits until `count` returns `value`.
fn await_value<T: Debug + PartialEq>(count: impl Fn() -> T, value: &T, unit: &str) {
    let end = Instant::now() + TIME_LIMIT;
    while count() != *value {
        assert!(Instant::now() < end, "{:?} {unit}, not {value:?}", count());
        thread::sleep(Duration::from_millis(1));
    }
}

fn exchange(client: &Endpoint, server: &Endpoint) -> Result<(), Error> {
    for len in [9, 300_000] {
        let message = vec![7; len];
        for (from, to) in [(client, server), (server, client)] {
            from.send(&message)?;
            assert!(*to.recv_timeout(TIME_LIMIT)? == message[..]);
        }
    }
    Ok(())
}

/// Creates an engine and a connection, exchanges messages, and ends the connection and the engine.
fn run_lifecycle(config: &Config) -> Result<(), Error> {
    run_lifecycle_with(config, config)
}

/// Does the same as [`run_lifecycle`], with a separate configuration for each side.
fn run_lifecycle_with(listening: &Config, connecting: &Config) -> Result<(), Error> {
    let engine = Engine::new()?;
    let listener = Listener::builder()
        .config(listening)
        .engine(&engine)
        .bind((ip_and_transport().0, 0))?;
    let connector = Connector::new().config(connecting).engine(&engine);
    let client = connector.connect(listener.local_addr())?;
    let server = listener.accept_timeout(TIME_LIMIT)?;
    exchange(&client, &server)?;
    client.close()?;
    engine.shutdown();
    Ok(())
}

#[test]
fn each_missing_descriptor_fails_only_one_request() {
    run_in_own_process("each_missing_descriptor_fails_only_one_request", || {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, MAX_FILES as u64, most).unwrap();
        let bystander = Bystander::new();
        let mut texts = Vec::new();
        let impatient = config().with(|c| c.connect_timeout = Duration::from_secs(2));
        loop {
            let mut files: Vec<File> =
                std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
            files.truncate(files.len() - texts.len());
            let result = run_lifecycle(&impatient);
            exchange(&bystander.near, &bystander.far).unwrap();
            drop(files);
            bystander.assert_unaffected();
            match result {
                Ok(()) => break,
                Err(error) => texts.push(error.to_string()),
            }
        }
        assert!(texts.len() >= 8, "{texts:#?}");
        for text in &texts {
            let is_local_error =
                text.contains("Too many open files") && text.contains("LimitNOFILE=");
            let is_peer_error = text.contains("the peer ran out of resources");
            // The peer's listener accepts the connection only when a descriptor is available again.
            let is_timeout = text.contains("timed out while waiting for the peer's answer");
            assert!(is_local_error || is_peer_error || is_timeout, "{texts:#?}");
        }
    });
}

/// For each function, calls [`run_lifecycle`] repeatedly. In repetition `n`, call `n` of the
/// function fails. Asserts each time that the bystander is not affected. Ends when the function is
/// called fewer than `n` times. `functions` contains the name of each function, and the advice that
/// the text of its error must contain.
fn each_failed_call_fails_only_one_request(functions: &[(&str, &str)], config: &Config) {
    let calls = Calls::loaded();
    let bystander = Bystander::new();
    run_lifecycle(config).unwrap();
    for (function, advice) in functions {
        let mut count = 0;
        loop {
            calls.fail(function, count + 1);
            let result = run_lifecycle(config);
            if !calls.take_failed() {
                result.unwrap();
                break;
            }
            count += 1;
            bystander.assert_unaffected();
            let Err(error) = result else { continue };
            let text = error.to_string();
            let is_local_error = text.contains(function) && text.contains(advice);
            // A driver maps memory for its objects. If the mapping fails, the error may name the
            // object instead of the system call.
            let is_driver_error = *function == "mmap" && text.contains("rdma resource");
            let is_peer_error = text.contains("the peer ran out of resources");
            assert!(
                is_local_error || is_driver_error || is_peer_error,
                "{function}, call {count}: {text}"
            );
        }
        assert!(count > 0, "{function} must be called at least once");
        println!("{function}: {count} calls");
    }
}

#[test]
fn each_failed_system_call_fails_only_one_request() {
    let functions = [
        ("pthread_create", "TasksMax="),
        ("epoll_create1", "LimitNOFILE="),
        ("epoll_ctl", "fs.epoll.max_user_watches"),
        ("eventfd", "fs.file-max"),
        ("timerfd_create", "LimitNOFILE="),
        ("mmap", "vm.max_map_count"),
    ];
    let tcp_functions = [("socket", "LimitNOFILE="), ("accept4", "fs.file-max")];
    calls::with_preload("each_failed_system_call_fails_only_one_request", || {
        each_failed_call_fails_only_one_request(&functions, &config());
        if ip_and_transport().1 == Transport::Tcp {
            each_failed_call_fails_only_one_request(&tcp_functions, &config());
        }
    });
}

#[test]
fn each_refused_rdma_object_fails_only_one_request() {
    if ip_and_transport().1 == Transport::Tcp {
        // TCP makes none of these calls.
        return;
    }
    let functions = [
        ("rdma_create_event_channel", ""),
        ("rdma_create_id", ""),
        ("rdma_create_qp", "rdma resource"),
        ("ibv_alloc_pd", "rdma resource"),
        ("ibv_create_comp_channel", "rdma resource"),
        ("ibv_create_cq", "rdma resource"),
        ("ibv_reg_mr", "memlock"),
    ];
    calls::with_preload("each_refused_rdma_object_fails_only_one_request", || {
        each_failed_call_fails_only_one_request(&functions, &config());
        let shared = config().with(|c| c.shared_receive = Some(256));
        let functions = [("ibv_create_srq", "rdma resource")];
        each_failed_call_fails_only_one_request(&functions, &shared);
    });
}

#[test]
fn export_without_a_thread_leaves_no_socket() {
    calls::with_preload("export_without_a_thread_leaves_no_socket", || {
        let path = env::temp_dir().join(format!("rdmsg-export-{}", std::process::id()));
        let calls = Calls::loaded();
        calls.fail("pthread_create", 1);
        let error = Export::start_at(&path).unwrap_err();
        assert!(calls.take_failed());
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
        assert!(!path.exists());
        drop(Export::start_at(&path).unwrap());
    });
}

/// Peers wait while the listener has no descriptor for them. The listener accepts these peers after
/// other connections have ended.
#[test]
fn listener_accepts_while_it_has_descriptors() {
    const CLIENTS: usize = 12;
    run_in_own_process("listener_accepts_while_it_has_descriptors", || {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, MAX_FILES as u64, most).unwrap();
        let config = config().with(|c| c.transport = TransportChoice::Tcp);
        let engine = Engine::new().unwrap();
        let listener = Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind("127.0.0.1:0")
            .unwrap();
        let address = SockaddrStorage::from(listener.local_addr());
        let (family, kind) = (AddressFamily::Inet, SockType::Stream);
        let sockets: Vec<OwnedFd> = (0..CLIENTS)
            .map(|_| socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap())
            .collect();
        let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // Leave enough descriptors for four connections, but not for a fifth one.
        files.truncate(files.len() - 9);
        let peers: Vec<_> = sockets
            .into_iter()
            .map(|socket| {
                connect(socket.as_raw_fd(), &address).unwrap();
                thread::spawn(move || Peer::from_stream(TcpStream::from(socket), 4).map(drop))
            })
            .collect();
        for _ in 0..CLIENTS {
            drop(listener.accept_timeout(TIME_LIMIT).unwrap());
        }
        for peer in peers {
            peer.join().unwrap().unwrap();
        }
    });
}
