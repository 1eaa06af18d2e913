//! Tests of errors over TCP: they name the address, have the same kinds as the errors of std's
//! sockets, and do not mention RDMA.

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use common::{
    TIME_LIMIT,
    apart::run_in_own_process,
    same_errors::{assert_same, assert_same_connect},
    tcp_config,
    tcp_peer::{self, Peer},
};
use log::{LevelFilter, Log, Metadata, Record};
use nix::sys::{
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket},
    time::TimeValLike,
};
use rdmsg::{Config, Connector, Engine, Error, Listener, StreamListener};

fn tcp() -> Config {
    // The raw peers do not answer Pings.
    tcp_config().with(|c| c.keepalive_interval = None)
}

/// Limits the process to 64 open files, and opens files until the process reaches this limit.
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
fn missing_descriptors_are_reported() {
    run_in_own_process("missing_descriptors_are_reported", || {
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

/// A logger that sends a message through a channel for each line about a lack of descriptors.
struct DescriptorLines(Mutex<Option<Sender<()>>>);

static DESCRIPTOR_LINES: DescriptorLines = DescriptorLines(Mutex::new(None));

impl Log for DescriptorLines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().contains("Too many open files")
            && let Some(lines) = &*self.0.lock().unwrap()
        {
            let _ = lines.send(());
        }
    }

    fn flush(&self) {}
}

fn lines_about_descriptors() -> Receiver<()> {
    let (sender, lines) = channel();
    *DESCRIPTOR_LINES.0.lock().unwrap() = Some(sender);
    log::set_logger(&DESCRIPTOR_LINES).unwrap();
    log::set_max_level(LevelFilter::Debug);
    lines
}

/// Returns the processor time used by this process. Needs no descriptor.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds() as u64)
}

#[test]
fn listener_without_descriptors_loses_no_connection() {
    run_in_own_process("listener_without_descriptors_loses_no_connection", || {
        let engine = Engine::new().unwrap();
        let listener = Listener::builder()
            .config(&tcp())
            .engine(&engine)
            .bind("127.0.0.1:0")
            .unwrap();
        let address = listener.local_addr();
        let lines = lines_about_descriptors();
        let (family, kind) = (AddressFamily::Inet, SockType::Stream);
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let files = take_descriptors();
        let accepting = thread::spawn(move || listener.accept_timeout(TIME_LIMIT).unwrap());
        connect(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
        lines.recv_timeout(TIME_LIMIT).unwrap();
        // In these 2 s, a listener that spins would log thousands of lines.
        let (before, end) = (processor_time(), Instant::now() + Duration::from_secs(2));
        let left = || end.saturating_duration_since(Instant::now());
        let again = std::iter::from_fn(|| lines.recv_timeout(left()).ok()).count();
        assert!(
            again <= 3,
            "the listener must not spin: {again} further log lines"
        );
        let used = processor_time() - before;
        assert!(used < Duration::from_millis(500), "{used:?}");
        drop(files);
        let mut peer = Peer::from_stream(TcpStream::from(socket), 4).unwrap();
        let accepted = accepting.join().unwrap();
        peer.send(&tcp_peer::pdu(1, 0, &tcp_peer::frame(0, b"served")));
        assert_eq!(*accepted.recv_timeout(TIME_LIMIT).unwrap(), *b"served");
    });
}

/// The kernel queues up to 100 connections. One call of the engine accepts at most 32 of them.
#[test]
fn closed_listener_answers_queued_requests() {
    let listener = Listener::builder().config(&tcp()).bind("127.0.0.1:0");
    let listener = listener.unwrap();
    let connect = |_| TcpStream::connect(listener.local_addr()).unwrap();
    let queued: Vec<_> = (0..100).map(connect).collect();
    listener.close();
    for mut stream in queued {
        let hello = Peer::hello(4);
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream
            .write_all(&[b'r', b'd', b'm', b't', 1, 1, 16, 0x24])
            .unwrap();
        stream.write_all(&hello).unwrap();
        let mut rejection = [0; 8 + 8];
        stream.read_exact(&mut rejection).unwrap();
        assert_eq!(rejection[..6], *b"rdmt\x01\x03");
        assert_eq!(
            rejection[8..],
            *b"rdmR\x03\x18\0\x08",
            "the reason must be \"busy\""
        );
    }
    assert!(matches!(listener.accept(), Err(Error::ListenerClosed)));
}

/// Simulates a program that passes its listening socket to the next process.
#[test]
fn inherited_socket_keeps_its_queue() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let bind = || {
        let socket = socket.try_clone().unwrap();
        let builder = Listener::builder().config(&tcp()).inherit(socket);
        builder.bind(address).unwrap()
    };
    let old = bind();
    old.close();
    assert!(matches!(old.accept(), Err(Error::ListenerClosed)));
    let waits = TcpStream::connect(address).unwrap();
    let new = bind();
    let mut peer = Peer::from_stream(waits, 4).unwrap();
    let accepted = new.accept_timeout(TIME_LIMIT).unwrap();
    peer.send(&tcp_peer::pdu(1, 0, &tcp_peer::frame(0, b"served")));
    assert_eq!(*accepted.recv_timeout(TIME_LIMIT).unwrap(), *b"served");
}

#[test]
fn connect_error_names_address_without_listener() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let std = TcpStream::connect(address).unwrap_err();
    let ours = Connector::new().config(&tcp()).connect_stream(address);
    let ours = ours.unwrap_err();
    assert_eq!(ours.kind(), std.kind());
    assert!(ours.to_string().contains(&address.to_string()), "{ours}");
}
