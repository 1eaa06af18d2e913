use std::fmt;

use rdma_status::{WcStatus, open_enum};

use crate::verbs::bit_flags::bit_flags;

/// The completion of a work request.
///
/// [`Default`] creates an empty completion, for an array that
/// [`CompletionQueue::poll`](crate::verbs::CompletionQueue::poll) fills in.
///
/// If the work request failed, only [`wr_id`](Self::wr_id), [`status`](Self::status),
/// [`vendor_err`](Self::vendor_err) and [`qp_num`](Self::qp_num) are defined.
/// [`result`](Self::result) returns the other fields only if the work request succeeded.
///
/// See [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html).
// This type has the layout of `struct ibv_wc`, because libibverbs writes into it. The module
// `layout` below checks this.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Immediate data in network byte order, or the invalidated key in host byte order.
    pub(super) imm_data_or_rkey: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// The content of a successful completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Success {
    /// The id with which the work request was posted.
    pub wr_id: u64,
    /// The kind of operation that completed.
    pub opcode: WcOpcode,
    /// The number of received bytes. Undefined for sends and WRITEs.
    ///
    /// For a datagram, the number includes the first 40 bytes of the buffer, which are reserved for
    /// the global routing header.
    pub byte_len: u32,
    /// The received immediate data, in host byte order, or `None` if the message carried none.
    pub imm_data: Option<u32>,
    /// The key that the peer's message invalidated, or `None` if the message invalidated no key.
    pub invalidated_rkey: Option<u32>,
    /// The number of the local queue pair.
    pub qp_num: u32,
    /// The number of the queue pair that sent the datagram. Undefined for other messages.
    pub src_qp: u32,
    /// Whether the first 40 bytes of the datagram's buffer contain a global routing header.
    pub grh: bool,
}

/// The error of a failed work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WcError {
    /// The id with which the work request was posted.
    pub wr_id: u64,
    /// The reason for the failure.
    pub status: WcStatus,
    /// The vendor-specific error code.
    pub vendor_err: u32,
    /// The number of the local queue pair.
    pub qp_num: u32,
}

open_enum! {
    /// The operation of a completed work request: `enum ibv_wc_opcode`.
    #[doc(alias = "ibv_wc_opcode")]
    pub struct WcOpcode(u32);
    /// A send, with or without immediate data or a key to invalidate.
    SEND = 0;
    /// An RDMA WRITE, with or without immediate data.
    RDMA_WRITE = 1;
    /// An RDMA READ.
    RDMA_READ = 2;
    /// An atomic compare and swap.
    COMP_SWAP = 3;
    /// An atomic fetch and add.
    FETCH_ADD = 4;
    /// A request that bound a memory window.
    BIND_MW = 5;
    /// A request that invalidated a key of the local device.
    LOCAL_INV = 6;
    /// A send that the device split into TCP segments (TCP segmentation offload).
    TSO = 7;
    /// A receive that a peer's send consumed.
    RECV = 128;
    /// A receive that a peer's RDMA WRITE with immediate data consumed.
    RECV_RDMA_WITH_IMM = 129;
}

impl WcOpcode {
    /// Returns whether the completion belongs to the receive queue.
    #[must_use]
    #[inline]
    pub const fn is_recv(self) -> bool {
        self.raw() & Self::RECV.raw() != 0
    }
}

bit_flags! {
    /// Properties of a work completion: `enum ibv_wc_flags`.
    #[doc(alias = "ibv_wc_flags")]
    pub struct WcFlags;
    /// The first 40 bytes of the datagram's buffer contain a global routing header.
    GRH = 1 << 0;
    /// The message carried immediate data.
    WITH_IMM = 1 << 1;
    /// The device checked the IP checksum, and it is correct.
    IP_CSUM_OK = 1 << 2;
    /// The message invalidated a key.
    WITH_INV = 1 << 3;
}

