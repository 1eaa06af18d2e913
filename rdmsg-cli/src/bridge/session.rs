use std::{future::poll_fn, io};

use nix::sys::socket::{setsockopt, sockopt};
use rdmsg::{
    CloseReason, Endpoint,
    tokio::{OwnedReadHalf, OwnedWriteHalf, Stream},
};
use tokio::net::TcpStream;

use super::{carry::carry, cause::Cause, counters::Flow};

/// The plain end of a connection. Unless it has ended, it is reset when it is dropped.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) socket: TcpStream,
    pub(super) has_ended: bool,
}

/// The other end, a stream of rdmsg. Unless it has ended, it is aborted when it is dropped.
#[derive(Debug)]
pub(super) struct Rdmsg {
    // Dropped after the abort, so their drops have no effect.
    pub(super) read: OwnedReadHalf,
    pub(super) write: OwnedWriteHalf,
    pub(super) has_ended: bool,
    pub(super) cause: Cause,
}

/// Both ends of a connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) plain: Plain,
    pub(super) rdmsg: Rdmsg,
    /// Counts its bytes.
    pub(super) flow: Flow,
}

impl Plain {
    pub(super) fn new(socket: TcpStream) -> Self {
        // Pieces are sent without delay, and a vanished client is eventually detected. These calls
        // fail only on a socket whose connection has ended.
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
            // Makes the close reset the connection. This fails only if the connection was reset
            // already.
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
    /// Carries bytes until both directions have ended, and closes both ends. After an error the
    /// caller drops them, which resets both.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        carry(self).await.inspect_err(|_| {
            self.rdmsg.cause = Cause::Plain;
        })?;
        // If the peer does not confirm the bytes, the plain end is reset after all.
        let endpoint = self.rdmsg.endpoint().clone();
        poll_fn(|cx| endpoint.poll_close(cx)).await?;
        self.rdmsg.has_ended = true;
        self.plain.has_ended = true;
        Ok(())
    }
}

/// Returns the text of an error; for an end by the other bridge, its cause.
pub(super) fn explain(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rdmsg::Error::Disconnected(reason) | rdmsg::Error::Undelivered(reason)) = inner else {
        return error.to_string();
    };
    match reason {
        CloseReason::PeerAborted(code) => match Cause::of_code(*code) {
            Some(cause) => format!("the other bridge ended it: {cause}"),
            None => error.to_string(),
        },
        CloseReason::SessionLost => "it was lost, and the other bridge does not know it: that \
                                     bridge was started again, or has ended the connection"
            .to_owned(),
        _ => error.to_string(),
    }
}
