//! Tests whether the memory windows of a device can expose messages to peers.
//!
//! With memory windows, each large message gets its own key without a system call. A window can
//! replace a registration only if the window limits the peer: the peer must read no bytes outside
//! the window, and no bytes at all after the invalidation. Not every device that reports windows
//! ensures this. For example, software RoCE checks only the bounds of the region to which a window
//! is bound.
//!
//! So each device that reports windows of type 2B and has an active port is tested once per
//! process, when it is opened. The test connects two queue pairs of this process. One queue pair
//! reads inside a window, before the start of the window, across its end, and after its
//! invalidation. If a device fails the test, each large message is registered separately.
//!
//! The engine's thread executes the test and waits for the outcome, because the outcome determines
//! the depth of a connection's queues. The test takes some milliseconds. It fails if it is not
//! complete after [`LIMIT`].

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use crate::{
    os::{PerProcess, lock},
    status::{OsError, WcStatus},
    verbs::{
        AccessFlags, AhAttr, CompletionQueue, Context, DeviceAttr, DeviceCapFlags, GidEntry,
        GidType, GlobalRoute, LinkLayer, MemoryRegion, MemoryWindow, Mtu, PortState,
        ProtectionDomain, QpAttr, QpCap, QpInitAttr, QpState, QueuePair, RemoteAddr, SendWr, Sge,
        TransportType, WorkCompletion,
    },
};

/// The maximum time from the start of a test until its last completion.
const LIMIT: Duration = Duration::from_millis(500);

/// The properties of a device on which the outcome of a test depends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Model {
    name: String,
    guid: u64,
    firmware: String,
}

/// The outcome of each test: whether the windows are usable.
static OUTCOMES: PerProcess<Mutex<HashMap<Model, bool>>> = PerProcess::new(Mutex::default);

/// Returns whether windows of this device can expose messages. Tests the device if there is no
/// outcome of an earlier test.
pub(super) fn are_usable(context: &Context, attr: &DeviceAttr) -> bool {
    let flags = attr.device_cap_flags();
    // Windows are not used on iWARP, for two reasons. First, on iWARP the completion of a send does
    // not cover earlier requests. Second, windows need memory that stays registered. But the memory
    // of large messages must not stay registered, because peers could write to the targets of
    // READs.
    let has_windows = flags.contains(DeviceCapFlags::MEM_WINDOW_TYPE_2B)
        && context.transport_type() != TransportType::IWARP;
    if !has_windows {
        return false;
    }
    let model = Model {
        name: context.device_name(),
        guid: attr.node_guid(),
        firmware: attr.fw_ver(),
    };
    // While the thread of another engine tests a device, this thread waits here for the outcome.
    let mut outcomes = lock(OUTCOMES.get());
    if let Some(outcome) = outcomes.get(&model) {
        return *outcome;
    }
    let name = model.name.clone();
    let result = test(context);
    // The outcome is not stored if no port was active, because a port may become active later.
    if !matches!(result, Err(Failure::NoPath)) {
        outcomes.insert(model, result.is_ok());
    }
    // The lock is released before the program's logger is called.
    drop(outcomes);
    match &result {
        Ok(()) => info!(
            Rdma,
            "device {name}: exposes large messages to peers by memory windows"
        ),
        Err(failure) => debug!(
            Rdma,
            "device {name}: registers each large message separately, because its memory windows \
             are unusable: {failure}"
        ),
    }
    result.is_ok()
}

