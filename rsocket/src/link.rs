mod bytes;
mod notification;
mod progress;

use std::io;

use rdma_status::RejectReason;
use rdma_verbs::cm::{CmId, ConnParam, EventChannel, PrivateData};
use rdma_verbs::verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap,
    QpInitAttr, QueuePair, RemoteAddr, SendWr,
};

use self::{notification::Notification, progress::rejection_cause};
use super::{
    Config,
    receiving::Receiving,
    sending::Sending,
    wire::{ConnData, Immediate, WINDOWS, Window},
};
use crate::sending::SendRing;

/// The number of work requests reserved for control messages, so that a control message never waits
/// for data requests to complete.
const CONTROL: u32 = 4;
/// The number of work requests, out of `CONTROL`, that only shutdown and disconnect messages may
/// use.
const CLOSING: u32 = 2;
/// The number of receives for control messages. They are posted in addition to one receive for each
/// of the peer's credits, because control messages need no credits.
const EXTRA_RECEIVES: u16 = 8;
/// The RNR timer code for 0.64 ms. If this side has no posted receive for a send of the peer, the
/// peer waits for this time before it retries the send.
const MIN_RNR_TIMER: u8 = 12;
/// The length in bytes of the table into which the peer writes its windows. A window is the
/// address, key and length of memory to which the other side may write.
///
/// A buffer of the same length follows the table in the memory region. The buffer contains the
/// windows that this side writes into the peer's table.
const TABLE: usize = WINDOWS as usize * Window::LEN;

/// The id of the work requests for control messages and keepalive probes. The id of a data request
/// is the number of send-buffer bytes that are freed when the request completes.
const OTHER: u64 = 1 << 62;

/// A connection: its queue pair, its memory, and its state.
#[derive(Debug)]
pub(super) struct Link {
    /// The prefix of this connection's log lines.
    name: String,
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    cq: CompletionQueue,
    pub(super) done: CompletionChannel,
    incoming: MemoryRegion,
    outgoing: MemoryRegion,
    table: MemoryRegion,
    notification: Notification,

    receiving: Receiving,
    ring: SendRing,
    /// The peer's parameters, or `None` until they arrive.
    peer: Option<Peer>,
    /// The maximum length of inline data in bytes.
    inline: usize,
    /// The number of data work requests that can still be posted.
    free: u32,
    /// The number of control work requests that can still be posted.
    free_control: u32,
    /// The number of outstanding work requests, not counting receives.
    posted: u32,

    /// Whether the ESTABLISHED event was read.
    established: bool,
    opening: Opening,
    /// Whether this side may still write. Shutting down the writing direction clears this flag.
    writable: bool,
    /// Whether this side may still read. Shutting down the reading direction clears this flag.
    readable: bool,
    /// The shutdown message to send when the connection is established.
    ///
    /// A later shutdown message replaces an earlier one, because the later message includes the
    /// effect of the earlier message.
    pending: Option<Immediate>,
    end: Option<End>,
}

/// The parameters that the peer has announced.
#[derive(Debug)]
struct Peer {
    /// The credits and windows that the peer has granted.
    sending: Sending,
    /// The address of the table in the peer's memory into which this side writes its windows.
    table: RemoteAddr,
    big_endian: bool,
}

/// The state of the exchange of the first messages. On iWARP the connecting side must send the
/// first message (RFC 5044, section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// This side accepted the connection, and waits for the peer's first message.
    Awaited,
    /// This side requested the connection, so it sends the first message. The peer has not sent a
    /// message yet. The peer may have lost this side's first message: Linux's software iWARP can
    /// lose a message that arrives while the driver takes over the TCP connection.
    Unanswered,
    /// A message from the peer has arrived, or the transport allows either side to send first.
    Over,
}

