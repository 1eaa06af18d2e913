use std::ops::Range;

use super::Endpoint;
use crate::{
    error::{Error, TrySendError},
    link::Deadline,
    remote_access::RemoteAccess,
    transport::{OneSidedOp, Region, RemoteRegion},
};

/// One-sided operations: the devices transfer the bytes, and the peer's program is not involved.
///
/// Each method takes a range of a [`Region`] of this side, a peer's [`RemoteRegion`] with an offset
/// in bytes, and an id for the completion. The method checks bounds and rights first. Only the
/// peer's device can detect that a region has been deregistered, or that the `RemoteRegion`
/// contains a right that the peer did not grant. That device then ends the connection, as on any
/// reliable RDMA connection, and this side gets [`Completion::Failed`](crate::Completion::Failed)
/// with the status.
///
/// The devices execute operations and messages in the order in which the program started them. One
/// exception applies to every RDMA device: the device can execute a write or message before a read
/// or atomic operation that was started earlier. If this order matters, wait for the completion of
/// the read or atomic operation. At most [`Config::send_depth`](crate::Config::send_depth)
/// operations are in flight; further operations wait. Each operation also needs a free slot for its
/// completion, and waits for such a slot in the same way as a message [with an
/// id](crate::Outgoing::with_id).
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    endpoint: &'a Endpoint,
}

impl Endpoint {
    /// Returns the one-sided operations of the connection.
    #[must_use]
    pub fn one_sided(&self) -> OneSided<'_> {
        OneSided { endpoint: self }
    }
}

