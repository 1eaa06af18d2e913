//! One-sided operations. This module checks the operations, and the transport carries them out.

use std::ops::Range;

use super::work_request::{RemoteAddr, SendOp};
use crate::{
    error::Error,
    remote_access::RemoteAccess,
    transport::memory::{Allocator, Region, Registration, RemoteRegion},
};

/// The kind of a one-sided operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OneSidedOp {
    Read,
    Write,
    WriteWithImm(u32),
    FetchAdd(u64),
    CompareSwap { compare: u64, swap: u64 },
}

impl OneSidedOp {
    fn is_read(self) -> bool {
        match self {
            Self::Read => true,
            Self::Write | Self::WriteWithImm(_) | Self::FetchAdd(_) | Self::CompareSwap { .. } => {
                false
            }
        }
    }

    /// Returns the access right that the peer must have granted.
    fn needs(self) -> RemoteAccess {
        match self {
            Self::Read => RemoteAccess::READ,
            Self::Write | Self::WriteWithImm(_) => RemoteAccess::WRITE,
            Self::FetchAdd(_) | Self::CompareSwap { .. } => RemoteAccess::ATOMIC,
        }
    }

    fn at(self, remote: RemoteAddr) -> SendOp {
        match self {
            Self::Read => SendOp::Read(remote),
            Self::Write => SendOp::Write(remote),
            Self::WriteWithImm(word) => SendOp::WriteWithImm(remote, word),
            Self::FetchAdd(add) => SendOp::FetchAdd { remote, add },
            Self::CompareSwap { compare, swap } => SendOp::CompareSwap {
                remote,
                compare,
                swap,
            },
        }
    }
}

/// A one-sided operation that passed all checks.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) op: SendOp,
    pub(crate) memory: Registration,
    /// The byte range in `memory` that the operation accesses.
    pub(crate) range: Range<usize>,
    pub(crate) id: u64,
    /// The epoch of the local and the remote region. It is checked again when the operation is
    /// posted, because the connection may have been lost after the first check.
    pub(crate) epoch: u16,
}

impl Checked {
    /// Checks the bounds, the access rights, and whether this side's device supports the operation.
    /// `epoch` is the epoch of the connection. If the connection has ended or is suspended, the
    /// allocator is `None`, and the checks that need the allocator are omitted. This is safe. On an
    /// ended connection, posting the operation fails. On a suspended connection, the operation
    /// waits. After the resumption, posting it fails, because the epoch has changed.
    pub(crate) fn new(
        (allocator, epoch): (Option<&Allocator>, u16),
        op: OneSidedOp,
        (region, range): (&Region, Range<usize>),
        (remote, offset): (&RemoteRegion, u64),
        id: u64,
    ) -> Result<Self, Error> {
        let len = range.end.saturating_sub(range.start) as u64;
        within("the region", range.start as u64, len, region.len() as u64)?;
        within("the peer's region", offset, len, remote.len)?;
        let needed = op.needs();
        if !remote.access.contains(needed) {
            return Err(Error::NotAllowed {
                allowed: remote.access,
                needed,
            });
        }
        if region.epoch() != epoch || remote.epoch != epoch {
            return Err(Error::StaleRegion);
        }
        let addr = remote.addr.wrapping_add(offset);
        let (is_read, op) = (
            op.is_read(),
            op.at(RemoteAddr {
                addr,
                rkey: remote.rkey,
            }),
        );
        if let Some(allocator) = allocator {
            if !allocator.has_registered(region) {
                return Err(Error::ForeignMemory);
            }
            let limit = allocator.domain().longest_operation();
            within("the device's longest operation", 0, len, limit)?;
            let domain = allocator.domain();
            let able = domain.traits().capabilities;
            op.check(able, || domain.device_name())?;
        }
        if op.is_atomic() && !addr.is_multiple_of(8) {
            return Err(Error::Misaligned { offset });
        }
        let (memory, range) = target(allocator, is_read, region, range)?;
        Ok(Self {
            op,
            memory,
            range,
            id,
            epoch,
        })
    }

    /// Returns true if the operation consumes a receive of the peer.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(self.op, SendOp::WriteWithImm(..))
    }

    /// Returns the number of bytes that the operation transfers.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }
}

/// Returns the memory of this side that the operation accesses, and the byte range in this memory.
/// If the device needs a separate registration for the target of a READ, registers the range.
fn target(
    allocator: Option<&Allocator>,
    is_read: bool,
    region: &Region,
    range: Range<usize>,
) -> Result<(Registration, Range<usize>), Error> {
    if let Some(allocator) = allocator
        && is_read
    {
        let peer_may_write = region.remote().access().write;
        let own = allocator
            .domain()
            .read_target(&region.memory, range.clone(), peer_may_write)
            .map_err(Error::from_os)?;
        if let Some(own) = own {
            return Ok((own, 0..range.len()));
        }
    }
    Ok((region.memory.clone(), range))
}

/// Returns an error if the range exceeds `limit`.
fn within(what: &'static str, start: u64, len: u64, limit: u64) -> Result<(), Error> {
    if start.checked_add(len).is_some_and(|end| end <= limit) {
        return Ok(());
    }
    Err(Error::OutOfBounds {
        what,
        start,
        len,
        limit,
    })
}
