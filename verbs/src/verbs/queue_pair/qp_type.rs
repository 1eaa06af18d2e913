use rdma_status::open_enum;

open_enum! {
    /// The type of transport: `enum ibv_qp_type`.
    #[doc(alias = "ibv_qp_type")]
    pub struct QpType(u32);
    /// Reliable connection: messages arrive once and in order, or the connection fails.
    RC = 2;
    /// Unreliable connection: messages may be lost.
    UC = 3;
    /// Unreliable datagram: messages of one packet to any peer, which may be lost.
    UD = 4;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi;

    #[test]
    fn types_are_the_headers() {
        assert_eq!(QpType::RC.raw(), ffi::ibv_qp_type::IBV_QPT_RC);
        assert_eq!(QpType::UC.raw(), ffi::ibv_qp_type::IBV_QPT_UC);
        assert_eq!(QpType::UD.raw(), ffi::ibv_qp_type::IBV_QPT_UD);
    }
}
