//! A queue pair with a connection manager id. [`Connection::completion`] waits for completions and
//! for connection manager events simultaneously.

use std::{collections::VecDeque, os::fd::AsFd, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdmsg::{
    cm::{CmId, ConnParam, EventChannel},
    status::{CmEventType, WcStatus},
    verbs::{
        CompletionChannel, CompletionQueue, ProtectionDomain, QpCap, QpInitAttr, QpState,
        QueuePair, Success, WorkCompletion,
    },
};

use crate::{Result, cm::step};

/// The time limit of each step in establishing a connection, and of the wait for the peer's
/// disconnect. The wait for a completion has no time limit.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// One side of a connection.
#[derive(Debug)]
pub struct Connection {
    id: CmId,
    events: EventChannel,
    /// Whether the program creates the queue pair and changes its state, with attributes from the
    /// id. If false, the id creates the queue pair and changes its state.
    own_qp: bool,
    /// The queue pair, to which the program posts work requests.
    pub qp: QueuePair,
    /// The protection domain, in which the program registers memory.
    pub pd: ProtectionDomain,
    cq: CompletionQueue,
    done: CompletionChannel,
    /// The completions that the program has not retrieved yet.
    completed: VecDeque<Success>,
    connected: bool,
}

impl Connection {
    /// Creates the objects that the id needs before it connects or accepts. The caller must then
    /// post receives, because the peer can send as soon as the connection is established. `events`
    /// must be the event channel of the id, and no other id may use this channel. If `own_qp` is
    /// true, the program creates the queue pair and changes its state. If false, the id does both.
    ///
    /// # Errors
    ///
    /// Fails if an object cannot be created.
    pub fn new(mut id: CmId, events: EventChannel, cap: QpCap, own_qp: bool) -> Result<Self> {
        let device = id.verbs().ok_or("the device was removed")?;
        let pd = ProtectionDomain::new(&device)?;
        let done = CompletionChannel::new(&device)?;
        let entries = cap.max_send_wr + cap.max_recv_wr;
        let cq = CompletionQueue::new(&device, entries, Some((&done, 0)))?;
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = if own_qp {
            let qp = QueuePair::new(&pd, &attr)?;
            // A queue pair in the state INIT accepts receives.
            qp.modify(&id.init_qp_attr(QpState::INIT)?)?;
            qp
        } else {
            id.create_qp(&pd, &attr)?
        };
        Ok(Self {
            id,
            events,
            own_qp,
            qp,
            pd,
            cq,
            done,
            completed: VecDeque::new(),
            connected: false,
        })
    }

    /// Accepts the id's connection request.
    ///
    /// # Errors
    ///
    /// Fails if a call fails, or if the next event is not ESTABLISHED.
    pub fn accept(&mut self, param: ConnParam) -> Result<()> {
        if self.own_qp {
            self.bring_up()?;
        }
        self.id.accept(&self.with_qp(param))?;
        self.established(CmEventType::ESTABLISHED)
    }

    /// Connects the id, whose route must already be resolved.
    ///
    /// # Errors
    ///
    /// Fails if a call fails, or if the next event has an unexpected type. The expected event is
    /// CONNECT_RESPONSE if the program created the queue pair, and ESTABLISHED if the id did.
    pub fn connect(&mut self, param: ConnParam) -> Result<()> {
        self.id.connect(&self.with_qp(param))?;
        if !self.own_qp {
            return self.established(CmEventType::ESTABLISHED);
        }
        self.established(CmEventType::CONNECT_RESPONSE)?;
        self.bring_up()?;
        Ok(self.id.establish()?)
    }

    fn with_qp(&self, param: ConnParam) -> ConnParam {
        if !self.own_qp {
            return param;
        }
        ConnParam {
            qp_num: self.qp.qp_num(),
            ..param
        }
    }

    /// Moves the program's queue pair to RTR and RTS. The attributes come from the id, which has
    /// received the peer's attributes, such as the queue pair number.
    fn bring_up(&mut self) -> Result<()> {
        // When the program first set the state INIT, the peer's access rights were not known yet.
        // So set INIT a second time.
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            self.qp.modify(&self.id.init_qp_attr(state)?)?;
        }
        Ok(())
    }

    fn established(&mut self, expected: CmEventType) -> Result<()> {
        step(&self.events, expected, TIME_LIMIT)?;
        self.connected = true;
        Ok(())
    }

    /// Disconnects, or confirms that the peer has disconnected.
    ///
    /// # Errors
    ///
    /// Fails if a call fails.
    pub fn disconnect(&mut self) -> Result<()> {
        if self.own_qp {
            self.qp.to_err()?;
        }
        self.id.disconnect()?;
        if self.connected {
            // Ignore a timeout: the program has finished, so it does not need the peer's
            // confirmation.
            self.events.wait_event(TIME_LIMIT)?;
        }
        Ok(())
    }

    /// Waits for the next completion. Returns `None` when the peer has disconnected and the queue
    /// is empty.
    ///
    /// # Errors
    ///
    /// Fails if a work request failed for a reason other than a flush, or if an event other than
    /// ESTABLISHED or DISCONNECTED arrives.
    pub fn completion(&mut self) -> Result<Option<Success>> {
        loop {
            if let Some(success) = self.completed.pop_front() {
                return Ok(Some(success));
            }
            if !self.connected {
                return Ok(None);
            }
            // Poll between `req_notify` and the wait, because completions before `req_notify` cause
            // no event.
            self.cq.req_notify(false)?;
            if self.take_completions()? {
                continue;
            }
            let mut files = [self.done.as_fd(), self.events.as_fd()]
                .map(|file| PollFd::new(file, PollFlags::POLLIN));
            match poll(&mut files, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            while self.done.get_event()?.is_some() {}
            if let Some(event) = self.events.poll_event()? {
                log::info!("received the event {}", event.event());
                match event.event() {
                    CmEventType::ESTABLISHED => {}
                    CmEventType::DISCONNECTED => self.connected = false,
                    other => return Err(format!("{other}: {}", event.cm_status()).into()),
                }
                // Completions that arrived before the end of the connection are still valid.
                self.take_completions()?;
            }
        }
    }

    fn take_completions(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); 16];
        let count = self.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            // Ignore a flushed request, because an event reports that the connection is ending.
            if completion.status() != WcStatus::WR_FLUSH_ERR {
                self.completed.push_back(completion.result()?);
            }
        }
        Ok(count > 0)
    }
}
