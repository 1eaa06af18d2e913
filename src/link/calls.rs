//! Nonblocking functions that the handles of a connection call.

use std::{
    io::IoSlice,
    net::IpAddr,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    completion::Completion,
    core::Core,
    destination::{Destination, GroupQueue, Taker},
    inflow::Inflow,
    link::Link,
    pending_send::{Attempt, Sending, total},
    send::Flush,
    stall::LOGGED_AFTER,
};
#[cfg(feature = "tokio")]
use crate::proto::SendRefused;
use crate::{
    error::{Error, TrySendError},
    os::lock,
    poll::Awaited,
    proto::{Capabilities, Negotiated, Stall, Statistics},
    remote_access::RemoteAccess,
    transport::{
        Allocator, Checked, DeviceCounters, HopLimit, OneSidedOp, OutboundBuffer, Region,
        RemoteRegion, WireControl, WorkQueues,
    },
    transport_choice::Transport,
};

/// Properties of the connection.
impl Link {
    /// Returns the private data that the peer's program sent with its hello.
    pub(crate) fn peer_data(&self) -> Vec<u8> {
        self.core().peer_data().to_vec()
    }

    /// Returns the maximum length of a message in bytes; 0 before the connection is established and
    /// after it has ended.
    pub(crate) fn send_limit(&self) -> u64 {
        let core = self.core();
        match (&core.ended, core.conn.negotiated()) {
            (None, Some(negotiated)) => negotiated.send_limit,
            (_, _) => 0,
        }
    }

    /// Returns the parameters that both sides have negotiated with their hellos.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        self.core().conn.negotiated()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.core().statistics()
    }

    /// Returns the counters of the device.
    pub(crate) fn device_counters(&self) -> DeviceCounters {
        self.allocator()
            .map_or_else(DeviceCounters::default, |allocator| {
                allocator.device_counters()
            })
    }

    /// Returns the operations that both devices support. Returns `None` if the connection has no
    /// transport, for example after it has ended.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        let core = self.core();
        core.queues.as_ref()?;
        core.conn.capabilities()
    }

    /// Returns the hop limit (TTL) of the packets that this side sends.
    pub(crate) fn hop_limit(&self) -> Result<u32, Error> {
        self.with_hop_limit(|limit, over_ipv6| limit.get(over_ipv6).map_err(Error::from_os))
    }

    pub(crate) fn set_hop_limit(&self, hops: u32) -> Result<(), Error> {
        self.with_hop_limit(|limit, over_ipv6| limit.set(hops, over_ipv6).map_err(Error::from_os))
    }

    fn with_hop_limit<T>(
        &self,
        call: impl FnOnce(HopLimit<'_>, bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let events = lock(&self.poll).as_ref().map(|side| side.events().cloned());
        let events = events.ok_or_else(|| self.disconnected())?;
        let limit = events.as_ref().and_then(|events| events.hop_limit());
        let limit = limit.ok_or_else(|| Error::NotSupported {
            operation: "a time to live for each connection",
            device: format!("a connection over {}", self.transport()),
            because: match self.transport() {
                Transport::Rdma => "the route determines the hop limit",
                Transport::Tcp | Transport::Memory => "it sends no packets",
            },
        })?;
        let over_ipv6 = match self.peer_addr().ip() {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => ip.to_ipv4_mapped().is_none(),
        };
        call(limit, over_ipv6)
    }
}

/// Messages.
impl Link {
    /// Sends a message, or returns the reason why it cannot be sent now.
    pub(crate) fn try_send(
        self: &Arc<Self>,
        message: &mut Sending<'_>,
    ) -> Result<(), TrySendError> {
        loop {
            match self.with_core(|core| core.try_send(message))? {
                Attempt::Sent => return Ok(()),
                // Copying and registering the message are slow, so this thread holds no lock
                // meanwhile. If another thread uses the only remaining credit before this thread
                // tries again, the next attempt is refused.
                Attempt::NotExposed => {
                    let (allocator, generation) = self.allocator_of_generation()?;
                    message.expose(&allocator, generation)?;
                }
            }
        }
    }

    /// Sends a message without an id if the message fits into one frame and the window has room.
    /// Returns false if nothing was sent; the caller must then use [`try_send`](Self::try_send).
    #[inline]
    pub(crate) fn send_at_once(self: &Arc<Self>, message: &[u8]) -> bool {
        let mut core = self.core();
        let sent = core.send_at_once(message);
        if !sent || !core.deferred.is_nothing() {
            self.conclude(core);
        }
        sent
    }

