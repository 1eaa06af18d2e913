use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use super::shared_receives::SharedReceives;
use crate::{
    status::OsError,
    sync::lock,
    verbs::{AccessFlags, Context, ProtectionDomain, TransportType},
};

/// What the connections on one device share: the device itself. It lives as long as one of them
/// does.
///
/// Each connection has a protection domain of its own, so that a peer which guesses or remembers a
/// key reaches no other peer's memory. Those that share receives share the domain as well: devices
/// write a receive only to memory of its queue pair's domain.
#[derive(Debug)]
pub(crate) struct Device {
    context: Context,
    pub(super) max_qp_wr: u32,
    pub(super) max_cqe: u32,
    /// The longest one-sided operation in bytes.
    max_msg_sz: u32,
    pub(super) max_srq_wr: u32,
    /// What connections receive into that share receives: one for each kind that is in use.
    shared: Mutex<Vec<Weak<SharedReceives>>>,
}

/// All devices in use.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    by_device: HashMap<u64, Weak<Device>>,
}

impl Devices {
    /// Returns a device, opened for use when it is not in use yet.
    pub(crate) fn get(&mut self, context: Context) -> Result<Arc<Device>, OsError> {
        let key = context.id();
        if let Some(device) = self.by_device.get(&key).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let attr = context.query_device()?;
        // All ports of a device move as much.
        let max_msg_sz = context.query_port(1)?.max_msg_sz;
        let device = Arc::new(Device {
            context,
            max_qp_wr: attr.max_qp_wr(),
            max_cqe: attr.max_cqe(),
            max_msg_sz,
            max_srq_wr: attr.max_srq_wr(),
            shared: Mutex::default(),
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

    /// The access that memory must allow for reads of a peer's memory into it.
    pub(crate) fn read_target_access(&self) -> AccessFlags {
        // On iWARP the peer's answer to a read is a write like any other, so the peer's device must
        // be allowed to write there.
        if self.context.transport_type() == TransportType::IWARP {
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE
        } else {
            AccessFlags::LOCAL_WRITE
        }
    }

    pub(crate) fn max_msg_sz(&self) -> u32 {
        self.max_msg_sz
    }

    /// The receives of this kind, made when there are none.
    pub(super) fn shared(&self, count: u32, size: usize) -> Result<Arc<SharedReceives>, OsError> {
        let mut all = lock(&self.shared);
        let of_this_kind = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|shared| shared.is(count, size));
        if let Some(shared) = of_this_kind {
            return Ok(shared);
        }
        let pd = ProtectionDomain::new(&self.context)?;
        let shared = Arc::new(SharedReceives::new(pd, count, size)?);
        all.retain(|shared| shared.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(shared)
    }
}