/// The reason why a connection ended.
#[derive(Debug)]
enum End {
    /// The peer closed the stream.
    Disconnected,
    /// The connection failed with this error.
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
    /// Creates the connection's queue pair, completion queue and memory, which must exist before
    /// `id` connects or accepts. Posts the receives.
    pub(super) fn new(mut id: CmId, events: EventChannel, config: &Config) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the device was removed");
        let device = id.device()?.ok_or_else(gone)?;
        let limits = device.query_device()?;
        let receives = u32::from(config.receive_queue) + u32::from(EXTRA_RECEIVES);
        let sends = (u32::from(config.send_queue) + CONTROL) * Notification::requests(&device);
        if receives.max(sends) > limits.max_qp_wr() {
            let text = format!(
                "the device {} supports at most {} work requests per queue: lower send_queue or \
                 receive_queue",
                device.device_name(),
                limits.max_qp_wr()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let pd = ProtectionDomain::new(&device)?;
        let done = CompletionChannel::new(&device)?;
        let cq = CompletionQueue::on_vector(
            &device,
            receives + sends,
            Some((&done, 0)),
            device.next_comp_vector(),
        )?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_inline_data: config.inline.max(Notification::INLINE),
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
            notification: Notification::new(&device, &pd, receives)?,
            receiving: Receiving::new(config.receive_buffer, config.receive_queue),
            ring: SendRing::new(config.send_buffer),
            peer: None,
            inline: qp.cap().max_inline_data.min(config.inline) as usize,
            free: config.send_queue.into(),
            free_control: CONTROL,
            posted: 0,
            established: false,
            opening: Opening::Over,
            writable: true,
            readable: true,
            pending: None,
            end: None,
            id,
            events,
            qp,
            cq,
            done,
        };
        for number in 0..receives {
            link.notification.post_receive(&link.qp, number)?;
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

    /// Requests the connection.
    ///
    /// The connection is established after [`progress`](Self::progress) has read the ESTABLISHED
    /// event.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        if self.notification.active_speaks_first() {
            self.opening = Opening::Unanswered;
        }
        match self.id.connect(&self.param()?) {
            // Some drivers establish the connection during this call. They return a rejection as an
            // error instead of reporting an event.
            Err(error) if error.errno == libc::ECONNREFUSED => {
                let why = rejection_cause(RejectReason::from_raw(-error.errno), &[]);
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, why))
            }
            result => Ok(result?),
        }
    }

    /// Accepts the peer's connection request, which carried the private data `peer`.
    pub(super) fn accept(&mut self, peer: ConnData) -> io::Result<()> {
        self.peer = Some(Peer::new(peer));
        if self.notification.active_speaks_first() {
            self.opening = Opening::Awaited;
        }
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
            // This protocol uses no RDMA READs, so this side accepts none.
            responder_resources: 0,
            initiator_depth: self.notification.initiator_depth(),
            ..ConnParam::default()
        })
    }

    /// Returns the window that begins at the byte offset `start` in the ring.
    fn window(&self, start: usize) -> Window {
        Window {
            addr: self.incoming.addr() + start as u64,
            rkey: self.incoming.rkey(),
            // The cast is lossless, because a window is half of the ring, and the configuration
            // limits the ring to 2 GiB.
            length: self.receiving.half() as u32,
        }
    }

    pub(super) fn is_established(&self) -> bool {
        self.established && self.opening != Opening::Awaited
    }

    /// Returns whether this side's first message may have been lost.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_established() && self.opening == Opening::Unanswered && self.end.is_none()
    }

    /// If the connection has failed or the peer has closed it, returns an error with the reason.
    pub(super) fn error(&self) -> Option<io::Error> {
        match self.end.as_ref()? {
            End::Disconnected => {
                let text = "the peer has closed the connection";
                Some(io::Error::new(io::ErrorKind::BrokenPipe, text))
            }
            End::Lost(kind, why) => Some(io::Error::new(*kind, why.as_str())),
        }
    }

    /// Returns whether a read would return without waiting.
    pub(super) fn is_readable(&self) -> bool {
        !self.receiving.is_empty() || !self.readable || self.end.is_some()
    }

    /// Returns whether a write would return without waiting.
    pub(super) fn is_writable(&self) -> bool {
        let allowed = |peer: &Peer| peer.sending.room(1).is_some();
        let room =
            || self.free > 0 && self.ring.has_room() && self.peer.as_ref().is_some_and(allowed);
        !self.writable || self.end.is_some() || self.is_established() && room()
    }

    /// Shuts down the writing direction, and notifies the peer.
    pub(super) fn shutdown_write(&mut self) -> io::Result<()> {
        if !self.writable {
            return Ok(());
        }
        self.writable = false;
        self.notify(if self.readable {
            Immediate::Shutdown
        } else {
            Immediate::Disconnect
        })
    }

    /// Shuts down the reading direction.
    pub(super) fn shutdown_read(&mut self) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        self.readable = false;
        if self.writable {
            // The peer needs no notification, but threads of this side that wait for bytes must
            // wake up. The completion of a probe wakes them.
            self.keep_alive();
            Ok(())
        } else {
            self.notify(Immediate::Disconnect)
        }
    }

    fn notify(&mut self, immediate: Immediate) -> io::Result<()> {
        self.pending = Some(immediate);
        self.send_pending()
    }

    fn send_pending(&mut self) -> io::Result<()> {
        if !self.is_established() || self.end.is_some() {
            return Ok(());
        }
        let Some(immediate) = self.pending.take() else {
            return Ok(());
        };
        self.posted += self
            .notification
            .post(&self.qp, OTHER, None, immediate.encode())?;
        self.free_control -= 1;
        Ok(())
    }

    /// Sends a keepalive probe, an empty RDMA WRITE. The probe does not notify the peer's program.
    pub(super) fn keep_alive(&mut self) {
        if !self.is_established() || self.end.is_some() || self.free_control <= CLOSING {
            return;
        }
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        match self.qp.post_send(&[SendWr::write(OTHER, &[], nowhere)]) {
            Ok(()) => {
                self.free_control -= 1;
                self.posted += 1;
            }
            // The queue pair has failed. A later completion or event will report the reason.
            Err(error) => debug!(
                Rsocket,
                "{}: cannot send a keepalive probe: {error}", self.name
            ),
        }
    }

    /// Returns true if all shutdown messages have been sent or the connection has ended.
    pub(super) fn has_notified(&self) -> bool {
        self.pending.is_none() || self.end.is_some()
    }

    /// Returns true if the connection has ended, or if all shutdown messages have been sent and all
    /// work requests have completed.
    pub(super) fn is_drained(&self) -> bool {
        self.has_notified() && (self.posted == 0 || self.end.is_some())
    }

    /// Disconnects without waiting for the peer.
    pub(super) fn disconnect(&mut self) {
        if let Err(error) = self.id.disconnect() {
            debug!(Rsocket, "{}: cannot disconnect: {error}", self.name);
        }
    }

    fn lose(&mut self, why: impl Into<String>) {
        // If the connection has already ended, the first reason is kept.
        self.end
            .get_or_insert_with(|| End::Lost(io::ErrorKind::ConnectionReset, why.into()));
    }
}
