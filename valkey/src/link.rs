//! A connection: its queue pair, its memory and its state.

mod opening;
mod progress;

use std::io;

use rdma_verbs::cm::{CmId, ConnParam, EventChannel};
use rdma_verbs::verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap,
    QpInitAttr, QpState, QueuePair, RecvWr, RemoteAddr, SendWr, Sge, TransportType,
};
use rdmsg_os::debug;

pub(crate) use self::opening::Opening;
use crate::{
    Config, ProtocolError,
    command::{self, Command, Memory},
    ring::Ring,
    session::{Role, Session},
};

/// The maximum number of this side's outstanding commands.
const COMMANDS: u32 = 8;
/// The maximum number of bytes in one write to the peer's buffer.
const CHUNK: usize = 64 << 10;
/// The RNR timer: the time that the peer waits before it retries a message for which this side had
/// no posted receive. The code 12 means 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// The number of retries of an unacknowledged packet. This is not the maximum, 7, because software
/// RoCE interprets 7 as infinite.
const RETRY: u8 = 6;
/// The RNR retry count that means "no limit": the device retries until the peer has posted a
/// receive. A busy server may not post a receive for a long time.
const RNR_RETRY: u8 = 7;

/// The bits that mark the work request ids of receives and of commands. The work request id of a
/// write is the write's length in bytes.
const RECEIVE: u64 = 1 << 63;
const COMMAND: u64 = 1 << 62;

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// The prefix of this connection's log lines.
    name: String,
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    cq: CompletionQueue,
    done: CompletionChannel,
    /// The buffers of the receives, followed by the buffers of outgoing commands.
    commands: MemoryRegion,
    incoming: MemoryRegion,
    outgoing: MemoryRegion,
    /// The number of receives.
    receives: u32,

    session: Session,
    ring: Ring,
    /// The number of writes that can still be posted.
    free: u32,
    /// The number of commands that can still be posted.
    free_commands: u32,
    /// The index of the next command's buffer among the buffers of outgoing commands.
    next_command: u32,
    established: bool,
    end: Option<End>,
}

/// The reason why a connection ended.
#[derive(Debug)]
enum End {
    /// The peer closed the connection.
    Disconnected,
    /// This side closed the connection.
    Closed,
    /// The peer violated the protocol.
    Violated(ProtocolError),
    /// The connection failed with this error.
    Lost(io::ErrorKind, String),
}

impl Link {
    /// Creates the connection's queue pair and memory, which must exist before `id` connects or
    /// accepts.
    fn new(mut id: CmId, events: EventChannel, config: &Config, role: Role) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the device was removed");
        let device = id.device()?.ok_or_else(gone)?;
        if device.transport_type() == TransportType::IWARP {
            let text = format!(
                "{} is an iWARP device, which lacks the immediate data that Valkey over RDMA needs",
                device.device_name()
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let receives = u32::from(config.receive_queue);
        let sends = u32::from(config.send_queue) + COMMANDS;
        let pd = ProtectionDomain::new(&device)?;
        let done = CompletionChannel::new(&device)?;
        let vector = device.next_comp_vector();
        let cq = CompletionQueue::on_vector(&device, receives + sends, Some((&done, 0)), vector)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        // Do not create the queue pair through `id`. If `id` owned the queue pair, the retry count
        // in the peer's request would apply, and Valkey's requests contain 0.
        let qp = QueuePair::new(&pd, &attr)?;
        qp.modify(&id.init_qp_attr(QpState::INIT)?)?;
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let incoming = MemoryRegion::new(&pd, config.receive_buffer as usize, writable)?;
        let memory = Memory {
            addr: incoming.addr(),
            length: config.receive_buffer,
            key: incoming.rkey(),
        };
        let commands = (receives + COMMANDS) as usize * command::LEN;
        let link = Self {
            name: match id.peer_addr() {
                Some(peer) => format!("valkey to {peer}"),
                None => "valkey".into(),
            },
            commands: MemoryRegion::new(&pd, commands, AccessFlags::LOCAL_WRITE)?,
            incoming,
            outgoing: MemoryRegion::new(&pd, config.send_buffer, AccessFlags::LOCAL_WRITE)?,
            receives,
            session: Session::new(role, memory),
            ring: Ring::new(config.send_buffer),
            free: config.send_queue.into(),
            free_commands: COMMANDS,
            next_command: 0,
            established: false,
            end: None,
            id,
            events,
            qp,
            cq,
            done,
        };
        for number in 0..receives {
            link.post_receive(number)?;
        }
        Ok(link)
    }

    /// Accepts the connection request of `id`.
    pub(crate) fn accept(id: CmId, events: EventChannel, config: &Config) -> io::Result<Self> {
        let mut link = Self::new(id, events, config, Role::Server)?;
        link.bring_up()?;
        link.id.accept(&link.param())?;
        Ok(link)
    }

    fn param(&self) -> ConnParam {
        ConnParam {
            // Valkey sends the same values, although the protocol uses no RDMA READs.
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: RETRY,
            qp_num: self.qp.qp_num(),
            ..ConnParam::default()
        }
    }

    /// Moves the queue pair to RTS. The id provides the attributes, which depend on the peer.
    fn bring_up(&mut self) -> io::Result<()> {
        // The queue pair moves to INIT a second time, because the access flags depend on the peer's
        // parameters, which were not available before.
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            let mut attr = self.id.init_qp_attr(state)?;
            let limit = |set: Option<u8>, value| set.map(|_| value);
            attr.min_rnr_timer = limit(attr.min_rnr_timer, MIN_RNR_TIMER);
            attr.retry_cnt = limit(attr.retry_cnt, RETRY);
            attr.rnr_retry = limit(attr.rnr_retry, RNR_RETRY);
            self.qp.modify(&attr)?;
        }
        Ok(())
    }

