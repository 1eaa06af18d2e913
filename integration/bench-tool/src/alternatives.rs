//! Connections of other libraries, which do the same work as ours.

use std::{
    io::{BufReader, IoSlice, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use toolbox::Side;

use crate::{
    c_sockets::CSocket,
    manner::Library,
    plain_verbs::PlainVerbs,
    traffic::{SILENCE, Traffic},
};

/// The longest message that is copied behind its length, so that one call of write(2) takes both.
const COPIED: usize = 4096;

/// One end of a connection. Only the futures of `Codec` return pending.
pub(crate) enum Alternative {
    Std(Box<StdSocket>),
    Codec(Box<Codec>),
    C(CSocket),
    Verbs(Box<PlainVerbs>),
}

impl Alternative {
    /// Returns this side's end of a connection.
    pub(crate) fn new(traffic: &Traffic, side: Side) -> Result<Self> {
        Ok(match traffic.manner.library {
            Library::Zeromq => Self::C(CSocket::zeromq(traffic.server, side)?),
            Library::Nng => Self::C(CSocket::nng(traffic.server, side)?),
            Library::Verbs => Self::Verbs(Box::new(PlainVerbs::new(traffic, side)?)),
            Library::Codec => Self::Codec(Box::new(Codec::new(socket(traffic.server, side)?)?)),
            Library::Std | Library::Rdmsg => {
                Self::Std(Box::new(StdSocket::new(socket(traffic.server, side)?)?))
            }
        })
    }

    /// Sends the same message `times` times, with as few calls as the library needs.
    pub(crate) async fn send(&mut self, message: &[u8], times: usize) -> Result<()> {
        match self {
            Self::Std(socket) => socket.send(message, times),
            Self::Codec(codec) => codec.send(message, times).await,
            Self::C(socket) => (0..times).try_for_each(|_| socket.send(message)),
            Self::Verbs(verbs) => (0..times).try_for_each(|_| verbs.send(message)),
        }
    }

    /// Receives a message, and returns its length.
    pub(crate) async fn receive(&mut self) -> Result<usize> {
        match self {
            Self::Std(socket) => socket.receive(),
            Self::Codec(codec) => Ok(codec.receive().await?.len()),
            Self::C(socket) => socket.receive(),
            Self::Verbs(verbs) => verbs.receive(),
        }
    }

    /// Receives a message and sends it back.
    pub(crate) async fn send_back(&mut self) -> Result<()> {
        match self {
            Self::Std(socket) => socket.send_back(),
            Self::Codec(codec) => {
                let message = codec.receive().await?;
                Ok(codec.frames.send(message).await?)
            }
            Self::C(socket) => socket.send_back(),
            Self::Verbs(verbs) => verbs.send_back(),
        }
    }

    /// Tells the other end that this one is about to close, and closes.
    pub(crate) async fn close(mut self) -> Result<()> {
        if let Self::C(_) | Self::Verbs(_) = self {
            // These libraries report no end of a connection, so the server waits for a message.
            self.send(b"!", 1).await?;
        }
        Ok(())
    }
}

fn socket(server: SocketAddr, side: Side) -> Result<TcpStream> {
    let socket = match side {
        Side::Server => TcpListener::bind(server)?.accept()?.0,
        Side::Client => TcpStream::connect(server)?,
    };
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE))?;
    Ok(socket)
}

/// A socket that carries the length of each message, in 4 bytes, before its bytes.
pub(crate) struct StdSocket {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    /// Short messages with their lengths, which one call writes.
    out: Vec<u8>,
    /// The received message.
    message: Vec<u8>,
}

impl StdSocket {
    fn new(socket: TcpStream) -> Result<Self> {
        Ok(Self {
            reader: BufReader::new(socket.try_clone()?),
            writer: socket,
            out: Vec::new(),
            message: Vec::new(),
        })
    }

    fn send(&mut self, message: &[u8], times: usize) -> Result<()> {
        let length = u32::try_from(message.len())?.to_le_bytes();
        if message.len() > COPIED {
            for _ in 0..times {
                let mut parts = [IoSlice::new(&length), IoSlice::new(message)];
                let mut left = &mut parts[..];
                while !left.is_empty() {
                    let written = self.writer.write_vectored(left)?;
                    ensure!(written > 0, "the socket takes no bytes");
                    IoSlice::advance_slices(&mut left, written);
                }
            }
            return Ok(());
        }
        self.out.clear();
        for _ in 0..times {
            self.out.extend_from_slice(&length);
            self.out.extend_from_slice(message);
        }
        Ok(self.writer.write_all(&self.out)?)
    }

    fn receive(&mut self) -> Result<usize> {
        let mut length = [0; 4];
        self.reader.read_exact(&mut length)?;
        self.message.resize(u32::from_le_bytes(length) as usize, 0);
        self.reader.read_exact(&mut self.message)?;
        Ok(self.message.len())
    }

    fn send_back(&mut self) -> Result<()> {
        self.receive()?;
        let message = std::mem::take(&mut self.message);
        self.send(&message, 1)?;
        self.message = message;
        Ok(())
    }
}

/// A socket of tokio with `LengthDelimitedCodec`.
pub(crate) struct Codec {
    frames: Framed<tokio::net::TcpStream, LengthDelimitedCodec>,
    /// The message that was sent last. A program that sends owned bytes makes no copy of them.
    message: Bytes,
}

impl Codec {
    fn new(socket: TcpStream) -> Result<Self> {
        socket.set_nonblocking(true)?;
        let codec = LengthDelimitedCodec::builder()
            .max_frame_length(usize::MAX >> 1)
            .new_codec();
        Ok(Self {
            frames: Framed::new(tokio::net::TcpStream::from_std(socket)?, codec),
            message: Bytes::new(),
        })
    }

    async fn send(&mut self, message: &[u8], times: usize) -> Result<()> {
        if self.message.len() != message.len() {
            self.message = Bytes::copy_from_slice(message);
        }
        for _ in 0..times {
            self.frames.feed(self.message.clone()).await?;
        }
        Ok(SinkExt::<Bytes>::flush(&mut self.frames).await?)
    }

    async fn receive(&mut self) -> Result<Bytes> {
        let message = self.frames.next().await.context("the peer has closed")?;
        Ok(message?.freeze())
    }
}
