//! The inputs of a connection: events from the connection manager, expired deadlines, information
//! from the engine, and completions and events from the device.

use std::time::{Duration, Instant};

use log::Level;
use rdma_status::{OsError, WcStatus};

use super::{
    Activity, Connection, MovedBytes, State, open::Open, receiving::Incoming, setup::Setup,
    side::Side,
};
use crate::{
    Clock, CloseReason, CmCall, CmInput, DeviceFault, DrainSide, Output, TransportTraits, Work,
    reason::Violation,
};

/// Inputs from the connection manager and the engine.
impl Connection {
    /// Begins the expensive steps of the setup, now that the limit on concurrent setups permits
    /// them. The connection has requested this call with [`CmOp::AwaitSetupSlot`](crate::CmOp), and
    /// counts against the limit until [`counts_as_setup`](Self::counts_as_setup) returns false.
    pub fn begin_setup(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            return self.handle_timeout(now);
        }
        if let State::Setup(setup) = &mut self.state {
            setup.begin_setup(&mut self.side, now);
        }
    }

    /// Returns whether the active side waits for its turn under the limit on concurrent setups, or
    /// for the start of its next attempt.
    pub fn is_waiting_to_connect(&self) -> bool {
        matches!(&self.state, State::Setup(Setup::Connecting(it)) if !it.counts_as_setup())
    }

    /// Ends an attempt to connect that waits for its turn, as if its time limit had passed.
    pub fn end_wait(&mut self, now: Instant) {
        if let State::Setup(Setup::Connecting(connecting)) = &mut self.state {
            connecting.end_wait(now);
        }
        self.handle_timeout(now);
    }

    /// Records the properties of the transport that the driver has created. The passive side then
    /// sends its reply.
    pub fn handle_transport(&mut self, traits: TransportTraits) {
        self.side.traits = Some(traits);
        if let State::Setup(Setup::Accepting(accepting)) = &mut self.state {
            accepting.on_transport(&mut self.side);
        }
    }

    /// Handles a connection manager event.
    pub fn handle_cm_event(&mut self, event: CmInput<'_>, now: Instant) {
        match (&mut self.state, event) {
            (_, CmInput::DeviceRemoval) => self.fail(CloseReason::DeviceRemoved, now),
            (_, CmInput::AddrChange) => self.fail(CloseReason::AddressChanged, now),
            (_, CmInput::Other(number)) => {
                self.unexpected(&format!("connection manager event {number}"));
            }
            // TIMEWAIT_EXIT says only that a disconnected queue pair can be used again. A closed
            // connection has already ended, so DISCONNECTED reports nothing new.
            (_, CmInput::TimewaitExit) | (State::Closed(_), CmInput::Disconnected) => {}
            // The kernel reports CONNECT_RESPONSE only for ids without a queue pair, and each id of
            // this library has a queue pair.
            (_, CmInput::ConnectResponse) | (State::Closed(_), _) => {
                self.unexpected(event.name());
            }
            (State::Setup(setup), _) => {
                let progress = setup.on_cm_event(&mut self.side, event, now);
                self.proceed(progress, now);
            }
            (State::Open(open), _) => {
                open.on_cm_event(&mut self.side, event, now);
                self.end_if_drained();
            }
        }
    }

    /// Handles the failure of a connection manager call.
    pub fn handle_cm_failure(&mut self, call: CmCall, error: OsError, now: Instant) {
        match (call, &mut self.state) {
            (CmCall::ResolveAddr, State::Setup(Setup::Connecting(connecting))) => {
                let progress = connecting.on_resolve_addr_failure(&mut self.side, error, now);
                self.proceed(progress, now);
            }
            (CmCall::Connect, State::Setup(Setup::Connecting(connecting)))
                if connecting.has_queue_pair() =>
            {
                let progress = connecting.on_connect_call_failure(&mut self.side, error, now);
                self.proceed(progress, now);
            }
            (CmCall::CreateTransport, State::Setup(Setup::Accepting(accepting))) => {
                accepting.on_create_transport_failure(&mut self.side);
                self.fail(CloseReason::Os(error), now);
            }
            (CmCall::ResolveAddr, _) => self.unexpected("a failure to resolve an address"),
            (
                CmCall::CreateTransport
                | CmCall::CreateId
                | CmCall::ResolveRoute
                | CmCall::Connect
                | CmCall::Accept,
                _,
            ) => self.fail(CloseReason::Os(error), now),
            // A failure of these calls does not end the connection. If a rejection cannot be sent,
            // the peer's attempt ends at its deadline. If the RNR timer cannot be set, the timer
            // keeps its default. If the id cannot be discarded, the driver destroys the id later.
            (
                CmCall::AwaitSetupSlot | CmCall::Discard | CmCall::Reject | CmCall::SetMinRnrTimer,
                _,
            ) => {
                let text = format_args!("ignored a failed connection manager call: {error}");
                self.side.outputs.note(Level::Debug, text);
            }
            (CmCall::Disconnect, _) => {
                let text = format_args!("the call to disconnect failed: {error}");
                self.side.outputs.note(Level::Debug, text);
                if let State::Open(open) = &mut self.state {
                    open.on_disconnect_failure(&mut self.side);
                    self.end_if_drained();
                }
            }
        }
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        match &mut self.state {
            State::Setup(setup) => {
                let progress = setup.on_timeout(&mut self.side, now);
                self.proceed(progress, now);
            }
            State::Open(open) => {
                open.on_timeout(&mut self.side, now);
                self.end_if_drained();
            }
            State::Closed(_) => {}
        }
    }

    /// Attempts to complete the keepalive check that is due. The check is complete if the peer has
    /// given signs of life on any connection to its engine, no Ping is due, and no other deadline
    /// has passed. If the check is complete, sets the deadline of the next check and returns true.
    pub fn passes_check(&mut self, of_engine: Activity, now: Instant) -> bool {
        let Some((open, side)) = self.open() else {
            return false;
        };
        let passes = open.passes_check(of_engine, now);
        if passes {
            side.reported_timeout = open.deadline();
        }
        passes
    }

    /// Returns whether a call of [`handle_timeout`](Self::handle_timeout) at the time `now` needs
    /// the byte counters, to judge whether the peer is alive or whether reads make progress.
    pub fn judges_peer_at(&self, now: Instant) -> bool {
        matches!(&self.state, State::Open(open) if open.judges_peer_at(now))
    }

    /// Returns whether a call of [`handle_timeout`](Self::handle_timeout) at the time `now` checks
    /// the progress of reads.
    pub fn judges_reads_at(&self, now: Instant) -> bool {
        matches!(&self.state, State::Open(open) if open.judges_reads_at(now))
    }

    /// Sets the byte counters of a transport that counts bytes. Must be called before
    /// `handle_timeout` if [`judges_peer_at`](Self::judges_peer_at) returns true.
    pub fn set_moved(&mut self, moved: MovedBytes) {
        if let Some((open, _)) = self.open() {
            open.set_moved(moved);
        }
    }

    /// Sets the counters of signs of life on all connections to the peer's engine. Must be called
    /// before `handle_timeout`, which uses these counters to judge whether the peer is alive.
    pub fn set_engine_activity(&mut self, activity: Activity) {
        if let Some((open, _)) = self.open() {
            open.transfer.activity.of_engine = activity;
        }
    }

    /// Records whether other connections wait for the memory that this connection's large messages
    /// use.
    pub fn set_memory_contended(&mut self, contended: bool) {
        if let Some((open, _)) = self.open() {
            open.transfer.memory_is_contended = contended;
        }
    }

    fn unexpected(&mut self, event: &str) {
        self.side.unexpected(event, self.state.name());
    }
}

