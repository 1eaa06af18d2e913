mod bytes;
mod progress;

use std::io;

use super::{
    Config,
    receiving::Receiving,
    send_ring::SendRing,
    sending::Sending,
    wire::{ConnData, Immediate, WINDOWS, Window},
};
use crate::{
    cm::{CmId, ConnParam, EventChannel, PrivateData},
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap,
        QpInitAttr, QueuePair, RecvWr, RemoteAddr, SendWr,
    },
};

/// Work requests that are kept for what is no data, so that it never waits for data.
const CONTROL: u32 = 4;
/// How many of them are kept for saying that this side writes no more, and that it is gone.
const FAREWELL: u32 = 2;
/// Receives beyond what the peer has credits for: it needs none for what is no data.
const EXTRA_RECEIVES: u16 = 8;
/// How long a peer waits that found no receive, as a code: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// Bytes of the table of windows that the peer writes to. Behind it is what is written to the peer's.
const TABLE: usize = WINDOWS as usize * Window::LEN;

/// Of which work request a completion is. One of data has the bytes of the send buffer that it frees.
const RECEIVE: u64 = 1 << 63;
const OTHER: u64 = 1 << 62;

/// A connection: its queue pair, its memory, and how far it has got.
#[derive(Debug)]
pub(super) struct Link {
    /// What log lines begin with.
    name: String,
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    cq: CompletionQueue,
    pub(super) done: CompletionChannel,
    incoming: MemoryRegion,
    outgoing: MemoryRegion,
    table: MemoryRegion,

    receiving: Receiving,
    ring: SendRing,
    /// What is known of the peer, when it has said it.
    peer: Option<Peer>,
    /// Bytes that go inline.
    inline: usize,
    /// Work requests that may still be posted: of data, and of others.
    free: u32,
    free_control: u32,
    /// How many work requests are posted in total, and not complete.
    posted: u32,

    established: bool,
    /// Whether this side may still write, and wants to read.
    writable: bool,
    readable: bool,
    /// What is to be said of that when there is a connection. What comes later includes what came before.
    unsaid: Option<Immediate>,
    end: Option<End>,
}

/// The other side.
#[derive(Debug)]
struct Peer {
    /// What may be written there.
    sending: Sending,
    /// Where it reads from what this side lets it write, and in which byte order.
    table: RemoteAddr,
    big_endian: bool,
}

/// How a connection ended.
#[derive(Debug)]
enum End {
    /// The peer said so.
    Disconnected,
    /// By a fault.
    Lost(io::ErrorKind, String),
}

impl Peer {
    fn new(data: ConnData) -> Self {
        Self {
            sending: Sending::new(data.credits, data.data),
            table: RemoteAddr {
                addr: data.target.addr,
                rkey: data.target.rkey,
            },
            big_endian: data.big_endian,
        }
    }
}

