use std::sync::Arc;

use crate::proto::DeviceFault;

/// An asynchronous event that a device reports about itself, one of its ports or one of its
/// objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceEvent {
    /// The number of the device, unique among the devices that this process has opened.
    pub(crate) device: u64,
    /// The name of the device.
    pub(crate) name: Arc<str>,
    /// The name of the event without its prefix, for example `PORT_ERR`.
    pub(crate) event: Arc<str>,
    pub(crate) effect: Effect,
}

/// The effect of an event on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The link of this port was lost. The state machines of the connections that use the port
    /// check whether their peers still answer.
    Suspect { port: u8 },
    /// The link of this port is up again. The state machines stop checking whether the peers
    /// answer.
    Trust { port: u8 },
    /// An object failed. The connections that use it end.
    End(Object, DeviceFault),
    /// Addresses of the device changed. The engine only logs this event.
    Addresses,
    /// The event is part of normal operation and is ignored.
    Nothing,
}

/// The object to which an event applies.
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
