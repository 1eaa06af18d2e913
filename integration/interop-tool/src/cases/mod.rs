//! The cases, a file for each program.

mod devinfo;
mod mckey;
mod rc_example;
mod rc_pingpong;
mod rdma_client;
mod rping;
mod rstream;
mod ucmatose;
mod udaddy;

use crate::case::Case;

pub(crate) fn all() -> Vec<Case> {
    [
        rping::cases(),
        rdma_client::cases(),
        ucmatose::cases(),
        rc_pingpong::cases(),
        devinfo::cases(),
        rc_example::cases(),
        udaddy::cases(),
        mckey::cases(),
        rstream::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
