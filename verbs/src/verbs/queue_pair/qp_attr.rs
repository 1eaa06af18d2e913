#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use rdma_status::open_enum;

use super::QpCap;
use crate::{
    sys::ffi,
    verbs::{bit_flags::bit_flags, device::Mtu, memory::AccessFlags, work_request::AhAttr},
};

/// Attributes of a queue pair: the attributes to modify, or the attributes that a query returned.
///
/// The tables in [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
/// define which attributes a transition requires and which it allows. A
/// [`ModifyError`](crate::verbs::ModifyError) names the attributes that violate these rules.
///
/// ```
/// use rdma_verbs::verbs::{AccessFlags, QpAttr, QpState};
///
/// let init = QpAttr {
///     qp_state: Some(QpState::INIT),
///     pkey_index: Some(0),
///     port_num: Some(1),
///     qp_access_flags: Some(AccessFlags::empty()),
///     ..QpAttr::default()
/// };
/// assert_eq!(init.mask().to_string(), "STATE | ACCESS_FLAGS | PKEY_INDEX | PORT");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "programs fill in every field, as in C"
)]
#[doc(alias = "ibv_qp_attr")]
pub struct QpAttr {
    /// The new state of the queue pair, or its current state if a query returned this structure.
    pub qp_state: Option<QpState>,
    /// The state in which the caller expects the queue pair to be.
    pub cur_qp_state: Option<QpState>,
    /// Whether an asynchronous event is raised when the send queue has been drained.
    pub en_sqd_async_notify: Option<bool>,
    /// The operations that the peer may execute on this side's memory.
    pub qp_access_flags: Option<AccessFlags>,
    /// The index of the queue pair's partition key in the port's P_Key table.
    pub pkey_index: Option<u16>,
    /// The port, numbered from 1.
    pub port_num: Option<u8>,
    /// The queue key (Q_Key) of a datagram queue pair. Datagrams with a different key are dropped.
    pub qkey: Option<u32>,
    /// The path to the peer.
    pub ah_attr: Option<AhAttr>,
    /// The maximum payload of a packet on the path.
    pub path_mtu: Option<Mtu>,
    /// The time to wait for an acknowledgement before a retry. 0 means no timeout, and a value n
    /// from 1 to 31 means 4.096 µs × 2ⁿ.
    pub timeout: Option<u8>,
    /// The number of retries before a request fails, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// The number of retries when the peer has not posted a receive, 0 to 7. 7 means no limit.
    pub rnr_retry: Option<u8>,
    /// The first packet sequence number that this side expects, 24 bits.
    pub rq_psn: Option<u32>,
    /// The maximum number of this side's outstanding READ and atomic operations.
    pub max_rd_atomic: Option<u8>,
    /// The alternate path to the peer.
    pub alt_path: Option<AltPath>,
    /// If a message arrives while this side has no posted receive, the peer waits for this time
    /// before it sends the message again.
    ///
    /// The value is a 5-bit code: 0 means 655.36 ms, 1 means 10 µs, and higher codes mean longer
    /// times, up to 491.52 ms.
    pub min_rnr_timer: Option<u8>,
    /// The first packet sequence number that this side sends, 24 bits.
    pub sq_psn: Option<u32>,
    /// The maximum number of READ and atomic operations that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// The state of path migration.
    pub path_mig_state: Option<MigState>,
    /// The capacities of the queues.
    pub cap: Option<QpCap>,
    /// The number of the peer's queue pair, 24 bits.
    pub dest_qp_num: Option<u32>,
    /// The maximum packet rate in kbit/s; 0 means no limit.
    pub rate_limit: Option<u32>,
}

/// The alternate path to the peer, to which the queue pair migrates when the primary path fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "programs fill in every field, as in C"
)]
pub struct AltPath {
    /// The path to the peer.
    pub ah_attr: AhAttr,
    /// The index of the queue pair's partition key in the port's P_Key table.
    pub pkey_index: u16,
    /// The port, numbered from 1.
    pub port_num: u8,
    /// The time to wait for an acknowledgement before a retry, as in [`QpAttr::timeout`].
    pub timeout: u8,
}

open_enum! {
    /// The state of path migration: `enum ibv_mig_state`.
    #[doc(alias = "ibv_mig_state")]
    pub struct MigState(u32);
    /// The queue pair has migrated to its alternate path, or uses no alternate path.
    MIGRATED = 0;
    /// The program has loaded an alternate path. The state becomes `ARMED` when the peer has also
    /// loaded an alternate path.
    REARM = 1;
    /// Both sides are ready to migrate.
    ARMED = 2;
}

