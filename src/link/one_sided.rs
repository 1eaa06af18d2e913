//! One-sided operations, as a connection starts them.

use std::{ops::Range, sync::Arc};

use super::{core::Core, link::Link, refused::refused_send};
use crate::{
    error::{Error, TrySendError},
    proto::Capabilities,
    remote_access::RemoteAccess,
    transport::{Checked, OneSided, Region, RemoteRegion},
};

impl Link {
    /// Registers memory that peers may access as `access` says.
    pub(crate) fn region(
        self: &Arc<Self>,
        len: usize,
        access: RemoteAccess,
    ) -> Result<Region, Error> {
        let allocator = self.allocator().ok_or_else(|| self.disconnected())?;
        let region = allocator.region(len, access).map_err(Error::from_os)?;
        if access.write {
            self.with_core(|core| core.conn.allow_immediates());
        }
        Ok(region)
    }

    /// What both devices can do, as long as there is a connection.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        let core = self.core();
        core.queues.as_ref()?;
        core.conn.capabilities()
    }

    /// Checks what can be checked on this side.
    pub(crate) fn check(
        &self,
        op: OneSided,
        here: (&Region, Range<usize>),
        there: (&RemoteRegion, u64),
        id: u64,
    ) -> Result<Checked, Error> {
        Checked::new(self.allocator().as_deref(), op, here, there, id)
    }

    /// Starts an operation, or returns why not.
    pub(crate) fn try_operate(self: &Arc<Self>, checked: &Checked) -> Result<(), TrySendError> {
        self.with_core(|core| core.try_operate(checked))
    }
}

impl Core {
    fn try_operate(&mut self, checked: &Checked) -> Result<(), TrySendError> {
        self.check_not_ended()?;
        if let Some(able) = self.conn.capabilities() {
            // This side's has been asked.
            checked
                .op
                .check(able, || "the peer's device".to_owned())
                .map_err(TrySendError::Failed)?;
        }
        if self.holds_back() {
            // What was taken before goes first.
            self.conn
                .may_send(0)
                .map_err(|refused| refused_send(refused, 0))?;
            return Err(TrySendError::Full);
        }
        if !self.may_report_one_more() {
            return Err(TrySendError::Failed(Error::CompletionsNotTaken));
        }
        let slot = self
            .conn
            .operate(checked.takes_receive())
            .map_err(|refused| refused_send(refused, checked.len()))?;
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        queues
            .post_operation(slot, checked)
            .map_err(|error| self.post_failed(error))
    }
}
