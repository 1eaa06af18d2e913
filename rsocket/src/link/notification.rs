//! Notifies the peer of writes to its memory.

use std::io;

use rdma_verbs::verbs::{
    AccessFlags, Context, Inline, MemoryRegion, Payload, ProtectionDomain, QueuePair, RecvWr,
    RemoteAddr, SendWr, Sge, TransportType, WorkCompletion,
};

/// The bit that is set in the ids of receive work requests.
pub(super) const RECEIVE: u64 = 1 << 63;
/// The id of a write after which a separate message notifies the peer.
pub(super) const WRITE_ID: u64 = 1 << 61;

/// The method by which a side notifies its peer of a write.
#[derive(Debug)]
pub(super) enum Notification {
    /// The write carries immediate data.
    Immediate,
    /// A separate message follows the write. The message contains the 32 bits that the immediate
    /// data would contain, in the sender's byte order. Rsockets in C send the same messages on
    /// iWARP, which has no immediate data. The peer's messages arrive in this memory region.
    Message(MemoryRegion),
}

impl Notification {
    const LEN: usize = size_of::<u32>();
    /// The number of inline bytes that the work request of a notification needs.
    pub(super) const INLINE: u32 = Self::LEN as u32;

    /// Chooses the type of notification that the device supports. `receives` is the number of
    /// receives that will be posted.
    pub(super) fn new(device: &Context, pd: &ProtectionDomain, receives: u32) -> io::Result<Self> {
        if device.transport_type() != TransportType::IWARP {
            return Ok(Self::Immediate);
        }
        let len = receives as usize * Self::LEN;
        let memory = MemoryRegion::new(pd, len, AccessFlags::LOCAL_WRITE)?;
        Ok(Self::Message(memory))
    }

    /// Returns the number of work requests for one write and its notification.
    pub(super) fn requests(device: &Context) -> u32 {
        if device.transport_type() == TransportType::IWARP {
            2
        } else {
            1
        }
    }

    /// Returns the connection parameter `initiator_depth`: the maximum number of this side's
    /// outstanding READs. This protocol uses no READs, but iWARP requires a value of at least 1.
    pub(super) fn initiator_depth(&self) -> u8 {
        match self {
            Self::Immediate => 0,
            Self::Message(_) => 1,
        }
    }

    /// Returns whether the accepting side must wait for the connecting side's first message.
    pub(super) fn active_speaks_first(&self) -> bool {
        matches!(self, Self::Message(_))
    }

    pub(super) fn post_receive(&self, qp: &QueuePair, number: u32) -> io::Result<()> {
        let wr_id = RECEIVE | u64::from(number);
        let wr = match self {
            Self::Immediate => RecvWr::new(wr_id, &[]),
            Self::Message(memory) => {
                let at = number as usize * Self::LEN;
                RecvWr::new(wr_id, Sge::new(memory, at..at + Self::LEN))
            }
        };
        Ok(qp.post_recv(&[wr])?)
    }

    /// Posts `write` if it is `Some`, and notifies the peer with `word`. Returns the number of
    /// posted work requests. The work request that notifies the peer has the id `wr_id`.
    pub(super) fn post(
        &self,
        qp: &QueuePair,
        wr_id: u64,
        write: Option<(Payload<'_>, RemoteAddr)>,
        word: u32,
    ) -> io::Result<u32> {
        let bytes = word.to_ne_bytes();
        match (self, write) {
            (Self::Immediate, write) => {
                let nothing = ((&[]).into(), RemoteAddr { addr: 0, rkey: 0 });
                let (payload, remote) = write.unwrap_or(nothing);
                qp.post_send(&[SendWr::write_with_imm(wr_id, payload, remote, word)])?;
                Ok(1)
            }
            (Self::Message(_), None) => {
                qp.post_send(&[SendWr::send(wr_id, Inline(&bytes))])?;
                Ok(1)
            }
            (Self::Message(_), Some((payload, remote))) => {
                qp.post_send(&[
                    SendWr::write(WRITE_ID, payload, remote),
                    SendWr::send(wr_id, Inline(&bytes)),
                ])?;
                Ok(2)
            }
        }
    }

    /// Returns the word of the notification that completed the receive `number`. `completion` is
    /// the completion of this receive. Returns `None` if the peer sent no immediate data, or if the
    /// peer's message does not consist of one word.
    pub(super) fn received_word(&self, completion: &WorkCompletion, number: u32) -> Option<u32> {
        match self {
            Self::Immediate => completion.imm_data(),
            Self::Message(memory) => {
                let mut bytes = [0; Self::LEN];
                memory.copy_out(number as usize * Self::LEN, &mut bytes);
                let success = completion.result().ok()?;
                (success.byte_len as usize == Self::LEN).then_some(u32::from_ne_bytes(bytes))
            }
        }
    }
}