bit_flags! {
    /// A set of queue pair attributes: `enum ibv_qp_attr_mask`.
    #[doc(alias = "ibv_qp_attr_mask")]
    pub struct QpAttrMask;
    /// [`QpAttr::qp_state`].
    STATE = 1 << 0;
    /// [`QpAttr::cur_qp_state`].
    CUR_STATE = 1 << 1;
    /// [`QpAttr::en_sqd_async_notify`].
    EN_SQD_ASYNC_NOTIFY = 1 << 2;
    /// [`QpAttr::qp_access_flags`].
    ACCESS_FLAGS = 1 << 3;
    /// [`QpAttr::pkey_index`].
    PKEY_INDEX = 1 << 4;
    /// [`QpAttr::port_num`].
    PORT = 1 << 5;
    /// [`QpAttr::qkey`].
    QKEY = 1 << 6;
    /// [`QpAttr::ah_attr`].
    AV = 1 << 7;
    /// [`QpAttr::path_mtu`].
    PATH_MTU = 1 << 8;
    /// [`QpAttr::timeout`].
    TIMEOUT = 1 << 9;
    /// [`QpAttr::retry_cnt`].
    RETRY_CNT = 1 << 10;
    /// [`QpAttr::rnr_retry`].
    RNR_RETRY = 1 << 11;
    /// [`QpAttr::rq_psn`].
    RQ_PSN = 1 << 12;
    /// [`QpAttr::max_rd_atomic`].
    MAX_QP_RD_ATOMIC = 1 << 13;
    /// [`QpAttr::alt_path`].
    ALT_PATH = 1 << 14;
    /// [`QpAttr::min_rnr_timer`].
    MIN_RNR_TIMER = 1 << 15;
    /// [`QpAttr::sq_psn`].
    SQ_PSN = 1 << 16;
    /// [`QpAttr::max_dest_rd_atomic`].
    MAX_DEST_RD_ATOMIC = 1 << 17;
    /// [`QpAttr::path_mig_state`].
    PATH_MIG_STATE = 1 << 18;
    /// [`QpAttr::cap`].
    CAP = 1 << 19;
    /// [`QpAttr::dest_qp_num`].
    DEST_QPN = 1 << 20;
    /// [`QpAttr::rate_limit`].
    RATE_LIMIT = 1 << 25;
}

impl QpAttr {
    /// Returns the set of the attributes that are `Some`.
    #[must_use]
    pub fn mask(&self) -> QpAttrMask {
        self.to_raw().1
    }

    /// Converts the attributes to the C structure. Also returns the mask of the members that are
    /// set.
    pub(super) fn to_raw(self) -> (ffi::ibv_qp_attr, QpAttrMask) {
        let mut raw = zeroed();
        let mut mask = QpAttrMask::empty();
        macro_rules! set {
            ($($field:ident => $flag:ident: |$value:ident| $convert:expr;)*) => {
                $(if let Some($value) = self.$field {
                    raw.$field = $convert;
                    mask |= QpAttrMask::$flag;
                })*
            };
        }
        set! {
            qp_state => STATE: |value| value.raw();
            cur_qp_state => CUR_STATE: |value| value.raw();
            en_sqd_async_notify => EN_SQD_ASYNC_NOTIFY: |value| value.into();
            qp_access_flags => ACCESS_FLAGS: |value| value.bits();
            pkey_index => PKEY_INDEX: |value| value;
            port_num => PORT: |value| value;
            qkey => QKEY: |value| value;
            ah_attr => AV: |value| value.to_raw();
            path_mtu => PATH_MTU: |value| value.raw();
            timeout => TIMEOUT: |value| value;
            retry_cnt => RETRY_CNT: |value| value;
            rnr_retry => RNR_RETRY: |value| value;
            rq_psn => RQ_PSN: |value| value;
            max_rd_atomic => MAX_QP_RD_ATOMIC: |value| value;
            min_rnr_timer => MIN_RNR_TIMER: |value| value;
            sq_psn => SQ_PSN: |value| value;
            max_dest_rd_atomic => MAX_DEST_RD_ATOMIC: |value| value;
            path_mig_state => PATH_MIG_STATE: |value| value.raw();
            cap => CAP: |value| value.to_raw();
            dest_qp_num => DEST_QPN: |value| value;
            rate_limit => RATE_LIMIT: |value| value;
        }
        if let Some(alt) = self.alt_path {
            raw.alt_ah_attr = alt.ah_attr.to_raw();
            raw.alt_pkey_index = alt.pkey_index;
            raw.alt_port_num = alt.port_num;
            raw.alt_timeout = alt.timeout;
            mask |= QpAttrMask::ALT_PATH;
        }
        (raw, mask)
    }

