//! A service that echoes bytes, and the clients that create load on the service.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::sync_channel,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// A kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Clients that open a new connection for each request of 64 bytes. The field is the number of
    /// clients.
    Connections(usize),
    /// One client with one connection. The first field is the length in bytes of each request and
    /// of each answer. The second field is the maximum number of requests in flight.
    Requests(usize, usize),
    /// Connections that carry bytes only from the client to the service. The field is the number of
    /// connections.
    Streams(usize),
}

/// The counter that all clients of a load share, and the flag that stops them.
#[derive(Default)]
struct Run {
    count: AtomicU64,
    stop: AtomicBool,
}

const SHORT: usize = 64;
const WRITE: usize = 256 << 10;

impl Load {
    /// Returns three values: the unit of the rate, the unit to which the processor time refers, and
    /// the divisor that converts a count to these units. For example, streams count bytes, but the
    /// table shows megabytes.
    pub(crate) fn units(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::Connections(_) => ("/s", "connection", 1.0),
            Self::Requests(..) => ("/s", "request", 1.0),
            Self::Streams(_) => ("MB/s", "MB", 1e6),
        }
    }

    /// Runs the clients against the service at the address `service` for `time`. Returns the number
    /// of connections, requests or bytes per second. Also returns their total number, which
    /// includes those that completed after the measured time.
    pub(crate) fn run(self, service: SocketAddr, time: Duration) -> Result<(f64, u64)> {
        let run = Run::default();
        let client = || match self {
            Self::Connections(_) => run.connections(service),
            Self::Requests(len, at_once) => run.requests(service, len, at_once),
            Self::Streams(_) => run.stream(service),
        };
        let clients = match self {
            Self::Connections(count) | Self::Streams(count) => count,
            Self::Requests(..) => 1,
        };
        let rate = thread::scope(|scope| {
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
            let start = Instant::now();
            thread::sleep(time);
            let rate = run.count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
            run.stop.store(true, Ordering::Relaxed);
            for client in clients {
                let ended = client.join().map_err(|_| anyhow!("a client panicked"))?;
                ended?;
            }
            anyhow::Ok(rate)
        })?;
        Ok((rate, run.count.into_inner()))
    }
}

impl Run {
    fn is_active(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(&self, more: usize) {
        self.count.fetch_add(more as u64, Ordering::Relaxed);
    }

    fn connections(&self, service: SocketAddr) -> io::Result<()> {
        while self.is_active() {
            let mut stream = connect(service, SHORT)?;
            exchange(&mut stream, &mut [1; SHORT])?;
            self.count(1);
        }
        Ok(())
    }

    fn requests(&self, service: SocketAddr, len: usize, at_once: usize) -> io::Result<()> {
        let mut reader = connect(service, len)?;
        if at_once == 1 {
            let mut bytes = vec![1; len];
            while self.is_active() {
                exchange(&mut reader, &mut bytes)?;
                self.count(1);
            }
            return Ok(());
        }
        let mut writer = reader.try_clone()?;
        // The channel counts requests in flight. The writer writes a request before it sends to the
        // channel, so the capacity of the channel is one less than `at_once`.
        let (sent, answered) = sync_channel(at_once - 1);
        thread::scope(|scope| {
            let writing = scope.spawn(move || {
                let bytes = vec![1; len];
                while self.is_active() {
                    writer.write_all(&bytes)?;
                    if sent.send(()).is_err() {
                        break;
                    }
                }
                io::Result::Ok(())
            });
            let mut bytes = vec![0; len];
            while answered.recv().is_ok() {
                reader.read_exact(&mut bytes)?;
                self.count(1);
            }
            writing
                .join()
                .map_err(|_| io::Error::other("the writer panicked"))?
        })
    }

    fn stream(&self, service: SocketAddr) -> io::Result<()> {
        let mut stream = connect(service, 0)?;
        let bytes = vec![1; WRITE];
        while self.is_active() {
            stream.write_all(&bytes)?;
            self.count(bytes.len());
        }
        stream.shutdown(Shutdown::Write)?;
        // The service sends one byte after it has read the whole stream.
        stream.read_exact(&mut [0])
    }
}

/// Connects to the service, and sends `len` as the first 8 bytes. The service then echoes `len`
/// bytes at a time. If `len` is 0, the service only reads, and sends one byte when the client has
/// shut down its sending direction.
fn connect(service: SocketAddr, len: usize) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(service)?;
    stream.set_nodelay(true)?;
    stream.write_all(&(len as u64).to_le_bytes())?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.read_exact(bytes)
}

/// Starts the service in a thread of this process. Returns the service's address.
pub(crate) fn serve() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The thread ends when its client disconnects.
            thread::spawn(move || answer(stream));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len) as usize;
    if len == 0 {
        let mut bytes = vec![0; WRITE];
        while stream.read(&mut bytes)? > 0 {}
        return stream.write_all(&[1]);
    }
    let mut bytes = vec![0; len];
    loop {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&bytes)?;
    }
}
