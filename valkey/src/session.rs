//! The protocol state of a connection, independent of a device.

use std::{collections::VecDeque, ops::Range};

use crate::{
    ProtocolError,
    command::{Command, Features, Memory},
};

/// The features that this crate supports. The protocol has one set of features, which is empty.
const SUPPORTED: u64 = 0;

/// The maximum number of commands that wait for a free entry in the send queue.
const PENDING: usize = 16;

/// The role of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The buffers of both sides, and the pending commands of this side.
///
/// The sides agree on features, and each side announces a buffer. The peer fills this buffer from
/// the first byte to the final byte. When the buffer is full and the owner has read all bytes, the
/// owner announces the buffer again.
#[derive(Debug)]
pub(crate) struct Session {
    role: Role,
    /// Whether this side is a client that waits for the server's features.
    awaits_features: bool,
    /// The commands to send, oldest first, at most [`PENDING`].
    pending: VecDeque<Command>,
    incoming: Incoming,
    /// The peer's buffer, or `None` until the peer announces one.
    outgoing: Option<Outgoing>,
}

/// This side's buffer, to which the peer writes.
#[derive(Debug)]
struct Incoming {
    memory: Memory,
    /// Whether this side has announced the buffer.
    announced: bool,
    /// The number of bytes that have arrived since this side last announced the buffer.
    arrived: u32,
    /// The number of arrived bytes that have been read.
    read: u32,
}

/// The peer's buffer, to which this side writes.
#[derive(Debug)]
struct Outgoing {
    memory: Memory,
    /// The number of bytes that this side has written into the buffer.
    written: u32,
}

impl Outgoing {
    fn left(&self) -> u32 {
        self.memory.length - self.written
    }
}