/// The reason why a test failed.
#[derive(Debug)]
enum Failure {
    /// The device allowed a READ that it should have refused.
    Allowed(Position),
    /// A work request completed with an unexpected status.
    Status(&'static str, WcStatus),
    Overdue(&'static str),
    NoPath,
    Os(OsError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(position) => write!(f, "a READ {position} succeeds"),
            Self::Status(step, status) => write!(f, "{step}: {status}"),
            Self::Overdue(step) => write!(f, "{step}: not complete after {LIMIT:?}"),
            Self::NoPath => f.write_str("no port has a path to itself"),
            Self::Os(error) => error.fmt(f),
        }
    }
}

impl From<OsError> for Failure {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

/// A READ that the device must refuse, named after its position in the region.
#[derive(Clone, Copy, Debug)]
enum Position {
    BeforeWindow,
    AcrossItsEnd,
    /// Inside the window, after its invalidation.
    Invalidated,
}

impl Position {
    /// Returns the offset of the first byte of the READ in the region.
    fn start(self) -> usize {
        match self {
            Self::BeforeWindow => WINDOW.start - READ,
            Self::AcrossItsEnd => WINDOW.end - READ / 2,
            Self::Invalidated => INSIDE,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeforeWindow => "before a window",
            Self::AcrossItsEnd => "across the end of a window",
            Self::Invalidated => "in an invalidated window",
        })
    }
}

/// The length in bytes of the memory region that the test uses.
const REGION: usize = 4096;
/// The byte range of the region to which the window is bound.
const WINDOW: Range<usize> = 512..512 + REGION / 2;
/// The offset of a READ that lies inside the window, relative to the start of the region.
const INSIDE: usize = WINDOW.start + 32;
/// The offset in the region at which READs store the received bytes.
const TARGET: usize = 3072;
/// The length of a READ in bytes.
const READ: usize = 64;

/// Tests the windows of a device.
fn test(context: &Context) -> Result<(), Failure> {
    let end = Instant::now() + LIMIT;
    let pd = ProtectionDomain::new(context)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let region = MemoryRegion::new(&pd, REGION, access)?;
    let secret = [0x5a; READ];
    region.copy_in(INSIDE, &secret);
    let path = Path::to_itself(context)?;
    // Each iteration needs a new pair, because a refused READ moves both queue pairs to the error
    // state.
    for position in [
        Position::BeforeWindow,
        Position::AcrossItsEnd,
        Position::Invalidated,
    ] {
        let pair = Pair::new(&pd, &path, end)?;
        // The window is dropped before the pair, because some drivers cannot destroy a queue pair
        // before its windows.
        let mut window = MemoryWindow::new(&pd)?;
        let may_read = AccessFlags::REMOTE_READ;
        let owner = &pair.owner;
        owner.bind_window(BIND, &mut window, &region, WINDOW, may_read, true)?;
        pair.expect(BIND, "the bind")?;
        region.copy_in(TARGET, &[0; READ]);
        pair.read(&region, INSIDE, window.rkey())?;
        pair.expect(INNER, "a READ inside a window")?;
        let mut found = [0; READ];
        region.copy_out(TARGET, &mut found);
        if found != secret {
            return Err(Failure::Status(
                "the bytes of a READ",
                WcStatus::GENERAL_ERR,
            ));
        }
        if let Position::Invalidated = position {
            pair.owner
                .invalidate_window(INVALIDATE, &mut window, true)?;
            pair.expect(INVALIDATE, "the invalidation")?;
        }
        pair.read(&region, position.start(), window.rkey())?;
        match pair.status(INNER, "a READ that must fail")? {
            WcStatus::REM_ACCESS_ERR => {}
            WcStatus::SUCCESS => return Err(Failure::Allowed(position)),
            other => return Err(Failure::Status("a READ that must fail", other)),
        }
    }
    Ok(())
}

/// A network path from a port to itself.
struct Path {
    address: AhAttr,
    mtu: Mtu,
}

impl Path {
    fn to_itself(context: &Context) -> Result<Self, Failure> {
        for port_num in 1..=context.query_device()?.phys_port_cnt() {
            let port = context.query_port(port_num)?;
            if port.state != PortState::ACTIVE {
                continue;
            }
            let is_ethernet = port.link_layer == LinkLayer::ETHERNET;
            let grh = if is_ethernet || port.grh_required() {
                let table = context.gid_table(port_num)?;
                // Prefers RoCE version 2 with an IPv4 address, the most common kind of GID.
                let rank = |entry: &&GidEntry| {
                    let is_v2 = entry.gid_type == GidType::ROCE_V2;
                    let octets = entry.gid.octets();
                    let is_v4 = octets[..10] == [0; 10] && octets[10..12] == [0xff; 2];
                    (is_v2, is_v4)
                };
                // A path has only 8 bits for the index of the GID.
                let named = table
                    .iter()
                    .filter(|entry| entry.gid_index <= u8::MAX.into());
                let Some(entry) = named.max_by_key(rank) else {
                    continue;
                };
                Some(GlobalRoute {
                    dgid: entry.gid,
                    sgid_index: entry.gid_index as u8,
                    hop_limit: 64,
                    ..GlobalRoute::default()
                })
            } else {
                None
            };
            let address = AhAttr {
                grh,
                dlid: port.lid,
                port_num,
                ..AhAttr::default()
            };
            let mtu = port.active_mtu;
            return Ok(Self { address, mtu });
        }
        Err(Failure::NoPath)
    }
}

/// The ids of the work requests.
const BIND: u64 = 1;
const INNER: u64 = 2;
const INVALIDATE: u64 = 3;

/// Two queue pairs that are connected to each other.
struct Pair {
    /// The side that reads.
    reader: QueuePair,
    /// The side whose memory is read.
    owner: QueuePair,
    cq: CompletionQueue,
    end: Instant,
}

impl Pair {
    fn new(pd: &ProtectionDomain, path: &Path, end: Instant) -> Result<Self, Failure> {
        let cq = CompletionQueue::new(pd.context(), 8, None)?;
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let attr = QpInitAttr::rc(&cq, cap);
        let (reader, owner) = (QueuePair::new(pd, &attr)?, QueuePair::new(pd, &attr)?);
        connect(&reader, &owner, path)?;
        connect(&owner, &reader, path)?;
        Ok(Self {
            reader,
            owner,
            cq,
            end,
        })
    }

