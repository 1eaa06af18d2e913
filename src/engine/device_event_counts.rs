//! Counts the events that devices have reported to this process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::{
    os::{PerProcess, lock},
    transport::DeviceEvent,
};

/// The number of events of one type that one device has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEvents {
    /// The name of the device, for instance `mlx5_0`.
    pub device: String,
    /// The event type without its prefix, for instance `PORT_ERR`.
    pub event: String,
    /// The number of events since the start of the process.
    pub count: u64,
}

type Counts = BTreeMap<(Arc<str>, Arc<str>), u64>;

static COUNTS: PerProcess<Mutex<Counts>> = PerProcess::new(Mutex::default);

/// Counts an event.
pub(super) fn count(event: &DeviceEvent) {
    let key = (Arc::clone(&event.name), Arc::clone(&event.event));
    *lock(COUNTS.get()).entry(key).or_default() += 1;
}

/// Returns the counts by device and event.
pub(crate) fn device_events() -> Vec<DeviceEvents> {
    let counts = lock(COUNTS.get());
    let all = counts.iter().map(|((device, event), count)| DeviceEvents {
        device: device.to_string(),
        event: event.to_string(),
        count: *count,
    });
    all.collect()
}
