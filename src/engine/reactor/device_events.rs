//! Handles the events of devices.
//!
//! | event | effect |
//! |---|---|
//! | `PORT_ERR` | pings those connections of the port that can resume; see [`SUSPICION`] |
//! | `PORT_ACTIVE` | cancels the time limit of these pings by restarting the keepalive timers |
//! | `QP_FATAL`, `QP_REQ_ERR`, `QP_ACCESS_ERR` | ends the connection of the queue pair |
//! | `CQ_ERR` | ends the connection of the completion queue |
//! | `SRQ_ERR` | ends the connections that share the receive queue |
//! | `DEVICE_FATAL` | ends all connections of the device |
//! | `GID_CHANGE`, `LID_CHANGE` | is only logged |
//!
//! The loss of a link alone ends no connection, because most links return within the time that the
//! queue pairs and keepalive tolerate. A connection without [`Config::resume`] is not pinged,
//! because on software RoCE a queue pair fails if it sends while the link is down. All events are
//! counted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{BATCH, Reactor};
use crate::{
    config::Config,
    engine::command::Command,
    os::{PerProcess, lock},
    transport::{DeviceEvent, Effect},
};

/// The time limit for the answer to a ping that is sent after a port has lost its link. If no
/// answer arrives in time, the session resumes over another connection.
const SUSPICION: Duration = Duration::from_millis(500);

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

/// Returns whether the event affects connections with this configuration.
fn concerns(effect: Effect, config: &Config) -> bool {
    match effect {
        Effect::Suspect { .. } | Effect::Trust { .. } => !config.resume.is_zero(),
        Effect::End(..) => true,
        Effect::Addresses | Effect::Nothing => false,
    }
}

impl Reactor {
    /// Reads and handles the events of a device. Each event can be read only once, so this engine
    /// passes the events that it reads to the other engines.
    pub(super) fn handle_device_events(&mut self, device: u64) {
        for _ in 0..BATCH {
            let Some(event) = self.manager.poll_device(device) else {
                return;
            };
            count(&event);
            let pass_on = || Command::Device(event.clone());
            self.registration.send_to_others(pass_on);
            let affected = self.handle_device_event(&event);
            report(&event, affected);
        }
        // If events remain, the descriptor stays readable, and the next iteration reads them.
    }

    /// Applies the effect of an event. Returns the number of affected connections.
    pub(super) fn handle_device_event(&mut self, event: &DeviceEvent) -> usize {
        let concerned = self.links.iter().filter(|(_, entry)| {
            concerns(event.effect, &entry.config) && entry.id.is_affected_by(event)
        });
        let concerned: Vec<u64> = concerned.map(|(key, _)| *key).collect();
        for key in &concerned {
            self.affect(*key, event.effect);
            self.handle_deadlines();
        }
        concerned.len()
    }

    fn affect(&mut self, key: u64, effect: Effect) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        // The completion queue may already contain messages from the peer, which also show that the
        // peer is alive. Handle them first. If an application thread holds the lock of the queue,
        // that thread handles them.
        entry.link.catch_up();
        entry.link.in_engine(|core| {
            let now = Instant::now();
            match effect {
                Effect::Suspect { .. } => core.conn.suspect_path(SUSPICION, now),
                Effect::Trust { .. } => core.conn.trust_path(now),
                Effect::End(_, fault) => core.conn.handle_device_fault(fault, now),
                Effect::Addresses | Effect::Nothing => {}
            }
        });
        self.drive(key);
    }
}

fn report(event: &DeviceEvent, count: usize) {
    let DeviceEvent {
        name,
        event,
        effect,
        ..
    } = event;
    match effect {
        Effect::Suspect { port } => warn_sparsely!(
            Rdma,
            "device {name}: the link of port {port} was lost ({event}); probing {count} connections"
        ),
        Effect::Trust { port } => {
            info_sparsely!(
                Rdma,
                "device {name}: the link of port {port} is active ({event})"
            );
        }
        Effect::End(_, fault) => {
            warn_sparsely!(Rdma, "device {name}: {fault}; ended {count} connections");
        }
        Effect::Addresses => {
            info_sparsely!(
                Rdma,
                "device {name}: the device's addresses changed ({event})"
            )
        }
        Effect::Nothing => debug!(Rdma, "device {name}: reported {event}"),
    }
}

/// Counts an event of a device.
fn count(event: &DeviceEvent) {
    let key = (Arc::clone(&event.name), Arc::clone(&event.event));
    *lock(COUNTS.get()).entry(key).or_default() += 1;
}

/// Returns the number of events that devices have reported to this process, by device and event.
pub(crate) fn device_events() -> Vec<DeviceEvents> {
    let counts = lock(COUNTS.get());
    let all = counts.iter().map(|((device, event), count)| DeviceEvents {
        device: device.to_string(),
        event: event.to_string(),
        count: *count,
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_link_concerns_sessions_alone() {
        let plain = Config::default();
        let session = Config::default().with(|config| config.resume = Duration::from_secs(60));
        let lost = Effect::Suspect { port: 1 };
        assert!(!concerns(lost, &plain));
        assert!(concerns(lost, &session));
        assert!(!concerns(Effect::Addresses, &session));
    }
}
