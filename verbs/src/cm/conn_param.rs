use super::PrivateData;
use crate::{
    sys::{consts, ffi},
    verbs::AhAttr,
};

/// The parameters of a connection that a program requests or accepts.
///
/// See [`rdma_connect(3)`](https://man7.org/linux/man-pages/man3/rdma_connect.3.html).
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "programs fill in every field, as in C"
)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParam {
    /// Bytes that the connection manager delivers to the peer's program.
    pub private_data: PrivateData,
    /// The maximum number of concurrent READ and atomic operations from the peer.
    ///
    /// The default, 255, means the device's maximum.
    pub responder_resources: u8,
    /// The maximum number of concurrent READ and atomic operations to the peer.
    ///
    /// The default, 255, means the device's maximum.
    pub initiator_depth: u8,
    /// Whether the device supports end-to-end flow control. Default: `true`.
    pub flow_control: bool,
    /// The number of times that the device retransmits an unacknowledged packet, 0 to 7. Default:
    /// 7.
    pub retry_count: u8,
    /// The number of retries when the peer has not posted a receive, 0 to 7. The default, 7, means
    /// that there is no limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue.
    ///
    /// librdmacm uses this value only if the program did not create the queue pair through the id.
    pub srq: bool,
    /// The queue pair's number. librdmacm uses this value only if the program did not create the
    /// queue pair through the id.
    pub qp_num: u32,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: PrivateData::default(),
            responder_resources: consts::RDMA_MAX_RESP_RES,
            initiator_depth: consts::RDMA_MAX_INIT_DEPTH,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: 0,
        }
    }
}

impl ConnParam {
    /// Converts the parameters to the C structure, which contains a pointer into `self`.
    pub(super) fn to_raw(&self) -> ffi::rdma_conn_param {
        ffi::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // The cast is lossless, because `PrivateData` has at most 255 bytes.
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq.into(),
            qp_num: self.qp_num,
        }
    }
}

/// The connection parameters in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnEventParam {
    /// The maximum number of concurrent READ and atomic operations that the peer intends to send.
    pub responder_resources: u8,
    /// The maximum number of concurrent READ and atomic operations that the peer accepts.
    pub initiator_depth: u8,
    /// Whether the peer's device supports end-to-end flow control.
    pub flow_control: bool,
    /// The number of times that this side retransmits an unacknowledged packet. Set only in a
    /// CONNECT_REQUEST.
    pub retry_count: u8,
    /// The number of times that this side retries a message for which the peer has not posted a
    /// receive, 0 to 7. 7 means that there is no limit.
    pub rnr_retry_count: u8,
    /// Whether the peer uses a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair number.
    pub qp_num: u32,
}

impl ConnEventParam {
    pub(super) fn from_raw(raw: &ffi::rdma_conn_param) -> Self {
        Self {
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            flow_control: raw.flow_control != 0,
            retry_count: raw.retry_count,
            rnr_retry_count: raw.rnr_retry_count,
            srq: raw.srq != 0,
            qp_num: raw.qp_num,
        }
    }
}

/// The parameters that an event reports for a datagram peer or a multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdEventParam {
    /// The path to the peer or to the group.
    pub ah_attr: AhAttr,
    /// The peer's queue pair number, or 0xffffff for a multicast group.
    pub qp_num: u32,
    /// The queue key of messages to the peer or to the group.
    pub qkey: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_matches_a_null_conn_param_in_c() {
        let param = ConnParam::default();
        let raw = param.to_raw();
        assert_eq!(
            (
                raw.responder_resources,
                raw.initiator_depth,
                raw.retry_count,
                raw.rnr_retry_count
            ),
            (255, 255, 7, 7)
        );
        assert_eq!(raw.private_data_len, 0);
    }
}