    /// Sends the longest prefix of `messages` that fits into one frame. If fewer than two messages
    /// fit, sends only the first message. Returns the number of messages sent. `messages` must not
    /// be empty.
    pub(crate) fn try_send_some(
        self: &Arc<Self>,
        messages: &[IoSlice<'_>],
    ) -> Result<usize, TrySendError> {
        match self.with_core(|core| core.try_send_batch(messages))? {
            // A single message is sent without a length field, and may be longer than the eager
            // size.
            0 | 1 => {
                self.try_send(&mut Sending::new(&messages[..1], None))?;
                Ok(1)
            }
            count => Ok(count),
        }
    }

    /// Returns true if the caller should wait for a free slot in the queue of completions. The
    /// caller should wait while another thread takes completions. The caller should also wait if
    /// the queue contains no completion with an id: all operations are then still in flight.
    ///
    /// `untaken_since` stores the time of the first call that found untaken completions. If the
    /// queue still has untaken completions [`Taker::TIME_LIMIT`] later, returns false.
    pub(crate) fn may_free_report_slot(&self, untaken_since: &mut Option<Instant>) -> bool {
        let mut core = self.core();
        if !core.reports.are_untaken() {
            *untaken_since = None;
            return true;
        }
        let since = *untaken_since.get_or_insert_with(Instant::now);
        let grouped = core.reports.destination.as_ref();
        let grouped = grouped.and_then(Destination::is_group_taken_by_other);
        let is_taken = || grouped.unwrap_or_else(|| self.taker.is_other_thread());
        since.elapsed() < Taker::TIME_LIMIT && is_taken()
    }

    /// Allocates a buffer of `len` bytes for a message. Fails with `Full` while the session is
    /// suspended. During this time there is either no transport, or only the transport of an
    /// attempt to resume. The memory of that transport is freed if the attempt fails.
    pub(crate) fn try_buffer(&self, len: usize) -> Result<OutboundBuffer, TrySendError> {
        let is_suspended = {
            let core = self.core();
            core.check_not_ended()?;
            core.is_suspended()
        };
        match self.allocator() {
            Some(allocator) if !is_suspended => {
                Ok(allocator.buffer(len).map_err(Error::from_os)?)
            }
            Some(_) | None => Err(TrySendError::Full),
        }
    }

    /// Returns the allocator of the current connection, and the generation of that connection in
    /// its session.
    fn allocator_of_generation(&self) -> Result<(Arc<Allocator>, u32), TrySendError> {
        // The generation is read before the allocator. If the connection is lost between the two
        // reads, the generation is outdated, and the next attempt exposes the message again.
        let (generation, blocks_new_messages) = {
            let core = self.core();
            (core.generation(), core.blocks_new_messages())
        };
        match self.allocator() {
            Some(allocator) => Ok((allocator, generation)),
            None if blocks_new_messages => Err(TrySendError::Full),
            None => Err(self.disconnected().into()),
        }
    }

    /// Returns whether this connection can send the buffer: the connection has a session, or its
    /// allocator created the buffer.
    pub(crate) fn owns(&self, buffer: &OutboundBuffer) -> bool {
        // A session copies the buffers that an earlier connection allocated.
        self.core().session.is_some()
            || self
                .allocator()
                .is_some_and(|allocator| allocator.owns(buffer))
    }

    /// Notifies the peer that the application wants to end the connection soon.
    pub(crate) fn ask_to_leave(self: &Arc<Self>) -> Result<(), Error> {
        self.with_core(Core::ask_to_leave)
    }

    /// Sends a control message.
    pub(crate) fn send_control(self: &Arc<Self>, message: &[u8]) -> Result<(), Error> {
        self.with_core(|core| core.send_control(message))
    }

    /// Starts a flush: asks the peer's library whether all messages sent so far have arrived.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<Flush, Error> {
        self.with_core(Core::flush)
    }

