//! Errors of the TCP transport: those of std's sockets, with the address, and no word of RDMA.

mod apart;
#[allow(dead_code)]
mod tcp_peer;

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use log::{LevelFilter, Log, Metadata, Record};
use nix::sys::{
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket},
    time::TimeValLike,
};
use rdmsg::{Config, Connector, Engine, Listener, Stream, StreamListener, Transport};

use self::{
    apart::{Own, apart},
    tcp_peer::{PATIENCE, Peer},
};

/// Words that no error of the TCP transport contains.
const OF_RDMA: [&str; 11] = [
    "RDMA",
    "rdma",
    "InfiniBand",
    "RoCE",
    "4791",
    "device",
    "memlock",
    "ulimit",
    "rsocket",
    "CONSUMER_DEFINED",
    "ibv_",
];

fn tcp() -> Config {
    Config::default().with_transport(Transport::Tcp)
}

/// Requires that `ours` is the error of std, said of `address`.
#[track_caller]
fn assert_same(ours: &io::Error, std: &io::Error, address: SocketAddr) {
    assert_eq!(ours.kind(), std.kind(), "{ours}, and of std: {std}");
    let text = ours.to_string();
    assert!(text.contains(&std.to_string()), "{text} is not {std}");
    assert!(text.contains(&address.to_string()), "{text}");
    for word in OF_RDMA {
        assert!(!text.contains(word), "{word} in: {text}");
    }
}

/// Connects with a socket of std, and with a stream over each transport that may become TCP.
#[track_caller]
fn assert_same_connect(address: SocketAddr) {
    let std = TcpStream::connect(address).unwrap_err();
    for scheme in ["tcp", "auto"] {
        let ours = Stream::connect(format!("{scheme}://{address}")).unwrap_err();
        assert_same(&ours, &std, address);
    }
}

/// Opens files up to the limit of the process.
fn take_descriptors() -> Vec<File> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, most).unwrap();
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                return files;
            }
        }
    }
}

#[test]
fn missing_descriptors_are_said() {
    apart("missing_descriptors_are_said", Own::Process, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _engine = Engine::shared().unwrap();
        let _files = take_descriptors();
        assert_same_connect(address);
        let std = TcpListener::bind("127.0.0.1:0").unwrap_err();
        let ours = StreamListener::bind("tcp://127.0.0.1:0").unwrap_err();
        assert_same(&ours, &std, "127.0.0.1:0".parse().unwrap());
    });
}

#[test]
fn missing_ports_are_said() {
    apart("missing_ports_are_said", Own::Network, || {
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").unwrap();
        let listener = TcpListener::bind("127.0.0.1:7471").unwrap();
        let address = listener.local_addr().unwrap();
        let _streams = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        assert_same_connect(address);
    });
}

#[test]
fn missing_route_is_said() {
    apart("missing_route_is_said", Own::Network, || {
        assert_same_connect("10.1.2.3:7471".parse().unwrap());
        assert_same_connect("[2001:db8::1]:7471".parse().unwrap());
        assert_same_connect("[fe80::1]:7471".parse().unwrap());
        for error in [
            Stream::connect("tcp://[fe80::1]:7471").unwrap_err(),
            StreamListener::bind("tcp://[fe80::1]:7471").unwrap_err(),
        ] {
            let advice = "A link-local address needs its network interface: [fe80::1%eth0]:7471";
            assert!(error.to_string().ends_with(advice), "{error}");
        }
    });
}

#[test]
fn address_of_another_host_cannot_be_bound() {
    apart(
        "address_of_another_host_cannot_be_bound",
        Own::Network,
        || {
            for address in ["10.1.2.3:7471", "[2001:db8::1]:7471"] {
                let address: SocketAddr = address.parse().unwrap();
                let std = TcpListener::bind(address).unwrap_err();
                let ours = StreamListener::bind(format!("tcp://{address}")).unwrap_err();
                assert_same(&ours, &std, address);
            }
        },
    );
}

/// Sends a sign of each line about `accept4` to the test.
struct Accepts(Mutex<Option<Sender<()>>>);

static ACCEPTS: Accepts = Accepts(Mutex::new(None));

impl Log for Accepts {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().contains("accept4")
            && let Some(lines) = &*self.0.lock().unwrap()
        {
            let _ = lines.send(());
        }
    }

    fn flush(&self) {}
}

fn accept4_lines() -> Receiver<()> {
    let (sender, lines) = channel();
    *ACCEPTS.0.lock().unwrap() = Some(sender);
    log::set_logger(&ACCEPTS).unwrap();
    log::set_max_level(LevelFilter::Debug);
    lines
}

/// The processor time of this process so far. It opens no file.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds() as u64)
}

#[test]
fn listener_without_descriptors_loses_no_connection() {
    apart(
        "listener_without_descriptors_loses_no_connection",
        Own::Process,
        || {
            let engine = Engine::new().unwrap();
            let listener = Listener::bind_with("127.0.0.1:0", &tcp(), &engine).unwrap();
            let address = listener.local_addr();
            let lines = accept4_lines();
            let (family, kind) = (AddressFamily::Inet, SockType::Stream);
            let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
            let files = take_descriptors();
            let accepting = thread::spawn(move || listener.accept_timeout(PATIENCE).unwrap());
            connect(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
            lines.recv_timeout(PATIENCE).unwrap();
            // A listener that spins logs thousands of lines in this time.
            let (before, end) = (processor_time(), Instant::now() + Duration::from_secs(2));
            let left = || end.saturating_duration_since(Instant::now());
            let again = std::iter::from_fn(|| lines.recv_timeout(left()).ok()).count();
            assert!(again <= 3, "{again} more tries");
            let used = processor_time() - before;
            assert!(used < Duration::from_millis(500), "{used:?}");
            drop(files);
            let mut peer = Peer::over(TcpStream::from(socket), 4).unwrap();
            let accepted = accepting.join().unwrap();
            peer.say(&tcp_peer::pdu(1, 0, &tcp_peer::frame(0, b"served")));
            assert_eq!(*accepted.recv_timeout(PATIENCE).unwrap(), *b"served");
        },
    );
}

#[test]
fn connector_names_the_address_of_a_port_that_is_not_listened_on() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let std = TcpStream::connect(address).unwrap_err();
    let ours = Connector::new().config(tcp()).connect_stream(address);
    let ours = ours.unwrap_err();
    assert_eq!(ours.kind(), std.kind());
    assert!(ours.to_string().contains(&address.to_string()), "{ours}");
}
