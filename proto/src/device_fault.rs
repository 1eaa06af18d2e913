use std::fmt;

/// A fault that a device has reported in an asynchronous event: see `ibv_get_async_event(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub enum DeviceFault {
    /// The whole device failed (`DEVICE_FATAL`). All connections on the device end. Some drivers
    /// also report this event when a device is removed.
    Device,
    /// The connection's queue pair failed (`QP_FATAL`).
    QueuePair,
    /// The peer sent a request that the queue pair cannot serve (`QP_REQ_ERR`).
    Request,
    /// The peer requested access to memory without the required right (`QP_ACCESS_ERR`).
    Access,
    /// The connection's completion queue failed (`CQ_ERR`).
    CompletionQueue,
    /// The connection's shared receive queue failed (`SRQ_ERR`).
    SharedReceives,
}

impl DeviceFault {
    /// Returns true if a session can continue over another connection after this fault: the device
    /// or one of its queues failed, and the peer made no invalid request.
    pub(crate) const fn is_loss(self) -> bool {
        match self {
            Self::Device | Self::QueuePair | Self::CompletionQueue | Self::SharedReceives => true,
            Self::Request | Self::Access => false,
        }
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the whole device failed (DEVICE_FATAL)",
            Self::QueuePair => "the queue pair failed (QP_FATAL)",
            Self::Request => "the peer sent an invalid request (QP_REQ_ERR)",
            Self::Access => "the peer accessed memory without the right to do so (QP_ACCESS_ERR)",
            Self::CompletionQueue => "the completion queue failed (CQ_ERR)",
            Self::SharedReceives => "the shared receive queue failed (SRQ_ERR)",
        })
    }
}
