//! An exchange of messages over plain verbs. Short messages are sent inline, only every 16th send
//! has a completion, receives are reposted immediately, and the receiver sends a credit message for
//! each quarter of the window. A thread that waits for a message sleeps until an event arrives.
//! Comparing rdmsg with this exchange shows the cost of rdmsg's own work.

use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdmsg::{
    cm::{AddrInfo, AddrInfoHints, CmId, ConnParam, PortSpace},
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Inline, MemoryRegion, ProtectionDomain,
        QpCap, QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
    },
};
use toolbox::Side;

use crate::traffic::Traffic;

/// The number of receives for messages, and the maximum number of messages in flight.
const WINDOW: usize = 64;

/// The number of messages after which the receiver returns their credits in one credit message.
const CREDITS: usize = 16;

/// The number of receives for credit messages, in addition to the receives for messages. At most
/// `WINDOW / CREDITS` credit messages are in flight.
const CREDIT_RECEIVES: usize = WINDOW / CREDITS + 1;

/// Only one send out of this number is signaled. Its completion frees the send queue entries of all
/// these sends.
const SIGNALED: usize = 16;

/// The maximum length in bytes of a message that is sent inline, as a copy in the send queue.
const INLINE: usize = 64;

/// One end of a connection.
pub(crate) struct PlainVerbs {
    qp: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    channel: CompletionChannel,
    incoming: MemoryRegion,
    /// The messages to send, with one slot for each send in flight.
    outgoing: MemoryRegion,
    /// The size of a slot in bytes.
    size: usize,
    /// A copy of the message that is sent back.
    copy: Vec<u8>,
    /// Receive completions that were polled but not handled yet. The oldest completion is at the
    /// end of the vector.
    came: Vec<WorkCompletion>,
    /// The number of messages that the peer can still receive.
    credits: usize,
    /// The number of received messages whose credits have not been returned to the peer yet.
    owed: usize,
    /// The number of sent messages, including credit messages.
    sent: usize,
    /// The number of sends that may still be in the send queue.
    in_flight: usize,
    // This field is the last one, because the id must be dropped after its queue pair.
    _id: CmId,
}

impl PlainVerbs {
    pub(crate) fn new(traffic: &Traffic, side: Side) -> Result<Self> {
        let mut hints = AddrInfoHints::default();
        hints.port_space = Some(PortSpace::TCP);
        hints.passive = side == Side::Server;
        let (host, port) = (traffic.server.ip(), traffic.server.port());
        let info = AddrInfo::new(Some(&host.to_string()), &port.to_string(), hints)?;
        let mut id = CmId::create_ep(&info)?;
        if side == Side::Server {
            id.listen(0)?;
            id = id.get_request()?;
        }
        let mut this = Self::on(id, traffic.size.max(INLINE))?;
        let param = ConnParam {
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        match side {
            Side::Server => this._id.accept(&param)?,
            Side::Client => this._id.connect(&param)?,
        }
        Ok(this)
    }

    fn on(mut id: CmId, size: usize) -> Result<Self> {
        let device = id.verbs().context("the device was removed")?;
        let pd = ProtectionDomain::new(&device)?;
        let channel = CompletionChannel::new(&device)?;
        // Make the channel blocking. `get_event` then sleeps until an event arrives, and `wait`
        // needs no poll(2).
        let flags = OFlag::from_bits_truncate(fcntl(channel.as_fd(), FcntlArg::F_GETFL)?);
        fcntl(
            channel.as_fd(),
            FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK),
        )?;
        let slots = WINDOW + CREDIT_RECEIVES;
        let depth = u32::try_from(2 * slots)?;
        let sends = CompletionQueue::new(&device, depth, None)?;
        let receives = CompletionQueue::new(&device, depth, Some((&channel, 0)))?;
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_inline_data: u32::try_from(INLINE)?,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            recv_cq: &receives,
            ..QpInitAttr::rc(&sends, cap)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let memory = || MemoryRegion::new(&pd, slots * size, AccessFlags::LOCAL_WRITE);
        let this = Self {
            qp,
            sends,
            receives,
            incoming: memory()?,
            outgoing: memory()?,
            channel,
            size,
            copy: vec![0; size],
            came: Vec::with_capacity(slots),
            credits: WINDOW,
            owed: 0,
            sent: 0,
            in_flight: 0,
            _id: id,
        };
        for slot in 0..slots {
            this.post(slot)?;
        }
        this.receives.req_notify(false)?;
        Ok(this)
    }