    /// Continues a flush: asks the peer once the held bytes have been sent, and asks again after a
    /// loss of the connection. Returns `None` while the flush is in progress. Returns `Ok` once all
    /// messages sent before the flush have arrived, or an error if the connection ended first.
    pub(crate) fn is_flushed(self: &Arc<Self>, flush: &mut Flush) -> Option<Result<(), Error>> {
        if let Flush::Held(joined) = *flush {
            let asked = self.with_core(|core| core.cork.has_sent(joined).then(|| core.ask()));
            match asked {
                Some(Ok(asked)) => *flush = asked,
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
        }
        let lost = match *flush {
            Flush::Suspended => true,
            Flush::Asked(_, generation) => generation != self.core().generation(),
            Flush::Held(_) => false,
        };
        if lost {
            match self.with_core(Core::flush) {
                Ok(again) => *flush = again,
                Err(error) => return Some(Err(error)),
            }
        }
        let core = self.core();
        match flush {
            Flush::Asked(asked, _) if core.conn.is_flushed(asked) => return Some(Ok(())),
            Flush::Asked(..) | Flush::Held(_) | Flush::Suspended => {}
        }
        let ended = core.ended.as_ref()?;
        Some(Err(Error::Disconnected(ended.reason.clone())))
    }
}

/// Byte streams.
impl Link {
    /// Makes the connection a byte stream. Returns the queue of its unread bytes.
    pub(crate) fn carry_bytes(&self) -> Arc<Inflow> {
        let mut core = self.core();
        core.conn.carry_bytes();
        let completions = core.reports.destination.as_mut();
        completions
            .map(Destination::carry_bytes)
            .unwrap_or_default()
    }

    /// Sends bytes from the start of `parts`, which contain at least one byte. Returns the number
    /// of bytes accepted.
    pub(crate) fn try_write(
        self: &Arc<Self>,
        parts: &[IoSlice<'_>],
    ) -> Result<usize, TrySendError> {
        let (written, holds) = self.with_core(|core| (core.try_write(parts), core.holds_back()));
        if holds {
            // The application might make no further call that polls the connection. The engine
            // therefore checks within 1 ms whether the window has room.
            self.poller.note_held_back();
        }
        if let Some(written) = written? {
            return Ok(written);
        }
        let piece = self.send_limit().min(self.core().conn.stream_piece());
        if piece == 0 {
            // The connection was suspended or ended after `core.try_write`. If it ended, the
            // caller's next attempt returns the reason.
            return Err(TrySendError::Full);
        }
        self.try_write_large(parts, usize::try_from(piece).unwrap_or(usize::MAX))
    }

    /// Returns true if a write of `len` bytes would return immediately: it would accept at least
    /// one byte, or fail.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_room_to_write(self: &Arc<Self>, len: usize) -> bool {
        self.with_core(|core| {
            if core.ended.is_some() {
                return true;
            }
            if core.blocks_new_messages() {
                return false;
            }
            let limit = core.conn.negotiated().map_or(0, |both| both.send_limit);
            let piece = usize::try_from(limit.min(core.conn.stream_piece()));
            match core.conn.may_send(len.min(piece.unwrap_or(usize::MAX))) {
                Ok(()) => !core.holds_back() || core.may_join(len),
                Err(SendRefused::Blocked) => core.may_join(len),
                Err(_) => true,
            }
        })
    }

    /// Sends bytes from the start of `parts` as one large message of at most `longest` bytes.
    /// Returns the number of bytes sent.
    fn try_write_large(
        self: &Arc<Self>,
        parts: &[IoSlice<'_>],
        longest: usize,
    ) -> Result<usize, TrySendError> {
        let mut room = longest;
        let whole = parts
            .iter()
            .take_while(|part| {
                let fits = part.len() <= room;
                room = room.saturating_sub(part.len());
                fits
            })
            .count();
        let (whole, rest) = parts.split_at(whole);
        let len = total(whole);
        if let (0, Some(part)) = (len, rest.first()) {
            let part = IoSlice::new(&part[..longest]);
            self.try_send(&mut Sending::new(&[part], None))?;
            return Ok(longest);
        }
        self.try_send(&mut Sending::new(whole, None))?;
        Ok(len)
    }
}

/// One-sided operations.
impl Link {
    /// Registers `len` bytes of memory, which the peer may access with the rights in `access`.
    /// Fails while the session is suspended, because a suspended session has no device.
    pub(crate) fn try_region(
        self: &Arc<Self>,
        len: usize,
        access: RemoteAccess,
    ) -> Result<Region, TrySendError> {
        // The epoch is read before the allocator. If the connection is lost between the two reads,
        // the region has an outdated epoch, and operations on it fail.
        let (epoch, is_suspended, has_session) = {
            let core = self.core();
            core.check_not_ended()?;
            (core.epoch(), core.is_suspended(), core.session.is_some())
        };
        let allocator = match self.allocator() {
            Some(allocator) if !is_suspended => allocator,
            Some(_) | None if has_session => return Err(TrySendError::Full),
            Some(_) | None => return Err(self.disconnected().into()),
        };
        let region = allocator
            .region(len, access, epoch)
            .map_err(Error::from_os)?;
        // Sessions do not support writes with immediate data.
        if access.write && !has_session {
            self.with_core(|core| core.conn.allow_immediates());
        }
        Ok(region)
    }