    /// Converts the C structure. Attributes that are not in `mask` become `None`.
    pub(crate) fn from_raw(raw: &ffi::ibv_qp_attr, mask: QpAttrMask) -> Self {
        macro_rules! get {
            ($($field:ident: $flag:ident => $convert:expr,)*) => {
                Self { $($field: mask.contains(QpAttrMask::$flag).then(|| $convert),)* }
            };
        }
        get! {
            qp_state: STATE => QpState::from_raw(raw.qp_state),
            cur_qp_state: CUR_STATE => QpState::from_raw(raw.cur_qp_state),
            en_sqd_async_notify: EN_SQD_ASYNC_NOTIFY => raw.en_sqd_async_notify != 0,
            qp_access_flags: ACCESS_FLAGS => AccessFlags::from_bits(raw.qp_access_flags),
            pkey_index: PKEY_INDEX => raw.pkey_index,
            port_num: PORT => raw.port_num,
            qkey: QKEY => raw.qkey,
            ah_attr: AV => AhAttr::from_raw(raw.ah_attr),
            path_mtu: PATH_MTU => Mtu::from_raw(raw.path_mtu),
            timeout: TIMEOUT => raw.timeout,
            retry_cnt: RETRY_CNT => raw.retry_cnt,
            rnr_retry: RNR_RETRY => raw.rnr_retry,
            rq_psn: RQ_PSN => raw.rq_psn,
            max_rd_atomic: MAX_QP_RD_ATOMIC => raw.max_rd_atomic,
            alt_path: ALT_PATH => AltPath {
                ah_attr: AhAttr::from_raw(raw.alt_ah_attr),
                pkey_index: raw.alt_pkey_index,
                port_num: raw.alt_port_num,
                timeout: raw.alt_timeout,
            },
            min_rnr_timer: MIN_RNR_TIMER => raw.min_rnr_timer,
            sq_psn: SQ_PSN => raw.sq_psn,
            max_dest_rd_atomic: MAX_DEST_RD_ATOMIC => raw.max_dest_rd_atomic,
            path_mig_state: PATH_MIG_STATE => MigState::from_raw(raw.path_mig_state),
            cap: CAP => QpCap::from_raw(raw.cap),
            dest_qp_num: DEST_QPN => raw.dest_qp_num,
            rate_limit: RATE_LIMIT => raw.rate_limit,
        }
    }
}

