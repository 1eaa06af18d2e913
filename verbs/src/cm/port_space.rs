use rdma_status::open_enum;

open_enum! {
    /// The kind of service that a port number refers to: `enum rdma_port_space`.
    #[doc(alias = "rdma_port_space")]
    pub struct PortSpace(u32);
    /// Datagrams over IP over InfiniBand. Their queue pairs can communicate with those of IPoIB.
    IPOIB = 0x0002;
    /// Reliable connections, addressed by IP address and port.
    TCP = 0x0106;
    /// Datagrams, addressed by IP address and port.
    UDP = 0x0111;
    /// Any service, addressed as InfiniBand does.
    IB = 0x013f;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi;

    #[test]
    fn port_spaces_are_those_of_the_header() {
        assert_eq!(PortSpace::TCP.raw(), ffi::rdma_port_space::RDMA_PS_TCP);
        assert_eq!(PortSpace::UDP.raw(), ffi::rdma_port_space::RDMA_PS_UDP);
        assert_eq!(PortSpace::IB.raw(), ffi::rdma_port_space::RDMA_PS_IB);
        assert_eq!(PortSpace::IPOIB.raw(), ffi::rdma_port_space::RDMA_PS_IPOIB);
    }
}