    fn post_receive(&self, number: u32) -> io::Result<()> {
        let at = number as usize * command::LEN;
        let buffer = Sge::new(&self.commands, at..at + command::LEN);
        let wr = RecvWr::new(RECEIVE | u64::from(number), buffer);
        Ok(self.qp.post_recv(&[wr])?)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> &CmId {
        &self.id
    }

    pub(crate) fn events(&self) -> &EventChannel {
        &self.events
    }

    pub(crate) fn done(&self) -> &CompletionChannel {
        &self.done
    }

    pub(crate) fn is_server(&self) -> bool {
        self.session.role() == Role::Server
    }

    /// Returns true if the initial commands of the peer have arrived, so that this side may write.
    pub(crate) fn is_ready(&self) -> bool {
        self.session.is_ready()
    }

    /// Returns the reason why the connection has ended, or `None` if it has not ended.
    pub(crate) fn error(&self) -> Option<io::Error> {
        let broken = |text: &str| io::Error::new(io::ErrorKind::BrokenPipe, text);
        Some(match self.end.as_ref()? {
            End::Disconnected => broken("the peer has closed the connection"),
            End::Closed => broken("this side has closed the connection"),
            End::Violated(error) => (*error).into(),
            End::Lost(kind, text) => io::Error::new(*kind, text.as_str()),
        })
    }

    /// Writes bytes until a further write would have to wait. Returns the number of written bytes,
    /// or `None` if even the first write would have to wait.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        if let Some(error) = self.error() {
            return Some(Err(error));
        }
        let mut written = 0;
        while self.established && self.free > 0 && written < bytes.len() {
            match self.write_piece(&bytes[written..]) {
                Ok(0) => break,
                Ok(len) => written += len,
                Err(error) => {
                    self.lose(error.to_string());
                    return Some(Err(error));
                }
            }
        }
        (written > 0 || bytes.is_empty()).then_some(Ok(written))
    }

    fn write_piece(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((addr, rkey, room)) = self.session.writable() else {
            return Ok(0);
        };
        let range = self.ring.allocate(bytes.len().min(room).min(CHUNK));
        let len = range.len();
        if len == 0 {
            return Ok(0);
        }
        self.outgoing.copy_in(range.start, &bytes[..len]);
        // The cast is lossless, because a write has at most `CHUNK` bytes.
        let (short, remote) = (len as u32, RemoteAddr { addr, rkey });
        let payload = Sge::new(&self.outgoing, range);
        let write = SendWr::write_with_imm(len as u64, payload, remote, short);
        self.qp.post_send(&[write])?;
        self.free -= 1;
        self.session.wrote(short);
        Ok(len)
    }

    /// Reads bytes that have arrived, and returns their number. If no bytes are available, the
    /// result depends on the connection:
    ///
    /// * `None` while the connection is open;
    /// * 0 after either side has closed the connection;
    /// * an error after the connection has failed.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let range = self.session.readable();
        let len = range.len().min(into.len());
        if len > 0 {
            self.incoming.copy_out(range.start, &mut into[..len]);
            self.session.read(len);
            self.send_pending();
        }
        if len > 0 || into.is_empty() {
            return Some(Ok(len));
        }
        match &self.end {
            None => None,
            Some(End::Disconnected | End::Closed) => Some(Ok(0)),
            Some(End::Violated(_) | End::Lost(..)) => self.error().map(Err),
        }
    }

    /// Sends the command Keepalive. Sends nothing if another command is outstanding, because that
    /// command has the same effect.
    pub(crate) fn keep_alive(&mut self) {
        if self.is_ready() && self.end.is_none() && self.free_commands == COMMANDS {
            self.send(Command::Keepalive);
        }
    }

    /// Sends pending commands until none is pending or [`COMMANDS`] commands are outstanding.
    fn send_pending(&mut self) {
        while self.established && self.end.is_none() && self.free_commands > 0 {
            let Some(command) = self.session.next() else {
                return;
            };
            self.send(command);
        }
    }

    fn send(&mut self, command: Command) {
        let slot = (self.receives + self.next_command) as usize * command::LEN;
        self.commands.copy_in(slot, &command.to_bytes());
        let payload = Sge::new(&self.commands, slot..slot + command::LEN);
        if let Err(error) = self.qp.post_send(&[SendWr::send(COMMAND, payload)]) {
            return self.lose(error.to_string());
        }
        self.free_commands -= 1;
        self.next_command = (self.next_command + 1) % COMMANDS;
    }

    /// Returns true if all written bytes have arrived, or if the connection has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.ring.is_empty() || self.end.is_some()
    }

    /// Closes the connection without waiting for the peer.
    pub(crate) fn close(&mut self) {
        self.end.get_or_insert(End::Closed);
        if let Err(error) = self.qp.to_err() {
            debug!(Valkey, "{}: cannot stop the queue pair: {error}", self.name);
        }
        if let Err(error) = self.id.disconnect() {
            debug!(Valkey, "{}: cannot disconnect: {error}", self.name);
        }
    }

    fn violate(&mut self, error: ProtocolError) {
        self.end.get_or_insert(End::Violated(error));
        self.close();
    }

    fn lose(&mut self, why: impl Into<String>) {
        // If the connection has already ended, the first reason is kept.
        self.end
            .get_or_insert_with(|| End::Lost(io::ErrorKind::ConnectionReset, why.into()));
    }
}