impl Session {
    pub(crate) fn new(role: Role, memory: Memory) -> Self {
        Self {
            role,
            awaits_features: false,
            pending: VecDeque::new(),
            incoming: Incoming {
                memory,
                announced: false,
                arrived: 0,
                read: 0,
            },
            outgoing: None,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Queues the first command of this side.
    pub(crate) fn established(&mut self) {
        match self.role {
            Role::Client => {
                self.awaits_features = true;
                let ask = Command::GetServerFeature(Features::default());
                self.pending.push_back(ask);
            }
            Role::Server => self.announce(),
        }
    }

    /// Returns true if this side may write: the peer has announced a buffer, and, on a client, the
    /// server has also reported its features.
    pub(crate) fn is_ready(&self) -> bool {
        !self.awaits_features && self.outgoing.is_some()
    }

    /// Removes and returns the next command to send.
    pub(crate) fn next(&mut self) -> Option<Command> {
        self.pending.pop_front()
    }

    /// Handles a command of the peer.
    pub(crate) fn handle(&mut self, command: Command) -> Result<(), ProtocolError> {
        let unexpected = |when| {
            let command = command.name();
            Err(ProtocolError::Unexpected { command, when })
        };
        let pending = self.pending.len();
        if pending == PENDING {
            return Err(ProtocolError::Flood { pending });
        }
        match (self.role, command) {
            (_, Command::Keepalive) => {}
            (role, Command::RegisterXferMemory(memory)) => {
                let left = self.outgoing.as_ref().map_or(0, Outgoing::left);
                if left > 0 {
                    return Err(ProtocolError::NotFull { left });
                }
                self.outgoing = Some(Outgoing { memory, written: 0 });
                if role == Role::Client && !self.incoming.announced {
                    self.announce();
                }
            }
            (Role::Client, Command::GetServerFeature(_)) if !self.awaits_features => {
                return unexpected("unasked");
            }
            (Role::Client, Command::GetServerFeature(Features { select, bits })) => {
                if select != Features::default().select {
                    return Err(ProtocolError::Select { select });
                }
                self.awaits_features = false;
                let bits = bits & SUPPORTED;
                let features = Command::SetClientFeature(Features { select, bits });
                self.pending.push_back(features);
            }
            (Role::Client, Command::SetClientFeature(_)) => return unexpected("as a server"),
            (Role::Server, Command::GetServerFeature(Features { select, .. })) => {
                let bits = SUPPORTED;
                let reply = Command::GetServerFeature(Features { select, bits });
                self.pending.push_back(reply);
            }
            (Role::Server, Command::SetClientFeature(Features { bits, .. })) => {
                let features = bits & !SUPPORTED;
                if features != 0 {
                    return Err(ProtocolError::Features { features });
                }
            }
        }
        Ok(())
    }

    fn announce(&mut self) {
        let incoming = &mut self.incoming;
        incoming.announced = true;
        (incoming.arrived, incoming.read) = (0, 0);
        let memory = Command::RegisterXferMemory(incoming.memory);
        self.pending.push_back(memory);
    }

    /// Records that the peer has written the next `len` bytes of the buffer.
    pub(crate) fn arrived(&mut self, len: u32) -> Result<(), ProtocolError> {
        let incoming = &mut self.incoming;
        let free = match incoming.announced {
            true => incoming.memory.length - incoming.arrived,
            false => 0,
        };
        if len > free {
            return Err(ProtocolError::Overrun { len, free });
        }
        incoming.arrived += len;
        Ok(())
    }

    /// Returns the range of the unread bytes in this side's buffer.
    pub(crate) fn readable(&self) -> Range<usize> {
        self.incoming.read as usize..self.incoming.arrived as usize
    }

    /// Records that the first `len` of the [`readable`](Self::readable) bytes were read. If the
    /// final byte of the buffer was read, announces the buffer again.
    pub(crate) fn read(&mut self, len: usize) {
        let incoming = &mut self.incoming;
        // The cast is lossless, because the bounds of `readable` have 32 bits.
        incoming.read += len as u32;
        if incoming.read == incoming.memory.length {
            self.announce();
        }
    }

    /// Returns the remote address, the rkey and the maximum length in bytes of the next write.
    /// Returns `None` if this side must not write yet, or if the peer's buffer is full.
    pub(crate) fn writable(&self) -> Option<(u64, u32, usize)> {
        let outgoing = self.outgoing.as_ref().filter(|_| self.is_ready())?;
        let addr = outgoing.memory.addr + u64::from(outgoing.written);
        let left = outgoing.left();
        (left > 0).then_some((addr, outgoing.memory.key, left as usize))
    }

    /// Records that `len` bytes were written to the address that [`writable`](Self::writable)
    /// returned.
    pub(crate) fn wrote(&mut self, len: u32) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.written += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn memory(addr: u64, length: u32) -> Memory {
        Memory {
            addr,
            length,
            key: 7,
        }
    }

    /// Delivers the pending commands of both sides, until no command is pending. Returns the
    /// commands in the order of delivery.
    fn exchange(sides: &mut [Session; 2]) -> Vec<Command> {
        let mut sent = Vec::new();
        let [client, server] = sides;
        while client.pending.len() + server.pending.len() > 0 {
            while let Some(command) = client.next() {
                server.handle(command).unwrap();
                sent.push(command);
            }
            while let Some(command) = server.next() {
                client.handle(command).unwrap();
                sent.push(command);
            }
        }
        sent
    }

    fn pair(client: u32, server: u32) -> [Session; 2] {
        let mut sides = [
            Session::new(Role::Client, memory(0x1000, client)),
            Session::new(Role::Server, memory(0x2000, server)),
        ];
        for side in &mut sides {
            side.established();
        }
        sides
    }

    #[test]
    fn sides_agree_and_announce_their_buffers() {
        let mut sides = pair(10, 20);
        let none = Features::default();
        let sent = exchange(&mut sides);
        let expected = [
            Command::GetServerFeature(none),
            Command::RegisterXferMemory(memory(0x2000, 20)),
            Command::GetServerFeature(none),
            Command::RegisterXferMemory(memory(0x1000, 10)),
            Command::SetClientFeature(none),
        ];
        assert_eq!(sent, expected);
        let [client, server] = sides;
        assert_eq!(client.writable(), Some((0x2000, 7, 20)));
        assert_eq!(server.writable(), Some((0x1000, 7, 10)));
    }

    #[test]
    fn full_buffer_is_announced_after_it_is_read() {
        let mut sides = pair(10, 20);
        exchange(&mut sides);
        let [client, server] = &mut sides;
        for len in [12, 8] {
            client.wrote(len);
            server.arrived(len).unwrap();
        }
        assert_eq!(client.writable(), None);
        assert_eq!(server.readable(), 0..20);
        server.read(19);
        assert_eq!((server.readable(), server.next()), (19..20, None));
        server.read(1);
        let again = Command::RegisterXferMemory(memory(0x2000, 20));
        assert_eq!(exchange(&mut sides), [again]);
        assert_eq!(sides[0].writable(), Some((0x2000, 7, 20)));
        assert_eq!(sides[1].readable(), 0..0);
    }

    #[test]
    fn writes_beyond_the_buffer_are_refused() {
        let mut server = Session::new(Role::Server, memory(0x2000, 20));
        let error = ProtocolError::Overrun { len: 1, free: 0 };
        assert_eq!(server.arrived(1), Err(error));
        server.established();
        assert_eq!(server.arrived(0), Ok(()));
        assert_eq!(server.arrived(15), Ok(()));
        for len in [6, u32::MAX] {
            let error = ProtocolError::Overrun { len, free: 5 };
            assert_eq!(server.arrived(len), Err(error));
        }
        assert_eq!(server.arrived(5), Ok(()));
        let error = ProtocolError::Overrun { len: 1, free: 0 };
        assert_eq!(server.arrived(1), Err(error));
    }

    #[test]
    fn buffer_is_not_replaced_before_it_is_full() {
        let mut sides = pair(10, 20);
        exchange(&mut sides);
        let [client, _] = &mut sides;
        client.wrote(13);
        let other = Command::RegisterXferMemory(memory(0x3000, 1));
        let error = ProtocolError::NotFull { left: 7 };
        assert_eq!(client.handle(other), Err(error));
        client.wrote(7);
        assert_eq!(client.handle(other), Ok(()));
        assert_eq!(client.writable(), Some((0x3000, 7, 1)));
    }

    #[test]
    fn commands_of_the_other_role_are_refused() {
        let mut sides = pair(10, 20);
        exchange(&mut sides);
        let [client, server] = &mut sides;
        let features = |bits| Features { select: 0, bits };
        let error = client.handle(Command::GetServerFeature(features(0)));
        let unasked = ProtocolError::Unexpected {
            command: "GetServerFeature",
            when: "unasked",
        };
        assert_eq!(error, Err(unasked));
        let error = client.handle(Command::SetClientFeature(features(0)));
        let role = ProtocolError::Unexpected {
            command: "SetClientFeature",
            when: "as a server",
        };
        assert_eq!(error, Err(role));
        let error = server.handle(Command::SetClientFeature(features(6)));
        assert_eq!(error, Err(ProtocolError::Features { features: 6 }));
        for side in &mut sides {
            assert_eq!(side.handle(Command::Keepalive), Ok(()));
            assert_eq!(side.next(), None, "a keepalive must have no reply");
        }
    }

    #[test]
    fn unknown_features_are_not_selected() {
        let mut client = Session::new(Role::Client, memory(0x1000, 10));
        client.established();
        client.next();
        let offered = Features {
            select: 0,
            bits: u64::MAX,
        };
        client.handle(Command::GetServerFeature(offered)).unwrap();
        let none = Features::default();
        assert_eq!(client.next(), Some(Command::SetClientFeature(none)));
        assert!(
            !client.is_ready(),
            "the client must not write before the server announces a buffer"
        );

        let mut client = Session::new(Role::Client, memory(0x1000, 10));
        client.established();
        let other = Features { select: 1, bits: 0 };
        let error = client.handle(Command::GetServerFeature(other));
        assert_eq!(error, Err(ProtocolError::Select { select: 1 }));
    }

    #[test]
    fn replies_that_are_not_taken_are_bounded() {
        let mut server = Session::new(Role::Server, memory(0x2000, 20));
        server.established();
        let ask = Command::GetServerFeature(Features::default());
        let count = (0..100).take_while(|_| server.handle(ask).is_ok()).count();
        assert_eq!(count, PENDING - 1);
        let error = ProtocolError::Flood { pending: PENDING };
        assert_eq!(server.handle(Command::Keepalive), Err(error));
    }
}
