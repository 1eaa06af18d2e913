use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv, send};

use super::{
    send_queue::READS,
    setup_message::{Kind, NoMessage, PREFIX, PRIVATE_DATA_MAX, Prefix},
};
use crate::proto::REPLY_DATA_MAX;

/// The length in bytes of a hello without the application's bytes. Each request and each acceptance
/// contains at least a hello. So a receive call for a prefix and this number of further bytes does
/// not consume bytes after the message. A shorter message is a rejection or is invalid. Bytes after
/// such a message have no meaning.
const HELLO: usize = PRIVATE_DATA_MAX - REPLY_DATA_MAX;

/// A setup message that is being received. Bytes after a message with a hello stay in the socket's
/// receive buffer.
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
                Err(NoMessage::Short) => PREFIX + HELLO,
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn bytes_behind_a_hello_stay_in_the_socket() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        tell(&far, Kind::Accept, &[7; HELLO]).unwrap();
        far.write_all(b"frame").unwrap();
        let arrived = Arriving::default().receive(near.as_fd());
        let Arrived::Message {
            kind: Kind::Accept,
            private_data,
            ..
        } = arrived
        else {
            panic!("{arrived:?}");
        };
        assert_eq!(private_data, [7; HELLO]);
        let mut rest = [0; 16];
        assert_eq!(near.read(&mut rest).unwrap(), 5);
    }

    #[test]
    fn message_ends_at_its_length() {
        let (near, mut far) = UnixStream::pair().unwrap();
        tell(&far, Kind::Reject, b"no").unwrap();
        far.write_all(b"ignored").unwrap();
        let arrived = Arriving::default().receive(near.as_fd());
        let Arrived::Message {
            kind: Kind::Reject,
            private_data,
            ..
        } = arrived
        else {
            panic!("{arrived:?}");
        };
        assert_eq!(private_data, b"no");
    }

    #[test]
    fn message_may_arrive_byte_by_byte() {
        let (mut source, sink) = UnixStream::pair().unwrap();
        tell(&sink, Kind::Request, &[7; PRIVATE_DATA_MAX]).unwrap();
        let mut bytes = [0; PREFIX + PRIVATE_DATA_MAX];
        source.read_exact(&mut bytes).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut arriving = Arriving::default();
        for byte in bytes {
            let arrived = arriving.receive(near.as_fd());
            assert!(matches!(arrived, Arrived::NotYet), "{arrived:?}");
            far.write_all(&[byte]).unwrap();
        }
        let arrived = arriving.receive(near.as_fd());
        assert!(matches!(arrived, Arrived::Message { .. }), "{arrived:?}");
    }
}
