#![allow(unsafe_code)]

use std::{collections::HashMap, mem::MaybeUninit};

use super::{
    QpCap, QpType,
    recv_queue::{check_targets, num_sge},
};
use crate::{
    sys::ffi,
    verbs::{
        device::Context,
        work_request::{
            AddressHandle, Bytes, Chain, HeldRegions, PostError, RemoteAddr, SendOp, SendWr,
            UdTarget,
        },
    },
};

/// A send queue to which safe code posts requests.
///
/// This type posts only requests that the queue pair supports, and keeps their memory alive until
/// the queue pair is destroyed.
pub(super) struct SendQueue {
    qp_type: QpType,
    cap: QpCap,
    chain: Chain<ffi::ibv_send_wr>,
    regions: HeldRegions,
    handles: HashMap<usize, AddressHandle>,
}

impl SendQueue {
    pub(super) fn new(qp_type: QpType, cap: QpCap) -> Self {
        Self {
            qp_type,
            cap,
            chain: Chain::default(),
            regions: HeldRegions::default(),
            handles: HashMap::new(),
        }
    }

    /// Posts requests to a queue pair of the device `context`. `post` calls the C functions.
    pub(super) fn post(
        &mut self,
        requests: &[SendWr<'_>],
        context: &Context,
        post: impl FnOnce(*mut ffi::ibv_send_wr, *mut *mut ffi::ibv_send_wr) -> libc::c_int,
    ) -> Result<(), PostError> {
        let Self {
            qp_type,
            cap,
            chain,
            regions,
            handles,
        } = self;
        let translate = |request: &SendWr<'_>, list: &mut Vec<ffi::ibv_sge>| {
            let mut wr = translate(request, *qp_type, cap)?;
            if let Some(UdTarget {
                handle,
                qp_num,
                qkey,
            }) = request.ud
            {
                // Drivers assume that the handle belongs to the device of the queue pair, and do
                // not check this.
                if !handle.pd().context().is_same_device(context) {
                    return Err(libc::EINVAL);
                }
                handles.entry(handle.id()).or_insert_with(|| handle.clone());
                wr.wr.ud = ffi::ud_t {
                    ah: handle.as_ptr(),
                    remote_qpn: qp_num,
                    remote_qkey: qkey,
                };
            }
            match request.payload.0 {
                Bytes::Registered(sges) => {
                    regions.hold(sges.as_slice());
                    list.extend(sges.as_slice().iter().map(|sge| sge.to_raw()));
                }
                // Empty inline data needs no element.
                Bytes::Inline([]) => {}
                Bytes::Inline(bytes) => {
                    list.push(ffi::ibv_sge {
                        addr: bytes.as_ptr().expose_provenance() as u64,
                        length: bytes.len() as u32,
                        lkey: 0,
                    });
                }
            }
            Ok(wr)
        };
        chain.post("ibv_post_send", requests, translate, post)
    }
}

/// Converts a request to the C structure. Does not set the pointers or the datagram's destination.
///
/// Returns `EINVAL` if a queue pair with the given type and capacity does not support the request,
/// because not every driver checks the request.
fn translate(
    request: &SendWr<'_>,
    qp_type: QpType,
    cap: &QpCap,
) -> Result<ffi::ibv_send_wr, libc::c_int> {
    let num_sge = match request.payload.0 {
        Bytes::Registered(sges) => num_sge(sges.as_slice().len(), cap.max_send_sge)?,
        Bytes::Inline([]) => 0,
        Bytes::Inline(bytes) if bytes.len() <= cap.max_inline_data as usize => {
            num_sge(1, cap.max_send_sge)?
        }
        Bytes::Inline(_) => return Err(libc::EINVAL),
    };
    let has_target = request.ud.is_some();
    if !request.op.is_possible(qp_type) || has_target != (qp_type == QpType::UD) {
        return Err(libc::EINVAL);
    }
    if request.op.is_atomic()
        && let Bytes::Registered(sges) = request.payload.0
        && sges.as_slice().iter().any(|sge| sge.length() != 8)
    {
        return Err(libc::EINVAL);
    }
    if request.op.writes_local_memory()
        && let Bytes::Registered(sges) = request.payload.0
    {
        check_targets(sges.as_slice())?;
    }

    // SAFETY: `ibv_send_wr` consists of integers, raw pointers and unions of both, for which all
    // zeros is a valid value.
    let mut wr: ffi::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    wr.wr_id = request.wr_id;
    wr.num_sge = num_sge;
    wr.send_flags = request.flags;
    request.op.encode(&mut wr);
    Ok(wr)
}

impl SendOp {
    /// Returns true if queue pairs of the type `qp_type` support this operation.
    ///
    /// The type of the queue pair determines which members of the C request a driver reads.
    /// Therefore a driver must never receive a request whose operation the type does not support.
    fn is_possible(self, qp_type: QpType) -> bool {
        let plain = matches!(self, Self::Send | Self::SendWithImm(_));
        match qp_type {
            QpType::RC => true,
            QpType::UC => plain || matches!(self, Self::Write(_) | Self::WriteWithImm(..)),
            QpType::UD => plain,
            _ => false,
        }
    }

    /// Returns true if the operation writes to local memory.
    const fn writes_local_memory(self) -> bool {
        matches!(self, Self::Read(_)) || self.is_atomic()
    }