/// Inputs from the device.
impl Connection {
    /// Handles a completed receive on the fast path. The fast path supports only a frame that
    /// contains a single message, reports no large message as taken, and requires no output, such
    /// as a grant. While an undelivered large message is queued, the fast path supports no frame.
    ///
    /// Returns the message's length in bytes. The caller must deliver the message, and has no
    /// output to perform. If the fast path cannot handle the frame, returns `None` and changes
    /// nothing. The caller must then call [`handle_recv`](Self::handle_recv).
    #[inline]
    pub fn take_message(&mut self, frame: &[u8]) -> Option<u32> {
        let (open, side) = self.open()?;
        open.take_message(side, frame)
    }

    /// Handles a completed receive.
    pub fn handle_recv(&mut self, buffer: u32, frame: &[u8], now: impl Clock) {
        self.on_recv(buffer, Incoming::parse(frame), now);
    }

    /// Handles a completed receive of a Fragment frame whose payload the transport has received
    /// directly into the memory of the message. Only the header of `frame` is read.
    pub fn handle_fragment_in_place(&mut self, buffer: u32, frame: &[u8], now: impl Clock) {
        let mut incoming = Incoming::parse(frame);
        if let Ok(Incoming::Fragment { in_place, .. }) = &mut incoming {
            *in_place = true;
        }
        self.on_recv(buffer, incoming, now);
    }