impl WorkCompletion {
    /// Returns the id with which the work request was posted.
    #[must_use]
    #[inline]
    pub const fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Returns the status of the work request: success, or the reason for the failure.
    #[must_use]
    #[inline]
    pub const fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.status)
    }

    /// Returns whether the work request succeeded.
    #[must_use]
    #[inline]
    pub const fn is_success(&self) -> bool {
        self.status == WcStatus::SUCCESS.raw()
    }

    /// Returns the vendor-specific error code.
    #[must_use]
    #[inline]
    pub const fn vendor_err(&self) -> u32 {
        self.vendor_err
    }

    /// Returns the local queue pair's number.
    #[must_use]
    #[inline]
    pub const fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns the kind of operation that completed. The result is undefined if the work request
    /// failed.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.opcode)
    }

    /// Returns the number of received bytes. The result is undefined for sends and WRITEs, and if
    /// the work request failed.
    #[must_use]
    #[inline]
    pub const fn byte_len(&self) -> u32 {
        self.byte_len
    }

    /// Returns the properties of the completion. The result is undefined if the work request
    /// failed.
    #[must_use]
    #[inline]
    pub const fn wc_flags(&self) -> WcFlags {
        WcFlags::from_bits(self.wc_flags)
    }

    /// Returns the received immediate data, in host byte order. Returns `None` if the message
    /// carried no immediate data, or if the work request failed.
    #[must_use]
    #[inline]
    pub const fn imm_data(&self) -> Option<u32> {
        if self.has(WcFlags::WITH_IMM) {
            Some(u32::from_be(self.imm_data_or_rkey))
        } else {
            None
        }
    }

    /// Returns the key that the peer's message invalidated. Returns `None` if the message
    /// invalidated no key, or if the work request failed.
    #[must_use]
    #[inline]
    pub const fn invalidated_rkey(&self) -> Option<u32> {
        if self.has(WcFlags::WITH_INV) {
            Some(self.imm_data_or_rkey)
        } else {
            None
        }
    }

    /// Returns the number of the queue pair that sent the datagram. The number is undefined for
    /// other messages, and if the work request failed.
    #[must_use]
    #[inline]
    pub const fn src_qp(&self) -> u32 {
        self.src_qp
    }

    /// Returns the content of the completion if the work request succeeded.
    ///
    /// # Errors
    ///
    /// Returns the error of the completion if the work request failed.
    #[inline]
    pub fn result(&self) -> Result<Success, WcError> {
        let &Self {
            wr_id,
            vendor_err,
            byte_len,
            qp_num,
            src_qp,
            ..
        } = self;
        if self.is_success() {
            Ok(Success {
                wr_id,
                opcode: self.opcode(),
                byte_len,
                imm_data: self.imm_data(),
                invalidated_rkey: self.invalidated_rkey(),
                qp_num,
                src_qp,
                grh: self.has(WcFlags::GRH),
            })
        } else {
            Err(WcError {
                wr_id,
                status: self.status(),
                vendor_err,
                qp_num,
            })
        }
    }

    #[inline]
    const fn has(&self, flag: WcFlags) -> bool {
        self.is_success() && self.wc_flags().contains(flag)
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result() {
            Ok(success) => success.fmt(f),
            Err(error) => fmt::Debug::fmt(&error, f),
        }
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wr_id,
            status,
            vendor_err,
            qp_num,
        } = self;
        write!(
            f,
            "work request {wr_id:#x} on queue pair {qp_num:#x} failed: {status} \
             (vendor error {vendor_err:#x})"
        )
    }
}

impl std::error::Error for WcError {}

/// Checks at compile time that `WorkCompletion` has the layout of `ibv_wc`, because `ibv_poll_cq`
/// writes an `ibv_wc` into a `WorkCompletion`.
mod layout {
    use std::mem::offset_of;

    use super::WorkCompletion as Ours;
    use crate::sys::ffi::ibv_wc as Theirs;

