//! Fuzz targets for rdmsg's protocol. Each target passes bytes or sequences of events to `proto`
//! and checks the outcome.

use rdma_status as status;
use rdmsg_proto as proto;

mod device;
mod frame;
mod header;
mod hello;
mod input;
mod operations;
mod wire;

pub use frame::one_frame;
pub use header::one_header;
pub use hello::one_hello;
pub use operations::one_life;
