//! The faults of the scenarios.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::Result;
use toolbox::clock_millis;

use super::{Conductor, PATIENCE, bound};
use crate::{
    network,
    scenario::{Fault, Scenario},
};

impl Conductor {
    /// Causes the fault, and waits for the end of both sides.
    pub(super) fn strike(&mut self, one: &Scenario, server: SocketAddr) -> Result<[u64; 2]> {
        let mut began = [clock_millis(); 2];
        let seconds = Duration::from_secs;
        match one.fault {
            Fault::Nothing | Fault::Network(_) | Fault::ProcessLeaves => {}
            Fault::Cut(time) | Fault::CutWhileClosing(time) => {
                began = self.impair("loss 100%")?;
                if one.fault == Fault::CutWhileClosing(time) {
                    self.tell_both("stop")?;
                }
                thread::sleep(seconds(time));
                self.a.shell(toolbox::network::REPAIR)?;
                self.b.shell(toolbox::network::REPAIR)?;
            }
            Fault::ProcessKilled => drop(self.b.agent.signal("KILL")?),
            Fault::ProcessStopped(time) => {
                self.b.agent.signal("STOP")?;
                thread::sleep(seconds(time));
                began[1] = self.b.agent.signal("CONT")?;
            }
            Fault::ServerRestarts(times) => {
                self.b
                    .wait("back", |notes| notes.flowing > times, 2 * PATIENCE)?;
            }
            Fault::Strangers => drop(self.a.shell(&network::strangers(server))?),
            Fault::DeviceRemoved => began[1] = self.b.shell(network::REMOVE_DEVICE)?,
            Fault::AddressChanged => began[1] = self.b.shell(&network::change_address())?,
            Fault::HostKilled => self.b.agent.die()?,
        }
        let (leaves, kills) = (one.fault == Fault::ProcessLeaves, one.fault.kills());
        // Connections that break need no order.
        if !kills && !matches!(one.fault, Fault::DeviceRemoved | Fault::AddressChanged) {
            self.b.agent.tell("stop")?;
            if !leaves {
                self.a.agent.tell("stop")?;
            }
        }
        // The windows bound the messages in flight, and the configuration bounds every wait.
        let patience = 2 * PATIENCE + bound(one, 1.0);
        self.a.end(patience, true)?;
        if !kills {
            self.b.agent.tell("over")?;
            self.b.end(patience, !leaves)?;
        }
        Ok(began)
    }

    /// Impairs both hosts' networks, and returns when that had an effect on each side.
    pub(super) fn impair(&mut self, netem: &str) -> Result<[u64; 2]> {
        let script = toolbox::network::impair(netem);
        self.a.shell(&script)?;
        let begin_of_b = self.b.shell(&script)?;
        // Until now packets of host b may have come.
        Ok([clock_millis(), begin_of_b])
    }
}
