open_enum! {
    /// The status of a completed work request: `enum ibv_wc_status`.
    ///
    /// See [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html).
    pub struct WcStatus(u32);
    /// Success.
    SUCCESS = 0;
    /// The local buffers were too small for the message, or the message was too long for the port.
    LOC_LEN_ERR = 1;
    /// The queue pair's internal state was inconsistent.
    LOC_QP_OP_ERR = 2;
    /// The end-to-end context's internal state was inconsistent.
    LOC_EEC_OP_ERR = 3;
    /// A local buffer is not in a memory region that permits the operation.
    LOC_PROT_ERR = 4;
    /// The queue pair entered its error state before this request completed.
    WR_FLUSH_ERR = 5;
    /// A memory window could not be bound.
    MW_BIND_ERR = 6;
    /// The peer's response was invalid.
    BAD_RESP_ERR = 7;
    /// A local buffer became inaccessible while data arrived.
    LOC_ACCESS_ERR = 8;
    /// The peer's device refused the request: the peer's buffer is too short, or the device does
    /// not support the operation.
    REM_INV_REQ_ERR = 9;
    /// The peer's memory region does not permit the operation.
    REM_ACCESS_ERR = 10;
    /// The peer could not complete the operation.
    REM_OP_ERR = 11;
    /// The peer's device acknowledged neither the request nor its retries: the peer's queue pair,
    /// the peer's host, or the path to the host has failed.
    RETRY_EXC_ERR = 12;
    /// The peer had no receive posted, even after all RNR retries.
    RNR_RETRY_EXC_ERR = 13;
    /// A reliable datagram domain was violated.
    LOC_RDD_VIOL_ERR = 14;
    /// The peer refused a reliable datagram request.
    REM_INV_RD_REQ_ERR = 15;
    /// The peer aborted the operation.
    REM_ABORT_ERR = 16;
    /// The end-to-end context number was invalid.
    INV_EECN_ERR = 17;
    /// The end-to-end context was in the wrong state.
    INV_EEC_STATE_ERR = 18;
    /// The device failed.
    FATAL_ERR = 19;
    /// The response timed out.
    RESP_TIMEOUT_ERR = 20;
    /// Another error.
    GENERAL_ERR = 21;
    /// Tag matching failed.
    TM_ERR = 22;
    /// Tag matching: the rendezvous is incomplete.
    TM_RNDV_INCOMPLETE = 23;
}

impl std::error::Error for WcStatus {}
