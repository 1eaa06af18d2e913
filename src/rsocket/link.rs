use std::{io, time::Duration};

use super::{
    Config,
    receiving::Receiving,
    send_ring::SendRing,
    sending::{Sending, WINDOWS},
    wire::{ConnData, Immediate, Window},
};
use crate::{
    cm::{CmId, ConnParam, EventChannel, PrivateData},
    status::{CmEventType, RejectReason, WcStatus},
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Inline, MemoryRegion, Payload,
        ProtectionDomain, QpCap, QpInitAttr, QpType, QueuePair, RecvWr, RemoteAddr, SendWr, Sge,
        WorkCompletion,
    },
};

/// Work requests that are kept for what is no data, so that it never waits for data.
const CONTROL: u32 = 4;
/// How many of them are kept for saying that this side writes no more, and that it is gone.
const FAREWELL: u32 = 2;
/// Receives beyond what the peer has credits for: it needs none for what is no data.
const EXTRA_RECEIVES: u16 = 8;
/// The most that is copied before the device is given something to do, in bytes.
const CHUNK: usize = 64 << 10;
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
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    cq: CompletionQueue,
    pub(super) done: CompletionChannel,
    incoming: MemoryRegion,
    outgoing: MemoryRegion,
    table: MemoryRegion,

    sending: Sending,
    receiving: Receiving,
    ring: SendRing,
    /// What the peer said while connecting: where its table is, and in which byte order it reads it.
    peer: Option<ConnData>,
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
    end: Option<End>,
}

