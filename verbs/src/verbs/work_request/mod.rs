//! Work requests, the objects to which they refer, and the conversion of requests to the linked
//! lists of C structures that libibverbs expects.
//!
//! A request describes an operation independently of the queue. The module `queue_pair` checks
//! whether a queue supports the request. This module uses the modules `device`, `memory` and
//! `completion`.

mod address_handle;
mod posting;
pub(in crate::verbs) mod raw;
mod sge;
mod wr;

pub use address_handle::{AddressHandle, AhAttr, GlobalRoute};
pub use posting::PostError;
pub(in crate::verbs) use posting::{Chain, HeldRegions};
pub use raw::{RawSend, RawSge};
pub use sge::{Sge, SgeList};
pub(in crate::verbs) use wr::{Bytes, UdTarget};
pub use wr::{Inline, Payload, RecvWr, RemoteAddr, SendOp, SendWr};