    /// Handles the completion of a receive that was consumed by a write of `len` bytes with
    /// immediate data.
    pub fn handle_immediate(&mut self, buffer: u32, imm_data: u32, len: u32, now: impl Clock) {
        self.on_recv(buffer, Ok(Incoming::Immediate { imm_data, len }), now);
    }

    fn on_recv(&mut self, buffer: u32, incoming: Result<Incoming, Violation>, now: impl Clock) {
        match &mut self.state {
            State::Setup(setup) => {
                let progress = setup.on_frame(&mut self.side, buffer, incoming);
                self.proceed(progress, now.now());
            }
            State::Open(open) => open.on_incoming(&mut self.side, buffer, incoming, now),
            State::Closed(_) => self.unexpected("a frame"),
        }
    }

    /// Handles a protocol violation by the peer. Ignores the peer's further frames.
    pub fn handle_violation(&mut self, violation: Violation, now: impl Clock) {
        match &mut self.state {
            State::Open(open) => open.on_violation(&mut self.side, violation, now),
            State::Setup(_) | State::Closed(_) => {
                self.side.note_violation(&violation);
                self.fail(CloseReason::ProtocolViolation(violation), now.now());
            }
        }
    }

    /// Handles the completion of a signalled send, which implies the completion of all sends that
    /// were posted earlier.
    #[inline]
    pub fn handle_sent(&mut self, slot: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.on_sent(side, slot, now);
        }
    }

    /// Handles the completion of a read, which implies the completion of all work requests that
    /// were posted earlier on the send queue.
    pub fn handle_read(&mut self, slot: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.on_read(side, slot, now);
        }
    }

    /// Records that the driver has reserved memory for the large message with this id.
    pub fn handle_memory(&mut self, id: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            let transfer = &mut open.transfer;
            transfer.timers.read_watchdog.memory_found();
            transfer.inbound.memory_reserved(id);
            open.read_on(side, now);
        }
    }

    /// Records that memory is prepared for the next chunk: for the first `len` bytes of the chunk,
    /// or for the whole chunk if the chunk is shorter.
    pub fn handle_prepared(&mut self, len: u64, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            let transfer = &mut open.transfer;
            transfer.timers.read_watchdog.memory_found();
            transfer.inbound.prepared(len);
            open.read_on(side, now);
        }
    }

    /// Records that the fragment of the pending [`Output::Copy`] has been copied.
    pub fn handle_copied(&mut self, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.timers.read_watchdog.memory_found();
            open.on_copied(side, now);
        }
        self.end_if_drained();
    }

    /// Records that the system has no memory for the pending [`Output::Begin`], [`Output::Prepare`]
    /// or [`Output::Copy`]. The output is repeated later.
    pub fn handle_out_of_memory(&mut self, error: OsError, now: Instant) {
        if let Some((open, side)) = self.open() {
            open.on_out_of_memory(side, error, now);
        }
    }

    /// Repeats the output for which no memory was available. The driver calls this function when
    /// other connections might have released memory.
    pub fn retry_memory(&mut self) {
        if let Some((open, side)) = self.open() {
            open.retry_memory(side);
        }
    }

    /// Handles the failure of the call that posts a work request.
    pub fn handle_post_failure(&mut self, error: OsError, now: Instant) {
        self.fail(CloseReason::Os(error), now);
    }

    /// Handles a completion that reports the failure of a work request.
    pub fn handle_work_error(
        &mut self,
        work: Work,
        status: WcStatus,
        vendor_err: u32,
        now: impl Clock,
    ) {
        let side = &mut self.side;
        let text = format_args!("the work request {work:?} failed: {status}");
        side.outputs.note(Level::Trace, text);
        if let State::Closed(_) = self.state {
            return;
        }
        match work {
            // This connection cannot use the receive buffer any longer, but other connections can.
            Work::Recv { buffer } if side.params.shared => {
                side.outputs.push(Output::Repost(buffer));
            }
            Work::Recv { .. } | Work::Send { .. } | Work::Read { .. } | Work::Invalidation => {}
        }
        match &mut self.state {
            // The queue pair has failed and cannot be used, even if the event ESTABLISHED follows.
            State::Setup(setup) if setup.has_queue_pair() => {
                self.fail(CloseReason::WorkRequest { status, vendor_err }, now.now());
            }
            State::Setup(_) | State::Closed(_) => {}
            State::Open(open) => {
                open.on_work_error(side, work, status, vendor_err, now);
                self.end_if_drained();
            }
        }
    }

    /// Handles the completion of a drain marker. All work requests that were posted on the same
    /// queue before the marker have completed.
    pub fn handle_drained(&mut self, side: DrainSide) {
        if let Some((open, _)) = self.open() {
            open.on_drained(side);
            self.end_if_drained();
        }
    }
}