impl Link {
    /// Makes what an id needs before it connects or accepts, and says what to tell the peer.
    pub(super) fn new(mut id: CmId, events: EventChannel, config: &Config) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the device is gone");
        let device = id.verbs().ok_or_else(gone)?;
        let limits = device.query_device()?;
        let receives = u32::from(config.receive_queue) + u32::from(EXTRA_RECEIVES);
        let sends = u32::from(config.send_queue) + CONTROL;
        if receives.max(sends) > limits.max_qp_wr() {
            let text = format!(
                "{} has queues of {} work requests: choose a smaller send_queue or receive_queue",
                device.device_name(),
                limits.max_qp_wr()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let pd = ProtectionDomain::new(&device)?;
        let done = CompletionChannel::new(&device)?;
        let cq = CompletionQueue::new(&device, receives + sends, Some((&done, 0)))?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_inline_data: config.inline,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let name = match id.peer_addr() {
            Some(peer) => format!("rsocket to {peer}"),
            None => "rsocket".into(),
        };
        let link = Self {
            name,
            incoming: MemoryRegion::new(&pd, config.receive_buffer, writable)?,
            outgoing: MemoryRegion::new(&pd, config.send_buffer, AccessFlags::LOCAL_WRITE)?,
            table: MemoryRegion::new(&pd, 2 * TABLE, writable)?,
            receiving: Receiving::new(config.receive_buffer, config.receive_queue),
            ring: SendRing::new(config.send_buffer),
            peer: None,
            inline: qp.cap().max_inline_data.min(config.inline) as usize,
            free: config.send_queue.into(),
            free_control: CONTROL,
            posted: 0,
            established: false,
            writable: true,
            readable: true,
            unsaid: None,
            end: None,
            id,
            events,
            qp,
            cq,
            done,
        };
        for _ in 0..receives {
            link.post_receive()?;
        }
        Ok(link)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn id(&self) -> &CmId {
        &self.id
    }

    pub(super) fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Asks for the connection. It is there when [`progress`](Self::progress) has seen the answer.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        Ok(self.id.connect(&self.param()?)?)
    }

    /// Accepts the peer's request, with which it sent this.
    pub(super) fn accept(&mut self, peer: ConnData) -> io::Result<()> {
        self.peer = Some(Peer::new(peer));
        self.id.accept(&self.param()?)?;
        Ok(self.qp.set_min_rnr_timer(MIN_RNR_TIMER)?)
    }

    fn param(&self) -> io::Result<ConnParam> {
        let data = ConnData {
            big_endian: cfg!(target_endian = "big"),
            credits: self.receiving.credits(),
            target: Window {
                addr: self.table.addr(),
                rkey: self.table.rkey(),
                length: WINDOWS,
            },
            data: self.window(0),
        };
        Ok(ConnParam {
            private_data: PrivateData::try_from(&data.to_bytes()[..])?,
            // Nothing is read from memory of the peer.
            responder_resources: 0,
            initiator_depth: 0,
            ..ConnParam::default()
        })
    }

    /// The window that begins at this place of the ring.
    fn window(&self, start: usize) -> Window {
        Window {
            addr: self.incoming.addr() + start as u64,
            rkey: self.incoming.rkey(),
            // The configuration's limit is two of the largest.
            length: self.receiving.half() as u32,
        }
    }

    pub(super) fn is_established(&self) -> bool {
        self.established
    }

    /// The connection has failed, or the peer is gone: why.
    pub(super) fn error(&self) -> Option<io::Error> {
        match self.end.as_ref()? {
            End::Disconnected => {
                let text = "the peer has closed the connection";
                Some(io::Error::new(io::ErrorKind::BrokenPipe, text))
            }
            End::Lost(kind, why) => Some(io::Error::new(*kind, why.as_str())),
        }
    }

    /// Whether reading would not wait.
    pub(super) fn is_readable(&self) -> bool {
        !self.receiving.is_empty() || !self.readable || self.end.is_some()
    }

    /// Whether writing would not wait.
    pub(super) fn is_writable(&self) -> bool {
        let allowed = |peer: &Peer| peer.sending.room(1).is_some();
        let room =
            || self.free > 0 && self.ring.has_room() && self.peer.as_ref().is_some_and(allowed);
        !self.writable || self.end.is_some() || self.established && room()
    }

    /// Writes no more. The peer is told.
    pub(super) fn shutdown_write(&mut self) -> io::Result<()> {
        if !self.writable {
            return Ok(());
        }
        self.writable = false;
        self.say(if self.readable {
            Immediate::Shutdown
        } else {
            Immediate::Disconnect
        })
    }

    /// Wants to read no more.
    pub(super) fn shutdown_read(&mut self) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        self.readable = false;
        if self.writable {
            // The peer need not know. This side's threads that wait for bytes do, and a completion wakes them.
            self.keep_alive()
        } else {
            self.say(Immediate::Disconnect)
        }
    }

    fn say(&mut self, immediate: Immediate) -> io::Result<()> {
        self.unsaid = Some(immediate);
        self.say_unsaid()
    }

    fn say_unsaid(&mut self) -> io::Result<()> {
        if !self.established || self.end.is_some() {
            return Ok(());
        }
        let Some(immediate) = self.unsaid.take() else {
            return Ok(());
        };
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        self.post_control(SendWr::write_with_imm(
            OTHER,
            &[],
            nowhere,
            immediate.encode(),
        ))
    }

    /// Makes sure that the peer is there: a write of nothing, which it is not told of.
    pub(super) fn keep_alive(&mut self) -> io::Result<()> {
        if !self.established || self.end.is_some() || self.free_control <= FAREWELL {
            return Ok(());
        }
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        self.post_control(SendWr::write(OTHER, &[], nowhere))
    }

    /// Whether the peer has been told what it is to be told of this side's end.
    pub(super) fn has_said(&self) -> bool {
        self.unsaid.is_none() || self.end.is_some()
    }

    /// Whether that is so, and everything that was posted has come back.
    pub(super) fn is_drained(&self) -> bool {
        self.has_said() && (self.posted == 0 || self.end.is_some())
    }

    /// Ends the connection, without waiting for the peer.
    pub(super) fn disconnect(&mut self) {
        if let Err(error) = self.id.disconnect() {
            log::debug!("{}: {error}", self.name);
        }
    }

    fn post_control(&mut self, wr: SendWr<'_>) -> io::Result<()> {
        self.qp.post_send(&[wr])?;
        self.free_control -= 1;
        self.posted += 1;
        Ok(())
    }

    fn post_receive(&self) -> io::Result<()> {
        Ok(self.qp.post_recv(&[RecvWr::new(RECEIVE, &[])])?)
    }

    fn lose(&mut self, why: impl Into<String>) {
        // The first cause is the one to tell.
        self.end
            .get_or_insert_with(|| End::Lost(io::ErrorKind::ConnectionReset, why.into()));
    }
}
