use std::{
    io::{BufRead, IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
};

use anyhow::{Result, bail, ensure};
use rdmsg::{Endpoint, Engine, Stream, tokio as tasks};

use crate::{
    manner::Way,
    traffic::{SILENCE, Traffic},
};

/// What carries the traffic of a run. That of threads blocks, in futures that are ready at once.
pub(crate) enum Carrier {
    Messages { endpoint: Endpoint, owned: bool },
    Tasks(tasks::Endpoint),
    Bytes(Stream),
    Socket(TcpStream),
}

impl Carrier {
    /// Takes one connection, or more than one from a client that has them.
    pub(crate) fn accept(traffic: &Traffic, engine: &Engine) -> Result<Vec<Self>> {
        if traffic.manner.has(Way::Socket) {
            let (socket, _) = TcpListener::bind(traffic.server())?.accept()?;
            return Self::of_socket(socket);
        }
        let endpoints = traffic.accept(engine)?;
        endpoints
            .into_iter()
            .map(|one| Self::of(one, traffic))
            .collect()
    }

    pub(crate) fn connect(traffic: &Traffic, engine: &Engine) -> Result<Vec<Self>> {
        if traffic.manner.has(Way::Socket) {
            return Self::of_socket(TcpStream::connect(traffic.server())?);
        }
        let endpoints = traffic.connect(engine)?;
        endpoints
            .into_iter()
            .map(|one| Self::of(one, traffic))
            .collect()
    }

    fn of_socket(socket: TcpStream) -> Result<Vec<Self>> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE))?;
        Ok(vec![Self::Socket(socket)])
    }

    /// What the peer makes of its end as well.
    fn of(endpoint: Endpoint, traffic: &Traffic) -> Result<Self> {
        let manner = traffic.manner;
        if manner.has(Way::Tasks) {
            return Ok(Self::Tasks(tasks::Endpoint::new(endpoint)?));
        }
        if manner.has(Way::Stream) {
            let stream = Stream::from(endpoint);
            stream.set_read_timeout(Some(SILENCE))?;
            return Ok(Self::Bytes(stream));
        }
        let owned = manner.has(Way::Owned);
        Ok(Self::Messages { endpoint, owned })
    }

    pub(crate) async fn send(&mut self, message: &[u8]) -> Result<()> {
        match self {
            // Filling a buffer of one's own is the application's work, not the library's.
            Self::Messages { endpoint, owned } if *owned => {
                endpoint.send_owned(endpoint.buffer(message.len())?)?;
            }
            Self::Messages { endpoint, .. } => endpoint.send(message)?,
            Self::Tasks(endpoint) => endpoint.send(message).await?,
            Self::Bytes(stream) => stream.write_all(message)?,
            Self::Socket(socket) => socket.write_all(message)?,
        }
        Ok(())
    }

    /// Sends a message so many times, by one call.
    pub(crate) fn send_batch(&mut self, message: &[u8], times: usize) -> Result<()> {
        let Self::Messages { endpoint, .. } = self else {
            bail!("only threads send batches of messages")
        };
        let sent = endpoint.send_batch(&vec![IoSlice::new(message); times])?;
        ensure!(sent == times, "{sent} of {times} messages were sent");
        Ok(())
    }

    /// Receives a message, or as many bytes as it has.
    pub(crate) async fn receive(&mut self, len: usize) -> Result<()> {
        let came = match self {
            Self::Messages { endpoint, .. } => endpoint.recv_timeout(SILENCE)?.len(),
            Self::Tasks(endpoint) => endpoint.recv().await?.len(),
            Self::Bytes(stream) => {
                let mut missing = len;
                while missing > 0 {
                    let here = stream.fill_buf()?.len().min(missing);
                    ensure!(here > 0, "the stream has ended");
                    stream.consume(here);
                    missing -= here;
                }
                len
            }
            Self::Socket(socket) => {
                socket.read_exact(&mut vec![0; len])?;
                len
            }
        };
        ensure!(came == len, "sent {len} bytes, got {came}");
        Ok(())
    }

    /// Sends a message back as it came.
    pub(crate) async fn send_back(&mut self, len: usize) -> Result<()> {
        fn bytes(stream: &mut (impl Read + Write), len: usize) -> Result<()> {
            let mut bytes = vec![0; len];
            stream.read_exact(&mut bytes)?;
            Ok(stream.write_all(&bytes)?)
        }
        match self {
            Self::Messages { endpoint, .. } => {
                let message = endpoint.recv_timeout(SILENCE)?;
                endpoint.send(&message)?;
            }
            Self::Tasks(endpoint) => {
                let message = endpoint.recv().await?;
                endpoint.send(&message).await?;
            }
            Self::Bytes(stream) => bytes(stream, len)?,
            Self::Socket(socket) => bytes(socket, len)?,
        }
        Ok(())
    }

    /// Waits for the peer to end the connection.
    pub(crate) async fn await_end(&mut self) {
        match self {
            Self::Messages { endpoint, .. } => drop(endpoint.recv_timeout(SILENCE)),
            Self::Tasks(endpoint) => drop(endpoint.recv().await),
            Self::Bytes(stream) => drop(stream.fill_buf()),
            Self::Socket(socket) => drop(socket.read(&mut [0])),
        }
    }

    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Messages { endpoint, .. } => endpoint.close()?,
            Self::Tasks(endpoint) => endpoint.close().await?,
            Self::Bytes(stream) => drop(stream),
            Self::Socket(socket) => drop(socket),
        }
        Ok(())
    }
}