/// Device events: a lost or restored link, and the failure of an object that the connection uses.
impl Connection {
    /// Ends the connection, because the device has reported the failure of an object that the
    /// connection uses.
    pub fn handle_device_fault(&mut self, fault: DeviceFault, now: Instant) {
        self.fail(CloseReason::DeviceFault(fault), now);
    }

    /// Suspects that the path to the peer is interrupted, and sends a Ping unless an earlier Ping
    /// is still unanswered. The peer is considered dead if no sign of life arrives on this
    /// connection within `timeout`. If the peer is already silent, `keepalive_timeout` can end this
    /// wait earlier.
    ///
    /// Before this call, the caller must report all available completions. If the keepalive is off,
    /// the Ping still detects an interruption, because the device retransmits the Ping and finally
    /// reports it as failed.
    pub fn suspect_path(&mut self, timeout: Duration, now: Instant) {
        if let Some((open, side)) = self.open() {
            open.suspect_path(side, timeout, now);
        }
    }

    /// Stops suspecting the path. If the path was suspected, the next keepalive check follows half
    /// a keepalive interval after `now`, as usual.
    pub fn trust_path(&mut self, now: Instant) {
        if let Some((open, _)) = self.open()
            && let Some(keepalive) = &mut open.transfer.timers.keepalive
        {
            keepalive.trust(now);
        }
    }
}

impl Open {
    fn suspect_path(&mut self, side: &mut Side, timeout: Duration, now: Instant) {
        if !self.is_connected() {
            return;
        }
        let transfer = &mut self.transfer;
        let activity = transfer.activity;
        if let Some(keepalive) = &mut transfer.timers.keepalive {
            keepalive.suspect(timeout, activity, now);
        }
        self.transfer.probe.request();
        self.send_control(side);
    }
}
