use std::sync::Arc;

use crate::proto::DeviceFault;

/// An event by which a device reports something about itself, a port or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceEvent {
    /// The number of the device among the open ones of this process.
    pub(crate) device: u64,
    /// The name of the device.
    pub(crate) name: Arc<str>,
    /// The name of the event without its prefix, for instance `PORT_ERR`.
    pub(crate) event: Arc<str>,
    pub(crate) effect: Effect,
}

/// The effect of an event on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The link of this port was lost: the path of its connections is suspected.
    Suspect { port: u8 },
    /// The link of this port is back, which ends the suspicion.
    Trust { port: u8 },
    /// An object failed, and its connections end.
    End(Object, DeviceFault),
    /// Addresses of the device changed, which the log reports.
    Addresses,
    /// The event is a part of normal operation.
    Nothing,
}

/// An object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Device,
    /// The queue pair with this number.
    QueuePair(u32),
    /// The completion queue with this cookie.
    CompletionQueue(u64),
    /// The shared receive queue with this cookie.
    SharedReceives(u64),
}
