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

/// The number of work requests reserved for control messages, so that these never wait for data.
const CONTROL: u32 = 4;
/// The number of those work requests that are reserved for shutdown and disconnect messages.
const CLOSING: u32 = 2;
/// Receives beyond the peer's credits, for its control messages, which need no credits.
const EXTRA_RECEIVES: u16 = 8;
/// The time for which a peer that found no receive waits, as a code: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// The length of the table of windows that the peer writes to, in bytes.
///
/// The buffer for updates of the peer table follows it.
const TABLE: usize = WINDOWS as usize * Window::LEN;

/// The id of work requests other than receives and data. The id of data is the number of send
/// buffer bytes that its completion frees.
const OTHER: u64 = 1 << 62;

/// A connection: its queue pair, its memory, and its state.
#[derive(Debug)]
pub(super) struct Link {
    /// The prefix of log lines.
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
    /// The peer's parameters, once they are known.
    peer: Option<Peer>,
    /// The maximum length of inline data.
    inline: usize,
    /// The number of work requests that may still be posted, for data and for control messages.
    free: u32,
    free_control: u32,
    /// The number of outstanding work requests.
    posted: u32,

    /// Whether ESTABLISHED has arrived.
    established: bool,
    opening: Opening,
    /// Whether the directions of writing and reading have not been shut down.
    writable: bool,
    readable: bool,
    /// The message about a shutdown that is sent once the connection is established.
    ///
    /// A later message includes the earlier one.
    pending: Option<Immediate>,
    end: Option<End>,
}

/// The peer.
#[derive(Debug)]
struct Peer {
    /// The peer's credits and windows.
    sending: Sending,
    /// The peer's table of this side's windows, and the peer's byte order.
    table: RemoteAddr,
    big_endian: bool,
}

/// The state of the first message, which on iWARP the connecting side sends (RFC 5044, 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// The peer has to send the first message.
    Awaited,
    /// This side has sent the first message, and the peer has not answered. Its driver may not have
    /// noticed a message that arrived while it took over the stream (Linux's software iWARP).
    Unanswered,
    /// The peer has sent a message, or the transport needs no first message.
    Over,
}

/// The end of a connection.
#[derive(Debug)]
enum End {
    /// The peer closed it.
    Disconnected,
    /// The connection failed, with this error.
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
    /// Creates the objects that an id needs before it connects or accepts.
    pub(super) fn new(mut id: CmId, events: EventChannel, config: &Config) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the device was removed");
        let device = id.device()?.ok_or_else(gone)?;
        let limits = device.query_device()?;
        let receives = u32::from(config.receive_queue) + u32::from(EXTRA_RECEIVES);
        let sends = (u32::from(config.send_queue) + CONTROL) * Notification::requests(&device);
        if receives.max(sends) > limits.max_qp_wr() {
            let text = format!(
                "{} supports queues of at most {} work requests: choose a smaller send_queue or \
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
    /// It is established once [`progress`](Self::progress) has read the event.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        if self.notification.active_speaks_first() {
            self.opening = Opening::Unanswered;
        }
        match self.id.connect(&self.param()?) {
            // A driver that connects within the call returns the error that an event would have.
            Err(error) if error.errno == libc::ECONNREFUSED => {
                let why = rejection_cause(RejectReason::from_raw(-error.errno), &[]);
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, why))
            }
            result => Ok(result?),
        }
    }

    /// Accepts the peer's request, which carried the private data `peer`.
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
            // This protocol uses no RDMA READ.
            responder_resources: 0,
            initiator_depth: self.notification.initiator_depth(),
            ..ConnParam::default()
        })
    }

    /// Returns the window that begins at this position of the ring.
    fn window(&self, start: usize) -> Window {
        Window {
            addr: self.incoming.addr() + start as u64,
            rkey: self.incoming.rkey(),
            // The configuration limits the ring to two windows of the maximum length.
            length: self.receiving.half() as u32,
        }
    }

    pub(super) fn is_established(&self) -> bool {
        self.established && self.opening != Opening::Awaited
    }

    /// Returns whether the peer may not have noticed the first message of this side.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_established() && self.opening == Opening::Unanswered && self.end.is_none()
    }

    /// Returns the reason if the connection has failed or the peer has closed it.
    pub(super) fn error(&self) -> Option<io::Error> {
        match self.end.as_ref()? {
            End::Disconnected => {
                let text = "the peer has closed the connection";
                Some(io::Error::new(io::ErrorKind::BrokenPipe, text))
            }
            End::Lost(kind, why) => Some(io::Error::new(*kind, why.as_str())),
        }
    }

    /// Returns whether reading would not wait.
    pub(super) fn is_readable(&self) -> bool {
        !self.receiving.is_empty() || !self.readable || self.end.is_some()
    }

    /// Returns whether writing would not wait.
    pub(super) fn is_writable(&self) -> bool {
        let allowed = |peer: &Peer| peer.sending.room(1).is_some();
        let room =
            || self.free > 0 && self.ring.has_room() && self.peer.as_ref().is_some_and(allowed);
        !self.writable || self.end.is_some() || self.is_established() && room()
    }

    /// Shuts down writing, and notifies the peer.
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

    /// Shuts down reading.
    pub(super) fn shutdown_read(&mut self) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        self.readable = false;
        if self.writable {
            // The peer need not be notified. This side's threads that wait for bytes must be
            // notified: the completion of a probe wakes them.
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

    /// Probes the peer: an empty RDMA WRITE, of which it is not notified.
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
            // The queue pair has failed, and a later event has the reason.
            Err(error) => debug!(
                Rsocket,
                "{}: cannot send a keepalive probe: {error}", self.name
            ),
        }
    }

    /// Returns whether the peer has been notified of this side's shutdown.
    pub(super) fn has_notified(&self) -> bool {
        self.pending.is_none() || self.end.is_some()
    }

    /// Returns whether the peer has been notified and all work requests have completed.
    pub(super) fn is_drained(&self) -> bool {
        self.has_notified() && (self.posted == 0 || self.end.is_some())
    }

    /// Disconnects, without waiting for the peer.
    pub(super) fn disconnect(&mut self) {
        if let Err(error) = self.id.disconnect() {
            debug!(Rsocket, "{}: cannot disconnect: {error}", self.name);
        }
    }

    fn lose(&mut self, why: impl Into<String>) {
        // The first cause is reported.
        self.end
            .get_or_insert_with(|| End::Lost(io::ErrorKind::ConnectionReset, why.into()));
    }
}
