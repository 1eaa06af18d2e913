//! The state machine of a connection and its work queues, protected by one lock: see
//! [`Link`](super::link::Link).

use std::{
    collections::VecDeque,
    io::IoSlice,
    sync::{Arc, atomic::AtomicUsize},
    time::Instant,
};

use log::Level;

use super::{
    completion::{Completion, Ended},
    cork::Cork,
    deferred::Deferred,
    destination::GroupQueue,
    inbox::Inlet,
    liveness::PeerLiveness,
    message::{Batches, MessageOwner},
    receive::Recipient,
    reports::Reports,
    send::refused_send,
    sent_order::CompletedSend,
    session::{LinkSession, Recovery, State},
    stall::StallWatch,
};
use crate::{
    error::Error,
    proto::{
        Clock, CloseReason, CmInput, CmOp, Connection, Event, Note, Output, SessionOver, Stall,
        Statistics, Transmit, Work,
    },
    tally,
    transport::{Done, PostError, Posted, ReceiveShare, WorkQueues},
};

/// The state machine of a connection, with the work queues that it controls.
pub(crate) struct Core {
    pub(crate) conn: Connection,
    pub(crate) queues: Option<WorkQueues>,
    /// This connection's share of the shared receive queue, if the connection uses one.
    pub(crate) share: Option<ReceiveShare>,
    /// The receive buffers that contain several messages.
    pub(super) batches: Batches,
    /// Stream bytes for which the window has no room yet.
    pub(super) cork: Cork,
    /// Pending connection manager operations, which the engine's thread performs.
    pub(crate) cm_ops: VecDeque<CmOp>,
    pub(crate) established: bool,
    /// True once all private data of a long request have arrived; the engine's thread can then
    /// handle the request. The private data of a long request do not fit into the connect request,
    /// and follow in a frame.
    pub(crate) requested: bool,
    /// The signs of life that all connections to the peer's engine share. Set when the connection
    /// is established.
    pub(crate) liveness: Option<PeerLiveness>,
    /// The reason for the end of the connection, and whether all messages arrived. Set once. Then
    /// the link puts the `Disconnected` completion into the queue.
    pub(crate) ended: Option<Ended>,
    pub(crate) reports: Reports,
    /// The counters of all earlier connections of the session, added up.
    pub(super) past: Option<Box<Statistics>>,
    /// The state that survives the loss of a connection. `None` without a session.
    pub(crate) session: Option<Box<LinkSession>>,
    /// The session's message counts. Set after this side has closed the session.
    pub(crate) over: Option<SessionOver>,
    /// The index of the current connection in its session, from 0.
    pub(super) generation: u32,
    /// The owner of the messages that arrive over a resumed connection. Dropped messages return
    /// their credit to this owner.
    pub(super) ring: Option<Arc<dyn MessageOwner>>,
    /// Whether a Finish frame has arrived, on this or an earlier connection of the session.
    pub(super) finish_arrived: bool,
    /// Whether a Leave frame has arrived, on this or an earlier connection of the session.
    pub(super) leave_arrived: bool,
    /// Detects sends that stall, for the log.
    pub(super) stall: StallWatch,
    /// The time when the last ping was posted; `None` after its pong has arrived, and while the
    /// statistics of the process are disabled.
    pinged: Option<Instant>,
    pub(super) deferred: Deferred,
}

/// A clock that reads the system time at each call.
#[derive(Clone, Copy)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(self) -> Instant {
        Instant::now()
    }
}

impl Core {
    pub(crate) fn new(
        conn: Connection,
        completions: Inlet,
        set_aside: Arc<AtomicUsize>,
        max_ids: usize,
    ) -> Self {
        Self {
            conn,
            queues: None,
            share: None,
            batches: Batches::default(),
            cork: Cork::default(),
            cm_ops: VecDeque::new(),
            established: false,
            requested: false,
            liveness: None,
            ended: None,
            reports: Reports::new(completions, set_aside, max_ids),
            past: None,
            session: None,
            over: None,
            generation: 0,
            ring: None,
            finish_arrived: false,
            leave_arrived: false,
            stall: StallWatch::default(),
            pinged: None,
            deferred: Deferred::default(),
        }
    }