    /// Posts a READ at offset `start` of the region, with the key of a window.
    fn read(&self, region: &MemoryRegion, start: usize, rkey: u32) -> Result<(), Failure> {
        let addr = region.addr() + start as u64;
        let target = Sge::new(region, TARGET..TARGET + READ);
        let read = SendWr::read(INNER, target, RemoteAddr { addr, rkey }).signaled();
        Ok(self.reader.post_send(&[read]).map_err(OsError::from)?)
    }

    /// Waits until a work request has completed. Fails if the request did not succeed. `step`
    /// describes the request.
    fn expect(&self, wr_id: u64, step: &'static str) -> Result<(), Failure> {
        match self.status(wr_id, step)? {
            WcStatus::SUCCESS => Ok(()),
            status => Err(Failure::Status(step, status)),
        }
    }

    /// Waits until a work request has completed, and returns its status.
    fn status(&self, wr_id: u64, step: &'static str) -> Result<WcStatus, Failure> {
        let mut one = [WorkCompletion::default()];
        loop {
            if self.cq.poll(&mut one)? == 0 {
                if Instant::now() > self.end {
                    return Err(Failure::Overdue(step));
                }
                thread::yield_now();
            } else if one[0].wr_id() == wr_id {
                return Ok(one[0].status());
            }
        }
    }
}

/// Connects a queue pair to `peer`, and moves the queue pair to the state RTS.
fn connect(qp: &QueuePair, peer: &QueuePair, path: &Path) -> Result<(), OsError> {
    let init = QpAttr {
        qp_state: Some(QpState::INIT),
        pkey_index: Some(0),
        port_num: Some(path.address.port_num),
        qp_access_flags: Some(AccessFlags::REMOTE_READ),
        ..QpAttr::default()
    };
    let rtr = QpAttr {
        qp_state: Some(QpState::RTR),
        ah_attr: Some(path.address),
        path_mtu: Some(path.mtu),
        dest_qp_num: Some(peer.qp_num()),
        rq_psn: Some(0),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..QpAttr::default()
    };
    let rts = QpAttr {
        qp_state: Some(QpState::RTS),
        sq_psn: Some(0),
        // The code for 17 ms. After this time a lost packet is retransmitted.
        timeout: Some(12),
        retry_cnt: Some(7),
        rnr_retry: Some(0),
        max_rd_atomic: Some(1),
        ..QpAttr::default()
    };
    for attr in [init, rtr, rts] {
        qp.modify(&attr)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_reads_are_outside_and_in_the_region() {
        for position in [Position::BeforeWindow, Position::AcrossItsEnd] {
            let read = position.start()..position.start() + READ;
            assert!(
                read.end <= TARGET,
                "a READ {position} must end before the READ target"
            );
            assert!(read.start < WINDOW.start || read.end > WINDOW.end);
        }
        assert!(WINDOW.contains(&INSIDE) && WINDOW.contains(&(INSIDE + READ)));
        assert!(!WINDOW.contains(&TARGET));
    }
}
