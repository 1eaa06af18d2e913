//! Two queue pairs of this process that are connected to each other.

use std::{
    thread,
    time::{Duration, Instant},
};

use rdmsg::verbs::{
    AccessFlags, AhAttr, CompletionQueue, Context, DeviceList, GidEntry, GidType, GlobalRoute,
    MemoryRegion, ProtectionDomain, QpAttr, QpCap, QpInitAttr, QpState, QpType, QueuePair,
    SharedReceiveQueue, Success, WcError, WorkCompletion,
};
use toolbox::{Lab, Watchdog};

pub(crate) const PORT: u8 = 1;
pub(crate) const QKEY: u32 = 0x1122_3344;
/// `EINVAL` of `errno.h`.
pub(crate) const EINVAL: i32 = 22;
/// `ENOMEM` of `errno.h`.
pub(crate) const ENOMEM: i32 = 12;
/// The time limit for an event that must arrive.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Opens the lab's device.
pub(crate) fn open() -> Context {
    let lab = Lab::get();
    let list = DeviceList::new().unwrap();
    list.find(&lab.device)
        .unwrap_or_else(|| panic!("{} is not among {list:?}", lab.device))
        .open()
        .unwrap()
}

/// Returns the entry in the GID table for the lab's address.
pub(crate) fn gid(context: &Context) -> GidEntry {
    let addr = match Lab::get().addr {
        std::net::IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        std::net::IpAddr::V6(addr) => addr,
    };
    let table = context.gid_table(PORT).unwrap();
    let found = table
        .iter()
        .find(|entry| entry.gid == addr.into() && entry.gid_type == GidType::ROCE_V2);
    *found.unwrap_or_else(|| panic!("{addr} is not in {table:?}"))
}

/// Returns the path from the device to itself.
pub(crate) fn path(context: &Context) -> AhAttr {
    let GidEntry { gid, gid_index, .. } = gid(context);
    let grh = GlobalRoute {
        dgid: gid,
        sgid_index: gid_index.try_into().unwrap(),
        hop_limit: 64,
        ..GlobalRoute::default()
    };
    AhAttr {
        grh: Some(grh),
        port_num: PORT,
        ..AhAttr::default()
    }
}

/// The parameters with which a [`Pair`] is created.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) rnr_retry: u8,
    pub(crate) peer_access: AccessFlags,
    /// Whether the pair uses the extended verbs, which have one function for each part of a request
    /// and of a completion.
    pub(crate) extended: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::RC,
            cap: QpCap {
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 3,
                max_recv_sge: 3,
                max_inline_data: 64,
            },
            rnr_retry: 7,
            peer_access: AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            extended: false,
        }
    }
}

/// One of the two ends of a pair.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
}

/// Two connected ends. Each has 4 KiB of memory, which the other end is permitted to access.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: Context,
    _watchdog: Watchdog,
}

impl Pair {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::with(Setup::default(), None)
    }

    #[track_caller]
    pub(crate) fn with(setup: Setup, srq: Option<&SharedReceiveQueue>) -> Self {
        let watchdog = Watchdog::new(300);
        let (context, pd) = match srq {
            Some(srq) => (srq.pd().context().clone(), srq.pd().clone()),
            None => {
                let context = open();
                let pd = ProtectionDomain::new(&context).unwrap();
                (context, pd)
            }
        };
        let end = || {
            let cq = if setup.extended {
                CompletionQueue::new_extended(&context, 64, None, 0, false).unwrap()
            } else {
                CompletionQueue::new(&context, 64, None).unwrap()
            };
            let attr = QpInitAttr {
                srq,
                ..QpInitAttr::new(setup.qp_type, &cq, setup.cap)
            };
            let qp = if setup.extended {
                QueuePair::with_send_ops(&pd, &attr).unwrap()
            } else {
                QueuePair::new(&pd, &attr).unwrap()
            };
            End {
                qp,
                region: region(&pd, 4096),
                cq,
            }
        };
        let (a, b) = (end(), end());
        connect(&a.qp, &b.qp, &setup);
        connect(&b.qp, &a.qp, &setup);
        Self {
            a,
            b,
            pd,
            context,
            _watchdog: watchdog,
        }
    }
}