    /// Writes the opcode and the arguments of the operation into a C request.
    #[inline(always)]
    pub(crate) fn encode(self, wr: &mut ffi::ibv_send_wr) {
        wr.opcode = self.opcode();
        let imm_data_or_rkey = &mut wr.imm_data_invalidated_rkey_union;
        match self {
            Self::SendWithImm(imm_data) | Self::WriteWithImm(_, imm_data) => {
                imm_data_or_rkey.imm_data = imm_data.to_be()
            }
            Self::SendWithInv(rkey) => imm_data_or_rkey.invalidated_rkey = rkey,
            Self::Send
            | Self::Write(_)
            | Self::Read(_)
            | Self::FetchAdd { .. }
            | Self::CompareSwap { .. } => {}
        }
        match self {
            Self::Send | Self::SendWithImm(_) | Self::SendWithInv(_) => {}
            Self::Write(remote) | Self::WriteWithImm(remote, _) | Self::Read(remote) => {
                let RemoteAddr { addr, rkey } = remote;
                wr.wr.rdma = ffi::rdma_t {
                    remote_addr: addr,
                    rkey,
                };
            }
            Self::FetchAdd {
                remote: RemoteAddr { addr, rkey },
                add,
            } => {
                wr.wr.atomic = ffi::atomic_t {
                    remote_addr: addr,
                    compare_add: add,
                    swap: 0,
                    rkey,
                };
            }
            Self::CompareSwap {
                remote: RemoteAddr { addr, rkey },
                compare,
                swap,
            } => {
                wr.wr.atomic = ffi::atomic_t {
                    remote_addr: addr,
                    compare_add: compare,
                    swap,
                    rkey,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Inline, MemoryRegion, Sge};

    const CAP: QpCap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 5,
    };
    const REMOTE: RemoteAddr = RemoteAddr {
        addr: 0x1000,
        rkey: 7,
    };

    #[test]
    fn dmabuf_is_sent_and_not_read_into() {
        let region = MemoryRegion::of_no_device();
        let sge = Sge::new(&region, ..8);
        for refused in [
            SendWr::read(1, sge, REMOTE),
            SendWr::fetch_add(2, sge, REMOTE, 1),
            SendWr::compare_swap(3, sge, REMOTE, 1, 2),
        ] {
            let result = translate(&refused, QpType::RC, &CAP);
            assert_eq!(result.err(), Some(libc::EINVAL), "{refused:?}");
        }
        for taken in [SendWr::send(4, sge), SendWr::write(5, sge, REMOTE)] {
            assert!(translate(&taken, QpType::RC, &CAP).is_ok(), "{taken:?}");
        }
    }

    #[test]
    fn each_operation_sets_its_members_of_the_c_request() {
        let wr = translate(
            &SendWr::send_with_imm(1, &[], 0x0102_0304).signaled(),
            QpType::RC,
            &CAP,
        )
        .unwrap();
        assert_eq!(
            (wr.wr_id, wr.num_sge, wr.opcode),
            (1, 0, ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM)
        );
        assert_eq!(wr.send_flags, ffi::ibv_send_flags::IBV_SEND_SIGNALED.0);
        // SAFETY: a send with immediate data uses the member `imm_data`.
        let imm_data = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
        assert_eq!(imm_data.to_ne_bytes(), [1, 2, 3, 4]);

        let wr = translate(
            &SendWr::write(2, Inline(b"hello"), REMOTE),
            QpType::UC,
            &CAP,
        )
        .unwrap();
        assert_eq!(
            (wr.num_sge, wr.send_flags),
            (1, ffi::ibv_send_flags::IBV_SEND_INLINE.0)
        );
        // SAFETY: a WRITE uses the member `rdma`.
        let rdma = unsafe { wr.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (0x1000, 7));

        let wr = translate(&SendWr::send_with_inv(3, &[], 0x99), QpType::RC, &CAP).unwrap();
        // SAFETY: a send with invalidate uses the member `invalidated_rkey`.
        let rkey = unsafe { wr.imm_data_invalidated_rkey_union.invalidated_rkey };
        assert_eq!(rkey, 0x99);
    }

    #[test]
    fn more_inline_bytes_than_granted_are_refused() {
        assert!(translate(&SendWr::send(1, Inline(b"12345")), QpType::RC, &CAP).is_ok());
        assert_eq!(
            translate(&SendWr::send(1, Inline(b"123456")), QpType::RC, &CAP).err(),
            Some(libc::EINVAL)
        );
    }

    #[test]
    fn each_type_takes_its_operations() {
        let all = [
            SendOp::Send,
            SendOp::SendWithImm(1),
            SendOp::SendWithInv(1),
            SendOp::Write(REMOTE),
            SendOp::WriteWithImm(REMOTE, 1),
            SendOp::Read(REMOTE),
            SendOp::FetchAdd {
                remote: REMOTE,
                add: 1,
            },
            SendOp::CompareSwap {
                remote: REMOTE,
                compare: 1,
                swap: 2,
            },
        ];
        let possible = |qp_type| all.map(|op| op.is_possible(qp_type));
        assert_eq!(possible(QpType::RC), [true; 8]);
        assert_eq!(
            possible(QpType::UC),
            [true, true, false, true, true, false, false, false]
        );
        assert_eq!(
            possible(QpType::UD),
            [true, true, false, false, false, false, false, false]
        );
        assert_eq!(possible(QpType::from_raw(99)), [false; 8]);
    }

    #[test]
    fn operations_of_other_types_are_refused() {
        let refused = |wr: &SendWr<'_>, qp_type| translate(wr, qp_type, &CAP).is_err();
        assert!(refused(&SendWr::read(1, &[], REMOTE), QpType::UC));
        // A datagram request without a destination is refused.
        assert!(refused(&SendWr::send(1, &[]), QpType::UD));
        assert!(!refused(&SendWr::send(1, &[]), QpType::RC));
    }
}
