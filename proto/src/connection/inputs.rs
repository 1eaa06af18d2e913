//! Events of the connection manager, the clock and the engine, and completions of the device, as
//! inputs of a connection.

use std::time::Instant;

use log::Level;
use rdma_status::{OsError, WcStatus};

use super::{Activity, Connection, MovedBytes, State, receiving::Incoming, setup::Setup};
use crate::{
    Clock, CloseReason, CmCall, CmInput, DrainSide, Output, TransportTraits, Work,
    reason::Violation,
};

/// Inputs from the connection manager and the engine.
impl Connection {
    /// Performs the steps that cost the engine time, for which [`CmOp::AwaitTurn`](crate::CmOp) has
    /// asked. The turn lasts while [`has_turn`](Self::has_turn) returns true.
    pub fn take_turn(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            return self.handle_timeout(now);
        }
        if let State::Setup(setup) = &mut self.state {
            setup.take_turn(&mut self.side);
        }
    }

    /// Records the properties of the transport, which has been made.
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
            // This event concerns a queue pair that is being destroyed.
            (_, CmInput::TimewaitExit) | (State::Closed(_), CmInput::Disconnected) => {}
            // The kernel reports CONNECT_RESPONSE for an id without a queue pair only. All ids of
            // this library have one.
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
            // Nothing is lost: the peer's deadline, the default RNR timer and the destruction of
            // the id have the same effect later.
            (CmCall::AwaitTurn | CmCall::Discard | CmCall::Reject | CmCall::SetMinRnrTimer, _) => {
                let text = format_args!("a connection manager call failed: {error}");
                self.side.outputs.note(Level::Debug, text);
            }
            (CmCall::Disconnect, _) => {
                let text = format_args!("a connection manager call failed: {error}");
                self.side.outputs.note(Level::Debug, text);
                if let State::Open(open) = &mut self.state {
                    open.on_disconnect_failure(&mut self.side);
                    self.end_if_drained();
                }
            }
        }
    }

    /// Handles the deadlines that have passed.
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

    /// Whether the only deadline that has passed is that of a keepalive check, and the check finds
    /// the peer alive, by the signs of life of the peer's engine or by those on this connection. If
    /// so, completes the check and sets the next deadline.
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

    /// Whether [`handle_timeout`](Self::handle_timeout) at `now` judges the peer by the bytes that
    /// have moved.
    pub fn judges_peer_at(&self, now: Instant) -> bool {
        matches!(&self.state, State::Open(open) if open.judges_peer_at(now))
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) at `now` judges the pace of reads.
    pub fn judges_reads_at(&self, now: Instant) -> bool {
        matches!(&self.state, State::Open(open) if open.judges_reads_at(now))
    }

    /// Sets the counters of a transport that counts bytes. The caller calls this function before
    /// `handle_timeout`, which judges the peer by these counters.
    pub fn set_moved(&mut self, moved: MovedBytes) {
        if let Some((open, _)) = self.open() {
            open.set_moved(moved);
        }
    }

    /// Sets the signs of life of the peer's engine on all of its connections. The caller calls this
    /// function before `handle_timeout`, which judges the peer by these signs.
    pub fn set_engine_activity(&mut self, activity: Activity) {
        if let Some((open, _)) = self.open() {
            open.transfer.activity.of_engine = activity;
        }
    }

    /// Records whether other connections wait for the memory of messages that are being read.
    pub fn set_wanted(&mut self, wanted: bool) {
        if let Some((open, _)) = self.open() {
            open.transfer.is_wanted = wanted;
        }
    }

    fn unexpected(&mut self, event: &str) {
        self.side.unexpected(event, self.state.name());
    }
}

/// Inputs from the device.
impl Connection {
    /// Handles a completed receive on the fast path, if the frame contains only a message: it
    /// reports no large message as taken, and no undelivered large message is queued.
    ///
    /// Returns the message's length in bytes. The caller delivers the message. There is no output.
    /// For any other frame, returns `None` and changes nothing:
    /// [`handle_recv`](Self::handle_recv) handles the frame.
    #[inline]
    pub fn take_message(&mut self, frame: &[u8]) -> Option<u32> {
        let (open, side) = self.open()?;
        open.take_message(side, frame)
    }

    /// Handles a completed receive.
    pub fn handle_recv(&mut self, buffer: u32, frame: &[u8], now: impl Clock) {
        self.on_recv(buffer, Incoming::parse(frame), now);
    }

    /// Handles a receive that was consumed by a write of `len` bytes with immediate data.
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

    /// Handles a violation of the protocol by the peer, whose further frames are ignored.
    pub fn handle_violation(&mut self, violation: Violation, now: impl Clock) {
        match &mut self.state {
            State::Open(open) => open.on_violation(&mut self.side, violation, now),
            State::Setup(_) | State::Closed(_) => {
                self.side.note_violation(&violation);
                self.fail(CloseReason::ProtocolViolation(violation), now.now());
            }
        }
    }

    /// Handles the completion of a signalled send, which covers all sends that were posted before
    /// it.
    #[inline]
    pub fn handle_sent(&mut self, slot: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.on_sent(side, slot, now);
        }
    }

    /// Handles the completion of a read, which covers everything that was posted before it.
    pub fn handle_read(&mut self, slot: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.on_read(side, slot, now);
        }
    }

    /// Records that the large message with this id has its place in memory.
    pub fn handle_memory(&mut self, id: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            let transfer = &mut open.transfer;
            transfer.timers.read_watchdog.memory_found();
            transfer.inbound.placed(id);
            open.read_on(side, now);
        }
    }

    /// Records that memory is ready for the first `len` bytes of the next chunk, or for the whole
    /// chunk if it is shorter.
    pub fn handle_prepared(&mut self, len: u64, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            let transfer = &mut open.transfer;
            transfer.timers.read_watchdog.memory_found();
            transfer.inbound.prepared(len);
            open.read_on(side, now);
        }
    }

    /// Records that the fragment of the last [`Output::Copy`] has been copied.
    pub fn handle_copied(&mut self, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.timers.read_watchdog.memory_found();
            open.on_copied(side, now);
        }
        self.end_if_drained();
    }

    /// Handles the failure of the system to provide the memory for the last [`Output::Begin`],
    /// [`Output::Prepare`] or [`Output::Copy`]. The output is repeated later.
    pub fn handle_out_of_memory(&mut self, error: OsError, now: Instant) {
        if let Some((open, side)) = self.open() {
            open.on_out_of_memory(side, error, now);
        }
    }

    /// Repeats the output for which there was no memory, because other connections might have freed
    /// some.
    pub fn retry_memory(&mut self) {
        if let Some((open, side)) = self.open() {
            open.retry_memory(side);
        }
    }

    /// Handles the failure to post a work request.
    pub fn handle_post_failure(&mut self, error: OsError, now: Instant) {
        self.fail(CloseReason::Os(error), now);
    }

    /// Handles a failed completion.
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
            // Other connections can use the receive buffer, even if this connection cannot.
            Work::Recv { buffer } if side.params.shared => {
                side.outputs.push(Output::Repost(buffer));
            }
            Work::Recv { .. } | Work::Send { .. } | Work::Read { .. } | Work::Invalidation => {}
        }
        match &mut self.state {
            // The queue pair has failed, which the event ESTABLISHED would not change.
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

    /// Handles the completion of a drain marker: everything posted before it on that queue has
    /// completed.
    pub fn handle_drained(&mut self, side: DrainSide) {
        if let Some((open, _)) = self.open() {
            open.on_drained(side);
            self.end_if_drained();
        }
    }
}