    /// Checks the bounds and the access rights of an operation, and whether this side's device
    /// supports the operation: see [`Checked::new`]. Refuses every write with immediate data if the
    /// connection has a session.
    pub(crate) fn check(
        &self,
        op: OneSidedOp,
        here: (&Region, Range<usize>),
        there: (&RemoteRegion, u64),
        id: u64,
    ) -> Result<Checked, Error> {
        let (epoch, has_session) = {
            let core = self.core();
            (core.epoch(), core.session.is_some())
        };
        if has_session && let OneSidedOp::WriteWithImm(_) = op {
            return Err(Error::NotSupported {
                operation: "write_with_imm",
                device: "a connection with Config::resume".into(),
                because: "after a loss, the session cannot send the notification again",
            });
        }
        Checked::new((self.allocator().as_deref(), epoch), op, here, there, id)
    }

    /// Starts an operation, or returns the reason why it cannot be started now.
    pub(crate) fn try_operate(self: &Arc<Self>, checked: &Checked) -> Result<(), TrySendError> {
        self.with_core(|core| core.try_operate(checked))
    }
}

/// Detection of stalls, and the allocator.
impl Link {
    /// Logs a long stall. The caller must hold no lock.
    pub(crate) fn report_stall(&self, stall: Stall) {
        warn_sparsely!(Connection, "{self}: {stall}");
    }

    /// Samples the connection, and logs a long stall. A thread that waits for room calls this
    /// function.
    pub(crate) fn check_stall(self: &Arc<Self>) {
        let stall = self.core().sample_stall(Instant::now());
        if let Some(stall) = stall {
            self.report_stall(stall);
        }
    }

    /// Returns the time after which a thread that waits for room calls
    /// [`check_stall`](Self::check_stall); `None` if the checks of the engine suffice.
    pub(crate) fn checks_stalls_after(&self) -> Option<Duration> {
        self.checks_stalls.then_some(LOGGED_AFTER / 2)
    }

    /// Returns the allocator of memory for the application's messages. Returns `None` if the
    /// connection has no transport.
    pub(super) fn allocator(&self) -> Option<Arc<Allocator>> {
        lock(&self.allocator).clone()
    }

    /// Returns the error for a call that needs a transport while the connection has none.
    pub(super) fn disconnected(&self) -> Error {
        Error::Disconnected(self.core().reason())
    }
}

/// Fault injection, for tests that use in-memory connections.
impl Link {
    /// Returns whether the connection uses the in-memory transport. The result is the same for all
    /// connections of a session.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.first.transport == Transport::Memory
    }

    /// Returns the fault control of the current connection. Returns `None` over RDMA and TCP, and
    /// while the connection has no transport.
    pub(crate) fn wire(&self) -> Option<WireControl> {
        self.core().queues.as_ref().and_then(WorkQueues::control)
    }

    /// Lets an engine without a thread do its pending work. Called after the fault control has
    /// changed.
    pub(crate) fn serve(&self) {
        self.notices().serve();
    }
}

/// Functions for a connection in a group.
impl Link {
    /// Adds the connection to a group, with this `key`, and moves the unread completions from the
    /// connection's queue to the group's queue. `unread` returns these completions one by one.
    /// Later completions go directly to the group's queue. From now on the engine's thread polls
    /// the connection, until a thread that waits for the group's completions takes over the
    /// polling.
    pub(crate) fn join(
        self: &Arc<Self>,
        queue: &Arc<GroupQueue>,
        key: u64,
        unread: impl FnMut() -> Option<Completion>,
    ) -> Result<(), Error> {
        self.with_core(|core| {
            core.join(queue, (key, self.key), unread)?;
            let is_grouped = core.reports.is_grouped();
            self.set_grouped(is_grouped);
            if is_grouped {
                queue.members.add(self);
            }
            Ok::<_, Error>(())
        })?;
        // Wakes the threads that wait for a completion. Their calls return, because the group now
        // receives the completions.
        self.wake();
        self.poller.call_engine();
        // If the engine has no thread of its own, this thread does the engine's work now. Without
        // this step, many joins in a row would fill the engine's mailbox.
        self.line.serve();
        Ok(())
    }

