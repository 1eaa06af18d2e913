//! The exchange between `rdma_client` and `rdma_server`: one message of 16 bytes in each direction.

use std::time::Duration;

use rdmsg::{
    cm::CmId,
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Inline, MemoryRegion, ProtectionDomain,
        QpCap, QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
    },
};

use crate::Result;

/// The length of each message in bytes.
const LEN: usize = 16;

/// The time limit for the peer's message, and for the completion of the send.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A completion queue and its completion channel.
#[derive(Debug)]
struct Done {
    cq: CompletionQueue,
    channel: CompletionChannel,
}

impl Done {
    /// Waits for the next completion. `what` describes the request in errors.
    fn wait(&self, what: &str) -> Result<WorkCompletion> {
        loop {
            // Poll between `req_notify` and the wait, because completions before `req_notify` cause
            // no event.
            self.cq.req_notify(false)?;
            let mut completions = [WorkCompletion::default()];
            if self.cq.poll(&mut completions)? == 1 {
                completions[0]
                    .result()
                    .map_err(|error| format!("{what}: {error}"))?;
                return Ok(completions[0]);
            }
            if self.channel.wait_event(TIME_LIMIT)?.is_none() {
                return Err(format!("{what}: not completed within {TIME_LIMIT:?}").into());
            }
        }
    }
}

/// One side of the exchange: a queue pair, with memory for one message in each direction.
#[derive(Debug)]
pub struct Exchange {
    qp: QueuePair,
    sends: Done,
    receives: Done,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
}

impl Exchange {
    /// Creates the objects that the id needs before it connects or accepts.
    ///
    /// # Errors
    ///
    /// Fails if an object cannot be created.
    pub fn new(id: &mut CmId) -> Result<Self> {
        let device = id.verbs().ok_or("the device was removed")?;
        let pd = ProtectionDomain::new(&device)?;
        let done = || -> Result<Done> {
            let channel = CompletionChannel::new(&device)?;
            let cq = CompletionQueue::new(&device, 1, Some((&channel, 0)))?;
            Ok(Done { cq, channel })
        };
        let (sends, receives) = (done()?, done()?);
        let cap = QpCap {
            max_inline_data: LEN as u32,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            recv_cq: &receives.cq,
            sq_sig_all: true,
            ..QpInitAttr::rc(&sends.cq, cap)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let memory = || MemoryRegion::new(&pd, LEN, AccessFlags::LOCAL_WRITE);
        let (outgoing, incoming) = (memory()?, memory()?);
        Ok(Self {
            qp,
            sends,
            receives,
            outgoing,
            incoming,
        })
    }

    /// Posts the receive for the peer's message.
    ///
    /// # Errors
    ///
    /// Fails if `ibv_post_recv` fails.
    pub fn post_receive(&mut self) -> Result<()> {
        let receive = RecvWr::new(0, Sge::new(&self.incoming, ..));
        Ok(self.qp.post_recv(&[receive])?)
    }

    /// Sends this side's message, inline if the queue pair supports inline data of this length.
    ///
    /// # Errors
    ///
    /// Fails if `ibv_post_send` fails.
    pub fn send(&mut self) -> Result<()> {
        let send = if self.qp.cap().max_inline_data as usize >= LEN {
            SendWr::send(0, Inline(&[0; LEN]))
        } else {
            SendWr::send(0, Sge::new(&self.outgoing, ..))
        };
        Ok(self.qp.post_send(&[send])?)
    }

    /// Waits until the peer's device has acknowledged this side's message.
    ///
    /// # Errors
    ///
    /// Fails if the send failed or did not complete within 30 s.
    pub fn wait_sent(&mut self) -> Result<()> {
        self.sends.wait("the send").map(drop)
    }

    /// Waits for the peer's message.
    ///
    /// # Errors
    ///
    /// Fails if no message arrives within 30 s, or if its length is not 16 bytes.
    pub fn wait_received(&mut self) -> Result<()> {
        let completion = self.receives.wait("the receive")?;
        match completion.byte_len() {
            len if len as usize == LEN => Ok(()),
            len => Err(format!("received a message of {len} bytes, not {LEN}").into()),
        }
    }
}
