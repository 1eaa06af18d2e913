//! One-sided operations: checked here, carried out by the two devices.

use std::{ops::Range, sync::Arc};

use super::{core::Core, link::Link};
use crate::{
    error::{Error, TrySendError},
    proto::SendRefused,
    region::{Region, RemoteRegion},
    remote_access::RemoteAccess,
    sync::lock,
    verbs::{AccessFlags, MemoryRegion, RemoteAddr, SendOp},
};

/// What a one-sided operation is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OneSided {
    Read,
    Write,
    WriteWithImm(u32),
    FetchAdd(u64),
    CompareSwap { compare: u64, swap: u64 },
}

impl OneSided {
    fn is_read(self) -> bool {
        match self {
            Self::Read => true,
            Self::Write | Self::WriteWithImm(_) | Self::FetchAdd(_) | Self::CompareSwap { .. } => {
                false
            }
        }
    }

    /// The right that the peer must have given.
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
    pub(super) op: SendOp,
    pub(super) memory: MemoryRegion,
    /// The part of the memory.
    pub(super) range: Range<usize>,
    pub(super) id: u64,
}

impl Link {
    /// Registers memory that peers may access as `access` says.
    pub(crate) fn region(
        self: &Arc<Self>,
        len: usize,
        access: RemoteAccess,
    ) -> Result<Region, Error> {
        let pd = lock(&self.memory).as_ref().map(|memory| memory.pd.clone());
        let pd = pd.ok_or_else(|| Error::Disconnected(self.core().reason()))?;
        // Operations of this side write to it, too.
        let mut flags = AccessFlags::LOCAL_WRITE;
        for (given, flag) in [
            (access.read, AccessFlags::REMOTE_READ),
            (access.write, AccessFlags::REMOTE_WRITE),
            (access.atomic, AccessFlags::REMOTE_ATOMIC),
        ] {
            if given {
                flags |= flag;
            }
        }
        let memory = MemoryRegion::new(&pd, len, flags).map_err(Error::from_os)?;
        if access.write {
            self.with_core(|core| core.conn.allow_immediates());
        }
        Ok(Region::new(memory, access))
    }

    /// Checks what can be checked on this side.
    pub(crate) fn check(
        &self,
        op: OneSided,
        region: &Region,
        range: Range<usize>,
        remote: &RemoteRegion,
        offset: u64,
        id: u64,
    ) -> Result<Checked, Error> {
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
        // Without memory the connection has ended, which the operation itself will say.
        if let Some(memory) = &*lock(&self.memory) {
            if !region.memory.pd().is_same_as(&memory.pd) {
                return Err(Error::ForeignMemory);
            }
            let limit = memory.domain.max_msg_sz().into();
            within("what the device moves at once", 0, len, limit)?;
        }
        let addr = remote.addr.wrapping_add(offset);
        if matches!(op, OneSided::FetchAdd(_) | OneSided::CompareSwap { .. })
            && !addr.is_multiple_of(8)
        {
            return Err(Error::Misaligned { offset });
        }
        let remote = RemoteAddr {
            addr,
            rkey: remote.rkey,
        };
        let (memory, range) = self.target(op, region, range)?;
        Ok(Checked {
            op: op.at(remote),
            memory,
            range,
            id,
        })
    }

    /// Memory on which an operation works, and the part of it. On iWARP the peer's device writes
    /// what a read asks for, and learns the key of where to: so the read has a registration of its
    /// own, with that right and for as long as it takes, unless the peer has the right anyway.
    fn target(
        &self,
        op: OneSided,
        region: &Region,
        range: Range<usize>,
    ) -> Result<(MemoryRegion, Range<usize>), Error> {
        let reading = match &*lock(&self.memory) {
            Some(memory) => memory.domain.reading(),
            None => AccessFlags::LOCAL_WRITE,
        };
        let own = op.is_read()
            && reading != AccessFlags::LOCAL_WRITE
            && !region.remote().access().write
            && !range.is_empty();
        if !own {
            return Ok((region.memory.clone(), range));
        }
        let len = range.len();
        let memory = region
            .memory
            .again(range, reading)
            .map_err(Error::from_os)?;
        Ok((memory, 0..len))
    }

    /// Starts an operation, or says why not.
    pub(crate) fn try_operate(self: &Arc<Self>, checked: &Checked) -> Result<(), TrySendError> {
        self.with_core(|core| core.try_operate(checked, self))
    }
}

impl Core {
    fn try_operate(&mut self, checked: &Checked, link: &Link) -> Result<(), TrySendError> {
        self.check_not_ended()?;
        if !self.may_tell_of_one_more(link) {
            return Err(TrySendError::Failed(Error::CompletionsNotTaken));
        }
        let takes_receive = matches!(checked.op, SendOp::WriteWithImm(..));
        let slot = self
            .conn
            .operate(takes_receive)
            .map_err(|refused| match refused {
                SendRefused::Blocked => TrySendError::Full,
                SendRefused::TooLong { limit } => TrySendError::Failed(Error::MessageTooLong {
                    len: checked.range.len(),
                    limit,
                }),
                SendRefused::Closed(reason) => TrySendError::Failed(Error::Disconnected(reason)),
            })?;
        let Some(rings) = &mut self.rings else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        rings
            .post_operation(slot, checked)
            .map_err(|error| self.post_failed(error))
    }
}

/// Refuses a range that is not wholly inside of `limit`.
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
