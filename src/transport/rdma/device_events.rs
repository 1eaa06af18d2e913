//! The asynchronous events of devices: the registration of a device's event descriptor in an
//! engine's epoll instance, and the effects of the events.
//!
//! librdmacm opens each device once per process, so all engines share one event descriptor for each
//! device. The kernel delivers each event to only one reader. The engine that reads an event
//! forwards it to the other engines.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::sys::epoll::{EpollEvent, EpollFlags};

use crate::{
    os::{Process, failed},
    poll::Epolls,
    proto::DeviceFault,
    status::OsError,
    transport::{
        DEVICE,
        connection_manager::{DeviceEvent, Effect, Object},
    },
    verbs::{AsyncElement, AsyncEvent, AsyncEventType, Context},
};

/// The registration of a device's event descriptor in an engine's epoll instance.
///
/// Dropping the registration removes the descriptor from the epoll instance before librdmacm closes
/// the device. A child of fork(2) may still hold the same file open. Without the removal, the epoll
/// instance would then report the descriptor indefinitely.
pub(super) struct Watch {
    epolls: Arc<Epolls>,
    /// The device. This handle keeps the device open until the descriptor is removed.
    context: Context,
    process: Process,
}

impl Watch {
    /// Registers the descriptor. Returns `None` in a child process that shares the descriptor with
    /// its parent. Such a child would consume the parent's events, which refer to objects that do
    /// not exist in the child.
    pub(super) fn new(epolls: &Arc<Epolls>, context: &Context) -> Result<Option<Self>, OsError> {
        if !context.has_own_events() {
            return Ok(None);
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, DEVICE | context.id());
        epolls
            .engine
            .add(context, event)
            .map_err(failed("epoll_ctl"))?;
        Ok(Some(Self {
            epolls: Arc::clone(epolls),
            context: context.clone(),
            process: Process::this(),
        }))
    }

    /// Removes the descriptor from the epoll instance. Called when the registration is dropped. The
    /// engine also calls this function if it cannot read an event, for example because the device
    /// was removed.
    pub(super) fn stop(&self) {
        // The call fails if the descriptor was already removed. This error has no consequence.
        let _ = self.epolls.engine.delete(&self.context);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A child process shares the epoll instance with its parent, so it must not remove the
        // descriptor.
        if self.process.is_this() {
            self.stop();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Returns a number that identifies a queue in events. It is unique in this process.
pub(super) fn next_cookie() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The numbers that identify one connection's objects in events of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    pub(super) qp_num: u32,
    /// The cookie of the completion queue.
    pub(super) cq: u64,
    /// The cookie of the shared receive queue, if the connection uses one.
    pub(super) srq: Option<u64>,
}

impl Objects {
    pub(super) fn have(&self, object: Object) -> bool {
        match object {
            Object::Device => true,
            Object::QueuePair(qp_num) => self.qp_num == qp_num,
            Object::CompletionQueue(cookie) => self.cq == cookie,
            Object::SharedReceives(cookie) => self.srq == Some(cookie),
        }
    }
}

/// Converts an event of the device to the form that the engine handles.
pub(super) fn event(context: &Context, event: &AsyncEvent) -> DeviceEvent {
    DeviceEvent {
        device: context.id(),
        name: context.device_name().into(),
        event: event.event_type().to_string().into(),
        effect: effect(event.event_type(), event.element()),
    }
}

fn effect(event: AsyncEventType, element: AsyncElement) -> Effect {
    match (event, element) {
        (AsyncEventType::PORT_ERR, AsyncElement::Port(port)) => Effect::Suspect { port },
        (AsyncEventType::PORT_ACTIVE, AsyncElement::Port(port)) => Effect::Trust { port },
        (AsyncEventType::DEVICE_FATAL, _) => Effect::End(Object::Device, DeviceFault::Device),
        (AsyncEventType::CQ_ERR, AsyncElement::CompletionQueue { cookie }) => Effect::End(
            Object::CompletionQueue(cookie),
            DeviceFault::CompletionQueue,
        ),
        (AsyncEventType::SRQ_ERR, AsyncElement::SharedReceiveQueue { cookie }) => {
            Effect::End(Object::SharedReceives(cookie), DeviceFault::SharedReceives)
        }
        (_, AsyncElement::QueuePair { qp_num }) => {
            let fault = match event {
                AsyncEventType::QP_FATAL => DeviceFault::QueuePair,
                AsyncEventType::QP_REQ_ERR => DeviceFault::Request,
                AsyncEventType::QP_ACCESS_ERR => DeviceFault::Access,
                _ => return Effect::Nothing,
            };
            Effect::End(Object::QueuePair(qp_num), fault)
        }
        (AsyncEventType::GID_CHANGE | AsyncEventType::LID_CHANGE, _) => Effect::Addresses,
        _ => Effect::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_its_effect() {
        type Event = AsyncEventType;
        let port = AsyncElement::Port(2);
        let qp = AsyncElement::QueuePair { qp_num: 17 };
        let cq = AsyncElement::CompletionQueue { cookie: 5 };
        let srq = AsyncElement::SharedReceiveQueue { cookie: 6 };
        let of_qp = |fault| Effect::End(Object::QueuePair(17), fault);
        for (event, element, expected) in [
            (Event::PORT_ERR, port, Effect::Suspect { port: 2 }),
            (Event::PORT_ACTIVE, port, Effect::Trust { port: 2 }),
            (Event::QP_FATAL, qp, of_qp(DeviceFault::QueuePair)),
            (Event::QP_REQ_ERR, qp, of_qp(DeviceFault::Request)),
            (Event::QP_ACCESS_ERR, qp, of_qp(DeviceFault::Access)),
            (
                Event::DEVICE_FATAL,
                AsyncElement::Device,
                Effect::End(Object::Device, DeviceFault::Device),
            ),
            (
                Event::CQ_ERR,
                cq,
                Effect::End(Object::CompletionQueue(5), DeviceFault::CompletionQueue),
            ),
            (
                Event::SRQ_ERR,
                srq,
                Effect::End(Object::SharedReceives(6), DeviceFault::SharedReceives),
            ),
            (Event::GID_CHANGE, port, Effect::Addresses),
            (Event::LID_CHANGE, port, Effect::Addresses),
            (Event::QP_LAST_WQE_REACHED, qp, Effect::Nothing),
            (Event::COMM_EST, qp, Effect::Nothing),
            (Event::SRQ_LIMIT_REACHED, srq, Effect::Nothing),
            (Event::SM_CHANGE, port, Effect::Nothing),
            (
                Event::from_raw(4711),
                AsyncElement::Unknown,
                Effect::Nothing,
            ),
        ] {
            assert_eq!(effect(event, element), expected, "{event}");
        }
    }

    #[test]
    fn connection_is_that_of_its_objects() {
        let mine = Objects {
            qp_num: 17,
            cq: 5,
            srq: None,
        };
        for (object, expected) in [
            (Object::Device, true),
            (Object::QueuePair(17), true),
            (Object::QueuePair(18), false),
            (Object::CompletionQueue(5), true),
            (Object::CompletionQueue(6), false),
            (Object::SharedReceives(5), false),
        ] {
            assert_eq!(mine.have(object), expected, "{object:?}");
        }
    }
}
