//! Connections that use other libraries, and do the same work as the connections of rdmsg.

use std::{
    io::{BufReader, IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use toolbox::Side;

use crate::{
    c_sockets::CSocket,
    manner::Library,
    messages::Carrier,
    plain_verbs::PlainVerbs,
    traffic::{SILENCE, Traffic},
};

/// The maximum length in bytes of a message that is copied into a buffer, directly after its length
/// field. One call of write(2) then sends both.
const COPIED: usize = 4096;

/// Opens the connections, and returns a [`Carrier`] for each of them. Only the sockets of std and
/// tokio support several connections. With any other library, opens one connection.
pub(crate) async fn connections(traffic: &Traffic, side: Side) -> Result<Vec<Carrier>> {
    let (server, count) = (traffic.server, traffic.manner.connections);
    let mut all = Vec::new();
    match (traffic.manner.library, side) {
        (Library::Zeromq, _) => all.push(Carrier::C(CSocket::zeromq(server, side)?)),
        (Library::Nng, _) => all.push(Carrier::C(CSocket::nng(server, side)?)),
        (Library::Verbs, _) => all.push(Carrier::Verbs(Box::new(PlainVerbs::new(traffic, side)?))),
        (Library::Codec, Side::Server) => {
            let listener = tokio::net::TcpListener::bind(server).await?;
            for _ in 0..count {
                let (socket, _) = listener.accept().await?;
                all.push(Carrier::Codec(Codec::new(socket)?));
            }
        }
        (Library::Codec, Side::Client) => {
            for _ in 0..count {
                let socket = tokio::net::TcpStream::connect(server).await?;
                all.push(Carrier::Codec(Codec::new(socket)?));
            }
        }
        (Library::Std | Library::Rdmsg, Side::Server) => {
            let listener = TcpListener::bind(server)?;
            for _ in 0..count {
                all.push(Carrier::Std(StdSocket::new(listener.accept()?.0)?));
            }
        }
        (Library::Std | Library::Rdmsg, Side::Client) => {
            for _ in 0..count {
                let socket = TcpStream::connect(server)?;
                all.push(Carrier::Std(StdSocket::new(socket)?));
            }
        }
    }
    Ok(all)
}

/// A socket on which a length field of 4 bytes precedes each message.
pub(crate) struct StdSocket {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    /// A batch of short messages, each preceded by its length. One call writes the whole batch.
    out: Vec<u8>,
    /// The last received message.
    message: Vec<u8>,
}

impl StdSocket {
    fn new(socket: TcpStream) -> Result<Box<Self>> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE))?;
        Ok(Box::new(Self {
            reader: BufReader::new(socket.try_clone()?),
            writer: socket,
            out: Vec::new(),
            message: Vec::new(),
        }))
    }

    pub(crate) fn send(&mut self, message: &[u8], times: usize) -> Result<()> {
        let length = u32::try_from(message.len())?.to_le_bytes();
        if message.len() > COPIED {
            for _ in 0..times {
                let mut parts = [IoSlice::new(&length), IoSlice::new(message)];
                let mut left = &mut parts[..];
                while !left.is_empty() {
                    let written = self.writer.write_vectored(left)?;
                    ensure!(written > 0, "the socket accepted no bytes");
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

    pub(crate) fn receive(&mut self) -> Result<usize> {
        let mut length = [0; 4];
        self.reader.read_exact(&mut length)?;
        self.message.resize(u32::from_le_bytes(length) as usize, 0);
        self.reader.read_exact(&mut self.message)?;
        Ok(self.message.len())
    }

    pub(crate) fn send_back(&mut self) -> Result<()> {
        self.receive()?;
        let message = std::mem::take(&mut self.message);
        self.send(&message, 1)?;
        self.message = message;
        Ok(())
    }
}

/// A socket of tokio with `LengthDelimitedCodec`.
pub(crate) struct Codec {
    pub(crate) frames: Framed<tokio::net::TcpStream, LengthDelimitedCodec>,
    /// The last message that was copied. For a later message of the same length, the program sends
    /// a clone, which shares these bytes. Such a send copies nothing, like the send of a program
    /// that owns its bytes.
    message: Bytes,
}

impl Codec {
    fn new(socket: tokio::net::TcpStream) -> Result<Box<Self>> {
        socket.set_nodelay(true)?;
        let codec = LengthDelimitedCodec::builder()
            .max_frame_length(usize::MAX >> 1)
            .new_codec();
        Ok(Box::new(Self {
            frames: Framed::new(socket, codec),
            message: Bytes::new(),
        }))
    }

    pub(crate) async fn send(&mut self, message: &[u8], times: usize) -> Result<()> {
        if self.message.len() != message.len() {
            self.message = Bytes::copy_from_slice(message);
        }
        for _ in 0..times {
            self.frames.feed(self.message.clone()).await?;
        }
        Ok(SinkExt::<Bytes>::flush(&mut self.frames).await?)
    }

    pub(crate) async fn receive(&mut self) -> Result<Bytes> {
        let message = self
            .frames
            .next()
            .await
            .context("the peer has closed the connection")?;
        Ok(message?.freeze())
    }
}
