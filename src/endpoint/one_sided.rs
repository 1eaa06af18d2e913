use std::ops::Range;

use super::Endpoint;
use crate::{
    Error,
    link::Deadline,
    remote_access::RemoteAccess,
    transport::rdma::{OneSided, Region, RemoteRegion},
};

/// One-sided operations: this side's device and the peer's move the bytes, and the peer's program
/// takes no part.
///
/// Each names a range of a [`Region`] of this side, a peer's [`RemoteRegion`] with an offset, and
/// an id for its completion. Bounds and rights are checked before anything is done. What only the
/// peer's device can find, a region that is gone or a right that was never given, is told by
/// [`Completion::Failed`](crate::Completion::Failed) with the device's status, and ends the
/// connection: that is how RDMA's reliable connections are.
///
/// Operations and messages are carried out in the order in which they were started, with one
/// exception that every RDMA device makes: a write or message that follows a read or atomic
/// operation may be carried out before it. Wait for the read's completion where that matters. They
/// wait while as many as [`Config::send_depth`](crate::Config::send_depth) are under way.
///
/// The errors of all of them: [`Error::OutOfBounds`], [`Error::NotAllowed`], [`Error::Misaligned`]
/// and [`Error::ForeignMemory`] for what is wrong with the arguments,
/// [`Error::CompletionsNotTaken`] where too many completions wait to be taken,
/// [`Error::Disconnected`] when the connection has ended. After an error nothing was done and no
/// completion comes.
impl Endpoint {
    /// Registers `len` bytes of zeroed memory for one-sided operations, which peers that know its
    /// [remote](Region::remote) may access as `access` says.
    ///
    /// # Errors
    ///
    /// [`Error::LockedMemory`] or [`Error::Os`] when the memory cannot be registered, for instance
    /// `EINVAL` for no bytes; [`Error::Disconnected`] when the connection has ended.
    pub fn region(&self, len: usize, access: RemoteAccess) -> Result<Region, Error> {
        self.inner.link.region(len, access)
    }

    /// Reads from the peer's memory, from `offset` of its region on, into `range` of this side's.
    /// [`Completion::Read`](crate::Completion::Read) tells when the bytes are there.
    ///
    /// # Errors
    ///
    /// See [above](#impl-Endpoint).
    pub fn read(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), Error> {
        self.operate(OneSided::Read, region, range, remote, offset, id)
    }

    /// Writes `range` of this side's region to the peer's memory, from `offset` of its region on.
    /// [`Completion::Written`](crate::Completion::Written) tells when the peer's device has the
    /// bytes; until then they must not change. A message sent afterwards is received after the
    /// bytes are in the peer's memory.
    ///
    /// # Errors
    ///
    /// See [above](#impl-Endpoint).
    pub fn write(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), Error> {
        self.operate(OneSided::Write, region, range, remote, offset, id)
    }

    /// As [`write`](Self::write), and tells the peer's program when the bytes are there, by
    /// [`Completion::Immediate`](crate::Completion::Immediate) with `word`. It takes one place of
    /// the peer's window, as a message does.
    ///
    /// # Errors
    ///
    /// See [above](#impl-Endpoint).
    pub fn write_with_imm(
        &self,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        word: u32,
        id: u64,
    ) -> Result<(), Error> {
        let op = OneSided::WriteWithImm(word);
        self.operate(op, region, range, remote, offset, id)
    }

    /// Adds to a number of 8 bytes, in the peer's byte order, in the peer's memory, in one step
    /// that no other such operation interrupts. The address of the number must be a multiple of 8.
    /// [`Completion::Fetched`](crate::Completion::Fetched) brings what it was before. That comes to
    /// `at` of this side's region as well, when the completion is told. Operations may have the
    /// same `at`: the last one that is done is found there, and each completion brings its own
    /// operation's value.
    ///
    /// # Errors
    ///
    /// See [above](#impl-Endpoint).
    pub fn fetch_add(
        &self,
        region: &Region,
        at: usize,
        remote: &RemoteRegion,
        offset: u64,
        add: u64,
        id: u64,
    ) -> Result<(), Error> {
        let op = OneSided::FetchAdd(add);
        self.operate(op, region, eight_from(at), remote, offset, id)
    }

    /// Replaces a number of 8 bytes, in the peer's byte order, in the peer's memory by `swap` if it
    /// is `compare`, in one step that no other such operation interrupts. Otherwise as
    /// [`fetch_add`](Self::fetch_add): it was replaced if the old value is `compare`.
    ///
    /// # Errors
    ///
    /// See [above](#impl-Endpoint).
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
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
        let op = OneSided::CompareSwap { compare, swap };
        self.operate(op, region, eight_from(at), remote, offset, id)
    }

    fn operate(
        &self,
        op: OneSided,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<(), Error> {
        let link = &self.inner.link;
        let checked = link.check(op, (region, range), (remote, offset), id)?;
        self.wait_for_room(&Deadline::never(), || link.try_operate(&checked))
    }
}

/// The range of a number. One that does not exist is found with the bounds.
fn eight_from(at: usize) -> Range<usize> {
    at..at.saturating_add(8)
}