    pub(crate) fn reason(&self) -> CloseReason {
        // The state machine does not know the reason if `cut_off` has ended the connection.
        match (&self.ended, self.conn.close_reason()) {
            (Some(Ended { reason, .. }), _) | (None, Some(reason)) => reason.clone(),
            (None, None) => CloseReason::LocallyClosed,
        }
    }

    /// Attempts to complete the keepalive check that is due. On success, returns the next deadline
    /// (`Some(None)` if there is no deadline). Returns `None` if the check cannot be completed,
    /// because the peer has given no signs of life or because something else is due, such as a ping
    /// or a trial of RDMA. The caller must then poll the completion queue before it calls
    /// [`handle_timeout`](Self::handle_timeout), because the queue may contain signs of life.
    pub(crate) fn passes_check(&mut self, now: Instant) -> Option<Option<Instant>> {
        let tries_rdma = self.recovery().next_trial_at().is_some_and(|at| at <= now);
        let liveness = self
            .liveness
            .as_ref()
            .filter(|_| !self.sends_again() && !tries_rdma)?;
        let passes = self.conn.passes_check(liveness.activity(), now);
        passes.then(|| self.recovery().next_timeout())
    }

    /// Handles expired deadlines. Before the state machine decides whether the peer is alive, this
    /// function passes three values to it: the signs of life on all connections to the peer's
    /// engine, the number of bytes transferred so far (including incomplete frames), and whether
    /// other connections wait for memory that messages from the peer's host occupy.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.recovery().expire(now) {
            return;
        }
        if self.conn.judges_peer_at(now)
            && let Some(moved) = self.queues.as_ref().and_then(WorkQueues::moved)
        {
            let before = self.conn.peer_activity();
            self.conn.set_moved(moved);
            if let Some(liveness) = &self.liveness {
                liveness.add(before, self.conn.peer_activity());
            }
        }
        if let Some(liveness) = &self.liveness {
            self.conn.set_engine_activity(liveness.activity());
        }
        if self.conn.judges_reads_at(now)
            && let Some(queues) = &self.queues
        {
            self.conn
                .set_memory_contended(queues.in_flight.is_contended());
        }
        self.conn.handle_timeout(now);
    }

    /// Samples the connection. Returns the cause of a stall if the caller has to log the stall.
    pub(crate) fn sample_stall(&mut self, now: Instant) -> Option<Stall> {
        let stall = self.conn.stall().filter(|_| !self.blocks_new_messages());
        let sent = match stall {
            Some(_) => {
                let counters = self.conn.statistics();
                counters.messages_sent + counters.operations
            }
            None => 0,
        };
        let is_due = self.stall.sample(stall.is_some(), sent, now);
        stall.filter(|_| is_due)
    }

    /// Returns an error if the connection has ended. Checks `ended` and not the state machine,
    /// which does not know about [`cut_off`](Self::cut_off).
    pub(crate) fn check_not_ended(&self) -> Result<(), Error> {
        match &self.ended {
            None => Ok(()),
            Some(ended) => Err(Error::Disconnected(ended.reason.clone())),
        }
    }

    /// Passes a completion to the state machine, and carries out the resulting outputs.
    #[inline(never)]
    pub(super) fn handle_done<H: MessageOwner + 'static>(
        &mut self,
        done: Done,
        to: &Recipient<'_, H>,
    ) {
        let before = self.conn.peer_activity();
        self.pass_to_state_machine(done);
        self.apply_outputs(to);
        if let Some(liveness) = &self.liveness {
            liveness.add(before, self.conn.peer_activity());
        }
    }

    fn pass_to_state_machine(&mut self, done: Done) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        let (conn, deferred) = (&mut self.conn, &mut self.deferred);
        if let (Some(buffer), Some(share)) = (done.receive_buffer(), &self.share) {
            share.take(buffer);
        }
        match done {
            Done::Received { buffer, len } => {
                conn.handle_recv(buffer, queues.frame(buffer, len), SystemClock);
            }
            Done::ReceivedInPlace { buffer, len } => {
                conn.handle_fragment_in_place(buffer, queues.frame(buffer, len), SystemClock);
            }
            Done::Immediate {
                buffer,
                imm_data,
                len,
            } => conn.handle_immediate(buffer, imm_data, len, SystemClock),
            Done::Sent { slot } => self.reports.sent(slot, queues, conn, deferred),
            Done::ReceiveFailed {
                buffer,
                status,
                vendor_err,
            } => conn.handle_work_error(Work::Recv { buffer }, status, vendor_err, SystemClock),
            Done::SendFailed {
                slot,
                status,
                vendor_err,
            } => {
                let failure = (slot, status, vendor_err);
                let has_session = self.session.is_some();
                self.reports
                    .send_failed(failure, has_session, queues, conn, deferred);
            }
            Done::Invalidated => self.reports.hidden(queues.invalidated(), deferred),
            Done::InvalidationFailed { status, vendor_err } => {
                conn.handle_work_error(Work::Invalidation, status, vendor_err, SystemClock);
            }
            Done::Drained(side) => conn.handle_drained(side),
            Done::Disconnected => conn.handle_cm_event(CmInput::Disconnected, Instant::now()),
            Done::Violated(violation) => conn.handle_violation(*violation, SystemClock),
            Done::OutOfMemory(error) => conn.handle_post_failure(*error, Instant::now()),
        }
    }

    /// Carries out all outputs of the state machine. Must be called after every input, before the
    /// lock is released. Most inputs cause no output.
    #[inline]
    pub(super) fn apply_outputs<H: MessageOwner + 'static>(&mut self, to: &Recipient<'_, H>) {
        if !self.conn.is_settled() || self.deferred.room {
            self.apply_all_outputs(to);
        }
    }

    #[inline(never)]
    fn apply_all_outputs<H: MessageOwner + 'static>(&mut self, to: &Recipient<'_, H>) {
        loop {
            self.apply_pending(to);
            // Held messages are sent after all other outputs have been carried out, because frames
            // must be posted in the order in which the state machine created them.
            if !(self.deferred.room && self.uncork()) {
                break;
            }
        }
    }

    fn apply_pending<H: MessageOwner + 'static>(&mut self, to: &Recipient<'_, H>) {
        while let Some(output) = self.conn.poll_output() {
            match output {
                Output::Cm(op) => {
                    self.cm_ops.push_back(op);
                    self.deferred.drive = true;
                }
                Output::Post(transmit) => self.post_control(transmit),
                Output::PostWithPayload(transmit, message) => {
                    let payload = [IoSlice::new(&message)];
                    self.post(|queues| queues.post_send(&transmit, &payload, false));
                }
                Output::Begin { id, len } => self.begin(id, len),
                Output::Prepare { id, offset, len } => self.prepare(id, offset, len),
                Output::Read(read) => self.post(|queues| queues.post_read(&read)),
                Output::Copy(fragment) => self.copy(&fragment),
                Output::Repost(buffer) => self.post(|queues| queues.post_recv(buffer)),
                Output::Release(buffer) => {
                    // The buffer is returned as if the application had released the message.
                    if let Some(share) = &mut self.share {
                        share.lend(buffer);
                    }
                    self.release(buffer);
                }
                Output::Nudge { slot } => self.post(|queues| queues.post_nudge(slot)),
                Output::PostDrainMarkers => self.post(|queues| queues.post_drain_markers()),
                Output::Timer => self.deferred.drive = true,
                Output::Event(Event::Established) => {
                    self.established = true;
                    self.deferred.drive = true;
                    self.recovery().established();
                }
                Output::Event(Event::Requested) => {
                    self.requested = true;
                    self.deferred.drive = true;
                }
                Output::Event(Event::Arrived(arrival)) => self.deliver(arrival, to),
                Output::Event(Event::ControlMessage { buffer, len }) => {
                    self.deliver_control(buffer, len, to);
                }
                Output::Event(Event::PeerLeaving) => self.deliver_leave(to),
                Output::Event(Event::Taken(count)) => {
                    if let Some(queues) = &mut self.queues {
                        let hidden = queues.taken(count);
                        self.reports.hidden(hidden, &mut self.deferred);
                    }
                }
                Output::Event(Event::Writable) => {
                    self.deferred.wake = true;
                    self.deferred.room = true;
                    // If messages have to be resent, the engine's thread resends as many as the
                    // window allows.
                    self.deferred.drive |= self.sends_again();
                    if !self.blocks_new_messages() {
                        self.reports.report_room(&mut self.deferred);
                    }
                }
                Output::Event(Event::Answered) => {
                    if let Some(pinged) = self.pinged.take() {
                        tally::count_round_trip(pinged.elapsed());
                    }
                    self.reports.prove(false, &self.conn, &mut self.deferred);
                    self.deferred.wake = true;
                }
                Output::Event(Event::Disconnected { reason, delivered }) => {
                    let ended = Ended { reason, delivered };
                    if let Some(ended) = self.recovery().survive(ended) {
                        let text = format_args!("ended: {}", ended.reason);
                        self.deferred.log(Note::new(Level::Debug, text));
                        self.end(ended);
                    }
                }
                Output::Note(note) => self.deferred.log(Some(note)),
            }
        }
    }

    /// Fails all pending operations, and then reports the end of the connection to the application.
    /// Only the first call has an effect. A second call can occur because the state machine does
    /// not know about [`cut_off`](Self::cut_off) and may report another end.
    pub(super) fn end(&mut self, mut ended: Ended) {
        if self.ended.is_some() {
            return;
        }
        ended.delivered &= !self.holds_back();
        if ended.delivered {
            self.reports.prove(true, &self.conn, &mut self.deferred);
        }
        self.end_exposures();
        let reason = &ended.reason;
        if let Some(queues) = &self.queues {
            let reports = &mut self.reports;
            for posted in queues.in_flight.slots.iter() {
                if let Posted::Operation(operation) = posted {
                    reports.report_failed(Some(operation.id), reason);
                }
            }
            while let Some(gone) = reports.unproven.take() {
                match gone {
                    // The loop over `order` below reports the id of this message.
                    CompletedSend::Message => {}
                    CompletedSend::Write(id) => reports.report_failed(Some(id), reason),
                }
            }
            for id in reports.order.abandon() {
                reports.report_failed(Some(id), reason);
            }
        }
        self.recovery().fail_kept(&ended.reason);
        self.reports.last_destination = self.reports.destination.take();
        self.ended = Some(ended);
        self.deferred.drive = true;
        self.deferred.wake = true;
    }

    /// Returns true if one more message or operation with an id fits within the limit.
    pub(super) fn has_report_slot(&mut self) -> bool {
        let queues = self.queues.as_ref();
        queues.is_none_or(|queues| self.reports.has_slot(queues))
    }

    /// Moves the `unread` completions to a group, and redirects later ones to it.
    pub(super) fn join(
        &mut self,
        queue: &Arc<GroupQueue>,
        keys: (u64, u64),
        unread: impl FnMut() -> Option<Completion>,
    ) -> Result<(), Error> {
        let reason = self.reason();
        let deferred = &mut self.deferred;
        self.reports.join(queue, keys, unread, reason, deferred)
    }

    /// Ends all exposures at the end of the connection. Reports the large messages that the peer
    /// has read.
    pub(super) fn end_exposures(&mut self) {
        if let Some(queues) = &mut self.queues {
            let hidden = queues.end_exposures();
            self.reports.hidden(hidden, &mut self.deferred);
        }
    }

    /// Ends the connection immediately and without the state machine. For example, this call is
    /// necessary after the engine's thread has exited: the state machine may then never report an
    /// end, and waiting callers would wait indefinitely.
    pub(crate) fn cut_off(&mut self, reason: CloseReason) {
        self.end(Ended {
            reason,
            delivered: false,
        });
    }

    /// Returns whether a drain marker completes after all other receives of the connection. Returns
    /// true if the connection has no transport.
    pub(super) fn marks_receives(&self) -> bool {
        let queues = self.queues.as_ref();
        queues.is_none_or(WorkQueues::marks_receives)
    }

    /// Posts a frame without payload. If the state machine's next frame has no payload either,
    /// posts both with one call. For example, a side that answers a Close posts its own Close and
    /// CloseAck together.
    fn post_control(&mut self, transmit: Transmit) {
        let next = self.conn.poll_post();
        let is_ping = transmit.is_ping() || next.as_ref().is_some_and(Transmit::is_ping);
        if is_ping && tally::is_enabled() {
            self.pinged = Some(Instant::now());
        }
        match next {
            None => self.post(|queues| queues.post_send(&transmit, &[], false)),
            Some(next) => {
                let frames = [transmit, next].map(|frame| (frame, Vec::new()));
                self.post(|queues| queues.post_sends(&frames, false));
            }
        }
    }

    /// Posts work requests. If posting fails, the connection ends. Over the in-memory transport,
    /// the engine must poll the completion queues of both sides after a post, so this function sets
    /// `deferred.drive`.
    fn post<E: Into<PostError>>(&mut self, post: impl FnOnce(&mut WorkQueues) -> Result<(), E>) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        match post(queues).map_err(Into::into) {
            Ok(()) => {}
            Err(PostError::PollBoth) => self.deferred.drive = true,
            Err(PostError::Failed(error)) => self.conn.handle_post_failure(error, Instant::now()),
        }
    }
}

