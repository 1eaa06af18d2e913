//! Handling of completions and of connection manager events.

use std::io;

use rdma_status::{CmEventType, WcStatus};
use rdma_verbs::{cm::CmEvent, verbs::WorkCompletion};
use rdmsg_os::debug;

use super::{COMMAND, End, Link, RECEIVE};
use crate::command::{self, Command};

impl Link {
    /// Polls completions, and with `events` also events. Returns whether there were any.
    pub(crate) fn progress(&mut self, events: bool) -> bool {
        let mut any = false;
        let result = self.take_completions(&mut any).and_then(|()| {
            while events && let Some(event) = self.events.poll_event()? {
                any = true;
                // Data that arrived before the end is delivered.
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

    /// Requests a notification of the next completion. Returns whether there was one.
    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        let mut any = false;
        while self.done.get_event()?.is_some() {
            any = true;
        }
        self.cq.req_notify(false)?;
        Ok(any)
    }

    fn handle(&mut self, event: &CmEvent) -> io::Result<()> {
        debug!(Valkey, "{}: {}", self.name, event.event());
        match event.event() {
            CmEventType::CONNECT_RESPONSE => {
                self.bring_up()?;
                self.id.establish()?;
                self.established();
            }
            CmEventType::ESTABLISHED => self.established(),
            CmEventType::DISCONNECTED => {
                self.end.get_or_insert(End::Disconnected);
                // The reply, for which the peer waits. It fails if this side disconnected first.
                if let Err(error) = self.id.disconnect() {
                    debug!(Valkey, "{}: cannot confirm the end: {error}", self.name);
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
            // A client may send before the event arrives. A violation could not disconnect it yet.
            return Ok(());
        }
        let mut completions = [WorkCompletion::default(); 16];
        // At most the capacity of the queue, because a peer may send faster than this loop runs.
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
                // The id of a write is its length.
                self.ring.give_back(wr_id as usize);
            }
            // A flush is a consequence: an earlier failure or an event reports the cause.
            WcStatus::WR_FLUSH_ERR => {}
            status => self.lose(format!("a work request failed: {status}")),
        }
        Ok(())
    }

    /// Handles a write or a command of the peer, which took the receive with this number.
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
                // The device refuses longer messages.
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
