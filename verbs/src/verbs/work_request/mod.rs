//! Work requests, the objects that they refer to, and their conversion to the chain that C takes.
//!
//! A request describes an operation without the queue that it will be posted on: `queue_pair`
//! checks whether a queue can take it. Uses `device`, `memory` and `completion`.

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
