//! Handles completions and connection-manager events.

use std::{io, mem};

use rdma_status::{CmEventType, RejectReason, WcStatus};
use rdma_verbs::cm::CmEvent;
use rdma_verbs::verbs::{MemoryRegion, WorkCompletion};

use super::{
    End, Link, MIN_RNR_TIMER, OTHER, Opening, Peer,
    notification::{RECEIVE, WRITE_ID},
};
use crate::wire::{ConnData, Immediate, Window, is_rejection_of_endpoints};

/// The error message if the connection ends before the peer has closed the stream.
const LOST: &str = "the peer disconnected without closing the stream";
const NO_RSOCKET: &str = "the peer is not an rsocket of this protocol version";

impl Link {
    /// Handles completions and, if `events` is true, connection-manager events. Sends the updates
    /// that are due. Returns true if a completion or an event was handled.
    pub(crate) fn progress(&mut self, events: bool) -> bool {
        let mut any = false;
        let result = self.take_completions(&mut any).and_then(|()| {
            while events && let Some(event) = self.events.poll_event()? {
                any = true;
                // Handle completions before the event, so that data that arrived earlier is
                // delivered even if the event ends the connection.
                self.take_completions(&mut any)?;
                self.handle(&event);
            }
            Ok(())
        });
        if let Err(error) = result {
            self.lose(error.to_string());
        }
        self.update();
        any
    }

    /// Discards the events on the completion channel. Requests an event for the next completion.
    pub(crate) fn arm(&mut self) -> io::Result<()> {
        while self.done.get_event()?.is_some() {}
        Ok(self.cq.req_notify(false)?)
    }

    fn handle(&mut self, event: &CmEvent) {
        debug!(
            Rsocket,
            "{}: received the connection-manager event {}",
            self.name,
            event.event()
        );
        match event.event() {
            CmEventType::ESTABLISHED => {
                // The accepting side has already read the peer's parameters from the connection
                // request.
                if self.peer.is_none() {
                    match ConnData::from_bytes(event.private_data()) {
                        Some(peer) => self.peer = Some(Peer::new(peer)),
                        None => return self.lose(NO_RSOCKET),
                    }
                }
                self.established = true;
                let timer = self.qp.set_min_rnr_timer(MIN_RNR_TIMER);
                if let Err(error) = timer
                    .map_err(io::Error::from)
                    .and_then(|()| self.send_pending())
                {
                    self.lose(error.to_string());
                }
            }
            CmEventType::DISCONNECTED => self.lose(LOST),
            // The peer disconnected before it was notified that the connection was established.
            CmEventType::REJECTED if self.established => self.lose(LOST),
            CmEventType::REJECTED => {
                let why = rejection_cause(event.reject_reason(), event.private_data());
                let end = End::Lost(io::ErrorKind::ConnectionRefused, why);
                self.end.get_or_insert(end);
            }
            CmEventType::ADDR_CHANGE | CmEventType::TIMEWAIT_EXIT => {}
            other => self.lose(format!("{other}: {}", event.cm_status())),
        }
    }

    fn take_completions(&mut self, any: &mut bool) -> io::Result<()> {
        if self.peer.is_none() {
            // Completions can arrive before the ESTABLISHED event. The private data in that event
            // is needed to handle the completions, so they are handled later.
            return Ok(());
        }
        let mut completions = [WorkCompletion::default(); 16];
        // A peer that sends faster than this thread handles completions could keep the thread in
        // this loop. Therefore handle at most about one full queue of completions.
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
        let received = (wr_id & RECEIVE != 0).then_some((wr_id & !RECEIVE) as u32);
        if received.is_none() {
            // When a connection ends, software iWARP may complete a request twice: first with an
            // error, then as flushed. The counter must not fall below 0.
            self.posted = self.posted.saturating_sub(1);
        }
        if !completion.is_success() {
            match completion.status() {
                // An earlier failure caused the flush. Another completion or an event reports that
                // failure.
                WcStatus::WR_FLUSH_ERR => {}
                // The iWARP driver detected that the TCP connection has ended. A connection-manager
                // event reports the cause.
                WcStatus::LOC_QP_OP_ERR
                    if received.is_none() && self.notification.active_speaks_first() => {}
                status => self.lose(format!("a work request failed: {status}")),
            }
            return Ok(());
        }
        if let Some(number) = received {
            let word = self.notification.received_word(completion, number);
            if self.end.is_none() {
                self.notification.post_receive(&self.qp, number)?;
            }
            self.receive(word.and_then(Immediate::decode));
            if mem::replace(&mut self.opening, Opening::Over) == Opening::Awaited {
                self.send_pending()?;
            }
            return Ok(());
        }
        match wr_id {
            WRITE_ID => {}
            OTHER => self.free_control += 1,
            freed => {
                self.free += 1;
                // The cast is lossless, because `freed` is the length of a range of the send
                // buffer.
                self.ring.free(freed as usize);
            }
        }
        Ok(())
    }

    fn receive(&mut self, immediate: Option<Immediate>) {
        match immediate {
            Some(Immediate::Data(len)) => {
                if self.receiving.arrived(len).is_err() {
                    self.lose(
                        "the peer violated the protocol: it wrote beyond its windows or credits",
                    );
                }
            }
            Some(Immediate::Credits(limit)) => {
                let table = &self.table;
                if let Some(peer) = &mut self.peer {
                    let take = |table_index| take_window(table, table_index);
                    peer.sending.allowed(limit, take);
                }
            }
            Some(Immediate::Mapping | Immediate::Keepalive) => {}
            // The message shuts down the direction from the peer. If this side has already shut
            // down the direction to the peer, the next `match` arm ends the connection.
            Some(Immediate::Shutdown) if self.writable => self.readable = false,
            Some(Immediate::Shutdown | Immediate::Disconnect) => {
                self.end.get_or_insert(End::Disconnected);
            }
            None => self.lose("the peer violated the protocol: it sent unknown immediate data"),
        }
    }
}

pub(super) fn rejection_cause(reason: RejectReason, private_data: &[u8]) -> String {
    if reason.is_consumer() && is_rejection_of_endpoints(private_data) {
        return "rejected: the peer is an rdmsg::Listener, which accepts endpoints, not rsockets: \
                use rdmsg::Endpoint on this side, or rdmsg_rsocket::Listener on the other side"
            .into();
    }
    match reason.explanation() {
        Some(explanation) => explanation.into(),
        None => format!("the peer rejected the connection: {reason}"),
    }
}

/// Removes the window at the index `table_index` from the table. Returns `None` if the window is
/// not complete yet.
///
/// Clearing the entry cannot erase a later window: the peer stores its next window at this index
/// only after this side has filled the removed window.
fn take_window(table: &MemoryRegion, table_index: u32) -> Option<Window> {
    let offset = table_index as usize * Window::LEN;
    let mut bytes = [0; Window::LEN];
    table.copy_out(offset, &mut bytes);
    let window = Window::from_ne(bytes);
    if window.addr == 0 || window.length == 0 {
        return None;
    }
    table.copy_in(offset, &[0; Window::LEN]);
    Some(window)
}