    /// Posts the receive of a slot.
    fn post(&self, slot: usize) -> Result<()> {
        let place = slot * self.size..(slot + 1) * self.size;
        let receive = RecvWr::new(slot as u64, Sge::new(&self.incoming, place));
        Ok(self.qp.post_recv(&[receive])?)
    }

    /// Waits until the peer can receive a message, and then sends the message.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<()> {
        while self.credits == 0 {
            ensure!(!self.take_credits()?, "a message came instead of a credit");
        }
        self.credits -= 1;
        self.post_send(message)
    }

    /// Sends a message, or a credit message if `message` is empty.
    fn post_send(&mut self, message: &[u8]) -> Result<()> {
        let slots = WINDOW + CREDIT_RECEIVES;
        while self.in_flight >= slots - SIGNALED {
            let mut done = [WorkCompletion::default()];
            if self.sends.poll(&mut done)? == 1 {
                done[0].result()?;
                self.in_flight -= SIGNALED;
            }
        }
        let start = (self.sent % slots) * self.size;
        let send = if message.len() <= INLINE {
            SendWr::send(0, Inline(message))
        } else {
            self.outgoing.copy_in(start, message);
            SendWr::send(0, Sge::new(&self.outgoing, start..start + message.len()))
        };
        self.sent += 1;
        self.in_flight += 1;
        let send = match self.sent.is_multiple_of(SIGNALED) {
            true => send.signaled(),
            false => send,
        };
        Ok(self.qp.post_send(&[send])?)
    }

    /// Waits for the next completion of a receive.
    fn wait(&mut self) -> Result<WorkCompletion> {
        loop {
            if let Some(next) = self.came.pop() {
                next.result()?;
                return Ok(next);
            }
            let mut some = [WorkCompletion::default(); CREDITS];
            let count = self.receives.poll(&mut some)?;
            self.came.extend(some[..count].iter().rev());
            // A completion that arrives after `req_notify` can be polled before its event is read.
            // A later `get_event` then returns this event, although there may be no new completion.
            // So the loop polls after each event.
            if count == 0 {
                self.channel.get_event()?;
                self.receives.req_notify(false)?;
            }
        }
    }

    /// Waits for the completion of a receive. After a credit message, adds the credits, reposts the
    /// receive, and returns false. After any other message, puts the completion back into `came`,
    /// and returns true.
    fn take_credits(&mut self) -> Result<bool> {
        let next = self.wait()?;
        if next.byte_len() > 0 {
            self.came.push(next);
            return Ok(true);
        }
        self.credits += CREDITS;
        self.post(usize::try_from(next.wr_id())?)?;
        Ok(false)
    }

    /// Waits for a message, and returns its slot and its length.
    fn take(&mut self) -> Result<(usize, usize)> {
        while !self.take_credits()? {}
        let next = self.came.pop().context("no message")?;
        Ok((usize::try_from(next.wr_id())?, next.byte_len() as usize))
    }

    /// Reposts the receive of a message. After every [`CREDITS`] messages, sends their credits to
    /// the peer.
    fn release(&mut self, slot: usize) -> Result<()> {
        self.post(slot)?;
        self.owed += 1;
        if self.owed == CREDITS {
            self.owed = 0;
            self.post_send(&[])?;
        }
        Ok(())
    }

    /// Receives a message, and returns its length.
    pub(crate) fn receive(&mut self) -> Result<usize> {
        let (slot, len) = self.take()?;
        self.release(slot)?;
        Ok(len)
    }

    /// Receives a message and sends it back.
    pub(crate) fn send_back(&mut self) -> Result<()> {
        let (slot, len) = self.take()?;
        let mut copy = std::mem::take(&mut self.copy);
        self.incoming.copy_out(slot * self.size, &mut copy[..len]);
        self.send(&copy[..len])?;
        self.copy = copy;
        self.release(slot)
    }
}
