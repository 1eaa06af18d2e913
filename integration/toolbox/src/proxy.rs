use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, Weak},
    thread,
};

use crate::lock;

/// A TCP proxy between clients and a server. A test can cut all connections of the proxy.
#[derive(Debug)]
pub struct Proxy {
    /// The address to which clients connect.
    pub address: SocketAddr,
    connections: Arc<Mutex<Connections>>,
}

/// The connections of a proxy.
#[derive(Debug)]
enum Connections {
    /// The streams to the clients and to the server. For each stream, one thread copies bytes from
    /// it, and another thread copies bytes to it. The stream is closed when both threads have
    /// ended.
    Open(Vec<Weak<TcpStream>>),
    /// The proxy closes new connections immediately.
    Cut,
}

impl Proxy {
    /// Starts a proxy that listens on a free port of this host and connects to `server`.
    ///
    /// # Errors
    ///
    /// The error of the system call that has failed.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let connections = Arc::new(Mutex::new(Connections::Open(Vec::new())));
        let of_thread = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming() {
                // Ignore an error: the client can disconnect, or the server can stop, before the
                // proxy has connected them.
                let _ = client.and_then(|client| join(&of_thread, client, server));
            }
        });
        Ok(Self {
            address,
            connections,
        })
    }

    /// Ends all connections. After this call, the proxy closes new connections immediately.
    pub fn cut(&self) {
        let before = self.change_to(Connections::Cut);
        if let Connections::Open(streams) = before {
            for stream in streams.iter().filter_map(Weak::upgrade) {
                // Ignore the error: the call fails if the connection has already ended.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Ends the effect of [`cut`](Self::cut): from now on, the proxy forwards new connections.
    pub fn restore(&self) {
        self.change_to(Connections::Open(Vec::new()));
    }

    fn change_to(&self, next: Connections) -> Connections {
        std::mem::replace(&mut lock(&self.connections), next)
    }
}

fn join(connections: &Mutex<Connections>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut connections = lock(connections);
    let Connections::Open(streams) = &mut *connections else {
        return Ok(());
    };
    let [client, server] = [client, TcpStream::connect(server)?].map(Arc::new);
    streams.retain(|stream| stream.strong_count() > 0);
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.set_nodelay(true)?;
        streams.push(Arc::downgrade(from));
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        thread::spawn(move || carry(&from, &to));
    }
    Ok(())
}

fn carry(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            len => to.write_all(&buffer[..len])?,
        }
    }
}
