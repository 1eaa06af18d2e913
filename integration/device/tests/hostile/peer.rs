//! A peer that calls the public verbs and the connection manager directly. It sends any bytes that
//! a test passes to it.

use std::{
    cell::Cell,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use rdmsg::{
    cm::{CmEvent, CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    status::CmEventType,
    verbs::{
        AccessFlags, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap, QpInitAttr, QueuePair,
        RecvWr, RemoteAddr, SendWr, Sge, WorkCompletion,
    },
};
use toolbox::{Lab, TIME_LIMIT};

use crate::wire::{Frame, HEADER_LEN, PING, PONG};

/// The maximum number of frames in flight, which is also the number of posted receives. It exceeds
/// the number of frames that the library is permitted to send.
pub(crate) const DEPTH: u32 = 64;
/// The size of a slot in bytes, which exceeds the longest frame that the library accepts.
const SLOT: usize = 2048;
/// The bit that marks sends in the ids of work requests. The ids of receives have neither this bit
/// nor the bit `NUDGE`.
const SEND: u64 = 1 << 32;
/// The bit that marks nudges (empty WRITEs) in the ids of work requests.
const NUDGE: u64 = 1 << 33;

/// A peer with its own queue pair.
pub(crate) struct Peer {
    // Fields are dropped in order of declaration, and the queue pair must be dropped before the
    // objects that it uses.
    qp: QueuePair,
    cq: CompletionQueue,
    /// `DEPTH` slots for sending, followed by `DEPTH` slots for receiving.
    region: MemoryRegion,
    id: CmId,
    channel: EventChannel,
    posted: u32,
    /// The number of frames sent, modulo 2¹⁶.
    frames_sent: u16,
    /// The number of frames received, modulo 2¹⁶.
    frames_received: u16,
    acknowledged: u32,
    received: Vec<Vec<u8>>,
    disconnected: bool,
}

/// A hostile listener, to which the library connects.
pub(crate) struct Server {
    listener: CmId,
    channel: EventChannel,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        let channel = EventChannel::new().unwrap();
        let create = || CmId::new(&channel, PortSpace::TCP, 1);
        let listener = CmId::listen_on(create, addr, 1).unwrap();
        let addr = listener.local_addr().unwrap();
        Self {
            listener,
            channel,
            addr,
        }
    }

    /// Waits for a connection request, and returns the request's id.
    pub(crate) fn request(&self) -> CmId {
        expect(&self.channel, CmEventType::CONNECT_REQUEST)
            .take_request()
            .unwrap()
    }

    /// Accepts the next request, with `private_data` in the acceptance. The library can still
    /// reject the acceptance.
    pub(crate) fn answer(self, private_data: &[u8]) -> Peer {
        self.answer_with(private_data, Depth::MAX)
    }

    /// Like `answer`, but with READ depths `depth`.
    pub(crate) fn answer_with(self, private_data: &[u8], depth: Depth) -> Peer {
        let id = self.request();
        let mut peer = Peer::of(id, self.channel.clone());
        peer.id.accept(&param(private_data, depth)).unwrap();
        drop(self.listener);
        peer
    }

    /// Accepts the next request, with `private_data` in the acceptance. The server remains usable.
    /// Returns the peer and the private data of the request.
    pub(crate) fn answer_next(&self, private_data: &[u8]) -> (Peer, Vec<u8>) {
        let mut event = self.await_event(CmEventType::CONNECT_REQUEST);
        let asked = event.private_data().to_vec();
        let mut peer = Peer::of(event.take_request().unwrap(), self.channel.clone());
        peer.id.accept(&param(private_data, Depth::MAX)).unwrap();
        (peer, asked)
    }

    /// Like `answer_next`, but also waits until the connection is established.
    pub(crate) fn accept_next(&self, private_data: &[u8]) -> (Peer, Vec<u8>) {
        let (mut peer, asked) = self.answer_next(private_data);
        self.await_event(CmEventType::ESTABLISHED);
        if Lab::get().is_iwarp() {
            assert_eq!(
                peer.receive()[0],
                PING,
                "the connecting side must send first"
            );
            peer.send(&first(PONG, private_data));
        }
        (peer, asked)
    }

    /// Waits for the next event of kind `kind`. Skips events of other kinds, because they belong to
    /// earlier connections.
    fn await_event(&self, kind: CmEventType) -> CmEvent {
        loop {
            let event = self.channel.wait_event(TIME_LIMIT).unwrap();
            let event = event.unwrap_or_else(|| panic!("no {kind} arrived"));
            if event.event() == kind {
                return event;
            }
        }
    }

    /// Accepts the next request, and waits until the connection is established.
    pub(crate) fn accept(self, private_data: &[u8]) -> Peer {
        let mut peer = self.answer(private_data);
        expect(&peer.channel, CmEventType::ESTABLISHED);
        if Lab::get().is_iwarp() {
            assert_eq!(
                peer.receive()[0],
                PING,
                "the connecting side must send first"
            );
            peer.send(&first(PONG, private_data));
        }
        peer
    }
}

/// Returns the first frame of a connection. The grant in this frame is the window in `hello`.
fn first(kind: u8, hello: &[u8]) -> Vec<u8> {
    let grant = u16::from_be_bytes([hello[8], hello[9]]).into();
    let frame = Frame {
        grant,
        ..Frame::control(kind)
    };
    frame.bytes()
}

impl Peer {
    /// Connects, and waits until the library has accepted the connection.
    pub(crate) fn connect(addr: SocketAddr, private_data: &[u8]) -> Self {
        let mut peer = Self::request(addr, private_data);
        expect(&peer.channel, CmEventType::ESTABLISHED);
        peer.exchange_first_frames(private_data);
        peer
    }

    /// On iWARP, exchanges the first frames: the connecting side must send a frame before the
    /// accepting side does.
    pub(crate) fn exchange_first_frames(&mut self, private_data: &[u8]) {
        if Lab::get().is_iwarp() {
            self.send(&first(PING, private_data));
            self.nudge_until_frame();
            assert_eq!(self.receive()[0], PONG);
        }
    }

    /// Waits for the library's answer to the connection request, and returns it.
    pub(crate) fn answer(&self) -> CmEvent {
        let answer = self.channel.wait_event(TIME_LIMIT).unwrap();
        answer.expect("the library must answer the request")
    }

    /// Sends a connection request, and does not wait for the answer.
    pub(crate) fn request(addr: SocketAddr, private_data: &[u8]) -> Self {
        Self::request_with(addr, private_data, Depth::MAX)
    }

    /// Like `request`, but with READ depths `depth`.
    pub(crate) fn request_with(addr: SocketAddr, private_data: &[u8], depth: Depth) -> Self {
        let channel = EventChannel::new().unwrap();
        let mut id = CmId::new(&channel, PortSpace::TCP, 1).unwrap();
        id.resolve_addr(Lab::get().source(), addr, TIME_LIMIT)
            .unwrap();
        expect(&channel, CmEventType::ADDR_RESOLVED);
        id.resolve_route(TIME_LIMIT).unwrap();
        expect(&channel, CmEventType::ROUTE_RESOLVED);
        let mut peer = Self::of(id, channel);
        peer.id.connect(&param(private_data, depth)).unwrap();
        peer
    }

    fn of(mut id: CmId, channel: EventChannel) -> Self {
        let context = id.verbs().unwrap();
        let pd = ProtectionDomain::new(&context).unwrap();
        let cq = CompletionQueue::new(&context, 4 * DEPTH, None).unwrap();
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = id.create_qp(&pd, &attr).unwrap();
        let region =
            MemoryRegion::new(&pd, 2 * DEPTH as usize * SLOT, AccessFlags::LOCAL_WRITE).unwrap();
        let peer = Self {
            qp,
            cq,
            region,
            id,
            channel,
            posted: 0,
            frames_sent: 0,
            frames_received: 0,
            acknowledged: 0,
            received: Vec::new(),
            disconnected: false,
        };
        for slot in 0..DEPTH {
            peer.post_recv(slot);
        }
        peer
    }

    /// Returns the memory region of the peer's slots.
    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Registers memory that the library is permitted to read.
    pub(crate) fn register(&self, len: usize) -> MemoryRegion {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        MemoryRegion::new(self.qp.pd(), len, access).unwrap()
    }

    /// Waits for the next event, which must have type `event`.
    pub(crate) fn event(&self, event: CmEventType) -> CmEvent {
        expect(&self.channel, event)
    }

    fn post_recv(&self, slot: u32) {
        let at = (DEPTH + slot) as usize * SLOT;
        let wr = RecvWr::new(slot.into(), Sge::new(&self.region, at..at + SLOT));
        self.qp.post_recv(&[wr]).unwrap();
    }

    /// Adds the connection's next frame number to the number field of `frame`, and posts the
    /// result. A caller that sends a valid frame therefore sets this field to 0.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let frame = self.numbered(frame);
        self.send_as(&frame, SendWr::send);
    }

    fn numbered(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        if let Some([a, b]) = frame.get_mut(2..4) {
            let number = self.frames_sent.wrapping_add(u16::from_be_bytes([*a, *b]));
            [*a, *b] = number.to_be_bytes();
        }
        self.frames_sent = self.frames_sent.wrapping_add(1);
        frame
    }

    /// Posts all frames in one call.
    pub(crate) fn send_all(&mut self, frames: &[Vec<u8>]) {
        let first = self.posted;
        self.posted += frames.len() as u32;
        assert!(
            self.posted <= DEPTH,
            "a slot must not be reused before a flush"
        );
        let place = |slot: usize| (first as usize + slot) * SLOT;
        for (slot, frame) in frames.iter().enumerate() {
            let frame = self.numbered(frame);
            self.region.copy_in(place(slot), &frame);
        }
        let requests: Vec<_> = frames
            .iter()
            .enumerate()
            .map(|(slot, frame)| (place(slot), frame.len()))
            .map(|(at, len)| SendWr::send(SEND, Sge::new(&self.region, at..at + len)))
            .collect();
        self.post(&requests);
    }

    /// Posts work requests. After the library has disconnected, software iWARP refuses the requests
    /// with ENOTCONN, and other devices flush them.
    fn post(&self, requests: &[SendWr<'_>]) {
        if let Err(refused) = self.qp.post_send(requests) {
            assert_eq!(refused.error.errno, Errno::ENOTCONN as i32, "{refused}");
        }
    }

    /// Posts the work request that `make` returns for `bytes`.
    pub(crate) fn send_as<'a>(
        &'a mut self,
        bytes: &[u8],
        make: impl FnOnce(u64, Sge<'a>) -> SendWr<'a>,
    ) {
        assert!(
            self.posted < DEPTH,
            "a slot must not be reused before a flush"
        );
        let at = self.posted as usize * SLOT;
        self.posted += 1;
        self.region.copy_in(at, bytes);
        let this: &'a Self = self;
        let sge = Sge::new(&this.region, at..at + bytes.len());
        this.post(&[make(SEND, sge)]);
    }

    /// Reads 64 bytes from the memory of the library. Returns `None` if the device rejects the
    /// READ; the rejection ends the connection.
    pub(crate) fn read(&mut self, target: RemoteAddr) -> Option<[u8; 64]> {
        let at = self.posted as usize * SLOT;
        let mut bytes = [0; 64];
        self.send_as(&bytes, |id, sge| SendWr::read(id, sge, target));
        let done = self.flush();
        self.region.copy_out(at, &mut bytes);
        assert!(
            done || bytes == [0; 64],
            "a refused READ must return no bytes"
        );
        done.then_some(bytes)
    }

    /// Waits until the library's device has acknowledged all frames, or the connection has ended.
    /// Returns true if the connection is still established.
    pub(crate) fn flush(&mut self) -> bool {
        let posted = self.posted;
        self.wait(|this| this.acknowledged == posted);
        if self.acknowledged == posted {
            // Now all slots are free again.
            (self.posted, self.acknowledged) = (0, 0);
        }
        !self.disconnected
    }

    /// Moves the queue pair to the error state without a disconnect. The queue pair then sends no
    /// frames and answers no READs.
    pub(crate) fn stop_answering(&mut self) {
        self.qp.to_err().unwrap();
    }

    /// Posts an empty WRITE about every 20 ms until a frame arrives. These WRITEs are necessary
    /// because of the driver on the library's side: if bytes arrive directly after the driver has
    /// replied to the connection request, the driver processes them only when more bytes arrive.
    fn nudge_until_frame(&mut self) {
        let last = Cell::new(Instant::now());
        self.wait(|this| {
            if last.get().elapsed() > Duration::from_millis(20) {
                last.set(Instant::now());
                let nowhere = RemoteAddr { addr: 0, rkey: 0 };
                let nudge = SendWr::write(NUDGE, &[], nowhere);
                this.post(&[nudge]);
            }
            !this.received.is_empty()
        });
    }

    /// Waits for the library's next frame, and returns it.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        self.wait(|this| !this.received.is_empty());
        assert!(
            !self.received.is_empty(),
            "the connection must not end before a frame arrives"
        );
        self.received.remove(0)
    }

    /// Waits until the library has disconnected.
    pub(crate) fn wait_disconnected(&mut self) {
        self.wait(|_| false);
    }

    /// Disconnects, or completes the library's disconnect.
    pub(crate) fn disconnect(mut self) {
        // Ignore the error: the call fails if the connection has already ended.
        let _ = self.id.disconnect();
    }

    fn wait(&mut self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            self.poll();
            if done(self) || self.disconnected {
                return;
            }
            match self
                .channel
                .poll_event()
                .unwrap()
                .map(|event| event.event())
            {
                Some(CmEventType::DISCONNECTED) => self.disconnected = true,
                // ESTABLISHED can precede the disconnect: if the peer is the server, its acceptance
                // contains the hello, so the library can reject the hello only after the connection
                // is established.
                Some(CmEventType::ESTABLISHED) | None => {}
                Some(other) => panic!("unexpected event {other}"),
            }
            assert!(
                Instant::now() < deadline,
                "time limit exceeded: {} of {} frames acknowledged, {} received",
                self.acknowledged,
                self.posted,
                self.received.len()
            );
            thread::yield_now();
        }
    }

    fn poll(&mut self) {
        let mut some = [WorkCompletion::default(); 4];
        let count = self.cq.poll(&mut some).unwrap();
        for wc in &some[..count] {
            // A work request fails only if the connection ends. Ignore the failure, because the
            // DISCONNECTED event reports the end of the connection, too.
            let Ok(success) = wc.result() else { continue };
            if success.wr_id == SEND {
                self.acknowledged += 1;
                continue;
            }
            if success.wr_id == NUDGE {
                continue;
            }
            let slot = success.wr_id as u32;
            let mut frame = vec![0; success.byte_len as usize];
            assert!(
                frame.len() >= HEADER_LEN,
                "a frame must contain a whole header"
            );
            self.region
                .copy_out((DEPTH + slot) as usize * SLOT, &mut frame);
            let number = u16::from_be_bytes([frame[2], frame[3]]);
            assert_eq!(
                number, self.frames_received,
                "frame numbers must be consecutive"
            );
            self.frames_received += 1;
            self.received.push(frame);
            self.post_recv(slot);
        }
    }
}

/// The READ depths of a peer: the number of concurrent READs that the peer can answer, and the
/// number of concurrent READs that the peer wants to issue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depth {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Depth {
    /// The value 255 for both depths, which means the device's maximum.
    pub(crate) const MAX: Self = Self {
        responder_resources: u8::MAX,
        initiator_depth: u8::MAX,
    };
}

fn param(private_data: &[u8], depth: Depth) -> ConnParam {
    ConnParam {
        private_data: PrivateData::try_from(private_data).unwrap(),
        responder_resources: depth.responder_resources,
        initiator_depth: depth.initiator_depth,
        ..ConnParam::default()
    }
}

fn expect(channel: &EventChannel, event: CmEventType) -> CmEvent {
    let received = channel.wait_event(TIME_LIMIT).unwrap();
    let received = received.unwrap_or_else(|| panic!("no {event} arrived"));
    assert_eq!(received.event(), event, "{received:?}");
    received
}
