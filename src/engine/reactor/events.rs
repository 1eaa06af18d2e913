//! What the connection manager says.

use std::time::Instant;

use super::{BATCH, Reactor};
use crate::{
    cm::CmEvent,
    proto::{CmInput, ReadDepth},
    status::CmEventType,
};

impl Reactor {
    pub(super) fn take_cm_events(&mut self) {
        // What is left makes the next round begin at once.
        for _ in 0..BATCH {
            match self.channel.poll_event() {
                Ok(Some(event)) => {
                    self.take_cm_event(event);
                    self.keep_time();
                }
                Ok(None) => return,
                Err(error) => {
                    log::error!("engine: {error}");
                    return;
                }
            }
        }
    }

    fn take_cm_event(&mut self, mut event: CmEvent) {
        if let Some(id) = event.take_request() {
            self.take_request(id, &event);
            return;
        }
        let key = event.context();
        if self.listeners.contains_key(&key) {
            self.take_listener_event(key, &event);
            return;
        }
        let Some(entry) = self.links.get(&key) else {
            log::debug!(
                "engine: {} for a connection {key} of which nothing is left to do",
                event.event()
            );
            return;
        };
        log::debug!(target: "rdmsg::cm", "{}: {}{}", entry.link, event.event(), Status(event.status()));
        let now = Instant::now();
        if event.event() == CmEventType::DISCONNECTED {
            // What the peer sent before it disconnected is in the queue already, and comes first.
            entry.link.catch_up();
        }
        entry
            .link
            .in_engine(|core| core.conn.handle_cm_event(cm_input(&event), now));
        self.drive(key);
    }
}

/// An event's status for the log: nothing where there is none.
struct Status(i32);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 {
            Ok(())
        } else {
            write!(f, ", status {}", self.0)
        }
    }
}

/// The READs that the peer's request or acceptance allows.
pub(super) fn read_depth(event: &CmEvent) -> ReadDepth {
    event.conn().map_or(
        ReadDepth {
            outgoing: 0,
            incoming: 0,
        },
        |param| ReadDepth {
            outgoing: param.initiator_depth,
            incoming: param.responder_resources,
        },
    )
}

/// The state machine's view of an event.
fn cm_input(event: &CmEvent) -> CmInput<'_> {
    let status = event.cm_status();
    match event.event() {
        CmEventType::ADDR_RESOLVED => CmInput::AddrResolved,
        CmEventType::ADDR_ERROR => CmInput::AddrError(status),
        CmEventType::ROUTE_RESOLVED => CmInput::RouteResolved,
        CmEventType::ROUTE_ERROR => CmInput::RouteError(status),
        CmEventType::CONNECT_RESPONSE => CmInput::ConnectResponse,
        CmEventType::CONNECT_ERROR => CmInput::ConnectError(status),
        CmEventType::UNREACHABLE => CmInput::Unreachable(status),
        CmEventType::REJECTED => CmInput::Rejected {
            reason: event.reject_reason(),
            private_data: event.private_data(),
        },
        CmEventType::ESTABLISHED => CmInput::Established {
            private_data: event.private_data(),
            reads: read_depth(event),
        },
        CmEventType::DISCONNECTED => CmInput::Disconnected,
        CmEventType::DEVICE_REMOVAL => CmInput::DeviceRemoval,
        CmEventType::ADDR_CHANGE => CmInput::AddrChange,
        CmEventType::TIMEWAIT_EXIT => CmInput::TimewaitExit,
        other => CmInput::Other(other.raw()),
    }
}