/// How a connection ended.
#[derive(Debug)]
enum End {
    /// The peer said so.
    Disconnected,
    /// By a fault.
    Lost(io::ErrorKind, String),
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
            qp_type: QpType::RC,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap,
            sq_sig_all: true,
        };
        let qp = id.create_qp(&pd, &attr)?;
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let link = Self {
            incoming: MemoryRegion::new(&pd, config.receive_buffer, writable)?,
            outgoing: MemoryRegion::new(&pd, config.send_buffer, AccessFlags::LOCAL_WRITE)?,
            table: MemoryRegion::new(&pd, 2 * TABLE, writable)?,
            sending: Sending::new(0, Window::default()),
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
        self.learn(peer);
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

    fn learn(&mut self, peer: ConnData) {
        self.sending = Sending::new(peer.credits, peer.data);
        self.peer = Some(peer);
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

    /// Writes as much as may be written now. `None`: nothing.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        if let Some(error) = self.error() {
            return Some(Err(error));
        }
        if !self.writable {
            let text = "this side of the stream was shut down";
            return Some(Err(io::Error::new(io::ErrorKind::BrokenPipe, text)));
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
        let Some(mut window) = self.sending.room(bytes.len().min(CHUNK)) else {
            return Ok(0);
        };
        let range = if window.length as usize <= self.inline {
            0..0
        } else {
            match self.ring.take(window.length as usize) {
                Some(range) => range,
                None => return Ok(0),
            }
        };
        let remote = RemoteAddr {
            addr: window.addr,
            rkey: window.rkey,
        };
        let payload: Payload<'_> = if range.is_empty() {
            Inline(&bytes[..window.length as usize]).into()
        } else {
            self.outgoing.copy_in(range.start, &bytes[..range.len()]);
            window.length = range.len() as u32;
            Sge::new(&self.outgoing, range.clone()).into()
        };
        let immediate = Immediate::Data(window.length).encode();
        let freed = range.len() as u64;
        self.qp
            .post_send(&[SendWr::write_with_imm(freed, payload, remote, immediate)])?;
        self.posted += 1;
        self.free -= 1;
        self.sending.wrote(window.length);
        Ok(window.length as usize)
    }

    /// Reads what is there. `None`: nothing is, yet.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let mut len = 0;
        loop {
            let range = self.receiving.readable(into.len() - len);
            if range.is_empty() {
                break;
            }
            self.incoming
                .copy_out(range.start, &mut into[len..len + range.len()]);
            len += range.len();
            self.receiving.read(range.len());
            // The peer may go on in what is free now.
            self.update();
        }
        if len > 0 || into.is_empty() || !self.readable {
            return Some(Ok(len));
        }
        match &self.end {
            None => None,
            Some(End::Disconnected) => Some(Ok(0)),
            Some(End::Lost(..)) => self.error().map(Err),
        }
    }

    /// Whether reading would not wait.
    pub(super) fn is_readable(&self) -> bool {
        !self.receiving.is_empty() || !self.readable || self.end.is_some()
    }

    /// Whether writing would not wait.
    pub(super) fn is_writable(&self) -> bool {
        let room = || self.free > 0 && self.ring.has_room() && self.sending.room(1).is_some();
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
        if !self.established || self.end.is_some() || self.free_control == 0 {
            return Ok(());
        }
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

    /// Whether everything that was posted has come back.
    pub(super) fn is_drained(&self) -> bool {
        self.posted == 0 || self.end.is_some()
    }

    /// Ends the connection, without waiting for the peer.
    pub(super) fn disconnect(&mut self) {
        if let Err(error) = self.id.disconnect() {
            log::debug!("rsocket: {error}");
        }
    }

    /// Takes what the device has to say, and with `events` the connection manager, too. Whether there was anything.
    pub(super) fn progress(&mut self, events: bool) -> bool {
        let mut any = false;
        let result = self.take_completions(&mut any).and_then(|()| {
            while events && let Some(event) = self.events.poll_event()? {
                any = true;
                // What came before the end counts.
                self.take_completions(&mut any)?;
                self.handle(&event);
            }
            Ok(())
        });
        if let Err(error) = result {
            self.lose(error.to_string());
        }
        self.update();
        any
    }

    /// Asks for a sign when there is something to take.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        while self.done.get_event()?.is_some() {}
        Ok(self.cq.req_notify(false)?)
    }

    fn handle(&mut self, event: &crate::cm::CmEvent) {
        log::debug!("rsocket: {}", event.event());
        match event.event() {
            CmEventType::ESTABLISHED => {
                // The one that was asked has it of the request already.
                if self.peer.is_none() {
                    match ConnData::from_bytes(event.private_data()) {
                        Some(peer) => self.learn(peer),
                        None => return self.lose("the peer is no rsocket of this version"),
                    }
                }
                self.established = true;
                if let Err(error) = self.qp.set_min_rnr_timer(MIN_RNR_TIMER) {
                    self.lose(error.to_string());
                }
            }
            CmEventType::DISCONNECTED => self.lose("the peer is gone"),
            CmEventType::REJECTED => match event.reject_reason() {
                RejectReason::INVALID_SERVICE_ID => {
                    let why = "refused: nobody listens on this port".into();
                    let end = End::Lost(io::ErrorKind::ConnectionRefused, why);
                    self.end.get_or_insert(end);
                }
                reason => self.lose(format!("the peer rejected the connection: {reason}")),
            },
            CmEventType::ADDR_CHANGE | CmEventType::TIMEWAIT_EXIT => {}
            other => self.lose(format!("{other}: {}", event.cm_status())),
        }
    }

    fn take_completions(&mut self, any: &mut bool) -> io::Result<()> {
        let mut completions = [WorkCompletion::default(); 16];
        // All that can be there now, and no more: a peer may send faster than this.
        for _ in 0..=self.cq.cqe() as usize / completions.len() {
            let count = self.cq.poll(&mut completions)?;
            for completion in &completions[..count] {
                *any = true;
                self.complete(completion)?;
            }
            if count < completions.len() {
                break;
            }
        }
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> io::Result<()> {
        let wr_id = completion.wr_id();
        if wr_id != RECEIVE {
            self.posted -= 1;
        }
        if !completion.is_success() {
            // One that is flushed follows another, or an event tells why.
            if completion.status() != WcStatus::WR_FLUSH_ERR {
                self.lose(format!("a work request failed: {}", completion.status()));
            }
            return Ok(());
        }
        match wr_id {
            RECEIVE => {
                let immediate = completion.imm_data().and_then(Immediate::decode);
                if self.end.is_none() {
                    self.post_receive()?;
                }
                self.receive(immediate);
            }
            OTHER => self.free_control += 1,
            freed => {
                self.free += 1;
                // It was taken from the buffer, whose length is an `usize`.
                self.ring.give_back(freed as usize);
            }
        }
        Ok(())
    }

    fn receive(&mut self, immediate: Option<Immediate>) {
        match immediate {
            Some(Immediate::Data(len)) => {
                if self.receiving.arrived(len).is_err() {
                    self.lose("the peer wrote more than it may");
                }
            }
            Some(Immediate::Credits(limit)) => {
                let table = &self.table;
                self.sending
                    .allowed(limit, |place| take_window(table, place));
            }
            Some(Immediate::Mapping | Immediate::Keepalive) => {}
            // One that neither writes nor reads any more is gone.
            Some(Immediate::Shutdown) if self.writable => self.readable = false,
            Some(Immediate::Shutdown | Immediate::Disconnect) => {
                self.end.get_or_insert(End::Disconnected);
            }
            None => self.lose("the peer does not keep to the protocol"),
        }
    }

    /// Tells the peer what it may write now, if that is something new.
    fn update(&mut self) {
        let Some(peer) = self.peer else { return };
        while self.established && self.end.is_none() && self.free_control > FAREWELL {
            let Some(update) = self.receiving.update() else {
                return;
            };
            let immediate = Immediate::Credits(update.limit).encode();
            let mut remote = RemoteAddr {
                addr: peer.target.addr,
                rkey: peer.target.rkey,
            };
            let mut piece = 0..0;
            if let Some((range, place)) = update.window {
                let bytes = self.window(range.start).to_bytes(peer.big_endian);
                let offset = place as usize * Window::LEN;
                // The last window of this place has been filled since, so nothing is being sent from here.
                piece = TABLE + offset..TABLE + offset + Window::LEN;
                self.table.copy_in(piece.start, &bytes);
                remote.addr = remote.addr.wrapping_add(offset as u64);
            }
            let table = self.table.clone();
            let payload: Payload<'_> = if piece.is_empty() {
                (&[]).into()
            } else {
                Sge::new(&table, piece).into()
            };
            let wr = SendWr::write_with_imm(OTHER, payload, remote, immediate);
            if let Err(error) = self.post_control(wr) {
                return self.lose(error.to_string());
            }
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

/// Takes the window that the peer has put into this place, if it is complete. The peer puts the next one there only when it has been filled.
fn take_window(table: &MemoryRegion, place: u32) -> Option<Window> {
    let offset = place as usize * Window::LEN;
    let mut bytes = [0; Window::LEN];
    table.copy_out(offset, &mut bytes);
    let window = Window::from_ne(bytes);
    if window.addr == 0 || window.length == 0 {
        return None;
    }
    table.copy_in(offset, &[0; Window::LEN]);
    Some(window)
}

/// How long one attempt to resolve an address or a route takes.
pub(super) const RESOLVE: Duration = Duration::from_secs(2);