/// Registers memory that all peers are permitted to access.
pub(crate) fn region(pd: &ProtectionDomain, len: usize) -> MemoryRegion {
    let access = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_ATOMIC;
    MemoryRegion::new(pd, len, access).unwrap()
}

/// Returns the first packet sequence number of a queue pair. The number differs between queue
/// pairs.
fn psn(qp: &QueuePair) -> u32 {
    (qp.qp_num() * 7919) & 0xff_ffff
}

/// Moves a queue pair to the state RTS, connected to `peer`.
pub(crate) fn connect(qp: &QueuePair, peer: &QueuePair, setup: &Setup) {
    let context = qp.pd().context();
    let reliable = setup.qp_type == QpType::RC;
    let datagram = setup.qp_type == QpType::UD;
    let init = QpAttr {
        qp_state: Some(QpState::INIT),
        pkey_index: Some(0),
        port_num: Some(PORT),
        qp_access_flags: (!datagram).then_some(setup.peer_access),
        qkey: datagram.then_some(QKEY),
        ..QpAttr::default()
    };
    qp.modify(&init).unwrap();
    assert_eq!(qp.state(), Ok(QpState::INIT));

    let rtr = QpAttr {
        qp_state: Some(QpState::RTR),
        ..QpAttr::default()
    };
    let rtr = if datagram {
        rtr
    } else {
        QpAttr {
            ah_attr: Some(path(context)),
            path_mtu: Some(context.query_port(PORT).unwrap().active_mtu),
            dest_qp_num: Some(peer.qp_num()),
            rq_psn: Some(psn(peer)),
            max_dest_rd_atomic: reliable.then_some(4),
            min_rnr_timer: reliable.then_some(1),
            ..rtr
        }
    };
    qp.modify(&rtr).unwrap();
    assert_eq!(qp.state(), Ok(QpState::RTR));

    let rts = QpAttr {
        qp_state: Some(QpState::RTS),
        sq_psn: Some(psn(qp)),
        timeout: reliable.then_some(14),
        retry_cnt: reliable.then_some(7),
        rnr_retry: reliable.then_some(setup.rnr_retry),
        max_rd_atomic: reliable.then_some(4),
        ..QpAttr::default()
    };
    qp.modify(&rts).unwrap();
    assert_eq!(qp.state(), Ok(QpState::RTS));
}

/// Waits for the next `count` completions. Returns them in order.
pub(crate) fn completions(cq: &CompletionQueue, count: usize) -> Vec<WorkCompletion> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut all = Vec::new();
    let mut some = [WorkCompletion::default(); 4];
    while all.len() < count {
        assert!(
            Instant::now() < deadline,
            "{} of {count} completions arrived: {all:?}",
            all.len()
        );
        let room = (count - all.len()).min(some.len());
        let polled = cq.poll(&mut some[..room]).unwrap();
        all.extend_from_slice(&some[..polled]);
        if polled == 0 {
            thread::yield_now();
        }
    }
    all
}

/// Returns the next completion, which must report success.
pub(crate) fn success(cq: &CompletionQueue) -> Success {
    completions(cq, 1)[0].result().unwrap()
}

/// Returns the error of the next completion, which must report a failure.
pub(crate) fn failure(cq: &CompletionQueue) -> WcError {
    completions(cq, 1)[0].result().unwrap_err()
}

/// Asserts that the queue contains no completion.
pub(crate) fn assert_none(cq: &CompletionQueue) {
    let mut one = [WorkCompletion::default()];
    assert_eq!(cq.poll(&mut one), Ok(0), "{one:?}");
}

/// Returns `len` bytes of a region, starting at `offset`.
pub(crate) fn bytes(region: &MemoryRegion, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.copy_out(offset, &mut bytes);
    bytes
}
