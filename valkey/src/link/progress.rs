//! Handles completions and connection-manager events.

use std::io;

use rdma_status::{CmEventType, WcStatus};
use rdma_verbs::{cm::CmEvent, verbs::WorkCompletion};
use rdmsg_os::debug;

use super::{COMMAND, End, Link, RECEIVE};
use crate::command::{self, Command};

impl Link {
    /// Handles completions and, if `events` is true, connection-manager events. Returns true if
    /// there was at least one completion or event.
    pub(crate) fn progress(&mut self, events: bool) -> bool {
        let mut any = false;
        let result = self.take_completions(&mut any).and_then(|()| {
            while events && let Some(event) = self.events.poll_event()? {
                any = true;
                // The event may end the connection. Poll completions first, because they deliver
                // the data that arrived before the event.
                self.take_completions(&mut any)?;
                self.handle(&event)?;
            }
            Ok(())
        });
        if let Err(error) = result {
            self.lose(error.to_string());
        }
        self.send_pending();
        any
    }

    /// Consumes pending events of the completion channel, and requests an event for the next
    /// completion. Returns true if an event was pending.
    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        let mut any = false;
        while self.done.get_event()?.is_some() {
            any = true;
        }
        self.cq.req_notify(false)?;
        Ok(any)
    }

    fn handle(&mut self, event: &CmEvent) -> io::Result<()> {
        debug!(
            Valkey,
            "{}: the connection manager reported {}",
            self.name,
            event.event()
        );
        match event.event() {
            CmEventType::CONNECT_RESPONSE => {
                self.bring_up()?;
                self.id.establish()?;
                self.established();
            }
            CmEventType::ESTABLISHED => self.established(),
            CmEventType::DISCONNECTED => {
                self.end.get_or_insert(End::Disconnected);
                // The peer waits for this side to disconnect. This call fails if this side has
                // already disconnected.
                if let Err(error) = self.id.disconnect() {
                    debug!(
                        Valkey,
                        "{}: cannot confirm the disconnection: {error}", self.name
                    );
                }
            }
            CmEventType::REJECTED if !self.established => {
                let reason = event.reject_reason();
                let text = match reason.explanation() {
                    Some(explanation) => explanation.to_owned(),
                    None => format!("the peer rejected the connection: {reason}"),
                };
                let end = End::Lost(io::ErrorKind::ConnectionRefused, text);
                self.end.get_or_insert(end);
            }
            CmEventType::ADDR_CHANGE | CmEventType::TIMEWAIT_EXIT => {}
            other => self.lose(format!("{other}: {}", event.cm_status())),
        }
        Ok(())
    }

    fn established(&mut self) {
        if !self.established {
            self.established = true;
            self.session.established();
        }
    }

    fn take_completions(&mut self, any: &mut bool) -> io::Result<()> {
        if !self.established {
            // Completions can arrive before the ESTABLISHED event. They are handled after that
            // event, because until then this side cannot disconnect a client that violates the
            // protocol.
            return Ok(());
        }
        let mut completions = [WorkCompletion::default(); 16];
        // A peer that sends faster than this thread handles completions could keep the thread in
        // the loop. Therefore limit the loop to about one full queue of completions.
        for _ in 0..=self.cq.cqe() as usize / completions.len() {
            let count = self.cq.poll(&mut completions)?;
            for completion in &completions[..count] {
                *any = true;
                self.complete(completion)?;
            }
            if count < completions.len() {
                break;
            }
        }
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> io::Result<()> {
        let wr_id = completion.wr_id();
        match completion.status() {
            WcStatus::SUCCESS if wr_id & RECEIVE != 0 => {
                self.receive(completion, (wr_id & !RECEIVE) as u32)?;
            }
            WcStatus::SUCCESS if wr_id == COMMAND => self.free_commands += 1,
            WcStatus::SUCCESS => {
                self.free += 1;
                // The work request id of a write is the write's length in bytes.
                self.ring.free(wr_id as usize);
            }
            // An earlier failure caused the flush. Another completion or an event reports that
            // failure.
            WcStatus::WR_FLUSH_ERR => {}
            status => self.lose(format!("a work request failed: {status}")),
        }
        Ok(())
    }

    /// Handles a completed receive: the peer's write or command that consumed the receive `number`.
    fn receive(&mut self, completion: &WorkCompletion, number: u32) -> io::Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        let result = match completion.imm_data() {
            Some(len) => self.session.arrived(len),
            None => {
                let mut bytes = [0; command::LEN];
                self.commands
                    .copy_out(number as usize * command::LEN, &mut bytes);
                // The device refuses messages longer than the receive buffer, so `min` has an
                // effect only if the device reports a wrong length.
                let len = (completion.byte_len() as usize).min(command::LEN);
                Command::parse(&bytes[..len]).and_then(|command| self.session.handle(command))
            }
        };
        match result {
            Ok(()) => self.post_receive(number),
            Err(error) => {
                self.violate(error);
                Ok(())
            }
        }
    }
}
