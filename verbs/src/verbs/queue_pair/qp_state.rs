use rdma_status::open_enum;

open_enum! {
    /// The state of a queue pair: `enum ibv_qp_state`.
    ///
    /// The usual order is `RESET` → `INIT` → `RTR` → `RTS`. It can move to `RESET` and to `ERR`
    /// from every state.
    #[doc(alias = "ibv_qp_state")]
    pub struct QpState(u32);
    /// Just created.
    RESET = 0;
    /// Receives can be posted.
    INIT = 1;
    /// Ready to receive.
    RTR = 2;
    /// Ready to send.
    RTS = 3;
    /// The send queue is being drained.
    SQD = 4;
    /// A send failed on an unreliable queue pair; it still receives.
    SQE = 5;
    /// All posted requests complete with an error.
    ERR = 6;
    /// Not known to the driver.
    UNKNOWN = 7;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi::ibv_qp_state as c;

    #[test]
    fn numbers_are_the_headers() {
        for (ours, theirs) in [
            (QpState::RESET, c::IBV_QPS_RESET),
            (QpState::INIT, c::IBV_QPS_INIT),
            (QpState::RTR, c::IBV_QPS_RTR),
            (QpState::RTS, c::IBV_QPS_RTS),
            (QpState::SQD, c::IBV_QPS_SQD),
            (QpState::SQE, c::IBV_QPS_SQE),
            (QpState::ERR, c::IBV_QPS_ERR),
            (QpState::UNKNOWN, c::IBV_QPS_UNKNOWN),
        ] {
            assert_eq!(ours.raw(), theirs, "{ours}");
        }
    }
}
