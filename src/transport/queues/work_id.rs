/// What a work request was for, told by its completion. In a failed one the opcode is not valid
/// (`ibv_poll_cq(3)`), so the id tells what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkId {
    /// The receive of this buffer.
    Recv(u32),
    /// The send of this slot.
    Send(u32),
    /// The marker behind the last receive.
    DrainRecv,
    /// The marker behind the last send.
    DrainSend,
}

impl WorkId {
    pub(crate) const fn encode(self) -> u64 {
        match self {
            Self::Recv(buffer) => buffer as u64,
            Self::Send(slot) => 1 << 32 | slot as u64,
            Self::DrainRecv => 2 << 32,
            Self::DrainSend => 3 << 32,
        }
    }

    /// The inverse of `encode`. An id that this file never gave out cannot come back from the
    /// device.
    pub(crate) const fn decode(wr_id: u64) -> Self {
        let index = wr_id as u32;
        match wr_id >> 32 {
            0 => Self::Recv(index),
            1 => Self::Send(index),
            2 => Self::DrainRecv,
            _ => Self::DrainSend,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ids_come_back_as_they_went() {
        for id in [
            WorkId::Recv(0),
            WorkId::Recv(u32::MAX),
            WorkId::Send(7),
            WorkId::DrainRecv,
            WorkId::DrainSend,
        ] {
            assert_eq!(WorkId::decode(id.encode()), id);
        }
    }
}