/// Returns a zeroed C structure.
pub(super) fn zeroed() -> ffi::ibv_qp_attr {
    // SAFETY: `ibv_qp_attr` consists of integers, for which all zeros is a valid value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

open_enum! {
    /// The state of a queue pair: `enum ibv_qp_state`.
    ///
    /// The usual order is `RESET` → `INIT` → `RTR` → `RTS`. A queue pair can move to `RESET` from
    /// every state, and to `ERR` from every state except `RESET`.
    #[doc(alias = "ibv_qp_state")]
    pub struct QpState(u32);
    /// The state after creation. The program cannot post work requests yet.
    RESET = 0;
    /// The program can post receives.
    INIT = 1;
    /// The queue pair can receive.
    RTR = 2;
    /// The queue pair can receive and send.
    RTS = 3;
    /// The send queue is being drained.
    SQD = 4;
    /// A send failed on an unreliable queue pair, which can still receive.
    SQE = 5;
    /// All posted requests complete with an error.
    ERR = 6;
    /// The driver does not know the state.
    UNKNOWN = 7;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sys::ffi::ibv_qp_state as c,
        verbs::{Gid, GlobalRoute},
    };

    const ALL: QpAttrMask = QpAttrMask::from_bits(0x021f_ffff);

    fn full() -> QpAttr {
        let grh = GlobalRoute {
            dgid: Gid::new([3; 16]),
            hop_limit: 64,
            ..GlobalRoute::default()
        };
        let ah_attr = AhAttr {
            grh: Some(grh),
            port_num: 1,
            ..AhAttr::default()
        };
        QpAttr {
            qp_state: Some(QpState::RTR),
            cur_qp_state: Some(QpState::INIT),
            en_sqd_async_notify: Some(true),
            qp_access_flags: Some(AccessFlags::REMOTE_READ),
            pkey_index: Some(1),
            port_num: Some(2),
            qkey: Some(3),
            ah_attr: Some(ah_attr),
            path_mtu: Some(Mtu::MTU_1024),
            timeout: Some(4),
            retry_cnt: Some(5),
            rnr_retry: Some(6),
            rq_psn: Some(7),
            max_rd_atomic: Some(8),
            alt_path: Some(AltPath {
                ah_attr,
                pkey_index: 9,
                port_num: 10,
                timeout: 11,
            }),
            min_rnr_timer: Some(12),
            sq_psn: Some(13),
            max_dest_rd_atomic: Some(14),
            path_mig_state: Some(MigState::ARMED),
            cap: Some(QpCap::default()),
            dest_qp_num: Some(15),
            rate_limit: Some(16),
        }
    }

    #[test]
    fn attributes_round_trip() {
        let (raw, mask) = full().to_raw();
        assert_eq!(mask, ALL);
        assert_eq!(QpAttr::from_raw(&raw, mask), full());
    }

    #[test]
    fn unset_attributes_are_not_in_the_mask() {
        assert_eq!(QpAttr::default().mask(), QpAttrMask::empty());
        let attr = QpAttr {
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        assert_eq!(attr.mask(), QpAttrMask::MIN_RNR_TIMER);
        let (raw, _) = full().to_raw();
        let some = QpAttr::from_raw(&raw, QpAttrMask::MIN_RNR_TIMER);
        assert_eq!(
            some,
            QpAttr {
                min_rnr_timer: Some(12),
                ..QpAttr::default()
            }
        );
    }

    #[test]
    fn flags_match_the_headers() {
        use ffi::ibv_qp_attr_mask as c;
        for (ours, theirs) in [
            (QpAttrMask::STATE, c::IBV_QP_STATE),
            (QpAttrMask::CUR_STATE, c::IBV_QP_CUR_STATE),
            (
                QpAttrMask::EN_SQD_ASYNC_NOTIFY,
                c::IBV_QP_EN_SQD_ASYNC_NOTIFY,
            ),
            (QpAttrMask::ACCESS_FLAGS, c::IBV_QP_ACCESS_FLAGS),
            (QpAttrMask::PKEY_INDEX, c::IBV_QP_PKEY_INDEX),
            (QpAttrMask::PORT, c::IBV_QP_PORT),
            (QpAttrMask::QKEY, c::IBV_QP_QKEY),
            (QpAttrMask::AV, c::IBV_QP_AV),
            (QpAttrMask::PATH_MTU, c::IBV_QP_PATH_MTU),
            (QpAttrMask::TIMEOUT, c::IBV_QP_TIMEOUT),
            (QpAttrMask::RETRY_CNT, c::IBV_QP_RETRY_CNT),
            (QpAttrMask::RNR_RETRY, c::IBV_QP_RNR_RETRY),
            (QpAttrMask::RQ_PSN, c::IBV_QP_RQ_PSN),
            (QpAttrMask::MAX_QP_RD_ATOMIC, c::IBV_QP_MAX_QP_RD_ATOMIC),
            (QpAttrMask::ALT_PATH, c::IBV_QP_ALT_PATH),
            (QpAttrMask::MIN_RNR_TIMER, c::IBV_QP_MIN_RNR_TIMER),
            (QpAttrMask::SQ_PSN, c::IBV_QP_SQ_PSN),
            (QpAttrMask::MAX_DEST_RD_ATOMIC, c::IBV_QP_MAX_DEST_RD_ATOMIC),
            (QpAttrMask::PATH_MIG_STATE, c::IBV_QP_PATH_MIG_STATE),
            (QpAttrMask::CAP, c::IBV_QP_CAP),
            (QpAttrMask::DEST_QPN, c::IBV_QP_DEST_QPN),
            (QpAttrMask::RATE_LIMIT, c::IBV_QP_RATE_LIMIT),
        ] {
            assert_eq!(ours.bits(), theirs.0, "{ours}");
        }
        assert_eq!(MigState::REARM.raw(), ffi::ibv_mig_state::IBV_MIG_REARM);
        assert_eq!(MigState::ARMED.raw(), ffi::ibv_mig_state::IBV_MIG_ARMED);
    }

    #[test]
    fn numbers_match_the_headers() {
        for (ours, theirs) in [
            (QpState::RESET, c::IBV_QPS_RESET),
            (QpState::INIT, c::IBV_QPS_INIT),
            (QpState::RTR, c::IBV_QPS_RTR),
            (QpState::RTS, c::IBV_QPS_RTS),
            (QpState::SQD, c::IBV_QPS_SQD),
            (QpState::SQE, c::IBV_QPS_SQE),
            (QpState::ERR, c::IBV_QPS_ERR),
            (QpState::UNKNOWN, c::IBV_QPS_UNKNOWN),
        ] {
            assert_eq!(ours.raw(), theirs, "{ours}");
        }
    }
}
