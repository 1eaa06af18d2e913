//! A peer that uses verbs directly, so that it can also send invalid commands and writes.

use std::{collections::VecDeque, net::SocketAddr, thread};

use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
    verbs::{
        AccessFlags, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap, QpInitAttr, QueuePair,
        RecvWr, RemoteAddr, SendWr, Sge, WorkCompletion,
    },
};
use toolbox::{Deadline, TIME_LIMIT};

/// The length of a command in bytes.
pub(crate) const COMMAND: usize = 32;
/// The number of posted receives.
pub(crate) const RECEIVES: usize = 64;
/// The work request id of sends and writes. The id of a receive is its index, which is below
/// `RECEIVES`.
const SEND: u64 = RECEIVES as u64;
/// The size in bytes of the buffer to which the stream writes.
pub(crate) const BUFFER: usize = 4096;

/// A peer that sends any command or write, valid or invalid.
pub(crate) struct Peer {
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    /// The buffers of the receives, then the buffer for incoming bytes, then a buffer for one send.
    memory: MemoryRegion,
    /// Messages that have arrived but that `receive` has not yet returned.
    received: VecDeque<Received>,
}

/// A message from the stream under test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Command([u8; COMMAND]),
    /// A WRITE. The field is the number of bytes that the WRITE transferred.
    Bytes(u32),
}

/// A server that accepts one peer.
pub(crate) struct Server {
    id: CmId,
    events: EventChannel,
}

impl Server {
    pub(crate) fn bind(address: SocketAddr) -> Self {
        let events = EventChannel::new().unwrap();
        let create = || CmId::new(&events, PortSpace::TCP, 0);
        let id = CmId::listen_on(create, address, 1).unwrap();
        Self { id, events }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.id.local_addr().unwrap()
    }

    pub(crate) fn accept(self) -> Peer {
        let mut event = self.events.wait_event(TIME_LIMIT).unwrap().unwrap();
        let mut id = event.take_request().unwrap();
        let events = EventChannel::new().unwrap();
        id.migrate(&events).unwrap();
        let mut peer = Peer::new(id, events);
        // Like Valkey, request a retry count of 0. A client that follows this request fails
        // immediately if it sends while no receive is posted. `Stream` must use its own retry count
        // instead.
        let param = ConnParam {
            rnr_retry_count: 0,
            ..ConnParam::default()
        };
        peer.id.accept(&param).unwrap();
        peer.expect(CmEventType::ESTABLISHED);
        peer
    }
}

