//! Queue pairs and shared receive queues: where work requests are posted.
//!
//! Requests that are posted by safe functions are checked against the limits of the queue, and
//! their memory is held until the queue is destroyed. Uses all other folders of `verbs`.

mod modify_error;
mod qp;
mod qp_attr;
mod qp_cap;
mod qp_init_attr;
mod recv_queue;
mod send_ops;
mod send_queue;
mod shared_receive_queue;
mod transition;

pub use modify_error::ModifyError;
pub(crate) use qp::QpOwner;
pub use qp::QueuePair;
pub use qp_attr::{AltPath, MigState, QpAttr, QpAttrMask, QpState};
pub use qp_cap::QpCap;
pub use qp_init_attr::{QpInitAttr, QpType};
pub use shared_receive_queue::{SharedReceiveQueue, SrqAttr};
