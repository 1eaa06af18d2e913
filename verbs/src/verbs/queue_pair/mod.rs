//! Queue pairs and shared receive queues, to which programs post work requests.
//!
//! The safe functions check each request against the limits of the queue, and keep the memory of
//! the request alive until the queue is destroyed. This module uses all other modules of `verbs`.

mod modify_error;
mod qp;
mod qp_attr;
mod qp_cap;
mod qp_init_attr;
mod receive_list;
mod recv_queue;
mod send_ops;
mod send_queue;
mod shared_receive_queue;
mod transition;
mod windows;

pub use modify_error::ModifyError;
pub(crate) use qp::QpOwner;
pub use qp::QueuePair;
pub use qp_attr::{AltPath, MigState, QpAttr, QpAttrMask, QpState};
pub use qp_cap::QpCap;
pub use qp_init_attr::{QpInitAttr, QpType};
pub use receive_list::RawRecv;
pub use shared_receive_queue::{SharedReceiveQueue, SrqAttr};
