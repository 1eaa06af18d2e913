use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv, send};

use super::{
    send_queue::READS,
    setup_message::{Kind, NoMessage, PREFIX, PRIVATE_DATA_MAX, Prefix},
};

/// A setup message that is being received. Bytes after the message stay in the socket's receive
/// buffer.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: Vec<u8>,
}

/// The state of a setup message that is being received.
#[derive(Debug)]
pub(super) enum Arrived {
    /// The message is incomplete.
    NotYet,
    Message {
        kind: Kind,
        reads: u8,
        private_data: Vec<u8>,
    },
    /// The bytes are not a setup message.
    Foreign,
    /// The peer has ended the connection (`None`), or the connection has failed with this error.
    Ended(Option<nix::Error>),
}

impl Arriving {
    /// Receives the bytes of the message that have arrived.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Arrived {
        loop {
            let wanted = match Prefix::parse(&self.bytes) {
                Ok(prefix) => PREFIX + usize::from(prefix.len),
                Err(NoMessage::Short) => PREFIX,
                Err(NoMessage::Foreign | NoMessage::Version(_)) => return Arrived::Foreign,
            };
            if let (Ok(prefix), Some(private_data)) =
                (Prefix::parse(&self.bytes), self.bytes.get(PREFIX..wanted))
            {
                return Arrived::Message {
                    kind: prefix.kind,
                    reads: prefix.reads,
                    private_data: private_data.to_vec(),
                };
            }
            let mut buffer = [0; PREFIX + PRIVATE_DATA_MAX];
            let missing = &mut buffer[..wanted - self.bytes.len()];
            match recv(socket.as_raw_fd(), missing, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Arrived::Ended(None),
                Ok(count) => self.bytes.extend(&missing[..count]),
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Arrived::NotYet,
                Err(errno) => return Arrived::Ended(Some(errno)),
            }
        }
    }
}

/// Sends a setup message. It is the first message that is sent on its socket, so it fits into the
/// socket's send buffer.
pub(super) fn tell(socket: impl AsFd, kind: Kind, private_data: &[u8]) -> Result<(), nix::Error> {
    let len = u8::try_from(private_data.len()).map_err(|_| nix::Error::EINVAL)?;
    let prefix = Prefix {
        kind,
        reads: READS,
        len,
    };
    let bytes = [&prefix.emit()[..], private_data].concat();
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = send(socket.as_fd().as_raw_fd(), &bytes, flags)?;
    if sent < bytes.len() {
        return Err(nix::Error::ENOBUFS);
    }
    Ok(())
}
