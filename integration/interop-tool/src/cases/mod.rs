//! The cases, a file for each program.

mod rdma_client;
mod rping;

use crate::case::Case;

pub(crate) fn all() -> Vec<Case> {
    [rping::cases(), rdma_client::cases()]
        .into_iter()
        .flatten()
        .collect()
}