impl OneSided<'_> {
    /// Registers `len` bytes of zeroed memory for one-sided operations.
    ///
    /// Peers that know the region's descriptor ([`Region::remote`]) can access the memory with the
    /// rights in `access`. [`RemoteAccess::NONE`] is for memory that only operations of this side
    /// use. While a connection with [`Config::resume`](crate::Config::resume) is suspended, the
    /// call waits.
    ///
    /// # Errors
    ///
    /// * [`Error::LockedMemory`] when the process may not lock that much memory.
    /// * [`Error::Os`] when the memory cannot be registered for another reason, for instance
    ///   `EINVAL` for a length of 0.
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn region(&self, len: usize, access: RemoteAccess) -> Result<Region, Error> {
        let link = &self.endpoint.inner.link;
        self.endpoint
            .wait_for_room(&Deadline::never(), || link.try_region(len, access))
    }

    /// Reads from the peer's memory at `offset` of `remote` into `range` of `region`.
    ///
    /// [`Completion::Read`](crate::Completion::Read) with `id` reports that `range` contains the
    /// bytes. The peer's region must allow [reading](RemoteAccess::read).
    ///
    /// # Errors
    ///
    /// After an error nothing was done, and there is no completion.
    ///
    /// * [`Error::OutOfBounds`], [`Error::NotAllowed`], [`Error::ForeignMemory`] or
    ///   [`Error::StaleRegion`] for invalid arguments.
    /// * [`Error::CompletionsNotTaken`] when the program has left too many completions untaken, and
    ///   no other thread takes them.
    /// * [`Error::Disconnected`] when the connection has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{Completion, Endpoint, RemoteAccess, RemoteRegion};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = Endpoint::connect("10.8.0.1:7471")?;
    /// // The peer has sent the descriptor that its call of `Region::remote` returned.
    /// let message = endpoint.recv()?;
    /// if let Ok(bytes) = message.as_ref().try_into() {
    ///     let remote = RemoteRegion::from_bytes(bytes);
    ///     let local = endpoint.one_sided().region(20, RemoteAccess::NONE)?;
    ///     endpoint.one_sided().read(&local, 0..20, &remote, 0, 1)?;
    ///     while !matches!(endpoint.next_completion()?, Completion::Read(1)) {}
    ///     let mut bytes = [0; 20];
    ///     local.copy_out(0, &mut bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), Error> {
        self.operate(OneSidedOp::Read, region, range, remote, offset, id)
    }

    /// Writes `range` of `region` to the peer's memory at `offset` of `remote`.
    ///
    /// [`Completion::Written`](crate::Completion::Written) with `id` reports that the peer's device
    /// has received the bytes; do not change the bytes before this completion. If you send a
    /// message after this call, the bytes are in the peer's memory before the peer receives the
    /// message. The peer's region must allow [writing](RemoteAccess::write).
    ///
    /// # Errors
    ///
    /// After an error nothing was done, and there is no completion.
    ///
    /// * [`Error::OutOfBounds`], [`Error::NotAllowed`], [`Error::ForeignMemory`] or
    ///   [`Error::StaleRegion`] for invalid arguments.
    /// * [`Error::CompletionsNotTaken`] when the program has left too many completions untaken, and
    ///   no other thread takes them.
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn write(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), Error> {
        self.operate(OneSidedOp::Write, region, range, remote, offset, id)
    }

    /// Writes `range` of `region` to the peer's memory and notifies the peer's program.
    ///
    /// The bytes are written to `offset` of `remote`. Then the peer gets
    /// [`Completion::Immediate`](crate::Completion::Immediate) with `imm_data`, and this side gets
    /// [`Completion::Written`](crate::Completion::Written) with `id`. Do not change the bytes
    /// before `Completion::Written`. The operation uses one credit, as a message does, and waits
    /// while the window is full. The peer's region must allow [writing](RemoteAccess::write).
    ///
    /// # Errors
    ///
    /// After an error nothing was done, and there is no completion.
    ///
    /// * [`Error::OutOfBounds`], [`Error::NotAllowed`], [`Error::ForeignMemory`] or
    ///   [`Error::StaleRegion`] for invalid arguments.
    /// * [`Error::NotSupported`] on iWARP, and on a connection with
    ///   [`Config::resume`](crate::Config::resume).
    /// * [`Error::CompletionsNotTaken`] when the program has left too many completions untaken, and
    ///   no other thread takes them.
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn write_with_imm(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        imm_data: u32,
        id: u64,
    ) -> Result<(), Error> {
        let op = OneSidedOp::WriteWithImm(imm_data);
        self.operate(op, region, range, remote, offset, id)
    }

    /// Atomically adds `add` to an integer in the peer's memory, and fetches its old value.
    ///
    /// The integer has 8 bytes in the peer's byte order, at `offset` of `remote`. Its address must
    /// be a multiple of 8. The operation is atomic only relative to other one-sided atomic
    /// operations. [`Completion::Fetched`](crate::Completion::Fetched) with `id` contains the old
    /// value, which is also written to offset `at` of `region` (8 bytes). Several operations may
    /// use the same `at`: each overwrites the 8 bytes, but each completion contains the old value
    /// of its own operation. The peer's region must allow [atomic
    /// operations](RemoteAccess::atomic).
    ///
    /// # Errors
    ///
    /// After an error nothing was done, and there is no completion.
    ///
    /// * [`Error::OutOfBounds`], [`Error::NotAllowed`], [`Error::Misaligned`],
    ///   [`Error::ForeignMemory`] or [`Error::StaleRegion`] for invalid arguments.
    /// * [`Error::NotSupported`] if one of the two devices does not support atomic operations.
    /// * [`Error::CompletionsNotTaken`] when the program has left too many completions untaken, and
    ///   no other thread takes them.
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn fetch_add(
        &self,
        region: &Region,
        at: usize,
        remote: &RemoteRegion,
        offset: u64,
        add: u64,
        id: u64,
    ) -> Result<(), Error> {
        let op = OneSidedOp::FetchAdd(add);
        self.operate(op, region, eight_from(at), remote, offset, id)
    }

    /// Atomically replaces an integer in the peer's memory with `swap` if its value is `compare`.
    ///
    /// The integer has 8 bytes in the peer's byte order, at `offset` of `remote`. Its address must
    /// be a multiple of 8. [`Completion::Fetched`](crate::Completion::Fetched) with `id` contains
    /// the old value; if it equals `compare`, the integer was replaced. The old value is also
    /// written to offset `at` of `region` (8 bytes). The peer's region must allow [atomic
    /// operations](RemoteAccess::atomic).
    ///
    /// # Errors
    ///
    /// After an error nothing was done, and there is no completion.
    ///
    /// * [`Error::OutOfBounds`], [`Error::NotAllowed`], [`Error::Misaligned`],
    ///   [`Error::ForeignMemory`] or [`Error::StaleRegion`] for invalid arguments.
    /// * [`Error::NotSupported`] if one of the two devices does not support atomic operations.
    /// * [`Error::CompletionsNotTaken`] when the program has left too many completions untaken, and
    ///   no other thread takes them.
    /// * [`Error::Disconnected`] when the connection has ended.
    #[expect(clippy::too_many_arguments, reason = "the operation needs all of them")]
    pub fn compare_swap(
        &self,
        region: &Region,
        at: usize,
        remote: &RemoteRegion,
        offset: u64,
        compare: u64,
        swap: u64,
        id: u64,
    ) -> Result<(), Error> {
        let op = OneSidedOp::CompareSwap { compare, swap };
        self.operate(op, region, eight_from(at), remote, offset, id)
    }

    fn operate(
        &self,
        op: OneSidedOp,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), Error> {
        let link = &self.endpoint.inner.link;
        let checked = link.check(op, (region, range), (remote, offset), id)?;
        self.endpoint
            .wait_for_room(&Deadline::never(), || link.try_operate(&checked))
    }

    /// Starts a [`read`](Self::read) if the operation can start without waiting.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`] when the operation would have to wait, and the errors of
    /// [`read`](Self::read). [`Error::CompletionsNotTaken`] is returned even if another thread
    /// takes completions.
    pub fn try_read(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), TrySendError> {
        self.try_operate(OneSidedOp::Read, region, range, remote, offset, id)
    }

    /// Starts a [`write`](Self::write) if the operation can start without waiting.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`] when the operation would have to wait, and the errors of
    /// [`write`](Self::write). [`Error::CompletionsNotTaken`] is returned even if another thread
    /// takes completions.
    pub fn try_write(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), TrySendError> {
        self.try_operate(OneSidedOp::Write, region, range, remote, offset, id)
    }

    /// Starts a [`write_with_imm`](Self::write_with_imm) if the operation can start without
    /// waiting.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`] when the operation would have to wait, and the errors of
    /// [`write_with_imm`](Self::write_with_imm). [`Error::CompletionsNotTaken`] is returned even
    /// if another thread takes completions.
    pub fn try_write_with_imm(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        imm_data: u32,
        id: u64,
    ) -> Result<(), TrySendError> {
        let op = OneSidedOp::WriteWithImm(imm_data);
        self.try_operate(op, region, range, remote, offset, id)
    }

    fn try_operate(
        &self,
        op: OneSidedOp,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), TrySendError> {
        let link = &self.endpoint.inner.link;
        let checked = link.check(op, (region, range), (remote, offset), id)?;
        self.endpoint.try_in_room(|| link.try_operate(&checked))
    }
}

/// Returns the range of the 8 bytes from offset `at`. If `at + 8` overflows, returns a range that
/// no region contains, so that the bounds check of the caller fails.
fn eight_from(at: usize) -> Range<usize> {
    at..at.saturating_add(8)
}
