//! One side of a connection that sends and receives a number of messages. The program ignores the
//! content of the messages, so all of them use the same memory.

use rdmsg::{
    cm::CmId,
    verbs::{
        AccessFlags, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap, QpInitAttr, QueuePair,
        RecvWr, SendWr, Sge, WorkCompletion,
    },
};

use crate::Result;

/// One side of a connection: its queue pair, completion queues and memory.
#[derive(Debug)]
pub struct Transfer {
    /// The connection manager id.
    pub id: CmId,
    qp: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    memory: MemoryRegion,
    size: u32,
    /// The number of sends that have not completed yet.
    pub unsent: u32,
    /// The number of messages that have not arrived yet.
    pub missing: u32,
}

impl Transfer {
    /// Creates the objects that the id needs before it connects or accepts, and posts a receive for
    /// each message.
    ///
    /// # Errors
    ///
    /// Fails if an object cannot be created.
    pub fn new(mut id: CmId, count: u32, size: u32) -> Result<Self> {
        let device = id.verbs().ok_or("the device was removed")?;
        let pd = ProtectionDomain::new(&device)?;
        let queue = || CompletionQueue::new(&device, count.max(1), None);
        let (sends, receives) = (queue()?, queue()?);
        let cap = QpCap {
            max_send_wr: count.max(1),
            max_recv_wr: count.max(1),
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            recv_cq: &receives,
            sq_sig_all: true,
            ..QpInitAttr::rc(&sends, cap)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let memory = MemoryRegion::new(&pd, size.max(1) as usize, AccessFlags::LOCAL_WRITE)?;
        for number in 0..count {
            qp.post_recv(&[RecvWr::new(number.into(), Sge::new(&memory, ..))])?;
        }
        Ok(Self {
            id,
            qp,
            sends,
            receives,
            memory,
            size,
            unsent: count,
            missing: count,
        })
    }

    /// Sends all messages without waiting for their completions.
    ///
    /// # Errors
    ///
    /// Fails if `ibv_post_send` fails.
    pub fn send(&self) -> Result<()> {
        for number in 0..self.unsent {
            let message = Sge::new(&self.memory, ..);
            self.qp.post_send(&[SendWr::send(number.into(), message)])?;
        }
        Ok(())
    }

    /// Polls the completions of sends and receives. Returns true if there was a completion.
    ///
    /// # Errors
    ///
    /// Fails if a send or receive failed, or if a message has an unexpected length.
    pub fn progress(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); 16];
        let sent = self.sends.poll(&mut completions)?;
        for completion in &completions[..sent] {
            completion.result()?;
        }
        let received = self.receives.poll(&mut completions)?;
        for completion in &completions[..received] {
            let len = completion.result()?.byte_len;
            if len != self.size {
                return Err(format!("received a message of {len} bytes, not {}", self.size).into());
            }
        }
        self.unsent -= sent as u32;
        self.missing -= received as u32;
        Ok(sent + received > 0)
    }
}
