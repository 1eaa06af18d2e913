//! A queue pair with an id of the connection manager, and one call that waits for events of both.

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

/// The time limit for each step of establishing a connection. Once connected, the peer may be
/// silent without a limit.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    id: CmId,
    events: EventChannel,
    /// Whether the program moves the queue pair from state to state, with attributes from the id.
    /// Otherwise the id moves it.
    own_qp: bool,
    /// The queue pair for the program's work requests.
    pub qp: QueuePair,
    /// The protection domain for the program's memory.
    pub pd: ProtectionDomain,
    cq: CompletionQueue,
    done: CompletionChannel,
    /// Completions that the program has not taken.
    completed: VecDeque<Success>,
    connected: bool,
}

impl Connection {
    /// Creates the objects that an id needs before it connects or accepts. After this, post
    /// receives, because the peer may send at once. Only events of this id arrive on `events`. With
    /// `own_qp` the program moves the queue pair from state to state.
    ///
    /// # Errors
    ///
    /// Errors of the verbs that make it.
    pub fn new(mut id: CmId, events: EventChannel, cap: QpCap, own_qp: bool) -> Result<Self> {
        let device = id.verbs().ok_or("the device is gone")?;
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
            // Before this state the queue pair accepts no receives.
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

    /// Accepts the id's request.
    ///
    /// # Errors
    ///
    /// Errors of the calls, and if another event than ESTABLISHED arrives.
    pub fn accept(&mut self, param: ConnParam) -> Result<()> {
        if self.own_qp {
            self.bring_up()?;
        }
        self.id.accept(&self.with_qp(param))?;
        self.established(CmEventType::ESTABLISHED)
    }

    /// Connects the id, whose route is resolved.
    ///
    /// # Errors
    ///
    /// Errors of the calls, and if another event than ESTABLISHED arrives.
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

    /// Moves the program's queue pair to RTR and RTS, with the attributes of the peer from the id.
    fn bring_up(&mut self) -> Result<()> {
        // INIT is set again, because the id knows the peer's access rights only now.
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            self.qp.modify(&self.id.init_qp_attr(state)?)?;
        }
        Ok(())
    }

    fn established(&mut self, wanted: CmEventType) -> Result<()> {
        step(&self.events, wanted, TIME_LIMIT)?;
        self.connected = true;
        Ok(())
    }

    /// Disconnects, or confirms that the peer has.
    ///
    /// # Errors
    ///
    /// Errors of the calls.
    pub fn disconnect(&mut self) -> Result<()> {
        if self.own_qp {
            self.qp.to_err()?;
        }
        self.id.disconnect()?;
        if self.connected {
            // The work is done even if the peer does not confirm.
            self.events.wait_event(TIME_LIMIT)?;
        }
        Ok(())
    }

    /// Waits for the next completion. Returns `None` when the peer has disconnected and no
    /// completion is left.
    ///
    /// # Errors
    ///
    /// If a work request failed for another reason, and other ends of the connection.
    pub fn completion(&mut self) -> Result<Option<Success>> {
        loop {
            if let Some(success) = self.completed.pop_front() {
                return Ok(Some(success));
            }
            if !self.connected {
                return Ok(None);
            }
            // To miss no completion: first request an event, then poll, then sleep.
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
                log::info!("{}", event.event());
                match event.event() {
                    CmEventType::ESTABLISHED => {}
                    CmEventType::DISCONNECTED => self.connected = false,
                    other => return Err(format!("{other}: {}", event.cm_status()).into()),
                }
                // Completions before the end count.
                self.take_completions()?;
            }
        }
    }

    fn take_completions(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); 16];
        let count = self.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            // The connection is ending, which an event reports, too.
            if completion.status() != WcStatus::WR_FLUSH_ERR {
                self.completed.push_back(completion.result()?);
            }
        }
        Ok(count > 0)
    }
}
