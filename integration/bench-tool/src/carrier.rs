use std::{
    io::{BufRead, IoSlice, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Result, ensure};
use rdmsg::{Connector, Endpoint, Engine, Listener, SendBuffer, Stream, tokio as tasks};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::manner::Manner;

/// How long a peer may be silent before a run counts as failed.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// What carries the traffic of a run. That of threads blocks, in futures that are ready at once.
pub(crate) enum Carrier {
    Messages {
        endpoint: Endpoint,
        owned: bool,
    },
    Bytes(Stream),
    TaskMessages {
        endpoint: tasks::Endpoint,
        owned: bool,
    },
    TaskBytes(tasks::Stream),
    Socket(TcpStream),
}

impl Carrier {
    /// Takes one connection.
    pub(crate) fn accept(address: SocketAddr, manner: &Manner, engine: &Engine) -> Result<Self> {
        if manner.socket {
            let (socket, _) = TcpListener::bind(address)?.accept()?;
            return Self::of_socket(socket);
        }
        let builder = Listener::builder().config(manner.config()).engine(engine);
        let endpoint = builder.bind(address)?.accept_timeout(SILENCE)?;
        Self::of(endpoint, manner)
    }

    pub(crate) fn connect(address: SocketAddr, manner: &Manner, engine: &Engine) -> Result<Self> {
        if manner.socket {
            return Self::of_socket(TcpStream::connect(address)?);
        }
        let connector = Connector::new().config(manner.config()).engine(engine);
        Self::of(connector.connect(address)?, manner)
    }

    fn of_socket(socket: TcpStream) -> Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE))?;
        Ok(Self::Socket(socket))
    }

    /// What the peer makes of its end as well.
    fn of(endpoint: Endpoint, manner: &Manner) -> Result<Self> {
        let owned = manner.owned;
        Ok(match (manner.stream, manner.tasks) {
            (false, false) => Self::Messages { endpoint, owned },
            (false, true) => {
                let endpoint = tasks::Endpoint::new(endpoint)?;
                Self::TaskMessages { endpoint, owned }
            }
            (true, false) => {
                let stream = Stream::from(endpoint);
                stream.set_read_timeout(Some(SILENCE))?;
                Self::Bytes(stream)
            }
            (true, true) => Self::TaskBytes(tasks::Stream::new(endpoint)?),
        })
    }

    pub(crate) async fn send(&mut self, message: &[u8]) -> Result<()> {
        // Filling a buffer of one's own is the application's work, not the library's.
        match self {
            Self::Messages { endpoint, owned } if *owned => {
                endpoint.send_owned(endpoint.buffer(message.len())?)?;
            }
            Self::Messages { endpoint, .. } => endpoint.send(message)?,
            Self::Bytes(stream) => stream.write_all(message)?,
            Self::TaskMessages { endpoint, owned } if *owned => {
                let buffer = endpoint.get_ref().buffer(message.len())?;
                endpoint.send_owned(buffer).await?;
            }
            Self::TaskMessages { endpoint, .. } => endpoint.send(message).await?,
            Self::TaskBytes(stream) => stream.write_all(message).await?,
            Self::Socket(socket) => socket.write_all(message)?,
        }
        Ok(())
    }

    /// Sends a message so many times, by one call where there is such a call.
    pub(crate) async fn send_times(&mut self, message: &[u8], times: usize) -> Result<()> {
        match self {
            Self::Messages { endpoint, .. } => {
                let batch = vec![IoSlice::new(message); times];
                let sent = endpoint.send_batch(&batch)?;
                ensure!(sent == times, "{sent} of {times} messages were sent");
            }
            _ => {
                for _ in 0..times {
                    self.send(message).await?;
                }
            }
        }
        Ok(())
    }

    /// Receives a message, or as many bytes as it has.
    pub(crate) async fn receive(&mut self, len: usize) -> Result<()> {
        let came = match self {
            Self::Messages { endpoint, .. } => endpoint.recv_timeout(SILENCE)?.len(),
            Self::TaskMessages { endpoint, .. } => endpoint.recv().await?.len(),
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
            Self::TaskBytes(stream) => {
                let mut missing = len;
                while missing > 0 {
                    let here = stream.fill_buf().await?.len().min(missing);
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
        match self {
            Self::Messages { endpoint, .. } => {
                let message = endpoint.recv_timeout(SILENCE)?;
                endpoint.send(&message)?;
            }
            Self::TaskMessages { endpoint, .. } => {
                let message = endpoint.recv().await?;
                endpoint.send(&message).await?;
            }
            Self::Bytes(stream) => {
                let mut bytes = vec![0; len];
                stream.read_exact(&mut bytes)?;
                stream.write_all(&bytes)?;
            }
            Self::TaskBytes(stream) => {
                let mut bytes = vec![0; len];
                stream.read_exact(&mut bytes).await?;
                stream.write_all(&bytes).await?;
            }
            Self::Socket(socket) => {
                let mut bytes = vec![0; len];
                socket.read_exact(&mut bytes)?;
                socket.write_all(&bytes)?;
            }
        }
        Ok(())
    }

    /// Waits for the peer to end the connection.
    pub(crate) async fn await_end(&mut self) {
        match self {
            Self::Messages { endpoint, .. } => drop(endpoint.recv_timeout(SILENCE)),
            Self::TaskMessages { endpoint, .. } => drop(endpoint.recv().await),
            Self::Bytes(stream) => drop(stream.fill_buf()),
            Self::TaskBytes(stream) => drop(stream.fill_buf().await),
            Self::Socket(socket) => drop(socket.read(&mut [0])),
        }
    }

    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Messages { endpoint, .. } => endpoint.close()?,
            Self::TaskMessages { endpoint, .. } => endpoint.close().await?,
            Self::Bytes(stream) => drop(stream),
            Self::TaskBytes(stream) => drop(stream),
            Self::Socket(socket) => drop(socket),
        }
        Ok(())
    }
}