    const _: () = {
        assert!(size_of::<Ours>() == size_of::<Theirs>());
        assert!(align_of::<Ours>() == align_of::<Theirs>());
        assert!(offset_of!(Ours, wr_id) == offset_of!(Theirs, wr_id));
        assert!(offset_of!(Ours, status) == offset_of!(Theirs, status));
        assert!(offset_of!(Ours, opcode) == offset_of!(Theirs, opcode));
        assert!(offset_of!(Ours, vendor_err) == offset_of!(Theirs, vendor_err));
        assert!(offset_of!(Ours, byte_len) == offset_of!(Theirs, byte_len));
        assert!(
            offset_of!(Ours, imm_data_or_rkey)
                == offset_of!(Theirs, imm_data_invalidated_rkey_union)
        );
        assert!(offset_of!(Ours, qp_num) == offset_of!(Theirs, qp_num));
        assert!(offset_of!(Ours, src_qp) == offset_of!(Theirs, src_qp));
        assert!(offset_of!(Ours, wc_flags) == offset_of!(Theirs, wc_flags));
        assert!(offset_of!(Ours, pkey_index) == offset_of!(Theirs, pkey_index));
        assert!(offset_of!(Ours, slid) == offset_of!(Theirs, slid));
        assert!(offset_of!(Ours, sl) == offset_of!(Theirs, sl));
        assert!(offset_of!(Ours, dlid_path_bits) == offset_of!(Theirs, dlid_path_bits));
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi;

    fn received(wc_flags: WcFlags) -> WorkCompletion {
        WorkCompletion {
            wr_id: 9,
            opcode: WcOpcode::RECV.raw(),
            byte_len: 5,
            imm_data_or_rkey: 0x0102_0304_u32.to_be(),
            qp_num: 0x11,
            wc_flags: wc_flags.bits(),
            ..Default::default()
        }
    }

    #[test]
    fn immediate_data_is_in_host_order() {
        assert_eq!(received(WcFlags::WITH_IMM).imm_data(), Some(0x0102_0304));
        assert_eq!(received(WcFlags::empty()).imm_data(), None);
        assert_eq!(received(WcFlags::WITH_INV).imm_data(), None);
        assert_eq!(
            received(WcFlags::WITH_INV).invalidated_rkey(),
            Some(0x0102_0304_u32.to_be())
        );
    }

    #[test]
    fn success_has_everything() {
        let success = received(WcFlags::WITH_IMM | WcFlags::GRH).result().unwrap();
        assert_eq!(
            (success.wr_id, success.opcode, success.byte_len),
            (9, WcOpcode::RECV, 5)
        );
        assert_eq!(
            (success.imm_data, success.invalidated_rkey, success.grh),
            (Some(0x0102_0304), None, true)
        );
    }

    #[test]
    fn failure_has_only_the_defined_fields() {
        let mut wc = received(WcFlags::WITH_IMM);
        wc.status = WcStatus::RETRY_EXC_ERR.raw();
        wc.vendor_err = 0x81;
        assert_eq!(wc.imm_data(), None);
        let error = wc.result().unwrap_err();
        assert_eq!(
            (error.wr_id, error.status, error.vendor_err),
            (9, WcStatus::RETRY_EXC_ERR, 0x81)
        );
        assert_eq!(
            error.to_string(),
            "work request 0x9 on queue pair 0x11 failed: RETRY_EXC_ERR (vendor error 0x81)"
        );
    }

    #[test]
    fn unknown_status_keeps_its_number() {
        let wc = WorkCompletion {
            status: 4711,
            opcode: 4712,
            ..Default::default()
        };
        assert_eq!(wc.status().to_string(), "unknown (4711)");
        assert_eq!(wc.opcode().to_string(), "unknown (4712)");
        assert!(wc.result().is_err());
    }

    #[test]
    fn numbers_match_the_headers() {
        use ffi::ibv_wc_opcode as c;
        for (ours, theirs) in [
            (WcOpcode::SEND, c::IBV_WC_SEND),
            (WcOpcode::RDMA_WRITE, c::IBV_WC_RDMA_WRITE),
            (WcOpcode::RDMA_READ, c::IBV_WC_RDMA_READ),
            (WcOpcode::COMP_SWAP, c::IBV_WC_COMP_SWAP),
            (WcOpcode::FETCH_ADD, c::IBV_WC_FETCH_ADD),
            (WcOpcode::BIND_MW, c::IBV_WC_BIND_MW),
            (WcOpcode::LOCAL_INV, c::IBV_WC_LOCAL_INV),
            (WcOpcode::TSO, c::IBV_WC_TSO),
            (WcOpcode::RECV, c::IBV_WC_RECV),
            (WcOpcode::RECV_RDMA_WITH_IMM, c::IBV_WC_RECV_RDMA_WITH_IMM),
        ] {
            assert_eq!(ours.raw(), theirs, "{ours}");
        }
        use ffi::ibv_wc_flags as f;
        assert_eq!(WcFlags::GRH.bits(), f::IBV_WC_GRH.0);
        assert_eq!(WcFlags::WITH_IMM.bits(), f::IBV_WC_WITH_IMM.0);
        assert_eq!(WcFlags::IP_CSUM_OK.bits(), f::IBV_WC_IP_CSUM_OK.0);
        assert_eq!(WcFlags::WITH_INV.bits(), f::IBV_WC_WITH_INV.0);
        assert!(WcOpcode::RECV_RDMA_WITH_IMM.is_recv() && !WcOpcode::FETCH_ADD.is_recv());
    }
}
