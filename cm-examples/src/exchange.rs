//! The exchange of `rdma_client` and `rdma_server`: one message of 16 bytes each way.

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

/// The time limit for the peer's message, and for the completion of this side's.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A completion queue, with the channel of its events.
#[derive(Debug)]
struct Done {
    cq: CompletionQueue,
    channel: CompletionChannel,
}

impl Done {
    /// Waits for the next completion.
    fn wait(&self, what: &str) -> Result<WorkCompletion> {
        loop {
            // To miss no completion: first request an event, then poll, then sleep.
            self.cq.req_notify(false)?;
            let mut completions = [WorkCompletion::default()];
            if self.cq.poll(&mut completions)? == 1 {
                completions[0]
                    .result()
                    .map_err(|error| format!("{what}: {error}"))?;
                return Ok(completions[0]);
            }
            if self.channel.wait_event(TIME_LIMIT)?.is_none() {
                return Err(format!("{what}: nothing within {TIME_LIMIT:?}").into());
            }
        }
    }
}

/// One end: a queue pair with room for one message each way.
#[derive(Debug)]
pub struct Exchange {
    qp: QueuePair,
    sends: Done,
    receives: Done,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
}

impl Exchange {
    /// Creates the objects that an id needs before it connects or accepts.
    ///
    /// # Errors
    ///
    /// Errors of the verbs that make it.
    pub fn new(id: &mut CmId) -> Result<Self> {
        let device = id.verbs().ok_or("the device is gone")?;
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
    /// Errors of `ibv_post_recv`.
    pub fn post_receive(&mut self) -> Result<()> {
        let receive = RecvWr::new(0, Sge::new(&self.incoming, ..));
        Ok(self.qp.post_recv(&[receive])?)
    }

    /// Sends this side's message, inline if the device supports that.
    ///
    /// # Errors
    ///
    /// Errors of `ibv_post_send`.
    pub fn send(&mut self) -> Result<()> {
        let send = if self.qp.cap().max_inline_data as usize >= LEN {
            SendWr::send(0, Inline(&[0; LEN]))
        } else {
            SendWr::send(0, Sge::new(&self.outgoing, ..))
        };
        Ok(self.qp.post_send(&[send])?)
    }

    /// Waits until the peer's device has this side's message.
    ///
    /// # Errors
    ///
    /// If the send failed, or did not complete in time.
    pub fn wait_sent(&mut self) -> Result<()> {
        self.sends.wait("the message that was sent").map(drop)
    }

    /// Waits for the peer's message.
    ///
    /// # Errors
    ///
    /// If no message arrives, or one of another length.
    pub fn wait_received(&mut self) -> Result<()> {
        let came = self.receives.wait("the message that is to come")?;
        match came.byte_len() {
            len if len as usize == LEN => Ok(()),
            len => Err(format!("a message of {len} bytes, where {LEN} are expected").into()),
        }
    }
}