/// Queries and calls that the handles of the connection need.
impl Core {
    /// Returns the functions of a session that change the whole connection.
    pub(crate) fn recovery(&mut self) -> Recovery<'_> {
        Recovery { core: self }
    }

    /// Returns the number of connections that the session has lost. This number identifies the
    /// current connection.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether the session or connection was ever established.
    pub(super) fn was_established(&self) -> bool {
        self.established || self.generation > 0
    }

    /// Returns whether the connection was lost and the next one is not established yet.
    pub(super) fn is_suspended(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| matches!(session.state, State::Suspended(_)))
    }

    /// Returns whether new messages have to wait, because the connection was lost or because
    /// earlier messages are being sent again.
    #[inline]
    pub(super) fn blocks_new_messages(&self) -> bool {
        match &self.session {
            None => false,
            Some(session) => {
                !session.messages.is_open()
                    || self.conn.close_reason().is_some_and(CloseReason::is_loss)
            }
        }
    }

    /// Returns whether a session has lost its connection, even if the session is not suspended yet.
    pub(super) fn is_lost(&self) -> bool {
        let is_loss = || self.conn.close_reason().is_some_and(CloseReason::is_loss);
        self.is_suspended() || (self.session.is_some() && is_loss())
    }

    /// Returns the number of the attempt that established the connection, reduced to its low 16
    /// bits. The number is the same on both sides. It is 0 for the first connection, and for a
    /// connection without a session.
    #[inline]
    pub(super) fn epoch(&self) -> u16 {
        self.session
            .as_ref()
            .map_or(0, |session| session.messages.epoch() as u16)
    }

    /// Returns the counters of this connection, added to the counters of all earlier connections of
    /// the session. While the session is suspended, the lost connection is one of the earlier
    /// connections.
    pub(super) fn statistics(&self) -> Statistics {
        let mut all = self.conn.statistics();
        if self.is_suspended() {
            all = Statistics::ZERO;
        }
        if let Some(past) = &self.past {
            all += **past;
        }
        all
    }

    /// Returns the private data that the peer sent with its first hello.
    pub(super) fn peer_data(&self) -> &[u8] {
        match &self.session {
            Some(session) if self.established || self.is_suspended() => &session.peer_data,
            _ => self.conn.peer_data(),
        }
    }

    /// Starts the close, after which no call can send a message. A suspended session still tries to
    /// resume until `close_timeout` expires, in order to deliver its messages. If the connection is
    /// lost during the close, the session repeats the close on its next connection.
    pub(super) fn close(&mut self, now: Instant) {
        let blocked = self.blocks_new_messages();
        if let Some(session) = self
            .session
            .as_mut()
            .filter(|_| self.established || blocked)
        {
            let deadline = now + session.close_timeout;
            let deadline = *session.closing.get_or_insert(deadline);
            if let Some(suspension) = session.suspension() {
                suspension.deadline = suspension.deadline.min(deadline);
            }
        }
        if blocked {
            self.deferred.drive = true;
        } else {
            self.conn.close(now);
        }
    }

    /// Ends the connection immediately, with the application's `code`.
    pub(super) fn abort(&mut self, code: u32, now: Instant) {
        if self.is_suspended() {
            return self.cut_off(CloseReason::LocallyAborted);
        }
        if let Some(session) = &mut self.session {
            session.is_aborted = true;
        }
        self.conn.abort(code, now);
    }

    /// Finishes sending.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.check_not_ended()?;
        let barred = self.blocks_new_messages();
        if !barred {
            let finished = self.conn.finish();
            finished.map_err(|refused| refused_send(refused, 0))?;
        }
        if let Some(session) = &mut self.session {
            session.finished = true;
        }
        Ok(())
    }

    /// Returns whether messages still have to be resent over the current connection.
    pub(crate) fn sends_again(&self) -> bool {
        self.session.as_ref().is_some_and(|session| {
            matches!(session.state, State::Working(_)) && session.messages.has_messages_to_resend()
        })
    }
}