impl Peer {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let events = EventChannel::new().unwrap();
        let mut id = CmId::new(&events, PortSpace::TCP, 0).unwrap();
        id.resolve_addr(None, address, TIME_LIMIT).unwrap();
        events.wait_event(TIME_LIMIT).unwrap().unwrap();
        id.resolve_route(TIME_LIMIT).unwrap();
        events.wait_event(TIME_LIMIT).unwrap().unwrap();
        let mut peer = Self::new(id, events);
        peer.id.connect(&ConnParam::default()).unwrap();
        peer.expect(CmEventType::ESTABLISHED);
        peer
    }

    fn new(mut id: CmId, events: EventChannel) -> Self {
        let device = id.verbs().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let cq = CompletionQueue::new(&device, 2 * RECEIVES as u32, None).unwrap();
        let cap = QpCap {
            max_send_wr: RECEIVES as u32,
            max_recv_wr: RECEIVES as u32,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = id.create_qp(&pd, &attr).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let len = RECEIVES * COMMAND + 2 * BUFFER;
        let memory = MemoryRegion::new(&pd, len, access).unwrap();
        let peer = Self {
            id,
            events,
            qp,
            memory,
            received: VecDeque::new(),
        };
        (0..RECEIVES).for_each(|number| peer.post_receive(number));
        peer
    }

    fn post_receive(&self, number: usize) {
        let at = number * COMMAND;
        let buffer = Sge::new(&self.memory, at..at + COMMAND);
        self.qp
            .post_recv(&[RecvWr::new(number as u64, buffer)])
            .unwrap();
    }

    /// Waits for the next event, which must have type `wanted`.
    pub(crate) fn expect(&self, wanted: CmEventType) {
        let event = self.events.wait_event(TIME_LIMIT).unwrap().unwrap();
        assert_eq!(event.event(), wanted);
    }

    /// Sends a message, and waits until the message has arrived.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let at = RECEIVES * COMMAND + BUFFER;
        self.memory.copy_in(at, bytes);
        let payload = Sge::new(&self.memory, at..at + bytes.len());
        self.qp.post_send(&[SendWr::send(SEND, payload)]).unwrap();
        self.wait_for_send();
    }

    /// Sends an immediate value that announces `len` written bytes, but writes no bytes. Waits
    /// until the immediate value has arrived.
    pub(crate) fn announce_bytes(&mut self, len: u32) {
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        let write = SendWr::write_with_imm(SEND, &[], nowhere, len);
        self.qp.post_send(&[write]).unwrap();
        self.wait_for_send();
    }

    fn wait_for_send(&mut self) {
        let mut deadline = Deadline::after(TIME_LIMIT);
        while self.poll() != Some(SEND) {
            assert!(!deadline.is_over(), "a send did not complete in time");
        }
    }

    /// Polls for one completion. If a message has arrived, stores it in `received`, and reposts the
    /// receive. Returns the id of the completed work request.
    fn poll(&mut self) -> Option<u64> {
        let mut done = [WorkCompletion::default()];
        if self.qp.recv_cq().poll(&mut done).unwrap() == 0 {
            thread::yield_now();
            return None;
        }
        let [done] = done;
        if let Ok(success) = done.result()
            && success.wr_id != SEND
        {
            let number = success.wr_id as usize;
            let received = match success.imm_data {
                Some(len) => Received::Bytes(len),
                None => {
                    assert_eq!(success.byte_len as usize, COMMAND);
                    let mut bytes = [0; COMMAND];
                    self.memory.copy_out(number * COMMAND, &mut bytes);
                    Received::Command(bytes)
                }
            };
            self.received.push_back(received);
            self.post_receive(number);
        }
        Some(done.wr_id())
    }

    /// Waits for the next message, and returns it.
    pub(crate) fn receive(&mut self) -> Received {
        let mut deadline = Deadline::after(TIME_LIMIT);
        loop {
            self.poll();
            if let Some(received) = self.received.pop_front() {
                return received;
            }
            assert!(!deadline.is_over(), "no message arrived in time");
        }
    }

    /// Discards all messages that have arrived.
    pub(crate) fn discard_received(&mut self) {
        while self.poll().is_some() {}
        self.received.clear();
    }

    /// Moves the queue pair to the error state. This peer's device then no longer acknowledges
    /// packets, and does not notify the stream.
    pub(crate) fn fail_queue_pair(&self) {
        self.qp.to_err().unwrap();
    }

    /// Returns the command that announces this peer's buffer.
    pub(crate) fn announcement(&self) -> [u8; COMMAND] {
        let addr = self.memory.addr() + (RECEIVES * COMMAND) as u64;
        announcement(addr, BUFFER as u32, self.memory.rkey())
    }
}

/// Returns a command with opcode `opcode`. All other bytes are zero.
pub(crate) fn command(opcode: u8) -> [u8; COMMAND] {
    let mut bytes = [0; COMMAND];
    bytes[1] = opcode;
    bytes
}

/// Returns the command RegisterXferMemory.
pub(crate) fn announcement(addr: u64, length: u32, key: u32) -> [u8; COMMAND] {
    let mut bytes = command(3);
    bytes[16..24].copy_from_slice(&addr.to_be_bytes());
    bytes[24..28].copy_from_slice(&length.to_be_bytes());
    bytes[28..].copy_from_slice(&key.to_be_bytes());
    bytes
}
