use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    device_events::{self, Watch},
    thread_domains::ThreadDomains,
    windows,
};
use crate::{
    os::foreign,
    poll::Epolls,
    proto::{Capabilities, ReadDepth},
    status::OsError,
    transport::{DeviceCounters, connection_manager::DeviceEvent, queues::SharedPools},
    verbs::{AtomicCap, Context, TransportType},
};

/// A device, which its connections share. It is closed when its last connection is dropped.
///
/// Each connection has its own protection domain. So even with a guessed or remembered key, a peer
/// cannot access the memory of another peer's connection. Connections that share receives are the
/// exception. They share a domain, because a device writes a received frame only to memory in the
/// domain of the queue pair.
#[derive(Debug)]
pub(crate) struct Device {
    /// The epoll registration for events of the device. Dropped before `context`, because dropping
    /// `context` may close the device.
    watch: Option<Watch>,
    context: Context,
    pub(super) max_qp_wr: u32,
    pub(super) max_cqe: u32,
    /// The maximum length of a one-sided operation in bytes.
    max_msg_sz: u32,
    pub(super) max_srq_wr: u32,
    most_reads: ReadDepth,
    capabilities: Capabilities,
    /// Whether the device has refused relaxed ordering.
    refuses_relaxed: AtomicBool,
    /// Whether the log already states that the device granted fewer inline bytes than requested.
    has_logged_inline: AtomicBool,
    /// The NUMA node of the device; `None` if the kernel does not know it.
    numa_node: Option<u32>,
    pub(super) thread_domains: ThreadDomains,
    /// Whether memory windows can expose messages to peers.
    pub(super) has_windows: bool,
    shared_pools: SharedPools,
}

/// The devices that the connections of one engine use.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    by_device: HashMap<u64, Weak<Device>>,
    /// The epoll instances of the engine, which watches the devices' events.
    epolls: Option<Arc<Epolls>>,
}

impl Devices {
    /// Watches the events of each device that is opened after this call.
    pub(crate) fn watch(&mut self, epolls: &Arc<Epolls>) {
        self.epolls = Some(Arc::clone(epolls));
    }

    /// Returns the next event of the device with this number, if there is one.
    pub(crate) fn poll(&self, device: u64) -> Option<DeviceEvent> {
        let device = self.by_device.get(&device)?.upgrade()?;
        match device.context.poll_async_event() {
            Ok(event) => event.map(|event| device_events::event(&device.context, &event)),
            Err(error) => {
                let name = device.context.device_name();
                debug!(
                    Rdma,
                    "device {name}: cannot read the device's events: {error}; the engine stops \
                     watching them"
                );
                if let Some(watch) = &device.watch {
                    watch.stop();
                }
                None
            }
        }
    }

    /// Returns the device of `context`. Creates and initialises the object if no connection uses
    /// the device yet.
    pub(crate) fn get(&mut self, context: Context) -> Result<Arc<Device>, OsError> {
        let key = context.id();
        if let Some(device) = self.by_device.get(&key).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let attr = context.query_device()?;
        // The maximum message size is the same for all ports of a device.
        let max_msg_sz = context.query_port(1)?.max_msg_sz;
        let capabilities = Capabilities::new(
            attr.atomic_cap() != AtomicCap::NONE,
            context.transport_type() != TransportType::IWARP,
        );
        // The windows are tested before the engine watches the events, because the test causes
        // queue pair errors that the engine must not report.
        let has_windows = windows::are_usable(&context, &attr);
        let watch = self
            .epolls
            .as_ref()
            .map(|epolls| Watch::new(epolls, &context));
        let watch = watch.transpose().unwrap_or_else(|error| {
            let name = context.device_name();
            warn_sparsely!(
                Rdma,
                "device {name}: cannot watch the device's events: {error}; the engine will detect \
                 failures of the device late"
            );
            None
        });
        let device = Arc::new(Device {
            watch: watch.flatten(),
            numa_node: context.numa_node(),
            context,
            max_qp_wr: attr.max_qp_wr(),
            max_cqe: attr.max_cqe(),
            max_msg_sz,
            max_srq_wr: attr.max_srq_wr(),
            most_reads: ReadDepth {
                outgoing: u8::try_from(attr.max_qp_init_rd_atom()).unwrap_or(u8::MAX),
                incoming: u8::try_from(attr.max_qp_rd_atom()).unwrap_or(u8::MAX),
            },
            capabilities,
            refuses_relaxed: AtomicBool::new(false),
            has_logged_inline: AtomicBool::new(false),
            thread_domains: ThreadDomains::default(),
            has_windows,
            shared_pools: SharedPools::default(),
        });
        self.by_device.retain(|_, device| device.strong_count() > 0);
        self.by_device.insert(key, Arc::downgrade(&device));
        Ok(device)
    }
}

impl Device {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.context.transport_type() == TransportType::IWARP
    }

    /// Returns the NUMA node of the device; `None` if the kernel does not know it.
    pub(super) fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    pub(crate) fn max_msg_sz(&self) -> u32 {
        self.max_msg_sz
    }

    /// Returns the maximum number of concurrent READs and atomic operations of a queue pair in each
    /// direction.
    pub(super) fn most_reads(&self) -> ReadDepth {
        self.most_reads
    }

    /// Logs once that the device granted fewer than the `wanted` bytes of inline data.
    pub(super) fn log_inline(&self, wanted: u32, granted: u32) {
        if !self.has_logged_inline.swap(true, Ordering::Relaxed) {
            let name = self.context.device_name();
            info!(
                Rdma,
                "device {name}: refuses {wanted} bytes of inline data (rdma.max_inline); uses \
                 {granted} bytes"
            );
        }
    }

    /// Returns whether the device has refused relaxed ordering.
    pub(super) fn refuses_relaxed(&self) -> bool {
        self.refuses_relaxed.load(Ordering::Relaxed)
    }

    /// Records that the device refuses relaxed ordering. The first call logs this.
    pub(super) fn relaxed_is_refused(&self) {
        if !self.refuses_relaxed.swap(true, Ordering::Relaxed) {
            let name = self.context.device_name();
            foreign::log_elsewhere(
                foreign::Level::Info,
                foreign::Target::Rdma,
                format_args!(
                    "device {name}: refuses relaxed ordering; memory is registered without it"
                ),
            );
        }
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub(super) fn shared_pools(&self) -> &SharedPools {
        &self.shared_pools
    }
}

/// The names of the kernel's counters. Each of the two lists begins with the names of the software
/// RoCE driver. The names of mlx5 follow.
const RNR_NAKS: [&str; 3] = ["rcvd_rnr_err", "send_rnr_err", "rnr_nak_retry_err"];
const RETRANSMISSIONS: [&str; 3] = [
    "completer_retry_err",
    "packet_seq_err",
    "local_ack_timeout_err",
];

/// Reads the counters from files of the kernel. This is too slow to do for every message.
pub(super) fn read_counters(context: &Context) -> DeviceCounters {
    DeviceCounters {
        rnr_naks: sum(context, &RNR_NAKS),
        retransmissions: sum(context, &RETRANSMISSIONS),
    }
}

fn sum(context: &Context, names: &[&str]) -> Option<u64> {
    names
        .iter()
        .filter_map(|name| context.hw_counter(1, name))
        .reduce(|sum, count| sum + count)
}
