use std::{future::poll_fn, io};

use nix::sys::socket::{setsockopt, sockopt};
use rdmsg::{
    CloseReason, Endpoint,
    tokio::{OwnedReadHalf, OwnedWriteHalf, Stream},
};
use tokio::net::TcpStream;

use super::{carry::carry, cause::Cause, counters::Flow};

/// The plain TCP socket of a bridged connection. Dropping this value resets the TCP connection
/// unless `has_ended` is true.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) socket: TcpStream,
    pub(super) has_ended: bool,
}

/// The two halves of the rdmsg stream of a bridged connection. Dropping this value aborts the
/// stream unless `has_ended` is true.
#[derive(Debug)]
pub(super) struct Rdmsg {
    // Rust calls `drop` of this struct before it drops these two halves. Dropping the halves
    // has no effect on the stream, because the stream is then already closed or aborted.
    pub(super) read: OwnedReadHalf,
    pub(super) write: OwnedWriteHalf,
    pub(super) has_ended: bool,
    pub(super) cause: Cause,
}

/// A bridged connection: a plain TCP socket and an rdmsg stream.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) plain: Plain,
    pub(super) rdmsg: Rdmsg,
    /// Counts the bytes of this connection.
    pub(super) flow: Flow,
}

impl Plain {
    pub(super) fn new(socket: TcpStream) -> Self {
        // TCP_NODELAY sends bytes without delay, and SO_KEEPALIVE detects a client that has
        // vanished. Errors are ignored, because both calls fail only if the connection has already
        // ended.
        let _ = socket.set_nodelay(true);
        let _ = setsockopt(&socket, sockopt::KeepAlive, &true);
        Self {
            socket,
            has_ended: false,
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if !self.has_ended {
            // With a linger time of 0 the kernel resets the connection when the socket is closed.
            // The call fails only if the connection is already reset.
            let _ = self.socket.set_zero_linger();
        }
    }
}

impl Rdmsg {
    pub(super) fn new(stream: Stream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            read,
            write,
            has_ended: false,
            cause: Cause::Ending,
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.read.endpoint()
    }
}

impl Drop for Rdmsg {
    fn drop(&mut self) {
        if !self.has_ended {
            self.endpoint().abort(self.cause.code());
        }
    }
}

impl Session {
    /// Forwards bytes until both directions have ended, and then closes the stream. After an error,
    /// the caller must drop the session, which aborts the stream and resets the plain connection.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        carry(self).await.inspect_err(|_| {
            self.rdmsg.cause = Cause::Plain;
        })?;
        // The close fails if the peer does not confirm all bytes. In this case, the caller drops
        // the session, which resets the plain connection.
        let endpoint = self.rdmsg.endpoint().clone();
        poll_fn(|cx| endpoint.poll_close(cx)).await?;
        self.rdmsg.has_ended = true;
        self.plain.has_ended = true;
        Ok(())
    }
}

/// Returns the text of an error. If the other bridge aborted the connection, the text contains the
/// reason for the abort.
pub(super) fn explain(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rdmsg::Error::Disconnected(reason) | rdmsg::Error::Undelivered(reason)) = inner else {
        return error.to_string();
    };
    match reason {
        CloseReason::PeerAborted(code) => match Cause::of_code(*code) {
            Some(cause) => format!("the other bridge ended the connection: {cause}"),
            None => error.to_string(),
        },
        CloseReason::SessionLost => "the connection was lost, and the other bridge has forgotten \
                                     it: that bridge was restarted, or has ended the connection"
            .to_owned(),
        _ => error.to_string(),
    }
}