    /// Appends completions to the group's queue if the connection has joined a group. Another
    /// thread took these completions from the connection's own queue before the connection
    /// joined.
    pub(crate) fn put_after_join(self: &Arc<Self>, unread: impl FnMut() -> Option<Completion>) {
        self.with_core(|core| {
            if core.reports.is_grouped() {
                core.reports.put_all(unread, &mut core.deferred);
            }
        });
    }

    /// Removes the connection from the group with this `queue`, so that later completions go to the
    /// connection's own queue. Returns whether the connection was in this group.
    pub(crate) fn leave(self: &Arc<Self>, queue: &Arc<GroupQueue>) -> bool {
        let left = self.with_core(|core| {
            let destination = core.reports.destination.as_mut();
            let Some(destination) = destination.filter(|destination| destination.is_in(queue))
            else {
                return false;
            };
            destination.leave();
            self.set_grouped(false);
            true
        });
        if left {
            self.poller.leave_group();
        }
        left
    }

    /// Returns whether the connection is in a group. If so, the group receives the completions of
    /// the connection.
    pub(crate) fn is_grouped(&self) -> bool {
        if !self.may_be_grouped() {
            return false;
        }
        // A dropped group does not notify its connections, so this call checks whether the group
        // still exists.
        let core = self.core();
        let grouped = core.reports.is_grouped();
        self.set_grouped(grouped);
        grouped
    }

    /// Requests [`Completion::Room`] after a refused send. If the application has requested the fd
    /// for this event, the fd reports the event, and no `Room` follows.
    pub(crate) fn request_room_report(self: &Arc<Self>) {
        if self.delegate_room() {
            return;
        }
        self.with_core(|core| {
            core.reports.room_wanted = true;
            if !core.conn.is_blocked() && !core.blocks_new_messages() {
                // Credits arrived between the refusal and this call.
                core.reports.report_room(&mut core.deferred);
            }
        });
    }
}

/// Functions that end the connection or one of its directions.
impl Link {
    /// Sends a Finish frame, which ends the sending direction of this side.
    pub(crate) fn finish(self: &Arc<Self>) -> Result<(), Error> {
        self.with_core(Core::finish)
    }

    /// Stops sending and starts the exchange that closes the connection.
    pub(crate) fn close(self: &Arc<Self>) {
        self.with_core(|core| core.close(Instant::now()));
    }

    /// Ends the connection without waiting for anything.
    pub(crate) fn abort(self: &Arc<Self>, code: u32) {
        self.with_core(|core| core.abort(code, Instant::now()));
    }

    /// Rejects the peer's request for this connection, without private data.
    pub(crate) fn reject(self: &Arc<Self>) {
        self.with_core(|core| _ = core.conn.reject(&[], Instant::now()));
    }

    /// Rejects a request that the listener's program has not accepted. If the connection is already
    /// established, ends the connection. The peer may connect again.
    pub(crate) fn reject_untaken(self: &Arc<Self>) {
        self.with_core(|core| core.conn.reject_untaken(Instant::now()));
    }

    /// Wakes all waiting threads and tasks, which then check their conditions again.
    pub(crate) fn wake(self: &Arc<Self>) {
        self.poller.wake();
        self.wake_tasks(Awaited::ALL_EVENTS);
        if self.is_over_tcp() {
            // A thread may be blocked in recv(2) on the socket. The peer's answer to this flush
            // makes recv(2) return.
            let _ = self.with_core(|core| core.conn.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{super::link::tests::link, *};

    #[test]
    fn wait_for_the_taker_begins_at_a_report() {
        let (link, completions) = link();
        link.taker.note_taking_thread();
        let may_wait = |since: &mut Option<Instant>| {
            thread::scope(|scope| {
                let other = scope.spawn(|| link.may_free_report_slot(since));
                other.join().unwrap()
            })
        };
        let long_ago = Instant::now() - Taker::TIME_LIMIT;
        let mut since = Some(long_ago);
        assert!(may_wait(&mut since));
        assert_eq!(
            since, None,
            "the time must be reset if no completion with an id is unread"
        );
        let put = link
            .core()
            .reports
            .destination
            .as_mut()
            .unwrap()
            .put(Completion::Sent(1));
        put.unwrap();
        assert!(may_wait(&mut since));
        assert!(since.is_some_and(|since| since > long_ago));
        since = Some(long_ago);
        assert!(!may_wait(&mut since));
        completions.take().unwrap();
        assert!(may_wait(&mut since));
    }
}
